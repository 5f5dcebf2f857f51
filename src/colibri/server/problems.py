"""Errors as the OpenAI API reports them: {"error": {"message", "type", "param", "code"}} with the right status."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from colibri.errors import ColibriError

log = logging.getLogger("colibri.server")


class ApiError(Exception):
    """An error that a client is told: HTTP status, and the fields of the error object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.headers = dict(headers or {})

    def body(self, path: str = "") -> dict[str, Any]:
        """The error object, as the clients of this path know errors."""
        if path.startswith("/api/"):  # Ollama's
            return {"error": self.message}
        outer = {"type": "error"} if path.startswith("/v1/messages") else {}  # Anthropic's
        return {**outer, **self._object()}

    def _object(self) -> dict[str, Any]:
        kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A client's fault."""
    return ApiError(400, message, param=param, code=code)


def refused(error: ColibriError) -> ApiError:
    """A client's fault; a message that begins with a field's name says which it is."""
    named = re.match(r"[a-z_]+(\.[a-z_]+)*(?=: )", str(error))
    return bad_request(str(error), named[0] if named else None)


def context_exceeded(prompt: int, context: int, *, estimate: bool = False) -> ApiError:
    """The prompt leaves no room; both counts are in the message. An `estimate` is what it has at least."""
    count = f"at least {prompt}" if estimate else f"{prompt}"
    return bad_request(
        f"This model's context holds {context} tokens, but the prompt has {count}. Shorten the prompt, or serve with "
        "a larger context.",
        code="context_length_exceeded",
    )


def engine_lost() -> ApiError:
    """The engine process died under a request, or hung and was killed."""
    message = "The engine failed and is being restarted; this request is lost. Send it again."
    return ApiError(503, message, code="engine_lost", headers={"Retry-After": "2"})


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON in ASCII, so that no character can make it fail."""
    return Response(json.dumps(value), status, media_type="application/json", headers=headers)


def install(app: FastAPI) -> None:
    """Make every error of the app an error object."""

    def api_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return json_response(error.body(request.url.path), error.status, error.headers)

    def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        problem = validation_problem(error.errors())
        return json_response(problem.body(request.url.path), problem.status)

    def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        problem = ApiError(error.status_code, str(error.detail), headers=error.headers)
        return json_response(problem.body(request.url.path), problem.status, problem.headers)

    def colibri_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ColibriError)
        return json_response(refused(error).body(request.url.path), 400)

    def unexpected(request: Request, error: Exception) -> Response:
        log.exception("%s %s", request.method, request.url.path, exc_info=error)
        return json_response(ApiError(500, "The server failed; its log has the details.").body(request.url.path), 500)

    app.add_exception_handler(ApiError, api_error)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(ColibriError, colibri_error)
    app.add_exception_handler(Exception, unexpected)


def validation_problem(errors: Sequence[Any]) -> ApiError:
    """The first thing that is wrong with a request, with the field's name; unknown fields first."""
    found = sorted(errors, key=lambda error: error["type"] != "extra_forbidden")[0]
    place = [part for part in found["loc"] if part not in ("body", "query", "path")]
    name = _field(place)
    if found["type"] == "extra_forbidden":
        return bad_request(f"Unknown field: {name}", name, "unknown_field")
    if found["type"] == "json_invalid":
        return bad_request("The body is not valid JSON.")
    if found["type"] == "missing":
        return bad_request(f"Missing field: {name}" if name else "The request needs a JSON body.", name or None)
    message = str(found["msg"]).removeprefix("Value error, ")
    return bad_request(f"{name}: {message}" if name else message, name or None)


def _field(place: Sequence[Any]) -> str:
    """messages[0].content, without the names that a union of types adds."""
    name = ""
    for part in place:
        if isinstance(part, int):
            name += f"[{part}]"
        elif not (isinstance(part, str) and any(letter in part for letter in "[(- ")) and part not in _UNION_NAMES:
            name += f".{part}" if name else str(part)
    return name


_UNION_NAMES = frozenset({"str", "int", "float", "bool", "constrained-str", "list"})

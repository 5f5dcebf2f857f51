"""What stands before every route: host names, origins, the API key, the size of bodies."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from colibri.server.connections import MAX_HEADER_BYTES, headers_too_large
from colibri.server.metrics import Metrics
from colibri.server.problems import ApiError, json_response
from colibri.server.settings import LOOPBACK_NAMES, ServerSettings

OPEN_PATHS = ("/", "/health", "/page/", "/favicon.ico")  # without a key: they tell nothing of anybody's requests


class Gate:
    """Refuses what must not reach the routes. Pure ASGI, so that streams and disconnects pass through untouched."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        self._key = None if settings.api_key is None else settings.api_key.encode()
        self._hosts = LOOPBACK_NAMES | {settings.host} | set(settings.allowed_hosts)
        self._limit = settings.body_bytes
        self._timeout_s = settings.client_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run as an ASGI application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *_SAFE_HEADERS]
            await send(message)

        try:
            headers = Headers(scope=scope)
            self._check(scope["path"], headers)
            await self._app(scope, _bounded(receive, self._limit, self._timeout_s), counted)
        except ApiError as error:
            await json_response(error.body(), error.status, error.headers)(scope, receive, counted)
        finally:
            self._metrics.requests.labels(_known_path(scope), str(status)).inc()

    def _check(self, path: str, headers: Headers) -> None:
        if sum(len(name) + len(value) for name, value in headers.raw) > MAX_HEADER_BYTES:
            raise headers_too_large()
        if not self._allowed(f"//{headers.get('host', '')}"):
            raise ApiError(403, "This host name is not allowed; the server's --allowed-host names those that are.")
        origin = headers.get("origin")
        if origin is not None and not self._allowed(origin):
            raise ApiError(403, "Pages of other origins may not use this server.")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._limit:
            raise _too_large(self._limit)
        if self._key is not None and not _is_open(path):
            scheme, _, given = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._key):
                raise ApiError(
                    401, "The API key is missing or wrong: send Authorization: Bearer KEY.", code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )  # fmt: skip

    def _allowed(self, url: str) -> bool:
        """A name must be known; an address is safe, as a page cannot choose what its own name resolves to with it."""
        try:
            name = urlsplit(url).hostname or ""
        except ValueError:
            return False
        if name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


_SAFE_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'",
    ),
]


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith("/page/")


def _known_path(scope: Scope) -> str:
    """The route, not what a client typed: labels must stay few."""
    route = scope.get("route")
    return str(getattr(route, "path", "other"))


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"The body is larger than {limit} bytes.", code="body_too_large")


def _bounded(receive: Receive, limit: int, timeout_s: float) -> Receive:
    """`receive` that refuses a body which grows beyond the limit, whatever its headers said, or takes too long."""
    total, whole = 0, False
    deadline = asyncio.get_running_loop().time() + timeout_s

    async def bounded() -> Message:
        nonlocal total, whole
        if whole:  # what is left to come is the client's leaving
            return await receive()
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError:
            problem = f"The request was not there whole after {timeout_s:g} s."
            raise HTTPException(408, problem, {"Connection": "close"}) from None
        whole = not message.get("more_body", False)
        total += len(message.get("body", b""))
        if total > limit:
            raise HTTPException(413, f"The body is larger than {limit} bytes.")
        return message

    return bounded

"""What stands before every route: host names, origins, the API key, the size of bodies."""

from __future__ import annotations

import asyncio
import hmac
import re

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from colibri.server.access_log import Access, current
from colibri.server.connections import MAX_HEADER_BYTES, headers_too_large
from colibri.server.hosts import LOOPBACK_NAMES, Place, Rule, address_of, host_rule, networks, origin_rule
from colibri.server.metrics import Metrics
from colibri.server.problems import ApiError, json_response
from colibri.server.proxies import forwarded
from colibri.server.settings import ServerSettings

OPEN_PATHS = ("/", "/health", "/page/", "/favicon.ico")  # without a key: they tell nothing of anybody's requests
METHODS = "GET, HEAD, POST, DELETE, OPTIONS"
_EXPOSED = "x-colibri-ignored, x-request-id, retry-after"
_HEADER_NAMES = re.compile(r"[A-Za-z0-9_, -]{1,2048}")


class Gate:
    """Refuses what must not reach the routes. Pure ASGI, so that streams and disconnects pass through untouched."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        self._keys = [key.encode() for key in settings.keys]
        own = (host for host in LOOPBACK_NAMES | {settings.host})
        self._hosts = [*(Rule(name) for name in own), *(host_rule(text) for text in settings.allowed_hosts)]
        self._origins = [origin_rule(text) for text in settings.cors_origins]
        self._proxies = networks(settings.trusted_proxies)
        self._root = settings.root_path
        self._limit = settings.body_bytes
        self._timeout_s = settings.client_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run as an ASGI application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = scope
        scope = _without_root(forwarded(scope, self._proxies), self._root)
        headers = Headers(scope=scope)
        access = Access.of({**scope, "method": given["method"]}, headers)
        status, extra = 500, [*_SAFE_HEADERS, (b"x-request-id", access.request_id.encode())]
        token = current.set(access)

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *extra]
            await send(message)

        answer = _headless(counted) if given["method"] == "HEAD" else counted
        try:
            extra += self._shared_with(headers)
            self._check(scope, headers)
            if scope["method"] == "OPTIONS":
                await Response(status_code=204, headers=_options(headers))(scope, receive, answer)
                return
            if scope["method"] == "HEAD":
                scope = {**scope, "method": "GET"}
            await self._app(scope, _bounded(receive, self._limit, self._timeout_s), answer)
        except ApiError as error:
            await json_response(error.body(scope["path"]), error.status, error.headers)(scope, receive, answer)
        finally:
            current.reset(token)
            self._metrics.requests.labels(_known_path(scope), str(status)).inc()
            access.status = status
            if status >= 400 or not _watches(scope["path"]):
                access.write()

    def _check(self, scope: Scope, headers: Headers) -> None:
        if sum(len(name) + len(value) for name, value in headers.raw) > MAX_HEADER_BYTES:
            raise headers_too_large()
        if not self._keys and not self._known_host(headers):  # who has a key was not led here by a trick
            raise ApiError(403, "This host name is not allowed; the server's --allowed-host names those that are.")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._limit:
            raise _too_large(self._limit)
        if self._keys and not _is_open(scope["path"]) and scope["method"] != "OPTIONS" and not self._has_key(headers):
            raise ApiError(
                401, "The API key is missing or wrong: send Authorization: Bearer KEY.", code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )  # fmt: skip

    def _has_key(self, headers: Headers) -> bool:
        """As OpenAI's clients send it, or as Anthropic's do."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        shown = [headers.get("x-api-key", ""), given if scheme.lower() == "bearer" else ""]
        found = [hmac.compare_digest(text.strip().encode(), key) for text in shown for key in self._keys]
        return any(found)  # after all were compared, so that the time tells nothing

    def _known_host(self, headers: Headers) -> bool:
        """A name must be known; an address is safe, as a page cannot choose what its own name resolves to with it."""
        place = Place.of(f"//{headers.get('host', '')}")
        if place is None:
            return False
        return address_of(place.name) is not None or any(rule.matches(place) for rule in self._hosts)

    def _shared_with(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        """What tells a browser that a page of another origin may see the answer. Raises ApiError when it may not."""
        origin = headers.get("origin")
        if origin is None:
            return []
        place = Place.of(origin)
        own = Place.of(f"//{headers.get('host', '')}")
        same = place is not None and own is not None and (place.name, place.port) == (own.name, own.port)
        if not same and not self._known_origin(origin, place):
            raise ApiError(
                403, "Pages of other origins may not use this server; its --cors-origin names those that may."
            )
        return [
            (b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"Origin"),
            (b"access-control-expose-headers", _EXPOSED.encode()),
        ]  # fmt: skip

    def _known_origin(self, origin: str, place: Place | None) -> bool:
        if place is None:
            return origin == "null" and None in self._origins
        rules = [*self._hosts, *(rule for rule in self._origins if rule is not None)]
        return any(rule.matches(place) for rule in rules)


def _watches(path: str) -> bool:
    """Whether these are the questions of who only looks, which come all the time."""
    return path in ("/", "/health", "/metrics", "/live", "/favicon.ico") or path.startswith("/page/")


def _without_root(scope: Scope, root: str) -> Scope:
    """The path below --root-path, for proxies that pass it on whole; others cut it off themselves."""
    path = scope["path"]
    if not root or not (path == root or path.startswith(f"{root}/")):
        return scope
    return {**scope, "path": path[len(root) :] or "/", "raw_path": scope["raw_path"][len(root) :] or b"/"}


def _headless(send: Send) -> Send:
    """Sends what an answer to GET begins with, and then its end."""
    ended = False

    async def begin_and_end(message: Message) -> None:
        nonlocal ended
        if message["type"] == "http.response.start":
            await send(message)
        elif not ended:
            ended = True
            await send({"type": "http.response.body", "body": b""})

    return begin_and_end


def _options(headers: Headers) -> dict[str, str]:
    """What may be asked here; a page of another origin asks before it sends."""
    if "origin" not in headers:
        return {}
    asked = headers.get("access-control-request-headers", "")
    private = {"Access-Control-Allow-Private-Network": "true"}
    return {
        "Access-Control-Allow-Methods": METHODS,
        "Access-Control-Allow-Headers": asked if _HEADER_NAMES.fullmatch(asked) else "authorization, content-type",
        "Access-Control-Max-Age": "600",
        **(private if headers.get("access-control-request-private-network") == "true" else {}),
    }


_SAFE_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"base-uri 'self'; form-action 'self'; require-trusted-types-for 'script'; trusted-types 'none'",
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

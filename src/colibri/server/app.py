"""The routes. `make_app` gives an ASGI application; `run` serves it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import signal
import socket
import termios
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.middleware import Middleware
from starlette.responses import Response

from colibri import __version__
from colibri.errors import ArgumentError
from colibri.server import api_routes, problems
from colibri.server.connections import MAX_HEADER_BYTES, protocol_with
from colibri.server.protocol import Ready
from colibri.server.schema import ErrorReply
from colibri.server.security import Gate
from colibri.server.service import Service
from colibri.server.settings import ServerSettings
from colibri.server.streaming import EventStream

PAGE = Path(__file__).resolve().parent / "page"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
BACKLOG = 512
MOST_FILES = 1 << 14
_ERRORS: dict[int | str, str] = {"4XX": "The request is at fault.", "5XX": "The server cannot answer now."}


def make_app(service: Service) -> FastAPI:
    """An ASGI application over a service, which may not have started yet."""
    app = FastAPI(
        title="Colibri", version=__version__, docs_url=None, redoc_url=None,
        responses={kind: {"model": ErrorReply, "description": text} for kind, text in _ERRORS.items()},
        middleware=[Middleware(Gate, settings=service.settings, metrics=service.metrics)],
    )  # fmt: skip
    problems.install(app)
    api_routes.install(app, service)
    _observation(app, service)
    _page(app, service.settings.root_path)
    app.openapi = lambda: _document(app, service.settings.root_path)  # type: ignore[method-assign]
    return app


def _document(app: FastAPI, root: str) -> dict[str, Any]:
    """The OpenAPI document, without the kind of answer to malformed requests that FastAPI has and this service not."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        if root:
            document["servers"] = [{"url": root}]
        app.openapi_schema = document
    return app.openapi_schema


def _observation(app: FastAPI, service: Service) -> None:
    @app.get("/health", response_class=Response)
    async def health() -> Response:
        status, body = service.health()
        return problems.json_response(body, status)

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        service.metrics.gauge("engine_up", service.supervisor.status.now == "ready")
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/live", response_class=Response)
    async def live() -> Response:
        return EventStream(_reports(service), contextlib.nullcontext())


async def _reports(service: Service) -> AsyncGenerator[str, None]:
    """The live reports for one page, until the server drains."""
    viewer = service.live.join()
    draining = asyncio.ensure_future(service.draining.wait())
    try:
        while not draining.done():
            getter = asyncio.ensure_future(viewer.get())
            try:
                await asyncio.wait((getter, draining), return_when=asyncio.FIRST_COMPLETED)
                if getter.done():
                    yield f"data: {getter.result()}\n\n"
            finally:
                getter.cancel()
    finally:
        draining.cancel()
        service.live.leave(viewer)


def _page(app: FastAPI, root: str) -> None:
    files = {path.name: (path.read_bytes(), _TYPES[path.suffix]) for path in PAGE.iterdir() if path.suffix in _TYPES}
    index_page, kind = files["index.html"]
    if root:  # what the page asks for is relative to it, wherever a proxy has it
        files["index.html"] = index_page.replace(b"<head>", f'<head>\n  <base href="{root}/">'.encode(), 1), kind

    def answer(name: str) -> Response:
        if name not in files:
            raise problems.ApiError(404, "There is no such page.")
        content, kind = files[name]
        return Response(content, media_type=kind, headers={"Cache-Control": "no-cache"})

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return answer("index.html")

    @app.get("/page/{name}", include_in_schema=False)
    async def asset(name: str) -> Response:
        return answer(name)

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon() -> Response:
        return answer("icon.svg")


class _Server(uvicorn.Server):
    """Ends by draining: no new work is taken, what runs may finish, and a second signal ends it at once."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: Any) -> None:
        self._service.drain()
        super().handle_exit(sig, frame)

    def handle_hangup(self) -> None:
        """Load the model again; the end of the terminal that the server runs in ends it, too."""
        if _terminal_is_gone():
            self.handle_exit(signal.SIGHUP, None)
        else:
            self._service.reload_wanted.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        """As in uvicorn, but a signal that was obeyed is not raised again: the exit status says how it ended."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        loop.add_signal_handler(signal.SIGHUP, self.handle_hangup)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                loop.remove_signal_handler(number)


def _terminal_is_gone() -> bool:
    """Whether stdin was a terminal that has been closed."""
    try:
        termios.tcgetattr(0)
    except termios.error as error:
        return bool(error.args[0] == errno.EIO)
    return False


def run(settings: ServerSettings, announce: Callable[[Service, Ready, str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C. `announce` is called once the model is loaded, with the URL.

    Raises ArgumentError when the address cannot be used, ColibriError when the model cannot.
    """
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # a connection is one
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(files, min(most, MOST_FILES)), most))
    listener = _listen(settings)
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    service = Service(settings)
    config = uvicorn.Config(
        make_app(service), log_level="warning", access_log=False, server_header=False, lifespan="off",
        proxy_headers=False,
        http=protocol_with(settings.client_timeout_s), h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        timeout_graceful_shutdown=max(1, round(settings.drain_s)), timeout_keep_alive=30,
    )  # fmt: skip
    with listener:
        asyncio.run(_serve(service, _Server(config, service), listener, lambda ready: announce(service, ready, url)))


async def _serve(
    service: Service, server: uvicorn.Server, listener: socket.socket, announce: Callable[[Ready], None]
) -> None:
    """Answer from the first moment on, so that /health says `loading` and not nothing."""
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    loading = asyncio.ensure_future(service.start())
    try:
        await asyncio.wait((serving, loading), return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            announce(loading.result())
            await serving
    except (OSError, RuntimeError) as error:
        raise ArgumentError(str(error)) from error
    finally:
        loading.cancel()
        server.should_exit = True
        await asyncio.gather(serving, loading, return_exceptions=True)
        await service.stop()


def _listen(settings: ServerSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ArgumentError(
            f"--host {settings.host} --port {settings.port}: {error.strerror or error}; choose another with --port"
        ) from None
    return listener

"""`colibri serve`: the HTTP service."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from colibri.cli.epilog import epilog
from colibri.cli.options import Size, load_options
from colibri.cli.output import note
from colibri.config import LoadOptions, readable
from colibri.errors import FileError, UnsupportedError

if TYPE_CHECKING:
    from colibri.server.protocol import Ready
    from colibri.server.service import Service


EPILOG = epilog(
    "serving.md",
    "colibri serve -m model.gguf",
    "colibri serve -m model.gguf --ram 20G --context 8192 --sequences 4",
    "COLIBRI_API_KEY=secret colibri serve -m model.gguf --host 0.0.0.0 --port 8000",
)


@click.command("serve", epilog=EPILOG)
@load_options
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0: any free one.")
@click.option("--api-key", help="Clients must send it as a bearer token.  [env var: COLIBRI_API_KEY]")
@click.option("--api-key-file", type=click.Path(path_type=Path),
              help="File of keys, one a line; lines that begin with # are comments.")  # fmt: skip
@click.option("--open-to-all", is_flag=True, help="Allow other machines in without an API key.")
@click.option("--allowed-host", multiple=True,
              help="Host name under which browsers may reach the service: box.local:8080, *.example.org.")  # fmt: skip
@click.option("--cors-origin", multiple=True,
              help="Origin whose pages may use the service; https://chat.example.org, or * for all.")  # fmt: skip
@click.option("--root-path", default="", help="Path under which a reverse proxy has the service, such as /colibri.")
@click.option("--trusted-proxy", multiple=True,
              help="Address or network of a reverse proxy whose X-Forwarded headers are believed.")  # fmt: skip
@click.option("--sequences", type=click.IntRange(1, 1024), default=8, show_default=True,
              help="Whole contexts that the cache holds; requests take room as they grow.")  # fmt: skip
@click.option("--chunk", type=click.IntRange(1, 1 << 16), default=256, show_default=True,
              help="Tokens of a prompt computed in one step: what a long prompt may delay the others by.")  # fmt: skip
@click.option("--queue", type=click.IntRange(0), default=64, show_default=True, help="Requests that may wait.")
@click.option("--body-limit", type=Size(), default="8M", show_default=True, help="Largest request.")
@click.option("--drain", type=click.FloatRange(0), default=30.0, show_default=True,
              help="Seconds that requests may go on after SIGTERM.")  # fmt: skip
@click.option("--keep-alive", type=click.FloatRange(0, min_open=True), default=10.0, show_default=True,
              help="Seconds of silence after which a stream gets a comment.")  # fmt: skip
@click.option("--client-timeout", type=click.FloatRange(1), default=60.0, show_default=True,
              help="Seconds that a client may take to send a request, or to take what is sent.")  # fmt: skip
@click.option("--hang", type=click.FloatRange(5), default=60.0, show_default=True,
              help="Seconds in which the engine may get nowhere before it is killed and started again.")  # fmt: skip
@click.option("--strict", is_flag=True, help="Refuse requests with unknown fields, which are ignored otherwise.")
@click.option("--access-log/--no-access-log", "access", default=True, show_default=True,
              help="A line for each request: id, status, tokens, seconds in the queue, to the first token, in all.")
@click.option("--log-format", "log_format", type=click.Choice(["plain", "json"]), default="plain", show_default=True,
              help="How lines of the log are written to stderr; json: an object a line.")  # fmt: skip
@click.option("--name", help="What clients call the model. Default: its own name.")
def command(
    options: LoadOptions, host: str, port: int, api_key: str | None, api_key_file: Path | None, open_to_all: bool,
    allowed_host: tuple[str, ...], cors_origin: tuple[str, ...], root_path: str, trusted_proxy: tuple[str, ...],
    sequences: int, chunk: int, queue: int, body_limit: int, drain: float, keep_alive: float, client_timeout: float,
    hang: float, strict: bool, access: bool, log_format: str, name: str | None,
) -> int:  # fmt: skip
    """Serve an OpenAI-compatible API and a page to look at."""
    run, settings_type, set_up = _server()
    if api_key is None:  # not left to click, for which an empty variable is none
        api_key = os.environ.get("COLIBRI_API_KEY")
    settings = settings_type(
        load=replace(options, sequences=sequences, chunk=chunk, share_prefixes=True),
        host=host, port=port, api_key=api_key, open_to_all=open_to_all, allowed_hosts=allowed_host, queue=queue,
        api_keys=() if api_key_file is None else _keys(api_key_file), cors_origins=cors_origin,
        root_path=root_path.rstrip("/"), trusted_proxies=trusted_proxy,
        body_bytes=body_limit, drain_s=drain, keep_alive_s=keep_alive, client_timeout_s=client_timeout,
        hang_s=hang, strict=strict, model_name=name,
    )  # fmt: skip
    set_up(log_format, access)
    run(settings, _announce)
    return 0


def _keys(path: Path) -> tuple[str, ...]:
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"--api-key-file {path}: {getattr(error, 'strerror', None) or 'no text'}") from None
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise FileError(f"--api-key-file {path}: found no keys, expected one a line")
    return keys


def _server() -> tuple[Any, Any, Any]:
    try:
        from colibri.server.access_log import set_up
        from colibri.server.app import run
        from colibri.server.settings import ServerSettings
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("colibri"):
            raise
        raise UnsupportedError(f'serve: {error}; install the extra, in a clone: pip install ".[serve]"') from None
    return run, ServerSettings, set_up


def _announce(service: Service, ready: Ready, url: str) -> None:
    plan = ready.plan
    fits = "every expert fits" if plan["fits"] else "experts come and go"
    click.echo(
        f"{service.name} at {url}  ({ready.model['layers']} layers, {ready.model['experts']} experts, "
        f"{readable(plan['budget_bytes'])} for the engine: {fits}; {ready.sequences} x {ready.context} tokens, "
        f"{ready.threads} threads, {ready.isa})"
    )
    for said in ready.notes:
        note(said)

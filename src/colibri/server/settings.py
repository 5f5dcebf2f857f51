"""Settings of the service."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from colibri.config import LoadOptions, check_integer, check_number
from colibri.errors import ArgumentError
from colibri.server.hosts import host_rule, is_loopback, networks, origin_rule

_ROOT = re.compile(r"(/[A-Za-z0-9._~-]+)+")


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """How the service listens and what it allows.

    queue: requests that may wait beyond those that run. body_bytes: the largest request. drain_s: how long requests in
    flight may go on after SIGTERM. keep_alive_s: silence after which a stream gets a comment. open_to_all: listen
    beyond this machine without an API key. hang_s: how long the engine may get nowhere before it is killed and started
    again. client_timeout_s: how long a client may take to send a request, or to take what is sent. allowed_hosts: names
    under which browsers may reach the service. cors_origins: pages of other sites that may use it. root_path: where a
    proxy has it. trusted_proxies: whose forwarded headers are believed. strict: unknown fields of requests are errors.
    """

    load: LoadOptions = field(default_factory=LoadOptions)
    host: str = "127.0.0.1"
    port: int = 8080
    api_key: str | None = None
    open_to_all: bool = False
    api_keys: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    root_path: str = ""
    trusted_proxies: tuple[str, ...] = ()
    queue: int = 64
    body_bytes: int = 8 << 20
    drain_s: float = 30.0
    keep_alive_s: float = 10.0
    hang_s: float = 60.0
    client_timeout_s: float = 60.0
    model_name: str | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        check_integer("port", self.port, 0, 65535)
        check_integer("queue", self.queue, 0, 1 << 20)
        check_integer("body_bytes", self.body_bytes, 1024, 1 << 32)
        check_number("drain_s", self.drain_s, 0, 86400)
        check_number("keep_alive_s", self.keep_alive_s, 0, 3600, open_low=True)
        check_number("client_timeout_s", self.client_timeout_s, 1, 86400)
        check_number("hang_s", self.hang_s, 5, 86400)
        for key in self.keys:
            if not key.isascii() or not key.isprintable():
                raise ArgumentError("api_key: found letters that HTTP headers cannot carry")
            if not key.strip():
                raise ArgumentError("api_key: found an empty text, expected a key")
        for host in self.allowed_hosts:
            host_rule(host)
        for origin in self.cors_origins:
            origin_rule(origin)
        networks(self.trusted_proxies)
        if self.root_path and not _ROOT.fullmatch(self.root_path):
            raise ArgumentError(f"root_path: found {self.root_path!r}, expected a path such as /colibri")
        if not is_loopback(self.host) and not self.keys and not self.open_to_all:
            raise ArgumentError(
                f"host: {self.host} is reachable from other machines and there is no API key; give --api-key, or "
                "--open-to-all when everyone who can reach this address may use it"
            )

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key that opens the service; none when it asks for none."""
        return (*(() if self.api_key is None else (self.api_key,)), *self.api_keys)

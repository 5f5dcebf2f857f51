"""What a reverse proxy says of a request that it passes on. It is believed only where the operator trusts the proxy."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import Scope

from colibri.server.hosts import Network, address_of


def trusted(host: str, proxies: Sequence[Network]) -> bool:
    """Whether an address belongs to a trusted proxy."""
    address = address_of(host)
    return address is not None and any(address in network for network in proxies)


def forwarded(scope: Scope, proxies: Sequence[Network]) -> Scope:
    """The scope with the client, the scheme and the host that a trusted proxy names; any other's words are dropped."""
    peer = (scope.get("client") or ("", 0))[0]
    if not trusted(peer, proxies):
        return scope
    headers = Headers(scope=scope)
    changed = dict(scope)
    hops = [hop.strip() for value in headers.getlist("x-forwarded-for") for hop in value.split(",") if hop.strip()]
    client = next((hop for hop in reversed(hops) if not trusted(hop, proxies)), hops[0] if hops else None)
    if client is not None and address_of(client) is not None:
        changed["client"] = (client, 0)
    scheme = headers.get("x-forwarded-proto", "").split(",")[-1].strip().lower()
    if scheme in ("http", "https"):
        changed["scheme"] = scheme
    host = headers.get("x-forwarded-host", "").split(",")[-1].strip()
    if host:
        others = [(name, value) for name, value in scope["headers"] if name != b"host"]
        changed["headers"] = [(b"host", host.encode("latin-1")), *others]
    return changed

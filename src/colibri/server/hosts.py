"""Names of hosts, origins of pages and addresses of proxies, as an operator writes them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from colibri.errors import ArgumentError

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_NAME = re.compile(r"(\*|(\*\.)?[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?)")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host in LOOPBACK_NAMES:
        return True
    address = address_of(host)
    return address is not None and address.is_loopback


def address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a text is; None for a name."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Place:
    """A host and a port, as they stand in a URL: lower case, without the dot at the end."""

    name: str
    port: int | None = None
    scheme: str = ""

    @classmethod
    def of(cls, url: str) -> Place | None:
        """Of //host:port or scheme://host:port; None for what is neither."""
        try:
            parts = urlsplit(url)
            name, port = parts.hostname or "", parts.port
        except ValueError:
            return None
        return cls(name.removesuffix("."), port, parts.scheme) if name else None


@dataclass(frozen=True, slots=True)
class Rule:
    """Which places are meant: *.example.org is every name below it, * every name; without a port, every port."""

    name: str
    port: int | None = None
    scheme: str = ""

    def matches(self, place: Place) -> bool:
        """Whether it means this place."""
        if (self.port is not None and self.port != place.port) or (self.scheme and self.scheme != place.scheme):
            return False
        if self.name.startswith("*"):
            return place.name.endswith(self.name[1:])
        return self.name == place.name


def host_rule(text: str) -> Rule:
    """Of --allowed-host. Raises ArgumentError for what can never match."""
    given = text.strip().lower()
    place = Place.of(f"//{given}") if "/" not in given else None
    if place is None or not (_NAME.fullmatch(place.name) or address_of(place.name)):
        raise ArgumentError(
            f"--allowed-host: found {text!r}, expected a host name such as box.local, box.local:8080 or *.example.org"
        )
    return Rule(place.name, place.port)


def origin_rule(text: str) -> Rule | None:
    """Of --cors-origin; None for the origin `null` of local files. Raises ArgumentError for what can never match."""
    given = text.strip().lower().removesuffix("/")
    if given == "*":
        return Rule("*")
    if given == "null":
        return None
    place = Place.of(given)
    whole = place is not None and "/" not in given.partition("://")[2] and _SCHEME.fullmatch(place.scheme)
    if place is None or not whole or not (_NAME.fullmatch(place.name) or address_of(place.name)):
        raise ArgumentError(
            f"--cors-origin: found {text!r}, expected an origin such as https://chat.example.org, app://obsidian.md, "
            "https://*.example.org or *"
        )
    port = _PORTS.get(place.scheme) == place.port
    return Rule(place.name, None if port else place.port, place.scheme)


_PORTS = {"http": 80, "https": 443}


def networks(values: Iterable[str]) -> tuple[Network, ...]:
    """Of --trusted-proxy. Raises ArgumentError for what is no address."""
    found: list[Network] = []
    for text in values:
        try:
            found.append(ipaddress.ip_network(text.strip(), strict=False))
        except ValueError:
            raise ArgumentError(
                f"--trusted-proxy: found {text!r}, expected an address or a network such as 10.0.0.0/8"
            ) from None
    return tuple(found)

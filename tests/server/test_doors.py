"""Browsers, proxies and operators: who is let in, from where, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from colibri.errors import ArgumentError
from colibri.server.app import PAGE
from colibri.server.hosts import Place, host_rule, networks, origin_rule
from colibri.server.proxies import forwarded
from colibri.server.settings import ServerSettings

from .conftest import Server, serving

BODY = {"prompt": "a", "max_tokens": 1}
PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}


@pytest.mark.parametrize(
    ("given", "host", "allowed"),
    [
        ("MyBox.local", "mybox.LOCAL:1", True), (" mybox.local. ", "mybox.local", True),
        ("mybox.local", "mybox.local.", True), ("mybox.local", "evil.mybox.local", False),
        ("colibri:8080", "colibri:8080", True), ("colibri:8080", "colibri:81", False),
        ("colibri:8080", "colibri", False),
        ("*.example.org", "llm.example.org", True), ("*.example.org", "example.org", False),
        ("*.example.org", "evilexample.org", False), ("*", "anything", True), ("[::1]:80", "[::1]:80", True),
    ],
)  # fmt: skip
def test_names_of_hosts(given: str, host: str, allowed: bool) -> None:
    place = Place.of(f"//{host}".lower())
    assert place is not None
    assert host_rule(given).matches(place) == allowed


@pytest.mark.parametrize("given", ["https://llm.example.org", "a b", "", "a*.org", "*.*.org", "a/b", "box:http", "-"])
def test_a_host_that_can_never_match_is_refused_at_the_start(given: str) -> None:
    with pytest.raises(ArgumentError, match="--allowed-host: found"):
        ServerSettings(allowed_hosts=(given,))


@pytest.mark.parametrize("given", ["chat.example.org", "https://", "https://a.org/path", "https://a*b.org", ""])
def test_an_origin_that_can_never_match_is_refused_at_the_start(given: str) -> None:
    with pytest.raises(ArgumentError, match="--cors-origin: found"):
        ServerSettings(cors_origins=(given,))


@pytest.mark.parametrize(
    ("given", "origin", "allowed"),
    [
        ("https://Chat.example.org/", "https://chat.example.org", True), ("https://a.org:443", "https://a.org", True),
        ("https://a.org", "http://a.org", False), ("app://obsidian.md", "app://obsidian.md", True),
        ("https://*.a.org", "https://b.a.org", True), ("*", "https://evil.example", True),
    ],
)  # fmt: skip
def test_origins(given: str, origin: str, allowed: bool) -> None:
    rule, place = origin_rule(given), Place.of(origin)
    assert rule is not None
    assert place is not None
    assert rule.matches(place) == allowed


def test_pages_that_are_allowed_may_see_the_answer() -> None:
    arguments = ("--allowed-host", "obsidian.md", "--cors-origin", "https://chat.example.org", "--cors-origin", "null")
    with serving(*arguments) as server, server.client() as client:
        for origin in ("http://localhost:3000", "app://obsidian.md", "https://chat.example.org", "null", server.url):
            asked = client.options("/v1/completions", headers={"Origin": origin, **PREFLIGHT})
            assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (204, origin)
            assert asked.headers["access-control-allow-headers"] == "authorization,content-type"
            assert "POST" in asked.headers["access-control-allow-methods"]
            answer = client.post("/v1/completions", json=BODY, headers={"Origin": origin})
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, origin)
            bad = client.post("/v1/completions", json={}, headers={"Origin": origin})
            assert (bad.status_code, bad.headers["access-control-allow-origin"]) == (400, origin)
        for origin in (
            "https://evil.example",
            "http://6.6.6.6",
            "http://chat.example.org",
            "https://localhost.evil.org",
        ):
            for answer in (
                client.options("/v1/completions", headers={"Origin": origin, **PREFLIGHT}),
                client.post("/v1/completions", json=BODY, headers={"Origin": origin}),
            ):
                assert answer.status_code == 403
                assert "access-control-allow-origin" not in answer.headers


def test_what_answers_to_get_answers_to_head(server: Server) -> None:
    with server.client() as client:
        for path in ("/", "/health", "/v1/models", "/metrics", "/page/style.css", "/live", "/nothing", "/openapi.json"):
            head = client.head(path)
            assert head.content == b""
            if path != "/live":
                got = client.get(path)
                assert head.status_code == got.status_code, path
                assert head.headers["content-type"] == got.headers["content-type"]
        assert client.head("/v1/completions").status_code == 405
        assert client.options("/v1/models").status_code == 204
        server.wait(server.idle)


def test_keys_from_a_file_open_every_door(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# of the team\nfirst\n\n  second  \n")
    with serving("--api-key-file", str(keys)) as server, server.client() as client:
        for given, status in (
            ({"Authorization": "Bearer first"}, 200), ({"authorization": "bearer second"}, 200),
            ({"X-Api-Key": "second"}, 200), ({"X-Api-Key": ""}, 401), ({"Authorization": "Bearer # of the team"}, 401),
            ({"Authorization": "Bearer third"}, 401), ({}, 401),
        ):  # fmt: skip
            headers = {"Host": "any.example.org", **given}  # who has a key was not led here by a trick
            assert client.get("/v1/models", headers=headers).status_code == status, given
        assert client.options("/v1/models", headers={"Origin": server.url, **PREFLIGHT}).status_code == 204


def test_a_file_without_keys_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# none\n")
    for path in (keys, tmp_path / "missing"):
        with pytest.raises(AssertionError, match="no address"), serving("--api-key-file", str(path)):
            pass
        assert "--api-key-file" in capfd.readouterr().err


def test_a_path_before_all_others() -> None:
    with serving("--root-path", "/colibri/") as server, server.client() as client:
        for prefix in ("/colibri", ""):  # whether or not the proxy cuts it off
            for path in ("/", "/health", "/page/page.js", "/v1/models"):
                assert client.get(prefix + path).status_code == 200, prefix + path
        assert client.get("/colibri").status_code == 200
        assert client.get("/colibric/health").status_code == 404
        assert '<base href="/colibri/">' in client.get("/").text
        assert client.get("/openapi.json").json()["servers"] == [{"url": "/colibri"}]


def test_the_page_asks_for_nothing_by_an_absolute_path(server: Server) -> None:
    page = server.get("/").text
    assert 'src="/' not in page and 'href="/' not in page
    scripts = [path for path in PAGE.glob("*.js") if path.name != "markdown-it.min.js"]
    assert len(scripts) > 1
    for path in scripts:
        script = server.get(f"/page/{path.name}").text
        assert 'fetch("/' not in script and 'ask("/' not in script, path.name


def scope(client: str, **headers: str) -> dict[str, Any]:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "scheme": "http", "client": (client, 1), "headers": [(b"host", b"inner:8080"), *raw]}


def test_a_proxy_is_believed_only_where_it_is_trusted() -> None:
    said = {
        "x_forwarded_for": "6.6.6.6, 1.2.3.4, 10.0.0.7",
        "x_forwarded_proto": "https",
        "x_forwarded_host": "llm.org",
    }
    proxies = networks(["10.0.0.0/8"])
    found = forwarded(scope("10.1.1.1", **said), proxies)
    assert (found["client"][0], found["scheme"]) == ("1.2.3.4", "https")
    assert [value for name, value in found["headers"] if name == b"host"] == [b"llm.org"]
    for client, trusted in (("8.8.8.8", proxies), ("10.1.1.1", ())):
        assert forwarded(scope(client, **said), trusted) == scope(client, **said)
    assert forwarded(scope("10.1.1.1", x_forwarded_for="nonsense"), proxies)["client"][0] == "10.1.1.1"
    with pytest.raises(ArgumentError, match="--trusted-proxy: found"):
        ServerSettings(trusted_proxies=("proxy.example.org",))


def test_the_host_that_a_trusted_proxy_was_asked_for() -> None:
    headers = {"Host": "127.0.0.1", "X-Forwarded-Host": "llm.example.org", "Origin": "https://llm.example.org"}
    arguments = ("--allowed-host", "llm.example.org", "--trusted-proxy", "127.0.0.1")
    with serving(*arguments) as server:
        assert httpx.post(f"{server.url}/v1/completions", json=BODY, headers=headers).status_code == 200
        evil = {**headers, "X-Forwarded-Host": "evil.example"}
        assert httpx.get(f"{server.url}/health", headers=evil).status_code == 403

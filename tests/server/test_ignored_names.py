"""Names of fields that are ignored stand in a header, whatever they are."""

from __future__ import annotations

import h11
import pytest

from colibri.server.fields import header


@pytest.mark.parametrize("name", [" ", "", "a b", " lead", "x,y", "\r\nset-cookie: 1", "\0", "é", "ok", "n" * 500])
def test_any_name_makes_a_header(name: str) -> None:
    (value,) = header([name]).values()
    h11.Response(status_code=200, headers=[("x-colibri-ignored", value)])
    assert value.strip() == value != ""
    assert "\n" not in value and "," not in value


def test_several_names_are_a_list() -> None:
    assert header(["seed2", "a,b"]) == {"x-colibri-ignored": "seed2, a?b"}
    assert header([]) == {}

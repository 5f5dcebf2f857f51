"""JSON from outside."""

from __future__ import annotations

import time

import pytest

from colibri.errors import FormatError
from colibri.weights.json_file import parse_object


def test_a_very_long_number_is_refused_without_advice_to_programmers() -> None:
    with pytest.raises(FormatError, match=r"config: is not valid JSON: .*10000 digits$"):
        parse_object(b'{"a": ' + b"9" * 10_000 + b"}", "config")


@pytest.mark.parametrize("part", [b"[],", b"{},", b'"ab",', b"1,"])
def test_many_small_values_are_refused_before_they_are_made(part: bytes) -> None:
    data = b'{"a": [' + part * (4 << 20) + b"1]}"
    started = time.process_time()
    with pytest.raises(FormatError, match="config: holds more than"):
        parse_object(data, "config")
    assert time.process_time() - started < 0.5


def test_a_double_name_is_found_quickly() -> None:
    names = ", ".join(f'"n{number}": 1' for number in range(100_000))
    started = time.process_time()
    with pytest.raises(FormatError, match="'n99999' appears twice"):
        parse_object(f'{{"a": {{{names}, "n99999": 2}}}}'.encode(), "config")
    assert time.process_time() - started < 1

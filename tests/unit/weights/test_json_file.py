"""JSON from outside."""

from __future__ import annotations

import time

import pytest

from colibri.errors import FormatError
from colibri.weights.json_file import parse_object


def test_a_very_long_number_is_refused_without_advice_to_programmers() -> None:
    with pytest.raises(FormatError, match=r"config: is not valid JSON: .*10000 digits$"):
        parse_object(b'{"a": ' + b"9" * 10_000 + b"}", "config")


def test_a_double_name_is_found_quickly() -> None:
    names = ", ".join(f'"n{number}": 1' for number in range(100_000))
    started = time.process_time()
    with pytest.raises(FormatError, match="'n99999' appears twice"):
        parse_object(f'{{"a": {{{names}, "n99999": 2}}}}'.encode(), "config")
    assert time.process_time() - started < 1

"""JSON from outside."""

from __future__ import annotations

import pytest

from colibri.errors import FormatError
from colibri.weights.json_file import parse_object


def test_a_very_long_number_is_refused_without_advice_to_programmers() -> None:
    with pytest.raises(FormatError, match=r"config: is not valid JSON: .*10000 digits$"):
        parse_object(b'{"a": ' + b"9" * 10_000 + b"}", "config")

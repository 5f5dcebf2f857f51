"""JSON that comes from outside: size, nesting, numbers and double names are checked."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

from colibri.errors import FormatError
from colibri.weights.file_kind import HEAD_BYTES, refuse_others
from colibri.weights.file_reader import opened, read_exactly

MAX_PARTS: Final = 3 << 20  # brackets, colons and commas; a tokenizer of 260,000 tokens, 510,000 merges has 2 million


def parse_object(data: bytes, where: str) -> dict[str, Any]:
    """The JSON object in `data`; FormatError naming `where` when it is not one, has a name twice or too many parts."""
    if sum(map(data.count, (b"[", b"{", b":", b","))) > MAX_PARTS:
        raise FormatError(f"{where}: holds more than {MAX_PARTS} values")
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError) as error:
        refuse_others(where, data[:HEAD_BYTES], "json")
        problem = str(error).split("; use sys.")[0]  # advice to programmers on very long numbers
        raise FormatError(f"{where}: is not valid JSON: {problem}") from error
    if not isinstance(value, dict):
        raise FormatError(f"{where}: holds a JSON {type(value).__name__}, an object is expected")
    return value


def read_object(path: Path, limit: int = 16 << 20) -> dict[str, Any]:
    """The JSON object in a file of at most `limit` bytes."""
    return parse_object(read_limited(path, limit), str(path))


def read_limited(path: Path, limit: int) -> bytes:
    """What a file of at most `limit` bytes holds; FormatError for a larger one."""
    with opened(path) as (descriptor, size):
        if size > limit:
            raise FormatError(f"{path}: has {size} bytes, at most {limit} are expected")
        return read_exactly(path, descriptor, size, 0)


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        double = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the name {double!r:.80} appears twice")
    return result

"""Typed access to GGUF metadata: a value of the wrong kind is an error that names the file and the key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from colibri.errors import FormatError


class TokenizerMetadata:
    """Reads keys of one file's metadata, any of which may be missing; arrays may be numpy's or plain lists."""

    def __init__(self, values: Mapping[str, Any], file: str) -> None:
        self._values = values
        self.file = file

    def error(self, key: str, found: str, expected: str) -> FormatError:
        """What all complaints about a key look like."""
        return FormatError(f"{self.file}: {key}: found {found}, expected {expected}. Convert the checkpoint again.")

    def string(self, key: str) -> str | None:
        """A string, or None where the key is missing."""
        value = self._values.get(key)
        if isinstance(value, bytes):
            return value.decode("utf-8", "surrogateescape")
        if value is None or isinstance(value, str):
            return value
        raise self.error(key, _describe(value), "a string")

    def boolean(self, key: str) -> bool | None:
        """True or false, or None where the key is missing."""
        value = self._values.get(key)
        if value is None or isinstance(value, (bool, np.bool_)):
            return None if value is None else bool(value)
        raise self.error(key, _describe(value), "true or false")

    def integer(self, key: str) -> int | None:
        """An integer, or None where the key is missing."""
        value = self._values.get(key)
        if value is None:
            return None
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
            raise self.error(key, _describe(value), "an integer")
        return int(value)

    def strings(self, key: str) -> list[str] | None:
        """An array of strings; bytes that are not UTF-8 stay as surrogates. None where the key is missing."""
        values = self._values.get(key)
        if values is None:
            return None
        texts = list(self._array(key, values, "an array of strings"))
        if all(type(text) is str for text in texts):
            return texts
        return [self._text(key, text) for text in texts]

    def floats(self, key: str, length: int) -> list[float] | None:
        """An array of that many floating-point numbers, none of them a NaN; None where the key is missing."""
        array = self._numbers(key, length, "f", "floating-point numbers")
        if array is None:
            return None
        if bool(np.isnan(array).any()):
            raise self.error(key, "a NaN", "numbers")
        floats: list[float] = array.tolist()
        return floats

    def integers(self, key: str, length: int) -> list[int] | None:
        """An array of that many integers; None where the key is missing."""
        array = self._numbers(key, length, "iu", "integers")
        if array is None:
            return None
        integers: list[int] = array.tolist()
        return integers

    def pairs(self, key: str) -> list[tuple[str, str]] | None:
        """An array of pairs, each written as one string with a space between or as two strings."""
        values = self._values.get(key)
        if values is None:
            return None
        return [self._pair(key, value) for value in self._array(key, values, "an array of pairs")]

    def _pair(self, key: str, value: object) -> tuple[str, str]:
        if isinstance(value, (str, bytes)):
            text = self._text(key, value)
            left, _, right = text.partition(" ")
            if left and right:
                return left, right
            # A piece may itself be a space: the one from the second character on divides.
            at = text.find(" ", 1)
            if 0 < at < len(text) - 1:
                return text[:at], text[at + 1 :]
        elif isinstance(value, Sequence) and len(value) == 2:
            return self._text(key, value[0]), self._text(key, value[1])
        raise self.error(key, _describe(value), "pairs of pieces, as 'left right' or as two strings")

    def _text(self, key: str, value: object) -> str:
        if isinstance(value, str):
            return value
        if isinstance(value, bytes):
            return value.decode("utf-8", "surrogateescape")
        raise self.error(key, f"an array with {_describe(value)}", "an array of strings")

    def _array(self, key: str, values: Any, expected: str) -> Sequence[Any]:
        if isinstance(values, np.ndarray):
            raise self.error(key, _describe(values), expected)
        if isinstance(values, Sequence) and not isinstance(values, (str, bytes)):
            return values
        raise self.error(key, _describe(values), expected)

    def _numbers(self, key: str, length: int, kinds: str, name: str) -> np.ndarray[Any, Any] | None:
        values = self._values.get(key)
        if values is None:
            return None
        expected = f"an array of {length} {name}, one for each token"
        if isinstance(values, (str, bytes)) or not isinstance(values, (Sequence, np.ndarray)):
            raise self.error(key, _describe(values), expected)
        try:
            array = np.asarray(values)
        except (ValueError, TypeError, OverflowError):
            raise self.error(key, "an array of mixed values", expected) from None
        if array.ndim != 1 or len(array) != length or (length and array.dtype.kind not in kinds):
            raise self.error(key, f"an array of {len(values)} {array.dtype} values", expected)
        return array


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.size} {value.dtype} values"
    if isinstance(value, (str, int, float)):
        return f"{type(value).__name__} {value!r:.60}"
    return type(value).__name__

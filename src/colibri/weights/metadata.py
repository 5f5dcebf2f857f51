"""Metadata of a checkpoint with typed access: what is missing or of the wrong type is named with its file and key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from colibri.errors import FormatError

_REQUIRED: Final[Any] = object()
D = TypeVar("D")
_LARGEST: Final = 1e300  # also refuses NaN, infinities and integers that no float holds


class Metadata(Mapping[str, Any]):
    """Keys of GGUF's vocabulary and their values: Python scalars and text, numpy arrays, sequences of text.

    The getters raise FormatError when the key is missing and no default (of any type) is given, or when the value is of
    another type or out of range. written: what the source calls a key, where it has another name for it.
    """

    def __init__(self, source: Path, values: Mapping[str, Any], written: Mapping[str, str] | None = None) -> None:
        self.source = source
        self._values = dict(values)
        self._written = written or {}

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Metadata({self.source}, {len(self)} keys)"

    def integer(self, key: str, default: D = _REQUIRED, *, low: int = 0, high: int = (1 << 31) - 1) -> int | D:
        """An integer between low and high, as a default that is one must be too."""
        value: int | D = self._get(key, default, int, "an integer")
        if type(value) is int and not low <= value <= high:
            raise self.error(key, str(value), f"{low} to {high}")
        return value

    def number(self, key: str, default: D = _REQUIRED) -> float | D:
        """A finite number, integer or float."""
        value = self._get(key, default, (int, float), "a finite number")
        if key in self._values and not -_LARGEST <= value <= _LARGEST:
            raise self.error(key, str(value), "a finite number")
        return float(value) if type(value) is int else value

    def flag(self, key: str, default: D = _REQUIRED) -> bool | D:
        """A bool."""
        value: bool | D = self._get(key, default, bool, "a bool")
        return value

    def text(self, key: str, default: D = _REQUIRED) -> str | D:
        """A string."""
        value: str | D = self._get(key, default, str, "a string")
        return value

    def strings(self, key: str, default: D = _REQUIRED) -> Sequence[str] | D:
        """An array of strings."""
        value: Sequence[str] | D = self._get(key, default, Sequence, "an array of strings")
        if isinstance(value, str) or (isinstance(value, list) and not all(isinstance(item, str) for item in value)):
            raise self.error(key, _describe(value), "an array of strings")
        return value

    def floats(self, key: str, default: D = _REQUIRED) -> npt.NDArray[np.float32] | D:
        """An array of floats, as float32."""
        value: npt.NDArray[np.float32] | D = self._numbers(key, default, "f", "an array of floats", np.float32)
        return value

    def integers(self, key: str, default: D = _REQUIRED) -> npt.NDArray[np.int64] | D:
        """An array of integers, as int64."""
        value: npt.NDArray[np.int64] | D = self._numbers(key, default, "iu", "an array of integers", np.int64)
        return value

    def error(self, key: str, found: str, expected: str) -> FormatError:
        """What all complaints about a key look like."""
        return FormatError(f"{self.source}: {self._written.get(key, key)} is {found}, {expected} is expected")

    def _get(self, key: str, default: Any, kinds: Any, expected: str) -> Any:
        """The value, of one of the kinds; the default as it is, of any."""
        value = self._values.get(key, default)
        if value is _REQUIRED:
            raise FormatError(f"{self.source}: the metadata key {key} is missing")
        if key in self._values and (not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool)):
            raise self.error(key, _describe(value), expected)
        return value

    def _numbers(self, key: str, default: Any, kinds: str, expected: str, dtype: Any) -> Any:
        value = self._get(key, default, (list, np.ndarray), expected)
        if key not in self._values:
            return value
        try:
            array = np.asarray(value)
        except ValueError:
            raise self.error(key, "an array of mixed values", expected) from None
        if array.ndim != 1 or (array.size and array.dtype.kind not in kinds):
            raise self.error(key, _describe(array), expected)
        return array.astype(dtype, copy=False)


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype.name}"
    return f"{type(value).__name__} {value!r:.60}"

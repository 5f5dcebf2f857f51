"""Metadata of a checkpoint with typed access: what is missing or of the wrong type is named with its file and key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from colibri.errors import FormatError

_REQUIRED: Final = object()
_LARGEST: Final = 1e300  # also refuses NaN, infinities and integers that no float holds


class Metadata(Mapping[str, Any]):
    """Keys of GGUF's vocabulary and their values: Python scalars and text, numpy arrays, sequences of text.

    The getters raise FormatError when the key is missing and no default is given, or when the value is of another
    type or out of range.
    """

    def __init__(self, source: Path, values: Mapping[str, Any]) -> None:
        self.source = source
        self._values = dict(values)

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Metadata({self.source}, {len(self)} keys)"

    def integer(self, key: str, default: Any = _REQUIRED, *, low: int = 0, high: int = (1 << 31) - 1) -> int:
        """An integer between low and high."""
        value = self._get(key, default)
        if type(value) is not int:
            raise self._mismatch(key, value, "an integer")
        if key in self._values and not low <= value <= high:
            raise FormatError(f"{self.source}: {key} is {value}, {low} to {high} is expected")
        return value

    def number(self, key: str, default: Any = _REQUIRED) -> float:
        """A finite number, integer or float."""
        value = self._get(key, default)
        if type(value) not in (int, float) or not -_LARGEST <= value <= _LARGEST:
            raise self._mismatch(key, value, "a finite number")
        return float(value)

    def flag(self, key: str, default: Any = _REQUIRED) -> bool:
        """A bool."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._mismatch(key, value, "a bool")
        return value

    def text(self, key: str, default: Any = _REQUIRED) -> str:
        """A string."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._mismatch(key, value, "a string")
        return value

    def strings(self, key: str, default: Any = _REQUIRED) -> Sequence[str]:
        """An array of strings."""
        value = self._get(key, default)
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        if not is_list or (isinstance(value, list | tuple) and not all(isinstance(item, str) for item in value)):
            raise self._mismatch(key, value, "an array of strings")
        strings: Sequence[str] = value
        return strings

    def floats(self, key: str, default: Any = _REQUIRED) -> npt.NDArray[np.float32]:
        """An array of floats, as float32."""
        value = self._get(key, default)
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
            raise self._mismatch(key, value, "an array of floats")
        return value.astype(np.float32, copy=False)

    def integers(self, key: str, default: Any = _REQUIRED) -> npt.NDArray[np.int64]:
        """An array of integers, as int64."""
        value = self._get(key, default)
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu":
            raise self._mismatch(key, value, "an array of integers")
        return value.astype(np.int64)

    def _get(self, key: str, default: Any) -> Any:
        value = self._values.get(key, default)
        if value is _REQUIRED:
            raise FormatError(f"{self.source}: the metadata key {key} is missing")
        return value

    def _mismatch(self, key: str, value: Any, expected: str) -> FormatError:
        array = isinstance(value, np.ndarray)
        found = f"an array of {value.dtype.name}" if array else f"{type(value).__name__} {value!r:.60}"
        return FormatError(f"{self.source}: {key} is {found}, {expected} is expected")

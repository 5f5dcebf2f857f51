"""The quantising of rows, with errors that say where they were read."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from colibri import ops
from colibri.errors import FormatError


def quantize_rows(
    type_name: str, rows: npt.NDArray[np.float32], importance: npt.NDArray[np.float32] | None, what: str
) -> npt.NDArray[np.uint8]:
    """float32 (rows, k) -> bytes (rows, bytes a row). FormatError names `what` when a value does not fit the type."""
    try:
        return ops.quantize(type_name, rows, importance)
    except ValueError as error:
        if np.isfinite(rows).all():
            raise FormatError(f"{what}: {error}") from error
        bad = int(np.argmax(~np.isfinite(rows).all(axis=1)))
        raise FormatError(f"{what}: row {bad} holds a NaN or an infinity; the source is damaged") from error

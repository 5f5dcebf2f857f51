"""Error and speed of the quantisers beside llama.cpp's.

    python benchmarks/quantizers.py --library .../xllamacpp/xllamacpp.abi3.so

The library is any shared object that exports ggml_quantize_chunk, such as the one in the `xllamacpp` wheel. Prints, a
format and a kind of matrix, the ratio of root-mean-square errors (below 1: ours is lower), without and with column
importances, and the speed in MB of BF16 input a second on one core.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colibri import ops
from colibri.conversion.dequantize import dequantize

Quantizer = Callable[[str, NDArray[np.float32], Any], NDArray[np.uint8]]
TYPES = ["Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q4_0", "MXFP4", "Q3_K", "Q2_K", "IQ4_XS", "IQ4_NL", "Q5_0", "Q5_1", "Q4_1"]
ROWS, COLUMNS = 256, 2048


def llama_quantizer(library: str) -> Quantizer:
    """llama.cpp's own quantiser from a shared library."""
    call = ctypes.CDLL(library).ggml_quantize_chunk
    pointer, long = ctypes.c_void_p, ctypes.c_int64
    call.restype, call.argtypes = ctypes.c_size_t, [ctypes.c_int, pointer, pointer, long, long, long, pointer]

    def quantize(type: str, x: NDArray[np.float32], importance: Any) -> NDArray[np.uint8]:
        form = ops.BLOCK_TYPES[type]
        out = np.empty(x.size // form.values * form.bytes, np.uint8)
        weights = None if importance is None else importance.ctypes.data
        call(form.code, x.ctypes.data, out.ctypes.data, 0, *x.shape, weights)
        return out

    return quantize


def matrices() -> dict[str, NDArray[np.float32]]:
    """Weights as models have them: gaussian, heavy-tailed, and gaussian with a few large columns."""
    random = np.random.default_rng(1)
    size = (ROWS, COLUMNS)
    columns = random.normal(size=size)
    columns[:, random.integers(0, COLUMNS, 20)] *= 8
    kinds = {"gaussian": random.normal(size=size), "laplace": random.laplace(size=size),
             "student-3": random.standard_t(3, size=size), "columns": columns}  # fmt: skip
    return {name: np.ascontiguousarray(values * 0.02, np.float32) for name, values in kinds.items()}


def rms_error(quantize: Quantizer, type: str, x: NDArray[np.float32], importance: Any) -> float:
    """Root of the mean squared error, weighed by column if importances are given."""
    difference = dequantize(type, quantize(type, x, importance), *x.shape).astype(np.float64) - x
    return float(np.sqrt((difference**2 * (1 if importance is None else importance)).mean()))


def speed(quantize: Quantizer, type: str, x: NDArray[np.float32], repeat: int) -> float:
    """Best of `repeat`, in MB/s of what the matrix takes as BF16, by processor time of this thread."""
    best = float("inf")
    for _ in range(repeat):
        start = time.thread_time()
        quantize(type, x, None)
        best = min(best, time.thread_time() - start)
    return x.size * 2 / best / 1e6


def report(type: str, everything: dict[str, NDArray[np.float32]], importance: NDArray[np.float32],
           llama: Quantizer | None, repeat: int) -> list[str]:  # fmt: skip
    """The cells of one row of the table."""
    rate = speed(ops.quantize, type, everything["gaussian"], repeat)
    if llama is None:
        return [f"{type:6}", f"{rate:.0f} MB/s"]
    cells = [f"{type:6}"]
    for name, x in everything.items():
        pairs = ((rms_error(ops.quantize, type, x, w), rms_error(llama, type, x, w)) for w in (None, importance))
        plain, weighted = (ours / theirs for ours, theirs in pairs)
        cells.append(f"{name} {plain:.3f}" + (f" ({weighted:.3f})" if type != "MXFP4" else ""))
    return [*cells, f"{rate:.0f} MB/s", f"{rate / speed(llama, type, everything['gaussian'], 2):.1f} times llama.cpp"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", help="shared library with ggml_quantize_chunk; without it only our speed is shown")
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    llama = llama_quantizer(options.library) if options.library else None
    importance = (np.random.default_rng(2).chisquare(1, size=COLUMNS) + 0.01).astype(np.float32)
    everything = matrices()
    print(f"isa {ops.isa()}; RMSE of ours / llama.cpp's, plain and (with importance)")
    for type in TYPES:
        print("  ".join(report(type, everything, importance, llama, options.repeat)), flush=True)


if __name__ == "__main__":
    main()

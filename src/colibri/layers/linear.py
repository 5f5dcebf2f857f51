"""Weights of the dense layers: checked against the spec, read and tiled at load."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from colibri import ops
from colibri.errors import UnsupportedError, starting_threads
from colibri.weights.checkpoint import Checkpoint
from colibri.weights.file_reader import FileReader
from colibri.weights.load import load_plain, read_tiles
from colibri.weights.row_order import RowOrder
from colibri.weights.tensor_info import TensorInfo

PAGE = 4096


class DenseWeights:
    """Gives out the tensors of a checkpoint by name, in one aligned mapping; routed experts live elsewhere.

    Matrices are handles until `read` fills them, all together and with several threads.

    Raises FormatError when a tensor is missing or of another shape than the spec asks for, UnsupportedError
    when the engine has no kernel for its type.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.nbytes = sum(_space(info) for info in checkpoint.tensors.values() if not _is_expert(info.name))
        self._memory = ops.Memory(self.nbytes)
        self._offset = 0
        self._reader = FileReader()
        self._matrices: list[tuple[TensorInfo, ops.Tensor]] = []
        self._places: dict[str, tuple[int, int]] = {}  # where the rest of a tensor goes, and where its room ends
        self._given: set[str] = set()

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds this tensor."""
        return name in self.checkpoint.tensors

    def matrix(self, name: str, rows: int, k: int, order: RowOrder | None = None) -> ops.Tensor:
        """The tiled weight (rows, k): all rows of a tensor, or those that `order` takes from it."""
        self._given.add(name)
        info = self.checkpoint.require(name, (rows if order is None else order.stored(rows), k))
        return self._matrix(name, info, rows, k, order)

    def head_matrices(self, name: str, heads: int, rows: int, k: int) -> ops.Tensor:
        """The tiled weight (heads * rows, k) of a tensor (heads, rows, k): the matrices of all heads."""
        self._given.add(name)
        info = self.checkpoint.require(name, (heads, rows, k))
        return self._matrix(name, replace(info, shape=(heads * rows, k)), heads * rows, k)

    def _matrix(self, name: str, info: TensorInfo, rows: int, k: int, order: RowOrder | None = None) -> ops.Tensor:
        offset, end = self._places.get(name, (self._offset, self._offset + _space(info)))
        self._offset = max(self._offset, end)
        nbytes = ops.tiled_bytes(info.type, rows, k)
        if order is not None:
            info = info.of_rows(rows, order)
        fits = offset + nbytes <= end  # not so where parts end within tiles
        tensor = ops.tensor(info.type, (rows, k), self._memory if fits else None, offset if fits else 0, tiled=True)
        self._places[name] = offset + nbytes, end
        self._matrices.append((info, tensor))
        return tensor

    def plain(self, name: str, shape: tuple[int, ...], order: RowOrder | None = None) -> ops.Tensor:
        """A small F32 tensor as it is, or those of its rows that `order` takes; widened from F16 or BF16."""
        self._given.add(name)
        rows, *rest = shape
        info = self.checkpoint.require(name, (rows if order is None else order.stored(rows), *rest))
        return self._plain(info if order is None else info.of_rows(rows, order))

    def _plain(self, info: TensorInfo) -> ops.Tensor:
        return load_plain(info, self._reader)

    def vector(self, name: str, size: int) -> ops.Tensor:
        """The F32 vector (size,)."""
        return self.plain(name, (size,))

    def check_all_given(self) -> None:
        """Raise UnsupportedError that names tensors of which the model, as it is run, makes no use."""
        unknown = [name for name in self.checkpoint.tensors if name not in self._given and not _is_expert(name)]
        if unknown:
            more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
            raise UnsupportedError(
                f"{self.checkpoint.path}: the tensors {', '.join(unknown[:3])}{more} are not known for "
                f"{self.checkpoint.architecture} models; what they do would be left out"
            )

    def optional_vector(self, name: str, size: int, order: RowOrder | None = None) -> ops.Tensor | None:
        """The F32 vector (size,), or None when the checkpoint has none."""
        return self.plain(name, (size,), order) if self.has(name) else None

    def read(self, threads: int) -> None:
        """Fill all matrices given out so far. Raises FileError when a file cannot be read whole."""
        with ThreadPoolExecutor(threads, thread_name_prefix="weights") as pool:
            with starting_threads("read weights"):
                results = pool.map(self._read, self._matrices)
            list(results)  # the first error ends it
        self._matrices.clear()

    def _read(self, matrix: tuple[TensorInfo, ops.Tensor]) -> None:
        read_tiles(*matrix, self._reader)


def _is_expert(name: str) -> bool:
    """blk.0.ffn_gate_exps.weight, or blk.0.ffn_gate.3.weight of early files."""
    words = name.split(".")
    return any(word.endswith("_exps") for word in words) or (len(words) == 5 and words[3].isdecimal())


def _space(info: TensorInfo) -> int:
    """Bytes that a dense matrix takes in memory, whole pages; vectors are too small to count."""
    if len(info.shape) < 2 or info.type not in ops.BLOCK_TYPES:
        return 0
    *rows, k = info.shape
    return -(-ops.tiled_bytes(info.type, math.prod(rows), k) // PAGE) * PAGE

"""Any checkpoint that opens -> one GGUF file (or a split), a few megabytes at a time.

Rows are read, put in order, quantised by a few threads and written in order; nothing is held but the pieces under way.
The output has an unfinished name until all of it is written, read back and found to be what was computed. A journal
beside it lets an interrupted conversion go on after the last whole tensor.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import shutil
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt

from colibri import ops
from colibri.conversion.checksums import SourceChecksums, checksum, source_checksums, summed_parts
from colibri.conversion.dequantize import dequantize
from colibri.conversion.gguf_writer import GGUFWriter, outputs_of
from colibri.conversion.imatrix import ImportanceMatrix
from colibri.conversion.mixes import mix as find_mix
from colibri.conversion.plan import Output, output_metadata, plan_outputs
from colibri.conversion.rows import read_rows
from colibri.errors import ArgumentError, FileError, FormatError, starting_threads
from colibri.weights.checkpoint import Checkpoint
from colibri.weights.file_reader import FileReader
from colibri.weights.gguf import read_one_file
from colibri.weights.gguf_writer import CHECKSUMS
from colibri.weights.load import to_float32
from colibri.weights.quantize import quantize_rows
from colibri.weights.tensor_info import TensorInfo

CHUNK_VALUES: Final = 1 << 21  # 8 MB as float32: enough for a read, little beside a tensor

_UNITS: Final = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Progress = Callable[[int, int], None]  # bytes written so far, bytes in all


@dataclass(frozen=True)
class Options:
    """How to convert.

    tokenizer: metadata that replaces the source's `tokenizer.*`. importance: weights of the columns' squared errors.
    split_bytes: begin another file when one would exceed this. replace: whether what DESTINATION named before goes.
    """

    quantization: str
    tokenizer: Mapping[str, object] = field(default_factory=dict)
    importance: ImportanceMatrix | None = None
    only_expert: int | None = None
    split_bytes: int | None = None
    threads: int | None = None
    name: str | None = None
    replace: bool = False


@dataclass(frozen=True)
class Report:
    """What a conversion wrote: files, bytes, and bytes by block format."""

    files: tuple[Path, ...]
    nbytes: int
    by_type: Mapping[str, int]
    resumed: int  # tensors that an interrupted conversion had left whole


def convert(checkpoint: Checkpoint, destination: Path, options: Options, progress: Progress | None = None) -> Report:
    """Write `destination`.

    Raises FileError (space, disk), FormatError (damaged source), UnsupportedError, ArgumentError (something is there).
    """
    mix = find_mix(options.quantization)
    outputs = plan_outputs(checkpoint, mix, options.only_expert)
    specs = [output.spec for output in outputs]
    checksum_count = sum(output.checksums for output in outputs)
    metadata = output_metadata(checkpoint, mix, options.tokenizer, checksum_count, options.only_expert)
    if options.name is not None:
        metadata["general.name"] = options.name
    writer = GGUFWriter(destination, metadata, specs, split_bytes=options.split_bytes, keep_partial=True)
    for file in writer.files:
        checkpoint.check_output(file)
    old = _old_files(checkpoint, destination, writer, options.replace)
    importance = options.importance.for_outputs(outputs) if options.importance else {}
    sums = source_checksums(checkpoint.path) if checkpoint.format == "gguf" else {}
    _check_space(destination, writer)
    journal = Journal(destination, _fingerprint(checkpoint, writer, importance))
    with journal.locked() as checksums, _tidy(writer, journal):
        if not checksums:  # of another plan, whose journal is gone
            for file in outputs_of(destination, ".partial"):
                file.unlink()
        with writer, FileReader() as reader:
            resumed = len(checksums)
            writer.skip(resumed)
            done = sum(spec.nbytes for spec in specs[:resumed])
            total = sum(spec.nbytes for spec in specs)
            with ThreadPoolExecutor(options.threads or ops.threads(), thread_name_prefix="convert") as pool:
                for output in outputs[resumed:]:
                    pieces = _Pieces(output, reader, importance.get(output.spec.name), pool, sums)
                    writer.write(output.spec.name, _counted(pieces, progress, done, total))
                    done += output.spec.nbytes
                    writer.sync()
                    journal.add(pieces.checksums)
                    checksums.append(pieces.checksums)
            flat = [checksum for tensor in checksums for checksum in tensor]
            writer.rewrite({CHECKSUMS: np.array(flat, np.uint32)})
            _read_back(writer.temporaries, flat)
            for file in old:
                file.unlink()
        journal.remove()
    by_type: dict[str, int] = {}
    for spec in specs:
        by_type[spec.type] = by_type.get(spec.type, 0) + spec.nbytes
    return Report(tuple(writer.files), writer.nbytes, by_type, resumed)


# ---- one tensor ----


class _Pieces:
    """The bytes of one output tensor in order, computed by a few threads just ahead of the one that writes.

    Raises FormatError behind a part of the source that does not have the checksum it was written with.
    """

    def __init__(
        self,
        output: Output,
        reader: FileReader,
        importance: Floats | None,
        pool: ThreadPoolExecutor,
        expected: SourceChecksums,
    ) -> None:
        self._output, self._reader, self._importance, self._pool = output, reader, importance, pool
        self._expected = expected
        self.checksums: list[int] = []

    def __iter__(self) -> Iterator[Bytes]:
        if self._output.values is not None:
            constant = self._output.values.view(np.uint8)
            self.checksums.append(zlib.crc32(constant.data))
            yield constant
            return
        ahead: deque[tuple[int, Future[tuple[Bytes, Bytes]]]] = deque()
        jobs = self._jobs()
        read = [0] * len(self._output.parts)  # checksums of the source's parts
        try:
            while True:
                for part, first, count in jobs:
                    with starting_threads("convert"):
                        ahead.append((part, self._pool.submit(self._compute, part, first, count)))
                    if len(ahead) > 2 * ops.threads():
                        break
                if not ahead:
                    return
                part, future = ahead.popleft()
                raw, piece = future.result()
                if self._expected:
                    read[part] = zlib.crc32(raw.data, read[part])
                    if not ahead or ahead[0][0] != part:
                        self._check(self._output.parts[part], read[part])
                part = min(part, self._output.checksums - 1)
                if part == len(self.checksums):
                    self.checksums.append(0)
                self.checksums[part] = zlib.crc32(piece.data, self.checksums[part])
                yield piece
        finally:
            for _, future in ahead:
                future.cancel()

    def _check(self, part: TensorInfo, found: int) -> None:
        expected = self._expected.get((part.file, part.offset, part.nbytes), found)
        if found != expected:
            raise FormatError(
                f"{part.file}: {part.name} is damaged: checksum {found:08x}, {expected:08x} was written at conversion. "
                "Fetch or convert the file again"
            )

    def _jobs(self) -> Iterator[tuple[int, int, int]]:
        """(part, first row, rows) for every piece: whole heads where rows are reordered."""
        for part, info in enumerate(self._output.parts):
            rows, k = math.prod(info.shape[:-1]), info.shape[-1]
            if self._output.head_rows and len(info.shape) == 1:
                rows, k = info.shape[0], 1
            unit = self._output.head_rows or 1
            step = max(1, CHUNK_VALUES // (unit * k)) * unit
            for first in range(0, rows, step):
                yield part, first, min(step, rows - first)

    def _compute(self, part: int, first: int, count: int) -> tuple[Bytes, Bytes]:
        """Rows of a part as the source has them, and as they are written."""
        info, spec = self._output.parts[part], self._output.spec
        k = 1 if self._output.head_rows and len(info.shape) == 1 else info.shape[-1]
        raw = read_rows(info, first, count, k, self._reader)
        ordered = adjacent_pairs(raw, self._output.head_rows) if self._output.head_rows else raw
        if info.type == spec.type and spec.type not in ("F32", "F16", "BF16"):
            return raw, ordered.reshape(-1)
        if info.type in ("F32", "F16", "BF16"):
            rows = to_float32(ordered.reshape(-1), info.type).reshape(-1, k)
        else:
            rows = dequantize(info.type, ordered, len(ordered), k)
        weights = self._importance
        if weights is not None and weights.ndim == 2:
            weights = weights[part]
        return raw, quantize_rows(spec.type, rows, weights, f"{info.file}: tensor {info.name}").reshape(-1)


def adjacent_pairs(rows: Bytes, head_rows: int) -> Bytes:
    """(rows, bytes): rows i and i + h/2 of every head of h rows become rows 2i and 2i + 1."""
    halves: npt.NDArray[Any] = rows.reshape(-1, 2, head_rows // 2, rows.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def _counted(pieces: _Pieces, progress: Progress | None, done: int, total: int) -> Iterator[Bytes]:
    for piece in pieces:
        yield piece
        done += piece.nbytes
        if progress is not None:
            progress(done, total)


# ---- what makes a conversion safe ----


class Journal:
    """The checksums of the tensors that are whole in an unfinished output, one line a tensor; a lock on it, too."""

    def __init__(self, destination: Path, fingerprint: str) -> None:
        self._path = destination.with_name(f"{destination.name}.journal")
        self._fingerprint = fingerprint
        self._file: IO[str] | None = None

    @contextmanager
    def locked(self) -> Iterator[list[list[int]]]:
        """The checksums of an interrupted conversion of the same plan, or none; the output is this process's alone."""
        try:
            self._file = self._path.open("a+", encoding="utf-8")
        except OSError as error:
            raise FileError(f"{self._path}: cannot be written: {error.strerror}") from error
        with self._file:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise FileError(f"{self._path}: another conversion is writing this file; wait for it") from None
            yield self._entries(self._file)

    def _entries(self, file: IO[str]) -> list[list[int]]:
        file.seek(0)
        lines = file.read().split("\n")[:-1]  # the last line is cut off or empty
        if not lines or lines[0] != self._fingerprint:
            file.truncate(0)
            file.write(f"{self._fingerprint}\n")
            file.flush()
            return []
        entries = []
        for line in lines[1:]:
            try:
                entries.append([int(checksum) for checksum in json.loads(line)])
            except ValueError:
                break
        file.truncate(sum(len(line) + 1 for line in lines[: len(entries) + 1]))
        return entries

    def add(self, checksums: Sequence[int]) -> None:
        """One more tensor is whole and on the disk."""
        assert self._file is not None
        self._file.write(json.dumps(list(checksums)) + "\n")
        self._file.flush()

    def remove(self) -> None:
        """The conversion is complete."""
        self._path.unlink(missing_ok=True)


def _fingerprint(checkpoint: Checkpoint, writer: GGUFWriter, importance: Mapping[str, Floats]) -> str:
    digest = hashlib.sha256(writer.headers)
    digest.update(checkpoint.fingerprint().encode())
    for name, weights in sorted(importance.items()):
        digest.update(name.encode() + weights.tobytes())
    return digest.hexdigest()


@contextmanager
def _tidy(writer: GGUFWriter, journal: Journal) -> Iterator[None]:
    """A fault of the source will be there the next time, too: nothing is kept to go on with."""
    try:
        yield
    except FormatError:
        for file in writer.temporaries:
            file.unlink(missing_ok=True)
        journal.remove()
        raise


def _old_files(checkpoint: Checkpoint, destination: Path, writer: GGUFWriter, replace: bool) -> list[Path]:
    """What must go before the finished files get their names: parts of an older split would be taken for new ones."""
    sources = {file.resolve() for file in checkpoint.files}
    named = [file for file in outputs_of(destination) if file in writer.files or file.resolve() not in sources]
    if named and not replace:
        raise ArgumentError(f"{named[0]}: exists; give --force to replace it, or another name")
    return [file for file in named if file not in writer.files or len(writer.files) > 1]


def _check_space(destination: Path, writer: GGUFWriter) -> None:
    directory = destination.parent
    taken = sum(file.stat().st_size for file in writer.temporaries if file.exists())
    free, needed = shutil.disk_usage(directory).free, writer.nbytes - taken
    if free < needed:
        unit, scale = next(((unit, scale) for unit, scale in _UNITS if needed >= scale), ("bytes", 1))
        raise FileError(
            f"{directory}: has {free / scale:.1f} {unit} free, the output needs {needed / scale:.1f} {unit} more; "
            "free space, or write elsewhere"
        )


def _read_back(files: Sequence[Path], checksums: Sequence[int]) -> None:
    """Compare what the disk holds with what was computed."""
    tensors: dict[str, TensorInfo] = {}
    for file in files:
        tensors |= read_one_file(file).tensors
    with FileReader() as reader:
        for part, expected in zip(summed_parts(tensors), checksums, strict=True):
            if checksum(part, reader) != expected:
                raise FormatError(f"{part.file}: {part.name} reads back as other bytes than were written")

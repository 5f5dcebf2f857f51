"""Any checkpoint that opens -> one GGUF file (or a split), a few megabytes at a time.

Rows are read, put in order, quantised by a few threads and written in order; nothing is held but the pieces under way.
The output has an unfinished name until all of it is written, read back and found to be what was computed. A journal
beside it lets an interrupted conversion go on after the last whole tensor.
"""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from colibri import ops
from colibri.config import readable
from colibri.conversion.checksums import checksum, source_checksums, summed_parts
from colibri.conversion.gguf_writer import GGUFWriter, outputs_of
from colibri.conversion.imatrix import ImportanceMatrix
from colibri.conversion.journal import Journal, journal_of
from colibri.conversion.mixes import mix as find_mix
from colibri.conversion.output import check_output, sources
from colibri.conversion.pieces import Bytes, Floats, Pieces
from colibri.conversion.plan import Output, output_metadata, plan_outputs
from colibri.conversion.rehearsal import rehearse
from colibri.errors import ArgumentError, FileError, FormatError
from colibri.weights.checkpoint import Checkpoint
from colibri.weights.file_reader import FileReader
from colibri.weights.gguf import read_one_file
from colibri.weights.gguf_writer import CHECKSUMS
from colibri.weights.tensor_info import TensorInfo

Progress = Callable[[int, int], None]  # bytes written so far, bytes in all


@dataclass(frozen=True)
class Options:
    """How to convert.

    tokenizer: metadata that replaces the source's `tokenizer.*`. importance: weights of the columns' squared errors.
    split_bytes: begin another file when one would exceed this. replace: whether what DESTINATION named before goes.
    inputs: files read beside the checkpoint, which are never replaced.
    """

    quantization: str
    tokenizer: Mapping[str, object] = field(default_factory=dict)
    importance: ImportanceMatrix | None = None
    only_expert: int | None = None
    split_bytes: int | None = None
    threads: int | None = None
    name: str | None = None
    replace: bool = False
    inputs: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Report:
    """What a conversion wrote: files, bytes, bytes by block format, and what a user should know of them."""

    files: tuple[Path, ...]
    nbytes: int
    by_type: Mapping[str, int]
    resumed: int  # tensors that an interrupted conversion had left whole
    notes: tuple[str, ...] = ()


def convert(checkpoint: Checkpoint, destination: Path, options: Options, progress: Progress | None = None) -> Report:
    """Write `destination`.

    Raises FileError (space, disk), FormatError (damaged source), UnsupportedError, ArgumentError (something is there).
    """
    mix = find_mix(options.quantization)
    outputs = plan_outputs(checkpoint, mix, options.only_expert, options.importance is not None)
    count = sum(output.checksums for output in outputs)
    metadata = output_metadata(checkpoint, mix, options.tokenizer, count, options.only_expert)
    if options.name is not None:
        metadata["general.name"] = options.name
    specs = [output.spec for output in outputs]
    writer = GGUFWriter(destination, metadata, specs, split_bytes=options.split_bytes, keep_partial=True)
    notes = rehearse(checkpoint, outputs, metadata) if options.only_expert is None else []
    old = _check_destination(checkpoint, destination, writer, options)
    importance = options.importance.for_outputs(outputs) if options.importance else {}
    journal = Journal(destination, _fingerprint(checkpoint, writer, importance), writer.begun)
    with journal.locked() as checksums, _tidy(writer, journal):
        resumed = len(checksums)
        for file in () if resumed else outputs_of(destination, ".partial"):  # of another plan, whose journal is gone
            file.unlink()
        with writer:
            writer.skip(resumed)
            for done in _write(checkpoint, outputs[resumed:], importance, writer, options.threads, progress):
                journal.add(done)
                checksums.append(done)
            flat = [checksum for tensor in checksums for checksum in tensor]
            writer.rewrite({CHECKSUMS: np.array(flat, np.uint32)})
            _read_back(writer.temporaries, flat)
            for file in old:
                file.unlink()
        journal.remove()
    by_type: Counter[str] = Counter()
    for spec in specs:
        by_type[spec.type] += spec.nbytes
    return Report(tuple(writer.files), writer.nbytes, by_type, resumed, tuple(notes))


def _write(
    checkpoint: Checkpoint,
    outputs: Sequence[Output],
    importance: Mapping[str, Floats],
    writer: GGUFWriter,
    threads: int | None,
    progress: Progress | None,
) -> Iterator[list[int]]:
    """Write tensor after tensor; the checksums of each once it is on the disk."""
    expected = source_checksums(checkpoint.path) if checkpoint.format == "gguf" else {}
    total = writer.data_bytes
    done = total - sum(output.spec.nbytes for output in outputs)
    reader = FileReader()
    with ThreadPoolExecutor(threads or ops.threads(), thread_name_prefix="convert") as pool:
        for output in outputs:
            pieces = Pieces(output, reader, importance.get(output.spec.name), pool, expected)
            writer.write(output.spec.name, _counted(pieces, progress, done, total))
            done += output.spec.nbytes
            writer.sync()
            yield pieces.checksums


def _counted(pieces: Pieces, progress: Progress | None, done: int, total: int) -> Iterator[Bytes]:
    for piece in pieces:
        yield piece
        done += piece.nbytes
        if progress is not None:
            progress(done, total)


# ---- what makes a conversion safe ----


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


def _check_destination(checkpoint: Checkpoint, destination: Path, writer: GGUFWriter, options: Options) -> list[Path]:
    """What must go before the finished files get their names: parts of an older split would be taken for new ones.

    Raises ArgumentError or FileError where nothing may or can be written.
    """
    for file in writer.files:
        check_output(checkpoint, file, replace=options.replace, inputs=options.inputs)
    kept = sources(checkpoint).union(file.resolve() for file in options.inputs)
    named = [file for file in outputs_of(destination) if file.resolve() not in kept]
    if named and not options.replace:
        raise ArgumentError(f"{named[0]}: exists; give --force to replace it, or another name")
    unfinished, journal = outputs_of(destination, ".partial"), journal_of(destination)
    if unfinished and not journal.exists():
        raise ArgumentError(
            f"{unfinished[0]}: was left by no interrupted conversion (there is no {journal.name}) and is not replaced; "
            "move it away, or give another name"
        )
    taken = sum(file.stat().st_size for file in writer.temporaries if file.exists())
    free, needed = shutil.disk_usage(destination.parent).free, writer.nbytes - taken
    if free < needed:
        raise FileError(
            f"{destination.parent}: has {readable(free)} free, the output needs {readable(needed)} more; free space, "
            "or write elsewhere"
        )
    return [file for file in named if file not in writer.files or len(writer.files) > 1]


def _read_back(files: Sequence[Path], checksums: Sequence[int]) -> None:
    """Compare what the disk holds with what was computed."""
    tensors: dict[str, TensorInfo] = {}
    for file in files:
        tensors |= read_one_file(file).tensors
    reader = FileReader()
    for part, expected in zip(summed_parts(tensors), checksums, strict=True):
        if checksum(part, reader) != expected:
            raise FormatError(
                f"{part.file}: {part.name} reads back as other bytes than were written; "
                "what was written is removed: run the same command again, and test the disk if this returns"
            )

"""What each quantisation costs on a model: bytes, perplexity and distance of the distributions from the source's.

    python benchmarks/quantization_cost.py SOURCE TEXT... [--write docs/conversion.md]

Converts SOURCE (a directory or an unquantised GGUF file) to every format and prints a table in Markdown. The
divergence is the mean over positions of KL(source || quantised) in nats; `same` is the share of positions where both
put the same token first. All are computed with precision "exact", and with "fast" in the last column. With --write
the table goes between the file's two comments `quantization cost`, in the place of the one that is there.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import colibri
from colibri.config import Precision
from colibri.conversion.convert import Options, convert
from colibri.conversion.mixes import MIXES
from colibri.conversion.source import open_source
from colibri.conversion.tokenizer_export import tokenizer_metadata
from colibri.observe.perplexity import negative_log_likelihood

Floats = NDArray[np.float32]
MARK = "<!-- quantization cost -->"


class Row(NamedTuple):
    """One line of the table."""

    name: str
    nbytes: int
    perplexity: float
    divergence: float
    same: float


def windows_of(path: Path, texts: list[Path], window: int, most: int) -> list[list[int]]:
    """The first windows of each text."""
    with colibri.load(path, context=window) as model:
        chosen = []
        for text in texts:
            ids = model.tokenizer.encode(text.read_text(encoding="utf-8"))
            chosen += [ids[at : at + window] for at in range(0, len(ids) - window + 1, window)][:most]
    return chosen


def logits_of(path: Path, windows: list[list[int]], precision: Precision) -> list[Floats]:
    """Logits of the second half of every window."""
    with colibri.load(path, context=len(windows[0]), precision=precision) as model:
        return [model.infer(ids)[len(ids) // 2 : -1] for ids in windows]


def log_softmax(logits: Floats) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    return np.asarray(wide - np.log(np.exp(wide).sum(axis=1, keepdims=True)))


def perplexity_of(logits: list[Floats], windows: list[list[int]]) -> float:
    pairs = zip(logits, windows, strict=True)
    losses = [negative_log_likelihood(rows, ids[len(ids) // 2 + 1 :]) for rows, ids in pairs]
    return math.exp(float(np.concatenate(losses).mean()))


def compare(name: str, nbytes: int, source: list[Floats], found: list[Floats], windows: list[list[int]]) -> Row:
    divergences, same = [], []
    for ours, theirs in zip(source, found, strict=True):
        p, q = log_softmax(ours), log_softmax(theirs)
        divergences.append((np.exp(p) * (p - q)).sum(axis=1))
        same.append(p.argmax(axis=1) == q.argmax(axis=1))
    divergence, share = float(np.concatenate(divergences).mean()), float(np.concatenate(same).mean())
    return Row(name, nbytes, perplexity_of(found, windows), divergence, share)


def table_of(source: Path, texts: list[Path], window: int, most: int) -> Iterator[str]:
    """The lines of the table, as they become known."""
    checkpoint = open_source(source)
    tokenizer: dict[str, object] = {}
    if checkpoint.format == "huggingface":
        size = checkpoint.metadata.integer(checkpoint.key("vocab_size"))
        tokenizer = tokenizer_metadata(checkpoint.path, checkpoint.architecture, size, print)
    windows = windows_of(source, texts, window, most)
    expected = logits_of(source, windows, "exact")
    value = perplexity_of(expected, windows)
    names = ", ".join(text.name for text in texts)
    yield f"{checkpoint.name}: {len(windows)} windows of {window} tokens of {names}; the source has {value:.3f}."
    yield ""
    yield "| quantisation | MB | perplexity | KL divergence | same first token | KL divergence, fast |"
    yield "|---|---|---|---|---|---|"
    with tempfile.TemporaryDirectory() as directory:
        for name in reversed(MIXES):
            report = convert(checkpoint, Path(directory) / f"{name}.gguf", Options(name, tokenizer))
            exact = compare(name, report.nbytes, expected, logits_of(report.files[0], windows, "exact"), windows)
            fast = compare(name, report.nbytes, expected, logits_of(report.files[0], windows, "fast"), windows)
            cells = f"| {name} | {exact.nbytes / 1e6:.1f} | {exact.perplexity:.3f} | {exact.divergence:.5f} "
            yield f"{cells}| {100 * exact.same:.1f}% | {fast.divergence:.5f} |"
            report.files[0].unlink()


def write_between(path: Path, lines: list[str]) -> None:
    """Replace what is between the two comments."""
    before, mark, rest = path.read_text(encoding="utf-8").partition(MARK)
    _, end, after = rest.partition(MARK)
    if not mark or not end:
        raise SystemExit(f"{path}: holds no two comments {MARK}")
    path.write_text(f"{before}{mark}\n\n" + "\n".join(lines) + f"\n\n{end}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--windows", type=int, default=8, help="of each text")
    parser.add_argument("--write", type=Path, help="a file with two comments " + MARK)
    options = parser.parse_args()
    lines = []
    for line in table_of(options.source, options.texts, options.window, options.windows):
        print(line, flush=True)
        lines.append(line)
    if options.write is not None:
        write_between(options.write, lines)


if __name__ == "__main__":
    main()

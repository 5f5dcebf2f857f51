"""Which quantisation of a repository this machine should run, judged by the plans of their headers.

With all experts in memory more bits are better, up to eight, beyond which hardly anything is gained
(docs/conversion.md). Where they do not all fit, each byte of an expert that is missing comes from the disk for every
token, so the best of four bits or fewer is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from colibri.config import readable
from colibri.errors import ColibriError, FileError, MemoryBudgetError, UnsupportedError
from colibri.experts.plan import default_budget
from colibri.hub.fit import Fit, fit
from colibri.hub.remote import Repository, read_range
from colibri.hub.variants import SAFETENSORS, Variant
from colibri.machine import detect_memory
from colibri.weights.gguf import MAX_HEADER_BYTES, read_one_file

MOST_BITS: Final = 8
FEW_BITS: Final = 4
_FIRST_BYTES: Final = 4 << 20


@dataclass(frozen=True)
class Choice:
    """A quantisation and why it was taken."""

    variant: Variant
    why: str


def choose(repository: Repository, variants: Sequence[Variant]) -> Choice:
    """The best that this machine runs. Raises MemoryBudgetError or UnsupportedError when it runs none."""
    if len(variants) == 1:
        seen = remote_fit(repository, variants[0])
        if seen.kind in ("small", "no"):
            raise _none(repository, {variants[0].label: seen})
        return Choice(variants[0], "it is the only one")
    budget = default_budget(detect_memory())
    wide = [variant for variant in variants if variant.bits > MOST_BITS]
    useful = [variant for variant in variants if variant.bits <= MOST_BITS] or wide
    judged: dict[str, Fit] = {}
    whole = (variant for variant in useful if variant.nbytes <= budget)
    found = _first(repository, whole, ("whole",), judged)
    if found is not None:
        return Choice(found, f"the largest up to {MOST_BITS} bits whose experts all go into {readable(budget)}")
    few = [variant for variant in useful if variant.bits <= FEW_BITS]
    more = [variant for variant in reversed(useful) if variant.bits > FEW_BITS]
    found = _first(repository, [*few, *more], ("whole", "part"), judged)
    if found is not None:
        part = f"the best of {FEW_BITS} bits or fewer" if found.bits <= FEW_BITS else "the smallest"
        return Choice(
            found,
            f"its experts do not all go into {readable(budget)}, and what is missing is read for every token: {part} "
            "whose dense part fits",
        )
    raise _none(repository, judged)


def _first(
    repository: Repository, variants: Iterable[Variant], kinds: Sequence[str], judged: dict[str, Fit]
) -> Variant | None:
    for variant in variants:
        if variant.label not in judged:
            judged[variant.label] = remote_fit(repository, variant)
        if judged[variant.label].kind in kinds:
            return variant
    return None


def _none(repository: Repository, judged: dict[str, Fit]) -> ColibriError:
    small = [f"{label}: {seen.text}" for label, seen in judged.items() if seen.kind == "small"]
    if small:
        return MemoryBudgetError(f"{repository.repo}: no quantisation fits here; {small[-1]}")
    reasons = "; ".join(dict.fromkeys(seen.text for seen in judged.values()))
    return UnsupportedError(f"{repository.repo}: no quantisation of it is run here: {reasons:.600}")


def remote_fit(repository: Repository, variant: Variant) -> Fit:
    """How a model would go into memory, from the headers of its files alone."""
    try:
        with TemporaryDirectory(prefix="colibri-headers-") as folder:
            files = {name: Path(folder) / Path(name).name for name in variant.files if not name.endswith(".jinja")}
            for name, file in files.items():
                _copy_header(repository, name, file)
            seen = fit(Path(folder) if variant.label == SAFETENSORS else files[variant.files[0]])
            return Fit(seen.kind, seen.text.replace(f"{folder}/", "").replace(folder, repository.repo))
    except OSError as error:
        raise FileError(f"no temporary file can be written: {error.strerror}; let TMPDIR name a folder") from error


def _copy_header(repository: Repository, name: str, file: Path) -> None:
    """A file with the header of the remote one and its size, whose tensors are holes.

    What is wrong with a header is said by what opens the file.
    """
    size, count = repository.files[name].size, _FIRST_BYTES
    if name.endswith(".safetensors"):
        count = 8 + int.from_bytes(read_range(repository, name, 8), "little")
    while True:
        data = read_range(repository, name, min(size, count, MAX_HEADER_BYTES))
        with file.open("wb") as output:
            output.write(data)
            output.truncate(size)
        if len(data) >= min(size, MAX_HEADER_BYTES) or not name.lower().endswith(".gguf") or _whole(file, len(data)):
            return
        count *= 4


def _whole(file: Path, nbytes: int) -> bool:
    """Whether so many bytes hold all of a GGUF file's header."""
    try:
        return read_one_file(file).data_start <= nbytes
    except ColibriError:
        return False

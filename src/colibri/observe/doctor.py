"""What is wrong, or slower than it need be, with this machine and this model; each finding says what to do."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from colibri import ops
from colibri.config import LoadOptions, readable
from colibri.engine.loading import plan_model
from colibri.errors import ArgumentError, ColibriError, MemoryBudgetError, UnsupportedError
from colibri.experts.plan import Plan
from colibri.machine import cpus, detect_memory
from colibri.observe.forecast import measure_reading
from colibri.observe.limits import Meter, cpu_name, demand
from colibri.observe.summary import summarize
from colibri.text.tokenizer import load_tokenizer
from colibri.weights.gguf_writer import CHECKSUMS

MEASURE_SECONDS = 1.0
SLOW_DISK = 0.5e9  # bytes a second; a model that does not fit reads experts for every token
LITTLE_MEMORY = 1 << 30
_NO_FILE = "give the path of a model: -m, or the variable COLIBRI_MODEL"
_ADVICE: dict[type[ColibriError], str] = {
    MemoryBudgetError: "a smaller --context, --kv-type q8_0, smaller weights or more memory; colibri plan counts",
    UnsupportedError: "another model, or colibri convert where it reads this one",
    ArgumentError: "another value for that option",
    ColibriError: "give the path of a model; fetch or convert this one again if it should be one",
}
Level = Literal["ok", "slow", "fault"]


class Finding(NamedTuple):
    """`advice` is empty where nothing is to be done."""

    level: Level
    subject: str
    found: str
    advice: str = ""


def examine_machine(root: Path = Path("/")) -> Iterator[Finding]:
    """Processor, memory, pages and load."""
    yield _instruction_set(root)
    yield _processors()
    yield _memory(root)
    yield _huge_pages(root)
    yield _load(root)
    meter = Meter()
    meter.measure(MEASURE_SECONDS)
    read, products = readable(meter.read.median), meter.multiply.median / 1e9
    yield Finding("ok", "speed", f"{read}/s from memory, {products:.0f} billion int8 products a second")


def examine_model(options: LoadOptions) -> Iterator[Finding]:
    """The file, its tokenizer, whether it fits, and the disk that it is on."""
    try:
        made = plan_model(options)
        checkpoint, spec, plan = made.checkpoint, made.spec, made.plan
        tokenizer = load_tokenizer(checkpoint.tokenizer_source, checkpoint.family.pre_tokenizers)
        notes = tokenizer.notes if tokenizer.vocab_size else ()
    except ColibriError as error:
        advice = next(advice for kind, advice in _ADVICE.items() if isinstance(error, kind))
        there = os.path.exists(options.path or os.environ.get("COLIBRI_MODEL", "."))
        yield Finding("fault", "model", str(error), advice if there else _NO_FILE)
        return
    summary = summarize(checkpoint, spec)
    size = f"{readable(summary.file_bytes)}, {spec.experts} experts a layer, {spec.experts_per_token} used"
    yield Finding("ok", "model", f"{checkpoint.name}, {checkpoint.architecture}, {size}")
    for note in notes:
        yield Finding("slow", "tokenizer", note, "convert the checkpoint again with --pre-tokenizer NAME")
    yield _checksums(checkpoint.format, CHECKSUMS in checkpoint.metadata)
    yield _fit(plan)
    yield _disk(measure_reading(made.store, spec.experts_per_token, cached=False), plan)
    yield Finding("ok", "a token", f"reads {readable(demand(checkpoint, spec).weight_bytes)} of weights")


def _instruction_set(root: Path) -> Finding:
    used, best, name = ops.isa(), ops.isas()[0], cpu_name(root)
    if used != best:
        return Finding("slow", "processor", f"{name}: {used} is used, {best} is there", "unset COLIBRI_ISA")
    if used == "portable":
        advice = "several times slower than with AVX2; use a processor, or a virtual machine's setting, that has it"
        return Finding("slow", "processor", f"{name}: no vector instructions that are known", advice)
    return Finding("ok", "processor", f"{name}: {used}")


def _processors() -> Finding:
    allowed, there, threads = cpus(), os.cpu_count() or 1, ops.threads()
    found = f"{threads} threads on {allowed} of {there} processors"
    if threads > allowed:
        return Finding("slow", "threads", found, f"use {allowed} threads: those that wait hold up the others")
    if allowed < there:
        return Finding("ok", "threads", found, "a control group or an affinity mask allows no more")
    return Finding("ok", "threads", found)


def _memory(root: Path) -> Finding:
    try:
        memory = detect_memory(root)
    except ColibriError as error:
        return Finding("fault", "memory", str(error))
    found = f"{readable(memory.available)} free of {readable(memory.total)}"
    if memory.available < LITTLE_MEMORY:
        return Finding("slow", "memory", found, "end other programs, or raise the container's limit")
    return Finding("ok", "memory", found)


def _huge_pages(root: Path) -> Finding:
    file = root / "sys/kernel/mm/transparent_hugepage/enabled"
    try:
        chosen = re.search(r"\[(\w+)\]", file.read_text())
    except OSError:
        return Finding("ok", "huge pages", "the system does not tell")
    mode = chosen[1] if chosen else "unknown"
    if mode == "never":
        found = "switched off, which makes decoding up to a quarter slower"
        return Finding("slow", "huge pages", found, f"as root: echo madvise > {file}")
    return Finding("ok", "huge pages", mode)


def _load(root: Path) -> Finding:
    try:
        running = float((root / "proc/loadavg").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return Finding("ok", "load", "the system does not tell")
    found = f"{running:.1f} programs ran at once in the last minute"
    if running > 0.5 * cpus():
        return Finding("slow", "load", found, "other programs take processors; figures measured now are too low")
    return Finding("ok", "load", found)


def _checksums(kind: str, there: bool) -> Finding:
    if kind != "gguf" or there:
        return Finding("ok", "checksums", "colibri verify compares them" if there else "a directory has none")
    return Finding("ok", "checksums", "none in the file", "colibri convert writes them, so that damage can be named")


def _fit(plan: Plan) -> Finding:
    if plan.budget < plan.floor:
        found = f"needs {readable(plan.floor)} at least, the budget is {readable(plan.budget)}"
        return Finding("fault", "fit", found, "a smaller --context, a smaller quantisation, or more memory")
    if plan.fits:
        return Finding("ok", "fit", f"everything fits into {readable(plan.budget)}")
    found = f"{plan.resident_share:.0%} of the experts fit into {readable(plan.budget)}; the others are read when used"
    return Finding("slow", "fit", found, "a smaller quantisation or more memory; colibri plan forecasts the speed")


def _disk(rate: float, plan: Plan) -> Finding:
    found = f"{readable(rate)}/s where the model is"
    if not plan.fits and rate < SLOW_DISK:
        return Finding("slow", "disk", found, "put the model on a local SSD")
    return Finding("ok", "disk", found)

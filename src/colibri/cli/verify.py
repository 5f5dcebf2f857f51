"""`colibri verify`: every header, shape, block and checksum of a model, and its tokenizer."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from colibri.cli.options import model_option
from colibri.cli.output import print_json, size
from colibri.conversion.verify import Verification, verify
from colibri.engine.loading import tokenizer_of
from colibri.engine.model import model_path
from colibri.models.registry import model_config
from colibri.text.tokenizer import Tokenizer
from colibri.weights.checkpoint import Checkpoint, open_checkpoint

_TEXTS = (
    "Hello world, it's 12:34!\n\tdef f(x): return x**2  # naïve\n",
    "Größe, école, Привет мир, 你好世界, こんにちは, 안녕하세요, مرحبا",
    "emoji 😀👩‍🚀 and symbols ∑∫√ €100",
)


@click.command("verify")
@model_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of lines.")
def command(model: Path | None, as_json: bool) -> int:
    """Check a model file: header, offsets, shapes, blocks, checksums, tokenizer. Exit status 1 when damaged."""
    checkpoint = open_checkpoint(model_path(model))
    model_config(checkpoint)  # raises what the metadata lacks
    tokenizer = tokenizer_of(checkpoint)
    faults = [] if tokenizer is None else _tokenizer_faults(checkpoint, tokenizer)
    doubts = ["the file has no tokenizer"] if tokenizer is None else tokenizer.notes
    result = _read(checkpoint)
    if as_json:
        print_json({
            "path": str(checkpoint.path), "tensors_and_experts": result.parts, "bytes": result.nbytes,
            "checksums": result.checked, "damages": [damage._asdict() for damage in result.damages],
            "tokenizer": faults, "doubts": doubts,
        })  # fmt: skip
    else:
        _tell(checkpoint, result, faults, doubts)
    return 1 if result.damages or faults else 0


def _read(checkpoint: Checkpoint) -> Verification:
    columns = (
        TextColumn("reading"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        return verify(checkpoint, show)


def _tokenizer_faults(checkpoint: Checkpoint, tokenizer: Tokenizer) -> list[str]:
    """What does not come back from the tokenizer as it went in, or has no row in the embedding."""
    rows = checkpoint.tensors["token_embd.weight"].shape[0]
    faults = []
    if tokenizer.vocab_size > rows:
        faults.append(f"the tokenizer has {tokenizer.vocab_size} tokens, the embedding {rows} rows")
    for text in _TEXTS:
        back = tokenizer.decode(tokenizer.encode(text, add_special=False))
        if back.removeprefix(" ") != text:
            faults.append(f"{text!r} comes back from the tokenizer as {back!r}")
    return faults


def _tell(checkpoint: Checkpoint, result: Verification, faults: Sequence[str], doubts: Sequence[str]) -> None:
    for damage in result.damages:
        click.echo(f"damaged: {damage.file}: {damage.part}: {damage.problem}")
    for fault in faults:
        click.echo(f"tokenizer: {fault}")
    for doubt in doubts:
        click.echo(f"doubtful: {doubt}")
    checked = f"{result.checked} checksums" if result.checked else "no checksums in the file, blocks only"
    verdict = f"{len(result.damages)} damaged" if result.damages else "no damage"
    read = f"{result.parts} tensors and experts, {size(result.nbytes)} read"
    click.echo(f"{checkpoint.path}: {read}, {checked}: {verdict}")
    if result.damages:
        click.echo("Fetch or convert the file again; convert --only-expert writes a single expert anew.")

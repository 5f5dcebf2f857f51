"""`colibri verify`: every header, shape, block and checksum of a model, and its tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from colibri.cli.epilog import epilog
from colibri.cli.options import model_option
from colibri.cli.output import print_json
from colibri.cli.progress import counting
from colibri.config import readable
from colibri.conversion.verify import Verification, verify, verify_gguf
from colibri.engine.loading import tokenizer_of
from colibri.engine.model import model_path
from colibri.models.registry import model_spec, open_checkpoint
from colibri.weights.checkpoint import Checkpoint
from colibri.weights.gguf import read_gguf
from colibri.weights.single_expert import find_single_expert

_TEXTS = (
    "Hello world, it's 12:34!\n\tdef f(x): return x**2  # naïve\n",
    "Größe, école, Привет мир, 你好世界, こんにちは, 안녕하세요, مرحبا",
    "emoji 😀👩‍🚀 and symbols ∑∫√ €100",
)


@click.command("verify", epilog=epilog("conversion.md", "colibri verify -m model.gguf"))
@model_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of lines.")
def command(model: Path | None, as_json: bool) -> int:
    """Check a model, or a file of one expert: header, shapes, blocks, checksums, tokenizer. Exit status 1: damaged."""
    path = model_path(model)
    expert = find_single_expert(path)
    progress, count = counting("reading")
    faults: list[str] = []
    doubts: list[str] = []
    if expert is not None:
        with progress:
            result = verify_gguf(read_gguf(path), count)
    else:
        checkpoint = open_checkpoint(path)
        model_spec(checkpoint)  # raises what the metadata lacks
        faults, doubts = _tokenizer_faults(checkpoint)
        with progress:
            result = verify(checkpoint, count)
    if as_json:
        print_json({
            "path": str(path), "tensors_and_experts": result.parts, "bytes": result.nbytes,
            "checksums": result.checked, "header_checksum": result.header,
            "damages": [damage._asdict() for damage in result.damages], "tokenizer": faults, "doubts": doubts,
        })  # fmt: skip
    else:
        _tell(path, result, faults, doubts)
    return 1 if result.damages or faults else 0


def _tokenizer_faults(checkpoint: Checkpoint) -> tuple[list[str], list[str]]:
    """What does not come back from the tokenizer as it went in, or has no row in the embedding; and doubts."""
    tokenizer = tokenizer_of(checkpoint)
    if tokenizer is None:
        return [], ["the file has no tokenizer"]
    rows = checkpoint.tensors["token_embd.weight"].shape[0]
    faults = []
    if tokenizer.vocab_size > rows:
        faults.append(f"the tokenizer has {tokenizer.vocab_size} tokens, the embedding {rows} rows")
    for text in _TEXTS:
        back = tokenizer.decode(tokenizer.encode(text, add_special=False))
        if back.removeprefix(" ") not in (text, tokenizer.normalized(text)):
            faults.append(f"{text!r} comes back from the tokenizer as {back!r}")
    return faults, list(tokenizer.notes)


def _tell(path: Path, result: Verification, faults: Sequence[str], doubts: Sequence[str]) -> None:
    for damage in result.damages:
        click.echo(f"damaged: {damage.file}: {damage.part}: {damage.problem}")
    for fault in faults:
        click.echo(f"tokenizer: {fault}")
    for doubt in doubts:
        click.echo(f"doubtful: {doubt}")
    checked = f"{result.checked} checksums" if result.checked else "no checksums in the file, blocks only"
    checked += " and the metadata's" if result.header else ", none of the metadata" if result.checked else ""
    verdict = f"{len(result.damages)} damaged" if result.damages else "no damage"
    read = f"{result.parts} tensors and experts, {readable(result.nbytes)} read"
    click.echo(f"{path}: {read}, {checked}: {verdict}")
    if result.damages:
        click.echo("Fetch or convert the file again; convert --only-expert writes a single expert anew.")

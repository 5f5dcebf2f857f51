"""`colibri convert`: any checkpoint into one GGUF file that this engine and llama.cpp load."""

from __future__ import annotations

from pathlib import Path

import click

from colibri.cli import EXIT_INTERRUPTED
from colibri.cli.epilog import epilog
from colibri.cli.options import FilePath, Size
from colibri.cli.output import note
from colibri.cli.progress import counting
from colibri.config import readable
from colibri.conversion.convert import Options, Report, convert
from colibri.conversion.imatrix import FEW_TOKENS, ImportanceMatrix, read_imatrix
from colibri.conversion.mixes import MIXES
from colibri.conversion.source import open_source
from colibri.conversion.tokenizer_export import tokenizer_metadata
from colibri.errors import ArgumentError
from colibri.text.gguf_tokenizer import MODEL, PRE
from colibri.text.pretokenizers import PRE_TOKENIZERS
from colibri.weights.checkpoint import Checkpoint

EPILOG = epilog(
    "conversion.md",
    "colibri convert OLMoE-1B-7B/ olmoe.gguf",
    "colibri convert OLMoE-1B-7B/ olmoe.gguf --quantize q4_k_m --imatrix imatrix.gguf",
    "colibri convert model.gguf expert.gguf --only-expert 3",
)


@click.command("convert", epilog=EPILOG)
@click.argument("source", type=FilePath())
@click.argument("destination", type=FilePath())
@click.option("-q", "--quantize", type=click.Choice(list(MIXES)), default="q4_k_m", show_default=True,
              help="Block format of the matrices; the _m mixes give more bits where they matter.")
@click.option("--imatrix", type=FilePath(), help="llama.cpp's importance file, to weigh the errors by.")
@click.option("--only-expert", type=click.IntRange(0), metavar="E",
              help="Write one expert's matrices only, to replace it in a running model.")
@click.option("--split", type=Size(), help="Begin another file whenever one would exceed this, as 40G.")
@click.option("--name", help="general.name of the model. Default: the source's.")
@click.option("--pre-tokenizer", type=click.Choice(list(PRE_TOKENIZERS)), metavar="NAME",
              help="How the tokenizer splits words, where that cannot be told from its files.")
@click.option("--threads", type=click.IntRange(1), help="Default: the CPUs given to this process.")
@click.option("--force", is_flag=True, help="Replace DESTINATION where it exists.")
def command(
    source: Path, destination: Path, quantize: str, imatrix: Path | None, only_expert: int | None, split: int | None,
    name: str | None, pre_tokenizer: str | None, threads: int | None, force: bool,
) -> int:  # fmt: skip
    """Convert SOURCE (a directory of Hugging Face or DeepSpeed, or a GGUF file) to the GGUF file DESTINATION.

    An interrupted conversion goes on where it was when the same command is given again.
    """
    checkpoint = open_source(source)
    tokenizer = {} if only_expert is not None else _tokenizer(checkpoint, pre_tokenizer)
    if pre_tokenizer not in (None, tokenizer.get(PRE)):
        raise ArgumentError(f"{source}: --pre-tokenizer is for byte-level tokenizers, and none of them is written")
    inputs = () if imatrix is None else (imatrix,)
    options = Options(quantize, tokenizer, _importance(imatrix), only_expert, split, threads, name, force, inputs)
    progress, count = counting(quantize)
    try:
        with progress:
            report = convert(checkpoint, destination, options, count)
    except KeyboardInterrupt:
        note("interrupted; the same command goes on with what is written")
        return EXIT_INTERRUPTED
    for said in report.notes:
        note(said)
    click.echo(_summary(report), err=True)
    return 0


def _tokenizer(checkpoint: Checkpoint, pre: str | None) -> dict[str, object]:
    """The tokenizer of a directory; a GGUF file's is copied with its other metadata."""
    if checkpoint.format == "gguf":
        copied = {key: value for key, value in checkpoint.metadata.items() if key.startswith("tokenizer.")}
        return {} if pre is None or copied.get(MODEL) != "gpt2" else {**copied, PRE: pre}
    if checkpoint.format == "deepspeed" and not (checkpoint.path / "tokenizer.json").exists():
        note(f"{checkpoint.path}: has no tokenizer.json; put the trainer's there, or the output knows ids only")
        return {}
    vocab_size = checkpoint.metadata.integer(checkpoint.key("vocab_size"))
    return tokenizer_metadata(checkpoint.path, checkpoint.family.pre_tokenizers, vocab_size, note, pre=pre)


def _importance(path: Path | None) -> ImportanceMatrix | None:
    if path is None:
        return None
    importance = read_imatrix(path)
    rare = importance.rarely_seen()
    if rare:
        more = f" and {len(rare) - 3} more" if len(rare) > 3 else ""
        note(f"{path}: saw fewer than {FEW_TOKENS} tokens in {', '.join(rare[:3])}{more}; their weights are a guess")
    return importance


def _summary(report: Report) -> str:
    types = ", ".join(f"{name} {readable(nbytes)}" for name, nbytes in report.by_type.items())
    resumed = f"; {report.resumed} tensors were there from an interrupted conversion" if report.resumed else ""
    files = report.files[0].name if len(report.files) == 1 else f"{len(report.files)} files, {report.files[0].name} ..."
    return f"{files}: {readable(report.nbytes)} ({types}), read back and verified{resumed}"

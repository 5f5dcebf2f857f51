"""`colibri calibrate`: an importance file from a text, for `colibri convert --imatrix`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from colibri.cli.epilog import epilog
from colibri.cli.options import FilePath, load_options
from colibri.cli.output import note
from colibri.cli.progress import Progress
from colibri.cli.text_file import read_text_file
from colibri.config import LoadOptions
from colibri.conversion.calibration import WINDOW, calibrate, write_imatrix
from colibri.conversion.imatrix import FEW_TOKENS, read_imatrix
from colibri.conversion.output import check_output
from colibri.engine.loading import open_model
from colibri.engine.model import model_path
from colibri.models.registry import open_checkpoint

EPILOG = epilog(
    "conversion.md",
    "colibri calibrate -m model.gguf --file text.txt --output imatrix.gguf",
)


@click.command("calibrate", epilog=EPILOG)
@load_options
@click.option("-f", "--file", type=FilePath(), required=True, help="The text, UTF-8.")
@click.option("-o", "--output", type=FilePath(), required=True, help="The importance file to write.")
@click.option("--window", type=click.IntRange(1), default=WINDOW, show_default=True, help="Tokens of a window.")
@click.option("--windows", type=click.IntRange(1), help="Stop after so many windows. Default: the whole text.")
@click.option("--force", is_flag=True, help="Replace the importance file where it exists.")
def command(
    options: LoadOptions, file: Path, output: Path, window: int, windows: int | None, force: bool,
) -> None:  # fmt: skip
    """Measure which columns of every matrix matter on a text, expert by expert."""
    text = read_text_file(file)
    check_output(open_checkpoint(model_path(options.path)), output, replace=force, inputs=(file,))
    state, count = ["loading"], 0

    def show(done: int, all_windows: int) -> None:
        nonlocal count
        state[0], count = f"window {done} of {all_windows}", done

    with (
        Progress(lambda: state[0]),
        open_model(replace(options, context=options.context or window)) as loaded,
    ):
        calibration = calibrate(loaded, loaded.tokenizer.encode(text), window, windows, show)
    write_imatrix(output, calibration, file.name, count, window)
    rare = read_imatrix(output).rarely_seen()
    experts = sum(len(counts) for name, counts in calibration.counts.items() if "_exps." in name)
    click.echo(f"{output}: {len(calibration.sums)} matrices, {count} windows of {window} tokens", err=True)
    if rare:
        shown = ", ".join(rare[:3]) + (" ..." if len(rare) > 3 else "")
        share = f"{len(rare)} of {experts} expert matrices"
        note(f"{share} saw fewer than {FEW_TOKENS} tokens: {shown}")

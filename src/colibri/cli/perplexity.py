"""`colibri perplexity`: how well a model predicts a text, in llama.cpp's windows."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import click

from colibri.cli.epilog import epilog
from colibri.cli.options import FilePath, load_options
from colibri.cli.output import print_json
from colibri.cli.progress import Progress
from colibri.cli.text_file import read_text_file
from colibri.config import LoadOptions
from colibri.engine.loading import open_model
from colibri.observe.perplexity import WINDOW, perplexity

EPILOG = epilog(
    "conversion.md",
    "colibri perplexity -m model.gguf --file text.txt --windows 16",
)


@click.command("perplexity", epilog=EPILOG)
@load_options
@click.option("-f", "--file", type=FilePath(), required=True, help="The text, UTF-8.")
@click.option("--window", type=click.IntRange(4), default=WINDOW, show_default=True, help="Tokens of a window.")
@click.option("--windows", type=click.IntRange(1), help="Stop after so many windows. Default: the whole text.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a line.")
def command(
    options: LoadOptions, file: Path, window: int, windows: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Measure the perplexity of a text; the second half of every window of tokens counts."""
    text = read_text_file(file)
    state = ["loading"]
    with Progress(lambda: state[0]):
        loaded = open_model(replace(options, context=options.context or window))
        with loaded:
            ids = loaded.tokenizer.encode(text, parse_special=False)
            start = time.monotonic()

            def show(done: int, count: int, value: float) -> None:
                left = (time.monotonic() - start) / done * (count - done)
                state[0] = f"window {done} of {count}, perplexity {value:.4f}, {left:.0f} s left"

            result = perplexity(loaded, ids, window, windows, show)
    if as_json:
        print_json({
            "model": str(loaded.checkpoint.path), "file": str(file), "perplexity": result.value,
            "error": result.error, "tokens": result.tokens, "windows": result.windows, "window": window,
        })  # fmt: skip
    else:
        counted = f"{result.tokens} tokens, {result.windows} windows"
        click.echo(f"perplexity {result.value:.4f} +- {result.error:.4f} ({counted})")

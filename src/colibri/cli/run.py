"""`colibri run`: text that continues a prompt, as it is made; then how long it took."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from colibri.cli import EXIT_INTERRUPTED
from colibri.cli.epilog import epilog
from colibri.cli.options import FilePath, TokenIds, load_options, sampling_options
from colibri.cli.output import aside, note, print_json, rate
from colibri.cli.progress import Progress, prefilling
from colibri.cli.standard_input import read_text
from colibri.config import LoadOptions, SamplingParams, readable
from colibri.engine.generation import Generation
from colibri.engine.loading import open_model
from colibri.engine.model import Model
from colibri.observe.timeline import traced
from colibri.observe.trace import TokenTrace

EPILOG = epilog(
    "terminal.md",
    'colibri run --prompt "Once upon a time" --max-tokens 100',
    'colibri run -m model.gguf --prompt "Once upon a time" --ram 2.5G',
    "git diff | colibri run -m ORG/NAME:Q4_K_M --prompt - --json",
)


@click.command("run", epilog=EPILOG)
@click.option("-p", "--prompt", help="Text to continue; - reads it from standard input.")
@click.option("--prompt-ids", type=TokenIds(), help="Token ids to continue, as 1,2,3, instead of a text.")
@load_options
@sampling_options
@click.option("-v", "--verbose", is_flag=True, help="Log the experts and the milliseconds of every token to stderr.")
@click.option("--trace", "timeline", type=FilePath(),
              help="Write when each step, layer and read took place to this file, for Perfetto or Chrome.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object at the end instead of text and timings.")
def command(
    prompt: str | None, prompt_ids: list[int] | None, options: LoadOptions, verbose: bool, timeline: Path | None,
    as_json: bool, **sampling: Any,
) -> int:  # fmt: skip
    """Write text that continues a prompt."""
    text = _prompt(prompt, prompt_ids)
    if verbose and timeline is not None:
        raise click.UsageError("--verbose and --trace both watch the layers; give one of them")
    params = SamplingParams(**sampling)
    with Progress(lambda: "loading"):
        loaded = open_model(options)
    with loaded, traced(loaded, timeline):
        trace = TokenTrace(loaded, sys.stderr) if verbose else None
        if verbose:
            click.echo(loaded.plan.describe(), err=True)
        generation = loaded.generate(text, params)
        empty = ("the prompt is empty: the text begins after the begin token alone",) if text == "" else ()
        for said in (*empty, *loaded.notes, *generation.notes):
            note(said)
        complete = _stream(generation, quiet=as_json, trace=trace)
        if as_json:
            print_json(report(loaded, generation))
        else:
            aside(_timings(loaded, generation))
    return 0 if complete else EXIT_INTERRUPTED


def _prompt(prompt: str | None, prompt_ids: list[int] | None) -> str | list[int]:
    if (prompt is None) == (prompt_ids is None):
        raise click.UsageError('give one of --prompt "TEXT", --prompt - (standard input) and --prompt-ids 1,2,3')
    if prompt_ids is not None:
        return prompt_ids
    assert prompt is not None
    return read_text(prompt)


def _stream(generation: Generation, *, quiet: bool, trace: TokenTrace | None) -> bool:
    """Pass the text on as it is made; False when Ctrl-C ended it."""
    progress = prefilling(generation)
    try:
        with progress:
            for token in generation:
                progress.end()
                if not quiet:
                    click.echo(token.text, nl=False)
                if trace is not None:
                    trace.token(token)
    except KeyboardInterrupt:
        generation.close()
        return False
    finally:
        if not quiet:
            click.echo()
    return True


def report(model: Model, generation: Generation) -> dict[str, Any]:
    """The object of --json."""
    return {
        "model": model.describe(),
        "prompt_tokens": generation.prompt_token_ids,
        "tokens": generation.token_ids,
        "text": generation.text,
        "finish_reason": generation.finish_reason,
        "timings": generation.timings.as_dict(),
        "memory": model.memory(),
        "routing": model.routing_summary(),
    }


def _timings(model: Model, generation: Generation) -> str:
    times, memory, routing = generation.timings, model.memory(), model.routing_summary()
    first = "-" if times.first_token_s is None else f"{times.first_token_s:.2f} s"
    return (
        f"\nload {times.load_s:.2f} s, first token after {first}, "
        f"prefill {rate(times.prefill_tokens_per_s)} ({len(generation.prompt_token_ids)} tokens), "
        f"decode {rate(times.decode_tokens_per_s)} ({len(generation.token_ids)} tokens)\n"
        f"experts touched {routing['experts_touched']} of {routing['experts_total']} "
        f"({readable(memory['expert_bytes_resident'])} of experts in memory), "
        f"memory {readable(memory['peak_rss_bytes'])} at most"
    )

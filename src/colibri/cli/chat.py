"""`colibri chat`: a conversation in the terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import click

from colibri.cli import EXIT_ERROR
from colibri.cli.epilog import epilog
from colibri.cli.options import load_options
from colibri.cli.output import aside, note, rate
from colibri.cli.progress import Progress, prefilling
from colibri.cli.prompt import lines
from colibri.cli.standard_input import valid_text
from colibri.config import LoadOptions, SamplingParams, readable
from colibri.engine.generation import Generation
from colibri.engine.loading import open_model
from colibri.engine.model import Model
from colibri.errors import ArgumentError, ColibriError, ContextFullError

HELP = """\
/new              forget the conversation
/system TEXT      set what the model is told first, and begin anew; without TEXT: nothing
/retry            answer the last message again
/undo             take the last message and its answer back
/edit TEXT        put TEXT in the place of the last message, and answer it
/set NAME VALUE   change temperature, top_p, top_k, min_p, repetition_penalty, max_tokens or seed; alone: show them
/routing          show after each answer which experts it went to, or no more
/quit             end, as Ctrl-D does
A line that ends with \\ goes on in the next, as after Alt-Enter; a paste of several lines is one message. Tab completes
commands, the arrow keys go through earlier messages. Ctrl-C stops an answer."""
SETTINGS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "seed")
COMMANDS = ["/help", *(line.split()[0] for line in HELP.splitlines() if line.startswith("/"))]
SEQUENCES = 2  # room for what is kept of the conversation beside the answer under way


EPILOG = epilog(
    "terminal.md",
    'colibri chat -m model.gguf --system "Answer briefly."',
    "colibri chat -m ORG/NAME --ram 12G --context 8192",
)


@click.command("chat", epilog=EPILOG)
@load_options
@click.option("--system", help="What the model is told first.")
@click.option("--temperature", type=click.FloatRange(0), default=0.7, show_default=True,
              help="0 takes the likeliest token.")  # fmt: skip
@click.option("--max-tokens", type=click.IntRange(1), help="Of an answer. Default: the room left in the context.")
@click.option("--seed", type=click.IntRange(0), help="The same seed gives the same answers.")
@click.option("--routing", is_flag=True, help="Show which experts each answer went to.")
def command(
    options: LoadOptions, system: str | None, temperature: float, max_tokens: int | None, seed: int | None,
    routing: bool,
) -> int:  # fmt: skip
    """Talk with a model; /help lists what else can be typed."""
    params = SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=seed)
    told = None if system is None else valid_text(system)
    with Progress(lambda: "loading"):
        loaded = open_model(replace(options, sequences=SEQUENCES, share_prefixes=True))
    with loaded:
        for said in loaded.notes:
            note(said)
        aside(f"{loaded.spec.name}, {loaded.context} tokens of context. /help lists the commands.")
        conversation = Conversation(loaded, params, told, routing=routing)
        with contextlib.suppress(EOFError):
            for line in lines({name: SETTINGS if name == "/set" else () for name in COMMANDS}):
                conversation.take(valid_text(line))
    return EXIT_ERROR if conversation.failed else 0


class Conversation:
    """Messages so far, and what the commands change."""

    def __init__(self, model: Model, params: SamplingParams, system: str | None, *, routing: bool) -> None:
        self._model = model
        self._params = params
        self._routing = routing
        self._system = system
        self.failed = False  # whether any message could not be answered
        self.messages: list[dict[str, str]] = []
        self._new()

    def take(self, line: str) -> None:
        """A message, or a command. Raises EOFError for /quit."""
        if not line.startswith("/"):
            self.messages.append({"role": "user", "content": line})
            self._answer()
            return
        name, _, rest = line[1:].partition(" ")
        commands: dict[str, Callable[[str], None]] = {
            "new": self._new, "system": self._tell, "retry": self._retry, "undo": self._undo, "edit": self._edit,
            "set": self._set, "routing": self._show_routing, "help": lambda _: click.echo(HELP), "quit": self._quit,
        }  # fmt: skip
        if name not in commands:
            click.echo(f"there is no /{name}; /help lists the commands", err=True)
            return
        try:
            commands[name](rest.strip())
        except ArgumentError as error:
            click.echo(str(error), err=True)

    # ---- commands ------------------------------------------------------------------------------------------------

    def _new(self, _: str = "") -> None:
        self.messages = [{"role": "system", "content": self._system}] if self._system else []

    def _tell(self, text: str) -> None:
        self._system = text or None
        self._new()

    def _retry(self, _: str) -> None:
        if self._back_to_question() is None:
            raise ArgumentError("there is nothing to answer again")
        self._answer()

    def _undo(self, _: str) -> None:
        if self._back_to_question() is None:
            raise ArgumentError("there is nothing to take back")
        self.messages.pop()

    def _edit(self, text: str) -> None:
        question = self._back_to_question()
        if question is None or not text:
            raise ArgumentError("give the new text of the last message: /edit TEXT")
        question["content"] = text
        self._answer()

    def _set(self, text: str) -> None:
        name, _, value = text.partition(" ")
        if not name:
            click.echo("  ".join(f"{each} {getattr(self._params, each)}" for each in SETTINGS))
            return
        if name not in SETTINGS:
            raise ArgumentError(f"{name}: unknown setting, expected one of {', '.join(SETTINGS)}")
        kinds = {field.name: str(field.type) for field in fields(SamplingParams)}
        try:
            parsed: Any = None if value == "none" else float(value) if "float" in kinds[name] else int(value)
        except ValueError:
            raise ArgumentError(f"{name}: found {value!r}, expected a number") from None
        self._params = replace(self._params, **{name: parsed})

    def _show_routing(self, _: str) -> None:
        self._routing = not self._routing
        click.echo("routing is shown after each answer" if self._routing else "routing is not shown any more")

    def _quit(self, _: str) -> None:
        raise EOFError

    def _back_to_question(self) -> dict[str, str] | None:
        """Drop what came after the last message of the user, which is returned."""
        if not any(message["role"] == "user" for message in self.messages):
            return None
        while self.messages[-1]["role"] != "user":
            self.messages.pop()
        return self.messages[-1]

    # ---- answers -------------------------------------------------------------------------------------------------

    def _answer(self) -> None:
        before = self._model.routing.counts if self._routing else None
        try:
            generation = self._model.chat(self.messages, self._params)
            self._stream(generation)
        except ColibriError as error:
            self.messages.pop()
            self.failed = True
            hint = " (/new begins again)" if isinstance(error, ContextFullError) else ""
            click.echo(f"{error}{hint}", err=True)
            return
        self.messages.append({"role": "assistant", "content": generation.text})
        if before is not None:
            aside(self._routing_line(generation, self._model.routing.counts - before))

    def _stream(self, generation: Generation) -> None:
        """Pass the text on as it is made; Ctrl-C ends it."""
        progress = prefilling(generation)
        try:
            with generation, progress:
                for token in generation:
                    progress.end()
                    click.echo(token.text, nl=False)
        except KeyboardInterrupt:
            generation.close()
        click.echo()
        if generation.finish_reason == "length":
            aside("(cut: max_tokens or the context is full)")

    def _routing_line(self, generation: Generation, counts: Any) -> str:
        memory, times = self._model.memory(), generation.timings
        layers = counts[counts.sum(axis=1) > 0]
        favourites = " ".join(str(int(layer.argmax())) for layer in layers)
        reused = f"{generation.cached} of {len(generation.prompt_token_ids)} prompt tokens reused"
        return (
            f"[{len(generation.token_ids)} tokens, {rate(times.decode_tokens_per_s)}; {reused}; "
            f"{int((counts > 0).sum())} experts in {len(layers)} "
            f"layers, most used: {favourites}; {readable(memory['expert_bytes_resident'])} of experts in memory]"
        )

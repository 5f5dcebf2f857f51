"""Guessed tokens against none, in turn: `python benchmarks/speculation.py [MODEL.gguf] [--ram 2.5G] [--rounds 6]`

Two processes hold the model, one with `speculate="auto"`, and get the same work one after the other; the tokens must be
the same. For each kind of work: the ratio of decoded tokens/s (median, min and max of the rounds), guesses made and
right. Without a model the embedded one, whose held-out texts are the prompts; a model without a tokenizer gets ids.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import colibri
from colibri.cli.options import Size
from colibri.engine.model import Model
from colibri.engine.sequence import Sequence
from colibri.server.constraints import Grammars, json_grammar

HELD_OUT = Path(colibri.__file__).parent / "demo" / "heldout"
PROMPT, NEW = 300, 200
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 16},
        "kind": {"enum": ["first", "second", "third"]},
        "counts": {"type": "array", "items": {"enum": [1, 20, 300]}, "minItems": 8, "maxItems": 8},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string", "maxLength": 16}, "number": {"type": "integer"}},
            "required": ["street", "number"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "kind", "counts", "address"],
    "additionalProperties": False,
}  # fmt: skip
Work = Callable[[Model], list[Sequence]]
GREEDY = {"temperature": 0.0}
SAMPLED = {"temperature": 0.8, "seed": 1}


def prompt_of(model: Model, name: str) -> list[int]:
    """Ids of a held-out text; of a model without a tokenizer, ids of which some repeat."""
    if model.has_tokenizer and model.spec.name.startswith("colibri"):
        return model.tokenizer.encode((HELD_OUT / f"{name}.txt").read_text()[:4000])[:PROMPT]
    drawn = random.Random(name)
    phrases = [[drawn.randrange(300, model.spec.vocab_size) for _ in range(8)] for _ in range(12)]
    return [token for _ in range(PROMPT // 8) for token in drawn.choice(phrases)]


def text(name: str, settings: dict[str, Any], *, repeat: bool = False) -> Work:
    """Go on from a text; `repeat`: from one that says its beginning again and again."""

    def work(model: Model) -> list[Sequence]:
        ids = prompt_of(model, name)
        return [model.sequence(ids[:40] * 7 if repeat else ids, params(settings))]

    return work


def noise(model: Model) -> list[Sequence]:
    """Random ids, sampled."""
    drawn = random.Random(1)
    return [model.sequence([drawn.randrange(300, model.spec.vocab_size) for _ in range(PROMPT)], params(SAMPLED))]


def schema(model: Model) -> list[Sequence]:
    """JSON that a schema rules."""
    grammars = Grammars(model)
    ids = prompt_of(model, "chat")
    return [model.sequence(ids, params(SAMPLED, False), constraint=grammars.constraint(json_grammar(SCHEMA)))]


def eight(model: Model) -> list[Sequence]:
    """Eight texts at once."""
    names = sorted(path.stem for path in HELD_OUT.glob("*.txt"))
    return [model.sequence(prompt_of(model, name), params(SAMPLED)) for name in names][:8]


def params(settings: dict[str, Any], endless: bool = True) -> colibri.SamplingParams:
    return colibri.SamplingParams(max_tokens=NEW, ignore_eos=endless, **settings)


KINDS: dict[str, Work] = {
    "random ids, sampled": noise,
    "code, greedy": text("python_code", GREEDY),
    "code, sampled": text("python_code", SAMPLED),
    "prose, greedy": text("shakespeare", GREEDY),
    "prose, sampled": text("shakespeare", SAMPLED),
    "a text that repeats, greedy": text("bible", GREEDY, repeat=True),
    "a text that repeats, sampled": text("bible", SAMPLED, repeat=True),
    "JSON of a schema": schema,
    "eight at once, sampled": eight,
}


def worker(path: str | None, ram: int | None, speculate: Any) -> None:
    """Do what the lines of stdin name; a line of JSON for each."""
    with colibri.load(path, ram=ram, sequences=8, context=1024, speculate=speculate) as model:
        for line in sys.stdin:
            sequences = KINDS[line.strip()](model)
            guessed, accepted = model.engine.guessed, model.engine.accepted
            for sequence in sequences:
                model.engine.add(sequence)
            while any(not sequence.first_token_at for sequence in sequences):
                model.engine.step()
            started, done = time.perf_counter(), sum(sequence.sampled for sequence in sequences)
            while any(sequence.finish_reason is None for sequence in sequences):
                model.engine.step()
            count = sum(sequence.sampled for sequence in sequences) - done
            found = {
                "rate": count / (time.perf_counter() - started), "ids": [sequence.generated for sequence in sequences],
                "guessed": model.engine.guessed - guessed, "accepted": model.engine.accepted - accepted,
                "errors": [str(sequence.error) for sequence in sequences if sequence.error is not None],
            }  # fmt: skip
            print(json.dumps(found), flush=True)


def ask(process: subprocess.Popen[str], kind: str) -> dict[str, Any]:
    """One piece of work of a worker."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{kind}\n")
    process.stdin.flush()
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    assert not answer["errors"], answer["errors"]
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--ram", help="of each process, as 2.5G")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--kind", action="append", choices=KINDS, help="only these")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.model, None if options.ram is None else Size().convert(options.ram, None, None), options.worker)
        return
    command = [sys.executable, __file__, *([options.model] if options.model else [])]
    command += ["--ram", options.ram] if options.ram else []
    both = {
        speculate: subprocess.Popen(
            [*command, "--worker", speculate], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ
        )
        for speculate in ("off", "auto")
    }
    for kind in options.kind or KINDS:
        ratios, rates, made, right = [], [], 0, 0
        for number in range(options.rounds + 1):
            order = ("off", "auto") if number % 2 else ("auto", "off")
            found = {speculate: ask(both[speculate], kind) for speculate in order}
            assert found["off"]["ids"] == found["auto"]["ids"], kind
            if number:  # the first warms up
                ratios.append(found["auto"]["rate"] / found["off"]["rate"])
                rates.append(found["off"]["rate"])
                made, right = made + found["auto"]["guessed"], right + found["auto"]["accepted"]
        print(f"{kind:30} {statistics.median(rates):8.1f} tokens/s without, ratio {statistics.median(ratios):.3f} "
              f"({min(ratios):.3f} to {max(ratios):.3f}), {made} guessed, {right} right", flush=True)  # fmt: skip
    for process in both.values():
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


if __name__ == "__main__":
    main()

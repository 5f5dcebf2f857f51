"""Colibri beside other engines on the same GGUF file: processes in turn, A B C A B C, and ratios of what they measure.

    python benchmarks/peers.py MODEL.gguf --peer llama.cpp=/tmp/llama/bin/python --peer ik_llama.cpp=/tmp/ik/bin/python

Each peer lives in a virtual environment of its own, so that its libraries meet none of ours; docs/benchmarks.md says
how to make them. Without a variant, as in llama.cpp:mapped=PYTHON, all of the engine's are measured; peer_llama.py and
peer_transformers.py have them. transformers does not read the file, but makes a model of that shape in BF16. A round is
one process of Colibri (`colibri bench --json`) and one of each variant. What a peer was compiled for is printed;
COLIBRI_ISA=avx2 makes ours use no more. A ratio above 1 means that Colibri is faster, in tokens/s and in milliseconds;
min and max are those of the rounds. A row for each goes to results/<processor>.csv.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import peer_transformers
from peer_llama import ENGINES

from colibri import ops
from colibri.engine.statistics import describe_model
from colibri.models.registry import model_spec, open_checkpoint
from colibri.observe.limits import cpu_name
from colibri.observe.percentiles import latency
from colibri.spec import AttentionSpec, MoeSpec

HERE = Path(__file__).resolve().parent
COLUMNS = (
    "date", "commit", "script", "model", "quantisation", "isa", "threads", "metric", "ours", "peer", "peer_version",
    "peer_isa", "peer_value", "ratio_median", "ratio_min", "ratio_max", "rounds", "note",
)  # fmt: skip
VARIANTS = {name: tuple(engine.variants) for name, engine in ENGINES.items()} | {
    "transformers": peer_transformers.VARIANTS
}
MODEL_TYPES = {"olmoe": "olmoe", "llama": "mixtral", "qwen3moe": "qwen3_moe"}  # GGUF's name: that of transformers
REST = 10  # seconds before a process: the host of a virtual machine works on what the last gave back, and stops it
Run = dict[str, Any]  # one process: "name", "version", "isa", and "metrics": tokens/s, or ms where the name says so


@dataclass(frozen=True)
class Variant:
    """A way to run an engine, and the Python that has it."""

    engine: str
    name: str
    python: str

    def command(self, model: Path, threads: int) -> list[str]:
        """One process of it, to which more options may be added."""
        script, what = "peer_llama.py", str(model)
        if self.engine == "transformers":
            script, what = "peer_transformers.py", json.dumps(transformers_config(model))
        return [self.python, str(HERE / script), self.engine, self.name, what, "--threads", str(threads)]

    def __str__(self) -> str:
        return f"{self.engine} {self.name}"


def transformers_config(path: Path) -> dict[str, Any]:
    """The shape of a GGUF file in the words of transformers."""
    spec = model_spec(open_checkpoint(path))
    mixer, ffn = spec.layers[0].mixer, spec.layers[0].ffn
    if not isinstance(mixer, AttentionSpec) or not isinstance(ffn, MoeSpec):
        raise SystemExit(f"{path}: transformers is compared on models whose layers are attention and experts")
    return {
        "model_type": MODEL_TYPES[spec.architecture], "num_hidden_layers": len(spec.layers),
        "hidden_size": spec.hidden_size, "num_attention_heads": mixer.heads, "num_key_value_heads": mixer.kv_heads,
        "head_dim": mixer.head_dim, "vocab_size": spec.vocab_size, "max_position_embeddings": spec.context_length,
        "num_experts": spec.experts, "num_experts_per_tok": spec.experts_per_token,
        "norm_topk_prob": spec.routing.renormalize, "intermediate_size": ffn.expert.width,
        "moe_intermediate_size": ffn.expert.width,
    }  # fmt: skip


def variants(text: str) -> list[Variant]:
    """Those that ENGINE=PYTHON or ENGINE:VARIANT=PYTHON stands for."""
    name, _, python = text.partition("=")
    engine, _, variant = name.partition(":")
    if engine not in VARIANTS or variant not in ("", *VARIANTS[engine]):
        known = ", ".join(f"{engine}:{variant}" for engine, names in VARIANTS.items() for variant in names)
        raise argparse.ArgumentTypeError(f"{name} is not known; there are {known}")
    if not Path(python).is_file():
        raise argparse.ArgumentTypeError(f"{python or 'nothing'} after = is not a Python; see docs/benchmarks.md")
    return [Variant(engine, name, python) for name in VARIANTS[engine] if variant in ("", name)]


def run(command: list[str], prefix: list[str]) -> Any:
    """The JSON object on the last line that a command prints."""
    done = subprocess.run([*prefix, *command], capture_output=True, encoding="utf-8", errors="replace", check=False)
    if done.returncode or not done.stdout.strip():
        sys.exit(f"{shlex.join(command)} failed with status {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def shared(options: argparse.Namespace, separate: bool) -> list[str]:
    """What both kinds of process are told; Colibri takes each length of prompt with an option of its own."""
    lengths = [str(tokens) for tokens in options.prompt_tokens]
    prompts = [word for tokens in lengths for word in ("--prompt-tokens", tokens)]
    words = ["--repeat", str(options.repeat), "--new-tokens", str(options.new_tokens)]
    return words + (prompts if separate else ["--prompt-tokens", *lengths])


def metrics(prefill: dict[str, float], decode: float, milliseconds: dict[str, float], new: int) -> dict[str, float]:
    """The measurements of a process by name."""
    return (
        {f"prefill {tokens}": rate for tokens, rate in prefill.items()}
        | {f"decode {new}": decode}
        | {f"decode {new} {name} ms": milliseconds[name] for name in ("p50", "p99")}
    )


def ours(options: argparse.Namespace) -> Run:
    """One process of Colibri."""
    command = [sys.executable, "-m", "colibri.cli", "bench", "-m", str(options.model), "--json"]
    result = run([*command, "--threads", str(options.threads), *shared(options, separate=True)], options.prefix)
    prefill = {str(run["tokens"]): float(run["tokens_per_s"]["median"]) for run in result["prefill"]}
    decode = result["decode"][0]
    found = metrics(prefill, decode["tokens_per_s"]["median"], decode["latency_ms"], options.new_tokens)
    found["memory GB/s"] = result["machine"]["read_gb_s"]  # no peer has it: tells a slow minute from a slow engine
    return {"name": "colibri", "version": "", "isa": result["machine"]["isa"], "metrics": found}


def theirs(options: argparse.Namespace, variant: Variant) -> Run:
    """One process of a peer."""
    command = variant.command(options.model, options.threads)
    result = run([*command, *shared(options, separate=False)], options.prefix)
    prefill = {tokens: statistics.median(rates) for tokens, rates in result["prefill"].items()}
    milliseconds = latency(result["latency_ms"]).as_dict()
    found = metrics(prefill, statistics.median(result["decode"]), milliseconds, options.new_tokens)
    return {"name": str(variant), "version": result["version"], "isa": result["isa"], "metrics": found}


def measure(options: argparse.Namespace) -> Iterator[list[Run]]:
    """Rounds; in each, Colibri's process and then one of each variant."""
    processes: list[Callable[[], Run]] = [partial(ours, options)]
    processes += [partial(theirs, options, variant) for peer in options.peer for variant in peer]
    for number in range(options.rounds):
        found = []
        for process in processes:
            time.sleep(REST)
            found.append(process())
            figures = ", ".join(f"{name} {value:.4g}" for name, value in found[-1]["metrics"].items())
            print("round {}: {name} ({version} {isa}): {}".format(number + 1, figures, **found[-1]), flush=True)
        yield found


def described(script: str, path: Path) -> list[str]:
    """Date, commit, script, model and quantisation: how a row of the CSV begins."""
    checkpoint = open_checkpoint(path)
    model = describe_model(checkpoint, model_spec(checkpoint))
    git = ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return [datetime.date.today().isoformat(), commit, script, model["name"], model["quantization"]]


def results() -> Path:
    """The CSV of this processor."""
    slug = re.sub(r"[^a-z0-9]+", "-", cpu_name().lower().replace("(r)", "")).strip("-")
    return HERE / "results" / f"{slug}.csv"


def pairs(rounds: list[list[Run]]) -> dict[tuple[str, str, str, str], list[tuple[float, float]]]:
    """Ours and the peer's value in each round that has both, by peer, its version and instruction set, and metric."""
    found: dict[tuple[str, str, str, str], list[tuple[float, float]]] = {}
    for mine, *peers in rounds:
        for peer in peers:
            for metric in mine["metrics"].keys() & peer["metrics"].keys():
                key = (peer["name"], peer["version"], peer["isa"], metric)
                found.setdefault(key, []).append((mine["metrics"][metric], peer["metrics"][metric]))
    return found


def rows(options: argparse.Namespace, rounds: list[list[Run]]) -> Iterator[list[Any]]:
    """A row of the CSV for each peer and metric."""
    what = [*described("peers.py", options.model), rounds[-1][0]["isa"], options.threads]
    for (*peer, metric), values in sorted(pairs(rounds).items()):
        mine, other = (statistics.median(side) for side in zip(*values, strict=True))
        ratios = [b / a if metric.endswith(" ms") else a / b for a, b in values]
        figures = [f"{value:.4g}" for value in (mine, other, statistics.median(ratios), min(ratios), max(ratios))]
        yield [*what, metric, figures[0], *peer, *figures[1:], len(ratios), options.note]


def append(path: Path, table: list[list[Any]]) -> None:
    """Add rows to a CSV file, with the names of the columns when it is new."""
    new = not path.exists()
    path.parent.mkdir(exist_ok=True)
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(COLUMNS)
        writer.writerows(table)


def show(table: list[list[Any]]) -> None:
    """Print the rows of the CSV that were just measured."""
    for row in table:
        values = {name: str(value) for name, value in zip(COLUMNS, row, strict=True)}
        print(
            "{metric:18} {ours:>7}   {peer:22} {peer_value:>7}   ratio {ratio_median} "
            "({ratio_min} to {ratio_max})   {peer_version} {peer_isa}, {rounds} rounds".format(**values)
        )


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--peer", type=variants, action="append", required=True, metavar="ENGINE[:VARIANT]=PYTHON")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=2, help="measurements in each process; their median counts")
    parser.add_argument("--prompt-tokens", type=int, nargs="+", default=[512, 64])
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=ops.threads())
    parser.add_argument("--prefix", type=shlex.split, default=[], help="words before each command, as 'taskset -c 0,1'")
    parser.add_argument("--note", default="", help="for the CSV: what else the machine did")
    parser.add_argument("--runs", type=Path, help="keep every round here, and count those of earlier calls, too")
    parser.add_argument("--no-csv", action="store_true", help="print only")
    return parser.parse_args()


def main() -> None:
    """Measure, print, append."""
    options = arguments()
    rounds = [json.loads(line) for line in options.runs.open()] if options.runs and options.runs.exists() else []
    for found in measure(options):
        rounds.append(found)
        if options.runs is not None:
            with options.runs.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")
    table = list(rows(options, rounds))
    show(table)
    if not options.no_csv:
        append(results(), table)


if __name__ == "__main__":
    main()

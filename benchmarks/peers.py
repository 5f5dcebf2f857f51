"""Colibri beside llama.cpp on the same GGUF file: processes in turn, A B A B, and the ratios of what they measure.

    python benchmarks/peers.py MODEL.gguf --environment /tmp/llama --rounds 3

The environment is made if it is not there: a virtual environment with llama.cpp's build from the `xllamacpp` wheel,
so that its libraries meet none of ours. Wheels may be built for less than the processor has: what the peer uses is
printed, and COLIBRI_ISA=avx2 makes ours use the same. Every round is one process of Colibri (`colibri bench --json`)
and one of each variant of llama.cpp: "repacked", its default, which keeps a second copy of the weights, and "mapped".
A ratio above 1 means that Colibri is faster; min and max are those of the rounds. A row for each goes to
results/<processor>.csv.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import itertools
import json
import re
import shlex
import statistics
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from colibri import ops
from colibri.engine.statistics import describe_model
from colibri.models.registry import model_config
from colibri.observe.limits import cpu_name
from colibri.weights.checkpoint import open_checkpoint

HERE = Path(__file__).resolve().parent
WHEEL = "xllamacpp==2026.10.11549"
COLUMNS = (
    "date", "commit", "script", "model", "quantisation", "isa", "threads", "metric", "ours", "peer", "peer_value",
    "ratio_median", "ratio_min", "ratio_max", "rounds", "note",
)  # fmt: skip
Rates = dict[str, float]  # metric -> tokens a second


def environment(path: Path) -> Path:
    """The Python of a virtual environment that has llama.cpp; made when it is not there."""
    python = path / "bin" / "python"
    if not python.exists():
        venv.create(path, with_pip=True)
    if subprocess.run([python, "-c", "import xllamacpp"], capture_output=True, check=False).returncode:
        subprocess.run([python, "-m", "pip", "install", "--quiet", WHEEL], check=True)
    return python


def run(command: list[str], prefix: list[str]) -> Any:
    """The JSON object on the last line that a command prints."""
    done = subprocess.run([*prefix, *command], capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout.strip():
        sys.exit(f"{shlex.join(command)} failed with status {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def ours(options: argparse.Namespace) -> Rates:
    """One process of Colibri."""
    command = [sys.executable, "-m", "colibri.cli", "bench", "-m", str(options.model), "--json"]
    command += ["--repeat", str(options.repeat), "--new-tokens", str(options.new_tokens)]
    command += ["--threads", str(options.threads)]
    for tokens in options.prompt_tokens:
        command += ["--prompt-tokens", str(tokens)]
    result = run(command, options.prefix)
    rates = {f"prefill {run['tokens']}": float(run["tokens_per_s"]["median"]) for run in result["prefill"]}
    rates[f"decode {options.new_tokens}"] = float(result["decode"][0]["tokens_per_s"]["median"])
    return rates


def llama(options: argparse.Namespace, python: Path, variant: str, vocabulary: int) -> Rates:
    """One process of llama.cpp."""
    command = [str(python), str(HERE / "peer_llama.py"), str(options.model), "--threads", str(options.threads)]
    command += ["--repeat", str(options.repeat), "--new-tokens", str(options.new_tokens)]
    command += ["--vocabulary", str(vocabulary), "--prompt-tokens", *map(str, options.prompt_tokens)]
    result = run(command + ["--mapped"] * (variant == "mapped"), options.prefix)
    print(f"llama.cpp {variant}: built for {result['isa']}, ours uses {ops.isa()}", flush=True)
    rates = {f"prefill {tokens}": statistics.median(values) for tokens, values in result["prefill"].items()}
    rates[f"decode {options.new_tokens}"] = statistics.median(result["decode"])
    return rates


def measure(options: argparse.Namespace, python: Path) -> Iterator[Rates]:
    """Rounds; in each, metric by name of the engine in front: "colibri decode 64", "repacked decode 64"."""
    vocabulary = model_config(open_checkpoint(options.model)).vocab_size
    for number in range(options.rounds):
        engines = {"colibri": ours(options)}
        for variant in options.variants:
            engines[variant] = llama(options, python, variant, vocabulary)
        rates = {f"{engine} {metric}": value for engine, found in engines.items() for metric, value in found.items()}
        print(f"round {number + 1}: {json.dumps(rates)}", flush=True)
        yield rates


def described(script: str, path: Path) -> list[str]:
    """Date, commit, script, model and quantisation: how a row of the CSV begins."""
    checkpoint = open_checkpoint(path)
    model = describe_model(checkpoint, model_config(checkpoint))
    git = ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return [datetime.date.today().isoformat(), commit, script, model["name"], model["quantization"]]


def results() -> Path:
    """The CSV of this processor."""
    slug = re.sub(r"[^a-z0-9]+", "-", cpu_name().lower().replace("(r)", "")).strip("-")
    return HERE / "results" / f"{slug}.csv"


def rows(options: argparse.Namespace, rounds: list[Rates]) -> Iterator[list[Any]]:
    """A row of the CSV for each peer and metric, over the rounds that have both."""
    what = described("peers.py", options.model)
    metrics = [f"prefill {tokens}" for tokens in options.prompt_tokens] + [f"decode {options.new_tokens}"]
    for variant, metric in itertools.product(options.variants, metrics):
        both = [run for run in rounds if f"{variant} {metric}" in run]
        pairs = [(run[f"colibri {metric}"], run[f"{variant} {metric}"]) for run in both]
        mine, theirs, ratios = zip(*((ours, peer, ours / peer) for ours, peer in pairs), strict=True)
        medians = [statistics.median(values) for values in (mine, theirs, ratios)]
        text = [f"{value:.4g}" for value in (*medians, min(ratios), max(ratios))]
        peer = [f"llama.cpp {variant}", *text[1:], len(ratios), options.note]
        yield [*what, ops.isa(), options.threads, metric, text[0], *peer]


def append(path: Path, table: list[list[Any]]) -> None:
    """Add rows to a CSV file, with the names of the columns when it is new."""
    new = not path.exists()
    path.parent.mkdir(exist_ok=True)
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(COLUMNS)
        writer.writerows(table)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--environment", type=Path, required=True, help="where llama.cpp's environment is or shall be")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=2, help="measurements in each process; their median counts")
    parser.add_argument("--prompt-tokens", type=int, nargs="+", default=[512, 64])
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=ops.threads())
    parser.add_argument("--variants", nargs="+", choices=("repacked", "mapped"), default=["repacked", "mapped"])
    parser.add_argument("--prefix", type=shlex.split, default=[], help="words before each command, as 'taskset -c 0,1'")
    parser.add_argument("--runs", type=Path, help="keep every round here, and count those of earlier calls, too")
    parser.add_argument("--note", default="", help="for the CSV: what else the machine did")
    parser.add_argument("--no-csv", action="store_true", help="print only")
    return parser.parse_args()


def main() -> None:
    """Measure, print, append."""
    options = arguments()
    python = environment(options.environment)
    rounds = [json.loads(line) for line in options.runs.open()] if options.runs and options.runs.exists() else []
    for rates in measure(options, python):
        rounds.append(rates)
        if options.runs is not None:
            with options.runs.open("a", encoding="utf-8") as file:
                file.write(json.dumps(rates) + "\n")
    table = list(rows(options, rounds))
    for row in table:
        print("  ".join(map(str, row[3:])))
    if not options.no_csv:
        append(results(), table)


if __name__ == "__main__":
    main()

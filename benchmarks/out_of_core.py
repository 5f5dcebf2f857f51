"""Colibri beside llama.cpp with less memory than the model needs: processes in turn, each in a control group.

    python benchmarks/out_of_core.py MODEL.gguf --ram 2.5 --peer llama.cpp:mapped=/tmp/llama/bin/python --rounds 2

Both may take --ram GiB, page cache included; Colibri is told so with --ram, llama.cpp maps the file. The file is
dropped from the page cache before each process. With --squeeze GiB another process of the group locks so much, which
the group gets on top. Bytes are those of /proc/self/io, peak memory that of wait4, as `time -v` shows it. The disk's
own rate (one thread, 4 MiB blocks in order, O_DIRECT) is measured before and after each, because virtual disks drift.
Without --peer (as for peers.py) only Colibri runs. A row for each metric goes to results/<processor>.csv.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from memory_limit import Group, limited, locked
from peers import append, described, results, variants

import colibri
from colibri import ops
from colibri.config import SamplingParams

BLOCK = 4 << 20
SEQUENTIAL_BYTES = 400 << 20
Run = dict[str, Any]
Rounds = dict[tuple[str, str, str], list[dict[str, float]]]  # (engine, version, isa) -> metrics; Colibri comes first


def sequential(path: Path) -> float:
    """GB/s of one thread that reads 4 MiB blocks in order into huge pages, around the page cache."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    count = min(SEQUENTIAL_BYTES, os.fstat(descriptor).st_size) // BLOCK
    first = random.randrange(max(1, os.fstat(descriptor).st_size // BLOCK - count))
    buffer = memoryview(ops.Memory(BLOCK))  # huge pages: others would halve the rate
    start = time.perf_counter()
    for block in range(first, first + count):
        os.preadv(descriptor, [buffer], block * BLOCK)
    seconds = time.perf_counter() - start
    os.close(descriptor)
    return count * BLOCK / seconds / 1e9


def forget(path: Path) -> None:
    """Drop a file from the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def bytes_read() -> int:
    """What this process had read from disks so far."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["read_bytes"])


def child(options: argparse.Namespace) -> None:
    """One process of Colibri: prints what one prompt and its answer took, as peer_llama.py --stream does."""
    start, context = time.perf_counter(), options.prompt_tokens + options.tokens + 8
    with colibri.load(options.model, ram=gib(options.ram), threads=options.threads, context=context) as model:
        params = SamplingParams(max_tokens=options.tokens + 1, temperature=0.8, seed=1, ignore_eos=True)
        ids = random.Random(1)
        prompt = [ids.randrange(model.spec.vocab_size) for _ in range(options.prompt_tokens)]
        loaded, times, read = time.perf_counter(), [], []
        for _ in model.generate(prompt, params):
            times.append(time.perf_counter())
            if len(times) in (1, options.tokens + 1):
                read.append(bytes_read())
        counters = model.experts.counters.as_dict()
    print(json.dumps({
        "load_s": loaded - start, "first_s": times[0] - loaded, "first_bytes": read[0], "bytes": read[1] - read[0],
        "token_s": [after - before for before, after in itertools.pairwise(times)], "counters": counters,
    }))  # fmt: skip


def run(command: list[str], options: argparse.Namespace, group: Group) -> Run:
    """One process in the group; what it prints, its peak memory and the disk's rate around it."""
    forget(options.model)
    disk = [sequential(options.model)]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as errors:  # nothing learned before
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, preexec_fn=group.enter,
            env=os.environ | {"XDG_CACHE_HOME": folder},
        )  # fmt: skip
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        errors.seek(0)
        said = errors.read()[-2000:].decode(errors="replace")
    if status:
        sys.exit(f"{said}\n{command} ended with status {status}; {group.kills} were killed for memory")
    disk.append(sequential(options.model))
    result: Run = json.loads(output.strip().splitlines()[-1])
    return result | {"peak_bytes": usage.ru_maxrss << 10, "disk": statistics.mean(disk)}


def expected(options: argparse.Namespace) -> float:
    """Tokens/s that `colibri plan` expects of even routing."""
    command = [sys.executable, "-m", "colibri.cli", "plan", "-m", str(options.model), "--json"]
    command += ["--ram", f"{options.ram}G", "--context", str(options.prompt_tokens + options.tokens + 8)]
    done = subprocess.run([*command, "--threads", str(options.threads)], capture_output=True, text=True, check=True)
    plan = json.loads(done.stdout)
    print(f"colibri plan: {plan['read_gb_s']:.1f} GB/s from memory, {plan['disk_gb_s']:.2f} from disk", flush=True)
    return float(next(row for row in plan["expected"] if row["even_routing"])["tokens_per_s"])


def gib(count: float) -> int:
    """Bytes of so many GiB."""
    return int(count * (1 << 30))


def summary(found: Run) -> dict[str, float]:
    """The metrics of one run."""
    seconds = found["token_s"]
    return {
        "tokens/s": len(seconds) / sum(seconds),
        "p50 ms": 1000 * statistics.median(seconds),
        "MB read/token": found["bytes"] / len(seconds) / 1e6,
        "reading, share of disk": found["bytes"] / sum(seconds) / 1e9 / found["disk"],
        "load and first token s": found["load_s"] + found["first_s"],
        "MB read before it": found["first_bytes"] / 1e6,
        "peak MiB": found["peak_bytes"] / (1 << 20),
        "disk GB/s": found["disk"],
    }


def measure(options: argparse.Namespace) -> Rounds:
    """Rounds of each engine, in turn."""
    prompt = ["--prompt-tokens", str(options.prompt_tokens)]
    mine = [sys.executable, __file__, str(options.model), "--child", "--ram", str(options.ram), *prompt]
    commands = [("colibri", [*mine, "--threads", str(options.threads), "--tokens", str(options.tokens)])]
    for variant in options.peer:
        stream = ["--stream", str(options.peer_tokens or options.tokens)]
        commands.append((str(variant), [*variant.command(options.model, options.threads), *prompt, *stream]))
    rounds: Rounds = {}
    forget(options.model)
    print(f"colibri plan expects {expected(options):.2f} tokens/s", flush=True)
    with limited(gib(options.ram + options.squeeze)) as group, locked(gib(options.squeeze), group):
        for _ in range(options.rounds):
            for engine, command in commands:
                found = run(command, options, group)
                key = (engine, found.get("version", ""), found.get("isa", ""))
                rounds.setdefault(key, []).append(summary(found))
                figures = ", ".join(f"{name} {value:.4g}" for name, value in rounds[key][-1].items())
                print(f"{engine}: {figures} {found.get('counters', '')}", flush=True)
        print(f"killed for memory: {group.kills}")
    return rounds


def rows(options: argparse.Namespace, rounds: Rounds) -> list[list[Any]]:
    """Rows of the CSV: medians of ours beside each peer's."""
    table = []
    what = [*described("out_of_core.py", options.model), ops.isa(), options.threads]
    (_, ours), *peers = rounds.items()
    for metric in ours[0]:
        mine = [one[metric] for one in ours]
        name = f"{metric}, {options.prompt_tokens} + {options.tokens} tokens in {options.ram:g} GiB"
        row = [*what, name, f"{statistics.median(mine):.4g}"]
        for peer, runs in peers:
            other = [one[metric] for one in runs]
            ratios = [a / b if b else math.nan for a, b in zip(mine, other, strict=True)]
            figures = (statistics.median(other), statistics.median(ratios), min(ratios), max(ratios))
            table.append([*row, *peer, *(f"{value:.4g}" for value in figures), len(mine), options.note])
        if not peers:
            table.append([*row, *[""] * 7, len(mine), options.note])
    return table


def main() -> None:
    """Measure, print, append."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--ram", type=float, required=True, help="GiB")
    parser.add_argument("--peer", type=variants, default=[], metavar="ENGINE:VARIANT=PYTHON")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--peer-tokens", type=int, help="fewer for llama.cpp, which takes its time")
    parser.add_argument("--prompt-tokens", type=int, default=8)
    parser.add_argument("--squeeze", type=float, default=0.0, help="GiB that another process in the group locks")
    parser.add_argument("--threads", type=int, default=ops.threads())
    parser.add_argument("--note", default="", help="for the CSV: what else the machine did")
    parser.add_argument("--no-csv", action="store_true", help="print only")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options)
        return
    table = rows(options, measure(options))
    if not options.no_csv:
        append(results(), table)


if __name__ == "__main__":
    main()

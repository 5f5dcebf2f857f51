"""What `colibri plan` expects beside what then happens, with several memory budgets.

    python benchmarks/plans.py olmoe.gguf --ram 2 --ram 2.5 --ram 3 --rounds 2

For each budget (GiB), in turn: the plan, then a process of Colibri in a control group of that size, from a cold start.
The file is dropped from the page cache before each. Expected is the row of the plan with even routing, which random
weights have.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from memory_limit import limited
from out_of_core import expected, forget, gib, run, summary

from colibri import ops


def main() -> None:
    """Print a line for each budget and round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--ram", type=float, action="append", required=True, help="GiB; may be given several times")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--prompt-tokens", type=int, default=8)
    parser.add_argument("--threads", type=int, default=ops.threads())
    options = parser.parse_args()
    budgets = options.ram
    for _ in range(options.rounds):
        for options.ram in budgets:
            forget(options.model)
            before = expected(options)
            command = [sys.executable, str(Path(__file__).with_name("out_of_core.py")), str(options.model), "--child"]
            command += ["--ram", str(options.ram), "--prompt-tokens", str(options.prompt_tokens)]
            command += ["--threads", str(options.threads), "--tokens", str(options.tokens)]
            with limited(gib(options.ram)) as group:
                found = summary(run(command, options, group))
            rate = found["tokens/s"]
            print(
                f"{options.ram:g} GiB: expected {before:.2f}, found {rate:.2f} tokens/s ({before / rate:.2f}), "
                f"{found['MB read/token']:.0f} MB/token, disk {found['disk GB/s']:.1f} GB/s, "
                f"peak {found['peak MiB']:.0f} MiB",
                flush=True,
            )


if __name__ == "__main__":
    main()

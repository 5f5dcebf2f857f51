"""Colibri on processors that are not there: the kernels' tests and a run of the embedded model under qemu-user.

Every processor of the table has to find its instruction sets and no others, each test has to print the digest that it
prints here, and `colibri` with the arguments given has to write what it writes here.
`make emulated` builds what it needs."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from colibri import ops

TESTS = {"x86_64": Path("build/kernels"), "aarch64": Path("build/arm")}
NOT_EMULATED = {"test_dispatch", "test_pool"}  # the first is asked for the sets; qemu has no robust threads and fork


@dataclass(frozen=True)
class Processor:
    model: str  # as `qemu-MACHINE -cpu help` lists it
    machine: str
    sets: tuple[str, ...]  # what it has of the build, best first

    @property
    def emulator(self) -> list[str]:
        return [f"qemu-{self.machine}", "-cpu", self.model]


PROCESSORS = (
    Processor("Nehalem", "x86_64", ("portable",)),  # no AVX
    Processor("SandyBridge", "x86_64", ("portable",)),  # AVX only
    Processor("Haswell", "x86_64", ("avx2", "portable")),
    Processor("cortex-a57", "aarch64", ("portable",)),  # no dot products
    Processor("neoverse-n1", "aarch64", ("neon_dotprod", "portable")),  # no i8mm
    Processor("max", "aarch64", ("neon_i8mm", "neon_dotprod", "portable")),
)


def environment(isa: str) -> dict[str, str]:
    """Without what names the processor that numpy's OpenBLAS shall take this one for."""
    return {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"} | {"COLIBRI_ISA": isa}


def output(*command: str | Path, isa: str = "") -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=environment(isa))
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def same(name: str, here: str, there: str) -> str:
    if here != there:
        raise SystemExit(f"{name}: found\n{there}\nexpected, as here,\n{here}")
    return f"{name}: {' '.join(there.split()):.60}"


def colibri(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "colibri.cli", *arguments]


def refused(processor: Processor, arguments: list[str]) -> str:
    """A set that the processor lacks, asked for by COLIBRI_ISA, is an error that names what there is."""
    lacking = next(isa for isa in ops.isas_of_build() if isa not in processor.sets)
    command = [*processor.emulator, *colibri(*arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(lacking))
    expected = f"found '{lacking}', expected one that this build and this processor have: {', '.join(processor.sets)}"
    if done.returncode != 1 or expected not in done.stderr or "Traceback" in done.stderr:
        raise SystemExit(f"{processor.model}, COLIBRI_ISA={lacking}: status {done.returncode}\n{done.stderr}")
    return f"COLIBRI_ISA={lacking} is refused"


def jobs(processor: Processor, arguments: list[str]) -> list[Callable[[], str]]:
    """Each gives a line of the report."""
    folder, emulator = TESTS[processor.machine], processor.emulator
    tests = sorted(path.stem for path in Path("native/tests").glob("test_*.c") if path.stem not in NOT_EMULATED)
    found = [lambda: same("sets", "\n".join(processor.sets), output(*emulator, folder / "test_dispatch"))]
    found += [
        lambda test=test: same(test, output(TESTS[platform.machine()] / test), output(*emulator, folder / test))
        for test in tests
    ]
    if processor.machine == platform.machine():
        found.append(lambda: same("text", output(*colibri(*arguments)), output(*emulator, *colibri(*arguments))))
        found.append(lambda: refused(processor, arguments))
    return found


def main(arguments: list[str]) -> None:
    start, processors = time.monotonic(), [p for p in PROCESSORS if p.machine in (platform.machine(), "aarch64")]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        reports = {p: [pool.submit(job) for job in jobs(p, arguments)] for p in processors}
        for processor, lines in reports.items():
            for line in lines:
                try:
                    print(f"{processor.model}: {line.result()}", flush=True)
                except SystemExit:
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise
    emulated = {isa for p in processors for isa in p.sets}
    print(f"{len(processors)} emulated processors in {time.monotonic() - start:.0f} s")
    print(f"Instruction sets executed by this processor: {', '.join(ops.isas())}")
    print(f"Emulated: {', '.join(sorted(emulated - set(ops.isas()))) or 'no others'}")
    missing = [isa for isa in ops.isas_of_build() if isa not in ops.isas() and isa not in emulated]
    print(f"NOT EXECUTED, this processor lacks them: {', '.join(missing)}" if missing else "Not executed: none")


if __name__ == "__main__":
    main(sys.argv[1:])

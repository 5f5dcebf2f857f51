"""Fuzz the readers of untrusted files, guided by coverage, for as long as one likes.

    pip install atheris
    python tools/fuzz.py READER [--minutes 60] [--corpus FOLDER]
    python tools/fuzz.py all --minutes 60        # the time is divided

An input that ends in anything but a ColibriError, takes more than 5 seconds of processor time or 2 GB, is kept as
crash-... in the corpus folder (build/fuzz/READER by default); put it, made small, into tests/fixtures/fuzz/READER,
where the tests run it.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import atheris

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "helpers")]
with atheris.instrument_imports(include=["colibri"], enable_loader_override=False):
    import fuzz_readers


SECONDS = 5  # of processor time: the machine may be busy with other work
HUNG_SECONDS = 600


class TooSlow(BaseException):
    """The readers, which turn errors of libraries into their own, let it pass."""


def too_slow(*_: object) -> None:
    raise TooSlow(f"more than {SECONDS} seconds of processor time")


def fuzz(reader: str, corpus: Path, seconds: int) -> None:
    """Run libFuzzer, which ends the process."""
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(fuzz_readers.READERS[reader].seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)
    folder = Path(tempfile.mkdtemp(prefix="colibri-fuzz-", dir="/dev/shm"))
    found = fuzz_readers.CORPUS / reader
    options = [f"-max_total_time={seconds}", f"-timeout={HUNG_SECONDS}", "-rss_limit_mb=2048",
               f"-artifact_prefix={corpus}/", "-print_final_stats=1", "-max_len=20000", "-verbosity=0"]  # fmt: skip
    arguments = [sys.argv[0], *options, str(corpus), *([str(found)] if found.is_dir() else [])]
    signal.signal(signal.SIGPROF, too_slow)

    def run(data: bytes) -> None:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        started = time.process_time()
        fuzz_readers.run(reader, folder, data)
        signal.setitimer(signal.ITIMER_PROF, 0)
        if time.process_time() - started > SECONDS:
            too_slow()

    atheris.Setup(arguments, run)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reader", choices=[*fuzz_readers.READERS, "all"])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--corpus", type=Path, default=ROOT / "build" / "fuzz")
    options = parser.parse_args()
    if options.reader != "all":
        fuzz(options.reader, options.corpus / options.reader, int(60 * options.minutes))
    share = options.minutes / len(fuzz_readers.READERS)
    status = 0
    for reader in fuzz_readers.READERS:
        print(f"== {reader}", flush=True)
        command = [sys.executable, __file__, reader, "--minutes", str(share), "--corpus", str(options.corpus)]
        status |= subprocess.run(command, check=False).returncode
    return status


if __name__ == "__main__":
    sys.exit(main())

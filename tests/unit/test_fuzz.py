"""Inputs that fuzzing found, and a little fuzzing of every reader; `tools/fuzz.py` does it for as long as one likes."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from fuzz_readers import CORPUS, READERS, run


@pytest.mark.parametrize("reader", READERS)
def test_found_inputs_are_refused_or_taken(reader: str, tmp_path: Path) -> None:
    for file in sorted((CORPUS / reader).glob("*")):
        run(reader, tmp_path, file.read_bytes())


@pytest.mark.parametrize("reader", READERS)
def test_mutations_of_what_is_valid(reader: str, tmp_path: Path) -> None:
    """A valid input is taken, and no change of a few bytes ends in anything but a ColibriError within a second."""
    seeds = READERS[reader].seeds()
    assert all(run(reader, tmp_path, seed) for seed in seeds)
    dice = random.Random(reader)
    for _ in range(60):
        data = bytearray(dice.choice(seeds))
        for _ in range(dice.randint(1, 4)):
            data[dice.randrange(len(data))] = dice.choice([0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)])
        started = time.process_time()
        run(reader, tmp_path, bytes(data))
        assert time.process_time() - started < 1

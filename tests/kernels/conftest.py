"""For every test of a kernel: instruction set and threads come back to what they were."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from colibri import ops
from colibri.ops import _native


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    isa, threads = ops.isa(), ops.threads()
    yield
    _native.use_isa(isa)
    ops.set_threads(threads)

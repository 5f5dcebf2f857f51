"""Time in native code is counted while it is watched, and nothing stays behind."""

from __future__ import annotations

import pytest

from colibri import ops
from colibri.observe.native_time import NativeTime


def test_counts_calls_and_restores() -> None:
    original = ops.measure_dot
    with NativeTime() as timer:
        ops.measure_dot(0.01)
        assert isinstance(ops.Tensor, type)
    assert timer.calls == 1
    assert timer.seconds >= 0.005
    assert ops.measure_dot is original


def test_errors_pass_through() -> None:
    original = ops.measure_read
    with pytest.raises(ValueError, match="bytes"), NativeTime() as timer:
        ops.measure_read(ops.Memory(1), 1.0)
    assert timer.calls == 1
    assert ops.measure_read is original

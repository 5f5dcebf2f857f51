"""The machine below the ops: instruction sets, threads, memory and tensor handles."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from kernel_weights import SETS

from colibri import ops
from colibri.config import MAX_THREADS
from colibri.ops import _native

REPORT = "from colibri import ops; print(ops.isa(), ops.threads())"


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=120
    )


# ---- instruction sets ----


@pytest.mark.parametrize("name", SETS)
def test_the_environment_forces_an_instruction_set(name: str) -> None:
    assert python(REPORT, COLIBRI_ISA=name).stdout.split()[0] == name


def test_the_best_instruction_set_is_the_default() -> None:
    assert python(REPORT, COLIBRI_ISA="").stdout.split()[0] == ops.isas()[0]
    assert ops.isas()[-1] == "portable"


def test_an_unknown_instruction_set_is_refused_at_import() -> None:
    done = python(REPORT, COLIBRI_ISA="mmx")
    assert done.returncode == 1
    assert "COLIBRI_ISA: instruction set: found 'mmx', expected one that this build" in done.stderr


def test_an_instruction_set_can_be_chosen_for_a_test() -> None:
    for name in ops.isas():
        _native.use_isa(name)
        assert ops.isa() == name
    with pytest.raises(ValueError, match="mmx"):
        _native.use_isa("mmx")


# ---- threads ----


def test_threads_come_from_the_environment() -> None:
    assert python(REPORT, COLIBRI_THREADS="3").stdout.split()[1] == "3"
    for bad in ("0", "-1", "many", "100000", "9" * 30, "9" * 5000):
        done = python(REPORT, COLIBRI_THREADS=bad)
        assert done.returncode == 1
        assert "ArgumentError: COLIBRI_THREADS: found " in done.stderr


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity masks")
def test_threads_follow_the_affinity_mask_and_nothing_else() -> None:
    one = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); " + REPORT
    assert python(one, OMP_NUM_THREADS="7", OMP_PROC_BIND="true").stdout.split()[1] == "1"


def test_wrong_thread_counts_are_refused() -> None:
    ops.set_threads(MAX_THREADS)
    for bad in (0, -3, MAX_THREADS + 1, 1 << 20):
        with pytest.raises(ValueError, match=f"threads: found {bad}"):
            ops.set_threads(bad)


WORK = """
import numpy as np, time, os, sys
from colibri import ops
x, out = ops.tensor("F32", (64, 2048)), ops.tensor("F32", (64, 2048))
x.numpy()[...] = np.random.default_rng(0).standard_normal((64, 2048))
weight = ops.tensor("F32", (2048,))
weight.numpy()[...] = 1
norm = ops.Norm(weight, 1e-6)
def best(rounds=200):
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        ops.norm(out, x, norm)
        times.append(time.perf_counter() - start)
    return float(np.median(times))
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity masks")
def test_more_threads_than_processors_do_not_collapse() -> None:
    code = WORK + (
        "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
        "ops.set_threads(1); one = best(); ops.set_threads(2); two = best(); ops.set_threads(8); eight = best()\n"
        "print(two / one, eight / one)"
    )
    two, eight = map(float, python(code).stdout.split())
    assert two < 8
    assert eight < 20


def test_a_forked_child_has_a_pool_of_its_own() -> None:
    code = WORK + (
        "ops.set_threads(2); best(5); expected = out.numpy().copy()\n"
        "child = os.fork()\n"
        "out.numpy()[...] = 0\n"
        "best(5); same = (out.numpy() == expected).all()\n"
        "if not child: os._exit(0 if same else 1)\n"
        "print(os.waitpid(child, 0)[1], same)"
    )
    assert python(code).stdout.split() == ["0", "True"]


def test_calls_from_several_python_threads_take_turns() -> None:
    ops.set_threads(2)
    rng = np.random.default_rng(0)
    weight = ops.tensor("F32", (512, 512), tiled=True)
    ops.tile(weight, rng.standard_normal((512, 512), np.float32).tobytes())
    inputs = [rng.standard_normal((8, 512), np.float32) for _ in range(4)]
    failures: list[int] = []

    def multiply(x: np.ndarray) -> np.ndarray:
        source, out = ops.tensor("F32", x.shape), ops.tensor("F32", x.shape)
        source.numpy()[...] = x
        ops.matmul((out,), source, (weight,))
        return np.array(out.numpy())

    expected = [multiply(x) for x in inputs]

    def often(i: int) -> None:
        failures.extend(i for _ in range(50) if multiply(inputs[i]).tobytes() != expected[i].tobytes())

    callers = [threading.Thread(target=often, args=(i,)) for i in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not failures


def test_heavy_ops_let_other_python_threads_run() -> None:
    weight, x = ops.tensor("F32", (4096, 4096), tiled=True), ops.tensor("F32", (64, 4096))
    out, counted, stop = ops.tensor("F32", (64, 4096)), [0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            counted[0] += 1
            time.sleep(0)

    counter = threading.Thread(target=count)
    counter.start()
    try:
        ops.set_threads(1)
        before = counted[0]
        ops.matmul((out,), x, (weight,))
        assert counted[0] > before
    finally:
        stop.set()
        counter.join()


# ---- memory and tensors ----


def test_memory_is_zeroed_writable_and_given_back() -> None:
    memory = ops.Memory(5 << 20)
    view = memoryview(memory)
    assert memory.nbytes == view.nbytes == 5 << 20
    view[4096] = view[3 << 20] = 7
    memory.release(1 << 20, 4 << 20)
    assert (view[4096], view[3 << 20]) == (7, 0)
    with pytest.raises(ValueError, match="expected a range within 5242880 bytes"):
        memory.release(4096, 5 << 20)


def test_memory_that_is_not_there_is_an_error_with_sizes() -> None:
    with pytest.raises(MemoryError, match=f"cannot map {1 << 60} bytes"):
        ops.Memory(1 << 60)
    with pytest.raises(TypeError):
        ops.Memory(-1)


def test_tensors_are_views_of_memory() -> None:
    memory = ops.Memory(1 << 12)
    tensor = ops.tensor("F32", (4, 3), memory, offset=64)
    tensor.numpy()[...] = np.arange(12).reshape(4, 3)
    assert np.frombuffer(memory, np.float32)[16:28].tolist() == list(range(12))
    assert tensor.rows(1, 3).numpy().tolist() == [[3, 4, 5], [6, 7, 8]]
    assert tensor.rows(1, 3).reshape(3, 2).shape == (3, 2)
    assert (tensor.type, tensor.shape, tensor.nbytes, tensor.tiled) == ("F32", (4, 3), 48, False)
    del memory
    assert tensor.numpy()[3, 2] == 11
    view = tensor.rows(0, 1).numpy()
    del tensor
    assert view.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize(("kind", "dtype"), [("F32", "float32"), ("I32", "int32"), ("F16", "float16"), ("U8", "uint8")])
def test_plain_types(kind: str, dtype: str) -> None:
    array = ops.tensor(kind, (2, 5)).numpy()
    assert array.dtype.name == dtype
    assert array.flags.writeable
    assert not array.any()


def test_wrong_tensors_are_named() -> None:
    memory = ops.Memory(4096)
    with pytest.raises(ValueError, match="a range within 4096 bytes"):
        ops.tensor("F32", (1024,), memory, offset=4)
    with pytest.raises(ValueError, match="offset: found 2, expected a multiple of 4"):
        ops.tensor("F32", (4,), memory, offset=2)
    with pytest.raises(ValueError, match="type: found 'Q4_K', expected F32"):
        ops.tensor("Q4_K", (4, 256))
    with pytest.raises(ValueError, match="type: found 'Q9', expected a block type"):
        ops.tensor("Q9", (4, 256), tiled=True)
    with pytest.raises(ValueError, match="k a multiple of 256 for Q4_K"):
        ops.tensor("Q4_K", (4, 128), tiled=True)
    with pytest.raises(ValueError, match="shape: found -1"):
        ops.tensor("F32", (-1, 4))
    with pytest.raises(ValueError, match="within 4 rows"):
        ops.tensor("F32", (4, 4)).rows(2, 5)
    with pytest.raises(ValueError, match=r"numpy\(\): found tiled F32"):
        ops.tensor("F32", (4, 4), tiled=True).numpy()
    with pytest.raises(ValueError, match="as many values"):
        ops.tensor("F32", (4, 4)).reshape(3, 4)


@pytest.mark.parametrize("name", ops.BLOCK_TYPES)
def test_tiled_bytes(name: str) -> None:
    block = ops.BLOCK_TYPES[name]
    tensor = ops.tensor(name, (17, 2 * block.values), tiled=True)
    assert tensor.nbytes == ops.tiled_bytes(name, 17, 2 * block.values)
    assert tensor.nbytes % 64 == 0
    assert tensor.nbytes >= 2 * 2 * block.tile_bytes


def test_tile_checks_its_source() -> None:
    weight = ops.tensor("F32", (40, 8), tiled=True)
    with pytest.raises(ValueError, match="src: found 12 bytes, expected 1280"):
        ops.tile(weight, b"x" * 12)
    with pytest.raises(ValueError, match="starts at a multiple of 16"):
        ops.tile(weight, b"x" * 256, 8, 8)
    with pytest.raises(ValueError, match="rows: found 8"):
        ops.tile(weight, b"x" * 256, 0, 8)
    rows = np.arange(320, dtype=np.float32).reshape(40, 8)
    ops.tile(weight, rows[16:].tobytes(), 16)
    ops.tile(weight, rows[:16].tobytes(), 0, 16)
    assert (ops.dequantize(weight) == rows).all()

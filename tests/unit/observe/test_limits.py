"""What a token asks of the machine, counted by hand; the measurements give sensible numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernel_weights import SETS

from colibri import ops
from colibri.models.registry import model_spec, open_checkpoint
from colibri.observe import limits
from colibri.observe.limits import Meter, cpu_name, demand
from colibri.spec import MoeSpec

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


@pytest.mark.parametrize("name", ["mixtral-gqa-f32", "mixtral-tied-bf16", "qwen3_moe-dense-bf16"])
def test_demand_by_hand(name: str) -> None:
    checkpoint = open_checkpoint(GOLDEN / name)
    spec = model_spec(checkpoint)
    size = 4 if name.endswith("f32") else 2
    hidden, k = spec.hidden_size, spec.experts_per_token
    products = 0
    for layer in spec.layers:
        products += 2 * hidden * (layer.mixer.query_width + layer.mixer.kv_width)
        if isinstance(layer.ffn, MoeSpec):
            products += hidden * spec.experts + 3 * k * hidden * layer.ffn.expert.width
        else:
            products += 3 * hidden * layer.ffn.width
    output = spec.vocab_size * hidden
    found = demand(checkpoint, spec)
    assert found.products == products
    assert found.output_products == output
    assert found.prompt_products(10) == 10 * products + output
    row = 0 if "output.weight" not in checkpoint.tensors else hidden
    vectors = sum(info.nbytes for info in checkpoint.tensors.values() if len(info.shape) == 1)
    assert found.weight_bytes == size * (products + output + row) + vectors


@pytest.mark.parametrize("isa", SETS)
def test_rates_are_positive_on_every_instruction_set(isa: str) -> None:
    chosen = ops.isa()
    ops._native.use_isa(isa)
    try:
        assert all(rate > 0 for rate in ops.measure_read(ops.Memory(1 << 22), 0.001))
        assert all(rate > 0 for rate in ops.measure_dot(0.001))
    finally:
        ops._native.use_isa(chosen)


def test_bytes_have_to_be_a_megabyte() -> None:
    with pytest.raises(ValueError, match="memory: found 1000 bytes, expected 1 MiB"):
        ops.measure_read(ops.Memory(1000), 0.1)


def test_meter_counts_all_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = iter([(1.0, 2.0), (30.0,)])
    monkeypatch.setattr(ops, "measure_read", lambda memory, seconds: next(rates))
    monkeypatch.setattr(ops, "measure_dot", lambda seconds: (5.0,))
    meter = Meter()
    meter.measure(1)
    meter.measure(1)
    assert (meter.read.median, meter.read.min, meter.read.max) == (2, 1, 30)
    assert meter.multiply.median == 5


def test_name_of_the_processor(tmp_path: Path) -> None:
    assert cpu_name(tmp_path) == "unknown"
    (tmp_path / "proc").mkdir()
    info = tmp_path / "proc" / "cpuinfo"
    info.write_text("processor\t: 0\ncpu family\t: 6\nmodel\t\t: 207\nmodel name\t: A  Processor\n\nprocessor\t: 1\n")
    assert cpu_name(tmp_path) == "A Processor (family 6 model 207)"
    info.write_text("processor\t: 0\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC 9575F\n")
    assert cpu_name(tmp_path) == "AMD EPYC 9575F"


def test_the_buffer_for_reading_is_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is left, so that a small budget is kept, and nothing more once a model fills it."""
    taken: list[int] = []
    resident = 100 << 20
    monkeypatch.setattr(limits, "resident_bytes", lambda: resident)
    monkeypatch.setattr(ops, "measure_read", lambda memory, seconds: (taken.append(memory.nbytes), (1.0,))[1])
    monkeypatch.setattr(ops, "measure_dot", lambda seconds: (5.0,))
    meter = Meter(180 << 20)
    meter.measure(1)
    resident = 160 << 20
    meter.measure(1)
    Meter(180 << 20).measure(1)
    Meter().measure(1)
    assert taken[:2] == [80 << 20, 20 << 20]
    assert len(taken) == 3
    assert taken[2] >= limits.LEAST_BYTES


def test_the_buffer_is_kept_where_there_is_no_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[ops.Memory] = []
    monkeypatch.setattr(limits, "READ_BYTES", 1 << 20)
    monkeypatch.setattr(limits, "LEAST_BYTES", 1 << 20)
    monkeypatch.setattr(ops, "measure_read", lambda memory, seconds: (seen.append(memory), (1.0,))[1])
    for budget, kept in ((None, True), (1 << 40, False)):
        meter = Meter(budget)
        meter.measure(0.001)
        meter.measure(0.001)
        assert (seen[-1] is seen[-2]) == kept

"""The public model: text in and out, limits, errors, statistics."""

from __future__ import annotations

import gc
import json
import shutil
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import colibri
from colibri.config import SamplingParams, Token
from colibri.engine.model import Model
from colibri.errors import (
    ArgumentError,
    ContextFullError,
    FileError,
    FormatError,
    MemoryBudgetError,
    NumericalError,
    UnsupportedError,
)
from colibri.experts.swap import export_expert
from colibri.machine import resident_bytes
from colibri.observe.trace import LayerTraces
from colibri.ops import _native

from .conftest import GOLDEN

Load = Callable[..., Model]
TEXT = GOLDEN / "qwen3_moe-gqa-f32"  # the one with a tokenizer
IDS_ONLY = GOLDEN / "olmoe-mha-f32"
GREEDY = SamplingParams(temperature=0, max_tokens=20)
ENDLESS = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)


def tokens_of(model: Model, prompt: str | list[int], params: SamplingParams) -> list[Token]:
    return list(model.generate(prompt, params))


# ---- text ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [TEXT, TEXT / "model.gguf"])
def test_text_of_the_tokens_is_the_decoded_text(load: Load, path: Path) -> None:
    model = load(path)
    generation = model.generate("the one", ENDLESS)
    assert generation.prefilled == 0
    pieces = [token.text for token in generation]
    assert len(pieces) == 20
    assert "".join(pieces) == generation.text == model.tokenizer.decode(generation.token_ids, skip_special=True)
    assert generation.prompt_token_ids == model.tokenizer.encode("the one")
    assert generation.prefilled == len(generation.prompt_token_ids)


def test_every_end_token_stops(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(TEXT)
    assert model.end_ids == {0, 2}
    ids = [token.id for token in tokens_of(model, [5, 6, 7], ENDLESS)]
    assert ids
    monkeypatch.setitem(model.tokenizer.__dict__, "eos_ids", frozenset({ids[4]}))
    first = ids.index(ids[4])
    generation = model.generate([5, 6, 7], GREEDY)
    assert [token.id for token in generation] == ids[:first]
    assert generation.finish_reason == "stop"


def test_stop_strings_are_never_shown(load: Load) -> None:
    model = load(TEXT)
    params = SamplingParams(temperature=2.0, max_tokens=60, seed=3, ignore_eos=True)
    whole = "".join(token.text for token in tokens_of(model, "the", params))
    stop = whole[10:13]
    stopped = SamplingParams(temperature=2.0, max_tokens=60, seed=3, ignore_eos=True, stop=(stop, "never there"))
    generation = model.generate("the", stopped)
    assert "".join(token.text for token in generation) == whole[: whole.index(stop)]
    assert generation.finish_reason == "stop"
    assert generation.stop_text == stop


def test_chat_renders_the_template(load: Load) -> None:
    model = load(TEXT)
    generation = model.chat([{"role": "user", "content": "the"}], GREEDY)
    text = "<|im_start|>user\nthe<|im_end|>\n<|im_start|>assistant\n"
    assert generation.prompt_token_ids == model.tokenizer.encode(text, add_special=False)
    assert list(generation)


def test_a_checkpoint_without_tokenizer_takes_ids(load: Load) -> None:
    model = load(IDS_ONLY)
    assert not model.has_tokenizer
    assert [token.text for token in tokens_of(model, [5, 6], GREEDY)] == [""] * 20
    with pytest.raises(FileError, match=r"tokenizer\.json"):
        model.generate("text")


# ---- limits ----------------------------------------------------------------------------------------------------------


def test_prompt_longer_than_the_context(load: Load) -> None:
    model = load(IDS_ONLY, context=16)
    with pytest.raises(ContextFullError, match=r"17 tokens.*holds 16"):
        model.generate([5] * 17)
    with pytest.raises(ContextFullError, match=r"17 tokens.*holds 16"):
        model.infer([5] * 17)
    assert model.infer([5] * 16).shape == (16, 128)


@pytest.mark.parametrize("asked", [None, 100, 10**12])
def test_max_tokens_is_cut_to_the_room_left(load: Load, asked: int | None) -> None:
    model = load(IDS_ONLY, context=16)
    generation = model.generate([5] * 10, SamplingParams(max_tokens=asked, ignore_eos=True, seed=1))
    assert len(list(generation)) == 6
    assert generation.finish_reason == "length"
    assert len(generation.notes) == (asked is not None)


def test_a_full_context_leaves_no_room(load: Load) -> None:
    generation = load(IDS_ONLY, context=16).generate([5] * 16)
    assert list(generation) == []
    assert generation.finish_reason == "length"


def test_no_tokens_asked_for(load: Load) -> None:
    generation = load(IDS_ONLY).generate([5], SamplingParams(max_tokens=0))
    assert list(generation) == []
    assert generation.finish_reason == "length"


@pytest.mark.parametrize(("ids", "message"), [
    ([], "found no tokens"),
    ([128], r"id 128 at position 0, expected 0\.\.127"),
    ([5, -1], "id -1 at position 1"),
    ([5, 2**40], "position 1"),
    ([1.5], "expected integers"),
    ([True], "expected integers"),
    (["a", 5], "expected integers"),
])  # fmt: skip
def test_bad_ids(load: Load, ids: list[int], message: str) -> None:
    model = load(IDS_ONLY)
    with pytest.raises(ArgumentError, match=message):
        model.generate(ids)
    with pytest.raises(ArgumentError, match=message):
        model.infer(ids)


def test_an_empty_text(load: Load) -> None:
    """It is the begin token where the checkpoint names one, and nothing to go on from where it does not."""
    assert load(TEXT).generate("").prompt_token_ids == [1]
    with pytest.raises(ArgumentError, match="found no tokens"):
        load(TEXT / "model.gguf").generate("")


def test_context_beyond_the_model(load: Load) -> None:
    with pytest.raises(ArgumentError, match=r"context: found 641.*640"):
        load(IDS_ONLY, context=641)


def test_ram_below_the_floor(load: Load) -> None:
    with pytest.raises(MemoryBudgetError, match=r"--ram \d+M or more"):
        load(IDS_ONLY, ram=1 << 20)


def test_a_closed_model(load: Load) -> None:
    with load(IDS_ONLY) as model:
        pass
    with pytest.raises(ArgumentError, match="closed"):
        model.infer([5])


# ---- files -----------------------------------------------------------------------------------------------------------


def test_close_gives_the_memory_of_the_experts_back() -> None:
    model = colibri.load()
    model.infer(list(range(3, 400)))
    held, before = model.memory()["expert_bytes_resident"], resident_bytes()
    assert held > 10 << 20
    model.close()
    assert before - resident_bytes() > held * 0.9
    model.close()


def test_a_missing_file() -> None:
    with pytest.raises(FileError, match="no such file"):
        colibri.load("/nowhere/model.gguf")


def test_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match="model: found ''"):
        colibri.load("")
    monkeypatch.setenv("COLIBRI_MODEL", "")
    with pytest.raises(ArgumentError, match="COLIBRI_MODEL: found ''"):
        colibri.load()


def test_the_system_gives_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(MemoryBudgetError, match="refused a thread to read weights"):
        colibri.load(IDS_ONLY)


def test_the_environment_names_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLIBRI_MODEL", str(IDS_ONLY))
    with colibri.load() as model:
        assert model.spec.architecture == "olmoe"


def changed(tmp_path: Path, source: Path, **fields: object) -> Path:
    """A copy of a directory with other fields in config.json."""
    target = tmp_path / "model"
    shutil.copytree(source, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | fields))
    return target


@pytest.mark.parametrize(("fields", "error"), [
    ({"hidden_size": 96}, FormatError),
    ({"num_attention_heads": 8}, FormatError),
    ({"num_key_value_heads": 3}, FormatError),
    ({"num_local_experts": 8, "num_experts": 8}, FormatError),
    ({"num_experts_per_tok": 5}, FormatError),
    ({"intermediate_size": 32}, FormatError),
    ({"num_hidden_layers": 3}, FormatError),
    ({"rms_norm_eps": -1.0}, FormatError),
    ({"model_type": "gpt9_moe"}, UnsupportedError),
])  # fmt: skip
def test_a_config_that_contradicts_the_tensors(
    load: Load, tmp_path: Path, fields: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error, match="model"):
        load(changed(tmp_path, IDS_ONLY, **fields))


def overwrite(path: Path, name: str, value: float) -> None:
    """Set the first value of a tensor of a safetensors file (F32)."""
    data = bytearray(path.read_bytes())
    length = int.from_bytes(data[:8], "little")
    start = json.loads(data[8 : 8 + length])[name]["data_offsets"][0] + 8 + length
    data[start : start + 4] = np.float32(value).tobytes()
    path.write_bytes(data)


@pytest.mark.parametrize(("tensor", "name"), [
    ("model.layers.0.input_layernorm.weight", "blk.0.attn_norm.weight"),
    ("model.layers.1.self_attn.q_norm.weight", "blk.1.attn_q_norm.weight"),
    ("model.layers.1.self_attn.k_norm.weight", "blk.1.attn_k_norm.weight"),
    ("model.layers.1.self_attn.v_proj.weight", "blk.1.attn_v.weight"),
    ("model.layers.1.post_attention_layernorm.weight", "blk.1.ffn_norm.weight"),
    ("model.layers.0.mlp.gate.weight", "blk.0.ffn_gate_inp.weight"),
    ("model.norm.weight", "output_norm.weight"),
    ("lm_head.weight", "output"),
])  # fmt: skip
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_damaged_weights_are_reported_and_never_sampled(
    load: Load, tmp_path: Path, tensor: str, name: str, value: float
) -> None:
    path = changed(tmp_path, IDS_ONLY)
    overwrite(path / "model.safetensors", tensor, value)
    model = load(path)
    with pytest.raises(NumericalError, match=name):
        model.infer([5, 6, 7])
    generation = model.generate([5, 6, 7], GREEDY)
    with pytest.raises(NumericalError, match=name):
        next(generation)
    assert generation.finish_reason == "cancelled"
    assert generation.token_ids == []


@pytest.mark.parametrize(("tensor", "name"), [
    ("model.layers.1.self_attn.q_proj.weight", "blk.1.attn_q_norm.weight"),
    ("model.layers.1.self_attn.k_proj.weight", "blk.1.attn_k_norm.weight"),
    ("model.layers.1.self_attn.o_proj.weight", "blk.1.ffn_norm.weight"),
])  # fmt: skip
@pytest.mark.parametrize("value", [np.nan, 1e30])
def test_what_a_norm_cannot_take_is_reported_by_its_name(
    load: Load, tmp_path: Path, tensor: str, name: str, value: float
) -> None:
    path = changed(tmp_path, IDS_ONLY)
    overwrite(path / "model.safetensors", tensor, value)
    with pytest.raises(NumericalError, match=name):
        load(path).infer([5, 6, 7])


@pytest.mark.parametrize(("values", "name"), [
    ({"q_proj": np.nan}, "blk.1.attn_q.weight"),
    ({"k_proj": np.inf}, "blk.1.attn_k.weight"),
    ({"v_proj": 1e30}, "blk.1.attn_v.weight"),  # finite, but not as a half float
    ({"k_proj": 1e30}, "blk.1.attn_k.weight"),
    ({"q_proj": 1e38, "k_proj": 1e4}, "blk.1.attn_q.weight, blk.1.attn_k.weight: a product"),
])  # fmt: skip
@pytest.mark.parametrize("precision", ["fast", "exact"])
@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_without_norms_of_queries_and_keys_attention_reports_it(
    load: Load, tmp_path: Path, values: dict[str, float], name: str, precision: str, kv_type: str
) -> None:
    path = changed(tmp_path, GOLDEN / "mixtral-gqa-f32")
    for tensor, value in values.items():
        overwrite(path / "model.safetensors", f"model.layers.1.self_attn.{tensor}.weight", value)
    model = load(path, precision=precision, kv_type=kv_type)
    for ids in ([5], [5, 6, 7], [5, 6, 7] * 100):
        with pytest.raises(NumericalError, match=name):
            model.infer(ids)


def test_nothing_of_other_requests_is_in_logits(load: Load) -> None:
    """Whatever buffers, scratch and blocks of the cache hold."""
    found = []
    for byte in (0, 255, 63):
        model = load(TEXT)
        _native.poison_scratch(byte)
        try:
            decoder = model.engine.decoder
            for buffer, place in decoder.workspace._places.items():
                if buffer.name not in ("ones", "first"):  # which hold what they are named for from the start
                    decoder.workspace._buffers[place].numpy().view(np.uint8)[:] = byte
            for layer in model.engine.cache.layers:
                for part in layer.parts:
                    part.reshape(part.nbytes // 2).numpy().view(np.uint8)[:] = byte
            found.append(model.infer([5, 6, 7] * 100).tobytes())
        finally:
            _native.poison_scratch(None)
    assert found[1:] == found[:1] * 2


# ---- several at once -------------------------------------------------------------------------------------------------


def test_threads_share_a_model(load: Load) -> None:
    model = load(IDS_ONLY, sequences=4)
    prompts = [[5 + number, 6, 7] for number in range(4)]
    expected = [[token.id for token in model.generate(prompt, ENDLESS)] for prompt in prompts]
    found: dict[int, list[int]] = {}

    def work(number: int) -> None:
        found[number] = [token.id for token in model.generate(prompts[number], ENDLESS)]

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [found[number] for number in range(4)] == expected


def test_a_dropped_generation_frees_its_blocks(load: Load) -> None:
    model = load(IDS_ONLY, context=256)
    free = model.engine.cache.free_blocks
    generation = model.generate([5], ENDLESS)
    next(generation)
    assert model.engine.cache.free_blocks == free - 1
    del generation
    assert model.engine.cache.free_blocks == free
    generation = model.generate([5], ENDLESS)
    next(generation)
    generation.close()
    assert generation.finish_reason == "cancelled"
    assert model.engine.cache.free_blocks == free
    assert list(generation) == []


def test_a_second_sequence_waits_for_room(load: Load) -> None:
    model = load(IDS_ONLY, context=256)
    first = model.generate([5], ENDLESS)
    next(first)
    second = model.generate([6], SamplingParams(temperature=0, max_tokens=1))
    assert next(second).id >= 0  # the first runs to its end, then the second has its turn
    assert first.finish_reason == "length"
    assert len(list(first)) == 19


def test_rows_of_logits_as_they_come_are_those_of_infer(load: Load) -> None:
    model = load(GOLDEN / "qwen3_moe-dense-bf16", chunk=7)
    ids = [5 + i for i in range(40)]
    whole = model.infer(ids)
    for first in (0, 9, 39):
        seen = np.full_like(whole, np.nan)

        def see(position: int, logits: np.ndarray, seen: np.ndarray = seen) -> None:
            seen[position : position + len(logits)] = logits

        model.infer_rows(ids, see, first)
        np.testing.assert_array_equal(seen[first:], whole[first:])
        assert np.isnan(seen[:first]).all()


def test_infer_while_the_cache_is_full(load: Load) -> None:
    model = load(IDS_ONLY, context=256)
    alone = [token.id for token in model.generate([5], ENDLESS)]
    logits = model.infer([6, 7])
    first = model.generate([5], ENDLESS)
    found = [next(first).id for _ in range(3)]
    np.testing.assert_array_equal(model.infer([6, 7]), logits)
    assert found + [token.id for token in first] == alone  # it was computed again
    assert model.engine.preemptions == 1


def test_an_expert_is_swapped_and_taken_back_while_the_model_runs(load: Load, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    shutil.copy(TEXT / "model.gguf", path)
    model = load(path)
    ids = list(range(3, 40))
    before = model.infer(ids)
    other = tmp_path / "other.gguf"
    export_expert(model.experts.store, 1, other)
    model.swap_expert(0, other)
    changed_logits = model.infer(ids)
    assert not np.array_equal(changed_logits, before)
    np.testing.assert_array_equal(load(path).infer(ids), changed_logits)
    assert model.revert_expert(0)
    np.testing.assert_array_equal(model.infer(ids), before)
    with pytest.raises(ArgumentError, match=r"expert: found 3, expected 0\.\.2"):
        model.swap_expert(3, other)


# ---- step loops of others --------------------------------------------------------------------------------------------


class Alternating:
    """Allows one of two tokens in turn, four times."""

    def __init__(self, size: int) -> None:
        self.seen: list[int] = []
        self._size = size

    def allowed(self) -> np.ndarray:
        mask = np.zeros(self._size, bool)
        mask[[20, 21] if len(self.seen) % 2 else [10, 11]] = True
        return mask

    def accept(self, token: int) -> bool:
        self.seen.append(token)
        return len(self.seen) == 4

    def forced(self) -> list[int]:
        return []


@pytest.mark.parametrize(
    "params", [GREEDY, SamplingParams(temperature=3, seed=1), SamplingParams(top_k=7, min_p=0.5, seed=2)]
)
def test_a_constraint_rules_the_choice(load: Load, params: SamplingParams) -> None:
    model = load(TEXT)
    constraint = Alternating(model.spec.vocab_size)
    sequence = model.sequence([5, 6, 7], params, constraint=constraint)
    model.engine.add(sequence)
    while model.engine.running or model.engine.waiting:
        model.engine.step()
    assert sequence.finish_reason == "stop"
    assert constraint.seen == sequence.generated
    assert [token // 10 for token in sequence.generated] == [1, 2, 1, 2]


def test_the_logits_of_a_prompt_can_be_watched(load: Load) -> None:
    model = load(TEXT, chunk=20)
    ids = list(range(3, 53))
    seen: list[tuple[int, np.ndarray]] = []
    params = SamplingParams(max_tokens=0)
    sequence = model.sequence(ids, params, prompt_watcher=lambda position, row: seen.append((position, row.copy())))
    model.engine.add(sequence)
    while model.engine.running or model.engine.waiting:
        model.engine.step()
    assert sequence.finish_reason == "length"
    assert [position for position, _ in seen] == list(range(50))
    np.testing.assert_array_equal(np.array([row for _, row in seen]), model.infer(ids))


def test_a_model_lives_as_long_as_its_generations() -> None:
    generation = colibri.load(IDS_ONLY).generate([5], ENDLESS)
    gc.collect()
    assert len(list(generation)) == 20


def test_a_dropped_model_is_closed() -> None:
    model = colibri.load(IDS_ONLY)
    model.infer([5])
    engine = weakref.ref(model.engine)
    del model
    gc.collect()
    assert engine() is None


def test_no_complaints_at_the_end_of_a_program() -> None:
    """A script that leaves its model open to the end, as most do."""
    script = f"import colibri; model = colibri.load({str(IDS_ONLY)!r}); model.infer([5]); next(model.generate([5]))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout + result.stderr == ""


# ---- statistics ------------------------------------------------------------------------------------------------------


def parameters_of(path: Path) -> int:
    """Values in a safetensors file of F32."""
    data = path.read_bytes()
    return (len(data) - 8 - int.from_bytes(data[:8], "little")) // 4


def test_describe_and_statistics(load: Load) -> None:
    model = load(TEXT)
    generation = model.generate([5, 6, 7], ENDLESS)
    list(generation)
    assert model.describe() == {
        "name": TEXT.name, "architecture": "qwen3moe", "layers": 2, "experts": 3, "experts_per_token": 2,
        "parameters": parameters_of(TEXT / "model.safetensors"), "quantization": "F32",
    }  # fmt: skip
    timings = generation.timings.as_dict()
    assert all(value is not None and value > 0 for value in timings.values())
    assert model.routing.counts.shape == (2, 3)
    assert model.routing.counts.sum() == (3 + 19) * 2 * 2
    summary = model.routing_summary()
    assert 0 < summary["experts_touched"] <= summary["experts_total"] == 6
    memory = model.memory()
    assert memory["peak_rss_bytes"] >= memory["expert_bytes_resident"] > 0


def test_the_trace_sees_every_layer(load: Load) -> None:
    model = load(GOLDEN / "qwen3_moe-dense-bf16")
    seen = LayerTraces()
    model.watch(seen)
    logits = model.infer([5, 6, 7])
    assert [(trace.layer, trace.experts.shape) for trace in seen] == [(0, (3, 0)), (1, (3, 2)), (2, (3, 2))]
    assert all(trace.milliseconds > trace.expert_milliseconds > 0 for trace in seen)
    model.watch(None)
    np.testing.assert_array_equal(model.infer([5, 6, 7]), logits)
    assert len(seen) == 3


def test_nothing_runs_on_a_closed_model(load: Load) -> None:
    """Also what passed the model's own check just before another thread closed it."""
    model = load(TEXT)
    generation = model.generate("the one", ENDLESS)
    next(generation)
    late = model.sequence([1, 2, 3], ENDLESS)
    model.close()
    assert list(generation) == []
    assert generation.finish_reason == "cancelled"
    steps = model.engine.steps
    for use in (
        lambda: model.engine.add(late),
        lambda: model.engine.infer([1, 2, 3], model.spec.vocab_size),
        lambda: model.engine.advance(late),
    ):
        with pytest.raises(ArgumentError, match="the model is closed"):
            use()
    model.close()
    assert (model.engine.steps, model.engine.waiting, late.generated) == (steps, 0, [])


def test_threads_that_generate_while_the_model_is_closed(load: Load) -> None:
    model = load(TEXT)
    ended = []

    def generate() -> None:
        try:
            while True:
                ended.append(len(tokens_of(model, "the one", ENDLESS)))
        except ArgumentError as error:
            ended.append(str(error))

    threads = [threading.Thread(target=generate) for _ in range(3)]
    for thread in threads:
        thread.start()
    while len(ended) < 6:
        time.sleep(0.001)
    model.close()
    for thread in threads:
        thread.join(20)
    assert ended.count("the model is closed") == 3
    assert model.engine.running == model.engine.waiting == 0

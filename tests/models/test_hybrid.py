"""Models of which some layers keep a state of fixed size: other files of the same weights, and slots under pressure."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colibri.config import SamplingParams
from colibri.conversion.convert import Options, convert
from colibri.engine.model import Model
from colibri.errors import FormatError, NumericalError, UnsupportedError
from colibri.models.registry import model_spec, open_checkpoint
from colibri.spec import DeltaNetSpec
from colibri.weights.file_reader import FileReader
from colibri.weights.gguf import read_gguf
from colibri.weights.load import load_plain
from colibri.weights.safetensors import read_directory

from .conftest import GOLDEN, golden_of

Load = Callable[..., Model]
NEXT, NEWER = GOLDEN / "families" / "qwen3_next-f32", GOLDEN / "families" / "qwen3_5_moe-f32"
PARAMS = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True, top_logprobs=1)


def write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    header, at = {}, 0
    for name, array in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(array.tobytes() for array in tensors.values()))


def seeing(folder: Path, extra: dict[str, np.ndarray]) -> Path:
    """The weights of a text model as they are released: within a model that sees, with a head that guesses ahead."""
    config = json.loads((NEWER / "config.json").read_text())
    tied = {"model_type": "qwen3_5_moe", "text_config": config, "vision_config": {"depth": 1}, "image_token_id": 60}
    (folder / "config.json").write_text(json.dumps(tied))
    tensors = {
        name.replace("model.", "model.language_model.", 1): np.array(load_plain(info, FileReader()).numpy())
        for name, info in read_directory(NEWER).items()
    }
    write_safetensors(folder / "model.safetensors", tensors | extra)
    return folder


def test_a_model_that_sees(load: Load, tmp_path: Path) -> None:
    some = np.ones((2, 3), np.float32)
    path = seeing(tmp_path, {"model.visual.blocks.0.attn.qkv.weight": some, "mtp.layers.0.mlp.gate.weight": some})
    assert open_checkpoint(path).notes == (
        "the part that sees pictures (vision tower) is not used",
        "the head that predicts more than one token (MTP) is not used",
    )
    ids = golden_of(NEWER)["ids"].tolist()
    np.testing.assert_array_equal(load(path).infer(ids), load(NEWER).infer(ids))


def test_what_is_not_known_is_named(tmp_path: Path) -> None:
    path = seeing(tmp_path, {"model.language_model.layers.0.linear_attn.extra.weight": np.ones((2, 2), np.float32)})
    with pytest.raises(UnsupportedError, match=r"linear_attn\.extra\.weight is not known for qwen3_5_moe"):
        open_checkpoint(path)


def test_sizes_that_contradict_the_tensors_are_named(tmp_path: Path) -> None:
    path = seeing(tmp_path, {})
    config = json.loads((path / "config.json").read_text())
    config["text_config"]["linear_num_value_heads"] = 6
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(FormatError, match=r"has shape \(.*rows are expected"):
        open_checkpoint(path)


@pytest.mark.parametrize(("kinds", "key", "value"), [
    (["linear", "full", "linear", "full"], "full_attention_interval", 2),
    (["full", "linear", "linear", "linear"], "attention.recurrent_layers", [False, True, True, True]),
    (["linear", "linear", "linear", "linear"], "full_attention_interval", 5),
])  # fmt: skip
def test_which_layers_are_recurrent(tmp_path: Path, kinds: list[str], key: str, value: Any) -> None:
    path = seeing(tmp_path, {})
    config = json.loads((path / "config.json").read_text())
    config["text_config"]["layer_types"] = [f"{kind}_attention" for kind in kinds]
    (path / "config.json").write_text(json.dumps(config))
    assert open_checkpoint(path).metadata[f"qwen35moe.{key}"] == value


def test_files_whose_projections_are_together(load: Load, tmp_path: Path) -> None:
    """Early GGUF files of Qwen3-Next have ssm_in, of each head of keys query, key, values and gate."""
    convert(open_checkpoint(NEXT), tmp_path / "new.gguf", Options("f32"))
    file = read_gguf(tmp_path / "new.gguf")
    checkpoint = open_checkpoint(tmp_path / "new.gguf")
    stored = read_directory(NEXT)
    early = {}
    for name, info in file.tensors.items():
        if name.endswith("attn_qkv.weight"):
            layer = name.split(".")[1]
            source = stored[f"model.layers.{layer}.linear_attn.in_proj_qkvz.weight"]
            early[f"blk.{layer}.ssm_in.weight"] = replace(source, name=f"blk.{layer}.ssm_in.weight")
        elif not name.endswith("attn_gate.weight"):
            early[name] = info
    convert(replace(checkpoint, tensors=early), tmp_path / "early.gguf", Options("f32"))
    assert "blk.0.ssm_in.weight" in read_gguf(tmp_path / "early.gguf").tensors
    ids = golden_of(NEXT)["ids"].tolist()
    np.testing.assert_array_equal(load(tmp_path / "early.gguf").infer(ids), load(NEXT).infer(ids))


def test_heads_of_values_are_in_the_order_that_llama_cpp_has(tmp_path: Path) -> None:
    """Of Qwen3.5 the first of each head of keys, then the second: rows, values of vectors, channels and columns."""
    convert(open_checkpoint(NEWER), tmp_path / "m.gguf", Options("f32"))
    delta = model_spec(open_checkpoint(NEWER)).layers[0].mixer
    assert isinstance(delta, DeltaNetSpec) and delta.tiled
    stored = read_directory(NEWER)
    reader, written = FileReader(), read_gguf(tmp_path / "m.gguf").tensors

    def values(info: Any) -> np.ndarray:
        return np.array(load_plain(info, reader).numpy())

    def turned(array: np.ndarray, size: int) -> np.ndarray:
        heads = array.reshape(delta.key_heads, -1, size, *array.shape[1:])
        return heads.swapaxes(0, 1).reshape(array.shape)

    module, keys = "model.layers.0.linear_attn", 2 * delta.key_width
    qkv = values(stored[f"{module}.in_proj_qkv.weight"])
    expected = np.concatenate([qkv[:keys], turned(qkv[keys:], delta.value_size)])
    np.testing.assert_array_equal(values(written["blk.0.attn_qkv.weight"]), expected)
    beta = turned(values(stored[f"{module}.in_proj_b.weight"]), 1)
    np.testing.assert_array_equal(values(written["blk.0.ssm_beta.weight"]), beta)
    decay = turned(-np.exp(values(stored[f"{module}.A_log"])), 1)
    np.testing.assert_array_equal(values(written["blk.0.ssm_a"]), decay)
    output = turned(values(stored[f"{module}.out_proj.weight"]).T, delta.value_size).T
    np.testing.assert_array_equal(values(written["blk.0.ssm_out.weight"]), output)


def generated(model: Model, ids: list[int]) -> list[object]:
    return [(token.id, token.logprob, token.top) for token in model.generate(ids, PARAMS)]


def test_sequences_wait_for_slots_and_infer_takes_one(load: Load) -> None:
    """Seven sequences through two slots; one that runs is preempted for `infer` and begins again."""
    rng = np.random.default_rng(1)
    prompts = [rng.integers(3, 60, length).tolist() for length in (5, 300, 17, 40, 256, 1, 90)]
    alone = load(NEXT)
    expected = [generated(alone, ids) for ids in prompts]
    logits = alone.infer(prompts[3])
    model = load(NEXT, sequences=2, chunk=64)
    waiting = [model.sequence(ids, PARAMS) for ids in prompts]
    for sequence in waiting:
        model.engine.add(sequence)
    together = 0
    while any(sequence.finish_reason is None for sequence in waiting):
        model.engine.step()
        together = max(together, model.engine.running)
        if model.engine.steps == 5:
            np.testing.assert_array_equal(model.infer(prompts[3]), logits)
    assert together == 2
    assert sum(sequence.preempted for sequence in waiting) >= 1
    assert [[(token.id, token.logprob, token.top) for token in each.output] for each in waiting] == expected
    states = model.engine.cache.states
    assert states is not None and states.free == states.slots == 2


def test_slots_are_free_again_after_cancel_and_errors(load: Load, tmp_path: Path) -> None:
    model = load(NEXT, sequences=2)
    states = model.engine.cache.states
    assert states is not None
    first, second = model.generate([5, 6, 7], PARAMS), model.generate([8, 9], PARAMS)
    next(first), next(second)
    assert not states.free
    first.close()
    assert states.free == 1
    states.layers[0].tensors["heads"].numpy()[...] = np.nan  # of the one that runs, and of the slot that is free
    with pytest.raises(NumericalError, match=r"blk\.0\.ssm_a"):
        list(second)
    assert states.free == 2
    assert generated(model, [5, 6, 7]) == generated(load(NEXT), [5, 6, 7])


def test_the_plan_counts_the_slots(load: Load) -> None:
    few, many = (load(NEXT, sequences=count, context=256, speculate="off") for count in (1, 3))
    states = many.engine.cache.states
    assert states is not None
    assert many.plan.needs.states == states.nbytes > 2 * few.plan.needs.states
    assert states.slot_bytes == 3 * (4 * 16 * 16 + 3 * 128) * 4
    assert "states" in many.plan.describe()
    assert many.engine.cache.token_bytes == 2 * 2 * 32 * 2  # of the one layer with attention


# ---- prompts that begin alike ----------------------------------------------------------------------------------------


def found(model: Model, ids: list[int]) -> tuple[list[object], int]:
    """All that is said of each token, and how many tokens of the prompt need not be computed."""
    generation = model.generate(ids, PARAMS)
    return [(token.id, token.logprob, token.top) for token in generation], generation.cached


@pytest.fixture
def prompts() -> list[list[int]]:
    rng = np.random.default_rng(5)
    system = rng.integers(3, 60, 340).tolist()
    return [[*system, *rng.integers(3, 60, more).tolist()] for more in (100, 80, 90)]


@pytest.mark.parametrize("path", [NEXT, NEWER], ids=["grouped", "tiled"])
@pytest.mark.parametrize("chunk", [512, 100, 7])
def test_prompts_go_on_from_states_with_the_same_bits(
    load: Load, prompts: list[list[int]], path: Path, chunk: int
) -> None:
    alone = load(path)
    shared = load(path, sequences=3, share_prefixes=True, chunk=chunk)
    tokens, cached = found(shared, prompts[0])
    assert (tokens, cached) == (found(alone, prompts[0])[0], 0)
    turn = [*prompts[0], *(token[0] for token in tokens), 5, 6, 7]  # type: ignore[index]
    for ids, expected in [
        (prompts[1], 256),  # the first place of all
        (prompts[2], 340),  # where the first two parted
        (prompts[0], 440 - 16),
        (turn, 479),  # all but the last token generated, which was never computed
        (prompts[1], 420 - 16),
    ]:
        assert found(shared, ids) == (found(alone, ids)[0], expected)


def test_prompts_that_come_together(load: Load, prompts: list[list[int]]) -> None:
    alone = load(NEXT)
    expected = [found(alone, ids)[0] for ids in (*prompts, prompts[0])]
    shared = load(NEXT, sequences=4, share_prefixes=True, chunk=64)
    running = [shared.sequence(ids, PARAMS) for ids in (*prompts, prompts[0])]
    for sequence in running:
        shared.engine.add(sequence)
    while any(sequence.finish_reason is None for sequence in running):
        shared.engine.step()
    assert [[(token.id, token.logprob, token.top) for token in each.output] for each in running] == expected
    assert [each.cached for each in running] == [0, 256, 256, 424]


def test_a_preempted_sequence_goes_on_where_it_was(load: Load, prompts: list[list[int]]) -> None:
    alone, model = load(NEXT), load(NEXT, sequences=2, share_prefixes=True)
    first, second = (model.sequence(ids, PARAMS) for ids in prompts[:2])
    model.engine.add(first)
    model.engine.add(second)
    while len(second.generated) < 5:
        model.engine.step()
    model.engine._preempt()
    assert (second.preempted, second.computed) == (1, 0)
    model.engine.step()
    assert second.computed >= len(second.ids) - 2
    while first.finish_reason is None or second.finish_reason is None:
        model.engine.step()
    tokens = [(token.id, token.logprob, token.top) for token in second.output]
    assert tokens == found(alone, prompts[1])[0]


def test_states_of_replaced_experts_are_not_used_again(load: Load, prompts: list[list[int]]) -> None:
    model = load(NEXT, sequences=2, share_prefixes=True)
    assert [found(model, prompts[0])[1] for _ in range(2)] == [0, 424]
    model.experts.store.replace(0, None)
    assert [found(model, prompts[0])[1] for _ in range(2)] == [0, 424]


def test_a_step_that_is_broken_off_leaves_no_state(
    load: Load, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After it, states are further than the tokens that count as computed."""
    alone, model = load(NEXT), load(NEXT, sequences=2, share_prefixes=True)
    generation = model.generate(prompts[0], PARAMS)
    next(generation)
    decoder = model.engine.decoder
    logits = decoder._experts.routing.record

    def interrupt(chosen: Any) -> None:
        logits(chosen)
        raise KeyboardInterrupt

    monkeypatch.setattr(decoder._experts.routing, "record", interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.engine.step()
    monkeypatch.undo()
    assert found(model, prompts[0]) == (found(alone, prompts[0])[0], 424)
    states = model.engine.cache.states
    assert states is not None
    taken = {model.engine.cache.reserve() for _ in range(states.slots)}
    assert taken == set(range(states.slots))


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("chunk", [640, 64])
def test_a_full_cache_makes_the_latest_wait_and_changes_no_token(load: Load, share: bool, chunk: int) -> None:
    """Six blocks, and few slots, for nine sequences that grow to three blocks each; half of them begin alike."""
    alone = load(NEXT, context=640)
    small = load(NEXT, context=640, sequences=2, share_prefixes=share, chunk=chunk)
    rng = np.random.default_rng(8)
    common = rng.integers(3, 60, 257).tolist()
    lengths = [20, 30, 240, 250, 255, 256, 257, 20, 40]
    prompts = [(common if place % 2 else rng.integers(3, 60, 257).tolist())[:n] for place, n in enumerate(lengths)]
    params = [
        SamplingParams(max_tokens=600 - length, temperature=place % 2, seed=place, ignore_eos=True)
        for place, length in enumerate(lengths)
    ]
    expected = [list(alone.generate(*given)) for given in zip(prompts, params, strict=True)]
    waiting = [small.sequence(*given) for given in zip(prompts, params, strict=True)]
    for sequence in waiting:
        small.engine.add(sequence)
    while any(sequence.finish_reason is None for sequence in waiting):
        before = small.engine.steps
        small.engine.step()
        assert small.engine.steps > before, "nothing runs, and there are some that wait"
    assert [list(sequence.output) for sequence in waiting] == expected
    assert small.engine.cache.free_blocks == small.engine.cache.blocks
    states = small.engine.cache.states
    assert states is not None
    assert {small.engine.cache.reserve() for _ in range(states.slots)} == set(range(states.slots))

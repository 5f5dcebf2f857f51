"""Conversion: what is written is what the source holds, interrupted work goes on, nothing half-done looks whole."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import reference
from checkpoint_files import (
    EXPERTS,
    HEAD_DIM,
    LAYERS,
    directory_tensors,
    model_metadata,
    model_tensors,
    write_directory,
    write_model,
    write_safetensors,
)  # fmt: skip

from colibri.conversion import convert as conversion, pieces
from colibri.conversion.convert import Options, convert
from colibri.conversion.dequantize import READABLE
from colibri.conversion.gguf_writer import GGUFWriter
from colibri.conversion.imatrix import read_imatrix
from colibri.conversion.journal import Journal
from colibri.conversion.mixes import MIXES, Context, mix, more_bits, tensor_type
from colibri.conversion.plan import plan_outputs
from colibri.errors import ArgumentError, FileError, FormatError, UnsupportedError
from colibri.models.registry import open_checkpoint
from colibri.weights.gguf_writer import CHECKSUMS, TensorSpec, Value


def run(source: Path, destination: Path, quantization: str = "f32", **options: Any) -> conversion.Report:
    return convert(open_checkpoint(source), destination, Options(quantization, **options))


def read_all(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Every tensor as the gguf package sees it, dequantised: name -> float32 in numpy order."""
    tensors = {}
    for tensor in gguf.GGUFReader(path).tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        tensors[tensor.name] = values.reshape([int(size) for size in tensor.shape[::-1]])
    return tensors


def source_values(family: str) -> dict[str, np.ndarray[Any, Any]]:
    return {
        name: np.frombuffer(data, np.float32).reshape(shape)
        for name, (_, shape, data) in directory_tensors(family).items()
    }


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "olmoe"])
def test_a_directory_becomes_the_same_numbers(tmp_path: Path, family: str) -> None:
    run(write_directory(tmp_path / "hf", family), tmp_path / "m.gguf")
    written, source = read_all(tmp_path / "m.gguf"), source_values(family)
    module = "block_sparse_moe.experts" if family == "mixtral" else "mlp.experts"
    up = "w3" if family == "mixtral" else "up_proj"
    np.testing.assert_array_equal(written["token_embd.weight"], source["model.embed_tokens.weight"])
    np.testing.assert_array_equal(written["blk.1.attn_v.weight"], source["model.layers.1.self_attn.v_proj.weight"])
    for expert in range(EXPERTS):
        np.testing.assert_array_equal(
            written["blk.1.ffn_up_exps.weight"][expert], source[f"model.layers.1.{module}.{expert}.{up}.weight"]
        )
    assert len(written) == 3 + LAYERS * (10 if family == "mixtral" else 12)


def test_queries_and_keys_are_stored_for_rope_on_adjacent_pairs(tmp_path: Path) -> None:
    """llama.cpp turns pairs (2i, 2i + 1) of a head where transformers turns (i, i + half)."""
    run(write_directory(tmp_path / "hf", "mixtral"), tmp_path / "m.gguf")
    source = source_values("mixtral")["model.layers.0.self_attn.q_proj.weight"]
    heads = read_all(tmp_path / "m.gguf")["blk.0.attn_q.weight"].reshape(-1, HEAD_DIM, source.shape[1])
    original = source.reshape(-1, HEAD_DIM, source.shape[1])
    np.testing.assert_array_equal(heads[:, 0::2], original[:, : HEAD_DIM // 2])
    np.testing.assert_array_equal(heads[:, 1::2], original[:, HEAD_DIM // 2 :])
    again = open_checkpoint(tmp_path / "m.gguf").tensors["blk.0.attn_q.weight"]
    assert again.order is not None


def test_biases_are_reordered_like_their_rows(tmp_path: Path) -> None:
    source = write_directory(tmp_path / "hf", "mixtral")
    bias = np.arange(64, dtype=np.float32)
    extra = {f"model.layers.{layer}.self_attn.q_proj.bias": ("F32", (64,), bias.tobytes()) for layer in range(LAYERS)}
    write_safetensors(source / "model.safetensors", directory_tensors("mixtral") | extra)
    run(source, tmp_path / "m.gguf", "q8_0")
    written = read_all(tmp_path / "m.gguf")["blk.1.attn_q.bias"]
    np.testing.assert_array_equal(written[:HEAD_DIM], np.arange(HEAD_DIM).reshape(2, -1).T.reshape(-1))


def test_rows_that_are_not_whole_heads_are_refused(tmp_path: Path) -> None:
    source = write_directory(tmp_path / "hf", "mixtral", head_dim=24)
    with pytest.raises(FormatError, match="not whole heads of 24"):
        run(source, tmp_path / "m.gguf")


def test_small_pieces_give_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_directory(tmp_path / "hf", "mixtral", fused=True)
    run(source, tmp_path / "whole.gguf", "q8_0")
    monkeypatch.setattr(pieces, "CHUNK_VALUES", 100)
    run(source, tmp_path / "pieces.gguf", "q8_0", threads=3)
    assert (tmp_path / "whole.gguf").read_bytes() == (tmp_path / "pieces.gguf").read_bytes()


def test_converting_a_gguf_to_its_own_format_copies_the_tensors(tmp_path: Path) -> None:
    run(write_directory(tmp_path / "hf", "mixtral"), tmp_path / "one.gguf", "q8_0")
    run(tmp_path / "one.gguf", tmp_path / "two.gguf", "q8_0")
    assert (tmp_path / "one.gguf").read_bytes() == (tmp_path / "two.gguf").read_bytes()


def test_metadata_keeps_its_types_and_gains_the_tokenizer(tmp_path: Path) -> None:
    metadata = model_metadata() | {"olmoe.long": Value("uint64", 5), "olmoe.small": Value("uint8", 3)}
    write_model(tmp_path / "s.gguf", metadata)
    tokens = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b", "ab"]}
    tokens["tokenizer.ggml.merges"] = ["a b"]
    run(tmp_path / "s.gguf", tmp_path / "m.gguf", "bf16", tokenizer=tokens, name="A name")
    fields = gguf.GGUFReader(tmp_path / "m.gguf").fields
    assert fields["olmoe.long"].types == [gguf.GGUFValueType.UINT64]
    assert fields["olmoe.small"].types == [gguf.GGUFValueType.UINT8]
    assert fields["tokenizer.ggml.tokens"].contents() == ["a", "b", "ab"]
    assert fields["general.name"].contents() == "A name"
    assert fields["general.file_type"].contents() == 32
    assert fields["general.alignment"].contents() == 4096
    assert all(tensor.data_offset % 4096 == 0 for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors)


def test_every_expert_has_its_checksum(tmp_path: Path) -> None:
    run(write_directory(tmp_path / "hf", "olmoe"), tmp_path / "m.gguf", "q8_0")
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    checksums = iter(checkpoint.metadata[CHECKSUMS])
    data = (tmp_path / "m.gguf").read_bytes()
    for output in plan_outputs(checkpoint, mix("q8_0")):
        for part in output.parts:
            assert zlib.crc32(data[part.offset : part.offset + part.nbytes]) == next(checksums)
    assert next(checksums, None) is None


@pytest.mark.parametrize("quantization", MIXES)
def test_every_quantisation_stays_near_the_source(tmp_path: Path, quantization: str) -> None:
    run(write_directory(tmp_path / "hf", "qwen3_moe"), tmp_path / "m.gguf", quantization)
    written, source = read_all(tmp_path / "m.gguf"), source_values("qwen3_moe")
    original = source["model.layers.0.mlp.experts.2.gate_proj.weight"]
    error = np.abs(written["blk.0.ffn_gate_exps.weight"][2] - original).max()
    chosen = tensor_type(mix(quantization), "blk.0.ffn_gate_exps.weight", original.shape, Context(2, 4, tied=False))
    assert error <= {"MXFP4": 1.2, "Q4_0": 0.4, "Q4_1": 0.4, "IQ4_NL": 0.5, "Q5_0": 0.2, "Q5_1": 0.2}.get(chosen, 0.05)
    np.testing.assert_array_equal(written["blk.0.ffn_gate_inp.weight"], source["model.layers.0.mlp.gate.weight"])


def test_a_split_holds_everything(tmp_path: Path) -> None:
    source = write_directory(tmp_path / "hf", "mixtral")
    report = run(source, tmp_path / "m.gguf", split_bytes=60_000)
    assert len(report.files) > 2
    run(report.files[0], tmp_path / "joined.gguf")
    run(source, tmp_path / "direct.gguf")
    joined, direct = read_all(tmp_path / "joined.gguf"), read_all(tmp_path / "direct.gguf")
    assert all(np.array_equal(joined[name], direct[name]) for name in direct)


def test_one_expert(tmp_path: Path) -> None:
    run(write_directory(tmp_path / "hf", "mixtral"), tmp_path / "e.gguf", only_expert=2)
    written, source = read_all(tmp_path / "e.gguf"), source_values("mixtral")
    assert sorted(written) == sorted(
        f"blk.{layer}.ffn_{part}.2.weight" for layer in range(LAYERS) for part in ("gate", "up", "down")
    )
    original = source["model.layers.1.block_sparse_moe.experts.2.w2.weight"]
    np.testing.assert_array_equal(written["blk.1.ffn_down.2.weight"], original)
    with pytest.raises(ArgumentError, match="experts are 0 to 3"):
        run(tmp_path / "hf", tmp_path / "x.gguf", only_expert=4)


class StopHereError(Exception):
    """Stands for a kill in the middle of a conversion."""


@pytest.mark.parametrize("split", [None, 60_000])
@pytest.mark.parametrize("after", [0, 1, 7, 13, 22])
def test_an_interrupted_conversion_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int, split: int | None
) -> None:
    source = write_directory(tmp_path / "hf", "mixtral")
    (tmp_path / "whole").mkdir()
    whole = run(source, tmp_path / "whole/m.gguf", "q8_0", split_bytes=split)
    calls: list[int] = []
    add = Journal.add

    def stop(self: Journal, checksums: Any) -> None:
        if len(calls) == after:
            raise StopHereError
        calls.append(0)
        add(self, checksums)

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "add", stop)
        with pytest.raises(StopHereError):
            run(source, tmp_path / "m.gguf", "q8_0", split_bytes=split)
    assert not list(tmp_path.glob("*.gguf"))
    report = run(source, tmp_path / "m.gguf", "q8_0", split_bytes=split)
    assert report.resumed == after
    for file, expected in zip(report.files, whole.files, strict=True):
        assert file.read_bytes() == expected.read_bytes()
    assert sorted(tmp_path.glob("m*")) == sorted(report.files)


@pytest.mark.parametrize("split", [None, 60_000])
def test_a_kill_between_the_last_name_and_the_journals_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: int | None
) -> None:
    """What the journal says is written has another name by then; it must not stand in the way for ever."""
    source = write_directory(tmp_path / "hf", "mixtral")
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "remove", lambda self: None)
        first = run(source, tmp_path / "m.gguf", "q8_0", split_bytes=split)
    assert (tmp_path / "m.gguf.journal").exists()
    before = [file.read_bytes() for file in first.files]
    report = run(source, tmp_path / "m.gguf", "q8_0", split_bytes=split, replace=True)
    assert report.resumed == 0
    assert [file.read_bytes() for file in report.files] == before
    assert not (tmp_path / "m.gguf.journal").exists()


def test_another_conversion_does_not_go_on_with_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_directory(tmp_path / "hf", "mixtral")

    def stop(*_: Any, **__: Any) -> None:
        raise StopHereError

    with monkeypatch.context() as patched:
        patched.setattr(conversion, "_read_back", stop)
        with pytest.raises(StopHereError):
            run(source, tmp_path / "m.gguf", "q8_0", split_bytes=30_000)
    assert run(source, tmp_path / "m.gguf", "bf16").resumed == 0
    assert [file.name for file in tmp_path.glob("m*")] == ["m.gguf"]
    assert read_all(tmp_path / "m.gguf")["output.weight"].shape == (96, 64)


def test_damage_between_writing_and_reading_back_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_back = conversion._read_back

    def damage(files: list[Path], checksums: list[int]) -> None:
        with files[0].open("r+b") as file:
            file.seek(-5000, os.SEEK_END)
            file.write(b"\xff\xfe")
        read_back(files, checksums)

    monkeypatch.setattr(conversion, "_read_back", damage)
    with pytest.raises(FormatError, match=r"reads back as other bytes.*run the same command again"):
        run(write_directory(tmp_path / "hf", "olmoe"), tmp_path / "m.gguf")
    assert not (tmp_path / "m.gguf").exists()


def test_two_conversions_to_one_file(tmp_path: Path) -> None:
    source = write_directory(tmp_path / "hf", "olmoe")
    journal = Journal(tmp_path / "m.gguf", "", lambda count: [])
    with journal.locked(), pytest.raises(FileError, match="another conversion"):
        run(source, tmp_path / "m.gguf")


def test_a_full_disk_is_noticed_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    with pytest.raises(FileError, match=r"1000 B free, the output needs \d+\.\d KiB more"):
        run(write_directory(tmp_path / "hf", "olmoe"), tmp_path / "m.gguf")
    assert [file.name for file in tmp_path.iterdir()] == ["hf"]


@pytest.mark.parametrize("name", ["blk.1.ffn_up_exps.weight", "output.weight"])
@pytest.mark.parametrize("quantization", ["q8_0", "q4_0"])
def test_a_damaged_source_is_refused_by_name(tmp_path: Path, quantization: str, name: str) -> None:
    """Also where its blocks are copied as they are: damage must not get checksums of its own."""
    source = tmp_path / "s.gguf"
    run(write_directory(tmp_path / "hf", "mixtral"), source, "q8_0")
    part = open_checkpoint(source).tensors[name]
    part, text = (part.expert(2), rf"{name}\[2\] is damaged") if "exps" in name else (part, f"{name} is damaged")
    data = bytearray(source.read_bytes())
    data[part.offset + part.nbytes - 7] ^= 4
    source.write_bytes(data)
    with pytest.raises(FormatError, match=text):
        run(source, tmp_path / "m.gguf", quantization)
    assert not list(tmp_path.glob("m.gguf*"))
    expert = {"only_expert": 2} if "exps" in name else {}
    with pytest.raises(FormatError, match=text):
        run(source, tmp_path / "m.gguf", quantization, **expert)
    if expert:
        run(source, tmp_path / "other.gguf", quantization, only_expert=1)


def test_a_source_with_damaged_metadata_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "s.gguf"
    run(write_directory(tmp_path / "hf", "mixtral"), source, "q8_0", name="Tiny")
    source.write_bytes(source.read_bytes().replace(b"Tiny", b"Tinz"))
    with pytest.raises(FormatError, match="its metadata is not what"):
        run(source, tmp_path / "m.gguf", "q4_0")
    assert not list(tmp_path.glob("m.gguf*"))


def test_a_value_that_is_not_finite_is_named(tmp_path: Path) -> None:
    source = write_directory(tmp_path / "hf", "olmoe")
    tensors = directory_tensors("olmoe")
    name = "model.layers.1.mlp.experts.3.up_proj.weight"
    kind, shape, data = tensors[name]
    values = np.frombuffer(data, np.float32).copy()
    values[shape[1] * 5 + 1] = np.nan
    write_safetensors(source / "model.safetensors", tensors | {name: (kind, shape, values.tobytes())})
    with pytest.raises(FormatError, match=r"blk\.1\.ffn_up\.3\.weight: row 5 holds a NaN"):
        run(source, tmp_path / "m.gguf", "q8_0")
    assert not list(tmp_path.glob("m.gguf*"))


def test_missing_experts_and_unread_formats_are_named(tmp_path: Path) -> None:
    specs = [spec for spec in model_tensors(per_expert=True) if spec.name != "blk.1.ffn_up.2.weight"]
    write_model(tmp_path / "s.gguf", specs=specs)
    with pytest.raises(FormatError, match=r"blk\.1\.ffn_up"):
        run(tmp_path / "s.gguf", tmp_path / "m.gguf")
    odd = TensorSpec("output.weight", "Q8_1", (96, 64))
    specs = [odd if spec.name == odd.name else spec for spec in model_tensors()]
    write_model(tmp_path / "q.gguf", specs=specs)
    with pytest.raises(UnsupportedError, match="Q8_1"):
        run(tmp_path / "q.gguf", tmp_path / "m.gguf")


def test_formats_that_are_not_run_can_be_converted(tmp_path: Path) -> None:
    specs = model_tensors(kind="F64")
    source = {}
    with GGUFWriter(tmp_path / "s.gguf", model_metadata(), specs) as writer:
        for spec in specs:
            source[spec.name] = np.random.default_rng(len(spec.name)).normal(size=spec.shape).astype(np.float32)
            values = source[spec.name].astype("<f8" if spec.type == "F64" else "<f4")
            writer.write(spec.name, [values.view(np.uint8)])
    with pytest.raises(UnsupportedError, match="F64"):
        open_checkpoint(tmp_path / "s.gguf")
    convert(open_checkpoint(tmp_path / "s.gguf", READABLE), tmp_path / "m.gguf", Options("f32"))
    written = read_all(tmp_path / "m.gguf")
    assert all(np.array_equal(source[name], written[name]) for name in source)


def test_mixes_give_more_bits_where_they_say() -> None:
    eight = Context(layers=32, experts=8, tied=False)
    chosen = mix("Q4_K_M")
    assert tensor_type(chosen, "output.weight", (10, 512), eight) == "Q6_K"
    assert tensor_type(chosen, "blk.5.attn_k.weight", (10, 512), eight) == "Q8_0"
    assert tensor_type(chosen, "blk.5.attn_output.weight", (10, 512), eight) == "Q5_K"
    assert tensor_type(chosen, "blk.0.ffn_down_exps.weight", (8, 10, 512), eight) == "Q6_K"
    assert tensor_type(chosen, "blk.4.ffn_down_exps.weight", (8, 10, 512), eight) == "Q4_K"
    assert tensor_type(chosen, "blk.4.ffn_gate_inp.weight", (8, 512), eight) == "F32"
    assert tensor_type(chosen, "blk.4.ffn_up_exps.weight", (8, 10, 96), eight) == "Q5_0"
    assert tensor_type(chosen, "blk.4.ffn_up_exps.weight", (8, 10, 100), eight) == "F16"
    many = Context(layers=48, experts=128, tied=True)
    assert tensor_type(chosen, "blk.0.attn_v.weight", (10, 512), many) == "Q6_K"
    assert tensor_type(chosen, "blk.0.attn_k.weight", (10, 512), many) == "Q4_K"
    assert tensor_type(chosen, "token_embd.weight", (10, 512), many) == "Q6_K"
    assert tensor_type(mix("mxfp4_moe"), "blk.0.ffn_up_exps.weight", (8, 10, 512), many) == "MXFP4"
    assert tensor_type(mix("mxfp4_moe"), "blk.0.attn_q.weight", (10, 512), many) == "Q8_0"
    small = mix("q3_k_m")
    types = [tensor_type(small, f"blk.{layer}.ffn_down_exps.weight", (8, 10, 512), many) for layer in (0, 2, 3)]
    assert types == ["Q5_K", "Q5_K", "Q4_K"]
    assert [tensor_type(small, f"blk.{layer}.attn_v.weight", (10, 512), many) for layer in (1, 2)] == ["Q5_K", "Q4_K"]
    shared, important = many._replace(heads_a_value=4), many._replace(important=True)
    assert tensor_type(mix("q2_k"), "blk.9.attn_v.weight", (10, 512), shared) == "Q4_K"
    assert tensor_type(mix("q2_k"), "blk.9.attn_v.weight", (10, 512), many) == "Q3_K"
    for name, plain, weighed in (("iq4_xs", "Q5_K", "IQ4_XS"), ("q5_0", "Q5_0", "Q5_1"), ("q4_0", "Q4_0", "Q4_1")):
        assert tensor_type(mix(name), "blk.5.ffn_down_exps.weight", (8, 10, 512), many) == plain
        assert tensor_type(mix(name), "blk.5.ffn_down_exps.weight", (8, 10, 512), important) == weighed
    odd = {"q2_k": "Q4_0", "q3_k_l": "Q4_0", "iq4_xs": "IQ4_NL", "q4_k_s": "Q5_0", "q5_k_s": "Q5_1", "q6_k": "Q8_0"}
    for name, instead in odd.items():
        assert tensor_type(mix(name), "blk.9.attn_q.weight", (10, 704), many) == instead
        assert tensor_type(mix(name), "blk.9.attn_q.weight", (10, 100), many) == "F16"
    assert [layer for layer in range(16) if more_bits(layer, 16)] == [0, 1, 4, 7, 10, 13, 14, 15]
    with pytest.raises(ArgumentError, match="q4_k_m"):
        mix("iq1_s")


def test_importance_reaches_the_quantiser(tmp_path: Path) -> None:
    source, name = write_directory(tmp_path / "hf", "qwen3_moe"), "blk.0.ffn_gate_exps.weight"
    run(source, tmp_path / "plain.gguf", "q4_0")
    sums, counts = np.ones((EXPERTS, 64), np.float32), np.array([50, 0, 9, 100], np.float32)
    sums[3, :8] = 1000
    specs = [TensorSpec(f"{name}.in_sum2", "F32", sums.shape), TensorSpec(f"{name}.counts", "F32", (EXPERTS, 1))]
    with GGUFWriter(tmp_path / "imatrix.gguf", {"general.type": "imatrix"}, specs) as writer:
        writer.write(specs[0].name, [sums])
        writer.write(specs[1].name, [counts])
    importance = read_imatrix(tmp_path / "imatrix.gguf")
    assert importance.rarely_seen() == [f"{name}[1]", f"{name}[2]"]
    run(source, tmp_path / "weighted.gguf", "q4_0", importance=importance)
    plain, weighted = read_all(tmp_path / "plain.gguf"), read_all(tmp_path / "weighted.gguf")
    original = source_values("qwen3_moe")["model.layers.0.mlp.experts.3.gate_proj.weight"]
    np.testing.assert_array_equal(plain[name][1], weighted[name][1])
    miss = [np.square(tensors[name][3] - original)[:, :8].sum() for tensors in (plain, weighted)]
    assert miss[1] < 0.8 * miss[0]


def dat(name: bytes, calls: int, values: np.ndarray[Any, Any]) -> bytes:
    """One entry of the older importance format."""
    return struct.pack(f"<i{len(name)}sii", len(name), name, calls, values.size) + values.astype("<f4").tobytes()


def test_the_older_importance_format(tmp_path: Path) -> None:
    sums = np.arange(EXPERTS * 64, dtype=np.float32)
    entries = dat(b"blk.0.ffn_gate_exps.weight", 7, sums) + dat(b"blk.0.attn_q.weight", 7, sums[:64])
    (tmp_path / "i.dat").write_bytes(struct.pack("<i", 2) + entries)
    importance = read_imatrix(tmp_path / "i.dat")
    outputs = plan_outputs(open_checkpoint(write_directory(tmp_path / "hf", "olmoe")), mix("q8_0"))
    chosen = importance.for_outputs(outputs)
    assert {name: weights.shape for name, weights in chosen.items()} == {
        "blk.0.ffn_gate_exps.weight": (EXPERTS, 64), "blk.0.attn_q.weight": (64,),
    }  # fmt: skip
    (tmp_path / "other.dat").write_bytes(struct.pack("<i", 1) + dat(b"blk.0.attn_q.weight", 7, sums[:32]))
    with pytest.raises(FormatError, match="another model"):
        read_imatrix(tmp_path / "other.dat").for_outputs(outputs)


@pytest.mark.parametrize("data", [
    b"", b"\1", struct.pack("<i", -1), struct.pack("<i", 5), struct.pack("<i", 0), struct.pack("<iii", 1, 1 << 30, 5),
    struct.pack("<i", 1) + dat(b"a", 1, np.ones(3))[:-2], struct.pack("<i", 1) + dat(b"a", 1, np.array([np.nan])),
])  # fmt: skip
def test_damaged_importances(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "i.dat").write_bytes(data)
    with pytest.raises(FormatError, match=r"i\.dat"):
        read_imatrix(tmp_path / "i.dat")


def test_formats_match_the_references(tmp_path: Path) -> None:
    """GGUF's codes are those that the reference names."""
    run(write_directory(tmp_path / "hf", "olmoe"), tmp_path / "m.gguf", "mxfp4_moe")
    codes = {tensor.name: int(tensor.tensor_type) for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    assert codes["blk.0.ffn_gate_exps.weight"] == reference.FORMATS["MXFP4"].code
    assert codes["blk.0.attn_q.weight"] == reference.FORMATS["Q8_0"].code


def test_an_output_matrix_where_llama_cpp_wants_one(tmp_path: Path) -> None:
    source = write_directory(tmp_path / "hf", "olmoe", tie_word_embeddings=True)
    tensors = directory_tensors("olmoe")
    del tensors["lm_head.weight"]
    write_safetensors(source / "model.safetensors", tensors)
    run(source, tmp_path / "m.gguf", "q8_0")
    written = read_all(tmp_path / "m.gguf")
    np.testing.assert_array_equal(written["output.weight"], written["token_embd.weight"])


def test_llama3_scaling_becomes_a_table(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 64}  # fmt: skip
    run(write_directory(tmp_path / "hf", "mixtral", rope_scaling=scaling), tmp_path / "m.gguf")
    frequencies = 5000.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    factors = []
    for frequency in frequencies:  # as transformers has it, by wavelengths
        wavelength = 2 * np.pi / frequency
        smooth = (64 / wavelength - 1) / (4 - 1)
        middle = 1 / ((1 - smooth) / 8 + smooth)
        factors.append(1.0 if wavelength < 64 / 4 else 8.0 if wavelength > 64 else middle)
    np.testing.assert_allclose(read_all(tmp_path / "m.gguf")["rope_freqs.weight"], factors, rtol=1e-5)
    assert not any("scaling" in key for key in open_checkpoint(tmp_path / "m.gguf").metadata)
    run(tmp_path / "m.gguf", tmp_path / "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "m.gguf").read_bytes()

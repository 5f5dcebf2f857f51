"""What is not a model says what it is and what to do."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from colibri.conversion.imatrix import read_imatrix
from colibri.conversion.source import open_source
from colibri.errors import ColibriError, FileError, FormatError, UnsupportedError
from colibri.models.registry import model_spec, open_checkpoint
from colibri.text import load_tokenizer
from colibri.weights.gguf_writer import gguf_header
from colibri.weights.repository_name import repository_name

GOLDEN = Path(__file__).parents[2] / "golden" / "qwen3_moe-gqa-f32"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d" * 32 + b"\nsize 12345\n"


def _tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(GOLDEN / "config.json", "config.json")
    return buffer.getvalue()


def _zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.write(GOLDEN / "config.json", "config.json")
    return buffer.getvalue()


OTHERS: dict[str, tuple[bytes, str]] = {
    "lfs": (POINTER, r"Git LFS pointer.* of 12345 bytes; run `git lfs pull`"),
    "html": (b"<!DOCTYPE html>\n<html>log in", "an HTML page"),
    "html with a mark": (b"\xef\xbb\xbf \n<HTML><body>404", "an HTML page"),
    "xml": (b'<?xml version="1.0"?><Error><Code>AccessDenied', "an XML text"),
    "empty": (b"", "is empty; fetch the file again"),
    "gzip": (gzip.compress(b"GGUF" * 99), "packed by gzip"),
    "zstd": (b"\x28\xb5\x2f\xfd" + bytes(99), "packed by zstd"),
    "xz": (b"\xfd7zXZ\0" + bytes(99), "packed by xz"),
    "tar": (_tar(), "a tar archive"),
    "zip": (_zip(), "a zip archive"),
    "pickle": (b"\x80\x02}q\x00.", "a pickle"),
    "numpy": (b"\x93NUMPY\x01\x00", "an array of numpy"),
    "safetensors": ((GOLDEN / "model.safetensors").read_bytes(), "a safetensors file; give the folder"),
    "json": ((GOLDEN / "config.json").read_bytes(), "a JSON text; give the folder"),
    "zeros": (bytes(4096), "zeros at its beginning"),
    "old": (b"tjgg\x03\0\0\0" + bytes(99), "from before GGUF"),
    "gguf": ((GOLDEN / "model.gguf").read_bytes(), "a GGUF file"),
}


def _use(path: Path) -> object:
    tokenizer = load_tokenizer(open_checkpoint(path).tokenizer_source)
    return tokenizer.encode("x"), tokenizer.chat_templates


def _refused(path: Path, found: str) -> None:
    with pytest.raises(FormatError, match=found):
        open_checkpoint(path)


@pytest.mark.parametrize("name", [name for name in OTHERS if name != "gguf"])
def test_in_the_place_of_a_gguf_file(tmp_path: Path, name: str) -> None:
    data, found = OTHERS[name]
    (tmp_path / "m.gguf").write_bytes(data)
    _refused(tmp_path / "m.gguf", found)


@pytest.mark.parametrize(
    ("file", "own"),
    [("config.json", "json"), ("model.safetensors", "safetensors"), ("tokenizer.json", "json"),
     ("tokenizer_config.json", "json"), ("chat_template.jinja", "all but lfs")],
)  # fmt: skip
def test_in_a_directory(tmp_path: Path, file: str, own: str) -> None:
    for name, (data, found) in OTHERS.items():
        if name == own or (own == "all but lfs" and name != "lfs"):
            continue
        folder = tmp_path / name
        shutil.copytree(GOLDEN, folder)
        (folder / file).write_bytes(data)
        with pytest.raises(FormatError, match=f"{file}.*{found}"):
            _use(folder)


def test_a_mark_before_json_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(GOLDEN, folder)
    text = (folder / "config.json").read_text()
    for encoding in ("utf-8-sig", "utf-16"):
        (folder / "config.json").write_text(text, encoding=encoding)
        _refused(folder, r"config\.json: is a text that begins with a byte-order mark")


def test_in_the_place_of_what_only_convert_reads(tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "config.json", tmp_path)
    for name in ("lfs", "html", "gzip", "empty"):
        (tmp_path / "pytorch_model.bin").write_bytes(OTHERS[name][0])
        with pytest.raises(FormatError, match=OTHERS[name][1]):
            open_source(tmp_path)
        with pytest.raises(FormatError, match=OTHERS[name][1]):
            read_imatrix(tmp_path / "pytorch_model.bin")


@pytest.mark.parametrize("name", ["m.gguf-split-b", "m.gguf.part2of3", "m.gguf.part-ab", "m.gguf.002", "m.gguf.ab"])
def test_a_part_of_a_file_that_was_cut(tmp_path: Path, name: str) -> None:
    whole = (GOLDEN / "model.gguf").read_bytes()
    for data in (whole[: len(whole) // 2], b"\x11\x22" + whole[len(whole) // 2 :]):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ColibriError, match=r"one part of a file that was cut: join all parts .*\(cat\)"):
            open_checkpoint(tmp_path / name)
    (tmp_path / "m.gguf").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FileError, match=r"truncated or damaged$"):
        open_checkpoint(tmp_path / "m.gguf")


@pytest.mark.parametrize(("metadata", "found"), [
    ({"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora"}, "a LoRA adapter"),
    ({"general.architecture": "clip"}, r"\(mmproj\), and only text is read"),
    ({"general.architecture": "clip", "general.type": "mmproj"}, r"give the model's own file"),
    ({"general.architecture": "llama", "general.type": "imatrix"}, "an importance matrix"),
    ({"general.architecture": "qwen3", "general.type": "model"}, "this is a dense model"),
    ({"general.architecture": "qwen3", "general.type": "of tomorrow"}, "general.type is 'of tomorrow'"),
])  # fmt: skip
def test_gguf_files_of_other_things(tmp_path: Path, metadata: dict[str, object], found: str) -> None:
    (tmp_path / "m.gguf").write_bytes(gguf_header(metadata, []))
    with pytest.raises(UnsupportedError, match=found):
        open_checkpoint(tmp_path / "m.gguf")


def test_directories_of_other_things(tmp_path: Path) -> None:
    def refused(found: str) -> None:
        with pytest.raises(ColibriError, match=found):
            model_spec(open_checkpoint(tmp_path))

    refused("so it is not a model's directory$")
    (tmp_path / "q4").mkdir()
    shutil.copy(GOLDEN / "model.gguf", tmp_path / "q4")
    refused(r"give .*q4/model\.gguf")
    shutil.copy(GOLDEN / "model.safetensors", tmp_path)
    refused("fetch config.json and tokenizer.json, too")
    shutil.copy(GOLDEN / "model.gguf", tmp_path)
    refused(r"give one of the files model\.gguf")
    (tmp_path / "adapter_config.json").write_text("{}")
    refused("a LoRA adapter")
    (tmp_path / "model.safetensors").unlink()
    shutil.copy(GOLDEN / "config.json", tmp_path)
    refused(r"no model\*\.safetensors file; give one of the files model\.gguf")
    (tmp_path / "model.gguf").unlink()
    np.save(tmp_path / "adapter_model.bin", np.zeros(1))
    refused("LoRA adapter")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    refused("not a Mixture-of-Experts model")


def test_a_snapshot_is_called_by_its_repository(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--Org-1--Name--of-it" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    for file in ("config.json", "model.safetensors"):
        (snapshot / file).symlink_to(GOLDEN / file)
    assert open_checkpoint(snapshot).name == "Org-1/Name--of-it"
    (tmp_path / "mine").symlink_to(snapshot)
    assert open_checkpoint(tmp_path / "mine").name == "Org-1/Name--of-it"
    assert repository_name(snapshot / "q4" / "m.gguf") == "Org-1/Name--of-it"
    for other in (GOLDEN, tmp_path / "snapshots" / "x", tmp_path / "datasets--a--b" / "snapshots" / "x"):
        assert repository_name(other) is None

"""What a file is that is not what its name says: a pointer, an answer of a server, something packed, another format."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from colibri.errors import FormatError

HEAD_BYTES: Final = 512  # of a file, in which all of these are seen

_AGAIN: Final = "fetch the file again"
_FOLDER: Final = "give the folder that it lies in, with config.json and tokenizer.json beside it"
_LFS: Final = re.compile(rb"version https://git-lfs\.github\.com/spec/v1\n(?:.*\n)*?size (\d{1,20})\n")
_HTML: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype\s+html|html|head)\b", re.IGNORECASE)
# The ways in which files are cut that are put together again by `cat`; GGUF's own splits are no such parts.
_CUT: Final = re.compile(r".*\.(?:gguf|safetensors)[.-](?:(?:part|split)[-.]?\w*|\d{1,4}|[a-z]{2})", re.IGNORECASE)


def _begins(*starts: bytes) -> Callable[[bytes], bool]:
    return lambda head: head.startswith(starts)


# name -> how it is known by its first bytes, what it is and what to do about it
_KINDS: Final[dict[str, tuple[Callable[[bytes], bool], str]]] = {
    "lfs": (
        _begins(b"version https://git-lfs"),
        "a Git LFS pointer, a few lines in the place of the file{size}; run `git lfs pull` in its folder, or fetch the "
        "file itself",
    ),
    "html": (
        lambda head: _HTML.match(head) is not None,
        "an HTML page, as servers give where one has to log in or nothing is found; "
        f"{_AGAIN}, with a token where one is needed",
    ),
    "xml": (_begins(b"<?xml"), f"an XML text, as servers give with an error; {_AGAIN}"),
    "gguf": (_begins(b"GGUF"), "a GGUF file; give it itself as the model, with a name that ends in .gguf"),
    "old": (
        _begins(b"lmgg", b"tjgg", b"fmgg", b"algg", b"ggml", b"ggjt"),
        "a GGML file from before GGUF; fetch the model as GGUF, or convert the original again",
    ),
    "gzip": (_begins(b"\x1f\x8b"), "packed by gzip; unpack it first (gunzip)"),
    "bzip2": (_begins(b"BZh"), "packed by bzip2; unpack it first (bunzip2)"),
    "xz": (_begins(b"\xfd7zXZ\0"), "packed by xz; unpack it first (unxz)"),
    "zstd": (_begins(b"\x28\xb5\x2f\xfd"), "packed by zstd; unpack it first (unzstd)"),
    "7z": (_begins(b"7z\xbc\xaf\x27\x1c"), "a 7z archive; unpack it first"),
    "rar": (_begins(b"Rar!\x1a\x07"), "a RAR archive; unpack it first"),
    "tar": (lambda head: head[257:262] == b"ustar", "a tar archive; unpack it first (tar -xf)"),
    "zip": (_begins(b"PK\x03\x04"), f"a zip archive; unpack it first, or, if it is PyTorch's, {_FOLDER}"),
    "pickle": (_begins(b"\x80\x02", b"\x80\x03", b"\x80\x04"), f"a pickle, as PyTorch writes; {_FOLDER}"),
    "numpy": (_begins(b"\x93NUMPY"), "an array of numpy; a model is expected"),
    "safetensors": (
        lambda head: head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") <= 1 << 30,
        f"a safetensors file; {_FOLDER}",
    ),
    "bom": (
        _begins(b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"),
        "a text that begins with a byte-order mark, which JSON must not have; save it as UTF-8 without one",
    ),
    "json": (lambda head: head.lstrip().startswith((b'{"', b"{\n", b"{\r", b"{ ")), f"a JSON text; {_FOLDER}"),
    "zeros": (
        lambda head: not any(head),
        f"zeros at its beginning, as a download leaves that was not finished; {_AGAIN}",
    ),
}  # fmt: skip


def file_kind(head: bytes, *expected: str) -> str | None:
    """What a file that begins with `head` is and what to do about it; None where it is unknown or one of `expected`."""
    if not head:
        return f"empty; {_AGAIN}, and look whether the disk is full"
    for name, (fits, text) in _KINDS.items():
        if fits(head):
            pointed = _LFS.match(head)
            said = f" of {pointed[1].decode()} bytes" if pointed else ""
            return None if name in expected else text.replace("{size}", said)
    return None


def refuse_others(path: Path | str, head: bytes, *expected: str) -> None:
    """FormatError that says what the file is, where it is known and none of `expected`."""
    kind = file_kind(head, *expected)
    if kind is not None:
        raise FormatError(f"{path}: is {kind}")


def cut_hint(path: Path) -> str:
    """What to add about a file that ends too early or begins oddly, where its name is that of a part."""
    if not _CUT.fullmatch(path.name):
        return ""
    return "; by its name it is one part of a file that was cut: join all parts in their order (cat) and give the whole"

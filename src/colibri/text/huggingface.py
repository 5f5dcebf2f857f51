"""Tokenizers of Hugging Face directories: tokenizer.json and the small JSON files beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer as Backend

from colibri.errors import FileError, FormatError
from colibri.text.pieces import Vocabulary
from colibri.text.special_tokens import SpecialIds
from colibri.text.tokenizer_json import MAX_BYTES, read_backend, vocabulary_of, wrapping
from colibri.weights.file_kind import HEAD_BYTES, refuse_others
from colibri.weights.json_file import read_limited, read_object

Note = Callable[[str], None]


class Directory:
    """The files of one directory that concern text; each is read when it is asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path.parent if path.name == "tokenizer.json" else path
        self.file = self.path / "tokenizer.json"
        if not self.file.is_file():
            raise FileError(f"{self.file}: not found. {self._advice()}")
        self.config = self._object("tokenizer_config.json")

    def _advice(self) -> str:
        if (self.path / "tokenizer.model").is_file():
            return "There is a tokenizer.model: convert it (transformers' save_pretrained writes tokenizer.json)."
        return "A checkpoint directory needs the tokenizer.json that was published with it."

    def chat_templates(self) -> dict[str, str]:
        """Templates by name; the plain one is `default`. A file of its own comes before tokenizer_config.json."""
        templates = _named_templates(self.config.get("chat_template"), self.path / "tokenizer_config.json")
        jinja = self.path / "chat_template.jinja"
        packed = self._object("chat_template.json").get("chat_template")
        if jinja.is_file():
            templates["default"] = _read(jinja)
        elif "default" not in templates and isinstance(packed, str):
            templates["default"] = packed
        for extra in sorted((self.path / "additional_chat_templates").glob("*.jinja")):
            templates[extra.stem] = _read(extra)
        return templates

    def vocabulary(self, note: Note) -> Vocabulary:
        """Loads tokenizer.json. Raises FormatError for a file that the library refuses, UnsupportedError for a
        tokenizer that is not made of byte-level or SentencePiece pieces."""
        backend = read_backend(read_limited(self.file, MAX_BYTES), str(self.file))
        self._add_configured(backend, note)
        return vocabulary_of(backend, str(self.file))

    def special_ids(self, backend: Backend, encodes_special: bool) -> SpecialIds:
        """Begin and end tokens from tokenizer_config.json, generation_config.json and config.json."""
        bos, eos = self._named(backend, "bos_token"), self._named(backend, "eos_token")
        generation, model = self._object("generation_config.json"), self._object("config.json")
        ends = [*self._ids(backend, generation, "eos_token_id", "generation_config.json")]
        ends += self._ids(backend, model, "eos_token_id", "config.json")
        if bos is None:
            begins = wrapping(backend)[0] if encodes_special else []
            begins += self._ids(backend, generation, "bos_token_id", "generation_config.json")
            begins += self._ids(backend, model, "bos_token_id", "config.json")
            bos = next((token for token in begins if token not in ends and token != eos), None)
        if eos is None:
            eos = ends[0] if ends else None
        return SpecialIds(
            bos=bos,
            eos=eos,
            ends=frozenset(ends) | ({eos} if eos is not None else set()),
            # The post-processor of tokenizer.json decides; without one the configuration may ask for the tokens.
            add_bos=not encodes_special and bos is not None and self.config.get("add_bos_token") is True,
            add_eos=not encodes_special and eos is not None and self.config.get("add_eos_token") is True,
        )

    def _named(self, backend: Backend, key: str) -> int | None:
        value = self.config.get(key)
        if value is None:
            value = self._object("special_tokens_map.json").get(key)
        content = value.get("content") if isinstance(value, Mapping) else value
        return backend.token_to_id(content) if isinstance(content, str) else None

    def _ids(self, backend: Backend, config: Mapping[str, Any], key: str, name: str) -> list[int]:
        value = config.get(key)
        values = value if isinstance(value, list) else [] if value is None else [value]
        if any(isinstance(one, bool) or not isinstance(one, int) for one in values):
            raise FormatError(f"{self.path / name}: {key}: found {value!r}, expected an id or a list of ids.")
        # Some write -1 or the like where a model has no such token.
        return [one for one in values if 0 <= one < 1 << 32 and backend.id_to_token(one) is not None]

    def _add_configured(self, backend: Backend, note: Note) -> None:
        """tokenizer_config.json may declare added tokens that tokenizer.json lacks, or make one special."""
        present = backend.get_added_tokens_decoder()
        declared = self.config.get("added_tokens_decoder")
        for key, value in sorted(declared.items(), key=_by_id) if isinstance(declared, Mapping) else ():
            if _by_id((key, value)) < 0 or not isinstance(value, Mapping) or not isinstance(value.get("content"), str):
                continue
            content, special = value["content"], bool(value.get("special", False))
            known = present.get(int(key))
            if known is not None and known.content == content and known.special == special:
                continue
            flags = {flag: bool(value.get(flag, False)) for flag in ("single_word", "lstrip", "rstrip", "normalized")}
            backend.add_tokens([AddedToken(content, special=special, **flags)])
            if backend.token_to_id(content) != int(key):
                note(f"{self.path}: tokenizer_config.json gives {content!r} the id {key}, tokenizer.json another one.")

    def _object(self, name: str) -> dict[str, Any]:
        """A JSON object; empty where the file is missing."""
        file = self.path / name
        if not file.is_file():
            return {}
        return read_object(file)


def _by_id(item: tuple[str, Any]) -> int:
    return int(item[0]) if item[0].isdecimal() and len(item[0]) < 10 else -1


def _read(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise FileError(f"{file}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise FormatError(f"{file}: found bytes that are not UTF-8, expected text. Fetch the file again.") from None
    if text.startswith("version https://git-lfs"):
        refuse_others(file, text.encode()[:HEAD_BYTES])
    return text


def _named_templates(value: object, file: Path) -> dict[str, str]:
    """A template is a string, or a list of {"name", "template"}, or an object of name: template."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, Mapping):
        value = [{"name": name, "template": template} for name, template in value.items()]
    templates: dict[str, str] = {}
    for entry in value if isinstance(value, list) else [None]:
        if not isinstance(entry, Mapping):
            raise FormatError(f"{file}: chat_template: found {type(value).__name__}, expected a string or named list.")
        name, template = entry.get("name"), entry.get("template")
        if not isinstance(name, str) or not isinstance(template, str):
            raise FormatError(f"{file}: chat_template: found {entry!r:.80}, expected a name and a template.")
        templates[name] = template
    return templates

"""The tokenizer that is written gives the ids of the one that was read, or nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from colibri.conversion.probe_texts import probe_texts
from colibri.errors import ColibriError, UnsupportedError
from colibri.text import Tokenizer, load_tokenizer
from colibri.text.embedded_json import JSON
from colibri.weights.metadata import Metadata

_SHOWN: Final = 3
_READ: Final = "Colibri reads the tokenizer.json in the file"
_WAYS: Final = ((True, True), (False, True), (False, False))  # with begin and end tokens, with control tokens
Difference = tuple[str, object, object]


def check_tokenizer(source: Tokenizer, output: Metadata) -> str | None:
    """Compare the two on probe texts; a sentence on what readers of GGUF's own keys alone will see otherwise.

    Raises UnsupportedError with the texts when the output's tokenizer is another one.
    """
    rows = len(output.strings("tokenizer.ggml.tokens"))
    result = load_tokenizer(output)
    unlike = [*_roles(source, result, rows), *_texts(source, result, rows)]
    if unlike:
        shown = "; ".join(f"{text!r:.80}: {read!s:.80} there, {written!s:.80} here" for text, read, written in unlike)
        raise UnsupportedError(
            f"{output.source}: the tokenizer would be another one in the output: {shown:.900}. Nothing is written; "
            "run the directory itself"
        )
    if JSON not in output:
        return None
    bare = Metadata(output.source, {key: value for key, value in output.items() if key != JSON})
    return _told(output.source, source, bare, rows)


def _told(path: Path, source: Tokenizer, bare: Metadata, rows: int) -> str | None:
    try:
        unlike = _texts(source, load_tokenizer(bare), rows, limit=1 << 20)
    except ColibriError as error:
        return f"{path}: llama.cpp's keys cannot say this tokenizer ({error}). {_READ}"
    if not unlike:
        return None
    texts = ", ".join(f"{text!r:.60}" for text, _, _ in unlike[:_SHOWN])
    return (
        f"{path}: llama.cpp's keys cannot say all rules of this tokenizer; by them alone {len(unlike)} of "
        f"{_count(source)} probe texts have other ids, such as {texts}. {_READ}"
    )


def _roles(source: Tokenizer, result: Tokenizer, rows: int) -> list[Difference]:
    """Differences in what ids below `rows` mean."""

    def known(*tokens: int | None) -> list[int]:
        return sorted(token for token in tokens if token is not None and token < rows)

    asked: dict[str, Callable[[Tokenizer], object]] = {
        "the begin token": lambda tokenizer: known(tokenizer.bos_id),
        "the end token": lambda tokenizer: known(tokenizer.eos_id),
        "the tokens that end a reply": lambda tokenizer: known(*tokenizer.eos_ids),
        "the chat templates": lambda tokenizer: dict(tokenizer.chat_templates),
    }
    unlike: list[Difference] = [
        (what, ask(source), ask(result)) for what, ask in asked.items() if ask(source) != ask(result)
    ]
    for token in range(result.vocab_size):
        read, written = ((one.token_bytes(token), one.is_special(token)) for one in (source, result))
        if read != written:
            unlike.append((f"token {token}", read, written))
            break
    return unlike


def _texts(source: Tokenizer, result: Tokenizer, rows: int, limit: int = _SHOWN) -> list[Difference]:
    """Probe texts with other ids; those with ids for which the model has no row are left out."""
    unlike: list[Difference] = []
    for text in dict.fromkeys(probe_texts(source.vocabulary)):
        for add_special, parse_special in _WAYS:
            expected = source.encode(text, add_special, parse_special)
            found = result.encode(text, add_special, parse_special)
            if found != expected and max(expected, default=0) < rows:
                unlike.append((text, expected, found))
                break
        if len(unlike) >= limit:
            break
    return unlike


def _count(source: Tokenizer) -> int:
    return len(set(probe_texts(source.vocabulary)))

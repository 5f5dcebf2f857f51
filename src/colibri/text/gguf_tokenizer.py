"""Tokenizers rebuilt from GGUF metadata.

Keys and token types are those of the GGUF specification (`tokenizer.ggml.*`). Three families are known: `llama`
(SentencePiece byte-pair pieces with scores), `gemma4` (the same with a merge table and no space in front of a text) and
`gpt2` (byte-level byte pairs with a merge table).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any, Final

import numpy as np
from tokenizers import AddedToken, Tokenizer as Backend, decoders, models, normalizers

from colibri.errors import FormatError, UnsupportedError
from colibri.text import pretokenizers
from colibri.text.pieces import BYTE_ALPHABET, Style, Vocabulary
from colibri.weights.family import NO_PRE_TOKENIZERS, PreTokenizers
from colibri.weights.metadata import Metadata

TOKENS = "tokenizer.ggml.tokens"
SCORES = "tokenizer.ggml.scores"
TYPES = "tokenizer.ggml.token_type"
MERGES = "tokenizer.ggml.merges"
MODEL = "tokenizer.ggml.model"
PRE = "tokenizer.ggml.pre"
ID_LIMIT: Final = 1 << 32  # writers put -1 or 2^32 - 1 where a model has no such token

_SPACE = "\u2581"
_CONTROL_LIKE = re.compile(r"<\|\w+\|>|<s>|</s>|<unk>|<pad>|<(bos|eos|start_of_turn|end_of_turn)>")
Note = Callable[[str], None]


class TokenType(IntEnum):
    """What `tokenizer.ggml.token_type` says of a token."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def read_tokens(metadata: Metadata) -> list[str]:
    """The vocabulary's pieces by id."""
    tokens = list(metadata.strings(TOKENS))
    if not tokens:
        raise metadata.error(TOKENS, "empty", "the vocabulary's pieces")
    return tokens


def read_types(metadata: Metadata, pieces: Sequence[str], named: Iterable[int] = ()) -> list[int]:
    """Token types by id. Without the key, the `named` ids and what looks like a control token are taken for one."""
    types = metadata.integers(TYPES, None)
    if types is not None:
        return _one_each(metadata, TYPES, types, len(pieces))
    marked = [TokenType.CONTROL if _CONTROL_LIKE.fullmatch(piece) else TokenType.NORMAL for piece in pieces]
    for token in named:
        marked[token] = TokenType.CONTROL
    return [int(kind) for kind in marked]


def family(metadata: Metadata) -> str:
    """A name in FAMILIES."""
    model = metadata.text(MODEL)
    if model not in FAMILIES:
        *others, last = sorted(FAMILIES)
        known = f"{', '.join(others)} and {last}"
        raise UnsupportedError(
            f"{metadata.source}: {MODEL} is {model!r}; only {known} tokenizers can be rebuilt from a GGUF file. "
            "Load the checkpoint's directory with its tokenizer.json instead."
        )
    return model


def choose_pre_tokenizer(
    metadata: Metadata, expected: PreTokenizers = NO_PRE_TOKENIZERS
) -> tuple[pretokenizers.PreTokenizer, str | None]:
    """How a gpt2-family file wants its text split, and what is wrong with that, if anything."""
    return pretokenizers.choose(metadata.text(PRE, None), metadata.text("general.architecture", ""), expected)


def build(metadata: Metadata, pieces: list[str], named: Iterable[int], note: Note) -> Vocabulary:
    """The vocabulary of a GGUF file with these `pieces`, whose begin and end tokens are the `named` ids.

    Raises FormatError naming the key for missing or contradictory metadata, UnsupportedError for other families.
    """
    builder = FAMILIES[family(metadata)]
    types = read_types(metadata, pieces, named)
    return builder(metadata, pieces, types, note)


def _one_each(metadata: Metadata, key: str, values: np.ndarray[Any, Any], count: int) -> list[Any]:
    """Numbers of which every token has one."""
    if len(values) != count or np.isnan(values).any():
        found = f"an array of {len(values)} values" if len(values) != count else "an array with a NaN"
        raise metadata.error(key, found, f"an array of {count} numbers, one for each token,")
    numbers: list[Any] = values.tolist()
    return numbers


def _pairs(metadata: Metadata) -> list[tuple[str, str]]:
    """The merges, each written as one string with a space between or as two strings; [] where there are none."""
    merges = metadata.get(MERGES, ())
    if isinstance(merges, str) or not isinstance(merges, Sequence):
        raise metadata.error(MERGES, f"a {type(merges).__name__}", "an array of pairs")
    return [_pair(metadata, value) for value in merges]


def _pair(metadata: Metadata, value: object) -> tuple[str, str]:
    if isinstance(value, str):
        # A piece may itself be a space: the one from the second character on divides.
        at = value.find(" ", 1)
        if 0 < at < len(value) - 1:
            return value[:at], value[at + 1 :]
    elif isinstance(value, Sequence) and len(value) == 2 and all(isinstance(piece, str) for piece in value):
        return value[0], value[1]
    raise metadata.error(MERGES, f"an array with {value!r:.60}", "an array of pairs: 'left right' or two strings,")


def _distinct(pieces: list[str], note: Note) -> list[str]:
    """A name for every piece, since the backend finds ids by piece: the piece for its first holder, for others one that
    no text has. What an id decodes to is its piece."""
    if len(set(pieces)) == len(pieces):
        return pieces
    distinct: list[str] = []
    taken: set[str] = set()
    repeated = 0
    for token, piece in enumerate(pieces):
        if piece in taken:
            repeated += 1
            piece = f"{piece}[repeated {token}]"  # has a space, which pieces do not have where text is looked up
        taken.add(piece)
        distinct.append(piece)
    note(f"{TOKENS}: {repeated} pieces appear more than once; text is encoded with the first id of each.")
    return distinct


def _has_surrogate(piece: str) -> bool:
    try:
        piece.encode()
    except UnicodeEncodeError:
        return True
    return False


def _encodable(pieces: Sequence[str]) -> dict[str, int]:
    """Piece to id for the backend, which takes valid Unicode only; the others are never produced by encoding."""
    if not _has_surrogate("".join(pieces)):
        return {piece: token for token, piece in enumerate(pieces)}
    return {f"[invalid {token}]" if _has_surrogate(piece) else piece: token for token, piece in enumerate(pieces)}


def _build_gpt2(metadata: Metadata, pieces: list[str], types: list[int], note: Note) -> Vocabulary:
    merges = _pairs(metadata)
    if not merges:
        raise _no_merges(metadata)
    pre, _ = choose_pre_tokenizer(metadata)
    missing = len(BYTE_ALPHABET.keys() - set(pieces))
    if missing:
        note(f"{TOKENS}: {missing} of the 256 single-byte pieces are missing; such bytes of a text are dropped.")
    names = _distinct(pieces, note)
    model = _byte_pairs(metadata, names, merges, ignore_merges=pre.ignore_merges)
    backend = Backend(model)
    normalizer = pre.normalizer()
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = pre.splitter()
    backend.decoder = decoders.ByteLevel()
    return _finish(backend, names, pieces, types, "byte_level", strip=False)


def _no_merges(metadata: Metadata) -> FormatError:
    return metadata.error(MERGES, "missing or empty", f"the merge table of a {family(metadata)} tokenizer")


def _build_gemma4(metadata: Metadata, pieces: list[str], types: list[int], note: Note) -> Vocabulary:
    if not _pairs(metadata):
        raise _no_merges(metadata)
    return _build_llama(metadata, pieces, types, note, prefix=False)


def _build_llama(
    metadata: Metadata, pieces: list[str], types: list[int], note: Note, *, prefix: bool = True
) -> Vocabulary:
    prefix = metadata.flag("tokenizer.ggml.add_space_prefix", prefix)
    pieces = _written_spaces(pieces, types)
    names = _distinct(pieces, note)
    merges = _pairs(metadata)
    if not merges:
        scores = _one_each(metadata, SCORES, metadata.floats(SCORES), len(pieces))
        merges = merges_from_scores(names, _ranks(names, types, scores, note), types)
    model = _byte_pairs(
        metadata, names, merges, unk_token=_unknown(metadata, names, types), fuse_unk=True, byte_fallback=True
    )
    backend = Backend(model)
    spaces: list[normalizers.Normalizer] = [normalizers.Replace(" ", _SPACE)]
    if prefix:
        spaces.insert(0, normalizers.Prepend(_SPACE))
    backend.normalizer = normalizers.Sequence(spaces)
    backend.decoder = decoders.Sequence([decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    return _finish(backend, names, pieces, types, "sentencepiece", strip=prefix)


def _written_spaces(pieces: list[str], types: list[int]) -> list[str]:
    """User-defined pieces as they stand in a text, since they are looked for before spaces are rewritten."""
    known = set(pieces)
    written = list(pieces)
    for token, kind in enumerate(types):
        text = pieces[token].replace(_SPACE, " ")
        if kind == TokenType.USER_DEFINED and text not in known:
            written[token] = text
    return written


def _ranks(pieces: list[str], types: list[int], scores: list[float], note: Note) -> list[float]:
    """The scores, or, where a converter left one value for all, the order of the ids (higher is better)."""
    normal = [score for score, kind in zip(scores, types, strict=True) if kind == TokenType.NORMAL]
    if len(normal) < 2 or len(set(normal)) > 1:
        return scores
    note(f"{SCORES}: all scores are equal; pieces are merged in the order of their ids.")
    return [-float(token) for token in range(len(pieces))]


def merges_from_scores(pieces: Sequence[str], scores: Sequence[float], types: Sequence[int]) -> list[tuple[str, str]]:
    """The merge table that SentencePiece's scores imply: every split of a piece into two pieces, best piece first.

    Splits of one piece are in the order of their parts' ids, as in the tokenizer.json files published for Llama.
    """
    apart = (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.BYTE)
    ids = {piece: token for token, piece in enumerate(pieces) if types[token] not in apart}
    splits: list[tuple[float, str, str]] = []
    for piece, token in ids.items():
        found = [
            (ids[left], ids[right], left, right)
            for at in range(1, len(piece))
            if (left := piece[:at]) in ids and (right := piece[at:]) in ids
        ]
        found.sort()
        splits.extend((scores[token], left, right) for _, _, left, right in found)
    splits.sort(key=lambda split: -split[0])
    return [(left, right) for _, left, right in splits]


def _unknown(metadata: Metadata, pieces: Sequence[str], types: Sequence[int]) -> str | None:
    token = metadata.integer("tokenizer.ggml.unknown_token_id", None, low=-ID_LIMIT, high=ID_LIMIT)
    if token is None:
        token = next((index for index, kind in enumerate(types) if kind == TokenType.UNKNOWN), None)
    return pieces[token] if token is not None and 0 <= token < len(pieces) else None


def _byte_pairs(
    metadata: Metadata,
    pieces: Sequence[str],
    merges: list[tuple[str, str]],
    *,
    unk_token: str | None = None,
    fuse_unk: bool = False,
    byte_fallback: bool = False,
    ignore_merges: bool = False,
) -> models.BPE:
    try:
        return models.BPE(
            vocab=_encodable(pieces),
            merges=merges,
            unk_token=unk_token,
            fuse_unk=fuse_unk,
            byte_fallback=byte_fallback,
            ignore_merges=ignore_merges,
        )
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises bare exceptions, and panics that are not even those
        raise _explain(metadata, pieces, merges, error) from None


def _explain(
    metadata: Metadata, pieces: Sequence[str], merges: Sequence[tuple[str, str]], error: BaseException
) -> FormatError:
    known = set(pieces)
    for left, right in merges:
        for piece in (left, right, left + right):
            if piece not in known:
                found = f"{left!r} + {right!r} without a token {piece!r}"
                return metadata.error(MERGES, found, "a table of the vocabulary's pieces")
    return metadata.error(MERGES, f"a table that the tokenizer refuses ({error})", "a table of pairs of pieces")


def _finish(
    backend: Backend, names: list[str], pieces: list[str], types: list[int], style: Style, *, strip: bool
) -> Vocabulary:
    # Plain integers: comparing with members of an enumeration is slow over a large vocabulary.
    control, unknown, user_defined = map(int, (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED))
    special = [token for token, kind in enumerate(types) if kind in (control, unknown)]
    defined = [token for token, kind in enumerate(types) if kind == user_defined]
    first = [name == piece for name, piece in zip(names, pieces, strict=True)]
    _add(backend, pieces, [token for token in special if first[token]], special=True)
    _add(backend, pieces, [token for token in defined if first[token]], special=False)
    return Vocabulary(
        backend=backend,
        pieces=pieces,
        special=frozenset(special),
        literal=frozenset(special) | frozenset(defined),
        style=style,
        strip_leading_space=strip,
    )


def _add(backend: Backend, pieces: Sequence[str], tokens: Iterable[int], *, special: bool) -> None:
    """Split these off before anything else, in the text as it is written."""
    added = [
        AddedToken(pieces[token], special=special, normalized=False)
        for token in tokens
        if pieces[token] and not _has_surrogate(pieces[token])
    ]
    if special:
        backend.add_special_tokens(added)
    else:
        backend.add_tokens(added)


FAMILIES: Final[dict[str, Callable[[Metadata, list[str], list[int], Note], Vocabulary]]] = {
    "gemma4": _build_gemma4,
    "gpt2": _build_gpt2,
    "llama": _build_llama,
}

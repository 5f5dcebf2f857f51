# ruff: noqa: RUF001 (letters of other scripts are meant)
"""Begin and end tokens: what a checkpoint names, and the names that end a turn in public model families."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

# End-of-turn and end-of-text names of the families' chat formats; they count where they are control tokens.
_END_NAMES = frozenset(
    {
        "<|im_end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|eot|>",
        "<|eom|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|calls|>",
        "<|flush|>",
        "<|end_of_turn|>",
        "<end_of_turn>",
        "<turn|>",
        "<|tool_response>",  # Gemma 4: what its calls are followed by
        "<end_of_utterance>",
        "<｜end▁of▁sentence｜>",
        "[EOS]",
        "[EOT]",
        "[e~[",
        "<|role_end|>",
    }
)
# Where these exist, <|end|> closes a part of a message, not the reply.
_HARMONY = frozenset({"<|return|>", "<|call|>", "<|calls|>", "<|flush|>"})
MORE_ENDS: Final = "tokenizer.colibri.end_token_ids"
"""GGUF's own keys have room for three ends; here are all, where a checkpoint names more."""


@dataclass(frozen=True)
class SpecialIds:
    """Ids that a checkpoint gives a role, and whether text is wrapped in them."""

    bos: int | None = None
    eos: int | None = None  # the one that templates call eos_token
    ends: frozenset[int] = frozenset()  # every id that the checkpoint names as an end
    add_bos: bool = False
    add_eos: bool = False


def end_ids(control: Mapping[int, str | None], named: Iterable[int]) -> frozenset[int]:
    """All ids that end a reply: those named, and control tokens, here by id, with the name of an end."""
    ends = {*named, *(token for token, name in control.items() if name in _END_NAMES)}
    if len(_HARMONY.intersection(control.values())) > 1:
        ends -= {token for token, name in control.items() if name == "<|end|>"}
    return frozenset(ends)

"""Which block format each tensor of a file gets, as data.

The K_M mixes follow the choices that llama.cpp publishes for its q4_k_m and q5_k_m: the output matrix, the values of
attention and the down projections of some layers weigh more in the error of the logits and get more bits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from colibri.errors import ArgumentError
from colibri.weights.block_types import BY_NAME

When = Literal["always", "more bits", "eight experts"]


class Rule(NamedTuple):
    """Tensors whose name matches get `type` when the condition holds; the first rule that applies wins."""

    pattern: str
    type: str
    when: When = "always"


@dataclass(frozen=True)
class Mix:
    """A quantisation as users name it: the format of most matrices, the exceptions, GGUF's file type code."""

    type: str
    file_type: int
    rules: tuple[Rule, ...] = ()


_DOWN = r"blk\.\d+\.ffn_down(_exps|_shexp)?\.weight"
_EXPERTS = r"blk\.\d+\.ffn_(gate|up|down|gate_up)_exps\.weight"


def _k_medium(attention_output: str) -> tuple[Rule, ...]:
    return (
        Rule(r"output\.weight", "Q6_K"),
        # Where eight experts share one attention, its keys and values are a hundredth of the file.
        Rule(r"blk\.\d+\.attn_[kv]\.weight", "Q8_0", "eight experts"),
        Rule(r"blk\.\d+\.attn_output\.weight", attention_output, "eight experts"),
        Rule(r"blk\.\d+\.attn_v\.weight", "Q6_K", "more bits"),
        Rule(_DOWN, "Q6_K", "more bits"),
    )


MIXES: Final[Mapping[str, Mix]] = {
    "q4_k_m": Mix("Q4_K", 15, _k_medium("Q5_K")),
    "q5_k_m": Mix("Q5_K", 17, _k_medium("Q5_K")),
    "q6_k": Mix("Q6_K", 18),
    "q8_0": Mix("Q8_0", 7),
    "q4_0": Mix("Q4_0", 2, (Rule(r"output\.weight", "Q6_K"),)),
    "mxfp4": Mix("Q8_0", 38, (Rule(_EXPERTS, "MXFP4"),)),
    "bf16": Mix("BF16", 32),
    "f16": Mix("F16", 1),
    "f32": Mix("F32", 0),
}
# Never quantised: they are small, and an error in them is an error in every token.
_KEPT = re.compile(
    r".*(_norm|shortconv\.conv|position_embd|ffn_gate_inp(_shexp)?|ssm_(conv1d|ba|beta|alpha)|rope_freqs|exp_probs_b|attn_sinks)"
    r"\.weight|.*\.bias|.*\.ssm_[ad]"
)
_LAYER = re.compile(r"blk\.(\d+)\.")


class Context(NamedTuple):
    """What the rules ask about a model."""

    layers: int
    experts: int
    tied: bool  # the embedding is the output matrix too


def mix(name: str) -> Mix:
    """The mix of that name; ArgumentError lists the known ones."""
    if name.lower() not in MIXES:
        raise ArgumentError(f"quantisation {name!r} is not known; expected one of {', '.join(MIXES)}")
    return MIXES[name.lower()]


def tensor_type(chosen: Mix, name: str, shape: Sequence[int], context: Context) -> str:
    """The block format of a tensor: F32 for vectors and routers, else by the mix, as far as its rows divide."""
    if len(shape) < 2 or _KEPT.fullmatch(name):
        return "F32"
    asked = "output.weight" if context.tied and name == "token_embd.weight" else name
    for rule in chosen.rules:
        if re.fullmatch(rule.pattern, asked) and _holds(rule.when, name, context):
            return _that_divides(rule.type, shape[-1])
    return _that_divides(chosen.type, shape[-1])


def _holds(when: When, name: str, context: Context) -> bool:
    if when == "always":
        return True
    if when == "eight experts":
        return context.experts == 8
    match = _LAYER.match(name)
    return match is not None and more_bits(int(match[1]), context.layers)


def more_bits(layer: int, layers: int) -> bool:
    """The first and the last eighth of the layers, and every third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _that_divides(type_name: str, k: int) -> str:
    """The type, or the next one whose blocks fill rows of k values."""
    for candidate in (type_name, "Q8_0", "F16"):
        if k % BY_NAME[candidate].values == 0:
            return candidate
    raise AssertionError("a block of one value divides every row")

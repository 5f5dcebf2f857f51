"""Which block format each tensor of a file gets, as data.

The mixes follow the choices that llama.cpp publishes for its files of the same names: the output matrix, the values of
attention and the down projections of some layers weigh more in the error of the logits and get more bits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from colibri.errors import ArgumentError
from colibri.weights.block_types import BY_NAME


class Context(NamedTuple):
    """What the rules ask about a model, and whether an importance matrix is used."""

    layers: int
    experts: int
    tied: bool  # the embedding is the output matrix too
    heads_a_value: int = 1  # query heads that share keys and values
    important: bool = False


class Rule(NamedTuple):
    """Tensors whose name matches get `type` when the condition holds; the first rule that applies wins."""

    pattern: str
    type: str
    when: Callable[[int, Context], bool] = lambda layer, context: True


@dataclass(frozen=True)
class Mix:
    """A quantisation as users name it: the format of most matrices, the exceptions, GGUF's file type code."""

    type: str
    file_type: int
    rules: tuple[Rule, ...] = ()


# ---- when a rule applies: from the layer (0 of what is beside the layers) and the model ----


def _eight_experts(layer: int, context: Context) -> bool:
    """Where eight experts share one attention, its keys and values are a hundredth of the file."""
    return context.experts == 8


def _shared_values(layer: int, context: Context) -> bool:
    """Where four or more heads share keys and values, these are small."""
    return context.heads_a_value >= 4


def _more_bits(layer: int, context: Context) -> bool:
    return more_bits(layer, context.layers)


def more_bits(layer: int, layers: int) -> bool:
    """The first and the last eighth of the layers, and every third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _first(part: int, important: bool | None = None) -> Callable[[int, Context], bool]:
    """The first layers, one of so many; with an importance matrix or without, where that matters."""
    return lambda layer, context: layer < context.layers // part and important in (None, context.important)


# ---- the mixes ----

_VALUES = r"blk\.\d+\.attn_(v|qkv|kv_b)\.weight"
_ATTENTION_OUTPUT = r"blk\.\d+\.attn_output\.weight"
_DOWN = r"blk\.\d+\.ffn_down(_exps|_shexp)?\.weight"
_EXPERTS = r"blk\.\d+\.ffn_(gate|up|down|gate_up)_exps\.weight"
_OUTPUT = Rule(r"output\.weight", "Q6_K")
_COMMON = (_OUTPUT, Rule(r"blk\.\d+\.attn_(k|v|qkv|kv_b)\.weight", "Q8_0", _eight_experts))
_OUTPUT_OF_EIGHT = Rule(_ATTENTION_OUTPUT, "Q5_K", _eight_experts)
_MEDIUM = (*_COMMON, _OUTPUT_OF_EIGHT, Rule(_VALUES, "Q6_K", _more_bits), Rule(_DOWN, "Q6_K", _more_bits))
_LEVELS = (*_COMMON, _OUTPUT_OF_EIGHT, Rule(_VALUES, "Q5_K", _shared_values), Rule(_DOWN, "Q5_K", _first(8, False)))

MIXES: Final[Mapping[str, Mix]] = {
    "q2_k": Mix("Q2_K", 10, (
        *_COMMON, _OUTPUT_OF_EIGHT, Rule(_VALUES, "Q4_K", _shared_values), Rule(_VALUES, "Q3_K"), Rule(_DOWN, "Q3_K"),
        Rule(_ATTENTION_OUTPUT, "Q3_K"),
    )),
    "q3_k_s": Mix("Q3_K", 11, (*_COMMON, _OUTPUT_OF_EIGHT)),
    "q3_k_m": Mix("Q3_K", 12, (
        *_COMMON, _OUTPUT_OF_EIGHT, Rule(_VALUES, "Q5_K", lambda layer, context: layer < 2), Rule(_VALUES, "Q4_K"),
        Rule(_DOWN, "Q5_K", _first(16)), Rule(_DOWN, "Q4_K"), Rule(_ATTENTION_OUTPUT, "Q4_K"),
    )),
    "q3_k_l": Mix("Q3_K", 13, (
        *_COMMON, Rule(_VALUES, "Q5_K"), Rule(_DOWN, "Q5_K"), Rule(_ATTENTION_OUTPUT, "Q3_K", _eight_experts),
        Rule(_ATTENTION_OUTPUT, "Q5_K"),
    )),
    "iq4_xs": Mix("IQ4_XS", 30, _LEVELS),
    "iq4_nl": Mix("IQ4_NL", 25, _LEVELS),
    "q4_0": Mix("Q4_0", 2, (*_COMMON, Rule(_DOWN, "Q4_1", _first(8, True)))),
    "q4_1": Mix("Q4_1", 3, _COMMON),
    "q4_k_s": Mix("Q4_K", 14, (
        *_COMMON, _OUTPUT_OF_EIGHT, Rule(_VALUES, "Q5_K", lambda layer, context: layer < 4),
        Rule(_DOWN, "Q5_K", _first(8)),
    )),
    "q4_k_m": Mix("Q4_K", 15, _MEDIUM),
    "mxfp4_moe": Mix("Q8_0", 38, (Rule(_EXPERTS, "MXFP4"),)),
    "q5_0": Mix("Q5_0", 8, (*_COMMON, Rule(_DOWN, "Q5_1", _first(8, True)))),
    "q5_1": Mix("Q5_1", 9, _COMMON),
    "q5_k_s": Mix("Q5_K", 16, _COMMON),
    "q5_k_m": Mix("Q5_K", 17, _MEDIUM),
    "q6_k": Mix("Q6_K", 18, _COMMON),
    "q8_0": Mix("Q8_0", 7),
    "bf16": Mix("BF16", 32),
    "f16": Mix("F16", 1),
    "f32": Mix("F32", 0),
}  # fmt: skip
# What the formats of 256 values give way to where their blocks do not fill a row, and what those do.
_INSTEAD: Final = {
    "Q2_K": "Q4_0", "Q3_K": "Q4_0", "IQ4_XS": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
}  # fmt: skip
# Never quantised: they are small, and an error in them is an error in every token.
_KEPT = re.compile(
    r".*(_norm|shortconv\.conv|position_embd|ffn_gate_inp(_shexp)?|ssm_(conv1d|ba|beta|alpha)|rope_freqs|exp_probs_b|attn_sinks)"
    r"\.weight|.*\.bias|.*\.ssm_[ad]"
)
_LAYER = re.compile(r"blk\.(\d+)\.")


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
    match = _LAYER.match(name)
    layer = int(match[1]) if match else 0
    for rule in chosen.rules:
        if re.fullmatch(rule.pattern, asked) and rule.when(layer, context):
            return _that_divides(rule.type, shape[-1])
    return _that_divides(chosen.type, shape[-1])


def _that_divides(type_name: str, k: int) -> str:
    """The type, or the next one whose blocks fill rows of k values."""
    for candidate in (type_name, _INSTEAD.get(type_name, type_name)):
        if k % BY_NAME[candidate].values == 0:
            return candidate
    return "F16"

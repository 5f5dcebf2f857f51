"""Which block type a mix of llama.cpp gives each tensor, for tools/make_random_moe.py."""

from __future__ import annotations

from collections.abc import Callable

from random_shapes import Shape


def _more_bits(layer: int, layers: int) -> bool:
    """The layers whose sensitive tensors llama.cpp gives Q6_K in its Q4_K_M mix."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def _q4_k_m(part: str, layer: int, shape: Shape) -> str:
    if part == "output":
        return "Q6_K"
    if shape.experts == 8 and part in ("attn_k", "attn_v", "attn_output"):
        return "Q5_K" if part == "attn_output" else "Q8_0"
    if part in ("attn_v", "ffn_down_exps") and _more_bits(layer, shape.layers):
        return "Q6_K"
    return "Q4_K"


def _mxfp4_mix(part: str, layer: int, shape: Shape) -> str:
    return "MXFP4" if part.endswith("_exps") else "Q8_0"


MIXES: dict[str, tuple[int, Callable[[str, int, Shape], str]]] = {  # name -> (general.file_type, part -> type)
    "q4_k_m": (15, _q4_k_m),
    "q5_k": (17, lambda part, layer, shape: "Q5_K"),
    "q6_k": (18, lambda part, layer, shape: "Q6_K"),
    "q8_0": (7, lambda part, layer, shape: "Q8_0"),
    "q4_0": (2, lambda part, layer, shape: "Q4_0"),
    "mxfp4": (38, _mxfp4_mix),
    "q4_1": (3, lambda part, layer, shape: "Q4_1"),
    "q5_0": (8, lambda part, layer, shape: "Q5_0"),
    "q5_1": (9, lambda part, layer, shape: "Q5_1"),
    "q2_k": (10, lambda part, layer, shape: "Q2_K"),
    "q3_k": (12, lambda part, layer, shape: "Q3_K"),
    "iq4_nl": (25, lambda part, layer, shape: "IQ4_NL"),
    "iq4_xs": (30, lambda part, layer, shape: "IQ4_XS"),
    "iq3_s": (26, lambda part, layer, shape: "IQ3_S"),
    "iq3_xxs": (23, lambda part, layer, shape: "IQ3_XXS"),
    "iq2_s": (28, lambda part, layer, shape: "IQ2_S"),
    "iq2_xs": (20, lambda part, layer, shape: "IQ2_XS"),
    "iq2_xxs": (19, lambda part, layer, shape: "IQ2_XXS"),
    "iq1_s": (24, lambda part, layer, shape: "IQ1_S"),
    "iq1_m": (31, lambda part, layer, shape: "IQ1_M"),
    "tq1_0": (36, lambda part, layer, shape: "TQ1_0"),
    "tq2_0": (37, lambda part, layer, shape: "TQ2_0"),
    "nvfp4": (39, lambda part, layer, shape: "NVFP4"),
    "f16": (1, lambda part, layer, shape: "F16"),
    "bf16": (32, lambda part, layer, shape: "BF16"),
}


# What llama.cpp takes where 256 does not divide a row.
AT_ODD_WIDTHS = {
    "Q2_K": "Q4_0", "Q3_K": "Q4_0", "IQ4_XS": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
    "IQ3_S": "IQ4_NL", "IQ3_XXS": "IQ4_NL", "IQ2_S": "IQ4_NL", "IQ2_XS": "IQ4_NL", "IQ2_XXS": "IQ4_NL",
    "IQ1_S": "IQ4_NL", "IQ1_M": "IQ4_NL", "TQ1_0": "Q4_0", "TQ2_0": "Q4_0",
}  # fmt: skip

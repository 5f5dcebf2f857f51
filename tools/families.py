"""Write docs/families.md from the families, their goldens and what is computed for these; a test compares.

    python tools/families.py
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path

import numpy as np

import colibri
from colibri.models.registry import FAMILIES, model_spec, open_checkpoint
from colibri.spec import AttentionSpec, KeyValues, Mixer, MoeSpec
from colibri.weights.checkpoint import Checkpoint
from colibri.weights.family import Family

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "families.md"
BEGIN, END = "<!-- written by tools/families.py -->\n", "<!-- end -->\n"
HEAD = ("family", "GGUF", "model_type", "mixers", "router and experts", "bytes a token and layer", "transformers",
        "llama.cpp")  # fmt: skip
MIXERS = {
    "Attention": "attention", "LatentAttention": "latent attention", "DeltaNet": "gated delta net",
    "ShortConv": "short convolution",
}  # fmt: skip
SCORES = {"identity": "logits", "sqrt_softplus": "sqrt softplus"}
# llama.cpp of llama-cpp-python 0.3.36 with a float32 cache on our converted goldens: how far its logits are from
# those of transformers, as a part of their range. Of deepseek2 it is GLM-4.7-Flash's golden.
LLAMA_CPP = {
    "llama": 1e-6, "qwen2moe": 8e-7, "qwen3moe": 9e-7, "qwen3next": 3e-6, "qwen35moe": 5e-6, "olmoe": 7e-7,
    "gpt-oss": 1e-6, "glm4moe": 8e-7, "minimax-m2": 4e-7, "granitemoe": 2e-7, "ernie4_5-moe": 2e-6, "deepseek2": 4e-6,
    "lfm2moe": 8e-7, "nemotron_h_moe": 9e-7,
    "gemma4": 9e-5,
}  # fmt: skip


def goldens(family: Family) -> Iterator[Checkpoint]:
    """The golden directories of a family."""
    for file in sorted((ROOT / "tests" / "golden").rglob("config.json")):
        checkpoint = open_checkpoint(file.parent)
        if checkpoint.family is family:
            yield checkpoint


def distance(checkpoint: Checkpoint) -> float:
    """How far the logits are from those of transformers at most, as a part of their range."""
    with np.load(checkpoint.path / "golden.npz") as golden, colibri.load(checkpoint.path, precision="exact") as model:
        expected = golden["logits"]
        return float(np.abs(model.infer(golden["ids"].tolist()) - expected).max() / np.ptp(expected))


def kind(mixer: Mixer) -> str:
    """What it is called."""
    name = type(mixer).__name__.removesuffix("Spec")
    return MIXERS.get(name, name)


def kept(mixer: Mixer) -> str:
    """Bytes that the cache holds of a token in half floats."""
    if not isinstance(mixer.keeps, KeyValues):
        return "0, and a state"
    return "4 x key heads x head size" if mixer.keeps.value_dim else "2 x (rank + rope)"


def traits(mixer: Mixer) -> Iterator[str]:
    """What attention has beside heads."""
    if isinstance(mixer, AttentionSpec):
        if mixer.window:
            yield "window"
        if mixer.qk_norm != "none":
            yield f"q and k normed ({mixer.qk_norm})"
        if mixer.rope is not None and mixer.rope.rotary < mixer.head_dim:
            yield "partial rope"
        yield from (name for name in ("sinks", "gate") if getattr(mixer, name))
        if mixer.values_from_keys:
            yield "values from keys"


def experts(spec: MoeSpec, corrected: bool) -> Iterator[str]:
    """The router's rule, and what is beside the experts."""
    routing = spec.routing
    yield SCORES.get(routing.score, routing.score)
    if corrected:
        yield "bias for the choice"
    if routing.groups > 1:
        yield "groups"
    if routing.softmax_of_chosen:
        yield "softmax of the chosen"
    if routing.renormalize:
        yield "renormalised"
    if spec.shared is not None:
        yield "shared expert" if spec.shared.gate == "none" else f"shared expert ({spec.shared.gate} gate)"
    if spec.beside is not None:
        yield "dense network beside"
    if spec.expert.activation != "silu":
        yield spec.expert.activation if spec.expert.gated else f"{spec.expert.activation} without a gate"
    if spec.latent:
        yield "latent experts"


def _union(parts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(parts))


def row(family: Family) -> tuple[str, ...]:
    """What the table says of a family; where goldens differ, all that one of them has."""
    found = list(goldens(family))
    layers = [layer for checkpoint in found for layer in model_spec(checkpoint).layers]
    corrected = any(name.endswith("exp_probs_b.bias") for checkpoint in found for name in checkpoint.tensors)
    mixtures = [layer.ffn for layer in layers if isinstance(layer.ffn, MoeSpec)]
    mixers = [layer.mixer for layer in layers if layer.mixer is not None]
    names = _union(map(kind, mixers))
    more = _union(trait for mixer in mixers for trait in traits(mixer))
    module = import_module(family.spec.__module__).__doc__ or ""
    llama = LLAMA_CPP.get(family.architectures[0])
    return (
        module.split(" (")[0].split(":")[0].strip(),
        " ".join(f"`{name}`" for name in family.architectures),
        " ".join(f"`{name}`" for name in family.directories),
        f"{names}: {more}" if more else names,
        _union(part for spec in mixtures for part in experts(spec, corrected)),
        "; ".join(dict.fromkeys(map(kept, mixers))),
        f"{max(map(distance, found)):.0e}" if found else "",
        "" if llama is None else f"{llama:.0e}",
    )


def table() -> str:
    """The whole table, in Markdown."""
    families = {family.architectures: family for family in FAMILIES.by_architecture.values()}.values()
    rows = [HEAD, tuple("---" for _ in HEAD), *(row(family) for family in families)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def written(text: str) -> str:
    """The document with the table as it is now."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    DOCUMENT.write_text(written(DOCUMENT.read_text()))
    sys.stdout.write(table())

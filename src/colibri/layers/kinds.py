"""From a spec to the layer that runs it: one line a kind."""

from __future__ import annotations

from typing import Any

from colibri.layers import residual
from colibri.layers.attention import Attention
from colibri.layers.build import Build, FeedForward, Mixer
from colibri.layers.delta_net import DeltaNet
from colibri.layers.dense import DenseFeedForward
from colibri.layers.latent_attention import LatentAttention
from colibri.layers.mamba2 import Mamba2
from colibri.layers.moe import MixtureOfExperts
from colibri.layers.nothing import Nothing
from colibri.layers.short_conv import ShortConv
from colibri.layers.workspace import Scratch
from colibri.spec import (
    AttentionSpec,
    DeltaNetSpec,
    DenseSpec,
    LatentAttentionSpec,
    LayerSpec,
    Mamba2Spec,
    ModelSpec,
    MoeSpec,
    ShortConvSpec,
)

MIXERS: dict[type, Any] = {
    AttentionSpec: Attention,
    LatentAttentionSpec: LatentAttention,
    DeltaNetSpec: DeltaNet,
    Mamba2Spec: Mamba2,
    ShortConvSpec: ShortConv,
    type(None): Nothing,
}
FEED_FORWARDS: dict[type, Any] = {MoeSpec: MixtureOfExperts, DenseSpec: DenseFeedForward, type(None): Nothing}


def mixer(spec: LayerSpec, layer: int, build: Build) -> Mixer:
    """The part of layer number `layer` in which tokens meet."""
    made: Mixer = MIXERS[type(spec.mixer)](spec.mixer, layer, spec.norm, build)
    return made


def feed_forward(spec: LayerSpec, layer: int, build: Build) -> FeedForward:
    """Its part that each row goes through alone."""
    made: FeedForward = FEED_FORWARDS[type(spec.ffn)](spec.ffn, layer, spec, build)
    return made


def scratch(spec: ModelSpec) -> Scratch:
    """What all layers ask for; of the native bytes the most that one takes, as they run one after another."""
    parts = {part for layer in spec.layers for part in (layer.mixer, layer.ffn)}
    asked: list[Scratch] = [(MIXERS | FEED_FORWARDS)[type(part)].scratch(part, spec.hidden_size) for part in parts]
    buffers = dict.fromkeys(buffer for scratch in asked for buffer in scratch.buffers)
    if residual.made_apart(spec):
        for layer in spec.layers:
            buffers |= dict.fromkeys(residual.Residual.buffers(layer, spec.hidden_size))
    return Scratch(tuple(buffers), max(scratch.native_bytes for scratch in asked))

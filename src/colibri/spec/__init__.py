"""What a model is made of: a list of layers, each of which has only what its kind needs.

A family's module in models/ makes these from a checkpoint's metadata; layers/ makes what runs from them. All are frozen
and checked when made: a wrong value raises ArgumentError naming the field, what was found and what was expected.
"""

from __future__ import annotations

from colibri.spec.attention import AttentionSpec, LatentAttentionSpec
from colibri.spec.model import MAX_LAYERS, FeedForward, LayerSpec, Mixer, ModelSpec
from colibri.spec.networks import Activation, BesideSpec, DenseSpec, MoeSpec, RoutingSpec, SharedGate, SharedSpec
from colibri.spec.parts import KeyValues, NormSpec, RopeScaling, RopeSpec, State
from colibri.spec.recurrent import DeltaNetSpec, Mamba2Spec, ShortConvSpec

__all__ = [
    "MAX_LAYERS",
    "Activation",
    "AttentionSpec",
    "BesideSpec",
    "DeltaNetSpec",
    "DenseSpec",
    "FeedForward",
    "KeyValues",
    "LatentAttentionSpec",
    "LayerSpec",
    "Mamba2Spec",
    "Mixer",
    "ModelSpec",
    "MoeSpec",
    "NormSpec",
    "RopeScaling",
    "RopeSpec",
    "RoutingSpec",
    "SharedGate",
    "SharedSpec",
    "ShortConvSpec",
    "State",
]

"""The short causal convolution over the tokens of a sequence, each channel alone, that recurrent mixers begin with."""

from __future__ import annotations

import numpy as np

from colibri import ops
from colibri.layers.build import Build


def convolution(build: Build, name: str, channels: int, taps: int, **rules: bool) -> ops.Convolution:
    """What ops.short_conv asks for; files hold the taps of each channel together, kernels the channels of each tap."""
    stored = build.weights.plain(f"{name}.weight", (channels, taps)).numpy()
    weight = ops.tensor("F32", (taps, channels))
    weight.numpy()[...] = np.ascontiguousarray(stored.T)
    return ops.Convolution(weight, build.weights.optional_vector(f"{name}.bias", channels), **rules)

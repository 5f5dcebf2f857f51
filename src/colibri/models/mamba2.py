"""What families with layers of Mamba2 share: sizes from metadata, tensors of directories."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from colibri.spec import Mamba2Spec
from colibri.weights.checkpoint import Checkpoint
from colibri.weights.metadata import Metadata
from colibri.weights.tensor_info import TensorInfo

View = Callable[[Metadata, TensorInfo], Iterable[TensorInfo]]
# Of the steps in time: only such that bound nothing are run; JSON has no infinity, so there are two ways to write it.
NO_LIMIT: Final = ([0.0, math.inf], [0.0, {"__float__": "Infinity"}])


def spec(checkpoint: Checkpoint, **rules: Any) -> Mamba2Spec:
    """What such a layer is made of."""
    metadata, key = checkpoint.metadata, checkpoint.key
    heads = metadata.integer(key("ssm.time_step_rank"), low=1)
    width = metadata.integer(key("ssm.inner_size"), low=1)
    if width % heads:
        raise metadata.error(key("ssm.inner_size"), str(width), f"a multiple of {heads} heads")
    return Mamba2Spec(
        heads=heads,
        head_dim=width // heads,
        groups=metadata.integer(key("ssm.group_count"), 1, low=1),
        state_size=metadata.integer(key("ssm.state_size"), low=1),
        taps=metadata.integer(key("ssm.conv_kernel"), low=1),
        **rules,
    )


def layer(module: str) -> dict[str, str]:
    """The matrices of a module of directories, by their GGUF names."""
    return {f"{module}.in_proj": "ssm_in", f"{module}.out_proj": "ssm_out"}


def views(module: str, *groups: str) -> Mapping[str, View]:
    """Its other tensors, in the shapes that llama.cpp asks for; `groups`: names of the field with their number."""

    def norm(config: Metadata, tensor: TensorInfo) -> Iterable[TensorInfo]:
        count = config.integer(next((name for name in groups if name in config), groups[0]), 1, low=1)
        yield replace(tensor, name="ssm_norm.weight", shape=(count, tensor.shape[0] // count))

    def taps(config: Metadata, tensor: TensorInfo) -> Iterable[TensorInfo]:
        yield replace(tensor, name="ssm_conv1d.weight", shape=(tensor.shape[0], tensor.shape[-1]))

    return {
        f"{module}.A_log": _column("ssm_a", transform="negative_exponential"),
        f"{module}.D": _column("ssm_d"),
        f"{module}.dt_bias": _vector("ssm_dt.bias"),
        f"{module}.conv1d.weight": taps,
        f"{module}.conv1d.bias": _vector("ssm_conv1d.bias"),
        f"{module}.norm.weight": norm,
    }


def _vector(name: str) -> View:
    return lambda config, tensor: [replace(tensor, name=name)]


def _column(name: str, **rules: Any) -> View:
    return lambda config, tensor: [replace(tensor, name=name, shape=(tensor.shape[0], 1), **rules)]

"""From an architecture's name to the module that configures it."""

from __future__ import annotations

from collections.abc import Callable

from colibri.config import ModelConfig
from colibri.errors import UnsupportedError
from colibri.models import deepspeed_moe, mixtral, olmoe, qwen3_moe
from colibri.weights.checkpoint import Checkpoint

ARCHITECTURES: dict[str, Callable[[Checkpoint], ModelConfig]] = {
    module.ARCHITECTURE: module.model_config for module in (mixtral, qwen3_moe, olmoe, deepspeed_moe)
}


def model_config(checkpoint: Checkpoint) -> ModelConfig:
    """The configuration of a checkpoint; UnsupportedError naming the supported architectures for any other."""
    configure = ARCHITECTURES.get(checkpoint.architecture)
    if configure is None:
        raise UnsupportedError(
            f"{checkpoint.path}: architecture {checkpoint.architecture!r} is not supported; "
            f"supported are {', '.join(sorted(ARCHITECTURES))} (llama means Mixtral)"
        )
    return configure(checkpoint)

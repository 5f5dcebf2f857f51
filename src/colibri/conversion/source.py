"""Opens whatever can be converted: what the engine runs, more block types, PyTorch's files and DeepSpeed's."""

from __future__ import annotations

from pathlib import Path

from colibri.conversion.deepspeed import deepspeed_folder, open_deepspeed
from colibri.conversion.dequantize import READABLE
from colibri.conversion.torch_file import read_weights
from colibri.models.registry import open_checkpoint
from colibri.weights.checkpoint import Checkpoint


def open_source(path: Path) -> Checkpoint:
    """A checkpoint to convert. Raises FileError, FormatError or UnsupportedError."""
    folder = deepspeed_folder(path)
    if folder is not None:
        return open_deepspeed(folder, path.resolve().name)
    return open_checkpoint(path, READABLE, read_weights)

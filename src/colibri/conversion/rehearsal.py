"""What opens a model is tried on the output before it is written: bad metadata costs no conversion."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from colibri.conversion.plan import Output
from colibri.models.registry import model_config
from colibri.ops import BLOCK_TYPES
from colibri.text import load_tokenizer
from colibri.weights.checkpoint import Checkpoint, check
from colibri.weights.gguf import read_one_file
from colibri.weights.gguf_writer import gguf_header
from colibri.weights.metadata import Metadata
from colibri.weights.tensor_info import TensorInfo


def rehearse(checkpoint: Checkpoint, outputs: Sequence[Output], metadata: Mapping[str, object]) -> None:
    """Make the configuration and the tokenizer of a whole model from the output's metadata, as the engine will.

    Raises FormatError or UnsupportedError that names the source, as opening the output would.
    """
    with TemporaryDirectory() as folder:
        header = Path(folder) / "header.gguf"
        header.write_bytes(gguf_header(metadata, []))
        values = Metadata(checkpoint.path, read_one_file(header).metadata)
    specs = [output.spec for output in outputs]
    tensors = {
        spec.name: TensorInfo(spec.name, spec.type, spec.shape, checkpoint.path, 0, spec.nbytes) for spec in specs
    }
    output = replace(
        checkpoint, metadata=values, tensors=tensors, tokenizer_source=values, accepted=frozenset(BLOCK_TYPES)
    )
    check(output)
    model_config(output)
    if "tokenizer.ggml.model" in values:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a doubtful label; it is told to those who run the file
            tokenizer = load_tokenizer(values)
        tokenizer.token_bytes(0)
        tokenizer.encode("a text")

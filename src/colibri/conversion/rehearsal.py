"""What opens a model is tried on the output before it is written: bad metadata costs no conversion."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import cast

from colibri import ops
from colibri.conversion.plan import Output
from colibri.conversion.tokenizer_check import check_tokenizer
from colibri.errors import FileError
from colibri.experts.residency import Residency
from colibri.experts.store import ExpertStore
from colibri.layers import kinds
from colibri.layers.linear import DenseWeights
from colibri.layers.workspace import Workspace
from colibri.models.decoder import Decoder
from colibri.models.registry import model_spec
from colibri.text import load_tokenizer
from colibri.weights.checkpoint import Checkpoint, check
from colibri.weights.gguf import read_one_file
from colibri.weights.gguf_writer import gguf_header
from colibri.weights.metadata import Metadata
from colibri.weights.tensor_info import TensorInfo


class _Unread(DenseWeights):
    """Checks shapes as at a load; matrices are handles that are never filled, and small tensors hold ones."""

    def _plain(self, info: TensorInfo) -> ops.Tensor:
        tensor = ops.tensor("F32", info.shape)
        tensor.numpy()[...] = 1
        return tensor


def rehearse(checkpoint: Checkpoint, outputs: Sequence[Output], metadata: Mapping[str, object]) -> list[str]:
    """Make the configuration, the layers and the tokenizer of a whole model, as the engine will of the output.

    Returns what a user should know of the output. Raises FormatError or UnsupportedError that names the source, as
    opening the output would.
    """
    values = _as_read(checkpoint.path, metadata)
    specs = [output.spec for output in outputs]
    tensors = {
        spec.name: TensorInfo(spec.name, spec.type, spec.shape, checkpoint.path, 0, spec.nbytes) for spec in specs
    }
    output = replace(
        checkpoint, metadata=values, tensors=tensors, tokenizer_source=values, accepted=frozenset(ops.BLOCK_TYPES)
    )
    check(output)
    spec = model_spec(output)
    experts = cast("Residency", SimpleNamespace(store=ExpertStore(output)))  # nothing is read of them
    with suppress(MemoryError):  # of addresses for the dense matrices; no memory is taken for them
        workspace = Workspace(spec, kinds.scratch(spec).buffers, 1)
        Decoder(spec, _Unread(output), experts, workspace, context=1, exact=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a doubtful label; it is told to those who run the file
        return _try_tokenizer(checkpoint, values)


def _try_tokenizer(checkpoint: Checkpoint, values: Metadata) -> list[str]:
    if "tokenizer.ggml.model" not in values:
        return []
    if checkpoint.format == "gguf":  # copied as it was
        tokenizer = load_tokenizer(values)
        tokenizer.token_bytes(0)
        tokenizer.encode("a text")
        return []
    note = check_tokenizer(load_tokenizer(checkpoint.tokenizer_source), values)
    return [] if note is None else [note]


def _as_read(source: Path, metadata: Mapping[str, object]) -> Metadata:
    """The metadata as a reader of the output has it."""
    try:
        with TemporaryDirectory() as folder:
            header = Path(folder) / "header.gguf"
            header.write_bytes(gguf_header(metadata, []))
            return Metadata(source, read_one_file(header).metadata)
    except OSError as error:
        raise FileError(f"no temporary file can be written: {error.strerror}; let TMPDIR name a folder") from error

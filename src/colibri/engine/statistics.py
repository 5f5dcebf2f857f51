"""What a run looked like: times, memory, experts; plain numbers for people and for --json."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from colibri.engine.sequence import Sequence
from colibri.spec import ModelSpec
from colibri.weights.checkpoint import Checkpoint


@dataclass(frozen=True)
class Timings:
    """Seconds and rates of one generation; a rate without enough tokens is None."""

    load_s: float
    first_token_s: float | None
    prefill_tokens_per_s: float | None
    decode_tokens_per_s: float | None

    def as_dict(self) -> dict[str, float | None]:
        """By name."""
        return asdict(self)


def timings(sequence: Sequence, load_s: float) -> Timings:
    """The times of a sequence: the prompt's until the first token, then the others."""
    if not sequence.first_token_at:
        return Timings(load_s, None, None, None)
    first = sequence.first_token_at - sequence.created
    later = sequence.last_token_at - sequence.first_token_at
    steps = sequence.sampled - 1
    computed = sequence.prompt_length - sequence.cached
    return Timings(load_s, first, computed / first, steps / later if steps and later > 0 else None)


def describe_model(checkpoint: Checkpoint, spec: ModelSpec) -> dict[str, Any]:
    """The `model` object of --json: name, architecture and sizes; `quantization` is the type with the most bytes."""
    infos = checkpoint.tensors.values()
    by_type = Counter[str]()
    for info in infos:
        by_type[info.type] += info.nbytes
    return {
        "name": spec.name,
        "architecture": spec.architecture,
        "layers": len(spec.layers),
        "experts": spec.experts,
        "experts_per_token": spec.experts_per_token,
        "parameters": sum(math.prod(info.shape) for info in infos),
        "quantization": by_type.most_common(1)[0][0],
    }

"""From the fields of a request to the engine's SamplingParams, with the defaults of the OpenAI API."""

from __future__ import annotations

from colibri.config import SamplingParams
from colibri.server.problems import bad_request, context_exceeded
from colibri.server.schema import Sampling

_SEED_BITS = (1 << 64) - 1


def sampling_params(request: Sampling, *, max_tokens: int, top_logprobs: int, index: int, vocab: int) -> SamplingParams:
    """What choice `index` of a request asks for; choices of one seed differ."""
    stop = request.stop if request.stop is not None else ()
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=_or(request.temperature, 1.0),
        top_p=max(_or(request.top_p, 1.0), 1e-9),  # 0 leaves the likeliest token
        top_k=max(0, request.top_k or 0),  # -1 is a common way to say none
        min_p=_or(request.min_p, 0.0),
        repetition_penalty=_or(request.repetition_penalty, 1.0),
        presence_penalty=_or(request.presence_penalty, 0.0),
        frequency_penalty=_or(request.frequency_penalty, 0.0),
        logit_bias=_biases(request.logit_bias or {}, vocab),
        top_logprobs=top_logprobs,
        seed=None if request.seed is None else (request.seed + index) & _SEED_BITS,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        ignore_eos=request.ignore_eos,
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else float(value)


def _biases(biases: dict[str, float], vocab: int) -> tuple[tuple[int, float], ...]:
    for key in biases:
        if int(key) >= vocab:
            raise bad_request(f"logit_bias: token id {key}, expected 0..{vocab - 1}", "logit_bias")
    return tuple((int(key), float(value)) for key, value in biases.items())


def room_left(prompt: int, context: int, wanted: int | None) -> int:
    """How many tokens may be generated: what is wanted, cut to the context. Raises ApiError when nothing fits."""
    room = context - prompt
    if room < (0 if wanted == 0 else 1):
        raise context_exceeded(prompt, context)
    return room if wanted is None else min(wanted, room)

"""One process of llama.cpp or ik_llama.cpp for peers.py, run by the Python that has it; prints one JSON object.

    python peer_llama.py llama.cpp mapped MODEL.gguf --threads 2 --prompt-tokens 512 64 --new-tokens 64 --repeat 2

{"version", "isa", "prefill": {"512": [tokens/s ...]}, "decode": [tokens/s ...], "latency_ms": [every token decoded]}

With --stream N instead: one cold prompt and N tokens after the first, {"version", "isa", "load_s", "first_s",
"token_s": [...], "first_bytes", "bytes"} with the bytes read from disks before the first token and after it.

Both engines have the same C interface. What is timed is `llama_decode` until the logits can be read: ids are drawn at
random, nothing is sampled, and no prompt cache takes part. What a variant does not name stays as the engine has it:
flash attention, 512 tokens at once, a cache of F16, weights mapped from the file.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import importlib.metadata
import itertools
import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

WARM_UP_TOKENS = 64
ISAS = ("AVX512_VNNI", "AVX512", "AVX2", "NEON")  # the widest first, as the engines name them


@dataclass(frozen=True)
class Engine:
    """An engine's package on PyPI, the module in it that declares llama.h, and what differs between the engines."""

    package: str
    module: str
    forget: Callable[[Any, Any], None]  # (module, context): empty the key-value cache
    variants: dict[str, dict[str, bool]]  # fields of the model's or the context's parameters, other than by default


ENGINES = {
    "llama.cpp": Engine(
        "llama-cpp-python",
        "llama_cpp.llama_cpp",
        lambda api, context: api.llama_memory_clear(api.llama_get_memory(context), False),
        {
            "repacked": {"use_extra_bufts": True},  # its default: a second copy of the weights in another order
            "mapped": {"use_extra_bufts": False},
        },
    ),
    "ik_llama.cpp": Engine(
        "ik-llama-cpp-python",
        "ik_llama_cpp._ctypes_api",
        lambda api, context: api.llama_kv_cache_clear(context),
        {
            "fused": {"fused_moe_up_gate": True},  # its default
            "plain": {"fused_moe_up_gate": False},
            "repacked": {"repack_tensors": True, "use_mmap": False},  # -rtr of its command line
        },
    ),
}


class Peer:
    """A model loaded by an engine, and its position in the only sequence."""

    def __init__(self, engine: Engine, variant: str, path: str, threads: int, context: int) -> None:
        self._api = api = importlib.import_module(engine.module)
        self._engine = engine
        self._position = 0
        api.llama_backend_init()
        model, settings = api.llama_model_default_params(), api.llama_context_default_params()
        settings.n_ctx = settings.n_batch = context
        settings.n_threads = settings.n_threads_batch = threads
        for name, value in engine.variants[variant].items():
            owners = [params for params in (model, settings) if hasattr(params, name)]
            assert owners, f"{engine.package} has no parameter {name}"
            setattr(owners[0], name, value)
        self._model = api.llama_model_load_from_file(path.encode(), model)
        self._context = self._model and api.llama_init_from_model(self._model, settings)
        if not self._context:
            sys.exit(f"{path}: {engine.package} does not load it")
        self._vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))
        self._random = random.Random(1)

    def describe(self) -> dict[str, str]:
        """The version, and the widest instructions that were compiled in; those of a wheel are often few."""
        information = self._api._lib.llama_print_system_info
        information.restype = ctypes.c_char_p
        built = information().decode()
        isa = next((name.lower() for name in ISAS if f"{name} = 1" in built), "none")
        return {"version": f"{self._engine.package} {importlib.metadata.version(self._engine.package)}", "isa": isa}

    def forget(self) -> None:
        """Begin a new sequence."""
        self._engine.forget(self._api, self._context)
        self._position = 0

    def forward(self, count: int) -> float:
        """Seconds that `count` more random tokens take, all at once, until the logits of the last are there."""
        ids = (self._api.llama_token * count)(*(self._random.randrange(self._vocabulary) for _ in range(count)))
        batch = self._api.llama_batch(n_tokens=count, token=ids)
        if hasattr(batch, "all_pos_0"):  # ik_llama.cpp is told the positions: all_pos_0 + i * all_pos_1
            batch.all_pos_0, batch.all_pos_1 = self._position, 1
        start = time.perf_counter()
        status = self._api.llama_decode(self._context, batch)
        if status:
            sys.exit(f"llama_decode of {count} tokens at {self._position}: status {status}")
        self._api.llama_get_logits_ith(self._context, -1)[0]  # waits for them
        seconds = time.perf_counter() - start
        self._position += count
        return seconds


def measure(peer: Peer, prompts: list[int], new: int, repeat: int) -> dict[str, Any]:
    """Prefill of each length and decode after one token, `repeat` times each."""
    peer.forward(WARM_UP_TOKENS)
    peer.forward(1)
    prefill: dict[int, list[float]] = {tokens: [] for tokens in prompts}
    for tokens, _ in itertools.product(prompts, range(repeat)):
        peer.forget()
        prefill[tokens].append(tokens / peer.forward(tokens))
    decoded: list[list[float]] = []
    for _ in range(repeat):
        peer.forget()
        peer.forward(1)
        decoded.append([peer.forward(1) for _ in range(new)])
    return {
        "prefill": prefill,
        "decode": [new / sum(seconds) for seconds in decoded],
        "latency_ms": [1000 * second for seconds in decoded for second in seconds],
    }


def bytes_read() -> int:
    """What this process had read from disks so far."""
    with open("/proc/self/io", encoding="ascii") as file:
        return int(dict(line.split(": ") for line in file)["read_bytes"])


def stream(peer: Peer, tokens: int, new: int) -> dict[str, Any]:
    """What a cold prompt and the tokens after it take."""
    first_s, first_bytes = peer.forward(tokens), bytes_read()
    token_s = [peer.forward(1) for _ in range(new)]
    return {"first_s": first_s, "first_bytes": first_bytes, "token_s": token_s, "bytes": bytes_read() - first_bytes}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("variant", choices={name: None for engine in ENGINES.values() for name in engine.variants})
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--prompt-tokens", type=int, nargs="+", default=[512])
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--stream", type=int, help="tokens after the first of one cold prompt")
    options = parser.parse_args()
    context = max(*options.prompt_tokens, options.stream or options.new_tokens, 512) + 64
    start = time.perf_counter()
    peer = Peer(ENGINES[options.engine], options.variant, options.model, options.threads, context)
    loaded = {"load_s": time.perf_counter() - start}
    if options.stream is not None:
        found = loaded | stream(peer, options.prompt_tokens[0], options.stream)
    else:
        found = measure(peer, options.prompt_tokens, options.new_tokens, options.repeat)
    print(json.dumps(peer.describe() | found))


if __name__ == "__main__":
    main()

"""One process of llama.cpp for peers.py, run by the Python that has the `xllamacpp` wheel; prints one JSON object.

    python peer_llama.py MODEL --threads 2 --prompt-tokens 512 --new-tokens 64 --repeat 2 [--mapped]

With --stream N instead: one cold prompt and N tokens after the first, {"load_s", "first_s", "token_s": [...],
"first_bytes", "bytes"} with the bytes read from disks before the first token and after it.

llama.cpp repacks weights into a second copy at load; --mapped leaves them as they are in the file. Times are those
that its server reports, greedy sampling, ids drawn at random, nothing taken from its prompt cache.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import time
from typing import Any

import xllamacpp


def server(model: str, threads: int, context: int, mapped: bool, warmup: bool = True) -> Any:
    """llama.cpp's server inside this process, listening on a port of its own that nobody uses."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = model
    parameters.n_ctx = context
    parameters.n_parallel = 1
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    parameters.cache_ram_mib = 0
    parameters.fit_params = False
    parameters.no_extra_bufts = mapped
    parameters.verbosity = 0
    parameters.warmup = warmup
    return xllamacpp.Server(parameters)


def instruction_set() -> str:
    """The widest that this build of llama.cpp uses; the wheel's is often not the widest that the processor has."""
    built = xllamacpp.get_system_info()
    return next((name for name in ("AVX512_VNNI", "AVX512", "AVX2", "NEON") if f"{name} = 1" in built), "none")


def complete(llama: Any, tokens: int, new: int, random_ids: random.Random, vocabulary: int) -> dict[str, float]:
    """The timings of one completion."""
    request = {
        "prompt": [random_ids.randrange(vocabulary) for _ in range(tokens)], "n_predict": new, "temperature": 0,
        "ignore_eos": True, "cache_prompt": False,
    }  # fmt: skip
    answer = llama.handle_completions(request)
    answer = json.loads(answer) if isinstance(answer, str) else answer
    timings: dict[str, float] = answer["timings"]
    assert timings["prompt_n"] == tokens, timings
    assert timings["predicted_n"] == new, timings
    return timings


def bytes_read() -> int:
    """What this process had read from disks so far."""
    with open("/proc/self/io", encoding="ascii") as file:
        return int(dict(line.split(": ") for line in file)["read_bytes"])


def stream(options: argparse.Namespace) -> dict[str, Any]:
    """What a cold prompt and the tokens after it take."""
    tokens, start = options.prompt_tokens[0], time.perf_counter()
    llama = server(options.model, options.threads, tokens + options.stream + 8, options.mapped, warmup=False)
    ids = random.Random(1)
    request = {
        "prompt": [ids.randrange(options.vocabulary) for _ in range(tokens)], "n_predict": options.stream + 1,
        "temperature": 0.8, "seed": 1, "ignore_eos": True, "cache_prompt": False, "stream": True,
        "timings_per_token": True,
    }  # fmt: skip
    loaded = time.perf_counter()
    times: list[tuple[int, float]] = []  # tokens after the prompt and the milliseconds they took; some have no text yet
    read: list[int] = []
    prompt_ms: list[float] = []

    def heard(part: Any) -> bool:
        timings = part["timings"]
        times.append((timings["predicted_n"], timings["predicted_ms"]))
        read.append(bytes_read())
        prompt_ms.append(timings["prompt_ms"])
        return False

    llama.handle_completions(request, heard)
    assert times[-1][0] == options.stream + 1, f"{times[-1][0]} tokens"
    return {
        "load_s": loaded - start, "first_s": prompt_ms[0] / 1000, "first_bytes": read[0], "bytes": read[-1] - read[0],
        "token_s": [
            (after - before) / (last - first) / 1000
            for (first, before), (last, after) in itertools.pairwise(times)
            for _ in range(first, last)
        ],
    }  # fmt: skip


def main() -> None:
    """Measure and print {"isa": ..., "prefill": {"512": [tokens/s ...]}, "decode": [tokens/s ...]}."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--prompt-tokens", type=int, nargs="+", default=[512])
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=1000, help="ids are drawn below this")
    parser.add_argument("--mapped", action="store_true")
    parser.add_argument("--stream", type=int, help="tokens after the first of one cold prompt")
    options = parser.parse_args()
    if options.stream is not None:
        print(json.dumps(stream(options)))
        return
    context = max(*options.prompt_tokens, options.new_tokens, 512) + 64
    llama = server(options.model, options.threads, context, options.mapped)
    ids = random.Random(1)
    complete(llama, 64, 2, ids, options.vocabulary)
    prefill: dict[str, list[float]] = {}
    for tokens in options.prompt_tokens:
        runs = [complete(llama, tokens, 1, ids, options.vocabulary) for _ in range(options.repeat)]
        prefill[str(tokens)] = [1000 * tokens / run["prompt_ms"] for run in runs]
    decode = [
        # the first token comes with the prompt
        1000 * options.new_tokens / complete(llama, 1, options.new_tokens + 1, ids, options.vocabulary)["predicted_ms"]
        for _ in range(options.repeat)
    ]
    print(json.dumps({"isa": instruction_set(), "prefill": prefill, "decode": decode}))


if __name__ == "__main__":
    main()

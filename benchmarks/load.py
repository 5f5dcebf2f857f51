"""Load on a running server: python benchmarks/load.py URL [--clients 64] [--seconds 120] [--unruly | --chat]

Every client sends one streamed completion after another, of random lengths, to a loopback address. With --unruly one
request in ten is malformed and one in ten is left before its end. With --chat they are questions in a chat, without
max_tokens. Prints one JSON object: requests by outcome, requests and tokens a second, quantiles of the time to the
first token, between tokens and of whole requests, and the memory of the server's processes over time; --plot FILE.png
draws it. Exits 1 when an answer was lost or wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

MALFORMED: list[Any] = [
    {"prompt": 3}, {"prompt": "a", "n": 0}, {"prompt": "a", "nonsense": 1}, {"prompt": [1 << 30]}, [], "text",
    {"prompt": "a", "temperature": "hot"}, {"prompt": [5] * 100_000},
]  # fmt: skip
WORDS = ("what", "how", "why", "is", "the", "a", "of", "capital", "small", "bird", "fly", "water", "tell", "me")


class Load:
    """What the clients saw."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.outcomes: Counter[str] = Counter()
        self.first: list[float] = []
        self.between: list[float] = []
        self.whole: list[float] = []
        self.memory: list[tuple[float, int]] = []
        self.faults: list[str] = []
        self.tokens = 0
        self.start = time.monotonic()

    def over(self) -> bool:
        return time.monotonic() - self.start > self.options.seconds

    async def client(self, number: int, http: httpx.AsyncClient) -> None:
        """One request after another until the time is over."""
        rng = random.Random(1000 * self.options.seed + number)
        while not self.over():
            kind = rng.random() if self.options.unruly else 1.0
            try:
                if kind < 0.1:
                    await self.malformed(rng, http)
                else:
                    await self.request(rng, http, leaves=kind < 0.2)
            except httpx.HTTPError as error:
                self.outcomes["lost"] += 1
                self.faults.append(f"{type(error).__name__}: {error}")

    async def malformed(self, rng: random.Random, http: httpx.AsyncClient) -> None:
        """A request that must be refused."""
        answer = await http.post("/v1/completions", json=rng.choice(MALFORMED))
        self.outcomes["refused" if answer.status_code == 400 else "wrong"] += 1
        if answer.status_code != 400:
            self.faults.append(f"a malformed request was answered with {answer.status_code}")

    async def request(self, rng: random.Random, http: httpx.AsyncClient, *, leaves: bool) -> None:
        """A good request; one that `leaves` hangs up after a few tokens."""
        new: int | None = rng.randint(1, self.options.new_tokens) if self.options.unruly else self.options.new_tokens
        length = rng.randint(1, self.options.prompt_tokens) if self.options.unruly else self.options.prompt_tokens
        patience = rng.randint(0, 20) if leaves else None
        body = {
            "prompt": [rng.randrange(3, 4000) for _ in range(length)], "max_tokens": new, "ignore_eos": True,
            "temperature": rng.choice([0, 0.8]), "stream": True, "logprobs": 0,
        }  # fmt: skip
        path = "/v1/completions"
        if self.options.chat:
            question = " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 30)))
            body = {"messages": [{"role": "user", "content": question}], "stream": True, "logprobs": True}
            path, new = "/v1/chat/completions", None
        sent = time.monotonic()
        async with http.stream("POST", path, json=body) as answer:
            if answer.status_code == 429:
                self.outcomes["queue full"] += 1
                await answer.aread()
                await asyncio.sleep(float(answer.headers["retry-after"]))
                return
            if answer.status_code != 200:
                self.outcomes["wrong"] += 1
                self.faults.append(f"status {answer.status_code}: {(await answer.aread())[:200]!r}")
                return
            made, ended = await self.read(answer, sent, patience)
        if patience is not None and made >= patience:
            self.outcomes["left"] += 1
        elif ended and new in (made, None):
            self.outcomes["answered"] += 1
            self.whole.append(time.monotonic() - sent)
        else:
            self.outcomes["wrong"] += 1
            self.faults.append(f"{made} of {new} tokens, end seen: {ended}")

    async def read(self, answer: httpx.Response, sent: float, patience: int | None) -> tuple[int, bool]:
        """Tokens that came, and whether the stream ended as it should."""
        made, last = 0, sent
        async for line in answer.aiter_lines():
            if line == "data: [DONE]":
                return made, True
            if not line.startswith("data: "):
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                self.faults.append(chunk["error"]["message"])
                return made, False
            now = time.monotonic()
            tokens = chunk["choices"][0].get("logprobs") or {}
            count = len(tokens.get("tokens") or tokens.get("content") or ())
            if count:
                (self.between if made else self.first).append(now - last)
                made, last = made + count, now
                self.tokens += count
            if patience is not None and made >= patience:
                break
        return made, False

    async def watch(self, pids: list[int]) -> None:
        """Memory of the server's processes, twice a second."""
        while not self.over():
            total = sum(_resident(pid) for pid in pids)
            self.memory.append((time.monotonic() - self.start, total))
            await asyncio.sleep(0.5)

    def report(self) -> dict[str, Any]:
        """The JSON object."""
        seconds = time.monotonic() - self.start
        third = [value for at, value in self.memory if at > self.options.seconds / 2]
        return {
            "clients": self.options.clients,
            "seconds": round(seconds, 1),
            "outcomes": dict(self.outcomes),
            "requests_per_s": round(self.outcomes["answered"] / seconds, 2),
            "tokens_per_s": round(self.tokens / seconds, 1),
            "request_ms": _quantiles(self.whole),
            "first_token_ms": _quantiles(self.first),
            "between_tokens_ms": _quantiles(self.between),
            "memory_mb": {"half_time": third[0] >> 20, "end": third[-1] >> 20} if third else None,
            "faults": self.faults[:5],
        }


def _quantiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    if not ordered:
        return {}
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99_9": 0.999, "max": 1.0}
    return {name: round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)
            for name, share in shares.items()}  # fmt: skip


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
    except OSError:
        return 0


def _processes(pid: int | None) -> list[int]:
    if pid is None:
        return []
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


def plot(load: Load, file: Path) -> None:
    """Time between tokens as a distribution, and memory over time."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    ordered = sorted(1000 * value for value in load.between)
    shares = [100 * (place + 1) / len(ordered) for place in range(len(ordered))]
    left.plot(ordered, shares)
    left.set(xscale="log", xlabel="time between tokens (ms)", ylabel="share of tokens (%)",
             title=f"{load.options.clients} clients, {load.options.seconds} s")  # fmt: skip
    left.axvline(_quantiles(load.between)["p99"], linestyle=":", color="gray")
    left.grid(alpha=0.3)
    right.plot([at for at, _ in load.memory], [value / (1 << 20) for _, value in load.memory])
    right.set(xlabel="time (s)", ylabel="memory of the server (MiB)", ylim=(0, None), title="web server and engine")
    right.grid(alpha=0.3)
    figure.savefig(file, dpi=120)


async def run(options: argparse.Namespace) -> Load:
    load = Load(options)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=options.clients)
    async with httpx.AsyncClient(base_url=options.url, timeout=120, limits=limits) as http:
        clients = [load.client(number, http) for number in range(options.clients)]
        await asyncio.gather(*clients, load.watch(_processes(options.pid)))
    return load


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--prompt-tokens", type=int, default=300)
    parser.add_argument("--new-tokens", type=int, default=120)
    parser.add_argument("--unruly", action="store_true")
    parser.add_argument("--chat", action="store_true")
    parser.add_argument("--pid", type=int, help="of the server, to watch its memory")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    if urlsplit(options.url).hostname not in ("127.0.0.1", "localhost", "::1"):
        parser.error("only servers on this machine are put under load")
    load = asyncio.run(run(options))
    print(json.dumps(load.report()))
    if options.plot is not None:
        plot(load, options.plot)
    return 1 if load.outcomes["lost"] or load.outcomes["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())

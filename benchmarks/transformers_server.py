"""The usual way to serve a model, to compare with: a transformers pipeline behind FastAPI.

python benchmarks/transformers_server.py DIRECTORY [--port 8200] [--threads 2]; needs torch, transformers, fastapi and
uvicorn. It speaks as much of /v1/completions as benchmarks/load.py needs: every answer comes in one chunk.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response

sys.path.pop(0)  # transformers takes the scripts beside this one for packages that it looks for


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory")
    parser.add_argument("--port", type=int, default=8200)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()

    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(options.threads)
    model = AutoModelForCausalLM.from_pretrained(options.directory, dtype=torch.float32)
    lock = threading.Lock()
    app = FastAPI()

    def generate(ids: list[int], count: int, temperature: float) -> list[int]:
        with lock, torch.inference_mode():
            sampling: dict[str, Any] = {"do_sample": True, "temperature": temperature} if temperature else {}
            found = model.generate(
                torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), min_new_tokens=count,
                max_new_tokens=count, pad_token_id=0, **sampling,
            )  # fmt: skip
        return list(map(int, found[0][len(ids) :]))

    @app.post("/v1/completions")
    async def complete(request: Request) -> Response:
        body = await request.json()
        tokens = await asyncio.to_thread(generate, body["prompt"], body["max_tokens"], body["temperature"])
        chunk = {"choices": [{"text": "", "finish_reason": "length", "logprobs": {"tokens": tokens}}]}
        return Response(f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n", media_type="text/event-stream")

    uvicorn.run(app, port=options.port, log_level="warning")


if __name__ == "__main__":
    main()

"""One process of transformers for peers.py, run by the Python that has it and torch; prints one JSON object.

    python peer_transformers.py transformers grouped_mm '{"model_type": "olmoe", ...}' --threads 2

The model is built in memory from its configuration: BF16, every matrix random. What is timed is the model's forward
pass with its key-value cache, with the logits of the last token, in the manner of peer_llama.py, whose JSON it prints.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from peer_llama import measure

VARIANTS = ("grouped_mm", "eager")  # of the experts: the default of transformers 5, and one matrix after the other
DEVIATION = 0.02  # of the weights: what transformers itself draws
NOISE = (1 << 24) + 1  # random numbers, which repeat; not a multiple of anything, so no two experts are equal


class Peer:
    """A model of transformers, and the tokens it has seen."""

    def __init__(self, variant: str, config: dict[str, object], threads: int) -> None:
        sys.path.pop(0)  # transformers takes the scripts beside this one for packages that it looks for
        import torch
        import transformers
        from transformers.initialization import no_init_weights

        torch.set_num_threads(threads)
        torch.manual_seed(1)
        self._torch, self._transformers = torch, transformers
        settings = transformers.AutoConfig.for_model(**config)
        build = transformers.AutoModelForCausalLM.from_config
        with no_init_weights():  # half a minute for 7e9 numbers
            self._model = build(settings, dtype=torch.bfloat16, experts_implementation=variant).eval()
        noise = (torch.randn(NOISE) * DEVIATION).bfloat16()
        with torch.no_grad():
            for weight in self._model.parameters():
                for piece in weight.view(-1).split(NOISE) if weight.dim() > 1 else []:
                    piece.copy_(noise[: len(piece)])
        self.forget()

    def describe(self) -> dict[str, str]:
        """The versions, and the widest instructions that torch itself takes."""
        torch, transformers = self._torch, self._transformers
        versions = f"transformers {transformers.__version__}, torch {torch.__version__}, bf16"
        return {"version": versions, "isa": torch.backends.cpu.get_cpu_capability().lower()}

    def forget(self) -> None:
        """Begin a new sequence."""
        self._cache = self._transformers.DynamicCache(config=self._model.config)

    def forward(self, count: int) -> float:
        """Seconds that `count` more random tokens take, all at once, until the logits of the last are there."""
        ids = self._torch.randint(self._model.config.vocab_size, (1, count))
        start = time.perf_counter()
        with self._torch.inference_mode():
            logits = self._model(ids, past_key_values=self._cache, logits_to_keep=1).logits
        assert logits.isfinite().all() and logits.std() > 0, "no logits that a model of random weights could give"
        return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=["transformers"])
    parser.add_argument("variant", choices=VARIANTS)
    parser.add_argument("config", type=json.loads, help="fields of transformers' configuration")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--prompt-tokens", type=int, nargs="+", default=[512])
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=2)
    options = parser.parse_args()
    peer = Peer(options.variant, options.config, options.threads)
    found = measure(peer, options.prompt_tokens, options.new_tokens, options.repeat)
    print(json.dumps(peer.describe() | found))


if __name__ == "__main__":
    main()

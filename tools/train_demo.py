"""Train the embedded demo model on the text that tools/demo_data.py wrote.

    nice -n 19 python tools/train_demo.py --data /tmp/data --out /tmp/demo --minutes 120

Needs torch, numpy, tokenizers and safetensors; the package itself does not.
"""

import argparse
import json
import math
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from demo_bigram import bigram_counts, fit_embeddings
from demo_data import DOMAINS, SEPARATOR
from demo_model import DemoModel, Shape, balance_loss, expert_shares, save_directory
from demo_muon import Muon
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from torch.nn import functional as F

Tokens = NDArray[np.uint16]

SPECIAL_TOKENS = [SEPARATOR, "<|im_start|>", "<|im_end|>"]  # ids 0, 1, 2
TOKENS_PER_STEP = 4096
PARTS_PER_STEP = 4
SHARE_MEMORY = 0.8  # decay per step of the expert shares in the balance loss
BALANCE_COEFFICIENT = 0.3  # on the mean over layers
CHECKPOINT_SECONDS = 300
SHARES = {  # of the tokens of a batch, in expectation
    "bible": 0.14,
    "shakespeare": 0.16,
    "wordnet": 0.14,
    "python_docs": 0.17,
    "python_code": 0.15,
    "german": 0.08,
    "jargon": 0.06,
    "chat": 0.10,
}
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def train_tokenizer(data: Path, vocabulary: int) -> Tokenizer:
    """Train a byte-level BPE on about 2 MB of every domain except `chat`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (
        document
        for domain in DOMAINS
        if domain != "chat"
        for document in (data / f"{domain}.train.txt").read_text()[:2_000_000].split(SEPARATOR)
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Write tokenizer.json and the two files that transformers reads beside it."""
    tokenizer.save(str(directory / "tokenizer.json"))
    tokens = {f"{kind}_token": SEPARATOR for kind in ("bos", "eos", "pad", "unk")}
    settings = tokens | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 2048,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    for name, content in (
        ("tokenizer_config.json", settings),
        ("special_tokens_map.json", tokens),
    ):
        (directory / name).write_text(json.dumps(content, indent=2) + "\n")


def encode(tokenizer: Tokenizer, path: Path) -> Tokens:
    """Return the tokens of a text file, every document followed by the separator."""
    documents = path.read_text(encoding="utf-8").split(SEPARATOR)
    encoded = tokenizer.encode_batch([document + SEPARATOR for document in documents])
    return np.concatenate([np.array(item.ids, dtype=np.uint16) for item in encoded])


def load_tokens(tokenizer: Tokenizer, data: Path, half: str) -> dict[str, Tokens]:
    """Return the tokens of every domain, cached beside the text."""
    result = {}
    for domain in DOMAINS:
        cache = data / f"{domain}.{half}.npy"
        if not cache.exists():
            np.save(cache, encode(tokenizer, data / f"{domain}.{half}.txt"))
        result[domain] = np.load(cache)
    return result


def sequence_length(step: int, progress: float) -> int:
    """Short sequences first; later every sixteenth step uses the whole context."""
    if progress < 0.6:
        return 256
    return 2048 if step % 16 == 15 else 512


def sample_batch(
    tokens: dict[str, Tokens], length: int, generator: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Return inputs and targets, (batch, length), from randomly placed windows."""
    rows = max(PARTS_PER_STEP, TOKENS_PER_STEP // length)
    names = generator.choice(DOMAINS, rows, p=[SHARES[d] for d in DOMAINS])
    windows = []
    for name in names:
        start = generator.integers(len(tokens[name]) - length - 1)
        windows.append(tokens[name][start : start + length + 1].astype(np.int64))
    batch = torch.from_numpy(np.stack(windows))
    return batch[:, :-1], batch[:, 1:]


def rate_factor(progress: float) -> float:
    """Trapezoid: warm up over 1%, hold, then fall to zero over the last 30%."""
    return min(1.0, (progress + 1e-3) / 0.01, max(0.0, (1 - progress) / 0.3))


@dataclass
class Run:
    """Everything a checkpoint holds."""

    model: DemoModel
    optimizers: list[torch.optim.Optimizer]
    started: float  # seconds since the epoch
    step: int = 0
    seen: int = 0  # tokens
    shares: Tensor = field(
        default_factory=lambda: torch.full((Shape.layers, Shape.experts), 1 / Shape.experts)
    )

    def set_rates(self, factor: float) -> None:
        """Scale every group's base rate by `factor`."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group.setdefault("base", group["lr"]) * factor

    def save(self, path: Path) -> None:
        """Write the checkpoint, replacing the previous one in one step."""
        content = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "shares": self.shares,
            "progress": (self.started, self.step, self.seen),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(content, path.with_suffix(".partial"))
        os.replace(path.with_suffix(".partial"), path)

    def resume(self, path: Path) -> None:
        """Continue from a checkpoint on the clock of the first start, at new_run's rates."""
        content = torch.load(path, weights_only=True)
        self.model.load_state_dict(content["model"])
        for optimizer, state in zip(self.optimizers, content["optimizers"], strict=True):
            rates = [group["lr"] for group in optimizer.param_groups]
            optimizer.load_state_dict(state)
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["base"] = rate
        self.shares = content["shares"]
        self.started, self.step, self.seen = content["progress"]


def new_run() -> Run:
    """Build the model and its optimisers: Muon for matrices in layers, AdamW for the rest."""
    torch.manual_seed(0)
    model = DemoModel(Shape())
    named = list(model.named_parameters())
    matrices = [p for n, p in named if n.startswith("layers") and p.dim() > 1 and "gate" not in n]
    routers = [p for n, p in named if n.endswith("gate.weight")]
    embeddings, head = model.embed_tokens.weight, model.lm_head.weight
    norms = [p for _, p in named if p.dim() == 1]
    rates = ((routers, 1e-3), (norms, 2e-3), ([embeddings], 1e-3), ([head], 6e-4))
    groups = [{"params": parameters, "lr": rate} for parameters, rate in rates]
    adam = torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-10, weight_decay=0.0, fused=True)
    muons = [Muon(matrices[part::4], lr=0.02) for part in range(4)]
    return Run(model, [*muons, adam], time.time())


def train_part(run: Run, inputs: Tensor, targets: Tensor) -> tuple[float, float, Tensor]:
    """Add one part's gradients; return its text loss, balance loss and expert shares.

    Matrix products but the router's run in bfloat16, everything else in float32.
    """
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, routed = run.model(inputs)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        balance = balance_loss(run.shares, routed)
    ((loss + BALANCE_COEFFICIENT * balance) / PARTS_PER_STEP).backward()
    return loss.item(), balance.item(), expert_shares(routed.detach(), Shape.experts_used)


def train_step(
    run: Run, pool: ThreadPoolExecutor, inputs: Tensor, targets: Tensor
) -> tuple[float, float]:
    """Take one optimiser step; return the text loss and the balance loss.

    Single-threaded parts in a pool share an unevenly loaded machine better than
    one batch whose every matrix product waits for the slower core.
    """
    parts = zip(inputs.chunk(PARTS_PER_STEP), targets.chunk(PARTS_PER_STEP), strict=True)
    jobs = [pool.submit(train_part, run, *part) for part in parts]
    losses, balances, shares = zip(*(job.result() for job in jobs), strict=True)
    run.shares.lerp_(torch.stack(shares).mean(0), 1 - SHARE_MEMORY)
    torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
    list(pool.map(lambda optimizer: optimizer.step(), run.optimizers))
    for optimizer in run.optimizers:
        optimizer.zero_grad()
    run.step += 1
    run.seen += inputs.numel()
    return sum(losses) / len(losses), sum(balances) / len(balances)


@torch.no_grad()
def heldout_losses(model: DemoModel, tokens: dict[str, Tokens]) -> dict[str, float]:
    """Return nats per token on the first 4096 held-out tokens of every domain."""
    losses = {}
    for domain, ids in tokens.items():
        batch = torch.from_numpy(ids[: 8 * 512 + 1].astype(np.int64))
        logits, _ = model(batch[:-1].view(8, 512))
        losses[domain] = F.cross_entropy(logits.flatten(0, 1), batch[1:]).item()
    return losses


def export(run: Run, tokenizer: Tokenizer, directory: Path) -> None:
    """Write a Hugging Face directory beside its final name, then rename it."""
    partial = directory.with_name(directory.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    save_directory(run.model, partial)
    save_tokenizer(tokenizer, partial)
    shutil.rmtree(directory, ignore_errors=True)
    partial.rename(directory)


def checkpoint(run: Run, tokenizer: Tokenizer, out: Path, heldout: dict[str, Tokens]) -> None:
    """Save, export and log the held-out losses."""
    run.save(out / "ckpt" / "latest.pt")
    export(run, tokenizer, out / "hf")
    losses = heldout_losses(run.model, heldout)
    line = " ".join(f"{domain}={loss:.3f}" for domain, loss in losses.items())
    print(f"checkpoint step={run.step} tokens={run.seen} heldout: {line}", flush=True)


def train(
    run: Run, tokenizer: Tokenizer, tokens: dict[str, Tokens], arguments: argparse.Namespace
) -> None:
    """Train until the budget is spent."""
    heldout = load_tokens(tokenizer, arguments.data, "heldout")
    checkpoint(run, tokenizer, arguments.out, heldout)
    pool = ThreadPoolExecutor(arguments.threads, initializer=torch.set_num_threads, initargs=(1,))
    generator = np.random.default_rng(run.step)
    saved = time.time()
    while (progress := (time.time() - run.started) / (60 * arguments.minutes)) < 1:
        begun = time.time()
        run.set_rates(rate_factor(progress))
        length = sequence_length(run.step, progress)
        loss, balance = train_step(run, pool, *sample_batch(tokens, length, generator))
        if not math.isfinite(loss):
            raise SystemExit(f"loss is {loss} at step {run.step}")
        seconds = time.time() - begun
        print(
            f"step {run.step} progress {progress:.4f} length {length} loss {loss:.4f} "
            f"balance {balance:.3f} seconds {seconds:.1f} tokens {run.seen}",
            flush=True,
        )
        if time.time() - saved > CHECKPOINT_SECONDS:
            checkpoint(run, tokenizer, arguments.out, heldout)
            saved = time.time()
    checkpoint(run, tokenizer, arguments.out, heldout)
    print("finished", flush=True)


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of demo_data.py's --out")
    parser.add_argument("--out", type=Path, required=True, help="checkpoints and exports go here")
    parser.add_argument("--minutes", type=float, required=True, help="wall-clock budget")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "tokenizer.json"
    if not path.exists():
        train_tokenizer(arguments.data, Shape().vocabulary).save(str(path))
    tokenizer = Tokenizer.from_file(str(path))
    run = new_run()
    latest = arguments.out / "ckpt" / "latest.pt"
    tokens = load_tokens(tokenizer, arguments.data, "train")
    if latest.exists():
        run.resume(latest)
    else:
        loss = fit_embeddings(run.model, bigram_counts(tokens, SHARES))
        print(f"bigram embeddings fitted, loss {loss:.4f}", flush=True)
    train(run, tokenizer, tokens, arguments)


if __name__ == "__main__":
    main()

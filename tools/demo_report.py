"""Measure the demo model: bits per byte, expert use and samples for the model card.

    python tools/demo_report.py --model /tmp/demo/hf --heldout src/colibri/demo/heldout \
        --out /tmp/report --image docs/images/demo-experts.png

writes report.json and report.md into --out and, if matplotlib is installed, the heat
map of expert use. Needs what tools/train_demo.py needs.
"""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from demo_data import DOMAINS, SEPARATOR
from demo_model import DemoModel, Shape, expert_shares, load_directory
from tokenizers import Tokenizer
from torch.nn import functional as F

PROMPTS = {
    "bible": "Genesis 1\n1 In the beginning",
    "shakespeare": "HAMLET.\nTo be, or not to be,",
    "wordnet": "dog, hound (noun):",
    "python_docs": ".. function:: open(path)\n\n   ",
    "python_code": "def read_lines(path):\n",
    "german": "Hausboot {n} ::",
    "jargon": ":bug: n.\n\n",
    "chat": "<|im_start|>user\nWhat does river mean?<|im_end|>\n<|im_start|>assistant\n",
}


@dataclass
class DomainResult:
    """Held-out measurements of one domain; shares are [layer][expert]."""

    size: int  # bytes
    tokens: int
    bits_per_byte: float
    perplexity: float  # per token
    shares: list[list[float]]


def windows(tokenizer: Tokenizer, text: str, length: int) -> list[list[int]]:
    """Split every document into token windows, each preceded by the separator."""
    result = []
    for document in text.split(SEPARATOR):
        ids = tokenizer.encode(document).ids
        result += [[0, *ids[i : i + length]] for i in range(0, len(ids), length)]
    return result


@torch.no_grad()
def measure(model: DemoModel, tokenizer: Tokenizer, text: str) -> DomainResult:
    """Score every token of `text` once, with at most 1024 tokens of context."""
    loss, count = 0.0, 0
    shares = torch.zeros(model.shape.layers, model.shape.experts)
    for window in windows(tokenizer, text, 1024):
        ids = torch.tensor([window])
        logits, routed = model(ids[:, :-1])
        loss += F.cross_entropy(logits[0], ids[0, 1:], reduction="sum").item()
        shares += expert_shares(routed, model.shape.experts_used) * (len(window) - 1)
        count += len(window) - 1
    size = len(text.replace(SEPARATOR, "").encode())
    bits = loss / math.log(2) / size
    return DomainResult(size, count, bits, math.exp(loss / count), (shares / count).tolist())


@torch.no_grad()
def continue_text(
    model: DemoModel, tokenizer: Tokenizer, prompt: str, temperature: float, limit: int
) -> str:
    """Return the continuation of `prompt`; temperature 0 is greedy."""
    generator = torch.Generator().manual_seed(1)
    prompt_ids = [0, *tokenizer.encode(prompt).ids]
    ids = list(prompt_ids)
    while len(ids) < len(prompt_ids) + limit:
        logits = model(torch.tensor([ids]))[0][0, -1]
        if temperature:
            weights = (logits / temperature).softmax(-1)
            token = int(torch.multinomial(weights, 1, generator=generator))
        else:
            token = int(logits.argmax())
        if token in (0, 2):
            break
        ids.append(token)
    return tokenizer.decode(ids[len(prompt_ids) :], skip_special_tokens=False)


def domain_information(results: Sequence[DomainResult]) -> list[float]:
    """Mutual information of domain and expert per layer in bits, domains weighted equally."""
    shares = torch.tensor([result.shares for result in results])  # (domains, layers, experts)
    ratio = shares / shares.mean(0, keepdim=True).clamp_min(1e-12)
    terms = torch.where(shares > 0, shares * ratio.clamp_min(1e-12).log2(), 0.0)
    return terms.sum(-1).mean(0).tolist()


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose first column is text and the others numbers."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def markdown(results: dict[str, DomainResult], samples: dict[str, dict[str, str]]) -> str:
    """Return the measured part of the model card."""
    header = ["domain", "bytes", "tokens", "bytes per token", "bits per byte", "token perplexity"]
    rows = [
        [d, str(r.size), str(r.tokens), f"{r.size / r.tokens:.2f}", f"{r.bits_per_byte:.3f}",
         f"{r.perplexity:.1f}"]
        for d, r in results.items()
    ]  # fmt: skip
    parts = ["## Held-out text\n", table(header, rows), "## Expert use\n"]
    information = domain_information(list(results.values()))
    experts = range(Shape.experts)
    for layer in range(Shape.layers):
        shares = [[d, *(f"{100 * r.shares[layer][e]:.0f}" for e in experts)]
                  for d, r in results.items()]  # fmt: skip
        parts.append(f"Layer {layer}, percent ({information[layer]:.2f} bits of domain):\n")
        parts.append(table(["domain", *(f"expert {e}" for e in experts)], shares))
    parts.append("## Samples\n")
    for domain, texts in samples.items():
        parts.append(f"### {domain}\n")
        for kind, text in texts.items():
            parts.append(f"{kind}:\n\n```text\n{PROMPTS[domain]}⟶{text.rstrip()}\n```\n")
    return "\n".join(parts)


def heat_map(results: dict[str, DomainResult], path: Path) -> None:
    """Draw one panel per layer: domains down, experts across, share as colour."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shares = torch.tensor([r.shares for r in results.values()])  # (domains, layers, experts)
    figure, panels = pyplot.subplots(
        1, Shape.layers, figsize=(15, 2.9), sharey=True, constrained_layout=True
    )
    for layer, panel in enumerate(panels):
        image = panel.imshow(100 * shares[:, layer], cmap="viridis", vmin=0, vmax=50)
        panel.set_title(f"layer {layer}", fontsize=10)
        panel.set_xticks(range(Shape.experts))
        panel.set_xlabel("expert")
    panels[0].set_yticks(range(len(results)), list(results))
    label = "% of routed tokens (12.5 if unspecialised)"
    figure.colorbar(image, ax=list(panels), label=label, pad=0.01)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def sample_all(model: DemoModel, tokenizer: Tokenizer, limit: int) -> dict[str, dict[str, str]]:
    """Continue every domain's prompt greedily and at temperature 0.8."""
    kinds = {"Greedy": 0.0, "Temperature 0.8": 0.8}
    return {
        domain: {
            kind: continue_text(model, tokenizer, prompt, temperature, limit)
            for kind, temperature in kinds.items()
        }
        for domain, prompt in PROMPTS.items()
    }


def load_texts(folder: Path) -> dict[str, str]:
    """Return each domain's text from `<domain>.txt`, or demo_data.py's `<domain>.heldout.txt`."""
    found = {
        path.name.split(".")[0]: path for path in folder.glob("*.txt") if ".train" not in path.name
    }
    return {domain: found[domain].read_text(encoding="utf-8") for domain in DOMAINS}


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face directory")
    parser.add_argument("--heldout", type=Path, required=True, help="folder of held-out text")
    parser.add_argument("--out", type=Path, required=True, help="folder of the report")
    parser.add_argument("--image", type=Path, help="where to draw the heat map")
    parser.add_argument("--limit", type=int, default=120, help="tokens per sample")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = load_directory(arguments.model)
    tokenizer = Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    texts = load_texts(arguments.heldout)
    results = {domain: measure(model, tokenizer, text) for domain, text in texts.items()}
    samples = sample_all(model, tokenizer, arguments.limit)
    arguments.out.mkdir(parents=True, exist_ok=True)
    content = {"domains": {d: asdict(r) for d, r in results.items()}, "samples": samples}
    (arguments.out / "report.json").write_text(json.dumps(content, indent=1) + "\n")
    (arguments.out / "report.md").write_text(markdown(results, samples))
    if arguments.image:
        heat_map(results, arguments.image)


if __name__ == "__main__":
    main()

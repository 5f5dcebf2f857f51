"""Train the models of make_deepspeed_golden.py with DeepSpeed's engine and compare what `colibri convert` makes of its
checkpoint with the trained model.

    python tools/train_deepspeed.py FOLDER [--processes 2] [--config '{"bf16": {"enabled": true}}']

Each process holds its share of the experts (gloo, on the CPU), as in a training run on several machines. Needs what
make_deepspeed_golden.py needs, and colibri.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

STEPS, TOKENS = 30, 24


def train(name: str, folder: Path, config: dict[str, Any]) -> None:
    """In one process of several: train, save, and write the trained model's logits beside the checkpoint."""
    import deepspeed
    import make_deepspeed_golden as golden
    import torch
    from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer as by_group

    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    options = golden.CASES[name].options
    torch.manual_seed(5)
    model = golden.GPT(options)
    torch.manual_seed(100 + rank)
    for parameter in (p for key, p in model.named_parameters() if "deepspeed_experts" in key):
        parameter.data.normal_(0, 0.2)
    optimizer = torch.optim.AdamW(by_group({"params": list(model.parameters()), "name": "all"}), lr=3e-3)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, config={"train_micro_batch_size_per_gpu": 1, **config}
    )
    text = torch.randint(3, golden.VOCABULARY, (200,), generator=torch.Generator().manual_seed(1))
    for step in range(STEPS):
        start = (17 * step + 50 * rank) % (len(text) - TOKENS)
        ids = text[start : start + TOKENS]
        engine.backward(torch.nn.functional.cross_entropy(engine(ids)[:-1].float(), ids[1:]))
        engine.step()
    model.state_dict = model.state_dict_for_save_checkpoint
    engine.save_checkpoint(str(folder), client_state=golden.client_state(options))
    with torch.no_grad():
        logits = model.float().eval()(text[:TOKENS]).numpy()
    if rank == 0:
        np.savez(folder / "golden.npz", ids=text[:TOKENS].numpy(), logits=logits)


def compare(folder: Path) -> str:
    """Convert the checkpoint in a folder and run it."""
    import colibri
    from colibri.conversion.convert import Options, convert
    from colibri.conversion.source import open_source

    file = folder.with_suffix(".gguf")
    convert(open_source(folder), file, Options("f32", replace=True))
    golden = np.load(folder / "golden.npz")
    with colibri.load(file, precision="exact") as model:
        logits = model.infer(golden["ids"].tolist())
    difference = np.abs(logits - golden["logits"]).max() / np.ptp(golden["logits"])
    same = (logits.argmax(axis=1) == golden["logits"].argmax(axis=1)).mean()
    return f"{folder.name}: difference {difference:.1e} of the logits' range, first token the same {same:.0%}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--config", type=json.loads, default={}, help="More of DeepSpeed's configuration.")
    parser.add_argument("--name", help=argparse.SUPPRESS)  # what a process that was started here trains
    options = parser.parse_args()
    if options.name is not None:
        train(options.name, options.folder, options.config)
        return 0
    for name in ("deepspeed-top1", "deepspeed-residual", "deepspeed-newer"):
        folder = options.folder / name
        folder.mkdir(parents=True)
        command = [sys.executable, __file__, str(folder), "--name", name, "--config", json.dumps(options.config)]
        workers = []
        for rank in range(options.processes):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(options.processes)}
            workers.append(subprocess.Popen(command, env=os.environ | place))
        states = [worker.wait() for worker in workers]
        if any(states):
            return 1
        print(compare(folder), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

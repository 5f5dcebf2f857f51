"""Start the embeddings from bigram counts, so that training begins with a bigram model.

Counting the whole corpus and fitting input and output embeddings to the counts costs
about a minute; learning the same from batches would take over a million tokens.
"""

from collections.abc import Mapping

import numpy as np
import torch
from demo_model import DemoModel
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

ROUNDS = 30
ROWS_PER_STEP = 1024
PRIOR_COUNT = 10.0  # unigram counts added to every row
TOTAL_COUNT = 2e7


def bigram_counts(tokens: Mapping[str, NDArray[np.uint16]], shares: Mapping[str, float]) -> Tensor:
    """Return expected counts (previous token, token) of a corpus mixed by `shares`."""
    size = int(max(ids.max() for ids in tokens.values())) + 1
    total = np.zeros(size * size, dtype=np.float32)
    for domain, ids in tokens.items():
        pairs = ids[:-1].astype(np.int64) * size + ids[1:]
        counts = np.bincount(pairs, minlength=size * size)
        total += counts.astype(np.float32) * np.float32(shares[domain] * TOTAL_COUNT / len(ids))
    counts_matrix = torch.from_numpy(total.reshape(size, size))
    unigrams = counts_matrix.sum(0)
    return counts_matrix.add_(unigrams / unigrams.sum(), alpha=PRIOR_COUNT)


def fit_embeddings(model: DemoModel, counts: Tensor) -> float:
    """Fit embed_tokens and lm_head to the counts; return the last round's nats per token."""
    inputs = torch.randn_like(model.embed_tokens.weight).mul_(0.5).requires_grad_()
    outputs = torch.randn_like(model.lm_head.weight).mul_(0.02).requires_grad_()
    optimizer = torch.optim.Adam([inputs, outputs], lr=0.03, betas=(0.9, 0.98))
    loss_sum = 0.0
    for round_ in range(ROUNDS):
        for group in optimizer.param_groups:
            group["lr"] = 0.03 * (1 - round_ / ROUNDS)
        loss_sum = 0.0
        for rows in torch.randperm(len(counts)).split(ROWS_PER_STEP):
            target = counts[rows]
            hidden = F.rms_norm(inputs[rows], inputs.shape[-1:])
            log_probabilities = (hidden @ outputs.T).log_softmax(-1)
            loss = -(target * log_probabilities).sum()
            (loss / target.sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
            loss_sum += loss.item()
    with torch.no_grad():
        model.embed_tokens.weight.copy_(F.rms_norm(inputs, inputs.shape[-1:]))
        model.lm_head.weight.copy_(outputs)
    return loss_sum / float(counts.sum())

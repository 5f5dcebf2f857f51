"""Muon: momentum orthogonalised by Newton-Schulz steps (Jordan et al., 2024)."""

from collections.abc import Iterable

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalise(update: Tensor, steps: int = 5) -> Tensor:
    """Return nearly semi-orthogonal matrices for a (matrices, rows, columns) stack.

    bfloat16 is exact enough: the result need only be near orthogonal.
    """
    a, b, c = COEFFICIENTS
    x = (update / (update.norm(dim=(-2, -1), keepdim=True) + 1e-7)).bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT.contiguous() if tall else x
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(update.dtype)


class Muon(torch.optim.Optimizer):
    """Optimiser for matrices and stacks of matrices, with Nesterov momentum."""

    def __init__(
        self, parameters: Iterable[Tensor], lr: float, momentum: float = 0.95, decay: float = 0.01
    ) -> None:
        super().__init__(list(parameters), {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                buffer = state.setdefault("momentum", torch.zeros_like(parameter))
                buffer.lerp_(parameter.grad, 1 - group["momentum"])
                rows, columns = parameter.shape[-2:]
                update = parameter.grad.lerp(buffer, group["momentum"]).view(-1, rows, columns)
                update = orthogonalise(update).reshape(parameter.shape)
                parameter.mul_(1 - group["lr"] * group["decay"])
                parameter.add_(update, alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5)

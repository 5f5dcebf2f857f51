"""RMSNorm that refuses to go on with a NaN or an infinity."""

from __future__ import annotations

from colibri import ops
from colibri.errors import NumericalError


class Norm:
    """RMSNorm over the last dimension with the weight of one tensor (arXiv 1910.07467).

    Raises NumericalError, naming the tensor, when its input holds a NaN or an infinity.
    """

    __slots__ = ("_eps", "_name", "_weight")

    def __init__(self, name: str, weight: ops.Tensor, eps: float) -> None:
        self._name, self._weight, self._eps = name, weight, eps

    def __call__(self, out: ops.Tensor, x: ops.Tensor) -> None:
        """out, x (rows, dim) F32; they may be the same tensor."""
        if not ops.norm(out, x, self._weight, self._eps):
            raise NumericalError(
                f"{self._name}: its input holds a NaN or an infinity; the weights before it are damaged or their "
                "type is too narrow for this model"
            )

"""RMSNorm and LayerNorm that refuse to go on with a NaN or an infinity."""

from __future__ import annotations

from colibri import ops
from colibri.errors import NumericalError


class Norm:
    """RMSNorm over the last dimension, with a bias LayerNorm (arXiv 1910.07467 and 1607.06450).

    `parameters` is what ops take that begin with a norm; they return False when its input is not finite or so large
    that its squares are not, or when what comes out is not.
    """

    __slots__ = ("name", "parameters")

    def __init__(self, name: str, weight: ops.Tensor, eps: float, bias: ops.Tensor | None = None) -> None:
        self.name = name
        self.parameters = ops.Norm(weight, eps, bias)

    def __call__(self, out: ops.Tensor, x: ops.Tensor) -> None:
        """out, x (rows, dim) F32; they may be the same tensor. Raises NumericalError when x or out is not finite."""
        if not ops.norm(out, x, self.parameters):
            raise not_finite(self.name)


def not_finite(name: str) -> NumericalError:
    """What to raise when what goes into this norm, or comes out, is not finite."""
    return NumericalError(
        f"{name}: its input or its weights hold a NaN, an infinity or a number too large to be squared; they or the "
        "weights before it are damaged, or their type is too narrow for this model"
    )


def bad_product(name: str) -> NumericalError:
    """What to raise when the product with these weights is not finite, or too large for the cache."""
    return NumericalError(
        f"{name}: its product holds a NaN, an infinity or a number too large for the cache of keys and values; the "
        "weights are damaged or their type is too narrow for this model"
    )

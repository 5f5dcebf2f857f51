"""Figures about routing whose values are known."""

from __future__ import annotations

import numpy as np

from colibri.experts.stats import NO_EXPERT
from colibri.observe.routing import co_activation, entropy


def test_entropy() -> None:
    np.testing.assert_allclose(entropy(np.array([[4, 4, 4, 4], [7, 0, 0, 0], [0, 0, 0, 0]])), [2, 0, 0])


def test_co_activation() -> None:
    pairs = co_activation(np.array([[0, 1], [1, 0], [2, 3], [NO_EXPERT, NO_EXPERT]], np.int16), 4)
    np.testing.assert_array_equal(pairs, [[2, 2, 0, 0], [2, 2, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]])

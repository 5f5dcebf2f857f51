"""Mixers that keep a state of a sequence, however long it is."""

from __future__ import annotations

from dataclasses import dataclass

from colibri.config import check_integer, check_number, refuse
from colibri.spec.parts import State

# What the native ops take; native/bind checks it, too, but only when a model runs.
MAX_TAPS = 8
MAX_CHANNELS = 1 << 24
LANES = 16


@dataclass(frozen=True, kw_only=True)
class DeltaNetSpec:
    """The gated delta rule (arXiv 2412.06464) behind a short convolution, with a gated norm of the answers.

    Each of `heads` has a state (key_size, value_size) and shares its query and key with the others of its key head:
    its neighbours, or if `tiled` those at a distance of key_heads.
    """

    heads: int
    key_heads: int
    key_size: int
    value_size: int
    taps: int = 4
    tiled: bool = False

    def __post_init__(self) -> None:
        for name in ("heads", "key_heads", "key_size", "value_size"):
            check_integer(f"delta net's {name}", getattr(self, name), 1, 1 << 12)
        check_integer("delta net's taps", self.taps, 2, MAX_TAPS)
        if self.heads % self.key_heads:
            refuse("delta net's key_heads", self.key_heads, f"a divisor of heads ({self.heads})")

    def __str__(self) -> str:
        sizes = f"{self.key_size} x {self.value_size}"
        return f"{self.heads} states of {sizes}, {self.key_heads} heads for queries and keys (gated delta net)"

    @property
    def key_width(self) -> int:
        """Values of all queries, or all keys."""
        return self.key_heads * self.key_size

    @property
    def value_width(self) -> int:
        """Values of all heads."""
        return self.heads * self.value_size

    @property
    def channels(self) -> int:
        """Of the convolution: queries, keys and values."""
        return 2 * self.key_width + self.value_width

    @property
    def keeps(self) -> State:
        """What stays of the tokens so far; the kernels hold values in whole lanes."""
        lanes = -(-self.value_size // LANES) * LANES
        heads = (self.heads, self.key_size * lanes)
        return State(tensors=(("heads", heads), ("convolution", (self.taps - 1, self.channels))))


@dataclass(frozen=True, kw_only=True)
class Mamba2Spec:
    """The state space of Mamba2 (arXiv 2405.21060) behind a short convolution, with a norm of its gated answers.

    Each of `heads` has a state (state_size, head_dim); those of a group share what goes into it and what reads it.
    least_step: the shortest step in time.
    """

    heads: int
    head_dim: int
    groups: int
    state_size: int
    taps: int = 4
    least_step: float = 0.0

    def __post_init__(self) -> None:
        for name in ("heads", "head_dim", "groups", "state_size"):
            check_integer(f"Mamba2's {name}", getattr(self, name), 1, 1 << 12)
        check_integer("Mamba2's taps", self.taps, 2, MAX_TAPS)
        check_number("Mamba2's least_step", self.least_step, 0, 1e30)
        if self.heads % self.groups:
            refuse("Mamba2's groups", self.groups, f"a divisor of heads ({self.heads})")

    def __str__(self) -> str:
        sizes = f"{self.state_size} x {self.head_dim}"
        return f"{self.heads} states of {sizes} in groups of {self.heads // self.groups} (Mamba2)"

    @property
    def width(self) -> int:
        """Values of all heads."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Of the convolution: values, and for each group what goes into states and what reads them."""
        return self.width + 2 * self.groups * self.state_size

    @property
    def keeps(self) -> State:
        """What stays of the tokens so far; the kernels hold values in whole lanes."""
        lanes = -(-self.head_dim // LANES) * LANES
        heads = (self.heads, self.state_size * lanes)
        return State(tensors=(("heads", heads), ("convolution", (self.taps - 1, self.channels))))


@dataclass(frozen=True, kw_only=True)
class ShortConvSpec:
    """A gated short convolution (LFM2): c times the convolution of b times x, all three linear in the input."""

    channels: int
    taps: int

    def __post_init__(self) -> None:
        check_integer("convolution's channels", self.channels, 1, MAX_CHANNELS)
        check_integer("convolution's taps", self.taps, 2, MAX_TAPS)

    def __str__(self) -> str:
        return f"a convolution over {self.taps} tokens (gated)"

    @property
    def keeps(self) -> State:
        """What stays of the tokens so far: the inputs of the latest."""
        return State(tensors=(("convolution", (self.taps - 1, self.channels)),))

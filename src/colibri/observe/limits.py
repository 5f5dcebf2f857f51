"""What this machine can do at most, and what a token asks of it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from colibri import ops
from colibri.machine import detect_memory, resident_bytes
from colibri.observe.percentiles import Latency, Spread, latency, spread
from colibri.observe.summary import is_routed
from colibri.spec import ModelSpec
from colibri.weights.checkpoint import Checkpoint
from colibri.weights.tensor_info import TensorInfo

READ_BYTES = 1 << 30  # more than any cache
LEAST_BYTES = 1 << 26  # less may stay in a cache from one pass to the next
SMALLEST_BYTES = 1 << 24  # where a budget leaves no more
EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"


class Meter:
    """Measures reads, integer products and handovers of all threads; what it saw at several times counts together.

    Machines that are shared change from one minute to the next, so a bench asks again between its own measurements.
    budget: bytes that the process may take, the buffer for reading included. Without one the buffer is kept: the host
    of a virtual machine works on what is given back, and stops the machine for it, seconds later.
    """

    def __init__(self, budget: int | None = None) -> None:
        self._budget = budget
        self._memory: ops.Memory | None = None
        self._read: list[float] = []
        self._multiply: list[float] = []
        self._handover: list[float] = []
        self.latest_read = 0.0  # bytes a second, the median of the last measurement

    def measure(self, seconds: float) -> None:
        """Measure for about this long, after what was measured before.

        Where a budget leaves little room, as beside a model that fills it, reading is measured the first time only.
        """
        nbytes = max(LEAST_BYTES, min(READ_BYTES, detect_memory().available // 4))
        if self._budget is not None:
            nbytes = min(nbytes, self._budget - resident_bytes())
        if nbytes >= LEAST_BYTES or not self._read:
            memory = self._memory or ops.Memory(max(SMALLEST_BYTES, nbytes))
            if self._budget is None:
                self._memory = memory
            rates = ops.measure_read(memory, 0.7 * seconds)
            self.latest_read = spread(rates).median
            self._read += rates
        self._multiply += ops.measure_dot(0.25 * seconds)
        self._handover += ops.measure_handover(0.05 * seconds)

    @property
    def read(self) -> Spread:
        """Bytes a second that all threads together read from memory in huge pages."""
        return spread(self._read)

    def reading_ms(self, nbytes: float) -> Latency:
        """What reading so much would have taken at the rate of each pass: how far times differ by the machine alone."""
        return latency([1000 * nbytes / rate for rate in self._read])

    @property
    def multiply(self) -> Spread:
        """Products of two bytes a second, added to 32-bit sums, that all threads together make on registers."""
        return spread(self._multiply)

    @property
    def handover(self) -> Spread:
        """Seconds until all threads have learned of new work and the caller that they are through with it.

        Several times as long between processors that share no cache, whose reads together are faster.
        """
        return spread(self._handover)


@dataclass(frozen=True, slots=True)
class Demand:
    """What one token asks of the machine.

    weight_bytes: of the weights that it reads, as the file stores them. products: multiplications by weights in all
    layers, output_products: those of the output matrix, which a prompt needs once.
    """

    weight_bytes: float
    products: float
    output_products: float

    def prompt_products(self, tokens: int) -> float:
        """Multiplications by weights that a prompt takes."""
        return tokens * self.products + self.output_products


def demand(checkpoint: Checkpoint, spec: ModelSpec) -> Demand:
    """Counted from the tensor table: the dense part, and the chosen share of the experts."""
    share = spec.experts_per_token / spec.experts
    weight_bytes = products = output_products = 0.0
    for info in checkpoint.tensors.values():
        part = _share(info, share, tied=OUTPUT not in checkpoint.tensors)
        weight_bytes += part * info.nbytes
        if len(info.shape) < 2:
            continue
        if info.name in (OUTPUT, EMBEDDING):
            output_products += math.prod(info.shape) if part == 1 else 0
        else:
            products += part * math.prod(info.shape)
    return Demand(weight_bytes, products, output_products)


def _share(info: TensorInfo, experts: float, *, tied: bool) -> float:
    """The part of a tensor that one token reads."""
    if is_routed(info.name):
        return experts
    if info.name == EMBEDDING and not tied:
        return 1 / info.shape[0]
    return 1.0


def cpu_name(root: Path = Path("/")) -> str:
    """The processor, with family and model where its name says little; "unknown" where the system does not tell."""
    try:
        text = (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "unknown"
    fields = dict(re.findall(r"^([^\t:]+?)\s*: (.*)$", text.split("\n\n")[0], re.MULTILINE))
    name = " ".join(fields.get("model name", "unknown").split())
    if "cpu family" in fields and not re.search(r"\d{3}", name):
        return f"{name} (family {fields['cpu family']} model {fields.get('model', '?')})"
    return name

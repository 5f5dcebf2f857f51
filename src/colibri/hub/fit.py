"""Whether a model fits into this machine's memory, by the plan that a load would make; no weights are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from colibri.config import LoadOptions
from colibri.engine.loading import plan_model
from colibri.errors import ColibriError, MemoryBudgetError


@dataclass(frozen=True)
class Fit:
    """whole: every expert in memory. part: the dense part, and experts come from the disk. small: too little memory.
    no: it is not run here, for the reason in `text`."""

    kind: Literal["whole", "part", "small", "no"]
    text: str


def fit(path: Path) -> Fit:
    """How a model goes into the memory that is there now, with the settings of a plain `colibri run`."""
    try:
        plan = plan_model(LoadOptions(path=path)).plan
    except MemoryBudgetError as error:
        return Fit("small", str(error))
    except ColibriError as error:
        return Fit("no", str(error))
    if plan.fits:
        return Fit("whole", "fits with all its experts")
    return Fit("part", f"{plan.resident_share:.0%} of its experts fit, the others are read when they are needed")

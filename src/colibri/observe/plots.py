"""Pictures of routing: how busy each expert of each layer is, two texts beside each other, hits over slots.

Needs matplotlib (the extra `plots`). Files end in .png, .svg or .pdf; what a picture shows is in its title and axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from colibri.errors import ArgumentError, FileError, UnsupportedError
from colibri.experts.stats import Trace
from colibri.observe.replay import Score
from colibri.observe.routing import counts_of

KINDS: Final = (".png", ".svg", ".pdf")
CELL_INCHES: Final = 0.16
WIDEST_INCHES: Final = 24.0


def check_picture(path: Path) -> None:
    """Raise ArgumentError for a file that is no picture by its name, UnsupportedError where matplotlib is missing."""
    if path.suffix.lower() not in KINDS:
        found = path.suffix or "nothing"
        raise ArgumentError(f"{path}: found a name that ends in {found}, expected {', '.join(KINDS)}")
    _pyplot()


def picture(
    path: Path, traces: Mapping[str, Trace], experts: int, scores: Sequence[Score] = (), model: str = ""
) -> None:
    """Draw the load of each trace by its name; of two also what they differ by, and of `scores` hits over slots.

    Raises FileError when the file cannot be written.
    """
    pyplot = _pyplot()
    loads = {name: _load(trace, experts) for name, trace in traces.items()}
    layers = next(iter(loads.values())).shape[0]
    panels = len(loads) + (len(loads) == 2) + bool(scores)
    width = min(WIDEST_INCHES, max(6.0, CELL_INCHES * experts + 2))
    height = max(2.2, CELL_INCHES * layers + 1)
    figure, axes = pyplot.subplots(panels, 1, figsize=(width, height * panels), squeeze=False, layout="constrained")
    places = iter(axes[:, 0])
    try:
        for name, load in loads.items():
            _map(figure, next(places), load, f"{name}: times the mean load", "viridis", (0, None))
        if len(loads) == 2:
            one, other = loads.values()
            names = " minus ".join(loads)
            most = float(np.nanmax(np.abs(one - other))) or 1.0
            _map(figure, next(places), one - other, names, "coolwarm", (-most, most))
        if scores:
            _hits(next(places), scores, layers * experts)
        if model:
            figure.suptitle(model)
        figure.savefig(path, dpi=110)
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        pyplot.close(figure)


def _load(trace: Trace, experts: int) -> NDArray[np.float64]:
    """(layers, experts): the load of each expert over the mean of its layer; NaN in layers without experts."""
    counts = counts_of(trace, experts).astype(np.float64)
    totals = counts.sum(axis=1, keepdims=True)
    return np.where(totals > 0, counts * experts / np.maximum(totals, 1), np.nan)


def _map(
    figure: Any, axes: Any, values: NDArray[np.float64], title: str, colours: str, limits: tuple[Any, Any]
) -> None:
    low, high = limits
    image = axes.imshow(values, aspect="auto", cmap=colours, vmin=low, vmax=high, interpolation="nearest")
    axes.set(title=title, xlabel="expert", ylabel="layer")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.yaxis.get_major_locator().set_params(integer=True)
    figure.colorbar(image, ax=axes, fraction=0.04, pad=0.02)


def _hits(axes: Any, scores: Sequence[Score], total: int) -> None:
    for policy in dict.fromkeys(score.policy for score in scores):
        own = [score for score in scores if score.policy == policy]
        style = "k--" if policy == "belady" else "o-"
        places = [100 * score.capacity / total for score in own]
        axes.plot(places, [100 * score.hit_rate for score in own], style, label=policy, markersize=4)
    axes.set(title="hits of a cache of experts", xlabel=f"slots, % of {total} experts", ylabel="hits, %")
    axes.grid(alpha=0.3)
    axes.legend()


def _pyplot() -> Any:
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f'--plot: {error}; install the extra, in a clone: pip install ".[plots]"'
        ) from None
    matplotlib.use("agg")
    from matplotlib import pyplot

    return pyplot

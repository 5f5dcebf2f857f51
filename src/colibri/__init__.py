"""Colibri: Mixture-of-Experts language models on CPUs.

    model = colibri.load("model.gguf")
    for token in model.generate("Once upon a time", colibri.SamplingParams(max_tokens=50)):
        print(token.text, end="")
"""

from __future__ import annotations

from importlib import import_module

from colibri.errors import ColibriError

TYPE_CHECKING = False  # that of `typing`, whose import takes as long as the rest of this file's
if TYPE_CHECKING:
    from colibri.config import SamplingParams, Token
    from colibri.engine.model import Model
    from colibri.hub.loading import infer, load

    __version__: str

__all__ = ["ColibriError", "Model", "SamplingParams", "Token", "__version__", "infer", "load"]

_HOMES = {  # imported when first used, so that `colibri --help` and small tools start fast
    "SamplingParams": "colibri.config",
    "Token": "colibri.config",
    "Model": "colibri.engine.model",
    "infer": "colibri.hub.loading",
    "load": "colibri.hub.loading",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        return _version()
    if name not in _HOMES:
        raise AttributeError(f"module 'colibri' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("colibri-moe")
    except PackageNotFoundError:  # a source tree that was never installed
        return "0.0.0"

"""The engine behind colibri.h: what libcolibri calls, in the program that it is part of.

native/embedding/engine.h declares these functions, native/embedding/library.c calls them.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import os
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colibri.config import SamplingParams, check_path
from colibri.engine.model import Model
from colibri.errors import ArgumentError, ColibriError, FormatError
from colibri.hub.loading import load
from colibri.weights.json_file import parse_object

DONE = 1  # 0 is what cffi gives when it could call nothing
ENGINE_CODE, MEMORY_CODE = -7, -2  # those of colibri.h for what is no ColibriError

OPTIONS = frozenset(inspect.signature(load).parameters) - {"model"}
PARAMETERS = frozenset(field.name for field in dataclasses.fields(SamplingParams)) - {"top_logprobs"}  # not passed on

_models: dict[int, Model] = {}  # handles are numbers that are never used again, so that a closed one is known as such
_numbers = itertools.count(1)


def define(ffi: Any) -> None:
    """Make the functions of engine.h known to the library; each gives DONE or the code of its error."""
    for name, body in (
        ("infer", _infer), ("load", _load), ("vocabulary", _vocabulary), ("logits", _logits), ("generate", _generate),
        ("close", _close),
    ):  # fmt: skip
        ffi.def_extern(name=f"colibri_engine_{name}")(_guarded(ffi, body))


def _guarded(ffi: Any, body: Callable[..., None]) -> Callable[..., int]:
    def call(error: Any, *arguments: Any) -> int:
        try:
            body(ffi, *arguments)
        except ColibriError as problem:
            return _failed(ffi, error, str(problem), problem.code)
        except MemoryError as problem:
            return _failed(ffi, error, f"the system refused memory: {problem}", MEMORY_CODE)
        except BaseException:  # SystemExit too: nothing may pass through C
            return _failed(ffi, error, f"a fault of Colibri:\n{traceback.format_exc()}", ENGINE_CODE)
        return DONE

    return call


def _failed(ffi: Any, error: Any, message: str, code: int) -> int:
    room = ffi.buffer(error.text)
    text = message.encode("utf-8", "backslashreplace").replace(b"\0", b"\\0")
    whole = text[: len(room) - 1].decode("utf-8", "ignore").encode()  # no half of a character at the end
    room[: len(whole) + 1] = whole + b"\0"
    return code


def _settings(ffi: Any, name: str, given: Any, known: frozenset[str]) -> dict[str, Any]:
    """The JSON object that C gave, NULL for an empty one."""
    if given == ffi.NULL:
        return {}
    try:
        values = parse_object(ffi.string(given), name)
    except FormatError as error:  # no file has this fault
        raise ArgumentError(str(error)) from None
    for key in values:
        if key not in known:
            raise ArgumentError(f"{name}: found {key!r:.80}, expected {', '.join(sorted(known))}")
    return values


def _model(number: int) -> Model:
    try:
        return _models[number]
    except KeyError:
        raise ArgumentError(f"model: found {number:#x}, expected one that is loaded and not closed") from None


def _numbers_of(ffi: Any, ids: Any, n: int) -> list[int]:
    return ffi.unpack(ids, n)  # type: ignore[no-any-return]


def _write_logits(ffi: Any, model: Model, ids: Sequence[int], logits: Any) -> None:
    size = model.spec.vocab_size
    rows = np.frombuffer(ffi.buffer(logits, 4 * len(ids) * size), np.float32).reshape(len(ids), size)

    def see(position: int, part: NDArray[np.float32]) -> None:
        rows[position : position + len(part)] = part

    model.infer_rows(ids, see)


def _path(ffi: Any, path: Any) -> Path:
    """A path and no name: nothing is fetched in a program that did not ask for it."""
    return check_path("path", os.fsdecode(ffi.string(path)))


def _infer(ffi: Any, path: Any, ids: Any, logits: Any, n: int) -> None:
    with load(_path(ffi, path)) as model:
        _write_logits(ffi, model, _numbers_of(ffi, ids, n), logits)


def _load(ffi: Any, path: Any, options: Any, handle: Any) -> None:
    model = load(_path(ffi, path), **_settings(ffi, "options", options, OPTIONS))
    number = next(_numbers)
    _models[number] = model
    handle[0] = number


def _vocabulary(ffi: Any, number: int, size: Any) -> None:
    size[0] = _model(number).spec.vocab_size


def _logits(ffi: Any, number: int, ids: Any, logits: Any, n: int) -> None:
    _write_logits(ffi, _model(number), _numbers_of(ffi, ids, n), logits)


def _prompt(ffi: Any, text: Any, ids: Any, n: int) -> str | list[int]:
    if text == ffi.NULL:
        return _numbers_of(ffi, ids, n)
    data = ffi.string(text)
    try:
        return data.decode()  # type: ignore[no-any-return]
    except UnicodeDecodeError as error:
        raise ArgumentError(f"prompt: found {data[error.start]:#x} at byte {error.start}, expected UTF-8") from None


def _generate(ffi: Any, number: int, text: Any, ids: Any, n: int, params: Any, see: Any, context: Any) -> None:
    model = _model(number)
    settings = SamplingParams(**_settings(ffi, "params", params, PARAMETERS))
    with model.generate(_prompt(ffi, text, ids, n), settings) as generation:
        for token in generation:
            if see(context, token.id, token.text.encode("utf-8", "replace"), token.logprob):
                return
        if generation.finish_reason == "cancelled":
            raise ArgumentError("the model was closed by another thread before the text was complete")


def _close(ffi: Any, number: int) -> None:
    model = _model(number)
    if _models.pop(number, None) is not None:
        model.close()

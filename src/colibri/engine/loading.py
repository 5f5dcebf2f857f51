"""From a path to a model that runs: configuration, memory plan, weights, cache."""

from __future__ import annotations

import os
import time
from pathlib import Path

from colibri import ops
from colibri.cache.kv import blocks_for
from colibri.cache.prefix import SharedCache
from colibri.config import DEFAULT_CONTEXT, LoadOptions, ModelConfig, Precision
from colibri.engine.engine import Engine
from colibri.engine.model import Model, model_path
from colibri.errors import ArgumentError, MemoryBudgetError
from colibri.experts.heat import Heat
from colibri.experts.machine import detect_memory
from colibri.experts.plan import Needs, Plan, default_budget, make_plan
from colibri.experts.residency import READERS, Residency
from colibri.experts.store import ExpertStore
from colibri.layers.linear import DenseWeights
from colibri.layers.rope import table_bytes
from colibri.layers.workspace import Workspace
from colibri.models.decoder import Decoder
from colibri.models.registry import model_config
from colibri.text import Tokenizer, load_tokenizer
from colibri.weights.checkpoint import Checkpoint, open_checkpoint

QUANTIZED_BYTES = 1.3  # of a value in both activation formats at most
SCRATCH_BYTES = 4 + QUANTIZED_BYTES


def load(
    path: str | os.PathLike[str] | None = None,
    *,
    ram: int | None = None,
    threads: int | None = None,
    context: int | None = None,
    precision: Precision = "fast",
    sequences: int = 1,
    chunk: int = 512,
    share_prefixes: bool = False,
) -> Model:
    """Open a model: a .gguf file (any of a split), a Hugging Face directory, or the embedded demo (None).

    ram: bytes that the process may take; experts beyond it are read when they are needed. context: tokens of one
    sequence, by default the model's own up to 4096. See LoadOptions. Without a path, COLIBRI_MODEL names the model.
    Raises ColibriError's kinds: FileError, FormatError, UnsupportedError, MemoryBudgetError, ArgumentError.
    """
    return open_model(
        LoadOptions(
            path=None if path is None else Path(path), ram=ram, threads=threads, context=context, precision=precision,
            sequences=sequences, chunk=chunk, share_prefixes=share_prefixes,
        )
    )  # fmt: skip


def plan_model(options: LoadOptions) -> tuple[Checkpoint, ModelConfig, ExpertStore, Plan]:
    """How the memory of this model would be divided; reads no weights."""
    checkpoint = open_checkpoint(model_path(options.path))
    config = model_config(checkpoint)
    context = _context(config, options.context)
    store = ExpertStore(checkpoint, config.layers)
    cache = SharedCache(config, options.sequences * blocks_for(context), share=options.share_prefixes)
    workspace = Workspace(config, min(options.chunk, options.sequences * context))
    return checkpoint, config, store, _plan(config, options, store, DenseWeights(checkpoint), cache, workspace, context)


def open_model(options: LoadOptions) -> Model:
    """The model that the options describe."""
    start = time.perf_counter()
    if options.threads is not None:
        ops.set_threads(options.threads)
    checkpoint = open_checkpoint(model_path(options.path))
    config = model_config(checkpoint)
    context = _context(config, options.context)
    tokenizer = tokenizer_of(checkpoint)
    store = ExpertStore(checkpoint, config.layers)
    try:
        weights = DenseWeights(checkpoint)
        cache = SharedCache(config, options.sequences * blocks_for(context), share=options.share_prefixes)
        workspace = Workspace(config, min(options.chunk, options.sequences * context))
        plan = _plan(config, options, store, weights, cache, workspace, context)
        limits = None if plan.fits else plan.limits_beside(0)
        experts = Residency(store, config.experts_per_token, limits=limits, chunk=workspace.capacity)
        if not plan.fits:
            cache.on_growth = lambda nbytes: experts.set_limits(plan.limits_beside(nbytes))
        exact = options.precision == "exact"
        decoder = Decoder(config, weights, experts, workspace, context=context, exact=exact)
        weights.read(ops.threads())
        if not plan.fits:
            experts.learn(Heat(checkpoint.fingerprint()))
    except MemoryError as error:
        raise MemoryBudgetError(f"{checkpoint.path}: the system refused the memory for this model: {error}") from error
    engine = Engine(decoder, cache, workspace.capacity)
    return Model(
        checkpoint, config, engine, experts, plan, tokenizer, context=context, load_s=time.perf_counter() - start
    )


def _context(config: ModelConfig, asked: int | None) -> int:
    if asked is None:
        return min(config.context_length, DEFAULT_CONTEXT)
    if asked > config.context_length:
        raise ArgumentError(
            f"context: found {asked}, but {config.name} was made for {config.context_length} tokens at most"
        )
    return asked


def tokenizer_of(checkpoint: Checkpoint) -> Tokenizer | None:
    """The checkpoint's tokenizer; None when it brings none, as models made for measuring do not."""
    source = checkpoint.tokenizer_source
    there = source.exists() if isinstance(source, Path) else "tokenizer.ggml.model" in source
    return load_tokenizer(source) if there else None


def _scratch_bytes(config: ModelConfig, rows: int) -> int:
    """What the native regions take beside the workspace for a step of so many rows.

    Each chosen expert's activations in float32 and quantised, the quantised input; the pool adds a quarter.
    """
    chosen = config.experts_per_token * config.expert_intermediate
    widest = max(chosen, config.intermediate)
    inputs = max(config.hidden_size, config.query_width)
    return int(1.25 * rows * (SCRATCH_BYTES * widest + QUANTIZED_BYTES * inputs))


def _plan(
    config: ModelConfig, options: LoadOptions, store: ExpertStore, weights: DenseWeights, cache: SharedCache,
    workspace: Workspace, context: int,
) -> Plan:  # fmt: skip
    machine = detect_memory()
    needs = Needs(
        process=machine.resident, dense=weights.nbytes, cache=cache.nbytes,
        workspace=workspace.nbytes + table_bytes(config.rope, context) + _scratch_bytes(config, workspace.capacity),
        staging=(READERS + 1) << 20,
    )  # fmt: skip
    budget = default_budget(machine) if options.ram is None else options.ram
    return make_plan(store, config.experts_per_token, needs, budget)

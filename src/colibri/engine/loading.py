"""From a path to a model that runs: configuration, memory plan, weights, cache."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from colibri import ops
from colibri.cache.kv import blocks_for
from colibri.cache.prefix import SharedCache
from colibri.config import DEFAULT_CONTEXT, LoadOptions, readable
from colibri.engine.copies import states_of_guesses
from colibri.engine.engine import Engine
from colibri.engine.model import Model, model_path
from colibri.errors import ArgumentError, MemoryBudgetError
from colibri.experts.heat import Heat
from colibri.experts.plan import Needs, Plan, default_budget, make_plan
from colibri.experts.reading import staging_bytes
from colibri.experts.residency import READERS, Residency
from colibri.experts.store import ExpertStore
from colibri.layers import kinds
from colibri.layers.linear import DenseWeights
from colibri.layers.rope import table_bytes
from colibri.layers.workspace import LOGIT_ROWS, Scratch, Workspace, workspace_bytes
from colibri.machine import detect_memory
from colibri.models.decoder import Decoder
from colibri.models.registry import model_spec, open_checkpoint
from colibri.spec import ModelSpec
from colibri.speculation.control import Control
from colibri.text import Tokenizer, load_tokenizer
from colibri.text.embedded_json import JSON
from colibri.text.gguf_tokenizer import MODEL
from colibri.weights.checkpoint import Checkpoint

ROWS_AN_EXPERT = 128  # for which an expert is computed while it could be read from a disk, about
MORE_SNAPSHOTS = 2  # of states, than one for each sequence
CHUNK_SHARE = 16  # of the room for slots: what a longer chunk may take


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model whose memory is divided and whose weights are not read yet."""

    checkpoint: Checkpoint
    spec: ModelSpec
    context: int
    store: ExpertStore
    weights: DenseWeights
    cache: SharedCache
    workspace: Workspace
    plan: Plan


def plan_model(options: LoadOptions) -> Prepared:
    """How the memory of this model would be divided; reads no weights."""
    checkpoint = open_checkpoint(model_path(options.path))
    spec = model_spec(checkpoint)
    context = _context(spec, options.context)
    store = ExpertStore(checkpoint)
    weights = DenseWeights(checkpoint)
    keeps = [layer.keeps for layer in spec.layers]
    slots = options.sequences + (options.sequences + MORE_SNAPSHOTS if options.share_prefixes else 0)
    cache = SharedCache(
        keeps, options.sequences * blocks_for(context), options.kv_type, slots, share=options.share_prefixes,
        spare=states_of_guesses(control_of(options)),
    )  # fmt: skip
    scratch = kinds.scratch(spec)
    machine = detect_memory()
    asked = options.ram is not None
    budget = default_budget(machine) if options.ram is None else options.ram - options.beside

    def plan(chunk: int) -> Plan:
        needs = Needs(
            process=machine.resident, dense=weights.nbytes, cache=cache.nbytes,
            states=0 if cache.states is None else cache.states.nbytes,
            workspace=_working_bytes(spec, scratch, chunk) + table_bytes(spec.ropes, context),
            staging=(READERS + 1) * staging_bytes(store),
        )  # fmt: skip
        return make_plan(
            store, spec.experts_per_token, needs, budget,
            beside=options.beside if asked else 0, machine=None if asked else machine,
        )  # fmt: skip

    chunk = min(options.chunk, options.sequences * context)
    divided = plan(chunk)
    if options.sequences == 1:  # nobody waits for a token while a long chunk is computed
        longer = min(context, _longer_chunk(spec, scratch, chunk, divided))
        if longer > chunk:
            chunk = longer
            divided = plan(chunk)
    if options.ram is not None and options.ram > machine.total:
        note = f"--ram {readable(options.ram)} is more than the memory that is here, {readable(machine.total)}"
        divided = replace(divided, notes=(*divided.notes, note))
    workspace = Workspace(spec, scratch.buffers, chunk)
    return Prepared(checkpoint, spec, context, store, weights, cache, workspace, divided)


def open_model(options: LoadOptions) -> Model:
    """The model that the options describe."""
    start = time.perf_counter()
    if options.threads is not None:
        ops.set_threads(options.threads)
    try:
        made = plan_model(options)
        checkpoint, spec, plan = made.checkpoint, made.spec, made.plan
        tokenizer = tokenizer_of(checkpoint)
        limits = None if plan.fits else plan.limits_beside(0)
        experts = Residency(made.store, spec.experts_per_token, limits=limits, chunk=made.workspace.capacity)
        if not plan.fits:
            made.cache.on_growth = lambda nbytes: experts.set_limits(plan.limits_beside(nbytes))
        exact = options.precision == "exact"
        decoder = Decoder(spec, made.weights, experts, made.workspace, context=made.context, exact=exact)
        made.weights.read(ops.threads())
        if not plan.fits:
            experts.learn(Heat(checkpoint.fingerprint()))
    except MemoryError as error:
        path = model_path(options.path)
        raise MemoryBudgetError(f"{path}: the system refused the memory for this model: {error}") from error
    engine = Engine(decoder, made.cache, made.workspace.capacity, control_of(options))
    return Model(
        checkpoint, spec, engine, experts, plan, tokenizer, context=made.context, load_s=time.perf_counter() - start
    )


def control_of(options: LoadOptions) -> Control | None:
    """What decides how many tokens are guessed; None where none are."""
    return None if options.speculate in ("off", 0) else Control(options.speculate)


def _context(spec: ModelSpec, asked: int | None) -> int:
    if asked is None:
        return min(spec.context_length, DEFAULT_CONTEXT)
    if asked > spec.context_length:
        raise ArgumentError(
            f"context: found {asked}, but {spec.name} was made for {spec.context_length} tokens at most"
        )
    return asked


def tokenizer_of(checkpoint: Checkpoint) -> Tokenizer | None:
    """The checkpoint's tokenizer; None when it brings none, as models made for measuring do not."""
    source = checkpoint.tokenizer_source
    there = source.exists() if isinstance(source, Path) else not {MODEL, JSON}.isdisjoint(source)
    return load_tokenizer(source, checkpoint.family.pre_tokenizers) if there else None


def _working_bytes(spec: ModelSpec, scratch: Scratch, chunk: int) -> int:
    """What steps of so many rows take: the workspace, and the native regions beside it.

    These keep activations in float32 and quantised, or for sampling a weight and an id of each token a thread; the
    pool adds a quarter.
    """
    sampling = 8.1 * spec.vocab_size * min(ops.threads(), LOGIT_ROWS)
    return workspace_bytes(spec, scratch.buffers, chunk) + int(1.25 * max(chunk * scratch.native_bytes, sampling))


def _longer_chunk(spec: ModelSpec, scratch: Scratch, chunk: int, plan: Plan) -> int:
    """Rows of a chunk in which computing an expert takes about as long as reading it.

    A chunk reads each expert that is not there once. Longer ones take memory from the slots, so they may take little.
    """
    wanted = ROWS_AN_EXPERT * (1 - plan.resident_share) * spec.experts / spec.experts_per_token
    spare = min(plan.room // CHUNK_SHARE, plan.budget - plan.floor)
    return min(int(wanted), chunk + spare * chunk // _working_bytes(spec, scratch, chunk))

"""The engine process: commands in, steps, outputs out.

One thread does everything in turn, so that no other Python thread ever holds up a step; that of the heartbeat sends a
few bytes a second. The collector of cycles is off while steps run; it works when the engine rests, and briefly between
steps once in a while.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection

import numpy as np

from colibri import ops
from colibri.config import LoadOptions
from colibri.engine.loading import open_model
from colibri.engine.model import Model
from colibri.engine.sequence import Sequence
from colibri.errors import ArgumentError, ChangedFileError, ColibriError
from colibri.server import protocol
from colibri.server.heartbeat import BEAT_S, Heart
from colibri.server.prompt_logits import PooledStates, PromptWatcher

BUSY_STATS_S = 0.2
IDLE_STATS_S = 2.0
BUSY_COLLECT_S = 30.0
EXIT_BAD_MODEL = 3


class _Running:
    """A sequence and what was reported of it."""

    def __init__(self, sequence: Sequence, prompt: PromptWatcher | PooledStates | None) -> None:
        self.sequence = sequence
        self.prompt = prompt
        self.prefilled = 0


class Line:
    """The connection to the web server; several threads may send."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._lock = threading.Lock()

    def send(self, event: protocol.Event) -> None:
        """Raises OSError when the web server is gone."""
        with self._lock:
            self.connection.send(event)


class Worker:
    """Runs one model for one web server."""

    def __init__(self, line: Line, model: Model, sequences: int) -> None:
        self._connection = line.connection
        self._send = line.send
        self._model = model
        self._sequences = sequences
        self._running: dict[int, _Running] = {}
        self._totals = protocol.EngineTotals()
        self._experts = False
        self._next_stats = 0.0
        self._collected = time.monotonic()
        self._dirty = False
        self._turns = 0
        self._stale: ChangedFileError | None = None

    def run(self) -> bool:
        """Serve until told to stop or until the web server is gone.

        False: the model's files were changed, so that every request would fail; the web server starts another process.
        """
        while self._receive():
            self._turns += 1
            if self._busy:
                self._step()
            if self._stale is not None:
                self._send(protocol.Failed(self._stale.code, str(self._stale)))
                return False
            self._stats()
            self._collect()
        return True

    @property
    def _busy(self) -> bool:
        """Whether there is a sequence that may go on."""
        return any(not running.sequence.held for running in self._running.values())

    def progress(self) -> int:
        """A number that grows whenever anything is done, within a step, too."""
        counters = self._model.experts.counters
        return self._turns + counters.hits + counters.misses + counters.bytes_read

    # ---- commands ------------------------------------------------------------------------------------------------

    def _receive(self) -> bool:
        """Take up what has come; waits only when there is nothing to do. False at the end."""
        try:
            wait = 0.0 if self._busy else min(max(self._next_stats - time.monotonic(), 0.01), BEAT_S)
            while self._connection.poll(wait):
                command: protocol.Command = self._connection.recv()
                if isinstance(command, protocol.Stop):
                    return False
                self._take(command)
                wait = 0.0
        except (EOFError, ConnectionError):
            return False
        return True

    def _take(self, command: protocol.Command) -> None:
        match command:
            case protocol.Submit():
                self._submit(command)
            case protocol.Cancel(request):
                running = self._running.pop(request, None)
                if running is not None:
                    self._model.engine.cancel(running.sequence)
            case protocol.Hold(request, held):
                if request in self._running:
                    self._model.engine.hold(self._running[request].sequence, held)
            case protocol.Watch(experts):
                self._experts = experts
                self._next_stats = 0.0

    def _submit(self, command: protocol.Submit) -> None:
        try:
            constraint = None if command.grammar is None else self._model.grammars.constraint(command.grammar)
            prompt: PromptWatcher | PooledStates | None = None
            if command.pooled:
                prompt = PooledStates(len(command.ids))
            elif command.prompt_logits is not None:
                prompt = PromptWatcher(command.ids, command.prompt_logits)
            sequence = self._model.sequence(
                command.ids, command.params, continues=command.continues, keep_special=command.keep_special,
                constraint=constraint, prediction=command.prediction, prompt_watcher=prompt,
                watched=len(command.ids) - 1 if command.last_only else 0, watches_states=command.pooled,
            )  # fmt: skip
        except ColibriError as error:
            refused = protocol.Output(command.request, finish="cancelled", error=str(error), bad_request=True)
            self._send(protocol.Step((refused,)))
            return
        self._running[command.request] = _Running(sequence, prompt)
        self._totals.prompt_tokens += len(command.ids)
        self._model.engine.add(sequence)

    # ---- steps ---------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        start = time.perf_counter()
        self._model.engine.step()
        took = time.perf_counter() - start
        totals = self._totals
        totals.steps += 1
        totals.step_s += took
        totals.longest_step_s = max(totals.longest_step_s, took)
        self._dirty = True
        outputs = tuple(
            output for request, running in list(self._running.items()) for output in self._news(request, running)
        )
        if outputs:
            self._send(protocol.Step(outputs))

    def _news(self, request: int, running: _Running) -> list[protocol.Output]:
        """What is new for a request, if anything is."""
        sequence = running.sequence
        prefilled = max(running.prefilled, min(sequence.computed, sequence.prompt_length))
        prompt = running.prompt.take() if running.prompt is not None else ()
        finish = sequence.finish_reason
        if not sequence.output and finish is None and prefilled == running.prefilled and not prompt:
            return []
        running.prefilled = prefilled
        tokens = tuple(sequence.output)
        sequence.output.clear()
        self._totals.tokens += len(tokens)
        error = None if sequence.error is None else str(sequence.error)
        if finish is not None:
            del self._running[request]
            self._totals.cached_tokens += sequence.cached
        fault = isinstance(sequence.error, ArgumentError)
        if isinstance(sequence.error, ChangedFileError):
            self._stale = sequence.error
        return [
            protocol.Output(
                request,
                tokens,
                prefilled,
                sequence.cached,
                sequence.sampled,
                finish,
                error,
                fault,
                prompt,
                sequence.stop_text,
                sequence.guessed,
                sequence.accepted,
            )
        ]

    # ---- between steps -------------------------------------------------------------------------------------------

    def _stats(self) -> None:
        now = time.monotonic()
        if now < self._next_stats:
            return
        self._next_stats = now + (BUSY_STATS_S if self._running else IDLE_STATS_S)
        engine, model, totals = self._model.engine, self._model, self._totals
        counts = np.ascontiguousarray(model.routing.counts).tobytes() if self._experts else None
        self._send(
            protocol.Stats(
                running=engine.running,
                waiting=engine.waiting,
                preemptions=engine.preemptions,
                steps=totals.steps,
                step_s=totals.step_s,
                longest_step_s=totals.longest_step_s,
                prompt_tokens=totals.prompt_tokens,
                cached_tokens=totals.cached_tokens,
                tokens=totals.tokens,
                cache_blocks=engine.cache.blocks,
                cache_free=engine.cache.free_blocks,
                memory=model.memory(),
                routing={**model.routing_summary(), "bytes_read": model.experts.counters.bytes_read},
                counts=counts,
                guessed=engine.guessed,
                accepted=engine.accepted,
            )
        )
        totals.longest_step_s = 0.0

    def _collect(self) -> None:
        now = time.monotonic()
        if self._dirty and not self._running:
            gc.collect()
            self._dirty = False
            self._collected = now
        elif now - self._collected > BUSY_COLLECT_S:
            gc.collect(0)
            self._collected = now

    def ready(self) -> protocol.Ready:
        """What the web server should know of the model."""
        model = self._model
        facts = {**model.describe(), "vocab_size": model.spec.vocab_size}
        return protocol.Ready(
            model=facts, context=model.context, sequences=self._sequences, threads=ops.threads(),
            isa=ops.isa(), plan=plan_summary(model), notes=model.notes, load_s=model.load_s,
        )  # fmt: skip


def plan_summary(model: Model) -> dict[str, int | bool]:
    """The memory plan in bytes."""
    return {"budget_bytes": model.plan.budget, "fits": model.plan.fits, "cache_bytes": model.engine.cache.nbytes}


def serve(line: Line) -> int:
    """Load what the first message names and serve it; the exit status."""
    line.send(protocol.Hello(protocol.VERSION, os.getpid()))
    start = line.connection.recv()
    if not isinstance(start, protocol.Start) or start.version != protocol.VERSION:
        found = getattr(start, "version", None)
        line.send(protocol.Failed(-3, f"the web server speaks version {found}, not {protocol.VERSION}"))
        return EXIT_BAD_MODEL
    options: LoadOptions = start.options
    try:
        heart = Heart(line.send)
        model = open_model(options)
        worker = Worker(line, model, options.sequences)
        if model.has_tokenizer:
            model.tokenizer.eos_ids  # noqa: B018 (reads the vocabulary now, not in the first request)
    except ColibriError as error:
        line.send(protocol.Failed(error.code, str(error)))
        return EXIT_BAD_MODEL
    with model:
        heart.progress = worker.progress
        line.send(worker.ready())
        gc.collect()
        gc.freeze()
        gc.disable()
        good = worker.run()
    return 0 if good else EXIT_BAD_MODEL


def main() -> int:
    """Entry of the process: the number of an open socket is the only argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the web server decides when the engine ends
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        return serve(Line(Connection(int(sys.argv[1]))))
    except (BrokenPipeError, ConnectionResetError):
        return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # the model is closed; taking a frozen heap apart object by object is of no use to anyone

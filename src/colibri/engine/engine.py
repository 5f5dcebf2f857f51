"""The step loop: schedule, forward, sample. Rows of several sequences go through the layers together."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Sequence as Sized
from functools import partial

import numpy as np
from numpy.typing import NDArray

from colibri import ops
from colibri.cache.prefix import Lease, SharedCache
from colibri.engine.copies import Copies
from colibri.engine.scheduler import Work, follows, schedule
from colibri.engine.sequence import PromptWatcher, Sequence
from colibri.engine.step_lock import FORKED, StepLock
from colibri.engine.verdict import Verdict
from colibri.errors import ArgumentError, ColibriError, MemoryBudgetError, NumericalError
from colibri.experts.loading import Listener
from colibri.layers.workspace import LOGIT_ROWS, Rows
from colibri.models.decoder import Decoder
from colibri.speculation.control import Control

GROWING = 4  # for so many sequences that run, one block is kept for them to grow into when another starts
RowsWatcher = Callable[[int, NDArray[np.float32]], None]  # the first position, logits (n, vocab) valid until it returns
Part = tuple[Sized[int], int, Lease]  # tokens, the position of the first, what their sequence holds


class Engine:
    """Runs sequences over one decoder and one cache. Safe to use from several threads: each step is one thread's."""

    def __init__(self, decoder: Decoder, cache: SharedCache, chunk: int, control: Control | None = None) -> None:
        """control: how many guesses of tokens are verified in a step; None where none are made."""
        self.decoder = decoder
        self.cache = cache
        self.steps = 0
        self.preemptions = 0
        self.listener: Listener | None = None  # hears of every step and every verdict
        self.guessed = self.accepted = 0  # tokens that were guessed, and those that were right
        self._chunk = chunk
        self._weights = decoder.weights_version
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._lock = StepLock(self._forked)
        self._collects = False  # whether garbage is collected when the step is over
        capacity = decoder.workspace.capacity
        self._ids = decoder.workspace.ids_array
        self._positions = np.zeros(capacity, np.int32)
        self._numbers = np.zeros(capacity, np.int32)
        self._control = control
        self._verdict = Verdict(cache)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; it starts as soon as the cache has room for it. ArgumentError when the engine is closed."""
        with self._lock:
            sequence.thread = threading.get_ident()
            if sequence.finish_reason is None:
                self._waiting.append(sequence)

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence and free what it holds, now or, when a step is under way, at the next one.

        Never waits: a dropped generation may be collected in the middle of a step of the same thread.
        """
        sequence.cancel()
        if self._lock.try_acquire():
            try:
                self._retire()
            finally:
                self._lock.release()

    def hold(self, sequence: Sequence, held: bool) -> None:
        """Let a sequence stand still, without a place in the cache, or go on when there is room again."""
        with self._lock:
            sequence.held = held
            if held and sequence in self._running:
                self._requeue(sequence)

    def close(self) -> None:
        """End all sequences, after the step that may be under way; none can be added and nothing computed any more."""
        if self._lock.refusal:
            return
        with self._lock:
            self._lock.refusal = "the model is closed"
            for sequence in (*self._running, *self._waiting):
                sequence.cancel()
            self._retire()

    @property
    def guesses(self) -> bool:
        """Whether tokens are guessed before they are chosen."""
        return self._control is not None

    @property
    def running(self) -> int:
        """Sequences that have their place in the cache."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences that wait for one."""
        return len(self._waiting)

    def step(self) -> None:
        """Compute some rows and give every sequence whose rows are complete its next token.

        An error of the engine ends the sequences of the step, whose keys and values are not to be trusted any more;
        each keeps it as `error`. Garbage is collected between steps, not in one.
        """
        with self._lock:
            self._collects = gc.isenabled()
            gc.disable()
            try:
                self._step()
            finally:
                if self._collects:
                    gc.enable()
                self._collects = False

    def advance(self, sequence: Sequence) -> None:
        """Step until this sequence has output or has ended; raises what ended it, if something did."""
        while not sequence.output and sequence.finish_reason is None:
            self.step()
        if sequence.error is not None and not sequence.output:
            raise sequence.error

    def infer(self, ids: Sized[int], vocab_size: int) -> NDArray[np.float32]:
        """Logits of every position, float32 (len(ids), vocab)."""
        try:
            result = np.empty((len(ids), vocab_size), np.float32)
        except MemoryError as error:
            raise MemoryBudgetError(
                f"logits of {len(ids)} tokens take {4 * len(ids) * vocab_size} bytes, which are not there; "
                "infer fewer tokens at once"
            ) from error

        def keep(position: int, logits: NDArray[np.float32]) -> None:
            result[position : position + len(logits)] = logits

        self.infer_rows(ids, keep)
        return result

    def infer_rows(self, ids: Sized[int], see: RowsWatcher, first: int = 0) -> None:
        """Show `see` the logits of the positions from `first` on, at most LOGIT_ROWS at a time.

        It must not call the engine. Sequences give up their blocks where this needs them.
        """
        with self._lock:
            self._retire()
            while self._running and not self.cache.has_room(len(ids)):
                self._preempt()
            lease = self.cache.borrow(ids, len(ids), share=False)
            try:
                for start in range(0, len(ids), self._chunk):
                    part = ids[start : start + self._chunk]
                    rows = self._run([(part, start, lease)])
                    self.decoder.record(rows)
                    for row in range(max(0, first - start), len(part), LOGIT_ROWS):
                        logits = self.decoder.logits(rows, row, min(row + LOGIT_ROWS, len(part)))
                        if not np.isfinite(logits).all():
                            raise NumericalError("output: a logit is a NaN or an infinity; the weights are damaged")
                        see(start + row, logits)
            finally:
                self.cache.end(lease)

    # ---- one step, under the lock --------------------------------------------------------------------------------

    def _step(self) -> None:
        self._retire()
        if self._waiting:
            self._check_weights(self.decoder.refresh())
            self._admit()
        self._extend()
        work = schedule(self._running, self._chunk)
        control = self._control if self.decoder.tap is None else None  # who watches tokens sees one a step
        decodes = control is not None and control.looks() and not any(item.sequence.pending > 1 for item in work)
        if not work:
            return
        self.steps += 1
        start = time.perf_counter()
        if any(item.sequence.nears_next_block for item in work):
            self.cache.make_ready()
        try:
            if decodes:
                work = self._guess(work)
            self._forward(work)
            if decodes and self._control is not None:
                self._control.note(sum(item.all_rows for item in work), time.perf_counter() - start)
            if self.listener is not None:
                rows, sequences = sum(item.all_rows for item in work), len(work)
                self.listener("step", start, rows=rows, sequences=sequences, waiting=len(self._waiting))
        except ColibriError as error:
            for item in work:
                item.sequence.fail(error)
        except BaseException:
            for item in work:
                item.sequence.cancel()
            raise
        finally:
            self._retire()

    def _guess(self, work: list[Work]) -> list[Work]:
        """With guesses of the tokens that follow, where they pay; every sequence waits for its next one."""
        control = self._control
        assert control is not None
        most, room = control.most, self._chunk - len(work)
        if self.cache.states is not None:
            room = min(room, len(self.cache.states.spare))
        least = control.least(len(work))
        guesses = [item.sequence.guesses(most, least) for item in work]
        if not any(guesses):
            return work
        counts = control.choose([[guess.chance for guess in own] for own in guesses])
        found: list[Work] = []
        for item, own, count in zip(work, guesses, counts, strict=True):
            sequence = item.sequence
            assert sequence.lease is not None
            left = ops.KV_BLOCK * len(sequence.lease.table) - len(sequence.ids)  # guesses take no block from others
            count = min(count, room, left)
            room -= count
            sequence.guessed += count
            found.append(item._replace(guesses=tuple(guess.token for guess in own[:count])) if count else item)
        return found

    def _forked(self, whole: bool) -> None:
        """In the child of a fork, end what other threads generated; all, when a step was left in its middle."""
        if not whole and self._collects:
            gc.enable()
        gone = "this generation belongs to a thread that the child of a fork does not have"
        for sequence in (*self._running, *self._waiting):
            if not whole or sequence.thread != threading.get_ident():
                sequence.fail(ArgumentError(gone if whole else FORKED))

    def _admit(self) -> None:
        """As many as there is room for, as they came; one whose beginning is being computed waits to share it.

        Room is what their tokens take now, since few become as long as they may.
        """
        for sequence in self._waiting.copy():
            if sequence.held:
                continue
            share = sequence.prompt_watcher is None or sequence.watched >= sequence.prompt_length - 1
            if share and self.cache.shares and follows(sequence, self._running):
                continue
            tokens, spare = len(sequence.ids), ops.KV_BLOCK * (len(self._running) // GROWING)
            room = self.cache.has_room(tokens + spare, sequence.ids if share else ())
            if len(self._running) >= self._chunk or not room:
                return
            sequence.borrowed(self.cache.borrow(sequence.ids, tokens, share=share))
            self._running.append(sequence)
            self._waiting.remove(sequence)

    def _extend(self) -> None:
        """Blocks for the tokens of this step. The oldest can always go on, since the cache holds any one of them."""
        for sequence in self._running.copy():
            while sequence.lease is not None and not self.cache.extend(sequence.lease, len(sequence.ids)):
                self._preempt()

    def _preempt(self) -> None:
        """The sequence that came last gives up its place and queues again: only those before it can make it do so.

        At the end of the queue, for it may have grown long, and all who wait would wait for its room.
        """
        self._requeue(max(self._running, key=lambda sequence: sequence.created))
        self.preemptions += 1

    def _requeue(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._give_back(sequence)
        sequence.preempt()
        self._waiting.append(sequence)

    def _give_back(self, sequence: Sequence) -> None:
        if sequence.lease is not None:
            computed = 0 if sequence.error is not None else sequence.computed
            whole = not sequence.computing  # states go on in a step that is broken off
            self.cache.end(sequence.lease, sequence.ids, computed, state=whole)

    def _retire(self) -> None:
        self._waiting = [sequence for sequence in self._waiting if sequence.finish_reason is None]
        for sequence in [sequence for sequence in self._running if sequence.finish_reason is not None]:
            self._running.remove(sequence)
            self._give_back(sequence)

    def _check_weights(self, version: int) -> None:
        """Forget what was computed with experts that have been replaced since."""
        if version != self._weights:
            self._weights = version
            self.cache.forget()

    def _run(self, parts: list[Part], copies: Copies | None = None) -> Rows:
        """Take parts of sequences through the layers, one after another; states are copied on the way."""
        ids: list[int] = []
        positions: list[int] = []
        numbers: list[int] = []  # which part a row belongs to
        for number, (own, start, _) in enumerate(parts):
            ids += own
            positions += range(start, start + len(own))
            numbers += [number] * len(own)
        count = len(ids)
        self._ids[:count], self._positions[:count], self._numbers[:count] = ids, positions, numbers
        rows = self.decoder.workspace.rows(count)
        places, owners = self._positions[:count], self._numbers[:count]
        tables = [lease.table for _, _, lease in parts]
        states, slots = self.cache.states, None
        if states is not None:
            slots = np.array([lease.slot for _, _, lease in parts], np.int32)
            states.step = [] if copies is None else copies.parts(places, owners, tables, slots)
        self.decoder.forward(rows, ops.Batch(places, owners, tables, slots), self.cache)
        return rows

    def _forward(self, work: list[Work]) -> None:
        """Compute the rows of a step and let the sequences go on."""
        parts: list[Part] = []
        for item in work:
            sequence, start = item.sequence, item.sequence.computed
            assert sequence.lease is not None
            parts.append((sequence.ids[start : start + item.rows] + list(item.guesses), start, sequence.lease))
            sequence.computing = item.all_rows
        copies = Copies(self.cache, work)
        try:
            rows = self._run(parts, copies)
            self._check_weights(self.decoder.weights_version)
            copies.keep()
            self._computed(work, rows)
            made = sum(len(item.guesses) for item in work)
            began = time.perf_counter()
            wrong = self._verdict(work, partial(self.decoder.logits, rows))
            self.guessed, self.accepted = self.guessed + made, self.accepted + made - len(wrong)
            if self.listener is not None:
                self.listener("sampling", began, guessed=made, right=made - len(wrong))
            self.decoder.record(rows, wrong)
            copies.settle()
        finally:
            copies.drop()
        for item in work:
            item.sequence.computing = 0

    def _computed(self, work: list[Work], rows: Rows) -> None:
        row = 0
        for item in work:
            sequence, count = item.sequence, item.rows
            if sequence.prompt_watcher is not None and sequence.watched < sequence.prompt_length:
                self._report(sequence, sequence.prompt_watcher, rows, row, count)
            sequence.computed += count
            row += item.all_rows
            if sequence.lease is not None and (count > 1 or sequence.computed % ops.KV_BLOCK == 0):
                self.cache.note(sequence.lease, sequence.ids, sequence.computed)

    def _report(self, sequence: Sequence, watcher: PromptWatcher, rows: Rows, row: int, count: int) -> None:
        """Show the logits (or last states) of a part of a prompt, where they have not been shown before."""
        values = self.decoder.states if sequence.watches_states else self.decoder.logits
        for first in range(max(0, sequence.watched - sequence.computed), count, LOGIT_ROWS):
            part = min(LOGIT_ROWS, count - first)
            shown = values(rows, row + first, row + first + part)
            for place in range(part):
                watcher(sequence.computed + first + place, shown[place])
            sequence.watched += part

"""Experts on their way into slots: a queue of pieces to read and the threads that read them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from colibri import ops
from colibri.errors import ColibriError, MemoryBudgetError, starting_threads
from colibri.experts.reading import ExpertReader
from colibri.experts.slots import Slot
from colibri.weights.tensor_info import Expert, TensorInfo

Listener = Callable[..., None]
"""Called as listener(name, start, **arguments) when what began at `start`, of time.perf_counter, has ended."""

Piece = tuple[ops.Tensor, TensorInfo, int, int]


@dataclass(slots=True, eq=False)
class Job:
    """One expert being read; its pieces may be read by several threads at once.

    pending: pieces that are not read yet. ended: hears, under the lock, that it is done, well or badly.
    """

    key: int
    slot: Slot
    expert: Expert
    pieces: deque[Piece]
    pending: int
    urgent: bool
    ended: Callable[[], None] | None = None
    done: bool = False
    error: ColibriError | None = None


class Loader:
    """Reads jobs, urgent ones first, by up to `threads` threads of its own and whoever calls `help`.

    `lock` guards the queue and is the owner's; `finished` is called under it when a job's last piece is read or given
    up. Threads start with the first job.
    """

    def __init__(
        self, reader: ExpertReader, lock: threading.RLock, finished: Callable[[Job], None], threads: int
    ) -> None:
        self._reader = reader
        self._lock = lock
        self._finished = finished
        self._limit = threads
        self._urgent: deque[Job] = deque()
        self._idle: deque[Job] = deque()
        self._work = threading.Condition(lock)
        self._threads: list[threading.Thread] = []
        self._reading: dict[int, Job] = {}  # by thread
        self._rests = False
        self._closed = False
        self.listener: Listener | None = None  # hears of every piece that was read

    # ---- under the owner's lock ----------------------------------------------------------------------------------

    def submit(self, key: int, slot: Slot, expert: Expert, urgent: bool) -> Job:
        """Queue one expert."""
        if len(self._threads) < self._limit:
            self._start_reader()
        pieces: deque[Piece] = deque()
        for tensor, info in zip(slot.tensors, expert.parts, strict=True):
            pieces.extend((tensor, info, first, count) for first, count in self._reader.pieces(info))
        job = Job(key, slot, expert, pieces, len(pieces), urgent)
        (self._urgent if urgent else self._idle).append(job)
        self._work.notify(min(len(pieces), self._limit))
        return job

    def _start_reader(self) -> None:
        thread = threading.Thread(target=self._serve, name=f"expert-reader-{len(self._threads)}", daemon=True)
        try:
            with starting_threads("read experts"):
                thread.start()
        except MemoryBudgetError:
            if not self._threads:  # otherwise those that are there do
                raise
            return
        self._threads.append(thread)

    def hurry(self, job: Job) -> None:
        """Read a job that was not urgent before all others: somebody waits for it."""
        if not job.urgent:
            job.urgent = True
            if job.pieces:
                self._idle.remove(job)
                self._urgent.appendleft(job)

    def take(self, urgent_only: bool = False) -> tuple[Job, Piece] | None:
        """The next piece to read, which the caller must pass to `read`."""
        queue = self._urgent if self._urgent else self._idle
        if self._rests or not queue or (urgent_only and queue is self._idle):
            return None
        job = queue[0]
        piece = job.pieces.popleft()
        if not job.pieces:
            queue.popleft()
        self._reading[threading.get_ident()] = job
        return job, piece

    def rest(self, until: float) -> None:
        """Take no piece until `go_on`; returns when no other thread reads, or at this time of time.monotonic.

        A fork while a read goes around the page cache could give its bytes to the wrong process (open(2)).
        """
        self._rests = True
        me = {threading.get_ident()}
        self._work.wait_for(lambda: self._reading.keys() <= me, max(0.0, until - time.monotonic()))

    def go_on(self) -> None:
        """Take pieces again."""
        self._rests = False
        self._work.notify_all()

    def forget(self) -> None:
        """In the child of a fork: the threads are gone, and nothing that was queued will be read."""
        self._work = threading.Condition(self._lock)
        self._threads.clear()
        me = threading.get_ident()
        mine = self._reading.get(me)
        lost = {id(job): job for job in (*self._urgent, *self._idle, *self._reading.values())}
        self._reading = {} if mine is None else {me: mine}
        self._urgent.clear()
        self._idle.clear()
        for job in lost.values():
            job.error = job.error or ColibriError("an expert was being read when the process was forked; try again")
            job.pieces.clear()
            job.pending = int(job is mine)
            if job is not mine:
                self._finished(job)

    # ---- without the lock ----------------------------------------------------------------------------------------

    def read(self, job: Job, piece: Piece) -> None:
        """Read one piece; whatever happens, the job's requesters learn of it."""
        error: ColibriError | None = None
        listener, start = self.listener, time.perf_counter()
        try:
            self._reader.load_piece(*piece)
        except ColibriError as refusal:
            error = refusal
        except Exception as defect:  # a reader thread must not die while somebody waits
            error = ColibriError(f"{piece[1].file}: {piece[1].name} could not be read: {defect!r}")
        if listener is not None:
            _, info, _, count = piece
            nbytes = info.nbytes * count // max(1, info.shape[0])
            listener("read", start, tensor=info.name, bytes=nbytes, urgent=job.urgent)
        with self._lock:
            self._reading.pop(threading.get_ident(), None)
            if self._rests:
                self._work.notify_all()
            if error is not None:
                job.error = job.error or error
                if job.pieces:  # not worth reading any more
                    (self._urgent if job.urgent else self._idle).remove(job)
                    job.pending -= len(job.pieces)
                    job.pieces.clear()
            job.pending -= 1
            if not job.pending:
                self._finished(job)

    def close(self) -> None:
        """Stop the threads; what is queued is not read."""
        with self._lock:
            self._closed = True
            self._work.notify_all()
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        while True:
            with self._lock:
                while not self._closed and (self._rests or not (self._urgent or self._idle)):
                    self._work.wait()
                if self._closed:
                    return
                taken = self.take()
            if taken is not None:
                self.read(*taken)

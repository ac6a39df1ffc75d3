"""The stream: a ring of aligned buffers that reader threads fill in the order of use, pass after pass.

The order is the same for every pass, so the readers run ahead across the end of a pass; what they read for a pass
that never comes stays good for the next one. Memory is the ring and nothing else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np
from attrs import asdict, define, field
from numpy.typing import NDArray

from ramforge_core.datasource import DataSource
from ramforge_core.errors import Interrupted
from ramforge_core.memory import PAGE
from ramforge_core.residency import Read

READERS = 4
"""Reads in flight. Two to eight saturate a drive; more only take memory."""


@define
class StreamStats:
    """Counted since the start; all but rows by the stream.

    gap_bytes : of ``read_bytes``, what was read for nothing. sequential : reads that went on where the last one ended.
    row_reads, row_bytes : rows of the token embedding, read one by one.
    expert_hits, expert_misses : experts that a layer of a pass needed and that were in memory, or had to be read; the
        bytes of the latter are in ``read_bytes``.
    stall_s : time that passes waited for the disk. busy_s : time in which at least one read was in flight.
    """

    reads: int = 0
    read_bytes: int = 0
    pieces: int = 0
    coalesced: int = 0
    gap_bytes: int = 0
    sequential: int = 0
    row_reads: int = 0
    row_bytes: int = 0
    expert_hits: int = 0
    expert_misses: int = 0
    stall_s: float = 0.0
    busy_s: float = 0.0

    def since(self, earlier: StreamStats) -> StreamStats:
        """What came after ``earlier``, a copy."""
        return StreamStats(**{name: n - getattr(earlier, name) for name, n in asdict(self).items()})


@define(eq=False)
class Stream:
    """Reads ``reads`` over and over into a ring of ``slots`` buffers of ``slot_bytes``.

    reads : may be empty, and then there is nothing to take. memory : uint8 (slots * slot_bytes,), page-aligned.
    repeat : begin again after the last read, for the next pass.
    Call `close` at the end.
    """

    source: DataSource
    reads: Sequence[Read]
    memory: NDArray[np.uint8] = field(repr=False)
    slots: int
    repeat: bool = True
    stats: StreamStats = field(factory=StreamStats)
    _slot_bytes: int = field(init=False)
    _threads: list[threading.Thread] = field(factory=list, init=False, repr=False)
    # One lock, and a condition for each side: waking threads that have nothing to do costs more than a read's copy.
    _lock: threading.Lock = field(factory=threading.Lock, init=False, repr=False)
    _arrived: threading.Condition = field(init=False, repr=False)
    _free: threading.Condition = field(init=False, repr=False)
    # All of these are guarded by _lock. Reads are numbered on and on; number n is read n % len(reads) in slot
    # n % slots.
    _asked: int = field(default=0, init=False)
    _taken: int = field(default=0, init=False)
    _given_back: int = field(default=0, init=False)
    _busy: int = field(default=0, init=False)
    _busy_since: float = field(default=0.0, init=False)
    _done: dict[int, Exception | None] = field(factory=dict, init=False)
    _halted: bool = field(default=True, init=False)
    _closed: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._arrived, self._free = threading.Condition(self._lock), threading.Condition(self._lock)
        self._slot_bytes = len(self.memory) // self.slots
        for i in range(min(READERS, self.slots, len(self.reads))):
            thread = threading.Thread(target=self._read_on, name=f"ramforge-read-{i}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def begin(self) -> None:
        """A pass begins: the next read taken is the first of the order. Raises Interrupted after `close`."""
        with self._lock:
            within = self._taken % max(1, len(self.reads))
            if self._halted or within or self._taken != self._given_back:
                self._halted = True
                while self._busy:
                    self._arrived.wait()
                if self._closed:
                    raise Interrupted("the model was closed")
                self._asked = self._taken = self._given_back = 0
                self._done.clear()
                self._halted = False
                self._free.notify_all()

    def ready(self) -> bool:
        """Whether `take` would return at once."""
        with self._lock:
            return self._taken in self._done

    def take(self) -> tuple[Read, NDArray[np.uint8]]:
        """The next read and its window, uint8 (nbytes,), good until `give_back`.

        Raises what the reading thread met, or Interrupted when `halt` was called.
        """
        with self._lock:
            began = time.perf_counter()
            while self._taken not in self._done and not self._halted:
                self._arrived.wait()
            self.stats.stall_s += time.perf_counter() - began
            if self._halted:
                raise Interrupted("the pass was stopped while it waited for the disk")
            error = self._done.pop(self._taken)
            if error is not None:
                self._halted = True
                raise error
            read, window = self._place(self._taken)
            self._taken += 1
        return read, window

    def give_back(self) -> None:
        """The window of the oldest read taken may be filled anew."""
        with self._lock:
            self._given_back += 1
            self._free.notify()

    def read_aside(self, read: Read, window: NDArray[np.uint8]) -> None:
        """Read a window that is not of the order, at once and in the caller's thread; it is counted like the others."""
        with self._lock:
            self._note_busy(1)
        try:
            self.source.read_window(read, window)
        finally:
            with self._lock:
                self._note_busy(-1)
                self._arrived.notify_all()
                self.stats.reads += 1
                self.stats.read_bytes += read.nbytes
                self.stats.pieces += len(read.pieces)
                self.stats.gap_bytes += read.gap_bytes

    def halt(self) -> None:
        """Wake whoever waits in `take`; the next `begin` starts the order anew."""
        with self._lock:
            self._halted = True
            self._arrived.notify_all()

    def close(self) -> None:
        with self._lock:
            self._closed = self._halted = True
            self._arrived.notify_all()
            self._free.notify_all()
        for thread in self._threads:
            thread.join()
        self.memory = self.memory[:0].copy()

    def _may_ask(self) -> bool:
        has_slot = self._asked - self._given_back < self.slots
        return has_slot and (self.repeat or self._asked < len(self.reads))

    def _place(self, number: int) -> tuple[Read, NDArray[np.uint8]]:
        read = self.reads[number % len(self.reads)]
        start = number % self.slots * self._slot_bytes
        return read, self.memory[start : start + read.nbytes]

    def _read_on(self) -> None:
        """What each reader thread does."""
        while True:
            with self._lock:
                while not self._closed and (self._halted or not self._may_ask()):
                    self._free.wait()
                if self._closed:
                    return
                number = self._asked
                self._asked += 1
                self._note_busy(1)
            read, window = self._place(number)
            error: Exception | None = None
            try:
                self.source.read_window(read, window)
            except Exception as caught:  # handed to whoever takes this read
                error = caught
            with self._lock:
                self._note_busy(-1)
                if not self._halted:
                    self._done[number] = error
                if error is None:
                    self._count(number, read)
                if number == self._taken or self._halted:
                    self._arrived.notify_all()

    def _note_busy(self, more: int) -> None:
        now = time.perf_counter()
        if self._busy:
            self.stats.busy_s += now - self._busy_since
        self._busy_since = now
        self._busy += more

    def _count(self, number: int, read: Read) -> None:
        previous = self.reads[(number - 1) % len(self.reads)]
        s = self.stats
        s.reads += 1
        s.read_bytes += read.nbytes
        s.pieces += len(read.pieces)
        s.coalesced += len(read.pieces) > 1
        s.gap_bytes += read.gap_bytes
        jump = read.offset - (previous.offset + previous.nbytes)
        s.sequential += read.file == previous.file and abs(jump) <= PAGE  # windows may share a page

"""The rate of a disk, from cold reads of a model's own file. The page cache never has a part in it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any, Literal, Protocol

import numpy as np
from attrs import asdict, frozen
from numpy.typing import NDArray

from ramforge_core.memory import PAGE, allocate
from ramforge_core.residency import Read
from ramforge_core.stream import READERS
from ramforge_core.system import process_memory

WINDOW_BYTES = 2 << 20
SHORT_BYTES = 512 << 10
"""Reads of a stream that has memory, and of one that has little: each costs the same beside its bytes."""
LEAST_BYTES = 64 << 20
MOST_BYTES = 1 << 30
LEAST_S = 0.25
_PARTS = 8
_RUN = 2
"""A round reads this many consecutive windows in each of so many parts of the model: 32 MiB."""
_ROWS = 16
"""Small reads, one after the other, for the latency."""


class WindowSource(Protocol):
    """The part of `DataSource` that is needed here."""

    @property
    def is_direct(self) -> bool: ...
    def forget(self, read: Read) -> None: ...
    def read_window(self, read: Read, out: NDArray[np.uint8]) -> None: ...


@frozen
class DiskRate:
    """Bytes per second of `READERS` large reads in flight, and seconds of one small read.

    method : ``direct``, or ``buffered`` where the file system refuses direct reads; then the ranges were dropped
        from the page cache before. cached : they came from memory all the same (a file system in memory, or pages
        that could not be dropped), so that this is not the rate of a disk.
    short_s : seconds that a read of `SHORT_BYTES` takes beyond its share of the rate, which is that of `WINDOW_BYTES`.
    read_cpu_s : processor time that one read takes from those who compute.
    """

    bytes_per_s: float
    latency_s: float
    method: Literal["direct", "buffered"]
    measured_bytes: int
    date: str
    cached: bool = False
    short_s: float = 0.0
    read_cpu_s: float = 0.0

    def read_s(self, n_bytes: int) -> float:
        """Seconds by which one read of so many bytes makes a stream longer."""
        shortness = (WINDOW_BYTES - n_bytes) / (WINDOW_BYTES - SHORT_BYTES)
        return n_bytes / self.bytes_per_s + min(max(shortness, 0.0), 1.0) * self.short_s

    @property
    def lasting(self) -> bool:
        """Whether it is worth remembering: measured on enough bytes, and from a disk."""
        return self.measured_bytes >= LEAST_BYTES // 2 and not self.cached

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> DiskRate:
        """Raises ValueError, KeyError or TypeError for anything that `to_dict` cannot have written."""
        found = cls(**facts)
        if not (0 < found.bytes_per_s < 1e15 and 0 <= found.latency_s < 1e3 and found.measured_bytes > 0):
            raise ValueError("a rate must be above 0")
        if not (0 <= found.short_s < 1e3 and 0 <= found.read_cpu_s < 1e3):
            raise ValueError("a read must take time")
        if found.method not in ("direct", "buffered") or not isinstance(found.date, str):
            raise ValueError("no such method or date")
        return found


def device_key(files: Sequence[Path]) -> str:
    """The devices that files lie on."""
    return ",".join(sorted({str(os.stat(file).st_dev) for file in files}))


def measure_disk(
    source: WindowSource,
    file_bytes: Sequence[int],
    free_bytes: int | None = None,
    *,
    least_s: float = LEAST_S,
) -> DiskRate:
    """Read windows spread over the files as the stream does, for ``least_s`` and at least 64 MiB, each byte once.

    file_bytes : by file. free_bytes : memory that may be taken; 8 MiB are used where there is room.
    Raises GGUFError if the files cannot be read.
    """
    window = WINDOW_BYTES
    while free_bytes is not None and window > 64 << 10 and READERS * window > free_bytes // 4:
        window //= 2
    # In one piece, as the stream's ring: direct reads into huge pages cost less.
    whole = allocate(READERS * window)
    memory = [whole[i * window : (i + 1) * window] for i in range(READERS)]
    before = process_memory().read_bytes
    rate, nbytes, short_s, read_cpu_s = _stream(source, _windows(file_bytes, window), memory, least_s)
    after = process_memory().read_bytes
    cached = (
        not source.is_direct and before is not None and after is not None and 2 * (after - before) < nbytes
    )
    return DiskRate(
        bytes_per_s=rate,
        latency_s=_latency(source, file_bytes, memory[0]),
        method="direct" if source.is_direct else "buffered",
        measured_bytes=nbytes,
        date=now(),
        cached=cached,
        short_s=short_s,
        read_cpu_s=read_cpu_s,
    )


def now() -> str:
    """The date of a measurement."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _windows(file_bytes: Sequence[int], window: int) -> Iterator[list[Read]]:
    """Rounds of reads: each goes on a little in every part of every file; no byte is read twice."""
    every = [
        Read(
            f, start, min(window, -(-(size - start) // PAGE) * PAGE), (("", 0, min(window, size - start)),), 0
        )
        for f, size in enumerate(file_bytes)
        for start in range(0, size, window)
    ]
    length = -(-len(every) // _PARTS)
    parts = [every[at : at + length] for at in range(0, len(every), max(length, 1))]
    run = max(1, _RUN * WINDOW_BYTES // window)
    for at in range(0, length, run):
        yield [read for part in parts for read in part[at : at + run]]


def _stream(
    source: WindowSource, rounds: Iterator[list[Read]], memory: Sequence[NDArray[np.uint8]], least_s: float
) -> tuple[float, int, float, float]:
    """Rate in bytes per second, bytes of as many rounds as it takes, and `DiskRate`'s ``short_s`` and ``read_cpu_s``.

    Every other round is of short reads. Medians of the rounds: a stream that lasts meets slow moments of a disk too.
    """
    seconds, nbytes = 0.0, 0
    rates: list[float] = []
    short: list[tuple[float, float]] = []  # wall-clock and processor time of a read
    for number, reads in enumerate(rounds):
        is_short = number % 2 == 1 and len(memory[0]) == WINDOW_BYTES
        reads = [part for read in reads for part in _cut(read)] if is_short else reads
        if not source.is_direct:
            for read in reads:
                source.forget(read)
        began, began_cpu = time.perf_counter(), time.process_time()
        _read_all(source, reads, memory)
        took, cpu = max(time.perf_counter() - began, 1e-9), time.process_time() - began_cpu
        size = sum(read.nbytes for read in reads)
        if is_short:
            short.append((took / len(reads), cpu / len(reads)))
        elif not rates or size >= LEAST_BYTES // 4:  # the last round may be short
            rates.append(size / took)
        seconds, nbytes = seconds + took, nbytes + size
        if (seconds >= least_s and nbytes >= LEAST_BYTES) or nbytes >= MOST_BYTES or seconds > 8 * least_s:
            break
    rate = median(rates)
    if not short:
        return rate, nbytes, 0.0, 0.0
    wall_s, cpu_s = (median(times) for times in zip(*short, strict=True))
    return rate, nbytes, max(0.0, wall_s - SHORT_BYTES / rate), cpu_s


def _cut(read: Read) -> list[Read]:
    """The same bytes in reads of at most `SHORT_BYTES`."""
    sizes = [min(SHORT_BYTES, read.nbytes - at) for at in range(0, read.nbytes, SHORT_BYTES)]
    end = read.pieces[0][2]  # of the file, which may be inside the last page
    return [
        Read(read.file, read.offset + at, n, (("", 0, min(n, end - at)),), 0)
        for at, n in zip(range(0, read.nbytes, SHORT_BYTES), sizes, strict=True)
    ]


def _read_all(source: WindowSource, reads: Sequence[Read], memory: Sequence[NDArray[np.uint8]]) -> None:
    """Each thread takes the next read; the first error ends it for all."""
    waiting, lock = iter(reads), threading.Lock()
    errors: list[Exception] = []

    def work(out: NDArray[np.uint8]) -> None:
        try:
            while not errors:
                with lock:
                    read = next(waiting, None)
                if read is None:
                    return
                source.read_window(read, out[: read.nbytes])
        except Exception as error:  # raised again by whoever waits
            errors.append(error)

    threads = [threading.Thread(target=work, args=(out,), name="ramforge-probe") for out in memory]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _latency(source: WindowSource, file_bytes: Sequence[int], memory: NDArray[np.uint8]) -> float:
    """Seconds of one read of a page while nothing else is read, at places that were not read before where there are."""
    size, times = file_bytes[0], []
    for i in range(_ROWS):
        offset = (size - 1) * (2 * i + 1) // (2 * _ROWS) // PAGE * PAGE
        read = Read(0, offset, PAGE, (("", 0, min(PAGE, size - offset)),), 0)
        if not source.is_direct:
            source.forget(read)
        began = time.perf_counter()
        source.read_window(read, memory[:PAGE])
        times.append(time.perf_counter() - began)
    return sorted(times)[_ROWS // 2]

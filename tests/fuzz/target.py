"""What is promised of any file, and the way from random bytes to sensible choices."""

from __future__ import annotations

import importlib
import os
import resource
import tempfile
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from ramforge_core.errors import RamforgeError

T = TypeVar("T")

NAMES = ("gguf_reader", "split_files", "tokenizer_tables", "chat_templates", "session_files", "whole_models")
CORPUS = Path(__file__).parent / "corpus"
MAX_SECONDS = 1.0
MAX_BYTES = 200 << 20
NUMBERS = (
    0,
    1,
    2,
    3,
    7,
    31,
    32,
    255,
    256,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**62,
    2**63,
    2**64 - 1,
)
FRACTIONS = (0.0, 1.0, -1.0, 1e-30, 1e30, 1e308, float("inf"), float("-inf"), float("nan"))


class Target(Protocol):
    def seeds(self) -> Iterator[bytes]: ...

    def check(self, data: bytes) -> None: ...


def load(name: str) -> Target:
    return importlib.import_module(f"fuzz.{name}")


def kept(name: str) -> list[bytes]:
    """The corpus of a target that lies in the repository: an input in each line, in base64."""
    file = CORPUS / f"{name}.txt"
    return [b64decode(line) for line in file.read_text().split()] if file.exists() else []


def keep(name: str, folder: Path) -> None:
    """Make the files in a folder a target's corpus."""
    inputs = sorted({file.read_bytes() for file in folder.iterdir()}, key=lambda data: (len(data), data))
    (CORPUS / f"{name}.txt").write_text("".join(b64encode(data).decode() + "\n" for data in inputs))


def judge(check: Callable[[bytes], None], data: bytes, seconds: float = MAX_SECONDS) -> None:
    """Raise unless ``check`` ends well or in one of our errors, in time and memory that are allowed.

    The time is the processor's, so that other work on the machine does not count.
    """
    before, began = _rss_bytes(), time.process_time()
    try:
        check(data)
    except RamforgeError as error:
        message = str(error)
        if not message or "\n" in message or len(message) > 4000:
            raise AssertionError(f"this is no message for people: {message!r}") from error
    took = time.process_time() - began
    if took > seconds:
        raise AssertionError(f"took {took:.2f} s, at most {seconds} s are allowed")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    if grown > MAX_BYTES and _rss_peak_is_ours(before):
        raise AssertionError(f"took {grown >> 20} MiB of memory, at most {MAX_BYTES >> 20} are allowed")


_peak = 0


def _rss_peak_is_ours(before: int) -> bool:
    """Whether the peak of this process was reached by this input, not by an earlier one."""
    global _peak
    peak, earlier = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, _peak
    _peak = peak
    return peak > max(earlier, before)


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def folder() -> Iterator[Path]:
    """An empty folder, in memory where there is such a place."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place) as name:
        yield Path(name)


class Choices:
    """Random bytes as a row of decisions. Behind the end all bytes are 0, so that any input is a whole one."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def below(self, n: int) -> int:
        """A number from 0 to n - 1; 0 if there is none."""
        value = self.byte() if n <= 256 else self.byte() << 8 | self.byte()
        return value % max(n, 1)

    def pick(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def take(self) -> bytes:
        """Up to 255 bytes."""
        n = self.byte()
        self._at += n
        return self._data[self._at - n : self._at]

    def rest(self) -> bytes:
        self._at, at = len(self._data), self._at
        return self._data[at:]

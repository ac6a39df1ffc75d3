"""What goes to stderr: errors, log lines and progress. stdout belongs to the commands' results."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from ramforge_core.sizes import format_size

_REDRAW_S = 0.1
_APPEAR_S = 0.3
"""What is over sooner needs no progress display."""


def one_line(text: str) -> str:
    """``text`` on one line, with what could steer a terminal made visible: names in it may come from a file."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(text.split()))


def describe(error: BaseException) -> str:
    """What an error says, and its type where that is not a sentence of ours."""
    from ramforge_core.errors import RamforgeError

    text = one_line(str(error))
    if isinstance(error, RamforgeError) and text:
        return text
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def say(text: str) -> None:
    """One line to stderr; a stderr that takes nothing any more is no reason to fail."""
    clear_progress()
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


class _Handler(logging.Handler):
    """Log records as ``ramforge: warning: ...`` lines."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            say(f"ramforge: {record.levelname.lower()}: {one_line(record.getMessage())}")
        except Exception:  # the contract of logging handlers
            self.handleError(record)


@contextmanager
def logging_to_stderr() -> Iterator[logging.Logger]:
    """The logger ``ramforge`` speaks on stderr while the block runs."""
    logger = logging.getLogger("ramforge")
    handler, level = _Handler(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    try:
        yield logger
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


_shown: Progress | None = None


def clear_progress() -> None:
    """Wipe the progress display, if there is one, so that a line can take its place."""
    if _shown is not None:
        _shown.clear()


class Progress:
    """A line on stderr that says how far something is, how fast and for how long; on a terminal only, gone at the end.

    One at a time is seen, the last one that was called. Call it with what is done and what there is in all (None if
    unknown); ``count`` turns an amount into text.
    """

    def __init__(self, what: str, count: Callable[[float], str] = format_size) -> None:
        self._what = what
        self._count = count
        self._active = sys.stderr.isatty()
        self._began: float | None = None
        self._first = 0.0
        self._next = 0.0
        self._drawn = 0

    def __call__(self, done: float, total: float | None) -> None:
        now = time.monotonic()
        if self._began is None:
            self._began, self._first, self._next = now, done, now + _APPEAR_S
        if not self._active or now < self._next:
            return
        self._next = now + _REDRAW_S
        rate = (done - self._first) / (now - self._began)
        text = f"{self._what}: {self._count(done)}"
        if total:
            text += f" of {self._count(total)}, {min(done / total, 1):.0%}"
        if rate > 0:
            text += f", {self._count(rate)}/s"
            if total:
                text += f", {_duration(max(total - done, 0) / rate)} left"
        self._draw(one_line(text))

    def _draw(self, text: str) -> None:
        global _shown
        if _shown is not self:
            clear_progress()
            _shown = self
        try:
            width = os.get_terminal_size(sys.stderr.fileno()).columns or 80
        except (OSError, ValueError):
            width = 80
        text = text[: width - 1]
        sys.stderr.write(f"\r{text:<{self._drawn}}")
        sys.stderr.flush()
        self._drawn = len(text)

    def clear(self) -> None:
        if self._drawn:
            sys.stderr.write(f"\r{'':<{self._drawn}}\r")
            sys.stderr.flush()
            self._drawn = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        global _shown
        self.clear()
        if _shown is self:
            _shown = None


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d} h" if hours else f"{minutes}:{rest:02d} min" if minutes else f"{rest} s"

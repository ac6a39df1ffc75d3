"""The entry point. It imports next to nothing, so that Ctrl-C ends the program quietly from its first moment on."""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` takes longer than the rest of this module
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    arguments : None takes those of this process, which then is at an end: Ctrl-C during the imports before the
    program and during Python's own clean-up after it ends the process on the spot.
    """
    own = arguments is None
    try:
        taken = own and _end_at_once()
        from ramforge_cli.program import run_program

        if taken:
            _raise_again()
        try:
            return run_program(arguments)
        finally:
            if taken:
                _end_at_once()
    except KeyboardInterrupt:
        return INTERRUPTED


def _end_at_once() -> bool:
    """Let Ctrl-C end the process without clean-up. False where it means something else, or nothing, already."""
    import signal

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    try:
        signal.signal(signal.SIGINT, _leave)
    except ValueError:  # not the main thread, which alone gets signals
        return False
    return True


def _raise_again() -> None:
    import signal

    signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, frame: FrameType | None) -> None:
    import os

    os._exit(INTERRUPTED)

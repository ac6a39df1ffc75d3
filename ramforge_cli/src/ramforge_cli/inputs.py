"""Text that a person gives: as an argument or on stdin."""

from __future__ import annotations

import sys

import click


def read_text(given: str | None, what: str) -> str:
    """``given``, or all of stdin if that is None or ``-``.

    what : how to give it, for the error when stdin is a terminal.
    """
    if given is not None and given != "-":
        try:
            given.encode()
        except UnicodeEncodeError:
            raise click.UsageError(f"the text is not valid UTF-8: {given!a}") from None
        return given
    if sys.stdin is None or (given is None and sys.stdin.isatty()):
        raise click.UsageError(f"there is no text: {what}")
    data = sys.stdin.buffer.read()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise click.UsageError(
            f"stdin is not valid UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}"
        ) from error

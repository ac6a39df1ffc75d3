"""Text that a person gives: as an argument or on stdin."""

from __future__ import annotations

import sys

import click

from ramforge_core.errors import ParameterError
from ramforge_core.sizes import format_size

MAX_BYTES = 64 << 20
"""Of stdin: more than any context holds, and less than any machine has."""


def read_text(given: str | None, what: str) -> str:
    """``given``, or all of stdin if that is None or ``-``.

    what : how to give it, for the error when stdin is a terminal.
    Raises UsageError for what is no text, ParameterError for more than `MAX_BYTES` on stdin.
    """
    if given is not None and given != "-":
        try:
            given.encode()
        except UnicodeEncodeError:
            raise click.UsageError(f"the text is not valid UTF-8: {given!a}") from None
        return given
    if sys.stdin is None or (given is None and sys.stdin.isatty()):
        raise click.UsageError(f"there is no text: {what}")
    data = sys.stdin.buffer.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ParameterError(
            f"stdin has more than {format_size(MAX_BYTES)}, the most that is read as one text; give less of it"
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise click.UsageError(
            f"stdin is not valid UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}"
        ) from error

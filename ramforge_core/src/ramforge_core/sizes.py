"""Byte sizes as people write and read them. K, M, G and T are powers of 1024, with or without ``iB`` or ``B``."""

from __future__ import annotations

import re

from ramforge_core.errors import ParameterError

_UNITS = " KMGT"
"""The place of a letter is its power of 1024."""
_EXAMPLES = "8G, 1.5GiB, 512M, 800K, a number of bytes, or 50% of the memory there is"
# Fifteen digits are more bytes than any machine has, and keep Python's limit on long integers out of the way.
_SIZE = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,15}))?\s*(?:(%)|([KMGT])(?:iB|B)?|B)?", re.IGNORECASE)


def parse_size(text: str | int, total: int | None = None) -> int:
    """Bytes that ``text`` means: ``8G``, ``8GiB``, ``8192M``, ``1.5G``, ``800K``, ``50%``, plain bytes; in any case.

    total : bytes that ``100%`` stands for. Parts of a byte are dropped.
    Raises ParameterError for anything else: nonsense, nothing, less than nothing, no whole byte, more than 100 %, or
    a percentage where there is no total.
    """
    text = str(text)
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ParameterError(f"{text!r} is not a size; write for example {_EXAMPLES}")
    whole, fraction, percent, letter = match.groups(default="")
    number = int(whole + fraction)
    ones: int = 10 ** len(fraction)
    if percent:
        if total is None:
            raise ParameterError(
                f"{text!r}: a percentage of what is not known here; write bytes, for example 8G or 512M"
            )
        if number > 100 * ones:
            raise ParameterError(
                f"{text!r} is more than there is; write at most 100%, or for example {_EXAMPLES}"
            )
        size = number * total // (100 * ones)
    elif fraction and not letter:
        raise ParameterError(
            f"{text!r} has no unit and is no whole number of bytes; write for example {_EXAMPLES}"
        )
    else:
        size = (number << 10 * _UNITS.index(letter.upper() or " ")) // ones
    if not 1 <= size < 2**63:
        raise ParameterError(f"{text!r} is no size that memory can have; write for example {_EXAMPLES}")
    return size


def format_size(n_bytes: float) -> str:
    """Bytes for people, to three digits in the largest unit that keeps them above 1: ``1.50 GiB``, ``416 MiB``.

    n_bytes : not negative; a rate is not whole.
    """
    if n_bytes < 1024:
        return f"{n_bytes:.0f} byte{'' if round(n_bytes) == 1 else 's'}"
    size, power = n_bytes / 1024, 1
    while power < len(_UNITS) - 1 and size >= 1023.5:  # what would be shown as 1024
        size, power = size / 1024, power + 1
    decimals = 2 if size < 9.995 else 1 if size < 99.95 else 0
    return f"{size:.{decimals}f} {_UNITS[power]}iB"

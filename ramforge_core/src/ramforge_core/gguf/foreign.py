"""Names what a file is that is not GGUF, or not a whole one, so that the message can say what to do (A20, A25)."""

from __future__ import annotations

import re
from pathlib import Path

_STARTS: tuple[tuple[bytes, str], ...] = (
    (b"FUGG", "a byte-swapped (big-endian) GGUF file, which is not supported; convert it to little-endian"),
    (b"version https://git-lfs", "a Git LFS pointer, not the model itself; fetch it with 'git lfs pull'"),
    (b"PK", "a zip archive (perhaps a PyTorch checkpoint); unpack it, or convert the model to GGUF"),
    (b"\x80\x02", "a Python pickle (perhaps a PyTorch checkpoint); convert the model to GGUF"),
    (b"\x1f\x8b", "a gzip archive; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive; unpack it first"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive; unpack it first"),
    (b"\x89HDF", "an HDF5 file; convert the model to GGUF"),
)
_OLD_GGML = ("ggml", "ggmf", "ggjt", "ggla", "ggsn")
_PIECE = re.compile(
    r"[._-](?:part|split|piece|chunk)[._-]?(\d+|[a-z]{1,3})(?:[_-]?of[_-]?(\d+))?$", re.IGNORECASE
)


def name_foreign_file(path: Path, head: bytes) -> str:
    """One sentence on a file whose first bytes (16 or so) are not GGUF's."""
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if len(head) < 4 and b"GGUF".startswith(head):
        return f"{path} is cut short: it ends at byte {len(head)}, inside the magic 'GGUF'{what_to_do(path)}"
    piece = byte_piece_hint(path)
    if piece:
        return f"{path} does not begin with 'GGUF'{piece}"
    for start, what in _STARTS:
        if head.startswith(start):
            return f"{path} is {what}"
    for magic in _OLD_GGML:
        if head.startswith((magic.encode(), magic[::-1].encode())):
            return (
                f"{path} is a file in the old {magic.upper()} format, from before GGUF; get the model as GGUF or "
                f"convert it with an old llama.cpp"
            )
    if text.startswith((b"<!doctype", b"<html", b"<head", b"<?xml")):
        return f"{path} is a web page (HTML), most likely an error page saved in place of the model; fetch it again"
    if head[8:10] == b'{"' or path.suffix.lower() == ".safetensors":
        return (
            f"{path} is a safetensors file; convert the model to GGUF with llama.cpp's convert_hf_to_gguf.py"
        )
    if text.startswith((b"{", b"[")):
        return f"{path} is a JSON text (perhaps an error message or a configuration); give the .gguf file of the model"
    return f"{path} is not a GGUF file: it begins with {head[:4]!r} where 'GGUF' is expected"


def what_to_do(path: Path) -> str:
    """The end of a message on a file that is cut short."""
    return byte_piece_hint(path) or "; fetch the file again"


def byte_piece_hint(path: Path) -> str:
    """A clause for the end of a message if the name says that the file is one piece of a byte-split file, else ''."""
    match = _PIECE.search(path.name)
    if match:
        number, total = match.groups()
        of = f" of {total}" if total else ""
        number = str(_letters_to_number(number)) if number.isalpha() else str(int(number))
        return f"; this is piece {number}{of} of a byte-split file, join the pieces first (cat, in order)"
    neighbour = _neighbour(path)
    if neighbour is not None:
        return (
            f"; this looks like a piece of a byte-split file ({neighbour.name} lies beside it), join the pieces first "
            f"(cat, in order)"
        )
    return ""


def _letters_to_number(letters: str) -> int:
    """aa is the first piece that split(1) writes."""
    number = 0
    for letter in letters.lower():
        number = 26 * number + ord(letter) - ord("a")
    return number + 1


def _neighbour(path: Path) -> Path | None:
    """The piece before or after this one, if the name ends as split(1) ends names (aa, ab, 00, 001) and it exists."""
    match = re.search(r"^(.*?)([a-z]{2,3}|\d{2,3})$", path.name)
    if not match or path.suffix.lower() == ".gguf":
        return None
    prefix, suffix = match.groups()
    base, first = (26, ord("a")) if suffix.isalpha() else (10, ord("0"))
    number = 0
    for letter in suffix:
        number = base * number + ord(letter) - first
    for other in (number + 1, number - 1):
        if 0 <= other < base ** len(suffix):
            letters = ""
            rest = other
            for _ in suffix:
                rest, digit = divmod(rest, base)
                letters = chr(first + digit) + letters
            candidate = path.with_name(prefix + letters)
            if candidate.exists():
                return candidate
    return None

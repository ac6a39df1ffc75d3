"""Sessions on disk: the tokens of a sequence with their keys and values, to go on later without computing them again.

A file is the line of `MAGIC`, a line of JSON (`_Header`), the tokens as little-endian int32, and the chunks of the KV
cache one after the other. It is good for the very model, backend and cache type that wrote it; nothing of it is used
before all of it is checked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from attrs import asdict, frozen
from numpy.typing import NDArray

from ramforge_core.api import LanguageModel
from ramforge_core.errors import ContextFullError, SessionError
from ramforge_core.files import atomic_write
from ramforge_core.gguf import GGUF
from ramforge_core.kv import CHUNK_POSITIONS
from ramforge_core.sequence import KeptSequence

MAGIC = b"RAMforge session 1\n"
_HEADER_BYTES = 16 << 20
_SAMPLES, _SAMPLE_BYTES = 64, 4096


@frozen
class _Header:
    """model, backend, kv_type, layers : what the cache belongs to. note : of whoever saved it.

    digest : BLAKE2b of everything behind this line.
    """

    model: str
    backend: str
    kv_type: str
    layers: list[list[int]]
    tokens: int
    note: dict[str, Any]
    digest: str


def session_bytes(kept: KeptSequence) -> int:
    """About what a file with this sequence takes."""
    return 4 * len(kept.ids) + -(-len(kept.ids) // CHUNK_POSITIONS) * kept.cache.layout.chunk_bytes


def save_session(
    file: Path, model: LanguageModel, kept: KeptSequence, note: Mapping[str, Any] | None = None
) -> int:
    """Write a sequence to ``file``, all or nothing. Returns its bytes.

    note : anything that JSON can say, to be given back by `load_session`. Raises OSError.
    """
    ids, chunks = _payload(kept)
    digest = hashlib.blake2b(ids.data)
    for chunk in chunks:
        digest.update(chunk.data)
    header = _Header(**_belongs(model), tokens=len(ids), note=dict(note or {}), digest=digest.hexdigest())
    with atomic_write(file) as out:
        out.write(MAGIC + json.dumps(asdict(header)).encode() + b"\n")
        out.write(ids.data)
        for chunk in chunks:
            out.write(chunk.data)
        return out.tell()


def load_session(file: Path, model: LanguageModel) -> tuple[KeptSequence, dict[str, Any]]:
    """A sequence of ``model`` with what ``file`` holds, and the note that was saved with it.

    Raises SessionError if the file is damaged or of another model, ContextFullError or BudgetExceededError if it does
    not fit; no memory is held then.
    """
    try:
        with file.open("rb") as stream:
            header = _read_header(file, stream)
            expected = _belongs(model)
            for name, meaning in _MEANINGS.items():
                if getattr(header, name) != expected[name]:
                    raise SessionError(f"{file}: this session was saved with another {meaning}")
            if header.tokens > model.engine.context:
                raise ContextFullError(
                    f"{file}: the session has {header.tokens} tokens, but the context holds {model.engine.context}; "
                    "ask for a larger one (--ctx)"
                )
            return _read_payload(file, stream, header, model), header.note
    except OSError as error:
        raise SessionError(f"{file}: cannot read the session: {error.strerror or error}") from error


_MEANINGS = {
    "model": "model",
    "backend": "backend",
    "kv_type": "type of KV cache",
    "layers": "shape of KV cache",
}


def _belongs(model: LanguageModel) -> dict[str, Any]:
    layout = model.engine.allotment.kv_layout
    return {
        "model": model_digest(model.engine.model.gguf),
        "backend": model.opened.backend.key,
        "kv_type": layout.type,
        "layers": [list(layer) for layer in layout.layers],
    }


def model_digest(gguf: GGUF) -> str:
    """What tells a model from others without reading all of it: its tensors, and a page from some of them."""
    digest = hashlib.blake2b(repr(gguf.file_bytes).encode(), digest_size=32)
    infos = list(gguf.tensors.values())
    for info in infos:
        digest.update(repr((info.name, info.shape, info.ggml_type, info.file, info.offset)).encode())
    for info in infos[:: max(1, len(infos) // _SAMPLES)]:
        with gguf.files[info.file].open("rb") as stream:
            stream.seek(info.offset)
            digest.update(stream.read(min(_SAMPLE_BYTES, info.nbytes or 0)))
    return digest.hexdigest()


def _payload(kept: KeptSequence) -> tuple[NDArray[np.int32], list[NDArray[np.uint8]]]:
    chunks = kept.cache.chunks[: -(-len(kept.ids) // CHUNK_POSITIONS)]
    return np.array(kept.ids, "<i4"), chunks


def _read_header(file: Path, stream: BinaryIO) -> _Header:
    if stream.readline(len(MAGIC)) != MAGIC:
        raise SessionError(f"{file}: this is no session of RAMforge, or one of another version")
    try:
        header = _Header(**json.loads(stream.readline(_HEADER_BYTES)))
        sound = type(header.tokens) is int and header.tokens >= 0 and isinstance(header.note, dict)
    except (ValueError, TypeError, RecursionError) as error:
        raise SessionError(f"{file}: the session's header is damaged") from error
    if not sound:
        raise SessionError(f"{file}: the session's header is damaged")
    return header


def _read_payload(file: Path, stream: BinaryIO, header: _Header, model: LanguageModel) -> KeptSequence:
    kept = model.sequence()
    try:
        kept.cache.reserve(header.tokens)
        ids = np.empty(header.tokens, "<i4")
        _fill(file, stream, (ids.view(np.uint8), *kept.cache.chunks), header.digest)
        kept.ids = ids.tolist()
    except BaseException:
        kept.close()
        raise
    return kept


def _fill(file: Path, stream: BinaryIO, parts: Iterable[NDArray[np.uint8]], expected: str) -> None:
    digest = hashlib.blake2b()
    for part in parts:
        if stream.readinto(part.data) != part.nbytes:  # type: ignore[attr-defined]
            raise SessionError(f"{file}: the session is cut short")
        digest.update(part.data)
    if stream.read(1) or digest.hexdigest() != expected:
        raise SessionError(f"{file}: the session is damaged: its bytes are not those that were saved")

"""Weights from disk into memory: the data source, and the loader for models that fit.

The data source is the one place that reads tensor bytes.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ramforge_core.errors import GGUFError, OutOfMemoryError
from ramforge_core.kv import aligned_empty

if TYPE_CHECKING:
    from ramforge_core.gguf import GGUF
    from ramforge_core.model import Model

_READ_BYTES = 16 << 20


class DataSource:
    """Reads extents of a model's files. Opens each file once; closing it twice is harmless."""

    def __init__(self, gguf: GGUF) -> None:
        self._stack = ExitStack()
        self._paths = gguf.files
        self._files: dict[int, io.FileIO] = {}

    def read_into(self, file: int, offset: int, out: NDArray[np.uint8]) -> None:
        """Fill ``out`` from byte ``offset`` of file number ``file``. Raises GGUFError on a short read or I/O error."""
        path = self._paths[file]
        try:
            if file not in self._files:
                self._files[file] = self._stack.enter_context(io.FileIO(path, "r"))
            handle = self._files[file]
            handle.seek(offset)
            view, done = memoryview(out), 0
            while done < len(view):
                count = handle.readinto(view[done : done + _READ_BYTES])
                if not count:
                    raise GGUFError(
                        f"{path}: ends at byte {offset + done}, but {out.size} bytes were expected from byte {offset}; "
                        "the file has changed or is cut short"
                    )
                done += count
        except OSError as error:
            raise GGUFError(f"{path}: cannot read {out.size} bytes at byte {offset}: {error}") from error

    def close(self) -> None:
        self._stack.close()
        self._files.clear()

    def __enter__(self) -> DataSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


def load_weights(
    model: Model, source: DataSource, progress: Callable[[int, int], None] | None = None
) -> dict[str, NDArray[np.uint8]]:
    """Read all weights in file order: name -> uint8 (nbytes,), 64-byte aligned, still quantized.

    progress : called with bytes read so far and bytes in all.
    Raises OutOfMemoryError naming the bytes needed.
    """
    total = sum(spec.nbytes for spec in model.weights.values())
    done, out = 0, {}
    for name, spec in model.weights.items():
        info = model.gguf.tensors[name]
        try:
            data = aligned_empty(spec.nbytes)
        except MemoryError as error:
            raise OutOfMemoryError(
                f"no memory for tensor {name!r} ({spec.nbytes} bytes); the weights take {total} bytes in all, "
                f"{done} were read"
            ) from error
        source.read_into(info.file, info.offset, data)
        out[name] = data
        done += spec.nbytes
        if progress is not None:
            progress(done, total)
    return out

"""A model as its files describe it: one file, or the shards of a split one, put together."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path

from attrs import evolve, frozen

from ramforge_core.gguf.infos import TensorInfo
from ramforge_core.gguf.metadata import Metadata
from ramforge_core.gguf.shards import find_model


@frozen(eq=False)
class GGUF:
    """The header of a model.

    path : the file that holds the metadata (of a split model the first shard). files : all files, one per shard.
    tensors : by name, in file order. alignment : of the first file; data starts and tensors lie at multiples of it.
    file_bytes : size of each file. modified_ns : when each was last written to, before its header was read.
    incomplete : what is missing, None if nothing is. warnings : worth a line, no more.
    """

    path: Path
    version: int
    alignment: int
    metadata: Metadata
    tensors: Mapping[str, TensorInfo]
    files: tuple[Path, ...]
    file_bytes: tuple[int, ...]
    modified_ns: tuple[int, ...]
    incomplete: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of all files together."""
        return sum(self.file_bytes)

    @property
    def tied_embeddings(self) -> bool:
        """Whether the head has no weight of its own, so that the token embeddings serve as one (A29)."""
        return "token_embd.weight" in self.tensors and "output.weight" not in self.tensors


def open_gguf(path: str | PathLike[str], *, allow_incomplete: bool = False) -> GGUF:
    """Read the header of a model; tensor data is not touched.

    path : a file, a folder that holds one model, or any shard of a split model.
    allow_incomplete : what can be read of a file that is cut short or lacks shards is returned, with
        `GGUF.incomplete` set, instead of an error.
    Raises ModelNotFoundError, GGUFError, MetadataError (naming the key) or TensorError (naming the tensor).
    """
    found = find_model(Path(path), allow_incomplete=allow_incomplete)
    first = found.headers[0]
    return GGUF(
        path=first.path,
        version=first.version,
        alignment=first.alignment,
        metadata=first.metadata,
        tensors={
            info.name: evolve(info, file=index)
            for index, header in enumerate(found.headers)
            for info in header.tensors
        },
        files=tuple(header.path for header in found.headers),
        file_bytes=tuple(header.size for header in found.headers),
        modified_ns=tuple(header.modified_ns for header in found.headers),
        incomplete=found.incomplete,
        warnings=tuple(found.warnings),
    )

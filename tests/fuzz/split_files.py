"""Target: a folder of shards, each with its own idea of the model that it belongs to."""

from __future__ import annotations

from collections.abc import Iterator

from fuzz.target import NUMBERS, Choices, folder
from ramforge_core.errors import RamforgeError
from ramforge_core.gguf import open_gguf
from ramforge_core.inspection import inspect, render
from ramforge_core.plugins import Registry
from ramforge_core.testing.gguf_writer import gguf_bytes

REGISTRY = Registry(())
FILES = (
    "m-00001-of-00002.gguf",
    "m-00002-of-00002.gguf",
    "m-00001-of-00003.gguf",
    "m-00003-of-00003.gguf",
    "m-00000-of-00000.gguf",
    "m-00001-of-00200.gguf",
    "m-00001-of-99999.gguf",
    "other.gguf",
    "mmproj.gguf",
    ".hidden.gguf",
)
KINDS = ("uint16", "int32", "uint64", "int8", "float32", "string", "bool")
ARCHITECTURES = ("llama", "qwen2", None)


def seeds() -> Iterator[bytes]:
    yield bytes([2, 0, 0, 0, 2, 0, 2, 0, 2, 0, 1, 0, 1, 0, 1, 0, 2, 0, 2, 0, 2, 0, 1, 0])
    yield bytes([1, 6, 0, 0, 2, 0, 2, 0, 1, 0, 1, 0])
    yield bytes([3, 2, 0, 0, 3, 0, 3, 0, 2, 0, 3, 0, 2, 0, 3, 0, 3, 0, 2, 0])
    yield bytes([2, 0, 0, 0, 2, 1, 2, 1, 2, 2, 1, 0, 2, 9, 9, 9, 9])


def check(data: bytes) -> None:
    choices = Choices(data)
    with folder() as place:
        names = []
        for _ in range(1 + choices.below(5)):
            names.append(choices.pick(FILES))
            path = place / names[-1]
            path.unlink(missing_ok=True)
            if choices.byte() % 8 == 7:
                path.symlink_to(place / choices.pick(FILES))
            else:
                path.write_bytes(_shard(choices, len(names)))
        for given in (place, *(place / name for name in dict.fromkeys(names))):
            _open(given)


def _open(given) -> None:
    try:
        gguf = open_gguf(given)
    except RamforgeError:
        gguf = None
    if gguf is not None:
        for info in gguf.tensors.values():
            if info.end > gguf.file_bytes[info.file]:
                raise AssertionError(f"tensor {info.name} lies outside its file")
    try:
        render(inspect(given, REGISTRY))
    except RamforgeError as error:
        if not str(error):
            raise AssertionError("an error without words") from error


def _shard(choices: Choices, number: int) -> bytes:
    """A file with the keys of a shard, some of them missing, of odd types or senseless; or damaged."""
    keys: dict[str, object] = {}
    kinds = {}
    for key in ("split.no", "split.count", "split.tensors.count"):
        value, kind = choices.pick((*range(8), *NUMBERS, None)), choices.pick(KINDS)
        if value is not None:
            keys[key], kinds[key] = _as_kind(value, kind)
    architecture = choices.pick(ARCHITECTURES)
    if architecture is not None:
        keys["general.architecture"] = architecture
    tensors = {
        f"t.{number if choices.byte() % 4 else 0}.{i}": (0, (2,), bytes(8)) for i in range(choices.below(4))
    }
    raw = gguf_bytes(keys, tensors, kinds={key: kind for key, kind in kinds.items() if kind})
    cut = choices.byte()
    return raw[: -cut or None] if cut < 64 else raw


def _as_kind(value: int, kind: str) -> tuple[object, str | None]:
    if kind == "string":
        return str(value), None
    if kind == "bool":
        return bool(value), None
    if kind == "float32":
        return float(value), kind
    bits = int(kind.lstrip("uint"))
    return (value % 2**bits, kind) if kind.startswith("u") else (value % 2 ** (bits - 1), kind)

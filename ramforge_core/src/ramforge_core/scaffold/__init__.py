"""A new plugin package from templates: what ``ramforge plugin new`` writes.

The templates are `string.Template` texts in ``templates/<kind>``, with ``templates/common`` for what all kinds share;
``PACKAGE`` and ``IDENTIFIER`` in the name of a file stand for the import name and the key as an identifier.
"""

from __future__ import annotations

import keyword
import re
import secrets
import shutil
import zlib
from collections.abc import Iterator, Mapping
from datetime import date
from importlib import metadata
from pathlib import Path
from string import Template

from ramforge_core import __version__
from ramforge_core.discovery import normalise
from ramforge_core.errors import ParameterError
from ramforge_core.graph import GRAPH_VERSION
from ramforge_core.quant import get_include

KINDS = {
    "quant": "Quant",
    "arch": "Model",
    "tokenizer": "Tokenizer",
    "backend": "Backend",
    "source": "Source",
    "command": "Command",
}
"""What can be written, also the second word of the distribution's name; and how the name of its class ends."""

_TEMPLATES = Path(__file__).with_name("templates")
_NAME = re.compile(r"[a-z][a-z0-9]*(?:[._-][a-z0-9]+)*")
_MAX_NAME = 40
_FIRST_FREE_TYPE = 1_000_000
"""Made-up ggml types begin here, far above those that ggml numbers."""


def new_plugin(kind: str, name: str, into: Path) -> Path:
    """Write a complete package ``ramforge-<kind>-<name>`` into the folder ``into`` and return its folder.

    name : the key of what it provides, as a model file or the command line will say it: ``iq4_nl``, ``command-r``.
    Raises ParameterError for a name that cannot be one and for a folder that exists or cannot be written. The
    folder appears whole or not at all.
    """
    values = _values(kind, name)
    target = into / values["distribution"]
    if target.exists() or target.is_symlink():
        raise ParameterError(f"{target} exists already; give another name, or remove it")
    if not into.is_dir():
        raise ParameterError(f"there is no folder {into}")
    if _is_installed(target.name):
        raise ParameterError(
            f"{target.name} is installed already, and a package of that name would replace it; give another name"
        )
    unfinished = into / f".{target.name}.{secrets.token_hex(4)}.tmp"
    try:
        for path, data in _contents(kind, values):
            file = unfinished / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        unfinished.rename(target)
    except OSError as error:
        raise ParameterError(f"cannot write {target}: {error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return target


def _is_installed(distribution: str) -> bool:
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _values(kind: str, name: str) -> dict[str, str]:
    """What the templates' placeholders stand for. Raises ParameterError."""
    if kind not in KINDS:
        raise ParameterError(f"{kind!r} is no kind of plugin; expected one of {', '.join(KINDS)}")
    identifier = re.sub(r"[.-]", "_", name)
    if not _NAME.fullmatch(name) or len(name) > _MAX_NAME or keyword.iskeyword(identifier):
        raise ParameterError(
            f"{name!r} cannot name a plugin: expected at most {_MAX_NAME} lower-case letters and digits, a letter "
            "first, single '_', '-' or '.' between them, and no word that Python reserves"
        )
    distribution = f"ramforge-{kind}-{normalise(name)}"
    major, minor, *_ = __version__.split(".")
    return {
        "name": name,
        "identifier": identifier,
        "distribution": distribution,
        "package": distribution.replace("-", "_"),
        "class_name": "".join(word.capitalize() for word in identifier.split("_")) + KINDS[kind],
        "upper": name.upper(),
        "bounds": f">={major}.{minor},<{major}.{int(minor) + 1}",
        "graph_version": str(GRAPH_VERSION),
        "ggml_type": str(_ggml_type(name)),
        "year": str(date.today().year),
    }


def _ggml_type(name: str) -> int:
    """ggml's own number of this format, or one that two plugins are unlikely to share."""
    from ramforge_core.gguf import GGML_TYPES

    known = next((number for number, known in GGML_TYPES.items() if known.name == name), None)
    return _FIRST_FREE_TYPE + zlib.crc32(name.encode()) % 10**9 if known is None else known


def _contents(kind: str, values: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """Paths below the new folder, and what is in each file."""
    for folder in (_TEMPLATES / "common", _TEMPLATES / kind):
        for file in sorted(f for f in folder.rglob("*.in") if f.is_file()):
            place = file.relative_to(folder).as_posix().removesuffix(".in")
            place = place.replace("PACKAGE", values["package"]).replace("IDENTIFIER", values["identifier"])
            yield place, Template(file.read_text(encoding="utf-8")).substitute(values).encode()
    if kind == "quant":
        for header in sorted(Path(get_include()).glob("ramforge_*.h")):
            yield f"src/{values['package']}/{header.name}", header.read_bytes()

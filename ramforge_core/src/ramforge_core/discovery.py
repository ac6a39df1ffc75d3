"""Which plugins are installed, read from the metadata of distributions. Imports none of them, and little else.

Every command pays for this module, ``--help`` too: so it needs neither pluggy nor attrs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import metadata
from typing import Literal, NamedTuple

GROUPS = {
    "architectures": "ramforge.architectures",
    "quants": "ramforge.quants",
    "tokenizers": "ramforge.tokenizers",
    "backends": "ramforge.backends",
    "sources": "ramforge.sources",
    "commands": "ramforge.commands",
}
"""Kind of plugin to entry-point group."""

Phase = Literal["find", "version", "import", "register", "call", "contract", "abi"]


class PluginEntry(NamedTuple):
    """One entry point: a key and the module (or ``module:object``) that says it provides it."""

    kind: str
    key: str
    value: str
    distribution: str
    version: str
    summary: str = ""

    @property
    def provider(self) -> str:
        """Distribution and version, for messages."""
        return f"{self.distribution} {self.version}"


class PluginFailure(NamedTuple):
    """Why one entry point is not in use. ``name`` and ``kind`` are empty if its metadata could not be read.

    phase : ``find`` its metadata, ``version`` (it is made for another ramforge-core), ``import`` the module,
        ``register`` its hooks (names, signatures), ``call`` the hook of its kind, ``contract`` (the object under this
        key is missing or is not what its kind must be), ``abi`` (kernels of another version).
    """

    name: str
    kind: str
    distribution: str
    version: str
    phase: Phase
    error: BaseException

    @property
    def why(self) -> str:
        """Phase and error in one line."""
        return f"{self.phase}: {one_line(self.error)}"


def one_line(error: BaseException) -> str:
    """Type and text of an error on one line; the type alone when it says nothing, or fails to."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # a foreign __str__ may do anything
        text = ""
    return f"{type(error).__name__}: {text[:400]}" if text else type(error).__name__


def normalise(distribution: str) -> str:
    """The name of a distribution as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def find_entries() -> tuple[list[PluginEntry], list[PluginFailure]]:
    """Entry points of all six groups on ``sys.path``, and distributions whose metadata cannot be read.

    A distribution that is found twice (editable, and the folder it was built in) counts once: the first.
    """
    kinds = {group: kind for kind, group in GROUPS.items()}
    found: dict[str, list[PluginEntry]] = {}
    failures = []
    for distribution in metadata.distributions():
        name, version = "", ""
        try:
            # Most distributions are no plugins: look at the text before anything is parsed.
            if "ramforge." not in (distribution.read_text("entry_points.txt") or ""):
                continue
            name, version, summary = _identity(distribution)
            if normalise(name) in found:
                continue
            entries = [
                PluginEntry(kinds[e.group], e.name, e.value, name, version, summary)
                for e in distribution.entry_points
                if e.group in kinds
            ]
        except Exception as error:  # damaged metadata of one must not hide the others
            name = name or f"(in {distribution.locate_file('')})"
            failures.append(PluginFailure("", "", name, version, "find", error))
        else:
            found[normalise(name)] = list(dict.fromkeys(entries))
    # Folders list their files in any order; messages and choices must not depend on it.
    in_order = sorted(
        (e for entries in found.values() for e in entries), key=lambda e: (e.kind, e.key, e.provider)
    )
    return in_order, failures


def _identity(distribution: metadata.Distribution) -> tuple[str, str, str]:
    """Name, version and summary, from the head of the metadata: `Distribution.metadata` would parse all of it."""
    text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    head = {name: value.strip() for name, _, value in lines}
    if not head.get("Name"):
        raise ValueError("its metadata has no Name")
    return head["Name"], head.get("Version", ""), head.get("Summary", "")


def allow_list(environ: Mapping[str, str]) -> frozenset[str] | None:
    """Normalised distributions that ``RAMFORGE_PLUGINS`` allows; None if it is unset, which allows all.

    Separated by commas or blanks. ``ramforge`` stands for all that the distribution `ramforge` requires, and
    so does an empty value.
    """
    text = environ.get("RAMFORGE_PLUGINS")
    if text is None:
        return None
    names = {normalise(n) for n in re.split(r"[,\s]+", text) if n}
    if not names or "ramforge" in names:
        names |= first_party()
    return frozenset(names)


def first_party() -> set[str]:
    """Normalised names of what the distribution `ramforge` requires; empty if it is not installed."""
    from packaging.requirements import Requirement

    try:
        requirements = [Requirement(r) for r in metadata.requires("ramforge") or ()]
    except metadata.PackageNotFoundError:
        return set()
    wanted = (r for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""}))
    return {normalise(r.name) for r in wanted}


def is_strict(environ: Mapping[str, str]) -> bool:
    """Whether ``RAMFORGE_STRICT_PLUGINS`` asks to stop at the first failure."""
    return environ.get("RAMFORGE_STRICT_PLUGINS", "") not in ("", "0")

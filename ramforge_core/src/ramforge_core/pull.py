"""Model names to files: what is on this machine, what the sources know, and fetching it.

Only `fetch` uses the network. What a name means is the sources' business (``ramforge.sources``); this module asks
them in the order of their keys and looks after the cache directory.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from attrs import frozen

from ramforge_core.errors import DownloadError, ModelNotFoundError, ParameterError, PluginError, RamforgeError

if TYPE_CHECKING:
    from ramforge_core.plugins import Registry
    from ramforge_core.sources import ModelSource, Progress

DEFAULT_MODEL = "smollm2"
"""The model that the commands use when none is named."""


@frozen
class KnownModel:
    """A name that a source knows; ``path`` is None while the model is not on this machine."""

    name: str
    source: str
    path: Path | None


def cache_dir() -> Path:
    """Where fetched models are kept: ``RAMFORGE_CACHE``, else the platform's own place for caches."""
    if chosen := os.environ.get("RAMFORGE_CACHE"):
        return Path(chosen).expanduser().absolute()
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "ramforge" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "ramforge"
    xdg = Path(
        os.environ.get("XDG_CACHE_HOME", "")
    )  # a relative path there is invalid, says the XDG specification
    return (xdg if xdg.is_absolute() else Path.home() / ".cache") / "ramforge"


def resolve(name: str | os.PathLike[str], registry: Registry | None = None) -> Path:
    """The file or folder that ``name`` stands for: an existing path, else a model that is on this machine.

    Never uses the network. Raises ModelNotFoundError, which says how to get the model where that is known.
    """
    path = _existing_path(name)
    if path is not None:
        return path
    text = os.fspath(name)
    source = _claiming(text, registry)
    found = _on_disk(source, text)
    if found is None:
        raise ModelNotFoundError(
            f"the model {text} is not on this machine; fetch it with: ramforge pull {text}"
        )
    return found


def fetch(
    name: str | os.PathLike[str], progress: Progress | None = None, registry: Registry | None = None
) -> Path:
    """Like `resolve`, but a model that is not on this machine is fetched into the cache directory.

    progress : called now and then with the bytes so far and the bytes in all (None if unknown).
    Raises DownloadError if it cannot be fetched, ModelNotFoundError if no source knows the name.
    """
    path = _existing_path(name)
    if path is not None:
        return path
    text = os.fspath(name)
    source = _claiming(text, registry)
    found = _on_disk(source, text)
    if found is not None:
        return found
    target = _cached_path(source, text)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        source.fetch(text, target, progress or (lambda done, total: None))
    except RamforgeError:
        raise
    except OSError as error:
        where = error.filename or target.parent
        raise DownloadError(
            f"cannot store the model {text}: {error.strerror or error} ({where}); "
            "RAMFORGE_CACHE chooses another folder"
        ) from error
    if not target.is_file():
        raise PluginError(f"the model source {source.key!r} reported success, but {target} is not there")
    return target


def catalogue(registry: Registry | None = None) -> list[KnownModel]:
    """Every name that a source knows by heart, and where the model is if it is on this machine."""
    return [
        KnownModel(name, source.key, _on_disk(source, name))
        for source in _sources(registry)
        for name in source.names
    ]


def name_forms(registry: Registry | None = None) -> list[str]:
    """How names look that no list can hold, such as ``hf://owner/repo/file.gguf``."""
    return [source.name_form for source in _sources(registry) if source.name_form]


def _sources(registry: Registry | None) -> list[ModelSource]:
    """The sources that work; a broken one was not asked for by name, so it costs a warning."""
    if registry is None:
        from ramforge_core.plugins import Registry

        registry = Registry.discover()
    found = registry.sources()
    return [found[key] for key in sorted(found)]


def _claiming(name: str, registry: Registry | None) -> ModelSource:
    sources = _sources(registry)
    for source in sources:
        if source.claims(name):
            return source
    if PurePath(name).name != name or name.lower().endswith(".gguf"):
        raise ModelNotFoundError(f"there is no file or folder {name!r}")
    known = [n for s in sources for n in (*s.names, *([s.name_form] if s.name_form else []))]
    raise ModelNotFoundError(
        f"unknown model {name!r}: expected a file, a folder or a name that a model source knows "
        f"({', '.join(known) or 'no model source is installed; try the package ramforge-sources'})"
    )


def _on_disk(source: ModelSource, name: str) -> Path | None:
    found = source.find(name)
    if found is None:
        cached = _cached_path(source, name)
        found = cached if cached.is_file() else None
    return found


def _cached_path(source: ModelSource, name: str) -> Path:
    relative = PurePath(source.filename(name))
    if relative.is_absolute() or not relative.parts or ".." in relative.parts:
        raise PluginError(
            f"the model source {source.key!r} wants to keep {name} at {relative}, outside the cache"
        )
    return cache_dir() / "models" / relative


def _existing_path(name: str | os.PathLike[str]) -> Path | None:
    """``name`` as a path, if something readable is there."""
    text = os.fspath(name)
    if not text:
        raise ParameterError("the model name is empty: expected a file, a folder or a name such as smollm2")
    if "\0" in text:
        raise ParameterError(f"the model name {text!r} holds a NUL character")
    path = Path(text).expanduser()
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise ModelNotFoundError(f"{text} is a symbolic link to nothing ({os.readlink(path)})") from None
        if not isinstance(name, str):
            raise ModelNotFoundError(f"there is no file or folder {text!r}") from None
        return None
    except OSError as error:
        raise ModelNotFoundError(f"cannot look at {text!r}: {error.strerror or error}") from error
    # Opening a pipe would wait for ever, and neither pipes nor devices can be read from the middle.
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise ModelNotFoundError(f"{text} is neither a file nor a folder")
    if not os.access(path, os.R_OK):
        raise ModelNotFoundError(f"{text} may not be read: permission denied")
    return path

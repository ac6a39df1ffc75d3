"""Models on Hugging Face, or on a hub that speaks the same protocol: ``hf://owner/repo/path/file.gguf``."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote, urlsplit

from attrs import frozen

from ramforge_core.errors import DownloadError, ParameterError
from ramforge_core.sources import ModelSource, Progress
from ramforge_sources.progress import shifted

_SCHEME = "hf://"
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_SHARD = re.compile(r"(?P<stem>.*)-(?P<no>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)
_UNSAFE = re.compile(r'[\x00-\x1f\x7f\\:*?"<>|]')
"""Characters that are no part of a file name everywhere, or that mean something else in one."""


@frozen
class HubFile:
    """A file of a repository's main branch; ``path`` is relative to the repository."""

    owner: str
    repo: str
    path: str

    @classmethod
    def parse(cls, name: str) -> HubFile:
        """Raises ParameterError if ``name`` does not say one GGUF file of one repository."""
        parts = name.removeprefix(_SCHEME).split("/")
        sound = len(parts) >= 3 and all(_NAME.fullmatch(p) for p in parts[:2])
        sound = sound and not any(p in ("", ".", "..") or _UNSAFE.search(p) for p in parts)
        if not sound or not parts[-1].lower().endswith(".gguf"):
            raise ParameterError(f"{name!r} names no model file: expected {HuggingFaceSource.name_form}")
        return cls(parts[0], parts[1], "/".join(parts[2:]))

    def shards(self) -> list[HubFile]:
        """All files of a split model, whichever of them this is; itself if it is not split."""
        match = _SHARD.fullmatch(self.path)
        if match is None or not 1 <= int(match["no"]) <= int(match["count"]):
            return [self]
        paths = (
            f"{match['stem']}-{i:05d}-of-{match['count']}.gguf" for i in range(1, int(match["count"]) + 1)
        )
        return [HubFile(self.owner, self.repo, path) for path in paths]

    def url(self, endpoint: str) -> str:
        return f"{endpoint}/{self.owner}/{self.repo}/resolve/main/{quote(self.path)}"

    def __str__(self) -> str:
        return f"{_SCHEME}{self.owner}/{self.repo}/{self.path}"


class HuggingFaceSource(ModelSource):
    """Any public file, and private ones with ``HF_TOKEN``."""

    key: ClassVar[str] = "hf"
    name_form: ClassVar[str] = "hf://owner/repo/path/file.gguf"

    @property
    def names(self) -> Sequence[str]:
        return ()

    def claims(self, name: str) -> bool:
        return name.startswith(_SCHEME)

    def find(self, name: str) -> Path | None:
        """The file in the cache of Hugging Face's own tools: the newest main branch that they fetched."""
        shards = HubFile.parse(name).shards()
        repo = _hub_cache() / f"models--{shards[0].owner}--{shards[0].repo}"
        try:
            commit = (repo / "refs" / "main").read_text("ascii").strip()
        except (OSError, UnicodeDecodeError):
            return None
        if not re.fullmatch(r"[0-9a-f]{40}", commit):
            return None
        paths = [repo / "snapshots" / commit / shard.path for shard in shards]
        return paths[0] if all(path.is_file() for path in paths) else None

    def filename(self, name: str) -> str:
        """That of the first shard, which is the last to arrive: where it is, all are."""
        first = HubFile.parse(name).shards()[0]
        return f"hf/{first.owner}/{first.repo}/{first.path}"

    def fetch(self, name: str, target: Path, progress: Progress) -> None:
        from ramforge_sources.http import Hub  # urllib costs 30 ms that `run` need not pay

        endpoint = _endpoint()
        hub = Hub(endpoint, os.environ.get("HF_TOKEN") or None)
        shards = HubFile.parse(name).shards()
        # Asking for all of them first tells of a missing shard before hours of download, and knows the total.
        remotes = [hub.look_up(shard.url(endpoint), str(shard)) for shard in shards]
        sizes = [remote.n_bytes for remote in remotes]
        total = None if None in sizes else sum(size for size in sizes if size is not None)
        done = 0
        for shard, remote in reversed(list(zip(shards, remotes, strict=True))):
            path = target.with_name(shard.path.rpartition("/")[2])
            if not (path.is_file() and path.stat().st_size == remote.n_bytes):
                hub.download(remote, path, shifted(progress, done, total))
            done += path.stat().st_size
            progress(done, total)


def _endpoint() -> str:
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    if urlsplit(endpoint).scheme not in ("http", "https"):
        raise DownloadError(f"HF_ENDPOINT is {endpoint!r}, expected an address that begins with https://")
    return endpoint.rstrip("/")


def _hub_cache() -> Path:
    """Where Hugging Face's own tools keep files (huggingface_hub, constants.py)."""
    if chosen := os.environ.get("HF_HUB_CACHE"):
        return Path(chosen).expanduser()
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface" / "hub"

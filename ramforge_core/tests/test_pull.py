"""Model names to paths, and writing files whole."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ramforge_core import pull
from ramforge_core.errors import DownloadError, ModelNotFoundError, ParameterError, PluginError
from ramforge_core.files import atomic_write
from ramforge_core.sources import ModelSource


class Shelf(ModelSource):
    """A source in memory; ``content`` is what it has, an exception what goes wrong."""

    key = "shelf"
    name_form = "shelf:NAME"

    def __init__(self, found: Path | None = None, filename: str = "shelf/model.gguf") -> None:
        self.content: dict[str, bytes | Exception | None] = {"tiny": b"GGUF"}
        self._found, self._filename = found, filename

    @property
    def names(self):
        return tuple(self.content)

    def claims(self, name):
        return name in self.content

    def find(self, name):
        return self._found

    def filename(self, name):
        return self._filename

    def fetch(self, name, target, progress):
        content = self.content[name]
        if isinstance(content, Exception):
            raise content
        if content is not None:
            target.write_bytes(content)
        progress(4, 4)


class Registry:
    def __init__(self, *sources):
        self._sources = {source.key: source for source in sources}

    def sources(self):
        return self._sources


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RAMFORGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_path_comes_before_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    registry = Registry(Shelf(Path("elsewhere")))
    assert pull.resolve("tiny", registry) == Path("tiny")
    (tmp_path / "tiny").rmdir()
    assert pull.resolve("tiny", registry) == Path("elsewhere")


def test_what_is_not_here_is_not_fetched_by_resolve():
    with pytest.raises(ModelNotFoundError, match="ramforge pull tiny"):
        pull.resolve("tiny", Registry(Shelf()))


def test_fetch_keeps_the_model_where_resolve_finds_it(cache):
    registry, seen = Registry(Shelf()), []
    path = pull.fetch("tiny", lambda done, total: seen.append((done, total)), registry)
    assert path == cache / "models" / "shelf" / "model.gguf"
    assert seen == [(4, 4)]
    assert pull.resolve("tiny", registry) == path
    assert pull.fetch("tiny", None, registry) == path
    assert [m.path for m in pull.catalogue(registry)] == [path]
    assert pull.name_forms(registry) == ["shelf:NAME"]


@pytest.mark.parametrize("name", ["no/such/dir", "model.gguf", "./tiny"])
def test_what_looks_like_a_path_is_called_one(name):
    with pytest.raises(ModelNotFoundError, match="no file or folder"):
        pull.resolve(name, Registry(Shelf()))


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ModelNotFoundError, match=r"tiny, shelf:NAME"):
        pull.resolve("tinny", Registry(Shelf()))
    with pytest.raises(ModelNotFoundError, match="ramforge-sources"):
        pull.resolve("tinny", Registry())


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_names_that_are_none(name):
    with pytest.raises(ParameterError):
        pull.resolve(name, Registry())


def test_a_path_object_is_never_a_name():
    with pytest.raises(ModelNotFoundError, match="no file or folder"):
        pull.resolve(Path("tiny"), Registry(Shelf()))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs POSIX")
def test_pipes_and_broken_links_are_no_models(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(ModelNotFoundError, match="neither a file nor a folder"):
        pull.resolve(tmp_path / "pipe", Registry())
    with pytest.raises(ModelNotFoundError, match=r"link to nothing \(nowhere\)"):
        pull.resolve(str(tmp_path / "link"), Registry())


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    (tmp_path / "x.gguf").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ModelNotFoundError, match="permission denied"):
        pull.resolve(tmp_path / "x.gguf", Registry())


@pytest.mark.parametrize("filename", ["/etc/model.gguf", "../model.gguf", "a/../../b", ""])
def test_a_source_cannot_leave_the_cache(filename):
    with pytest.raises(PluginError, match="outside the cache"):
        pull.fetch("tiny", None, Registry(Shelf(filename=filename)))


def test_faults_of_a_fetch():
    shelf = Shelf()
    shelf.content = {
        "full": OSError(28, "No space left on device"),
        "liar": None,
        "gone": DownloadError("gone"),
    }
    with pytest.raises(DownloadError, match="No space left on device"):
        pull.fetch("full", None, Registry(shelf))
    with pytest.raises(PluginError, match="reported success"):
        pull.fetch("liar", None, Registry(shelf))
    with pytest.raises(DownloadError, match=r"^gone$"):
        pull.fetch("gone", None, Registry(shelf))


@pytest.mark.parametrize(
    ("platform", "environment", "expected"),
    [
        ("linux", {"RAMFORGE_CACHE": "/own"}, "/own"),
        ("linux", {"XDG_CACHE_HOME": "/xdg"}, "/xdg/ramforge"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/ramforge"),
        ("linux", {}, "/home/me/.cache/ramforge"),
        ("darwin", {"XDG_CACHE_HOME": "/xdg"}, "/home/me/Library/Caches/ramforge"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/ramforge/Cache"),
        ("win32", {}, "/home/me/AppData/Local/ramforge/Cache"),
    ],
)
def test_where_the_cache_is(monkeypatch, platform, environment, expected):
    for key in ("RAMFORGE_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(key, raising=False)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setattr(sys, "platform", platform)
    assert pull.cache_dir() == Path(expected)


# ------------------------------------------------------------------ files


def test_a_file_appears_when_it_is_complete(tmp_path):
    target = tmp_path / "out.json"
    target.write_bytes(b"old")
    with atomic_write(target) as out:
        out.write(b"new")
        assert target.read_bytes() == b"old"
    assert target.read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]


def test_a_failed_write_leaves_what_was_there(tmp_path):
    target = tmp_path / "out.json"
    target.write_bytes(b"old")
    try:
        with atomic_write(target) as out:
            out.write(b"half")
            raise KeyboardInterrupt  # noqa: TRY301 - this is what is tested
    except KeyboardInterrupt:
        pass
    assert target.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]


def test_a_link_stays_and_its_file_is_replaced(tmp_path):
    (tmp_path / "link").symlink_to("real")
    with atomic_write(tmp_path / "link") as out:
        out.write(b"x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"x"


def test_a_device_is_written_not_replaced():
    with atomic_write(Path(os.devnull)) as out:
        out.write(b"x")
    assert not Path(os.devnull).is_file()

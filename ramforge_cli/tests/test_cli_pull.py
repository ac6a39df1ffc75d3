"""``ramforge pull``, with a source of the test's own."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from ramforge_cli import console
from ramforge_core.testing.fake_install import fake_install

SOURCE = """
from ramforge_core.errors import DownloadError
from ramforge_core.hookspecs import hookimpl
from ramforge_core.sources import ModelSource

class Shelf(ModelSource):
    key = "shelf"
    name_form = "shelf:NAME"
    names = ("tiny-model",)
    def claims(self, name): return name in self.names or name.startswith("shelf:")
    def find(self, name): return None
    def filename(self, name): return "shelf/" + name.removeprefix("shelf:") + ".gguf"
    def fetch(self, name, target, progress):
        progress(0, 100)
        if name == "shelf:gone":
            raise DownloadError("the shelf is empty")
        progress(50, 100)
        target.write_bytes(b"GGUF")
        progress(100, 100)

@hookimpl
def ramforge_model_sources():
    return [Shelf()]
"""


@pytest.fixture(autouse=True)
def _shelf(tmp_path, monkeypatch):
    fake_install(
        tmp_path, "ramforge-shelf", {"ramforge.sources": {"shelf": "shelf_module"}}, {"shelf_module": SOURCE}
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("shelf_module", None)


def test_a_model_is_fetched_once_and_its_path_printed(ramforge, monkeypatch, tmp_path):
    monkeypatch.setenv("RAMFORGE_CACHE", str(tmp_path / "here"))
    first = ramforge("pull", "tiny-model")
    path = tmp_path / "here" / "models" / "shelf" / "tiny-model.gguf"
    assert first == (0, f"{path}\n", "")
    path.write_bytes(b"GGUF, the same")
    assert ramforge("pull", "tiny-model") == first
    assert path.read_bytes() == b"GGUF, the same"


def test_a_path_is_its_own_answer(ramforge, tmp_path):
    file = tmp_path / "m.gguf"
    file.touch()
    assert ramforge("pull", file) == (0, f"{file}\n", "")


def test_json(ramforge):
    assert json.loads(ramforge("pull", "shelf:x", "--json").out)["path"].endswith("shelf/x.gguf")
    listed = json.loads(ramforge("pull", "--list", "--json").out)
    assert {"name": "tiny-model", "source": "shelf", "path": None} in listed["models"]
    assert "shelf:NAME" in listed["forms"]


def test_the_list_says_where_models_are(ramforge):
    assert "tiny-model\tnot on this machine\n" in ramforge("pull", "--list").out
    path = ramforge("pull", "tiny-model").out.strip()
    out = ramforge("pull", "--list").out
    assert f"tiny-model\t{path}\n" in out
    assert "\nshelf:NAME\n" in out


def test_a_failed_download(ramforge):
    assert ramforge("pull", "shelf:gone") == (5, "", "ramforge: error: the shelf is empty\n")


def test_an_unknown_name_says_which_are_known(ramforge):
    outcome = ramforge("pull", "nonesuch")
    assert outcome.code == 5
    assert "tiny-model" in outcome.err
    assert "shelf:NAME" in outcome.err


def test_no_other_command_fetches(ramforge):
    outcome = ramforge("inspect", "tiny-model")
    assert outcome.code == 5
    assert outcome.err.endswith("fetch it with: ramforge pull tiny-model\n")


def test_a_cache_that_cannot_be_written(ramforge, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("RAMFORGE_CACHE", str(tmp_path / "file"))
    outcome = ramforge("pull", "tiny-model")
    assert outcome.code == 5
    assert "RAMFORGE_CACHE" in outcome.err


# ------------------------------------------------------------------ progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    return now


def test_progress_is_drawn_on_a_terminal_and_gone_at_the_end(monkeypatch, clock):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with console.Progress("fetching x") as progress:
        progress(0, 10 << 20)
        clock[0] = 2.0
        progress(5 << 20, 10 << 20)
        shown = sys.stderr.getvalue()
    assert shown == "\rfetching x: 5.00 MiB of 10.0 MiB, 50%, 2.50 MiB/s, 2 s left"
    assert sys.stderr.getvalue() == shown + "\r" + " " * (len(shown) - 1) + "\r"


def test_a_resumed_part_does_not_count_as_speed(monkeypatch, clock):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with console.Progress("fetching x") as progress:
        progress(8 << 20, None)
        clock[0] = 1.0
        progress(9 << 20, None)
    assert "9.00 MiB, 1.00 MiB/s" in sys.stderr.getvalue()


def test_a_warning_takes_the_place_of_the_progress(monkeypatch, clock):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with console.Progress("x") as progress:
        progress(0, 10)
        clock[0] = 1.0
        progress(5, 10)
        console.say("ramforge: warning: something")
    lines = sys.stderr.getvalue().split("\r")
    assert lines[-1] == "ramforge: warning: something\n"
    assert lines[-2].strip() == ""


def test_no_progress_without_a_terminal(monkeypatch, clock):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with console.Progress("x") as progress:
        progress(0, 10)
        clock[0] = 9.0
        progress(5, 10)
    assert sys.stderr.getvalue() == ""


def test_what_is_quick_is_not_drawn(monkeypatch, clock):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with console.Progress("x") as progress:
        progress(0, 10)
        clock[0] = 0.2
        progress(10, 10)
    assert sys.stderr.getvalue() == ""


def test_smollm2_is_found_where_its_package_is(ramforge, smollm2):
    outcome = ramforge("pull", smollm2)
    assert outcome.code == 0
    assert Path(outcome.out.strip()).name == "SmolLM2-135M-Instruct.Q4_1.gguf"

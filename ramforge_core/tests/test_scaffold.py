"""What ``ramforge plugin new`` writes, up to the point where it is built; ``tests/test_third_party.py`` builds it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from ramforge_core import __version__, scaffold
from ramforge_core.discovery import GROUPS
from ramforge_core.errors import ParameterError
from ramforge_core.quant import get_include
from ramforge_core.scaffold import KINDS, new_plugin


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["demo", "command-r", "iq4_nl", "path", "model", "none", "backend"])
def test_a_package_is_written(tmp_path, kind, name):
    folder = new_plugin(kind, name, tmp_path)
    assert folder == tmp_path / f"ramforge-{kind}-{name.replace('_', '-')}"
    package = folder.name.replace("-", "_")
    for file in ("pyproject.toml", "README.md", "LICENSE", ".gitignore", f"src/{package}/py.typed"):
        assert (folder / file).is_file(), file
    assert not [p for p in folder.rglob("*") if p.name.endswith(".in") and p.name != "MANIFEST.in"]
    manifest = (folder / "pyproject.toml").read_text()
    group, key, module = re.search(r'entry-points\."(.+)"\]\n"(.+)" = "(.+)"', manifest).groups()
    assert group in GROUPS.values()
    assert (key, module) == (name, package)
    major, minor, _ = __version__.split(".")
    assert f"ramforge-core>={major}.{minor},<{major}.{int(minor) + 1}" in manifest
    for file in folder.rglob("*.py"):
        text = file.read_text()
        tree = ast.parse(text, str(file))
        assert "$" not in text
        imported = {
            a.asname or a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names
        }
        defined = {n.name for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
        assert not imported & defined, file
    assert list(tmp_path.iterdir()) == [folder]


def test_a_quant_package_has_the_headers_and_the_number_that_ggml_gave(tmp_path):
    known = new_plugin("quant", "iq4_nl", tmp_path)
    assert "ggml_type = 20\n" in (known / "src/ramforge_quant_iq4_nl/iq4_nl.py").read_text()
    own = new_plugin("quant", "demo", tmp_path)
    number = int(re.search(r"ggml_type = (\d+)", (own / "src/ramforge_quant_demo/demo.py").read_text())[1])
    assert 1_000_000 <= number < 2**31
    for header in Path(get_include()).glob("*.h"):
        assert (own / "src/ramforge_quant_demo" / header.name).read_bytes() == header.read_bytes()


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Demo",
        "4bit",
        "_demo",
        "demo_",
        "de mo",
        "../demo",
        "a--b",
        "a._b",
        "class",
        "ünder",
        "a" * 41,
        "a\n",
        "-x",
    ],
)
def test_names_that_cannot_be_one_are_refused(tmp_path, name):
    with pytest.raises(ParameterError, match="cannot name a plugin"):
        new_plugin("quant", name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_unknown_kinds_are_refused(tmp_path):
    with pytest.raises(
        ParameterError, match="expected one of quant, arch, tokenizer, backend, source, command"
    ):
        new_plugin("quantum", "demo", tmp_path)


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch, lambda p: p.symlink_to("nowhere")])
def test_what_exists_is_left_alone(tmp_path, make):
    make(tmp_path / "ramforge-quant-demo")
    before = list(tmp_path.rglob("*"))
    with pytest.raises(ParameterError, match="exists already"):
        new_plugin("quant", "demo", tmp_path)
    assert list(tmp_path.rglob("*")) == before


def test_a_missing_or_closed_folder_is_refused(tmp_path):
    with pytest.raises(ParameterError, match="there is no folder"):
        new_plugin("quant", "demo", tmp_path / "nowhere")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_nothing_is_left_of_a_package_that_could_not_be_finished(tmp_path, monkeypatch, error):
    contents = scaffold._contents

    def fails(kind, values):
        for i, item in enumerate(contents(kind, values)):
            if i == 3:
                raise error
            yield item

    monkeypatch.setattr(scaffold, "_contents", fails)
    with pytest.raises((ParameterError, KeyboardInterrupt)):
        new_plugin("quant", "demo", tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_name_of_an_installed_distribution_is_refused(tmp_path, monkeypatch):
    """It would replace that distribution without a word when it is installed."""
    monkeypatch.syspath_prepend(tmp_path)
    info = tmp_path / "ramforge_quant_taken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ramforge-quant-taken\nVersion: 1.0\n")
    into = tmp_path / "into"
    into.mkdir()
    with pytest.raises(ParameterError, match="ramforge-quant-taken is installed already"):
        new_plugin("quant", "taken", into)
    assert list(into.iterdir()) == []

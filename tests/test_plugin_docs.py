"""docs/plugins.md and docs/conformance.md say what is so: the examples work, every hook and clause is there."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from plugin_guide import COPIES, DOCS, GUIDE, MODULES, PAGES, example_file, install_examples, manifests

import ramforge_core
from ramforge_core import hookspecs, testing
from ramforge_core.discovery import GROUPS
from ramforge_core.errors import DownloadError
from ramforge_core.plugin_host import HOOKS

HOOK_NAMES = [name for name in vars(hookspecs) if name.startswith("ramforge_")]


@pytest.fixture
def examples(site):
    """All examples of the guide, installed."""
    install_examples(site)
    return site


def test_every_hook_is_documented():
    assert sorted(HOOKS.values()) == sorted(HOOK_NAMES)
    assert sorted(HOOKS) == sorted(GROUPS)
    headings = re.findall(r"^# .*`(ramforge_\w+)`$", GUIDE, re.MULTILINE)
    assert sorted(headings) == sorted(HOOK_NAMES)
    for kind, group in GROUPS.items():
        assert re.search(rf"^\| `{group}` \|.*\| `{HOOKS[kind]}` \|", GUIDE, re.MULTILINE)
    for name in HOOK_NAMES:
        assert inspect.getdoc(getattr(hookspecs, name))


def test_every_hook_has_a_test():
    source = (Path(__file__).parent / "test_plugin_registry.py").read_text(encoding="utf-8")
    tests = {n.name for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef)}
    assert {f"test_hook_{name}" for name in HOOK_NAMES} <= tests


def test_examples_cover_the_kinds_and_are_bounded():
    kinds = {group for _, group, _, _ in manifests()}
    assert kinds == set(GROUPS.values())
    for block in re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL):
        assert re.search(r'"ramforge-\w+>=[\d.]+,<[\d.]+"', block)
    for page in PAGES[1:]:
        assert f"](plugins/{page.name})" in PAGES[0].read_text(encoding="utf-8")


def test_files_that_a_page_shows_are_the_files():
    assert len(COPIES) == 3
    for path, text in COPIES.items():
        assert (DOCS.parent / path).read_text(encoding="utf-8") == text, path


def test_quant_example_decodes_as_gguf_does(examples):
    quants = pytest.importorskip("gguf.quants")
    from gguf import GGMLQuantizationType

    blocks = np.random.default_rng(1).integers(0, 256, (50, 66), np.uint8)
    blocks[:, 64:] = np.linspace(-2, 2, 50, dtype="<f2").view(np.uint8).reshape(50, 2)
    quant = examples.registry().quant_format("tq2_0")
    np.testing.assert_array_equal(quant.decode(blocks), quants.dequantize(blocks, GGMLQuantizationType.TQ2_0))


@pytest.mark.skipif(
    not importlib.util.find_spec("ramforge_backend_numpy"), reason="needs ramforge-backend-numpy"
)
def test_examples_run_a_model_together(examples, tmp_path):
    registry = examples.registry()
    path = example_file(tmp_path / "example.gguf", registry.architecture("command-r"))
    with ramforge_core.open(path, backend="timed", registry=registry) as model:
        ids = model.tokenize("hello<end>", parse_special=True)
        assert ids == [*b"hello", 256]
        logits = model.logits(ids)
    assert logits.shape == (6, 257)
    assert np.isfinite(logits).all()
    assert np.ptp(logits[0] - logits[1]) > 0


def test_command_example(examples):
    click_testing = pytest.importorskip("click.testing")
    result = click_testing.CliRunner().invoke(examples.registry().commands["hello"], ["there"])
    assert (result.output, result.exit_code) == ("Hello, there!\n", 0)


def test_source_example_fetches_whole_files(examples, tmp_path, monkeypatch):
    source = examples.registry().source("shelf")
    monkeypatch.setenv("RAMFORGE_SHELF", str(tmp_path))
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    assert source.claims("shelf://a.gguf")
    assert not source.claims("shelf://../a.gguf")
    source.fetch("shelf://a.gguf", tmp_path / "copy", lambda done, size: None)
    assert (tmp_path / "copy").read_bytes() == b"GGUF"
    with pytest.raises(DownloadError, match=r"shelf://b\.gguf"):
        source.fetch("shelf://b.gguf", tmp_path / "none", lambda done, size: None)
    assert not (tmp_path / "none").exists()


SUITES = sorted(name for name in MODULES if name.startswith("test_"))


def test_there_is_a_suite_on_every_page_that_has_one():
    assert {name.split("_")[1] for name in SUITES} == {"arch", "backend", "quant", "tokenizer"}


@pytest.mark.parametrize("suite", SUITES)
def test_examples_pass_the_conformance_suites(examples, tmp_path, suite):
    if suite == "test_backend_timed" and not importlib.util.find_spec("ramforge_backend_numpy"):
        pytest.skip("the example needs ramforge-backend-numpy")
    test = tmp_path / f"{suite}.py"
    test.write_text(MODULES[suite], encoding="utf-8")
    path = os.pathsep.join([str(examples.folder), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    # The ops are NumPy's, whose own tests go through all clauses; the example is about steps and programs.
    some = (
        ["-k", "says or steps or wanted or cut or stop or progress or bind or experts"]
        if "timed" in suite
        else []
    )
    options = ["-q", "-W", "error", "-p", "no:cacheprovider", "--rootdir", tmp_path, *some]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, test],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
        timeout=120,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(r"\d+ passed", run.stdout)


def test_the_testing_package_is_lazy_and_whole():
    for name in testing.__all__:
        assert getattr(testing, name).__name__ == name
    with pytest.raises(AttributeError, match="Quant"):
        testing.Quant  # noqa: B018
    code = "import sys, ramforge_core.testing.plugin; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-W", "error", "-c", code], check=False).returncode == 0


def suite_clauses():
    """Clause to first paragraph of its docstring, read from the source of the suites."""
    folder = Path(ramforge_core.__file__).parent / "testing"
    clauses = {}
    for suite in ("architecture", "backend", "quant", "tokenizer"):
        source = folder / f"{suite}.py"
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                text = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
                match = re.match(r"([AQTB]\d+): (.+)", text)
                assert match, f"{suite}.{node.name} does not begin with its clause: {text[:40]!r}"
                assert match[1] not in clauses, f"clause {match[1]} stands twice"
                clauses[match[1]] = match[2]
    return clauses


def test_conformance_page_lists_the_clauses_of_the_suites():
    page = (DOCS / "conformance.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([AQTB]\d+) \| (.+) \|$", page, re.MULTILINE)
    assert len(rows) == len(dict(rows)), "a clause stands twice"
    assert dict(rows) == suite_clauses()

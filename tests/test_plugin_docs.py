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
from plugin_guide import DOCS, EXAMPLE, GUIDE, MODULES, example_file, install_examples, manifests

import ramforge_core
from ramforge_core import hookspecs, testing
from ramforge_core.discovery import GROUPS
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
    headings = re.findall(r"^## .*`(ramforge_\w+)`$", GUIDE, re.MULTILINE)
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
    assert kinds >= {GROUPS[k] for k in ("quants", "architectures", "tokenizers", "backends", "commands")}
    for block in re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL):
        assert re.search(r'"ramforge-\w+>=[\d.]+,<[\d.]+"', block)


def test_quant_example_decodes_as_gguf_does(examples):
    quants = pytest.importorskip("gguf.quants")
    from gguf import GGMLQuantizationType

    blocks = np.random.default_rng(1).integers(0, 256, (50, 18), np.uint8)
    blocks[:, :2] = np.linspace(-2, 2, 50, dtype="<f2").view(np.uint8).reshape(50, 2)
    quant = examples.registry().quant_format("iq4_nl")
    expected = quants.dequantize(blocks.reshape(-1), GGMLQuantizationType.IQ4_NL).reshape(50, 32)
    np.testing.assert_array_equal(quant.decode(blocks), expected)


@pytest.mark.skipif(
    not importlib.util.find_spec("ramforge_backend_numpy"), reason="needs ramforge-backend-numpy"
)
def test_examples_run_a_model_together(examples, tmp_path):
    registry = examples.registry()
    path = example_file(tmp_path / "example.gguf", registry.architecture("example"))
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


SUITES = {
    "architecture": f"""
import pytest
from ramforge_arch_example import Example
from ramforge_core.gguf import Metadata
from ramforge_core.testing import ArchitectureTests

class TestExample(ArchitectureTests):
    @pytest.fixture
    def architecture(self): return Example()
    @pytest.fixture
    def metadata(self): return Metadata.from_dict({EXAMPLE!r})
""",
    "quant": MODULES["test_quant_iq4nl"],
    "tokenizer": """
import pytest
from ramforge_tokenizer_bytes import Bytes
from ramforge_core.testing import TokenizerTests

class TestBytes(TokenizerTests):
    @pytest.fixture
    def tokenizer(self): return Bytes()
""",
    "backend": """
import pytest
from ramforge_backend_timed import TimedBackend
from ramforge_core.testing import BackendTests

class TestTimed(BackendTests):
    @pytest.fixture
    def backend(self): return TimedBackend()
""",
}


@pytest.mark.parametrize("suite", SUITES)
def test_examples_pass_the_conformance_suites(examples, tmp_path, suite):
    if not importlib.util.find_spec(f"ramforge_core.testing.{suite}"):
        pytest.skip(f"the suite {suite} is not there")
    if suite == "backend" and not importlib.util.find_spec("ramforge_backend_numpy"):
        pytest.skip("the example needs ramforge-backend-numpy")
    test = tmp_path / f"test_{suite}_example.py"
    test.write_text(SUITES[suite], encoding="utf-8")
    path = os.pathsep.join([str(examples.folder), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    # The ops are NumPy's, whose own tests go through all clauses; the example is about steps and programs.
    some = ["-k", "says or steps or wanted or cut or stop or progress or bind"] if suite == "backend" else []
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
    for suite in SUITES:
        source = folder / f"{suite}.py"
        if not source.is_file():
            continue
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

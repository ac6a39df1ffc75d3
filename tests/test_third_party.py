"""A third party's road: wheels of ours and of theirs in an environment of its own, and what may be wrong there."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from environments import OURS, ROOT, Environment, build_wheel, cached_wheel, project, wheels_of
from plugin_guide import FILE, PAGES
from synthetic import BLOCKS, Sizes, write_model

import ramforge_core
from ramforge_core.scaffold import KINDS, new_plugin

TERNARY = ROOT / "examples" / "ramforge-quant-ternary"

if not all(map(importlib.util.find_spec, ("setuptools", "cffi", "pip"))):
    pytest.skip("needs setuptools, cffi and pip to build and install wheels", allow_module_level=True)


@pytest.fixture(scope="module")
def cache(request):
    return request.config.cache.mkdir("wheels")


@pytest.fixture(scope="module")
def environment(tmp_path_factory, cache):
    """Wheels of ours and of the example, the test extra, and nothing else."""
    scratch = tmp_path_factory.mktemp("wheels")
    projects = [project(name) for name in OURS]
    wheels = wheels_of([*projects, TERNARY], cache, scratch)
    return Environment(tmp_path_factory.mktemp("environment") / "env", wheels, "ramforge-core[testing]")


@pytest.fixture(scope="module")
def ternary_wheel(environment, tmp_path_factory, cache):
    return cached_wheel(TERNARY, cache, tmp_path_factory.mktemp("ternary"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """All its matrices are ternary: the tied embeddings TQ1_0, the rest TQ2_0."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BLOCKS, "tq1_0", (34, 256, 54, (52,)))
        patch.setitem(BLOCKS, "tq2_0", (35, 256, 66, (64,)))
        sizes = Sizes(2, 256, 4, 2, 512, vocab=300, context=256, quant="tq2_0", rich="tq1_0", tied=True)
        return write_model(tmp_path_factory.mktemp("model") / "ternary.gguf", sizes)


ANSWER = ("--raw", "-p", "w259 w260", "-n", "8", "--temperature", "0")


def test_the_environment_holds_only_wheels(environment):
    code = "import ramforge_core, ramforge_quant_ternary as t; print(ramforge_core.__file__, t.__file__)"
    places = environment.run("python", "-c", code).stdout.split()
    assert len(places) == 2
    assert all(place.startswith(str(environment.site)) for place in places)


def test_the_example_is_seen_by_support(environment):
    report = json.loads(environment.run("ramforge", "support", "--json").stdout)
    assert report["broken"] == []
    found = {q["key"]: q for q in report["quants"]}
    assert {"tq1_0", "tq2_0"} < set(found)
    for key in ("tq1_0", "tq2_0"):
        assert found[key]["distribution"] == "ramforge-quant-ternary"
        assert found[key]["encode"]
        assert "portable" in found[key]["kernels"]


def test_the_example_passes_its_own_suite_there(environment, tmp_path):
    shutil.copytree(TERNARY / "tests", tmp_path / "tests")
    run = environment.run("python", "-m", "pytest", "-q", "-W", "error", "tests", cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(r"\d\d passed", run.stdout)


def test_a_model_that_needs_the_example_answers(environment, model):
    run = environment.run("ramforge", "run", model, *ANSWER)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.strip()
    code = (
        "import sys, numpy as np, ramforge_core\n"
        "for backend in 'cpu', 'numpy':\n"
        "    with ramforge_core.open(sys.argv[1], backend=backend) as m:\n"
        "        np.save(sys.argv[2] + backend, m.logits([1, 259, 260]))\n"
    )
    run = environment.run("python", "-c", code, model, f"{environment.folder}/logits-")
    assert run.returncode == 0, run.stderr
    fast, exact = (np.load(environment.folder / f"logits-{b}.npy") for b in ("cpu", "numpy"))
    assert np.ptp(exact[-1]) > 0
    error = np.sqrt(np.mean((fast - exact) ** 2) / np.mean((exact - exact.mean()) ** 2))
    assert error < 0.05  # int8 activations


def test_without_the_example_the_error_names_what_is_missing(environment, model):
    allowed = " ".join(f"ramforge-{name}" for name in OURS if name not in ("core", "cli"))
    run = environment.run("ramforge", "run", model, *ANSWER, RAMFORGE_PLUGINS=allowed)
    assert (run.returncode, run.stdout) == (4, "")
    assert "tq2_0" in run.stderr
    assert len(run.stderr.splitlines()) == 1


# ------------------------------------------------------------------ kernels that cannot be used


def _missing(library: Path) -> None:
    library.unlink()


def _of_another_machine(library: Path) -> None:
    data = bytearray(library.read_bytes())
    data[18:20] = (0xF3).to_bytes(2, "little")  # e_machine of RISC-V
    library.write_bytes(data)


def _empty(library: Path) -> None:
    library.write_bytes(b"")


@pytest.mark.parametrize("fault", [_missing, _of_another_machine, _empty])
def test_i05_unusable_kernels_cost_one_warning(environment, ternary_wheel, model, tmp_path, fault):
    """The format runs through NumPy, with the same text, and one line says why it is slow."""
    right = environment.run("ramforge", "run", model, *ANSWER, "--backend", "numpy").stdout
    zipfile.ZipFile(ternary_wheel).extractall(tmp_path)
    (library,) = tmp_path.glob("ramforge_quant_ternary/*.so")
    fault(library)
    run = environment.run("ramforge", "run", model, *ANSWER, "--backend", "numpy", PYTHONPATH=str(tmp_path))
    assert (run.returncode, run.stdout) == (0, right)
    (line,) = run.stderr.splitlines()
    assert line.startswith("ramforge: warning: ramforge_quant_ternary._kernels")
    assert "NumPy" in line
    report = environment.run("ramforge", "support", "--json", PYTHONPATH=str(tmp_path))
    assert json.loads(report.stdout)["broken"] == []
    assert report.stderr == line + "\n"


def test_i05_without_a_compiler_a_new_plugin_installs_and_runs(environment, tmp_path):
    folder = new_plugin("quant", "nocc", tmp_path)
    wheel = build_wheel(folder, tmp_path, CC="/nonexistent/cc")
    assert not [n for n in zipfile.ZipFile(wheel).namelist() if n.endswith(".so")]
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = "import numpy as np, ramforge_quant_nocc as p; f, = p.ramforge_quant_formats(); print(f.kernels)"
    run = environment.run("python", "-c", code, PYTHONPATH=str(tmp_path / "site"))
    assert run.stdout == "None\n"
    assert len(run.stderr.splitlines()) == 1
    assert "ramforge_quant_nocc._kernels" in run.stderr
    tests = folder / "tests"
    run = environment.run(
        "python", "-m", "pytest", "-q", tests, cwd=tmp_path, PYTHONPATH=str(tmp_path / "site")
    )
    assert "1 failed" in run.stdout  # its own suite says that the kernels are missing
    assert "no C compiler" in run.stdout


# ------------------------------------------------------------------ what `ramforge plugin new` writes


def test_a_new_plugin_of_every_kind_installs_and_passes(environment, tmp_path, monkeypatch):
    """Written by the installed program, built, installed beside our wheels, and judged by its own tests.

    A model in the new format, whose type number ggml does not know, answers.
    """
    folders = []
    for kind in KINDS:
        run = environment.run("ramforge", "plugin", "new", kind, "demo", "--into", tmp_path)
        assert run.returncode == 0, run.stderr
        folders.append(Path(run.stdout.strip()))
    (tmp_path / "built").mkdir()
    wheels = [build_wheel(folder, tmp_path / "built") for folder in folders]
    environment.install(wheels)
    assert any("-cp310-abi3-" in w.name for w in wheels)
    tests = [folder / "tests" for folder in folders]
    run = environment.run("python", "-m", "pytest", "-q", "-W", "error", *tests, cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads(environment.run("ramforge", "support", "--json").stdout)
    assert report["broken"] == []
    for kind in ("quants", "architectures", "tokenizers", "backends", "sources", "commands"):
        assert "demo" in [p["key"] for p in report[kind]], kind
    number = next(q["ggml_type"] for q in report["quants"] if q["key"] == "demo")
    monkeypatch.setitem(BLOCKS, "demo", (number, 32, 18, (0,)))
    sizes = Sizes(2, 256, 4, 2, 512, vocab=300, context=256, quant="demo", rich="demo", tied=True)
    run = environment.run("ramforge", "run", write_model(tmp_path / "demo.gguf", sizes), *ANSWER)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.strip()


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.stem)
def test_what_a_page_of_the_guide_shows_can_be_built_as_it_stands(page, tmp_path):
    text = page.read_text(encoding="utf-8")
    folder = tmp_path / "example"
    (folder / "tests").mkdir(parents=True)
    manifest = re.search(r"```toml\n(.*?)```", text, re.DOTALL)[1]
    (folder / "pyproject.toml").write_text(manifest, encoding="utf-8")
    for path, _, source in FILE.findall(text):
        (folder / path).write_text(source, encoding="utf-8")
    module = re.search(r'= "(ramforge_\w+)"$', manifest, re.MULTILINE)[1]
    with zipfile.ZipFile(build_wheel(folder, tmp_path)) as wheel:
        code = [name for name in wheel.namelist() if name.endswith(".py")]
    assert code == [f"{module}.py"]


def test_headers_of_the_example_are_copies():
    headers = sorted(TERNARY.glob("src/*/ramforge_*.h"))
    assert len(headers) == 3
    for header in headers:
        ours = Path(ramforge_core.__file__).parent / "include" / header.name
        assert header.read_bytes() == ours.read_bytes(), header.name

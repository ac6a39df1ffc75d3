"""Broken, wrong and doubled plugins as a person meets them: the command line in its own process."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest
from fake_plugins import COMMAND, KERNELS, quant
from plugin_guide import example_file, install_examples

pytestmark = pytest.mark.skipif(
    not (importlib.util.find_spec("ramforge_cli") and importlib.util.find_spec("ramforge_backend_numpy")),
    reason="needs ramforge-cli and ramforge-backend-numpy",
)


@pytest.fixture
def ramforge(site):
    """Call ``ramforge`` with the site's distributions installed; each tells when it is imported."""

    def call(*arguments, **environ):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("RAMFORGE_")}
        return subprocess.run(
            [sys.executable, "-m", "ramforge_cli", *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=site.folder.parent,
            env={**clean, "PYTHONPATH": str(site.folder), **environ},
            check=False,
            timeout=120,
        )

    return call


@pytest.fixture
def model(site):
    """A model that runs, in the formats of the guide's examples."""
    install_examples(site)
    return example_file(site.folder.parent / "example.gguf", site.registry().architecture("command-r"))


BREAKS = {
    "ImportError": "import no_such_module_here",
    "SyntaxError": "def (",
    "SystemExit": "raise SystemExit(3)",
    "OSError": "raise OSError('libfoo.so: cannot open shared object file')",
}


def break_everything(site, error):
    """A distribution that fails at import, under a key of every kind. Returns its name."""
    name = f"odd{error.lower()}"
    groups = ("architectures", "quants", "tokenizers", "backends", "sources", "commands")
    points = {f"ramforge.{g}": {f"{name}_{g}": f"fake_{name}"} for g in groups}
    site.add(f"ramforge-{name}", points, {f"fake_{name}": f"print('imported')\n{BREAKS[error]}"})
    return name


def test_i01_broken_on_import(site, ramforge, model):
    odd = [break_everything(site, error) for error in BREAKS]

    help_ = ramforge("--help")
    assert (help_.returncode, help_.stderr) == (0, "")
    assert "imported" not in help_.stdout
    assert all(f"{name}_commands" in help_.stdout for name in odd)

    report = ramforge("support")
    assert report.returncode == 0
    for error, name in zip(BREAKS, odd, strict=True):
        broken = [line for line in report.stdout.splitlines() if f"ramforge-{name} 0.1.0" in line]
        assert len(broken) == 6
        assert all(f"import: {error}" in line.replace("ModuleNotFound", "Import") for line in broken)

    # Backends are the one kind of which a run imports all, to find the best.
    allowed = " ".join([*site.names, "ramforge-backend-numpy"])
    run = ramforge("run", model, "--raw", "-p", "abc", "-n", "3", RAMFORGE_PLUGINS=allowed)
    assert run.returncode == 0, run.stderr
    lines = sorted(line for line in run.stderr.splitlines() if line != "imported")
    for line, name in zip(lines, sorted(odd), strict=True):
        assert line.startswith(f"ramforge: warning: plugin ramforge-{name} 0.1.0 (backend '{name}_backends')")

    asked = ramforge("run", model, "-p", "abc", "--backend", f"{odd[0]}_backends")
    assert asked.returncode == 4
    (line,) = (line for line in asked.stderr.splitlines() if line != "imported")
    assert line.startswith(f"ramforge: error: plugin ramforge-{odd[0]} 0.1.0 (backend '{odd[0]}_backends')")

    command = ramforge(f"{odd[2]}_commands")
    assert command.returncode == 4
    assert f"ramforge-{odd[2]} 0.1.0 (command '{odd[2]}_commands') cannot be used" in command.stderr
    assert "Traceback" not in command.stderr


def test_wrong_abi(site, ramforge, model):
    """The format is refused when the model needs it, and unseen when it does not."""
    site.quant("ramforge-quant-odd", "q9_x", quant("q9_x", 909, KERNELS.format(abi=99)))
    assert ramforge("--help").stderr == ""
    run = ramforge("run", model, "--raw", "-p", "abc", "-n", "2", "--backend", "numpy")
    assert (run.returncode, run.stderr) == (0, "")
    (broken,) = json.loads(ramforge("support", "--json").stdout)["broken"]
    assert (broken["distribution"], broken["key"], broken["phase"]) == ("ramforge-quant-odd", "q9_x", "abi")

    source = site.folder / "ramforge_quant_ternary.py"
    text = source.read_text().replace(
        "import QuantFormat", "import KernelFunctions, QuantFormat, QuantKernels"
    )
    source.write_text(text.replace("    def decode", KERNELS.format(abi=99) + "\n    def decode"))
    run = ramforge("run", model, "--raw", "-p", "abc", "-n", "2", "--backend", "numpy")
    assert (run.returncode, run.stdout) == (4, "")
    assert "ramforge-quant-ternary 0.1.0" in run.stderr
    assert "kernels of ABI 99, expected 1" in run.stderr
    assert len(run.stderr.splitlines()) == 1


def test_duplicate_key(site, ramforge, model):
    site.quant("ramforge-quant-a", "q9_x", quant("q9_x", 909))
    site.quant("ramforge-quant-b", "q9_x", quant("q9_x", 909))
    assert ramforge("--help").stderr == ""
    report = ramforge("support")
    assert report.returncode == 0
    assert "ramforge-quant-a 0.1.0 and ramforge-quant-b 0.1.0" in report.stdout
    run = ramforge("run", model, "--raw", "-p", "abc", "-n", "2", "--backend", "numpy")
    assert run.returncode == 0
    (line,) = run.stderr.splitlines()
    assert line.startswith("ramforge: warning: quant format 'q9_x' is provided by ramforge-quant-a 0.1.0 and")

    site.quant("ramforge-quant-twin", "tq2_0", quant("tq2_0", 35))
    run = ramforge("run", model, "--raw", "-p", "abc", "--backend", "numpy")
    assert (run.returncode, run.stdout) == (4, "")
    assert "ramforge-quant-ternary 0.1.0 and ramforge-quant-twin 0.1.0" in run.stderr

    allowed = " ".join({*site.names, "ramforge-backend-numpy"} - {"ramforge-quant-a", "ramforge-quant-twin"})
    run = ramforge("run", model, "--raw", "-p", "abc", "-n", "2", RAMFORGE_PLUGINS=allowed)
    assert (run.returncode, run.stderr) == (0, "")


def test_missing_backend_names_the_package(ramforge, model):
    run = ramforge("run", model, "-p", "abc", "--backend", "cuda")
    assert run.returncode == 4
    assert "the package to try is ramforge-backend-cuda" in run.stderr


def test_i03_help_imports_no_plugin_and_no_numpy(site, ramforge):
    site.add("ramforge-hello", {"ramforge.commands": {"hello": "fake_hello"}}, {"fake_hello": COMMAND})
    code = (
        "import sys; from ramforge_cli.main import main; main(['--help'])\n"
        "bad = [m for m in sys.modules if m.split('.')[0] == 'numpy' or m.startswith(('fake_', 'ramforge_'))]\n"
        "print([m for m in bad if not m.startswith(('ramforge_core', 'ramforge_cli'))])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(site.folder)},
        check=True,
    )
    assert "hello" in run.stdout
    assert run.stdout.splitlines()[-1] == "[]"
    assert ramforge("hello").stdout == "hello from a plugin\n"


def test_strict(site, ramforge, model):
    break_everything(site, "OSError")
    run = ramforge("run", model, "--raw", "-p", "abc", RAMFORGE_STRICT_PLUGINS="1")
    assert (run.returncode, run.stdout.replace("imported\n", "")) == (4, "")
    assert "OSError: libfoo.so" in run.stderr


def fifty_plugins(site):
    """Fifty distributions: a command, formats, and every second one of any kind and broken in any of the ways."""
    kinds = ("architectures", "quants", "tokenizers", "backends", "sources", "commands")
    site.add("ramforge-fifty-0", {"ramforge.commands": {"hello": "fake_fifty_0"}}, {"fake_fifty_0": COMMAND})
    for i in range(1, 50):
        kind = kinds[i // 2 % 6] if i % 2 else "quants"
        source = (
            f"print('imported')\n{BREAKS[list(BREAKS)[i // 2 % 4]]}" if i % 2 else quant(f"p{i}", 1000 + i)
        )
        site.add(
            f"ramforge-fifty-{i}",
            {f"ramforge.{kind}": {f"p{i}": f"fake_fifty_{i}"}},
            {f"fake_fifty_{i}": source},
        )


def test_i03_help_and_support_survive_fifty_plugins_of_which_half_are_broken(site, ramforge):
    fifty_plugins(site)
    help_ = ramforge("--help")
    assert (help_.returncode, help_.stderr) == (0, "")
    assert "imported" not in help_.stdout
    assert "From ramforge-fifty-" in help_.stdout
    report = ramforge("support", "--json")
    assert report.returncode == 0
    assert report.stderr.count("\nramforge: warning") == 25, "a line for each that is broken"
    found = json.loads(report.stdout)  # with nothing that plugins print
    assert {b["distribution"] for b in found["broken"]} == {f"ramforge-fifty-{i}" for i in range(1, 50, 2)}
    assert {b["phase"] for b in found["broken"]} == {"import"}
    assert {f"p{i}" for i in range(2, 50, 2)} <= {q["key"] for q in found["quants"]}
    assert ramforge("hello").stdout == "hello from a plugin\n"

"""``ramforge plan`` on a small synthetic model."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec

import pytest
from synthetic import SMALL, write_model

from ramforge_cli.main import main
from ramforge_core.system import ProcessMemory


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return str(write_model(tmp_path_factory.mktemp("models") / "small.gguf", SMALL))


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAMFORGE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def ramforge(capsys, monkeypatch):
    # a process that runs tests is larger than one that plans
    monkeypatch.setattr("ramforge_core.planning.process_memory", lambda: ProcessMemory(rss=45 << 20))

    def call(*arguments):
        code = main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_a_plan_is_text_for_people(ramforge, small):
    code, out, err = ramforge("plan", small, "--ram", "150M", "--ctx", "512", "--threads", "1")
    assert (code, err) == (0, "")
    for section in ("memory, with", "weights", "speed", "other budgets", "measured", "layers ("):
        assert f"\n{section}" in out
    assert "context 512 of 4096 tokens" in out
    assert "1 threads" not in out
    assert max(map(len, out.splitlines()[1:])) <= 110


def test_json_is_facts_and_holds_the_sweep_when_asked(ramforge, small):
    code, out, _ = ramforge("plan", small, "--ram", "150M", "--json", "--kv-type", "f32", "--backend", "cpu")
    facts = json.loads(out)
    assert code == 0
    assert facts["kv_type"] == "f32"
    assert facts["ram_bytes"] == 150 << 20
    assert "sweep" not in facts
    _, out, _ = ramforge("plan", small, "--ram", "150M", "--json", "--sweep")
    assert len(json.loads(out)["sweep"]) > 5


def test_the_sweep_is_a_chart(ramforge, small):
    code, out, _ = ramforge("plan", small, "--ram", "150M", "--sweep")
    assert code == 0
    assert all("#" in line for line in out.splitlines()[1:])


def test_recalibrate_measures_anew(ramforge, small, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "ramforge_core.planning.calibrate", lambda *_, anew, **__: seen.append(anew) or _nothing()
    )
    ramforge("plan", small, "--ram", "150M")
    ramforge("plan", small, "--ram", "150M", "--recalibrate")
    assert seen == [False, True]


def _nothing():
    from ramforge_core.calibration import Calibration

    return Calibration()


def test_e02_too_little_is_exit_code_6_and_names_the_minimum(ramforge, small):
    code, out, err = ramforge("plan", small, "--ram", "16M")
    assert (code, out) == (6, "")
    assert "too small" in err
    assert "give --ram" in err


@pytest.mark.parametrize(
    "arguments", [["--ram", "lots"], ["--ctx", "0"], ["--threads", "-1"], ["--plot", "x.txt"]]
)
def test_a_senseless_option_is_exit_code_2(ramforge, small, arguments):
    code, out, err = ramforge("plan", small, *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1


def test_plot_without_matplotlib_says_what_to_install_before_anything_is_measured(
    ramforge, small, tmp_path, monkeypatch
):
    monkeypatch.setattr("ramforge_cli.plot.find_spec", lambda name: None)
    monkeypatch.setattr("ramforge_core.planning.plan_model", lambda *_, **__: pytest.fail("was called"))
    code, _, err = ramforge("plan", small, "--plot", tmp_path / "x.png")
    assert code == 2
    assert "ramforge-cli[plot]" in err
    assert "matplotlib" not in sys.modules


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib, an extra, is not installed")
@pytest.mark.parametrize(("name", "magic"), [("x.png", b"\x89PNG"), ("x.svg", b"<?xml")])
def test_plot_draws_a_file(ramforge, small, tmp_path, name, magic):
    code, out, _ = ramforge("plan", small, "--ram", "150M", "--plot", tmp_path / name)
    assert code == 0
    assert out.startswith(small)
    assert (tmp_path / name).read_bytes().startswith(magic)
    assert [f.name for f in tmp_path.iterdir()] == [name]

"""Plugins and a core of different ages: every rule of "Versions" in docs/plugins.md, and what it protects from."""

from __future__ import annotations

import inspect
import logging
import re

import pytest
from fake_plugins import KERNELS, architecture, backend, quant, warnings
from plugin_guide import DOCS

import ramforge_core
from ramforge_core.architecture import Architecture
from ramforge_core.backend import Backend, Program, check_ops
from ramforge_core.errors import BackendError, PluginLoadError
from ramforge_core.graph import GRAPH_VERSION, Graph, GraphBuilder
from ramforge_core.quant import KERNEL_ABI, QuantFormat
from ramforge_core.sources import ModelSource
from ramforge_core.testing.experts import MIXTURES, mixture_graph
from ramforge_core.testing.rig import tiny_llama
from ramforge_core.tokenizer import Tokenizer

PAGE = (DOCS / "plugins.md").read_text(encoding="utf-8")


# ------------------------------------------------------------------ the requirement on ramforge-core


@pytest.mark.parametrize(
    "requires",
    [
        "ramforge-core>=0.0.1,<0.1",  # an older plugin
        "ramforge-core>=9.0,<9.1",  # a newer one
        "Ramforge_Core>=9.0 ; python_version >= '3'",
        "ramforge.core[testing]>=9",
    ],
)
def test_a_plugin_for_another_core_is_refused_before_it_is_imported(site, caplog, requires):
    site.quant("ramforge-quant-odd", "q9_x", "raise OSError('imported')", requires=[requires])
    site.quant("ramforge-quant-good", "q1_x", quant("q1_x", 901), requires=["ramforge-core>=0.1,<0.2"])
    registry = site.registry()
    assert list(registry.quant_formats()) == ["q1_x"]
    (line,) = warnings(caplog)
    assert "ramforge-quant-odd 0.1.0" in line
    assert f"this is {ramforge_core.__version__}" in line
    (failure,) = registry.failures
    assert failure.phase == "version"
    with pytest.raises(PluginLoadError, match="install a version of ramforge-quant-odd that is made for it"):
        registry.quant_format("q9_x")


@pytest.mark.parametrize(
    "requires",
    [
        [],  # it is taken at its word
        ["ramforge-core"],
        [f"ramforge-core=={ramforge_core.__version__}"],
        ["ramforge-core>=9 ; extra == 'testing'", "ramforge-core>=0.1,<0.2", "numpy>=99"],
    ],
)
def test_a_plugin_for_this_core_is_taken(site, caplog, requires):
    site.quant("ramforge-quant-good", "q1_x", quant("q1_x", 901), requires=requires)
    assert site.registry().quant_format("q1_x").name == "q1_x"
    assert warnings(caplog) == []


# ------------------------------------------------------------------ kernels


@pytest.mark.parametrize("abi", [KERNEL_ABI - 1, KERNEL_ABI + 1], ids=["older", "newer"])
def test_kernels_of_another_abi_are_refused_and_no_other_format_with_them(site, abi):
    source = quant("q9_x", 909, KERNELS.format(abi=abi))
    source += "\nclass Plain(Format):\n    name, ggml_type, kernels = 'q8_x', 908, None\n"
    source = source.replace("return [Format()]", "return [Format(), Plain()]")
    site.add(
        "ramforge-quant-two",
        {"ramforge.quants": {"q9_x": "fake_two", "q8_x": "fake_two"}},
        {"fake_two": source},
    )
    registry = site.registry()
    with pytest.raises(
        PluginLoadError, match=f"kernels of ABI {abi}, expected {KERNEL_ABI}: rebuild the plugin"
    ):
        registry.quant_format("q9_x")
    assert registry.quant_format("q8_x").kernels is None


# ------------------------------------------------------------------ the graph


def old_graph() -> Graph:
    return tiny_llama()[0]


def new_graph() -> Graph:
    return mixture_graph(**next(iter(MIXTURES.values())))[0]


def test_a_graph_says_which_version_it_needs():
    assert (old_graph().version, new_graph().version) == (1, 2)
    assert GRAPH_VERSION == 2, "say in Graph.version which graphs need the new one"
    g = GraphBuilder({"x": (3, 8), "long": (4,)})
    with g.stage("only"):
        rope = {"head_width": 8, "rotary_width": 8, "pairs": "half", "base": 1e4}
        g.logits(g.rope(g.embed("x"), **rope, long_factors="long"))
    assert g.finish().version == 2


def test_an_older_backend_runs_what_it_knows_and_refuses_the_rest(site):
    backend(site, "old")
    old = site.registry().backend("old")
    assert old.graph_version == 1
    check_ops(old, old_graph())
    with pytest.raises(
        BackendError, match=r"backend 'old' knows the ops of graph version 1.* needs version 2"
    ):
        check_ops(old, new_graph())


def test_the_engine_asks_before_it_compiles(site, tmp_path, monkeypatch):
    numpy_backend = pytest.importorskip("ramforge_backend_numpy").NumpyBackend
    from synthetic import write_model

    path = write_model(tmp_path / "m.gguf")
    monkeypatch.setattr(numpy_backend, "graph_version", 0)
    with pytest.raises(BackendError, match="knows the ops of graph version 0"):
        ramforge_core.open(path, backend="numpy")


# ------------------------------------------------------------------ the contracts

CONTRACTS = {c.__name__: c for c in (Architecture, QuantFormat, Tokenizer, Backend, Program, ModelSource)}


def test_what_a_plugin_must_implement_is_what_the_guide_says():
    """A contract of one minor version never asks for more than it did: a new method comes with a default."""
    rows = dict(re.findall(r"^\| `(\w+)` \| ((?:`\w+`(?:, )?)+) \|$", PAGE, re.MULTILINE))
    assert set(rows) == set(CONTRACTS)
    for name, contract in CONTRACTS.items():
        assert re.findall(r"`(\w+)`", rows[name]) == sorted(contract.__abstractmethods__), name
        assert inspect.getdoc(contract)


def test_a_plugin_that_lacks_a_method_is_named(site, caplog):
    caplog.set_level(logging.WARNING)
    site.quant("ramforge-quant-odd", "q9_x", quant("q9_x").replace("def decode", "def decoder"))
    architecture(site, "ramforge-arch-good", True)
    registry = site.registry()
    registry.load_all()
    (failure,) = registry.failures
    assert (failure.phase, failure.distribution) == ("call", "ramforge-quant-odd")
    assert "decode" in str(failure.error)


def test_the_versions_in_the_guide_are_those_of_the_code():
    assert f"`KERNEL_ABI` is {KERNEL_ABI}" in PAGE
    assert f"`GRAPH_VERSION` is {GRAPH_VERSION}" in PAGE

"""The reports of ``ramforge support``, with fake plugins of every sort."""

from __future__ import annotations

import json

import pytest
from fake_plugins import COMMAND, KERNELS, TOKENIZER, architecture, backend, quant

from ramforge_core.errors import PluginError
from ramforge_core.gguf import open_gguf
from ramforge_core.support import model_support, support
from ramforge_core.testing.gguf_writer import write_gguf


@pytest.fixture
def everything(site):
    """One good plugin of each kind, and one of each way to be of no use."""
    pytest.importorskip("click")
    site.quant("ramforge-quant-plain", "q1_x", quant("q1_x", 901))
    site.quant("ramforge-quant-fast", "q2_x", quant("q2_x", 902, KERNELS.format(abi=1)))
    site.quant("ramforge-quant-abi", "q3_x", quant("q3_x", 903, KERNELS.format(abi=99)))
    site.quant("ramforge-quant-exits", "q4_x", "raise SystemExit(1)")
    site.quant("ramforge-quant-twin", "q5_x", quant("q5_x", 905))
    site.quant("ramforge-quant-twin2", "q5_x", quant("q5_x", 905), version="2")
    architecture(site, "ramforge-arch-zeta", True)
    architecture(site, "ramforge-arch-eta", False, key="eta")
    backend(site, "here", 1)
    backend(site, "away", 5, "return 'no such device'")
    backend(site, "odd", 9, "raise OSError('libodd.so')")
    site.add(
        "ramforge-tokenizer-letters", {"ramforge.tokenizers": {"letters": "fake_t"}}, {"fake_t": TOKENIZER}
    )
    site.add("ramforge-hello", {"ramforge.commands": {"hello": "fake_hello"}}, {"fake_hello": COMMAND})
    site.quant("ramforge-quant-blocked", "q6_x", "raise OSError('imported')")
    site.names.remove("ramforge-quant-blocked")
    return site


def test_support_lists_everything_with_provider_and_capabilities(everything):
    found = support(everything.registry()).to_dict()
    assert json.loads(json.dumps(found)) == found
    plain, fast = found["quants"]
    assert (plain["key"], plain["distribution"], plain["version"]) == (
        "q1_x",
        "ramforge-quant-plain",
        "0.1.0",
    )
    assert (plain["bits_per_weight"], plain["kernels"], plain["encode"]) == (4.0, [], False)
    assert (fast["kernels"], fast["packing"]) == (["portable"], "f32")
    assert [(a["key"], a["runs"]) for a in found["architectures"]] == [("eta", False), ("zeta", True)]
    assert [t["key"] for t in found["tokenizers"]] == ["letters"]
    assert [(c["key"], c["help"]) for c in found["commands"]] == [("hello", "Say hello.")]
    away, here, odd = found["backends"]
    assert (here["available"], here["default"], here["isa"], here["threads"]) == (True, True, "none", "1")
    assert (away["available"], away["reason"]) == (False, "no such device")
    assert (odd["available"], odd["reason"]) == (False, "OSError: libodd.so")
    assert here["memory_tiers"] == ["ram"]


def test_support_lists_what_is_not_in_use_with_the_reason(everything):
    found = support(everything.registry()).to_dict()
    (conflict,) = found["conflicts"]
    assert conflict["key"] == "q5_x"
    assert [p["distribution"] for p in conflict["providers"]] == [
        "ramforge-quant-twin",
        "ramforge-quant-twin2",
    ]
    assert "ramforge-quant-blocked" in [b["distribution"] for b in found["blocked"]]
    broken = {b["distribution"]: (b["key"], b["phase"], b["error"]) for b in found["broken"]}
    assert broken["ramforge-quant-exits"] == ("q4_x", "import", "SystemExit: 1")
    assert broken["ramforge-quant-abi"][:2] == ("q3_x", "abi")
    assert "expected 1" in broken["ramforge-quant-abi"][2]


def test_support_for_people_says_the_same(everything):
    text = support(everything.registry()).render()
    for part in (
        "q1_x  ramforge-quant-plain 0.1.0  type 901, 4 bits, blocks of 32 in 16 bytes; kernels: NumPy only",
        "kernels: portable",
        "eta   ramforge-arch-eta 0.1.0   inspect and plan only",
        "zeta  ramforge-arch-zeta 0.1.0  run, inspect, plan",
        "isa none, threads 1, memory ram (default)",
        "not available: no such device",
        "import: SystemExit: 1",
        "ramforge-quant-twin 0.1.0 and ramforge-quant-twin2 2",
        "not allowed by RAMFORGE_PLUGINS",
    ):
        assert part in text


def test_support_with_nothing_and_with_a_backend_that_cannot_describe_itself(site):
    assert "none" in support(site.registry()).render()
    backend(
        site,
        "mute",
        available="return None\n    def describe(self): raise ValueError('lost')\n    def x(self): ...",
    )
    source = site.folder / "fake_backend_mute.py"
    source.write_text(source.read_text().replace("def describe(self): return", "def other(self): return"))
    report = support(site.registry())
    assert report.provided["backends"][0].can == {"error": "ValueError: lost"}
    assert "ValueError: lost" in report.render()


def test_strict_support_stops(everything):
    with pytest.raises(PluginError):
        support(everything.registry(RAMFORGE_STRICT_PLUGINS="1"))


# ------------------------------------------------------------------ one file


def model(tmp_path, tensors=None, **pairs):
    metadata = {"general.architecture": "zeta", "tokenizer.ggml.model": "letters"} | {
        key.replace("__", "."): value for key, value in pairs.items()
    }
    metadata = {key: value for key, value in metadata.items() if value is not None}
    return open_gguf(write_gguf(tmp_path / "m.gguf", metadata, tensors or {}))


BLOCK = bytes(17)
MXFP4 = {f"blk.{i}.w": (39, (1, 32), BLOCK) for i in range(5)}


def reasons(everything, gguf, **more):
    return model_support(gguf, everything.registry(), **more).reasons


def test_unsupported_type_is_named_with_its_tensors(everything, tmp_path):
    found = model_support(model(tmp_path, MXFP4), everything.registry())
    assert not found.runnable
    assert (
        "unsupported tensor type 39 (mxfp4) in 5 tensors (blk.0.w, blk.1.w, blk.2.w and 2 more); "
        "supported: q1_x, q2_x; the package to try is ramforge-quant-fp4"
    ) in found.reasons
    (use,) = found.formats
    assert (use.ggml_type, use.tensors, use.nbytes, use.supported) == (39, 5, 85, False)


@pytest.mark.parametrize(
    ("ggml_type", "label"), [(4, "4 (q4_2, removed from ggml"), (250, "250 in 1 tensor (w)")]
)
def test_type_ids_that_nobody_knows(everything, tmp_path, ggml_type, label):
    gguf = model(tmp_path, {"w": (ggml_type, (1, 32), BLOCK)})
    (reason,) = [r for r in reasons(everything, gguf) if "tensor type" in r]
    assert reason.startswith(f"unsupported tensor type {label}")
    assert reason.endswith("supported: q1_x, q2_x")


def test_format_of_a_broken_plugin(everything, tmp_path):
    everything.quant("ramforge-quant-fp4", "mxfp4", "raise OSError('libmx.so')")
    found = [r for r in reasons(everything, model(tmp_path, MXFP4)) if "libmx.so" in r]
    assert len(found) == 1
    assert "5 tensors (blk.0.w" in found[0]
    assert "ramforge-quant-fp4 0.1.0" in found[0]


def test_architecture_that_is_only_declared(everything, tmp_path):
    found = model_support(model(tmp_path, general__architecture="eta"), everything.registry())
    assert found.architecture_runs is False
    assert found.reasons[0] == (
        "architecture 'eta' cannot run yet; its files can be inspected and planned only (ramforge inspect, "
        "ramforge support). Architectures that run: zeta"
    )


def test_architecture_that_nobody_knows(everything, tmp_path):
    found = model_support(model(tmp_path, general__architecture="theta"), everything.registry())
    assert found.architecture_runs is None
    assert "'theta'; those that run: zeta; to inspect and plan only: eta" in found.reasons[0]
    assert "ramforge-arch-theta" in found.reasons[0]


def test_keys_that_are_missing_are_named(everything, tmp_path):
    gguf = model(tmp_path, general__architecture=None, tokenizer__ggml__model=None)
    found = model_support(gguf, everything.registry())
    assert (found.architecture, found.tokenizer) == (None, None)
    assert any("general.architecture" in r for r in found.reasons)
    assert any("tokenizer.ggml.model" in r for r in found.reasons)


def test_vocabulary_only_file(everything, tmp_path):
    assert reasons(everything, model(tmp_path)) == ["it holds no tensors, only a vocabulary"]


def test_architecture_that_fails_on_the_file(everything, tmp_path):
    source = everything.folder / "fake_ramforge_arch_zeta.py"
    source.write_text(source.read_text().replace("def tensors(self, config): return ()", "tensors = 5"))
    (reason,) = reasons(everything, model(tmp_path, {"w": (901, (1, 32), bytes(16))}))
    assert reason.startswith("architecture 'zeta' failed on this file: ")


def test_tokenizer_is_built_on_demand(everything, tmp_path):
    gguf = model(tmp_path)
    found = model_support(gguf, everything.registry(), build_tokenizer=True)
    assert not found.tokenizer_supported
    assert "tokenizer.ggml.pre is 'odd', expected 'even'" in found.reasons


def test_no_backend_is_a_reason(site, tmp_path):
    backend(site, "away", 5, "return 'no such device'")
    assert any("away: no such device" in r for r in model_support(model(tmp_path), site.registry()).reasons)


def test_report_of_a_file_in_both_forms(everything, tmp_path):
    found = model_support(model(tmp_path, MXFP4), everything.registry())
    facts = found.to_dict()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["formats"][0]["name"] == "mxfp4"
    text = found.render()
    assert text.startswith("runs: no\n  because ")
    for part in (
        "architecture: zeta (runs)",
        "tokenizer: letters (supported)",
        "mxfp4  5 tensors  not supported",
    ):
        assert part in text


def test_names_from_a_file_cannot_steer_the_terminal(everything, tmp_path):
    gguf = model(tmp_path, {"a\x1b[2Jb\n": (39, (1, 32), BLOCK)}, general__architecture="\x1b[31mred\nline")
    text = model_support(gguf, everything.registry()).render()
    assert "\x1b" not in text
    assert "line (unknown)" in text
    assert all(line.startswith(("runs", "  ", "architecture", "tok", "tensor")) for line in text.splitlines())

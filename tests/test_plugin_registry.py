"""Lookups by key: unknown and doubled keys, the choice of a backend, and each hook by its name."""

from __future__ import annotations

from importlib import metadata

import pytest
from fake_plugins import (
    ARCHITECTURE,
    BACKEND,
    COMMAND,
    SOURCE,
    TOKENIZER,
    architecture,
    backend,
    quant,
    warnings,
)

from ramforge_core.discovery import GROUPS
from ramforge_core.errors import (
    BackendError,
    DuplicatePluginError,
    PluginLoadError,
    UnknownPluginError,
)
from ramforge_core.plugin_messages import package_for
from ramforge_core.plugins import Registry

NOT_A_COMMAND = "\nclass C:\n    name = 'hello'\n"


# ------------------------------------------------------------------ keys


def test_type_id_outside_the_table_is_asked_of_all_plugins(site):
    site.quant("ramforge-quant-a", "q1_x", quant("q1_x", 901))
    site.quant("ramforge-quant-b", "q2_x", quant("q2_x", 902))
    registry = site.registry()
    assert registry.quant_format(902).name == "q2_x"
    with pytest.raises(UnknownPluginError, match=r"ggml type 903; known: q1_x, q2_x"):
        registry.quant_format(903)


def test_type_id_in_the_table_imports_one_plugin(site):
    site.quant("ramforge-quant-mx", "mxfp4", quant("mxfp4", 39))
    site.quant("ramforge-quant-b", "q2_x", "raise OSError('imported')")
    registry = site.registry()
    assert registry.quant_format(39).name == "mxfp4"
    assert not registry.failures


def test_wrong_type_id_for_a_known_name(site):
    site.quant("ramforge-quant-mx", "mxfp4", quant("mxfp4", 40))
    with pytest.raises(PluginLoadError, match=r"contract: ValueError: mxfp4 is ggml type 39, but .* says 40"):
        site.registry().quant_format("mxfp4")


def test_two_formats_of_one_type_id(site):
    site.quant("ramforge-quant-a", "q1_x", quant("q1_x", 901))
    site.quant("ramforge-quant-b", "q2_x", quant("q2_x", 901))
    with pytest.raises(DuplicatePluginError, match=r"ramforge-quant-a 0\.1\.0 and ramforge-quant-b 0\.1\.0"):
        site.registry().quant_format(901)


@pytest.mark.parametrize(
    ("lookup", "key", "package"),
    [
        ("architecture", "gemma9", "ramforge-arch-gemma9"),
        ("quant_format", "q4_k", "ramforge-quant-k"),
        ("quant_format", "iq2_xxs", "ramforge-quant-iq"),
        ("quant_format", 39, "ramforge-quant-fp4"),
        ("tokenizer", "gpt2", "ramforge-tokenizer-bpe"),
        ("tokenizer", "rwkv", "ramforge-tokenizer-rwkv"),
        ("backend", "cuda", "ramforge-backend-cuda"),
        ("source", "ftp", None),
    ],
)
def test_unknown_key_names_it_the_known_ones_and_a_package(site, lookup, key, package):
    site.quant("ramforge-quant-a", "q1_x", quant("q1_x", 901))
    registry = site.registry()
    alone = Registry(e for kind in GROUPS for es in registry.entries(kind).values() for e in es)
    with pytest.raises(UnknownPluginError) as caught:
        getattr(alone, lookup)(key)
    text = str(caught.value)
    assert str(key) in text
    known = {"quant_format": "known: q1_x", "architecture": "those that run: none"}
    assert known.get(lookup, "known: none") in text
    assert package is None or f"package to try is {package}" in text


def test_package_names_agree_with_the_workspace():
    """What we tell people to install is what really provides the key."""
    for kind in ("quants", "tokenizers", "architectures"):
        for entry in metadata.entry_points().select(group=f"ramforge.{kind}"):
            if entry.dist.name.startswith("ramforge-") and entry.dist.name != "ramforge-arch-declared":
                assert package_for(kind, entry.name) == entry.dist.name


@pytest.mark.parametrize("kind", ["architectures", "quants", "tokenizers", "backends", "sources"])
@pytest.mark.parametrize(
    "key", ["", "../../x", "a b", "-x", "x\n", "x\x1b[2J", "Ärger", "x;y", "x --index-url=y", "x" * 41]
)
def test_a_name_that_is_not_plain_becomes_no_advice(kind, key):
    """It may come from a file."""
    assert package_for(kind, key) is None


def test_a_plain_name_becomes_advice_and_a_long_one_is_cut(site):
    assert package_for("architectures", "a" * 40) == "ramforge-arch-" + "a" * 40
    assert package_for("architectures", "qwen2.5_moe-x") == "ramforge-arch-qwen2-5-moe-x"
    with pytest.raises(UnknownPluginError) as caught:
        site.registry().architecture("\x1b" * 10**6)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 2000


# ------------------------------------------------------------------ duplicates


def test_duplicate_is_an_error_when_needed_and_a_warning_when_not(site, caplog):
    site.quant("ramforge-quant-a", "q1_x", quant("q1_x", 901))
    site.quant("ramforge-quant-b", "q1_x", quant("q1_x", 901), version="2.0")
    site.quant("ramforge-quant-c", "q2_x", quant("q2_x", 902))
    registry = site.registry()
    assert registry.quant_format("q2_x").name == "q2_x"
    assert registry.quant_format(902).name == "q2_x"
    (line,) = warnings(caplog)
    both = r"ramforge-quant-(a 0\.1\.0|b 2\.0) and ramforge-quant-(b 2\.0|a 0\.1\.0)"
    with pytest.raises(DuplicatePluginError, match=both) as caught:
        registry.quant_format("q1_x")
    assert line == str(caught.value)
    assert len(warnings(caplog)) == 1
    with pytest.raises(DuplicatePluginError):
        site.registry(RAMFORGE_STRICT_PLUGINS="1").quant_format("q2_x")


def test_allow_list_settles_a_duplicate(site):
    site.quant("ramforge-quant-a", "q1_x", quant("q1_x", 901))
    site.quant("ramforge-quant-b", "q1_x", quant("q1_x", 901))
    site.names = ["ramforge-quant-b"]
    registry = site.registry()
    registry.quant_format("q1_x")
    assert registry.provider("quants", "q1_x").distribution == "ramforge-quant-b"


def test_runnable_architecture_replaces_a_declared_one(site, caplog):
    architecture(site, "ramforge-arch-declared-too", False)
    architecture(site, "ramforge-arch-zeta", True)
    registry = site.registry()
    assert registry.architecture("zeta").runnable
    assert registry.provider("architectures", "zeta").distribution == "ramforge-arch-zeta"
    assert list(registry.architectures()) == ["zeta"]
    assert warnings(caplog) == []


@pytest.mark.parametrize("runnable", [True, False])
def test_two_architectures_of_the_same_standing_clash(site, caplog, runnable):
    architecture(site, "ramforge-arch-zeta", runnable)
    architecture(site, "ramforge-arch-zeta2", runnable)
    with pytest.raises(DuplicatePluginError, match="ramforge-arch-zeta"):
        site.registry().architecture("zeta")
    assert dict(site.registry().architectures()) == {}
    assert len(warnings(caplog)) == 1


def test_declared_architecture_serves_when_the_runnable_one_is_broken(site, caplog):
    architecture(site, "ramforge-arch-declared-too", False)
    site.add(
        "ramforge-arch-zeta", {"ramforge.architectures": {"zeta": "fake_z"}}, {"fake_z": "import nope_nope"}
    )
    assert not site.registry().architecture("zeta").runnable
    (line,) = warnings(caplog)
    assert "ramforge-arch-zeta 0.1.0" in line
    assert "nope_nope" in line


# ------------------------------------------------------------------ backends


def test_default_backend_is_the_available_one_of_highest_priority(site):
    backend(site, "low")
    backend(site, "mid", 5)
    backend(site, "high", 10, "return 'no such device'")
    backend(site, "odd", 20, "raise OSError('driver')")
    registry = site.registry()
    assert registry.backend().key == "mid"
    assert registry.backend("low").key == "low"
    with pytest.raises(BackendError, match="'high' cannot work on this machine: no such device"):
        registry.backend("high")
    with pytest.raises(BackendError, match="OSError: driver"):
        registry.backend("odd")


def test_no_backend(site):
    with pytest.raises(UnknownPluginError, match="ramforge-backend-cpu"):
        site.registry().backend()
    backend(site, "high", 10, "return 'no such device'")
    site.add(
        "ramforge-backend-b", {"ramforge.backends": {"b": "fake_b"}}, {"fake_b": "raise OSError('libb.so')"}
    )
    with pytest.raises(BackendError, match=r"high: no such device; b: import: OSError: libb\.so"):
        site.registry().backend()


# ------------------------------------------------------------------ hooks, each by its name


def test_hook_ramforge_architectures(site):
    architecture(site, "ramforge-arch-zeta", True)
    assert site.registry().architecture("zeta").key == "zeta"


def test_hook_ramforge_quant_formats(site):
    site.quant("ramforge-quant-a", "q1_x", quant("q1_x", 901))
    assert site.registry().quant_format(901).nbytes(64) == 32


def test_hook_ramforge_tokenizers(site):
    site.add("ramforge-tokenizer-l", {"ramforge.tokenizers": {"letters": "fake_t"}}, {"fake_t": TOKENIZER})
    assert site.registry().tokenizer("letters").__name__ == "Fake"
    assert list(site.registry().tokenizers()) == ["letters"]


@pytest.mark.parametrize(
    ("provided", "why"),
    [("Fake()", "expected a subclass"), ("Abstract", "Abstract does not implement .*encode")],
)
def test_hook_ramforge_tokenizers_wants_whole_classes(site, provided, why):
    source = TOKENIZER.replace("return [Fake]", f"return [{provided}]")
    source += "\nclass Abstract(Tokenizer):\n    key = 'letters'\n"
    site.add("ramforge-tokenizer-l", {"ramforge.tokenizers": {"letters": "fake_t"}}, {"fake_t": source})
    with pytest.raises(PluginLoadError, match=f"contract: TypeError: .*{why}"):
        site.registry().tokenizer("letters")


def test_hook_ramforge_backends(site):
    backend(site, "here")
    assert site.registry().backend().key == "here"


def test_hook_ramforge_model_sources(site):
    site.add("ramforge-source-shelf", {"ramforge.sources": {"shelf": "fake_shelf"}}, {"fake_shelf": SOURCE})
    registry = site.registry()
    assert registry.source("shelf").names == ["book"]
    assert list(registry.sources()) == ["shelf"]


def test_hook_ramforge_commands(site):
    testing = pytest.importorskip("click.testing")
    site.add("ramforge-hello", {"ramforge.commands": {"hello": "fake_hello"}}, {"fake_hello": COMMAND})
    assert testing.CliRunner().invoke(site.registry().commands["hello"]).output == "hello from a plugin\n"


@pytest.mark.parametrize(
    ("group", "key", "source"),
    [
        (
            "architectures",
            "zeta",
            ARCHITECTURE.format(key="zeta", runnable=True).replace("(Architecture)", ""),
        ),
        (
            "backends",
            "b",
            BACKEND.format(key="b", priority=1, available="return None").replace("(Backend)", ""),
        ),
        ("sources", "shelf", SOURCE.replace("(ModelSource)", "")),
        (
            "commands",
            "hello",
            COMMAND.replace("@click.command()\n", "").replace("[hello]", "[C]") + NOT_A_COMMAND,
        ),
    ],
)
def test_objects_of_another_class_are_refused(site, group, key, source):
    if group == "commands":
        pytest.importorskip("click")
    site.add("ramforge-odd", {f"ramforge.{group}": {key: "fake_odd"}}, {"fake_odd": source})
    registry = site.registry()
    registry.load_all()
    (failure,) = registry.failures
    assert (failure.kind, failure.phase) == (group, "contract")
    assert "expected an instance of" in failure.why

"""The plugin host, against fake installed distributions: nothing here needs a real plugin."""

from __future__ import annotations

import sys
import time

import pytest
from fake_plugins import (
    COMMAND,
    KERNELS,
    quant,
    warnings,
)

from ramforge_core.errors import (
    PluginLoadError,
    UnknownPluginError,
)
from ramforge_core.testing.fake_install import fake_install

BROKEN = {
    "ImportError": ("import", "import no_such_module_here"),
    "SyntaxError": ("import", "def ("),
    "SystemExit": ("import", "raise SystemExit(3)"),
    "BaseException": (
        "import",
        "class PanicException(BaseException): pass\nraise PanicException('index out of bounds')",
    ),
    "OSError": ("import", "raise OSError('libfoo.so: cannot open shared object file')"),
    "bare": ("import", "raise Exception()"),
    "raising __str__": (
        "import",
        "class E(Exception):\n    def __str__(self): raise ValueError\nraise E('x')",
    ),
    "no hook": ("call", "x = 1"),
    "hook raises": (
        "call",
        "from ramforge_core.hookspecs import hookimpl\n@hookimpl\ndef ramforge_quant_formats(): 1 / 0",
    ),
    "hook exits": (
        "call",
        "import sys\nfrom ramforge_core.hookspecs import hookimpl\n"
        "@hookimpl\ndef ramforge_quant_formats(): sys.exit()",
    ),
    "no sequence": (
        "call",
        "from ramforge_core.hookspecs import hookimpl\n@hookimpl\ndef ramforge_quant_formats(): return 5",
    ),
    "signature": (
        "register",
        "from ramforge_core.hookspecs import hookimpl\n@hookimpl\ndef ramforge_quant_formats(x): return []",
    ),
    "unknown hook": (
        "register",
        quant("q9_x") + "\n@hookimpl\ndef ramforge_quants(): return []",
    ),
    "other key": ("contract", quant("q8_x")),
    "wrong object": (
        "contract",
        "from ramforge_core.hookspecs import hookimpl\nclass F: name = 'q9_x'\n"
        "@hookimpl\ndef ramforge_quant_formats(): return [F()]",
    ),
    "abstract": (
        "call",
        quant("q9_x").replace("def decode", "def decoder"),
    ),
    "wrong abi": ("abi", quant("q9_x", extra=KERNELS.format(abi=99))),
    "kernels raise": ("abi", quant("q9_x", extra="kernels = property(lambda self: 1 / 0)")),
    "kernels of another kind": ("abi", quant("q9_x", extra="kernels = 'fast'")),
    "no portable": (
        "abi",
        quant("q9_x", extra=KERNELS.format(abi=1).replace('"portable"', '"avx2"')),
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_i01_broken_plugin(site, caplog, case):
    """Nobody asked: one warning line, the others work. Asked for: an error from the cause. Same failure kept."""
    phase, source = BROKEN[case]
    site.quant("ramforge-quant-broken", "q9_x", source)
    site.quant("ramforge-quant-good", "q1_x", quant("q1_x", 901))
    registry = site.registry()

    assert registry.quant_format("q1_x").name == "q1_x"
    assert warnings(caplog) == []
    assert list(registry.quant_formats()) == ["q1_x"]
    (line,) = warnings(caplog)
    assert "ramforge-quant-broken 0.1.0" in line
    assert "\n" not in line
    (failure,) = registry.failures
    assert (failure.name, failure.kind, failure.phase) == ("q9_x", "quants", phase)
    assert (failure.distribution, failure.version) == ("ramforge-quant-broken", "0.1.0")
    with pytest.raises(AttributeError):
        failure.phase = "find"

    with pytest.raises(PluginLoadError, match=r"ramforge-quant-broken 0\.1\.0.*'q9_x'.*" + phase) as caught:
        registry.quant_format("q9_x")
    assert caught.value.__cause__ is failure.error
    registry.load_all()
    assert len(warnings(caplog)) == 1, "said once"
    assert registry.failures == (failure,)


def test_asked_for_first_is_an_error_without_a_warning(site, caplog):
    site.quant("ramforge-quant-broken", "q9_x", "raise OSError('gone')")
    with pytest.raises(PluginLoadError, match="import: OSError: gone") as caught:
        site.registry().quant_format("q9_x")
    assert isinstance(caught.value.__cause__, OSError)
    assert warnings(caplog) == []


def test_keyboard_interrupt_passes(site):
    site.quant("ramforge-quant-slow", "q9_x", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        site.registry().load_all()


def test_strict_raises_at_the_first_failure(site):
    site.quant("ramforge-quant-broken", "q9_x", "raise OSError('gone')")
    with pytest.raises(PluginLoadError, match="gone"):
        site.registry(RAMFORGE_STRICT_PLUGINS="1").load_all()
    with pytest.raises(PluginLoadError, match="gone"):
        site.registry(RAMFORGE_STRICT_PLUGINS="1").quant_formats()
    site.registry(RAMFORGE_STRICT_PLUGINS="0").load_all()


def test_a_failed_plugin_leaves_no_hook_behind(site):
    """A plugin whose second hook is refused has its first one registered by then; it must go again."""
    source = quant("q9_x") + "\n@hookimpl\ndef ramforge_tokenizers(x): return []"
    site.quant("ramforge-quant-half", "q9_x", source)
    site.quant("ramforge-quant-good", "q1_x", quant("q1_x", 901))
    registry = site.registry()
    registry.load_all()
    assert [f.phase for f in registry.failures] == ["register"]
    manager = registry._host._manager
    assert [m.__name__ for m in manager.get_plugins()] == ["fake_ramforge_quant_good"]
    assert len(manager.hook.ramforge_quant_formats.get_hookimpls()) == 1


def test_only_the_needed_entry_point_is_imported(site):
    site.quant("ramforge-quant-good", "q1_x", quant("q1_x", 901))
    site.quant("ramforge-quant-other", "q2_x", quant("q2_x", 902))
    registry = site.registry()
    assert set(registry.entries("quants")) == {"q1_x", "q2_x"}
    assert not site.modules & set(sys.modules)
    registry.quant_format("q1_x")
    assert site.modules & set(sys.modules) == {"fake_ramforge_quant_good"}


def test_module_under_several_names_is_called_once(site, caplog):
    source = quant("q1_x", 901).replace("return [Format()]", "calls.append(1); return [Format(), Two()]")
    source += "\ncalls = []\nclass Two(Format):\n    name, ggml_type = 'q2_x', 902\n"
    site.add(
        "ramforge-quant-many",
        {"ramforge.quants": dict.fromkeys(("q1_x", "q2_x"), "fake_many")},
        {"fake_many": source},
    )
    registry = site.registry()
    assert [registry.quant_format(k).name for k in ("q1_x", "q2_x")] == ["q1_x", "q2_x"]
    assert registry.quant_format("q1_x") is registry.quant_format("q1_x")
    assert sys.modules["fake_many"].calls == [1]
    assert not registry.failures


def test_broken_module_under_several_names_is_imported_and_reported_once(site, caplog, tmp_path):
    log = tmp_path / "imports"
    source = f"with open({str(log)!r}, 'a') as f: f.write('x')\nraise ImportError('no luck')"
    names = ("q1_x", "q2_x", "q3_x")
    site.add(
        "ramforge-quant-many", {"ramforge.quants": dict.fromkeys(names, "fake_many")}, {"fake_many": source}
    )
    registry = site.registry()
    registry.load_all()
    registry.load_all()
    assert [f.name for f in registry.failures] == list(names)
    assert log.read_text() == "x"
    assert len(warnings(caplog)) == 1


def test_object_entry_point(site):
    source = (
        quant("q1_x", 901)
        .replace("@hookimpl\n", "class Plugin:\n  @hookimpl\n  ")
        .replace("formats():\n    return", "formats(self):\n      return")
    )
    site.quant("ramforge-quant-object", "q1_x", source + "\nplugin = Plugin()", module="fake_object")
    (site.folder / "ramforge_quant_object-0.1.0.dist-info" / "entry_points.txt").write_text(
        "[ramforge.quants]\nq1_x = fake_object:plugin\n"
    )
    assert site.registry().quant_format("q1_x").ggml_type == 901


# ------------------------------------------------------------------ discovery


def test_allow_list_blocks(site):
    site.quant("ramforge-quant-a", "q1_x", quant("q1_x", 901))
    site.quant("Ramforge_Quant.B", "q2_x", "raise SystemExit", module="fake_b")
    registry = site.registry(RAMFORGE_PLUGINS="ramforge_quant_A,  other")
    assert list(registry.entries("quants")) == ["q1_x"]
    assert ("Ramforge_Quant.B", "q2_x") in [(e.distribution, e.key) for e in registry.blocked]
    with pytest.raises(
        UnknownPluginError, match=r"Ramforge_Quant.B 0.1.0 does, but RAMFORGE_PLUGINS does not allow"
    ):
        registry.quant_format("q2_x")
    registry = site.registry(RAMFORGE_PLUGINS="ramforge-quant-b")
    assert list(registry.entries("quants")) == ["q2_x"]


def test_allow_list_tells_of_names_that_are_not_there(site, caplog):
    site.registry(RAMFORGE_PLUGINS="ramforge-quant-typo").load_all()
    assert warnings(caplog) == [
        "RAMFORGE_PLUGINS allows ramforge-quant-typo, but no plugin of that name is installed"
    ]


@pytest.mark.parametrize("value", ["", "  ", "ramforge, ramforge-quant-c"])
def test_empty_allow_list_means_first_party(site, value):
    site.quant("ramforge-quant-a", "q1_x", quant("q1_x", 901))
    site.quant("ramforge-quant-b", "q2_x", quant("q2_x", 902))
    site.quant("ramforge-quant-c", "q3_x", quant("q3_x", 903))
    requires = ["ramforge_quant.a>=0.1,<0.2", "ramforge-quant-b; extra == 'all'", "ramforge-core"]
    fake_install(site.folder, "ramforge", {}, {}, requires=requires)
    wanted = {"q1_x"} | ({"q3_x"} if value.strip() else set())
    assert set(site.registry(RAMFORGE_PLUGINS=value).entries("quants")) == wanted


def test_a_distribution_found_twice_counts_once(site, tmp_path, monkeypatch, caplog):
    site.quant("ramforge-quant-a", "q1_x", quant("q1_x", 901))
    stale = fake_install(
        tmp_path / "stale", "ramforge_quant_A", {"ramforge.quants": {"q1_x": "gone"}}, {}, version="0.0.1"
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(stale), str(stale)])
    registry = site.registry()
    assert registry.quant_format("q1_x").name == "q1_x"
    assert registry.provider("quants", "q1_x").version == "0.1.0"
    assert warnings(caplog) == []


@pytest.mark.parametrize(
    ("file", "data"),
    [
        ("entry_points.txt", b"[ramforge.quants]\nno equals sign here\n"),
        ("entry_points.txt", b"[ramforge.quants]\nq\xff = m\n"),
        ("METADATA", b"Metadata-Version: 2.1\n"),
        ("METADATA", None),
    ],
)
def test_damaged_metadata_is_a_failure_of_phase_find(site, caplog, file, data):
    site.quant("ramforge-quant-a", "q1_x", quant("q1_x", 901))
    site.quant("ramforge-quant-b", "q2_x", quant("q2_x", 902))
    damaged = site.folder / "ramforge_quant_b-0.1.0.dist-info" / file
    damaged.write_bytes(data) if data is not None else damaged.unlink()
    registry = site.registry(RAMFORGE_PLUGINS="ramforge-quant-a")
    assert registry.quant_format("q1_x").name == "q1_x"
    assert [f.phase for f in registry.failures] == ["find"]
    assert len(warnings(caplog)) == 1
    with pytest.raises(PluginLoadError):
        site.registry(RAMFORGE_STRICT_PLUGINS="1").quant_format("q1_x")


def test_views_are_read_only(site):
    site.quant("ramforge-quant-a", "q1_x", quant("q1_x", 901))
    registry = site.registry()
    for view in (registry.entries("quants"), registry.quant_formats(), registry.commands):
        with pytest.raises(TypeError):
            view["q1_x"] = None
    with pytest.raises(AttributeError):
        registry.entries("quants")["q1_x"][0].key = "other"


def test_discovery_of_fifty_distributions_is_quick(site):
    for i in range(50):
        site.quant(f"ramforge-quant-n{i}", f"n{i}", "raise OSError")
    registry = site.registry()
    assert len(registry.entries("quants")) == 50
    times = []
    for _ in range(5):
        start = time.process_time()
        site.registry()
        times.append(time.process_time() - start)
    assert min(times) < 0.05, "a few ms on an idle machine"


# ------------------------------------------------------------------ commands


def test_commands_are_named_without_import_and_taken_one_by_one(site):
    pytest.importorskip("click")
    site.add("ramforge-hello", {"ramforge.commands": {"hello": "fake_hello"}}, {"fake_hello": COMMAND})
    site.add("ramforge-bye", {"ramforge.commands": {"bye": "fake_bye"}}, {"fake_bye": "raise SystemExit(9)"})
    commands = site.registry().commands
    assert sorted(commands) == ["bye", "hello"]
    assert "hello" in commands
    assert "run" not in commands
    assert not site.modules & set(sys.modules)
    assert commands["hello"].name == "hello"
    with pytest.raises(PluginLoadError, match="SystemExit: 9"):
        commands["bye"]


def test_what_a_plugin_prints_is_no_part_of_the_result(site, capsys):
    site.quant("ramforge-quant-loud", "q9_x", "print('hello from a plugin')\n" + quant("q9_x"))
    assert site.registry().quant_format("q9_x").name == "q9_x"
    out, err = capsys.readouterr()
    assert (out, err) == ("", "hello from a plugin\n")

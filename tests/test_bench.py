"""``ramforge bench``: what its figures count, and every way that it is called."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
from fake_plugins import quant
from synthetic import SMALL, TINY, Sizes, write_model

from ramforge_cli.main import main
from ramforge_core import benchmarking
from ramforge_core.backend import WeightSpec
from ramforge_core.benchmarking import Spread, benchmark_kernels, benchmark_model
from ramforge_core.benchmarking import kernels as kernel_module
from ramforge_core.calibration import CalibrationStore
from ramforge_core.calibration import memory as memory_module
from ramforge_core.calibration.memory import read_rate
from ramforge_core.errors import BudgetTooSmallError
from ramforge_core.gguf import open_gguf
from ramforge_core.plugins import Registry
from ramforge_core.system import process_memory
from ramforge_core.testing.experts import mixture_graph
from ramforge_core.testing.rig import PlainFloat32

SPREAD = {"median", "min", "max"}


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAMFORGE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return str(write_model(tmp_path_factory.mktemp("models") / "tiny.gguf", TINY))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return str(write_model(tmp_path_factory.mktemp("models") / "small.gguf", SMALL))


@pytest.fixture
def ramforge(capsys):
    def call(*arguments):
        code = main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def few(monkeypatch):
    """Kernels are measured on little, for tests that do not look at the speed."""
    monkeypatch.setattr(kernel_module, "BATCHES", (1, 3))
    monkeypatch.setattr(kernel_module, "ROWS", 256)
    monkeypatch.setattr(kernel_module, "COLUMNS", 256)
    monkeypatch.setattr(kernel_module, "POOL_BYTES", 4 << 20)
    monkeypatch.setattr(kernel_module, "_MOST_RUNS", 1)


def ticks(step):
    """A clock on which every look takes ``step`` seconds."""
    ticking = count()
    return SimpleNamespace(perf_counter=lambda: next(ticking) * step)


# --------------------------------------------------------------------------------------------------- a model


def test_json_of_a_model_in_memory(ramforge, tiny):
    code, out, err = ramforge(
        "bench", tiny, "--prompt", 9, "--gen", 3, "--repeat", 2, "--threads", 1, "--json"
    )
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert set(facts) == {
        *("model", "backend", "isa", "threads", "prompt_tokens", "gen_tokens", "repetitions"),
        *("load_s", "first_token_s", "prefill_tokens_per_s", "decode_tokens_per_s"),
        *("weight_bytes_per_token", "weight_bytes_per_s", "memory_bytes_per_s", "memory_share"),
        *("streamed_bytes", "disk", "budget_bytes", "peak_bytes"),
    }
    assert (facts["model"], facts["threads"]) == (tiny, 1)
    assert (facts["prompt_tokens"], facts["gen_tokens"], facts["repetitions"]) == (9, 3, 2)
    for name in ("prefill_tokens_per_s", "decode_tokens_per_s"):
        assert set(facts[name]) == SPREAD
        assert 0 < facts[name]["min"] <= facts[name]["median"] <= facts[name]["max"]
    assert facts["load_s"] > 0 < facts["first_token_s"]
    assert facts["weight_bytes_per_s"] == pytest.approx(
        facts["decode_tokens_per_s"]["median"] * facts["weight_bytes_per_token"]
    )
    assert (facts["streamed_bytes"], facts["disk"]) == (0, None)
    assert facts["memory_bytes_per_s"] is None  # its weights all are in a cache
    assert facts["memory_share"] is None
    assert facts["peak_bytes"] is None or facts["peak_bytes"] > 10 << 20


def test_text_of_a_model_in_memory(ramforge, tiny):
    code, out, err = ramforge("bench", tiny, "--prompt", 9, "--gen", 3, "--repeat", 2)
    assert (code, err) == (0, "")
    for part in (
        "2 repetitions",
        "prefill of 9, tokens/s",
        "decode of 3, tokens/s",
        "first token",
        "peak memory",
    ):
        assert part in out
    assert "disk" not in out


def test_rates_are_tokens_by_the_time_of_passes_alone(tiny, monkeypatch):
    monkeypatch.setattr(benchmarking.model, "time", ticks(0.5))
    seen = []
    found = benchmark_model(
        tiny, prompt=10, gen=4, repeat=3, threads=1, running=lambda *at: (time.sleep(0.01), seen.append(at))
    )
    assert found.first_token_s == 0.5
    assert found.prefill_tokens_per_s == Spread(20, 20, 20)
    assert found.decode_tokens_per_s == Spread(2, 2, 2)
    done = [at for at, _ in seen]
    assert done == sorted(done)
    assert seen[-1] == (4 * 14, 4 * 14)


@pytest.mark.parametrize("tied", [False, True])
def test_a_token_multiplies_with_all_weights_but_the_embeddings_of_others(tmp_path, tied):
    sizes = Sizes(layers=1, width=256, heads=4, kv_heads=2, feed_forward=512, vocab=515, tied=tied)
    file = write_model(tmp_path / "model.gguf", sizes)
    tensors = open_gguf(file).tensors
    embeddings = tensors["token_embd.weight"].nbytes
    unused = 0 if tied else embeddings - embeddings // sizes.vocab
    found = benchmark_model(file, prompt=1, gen=1, repeat=1, threads=1)
    assert found.weight_bytes_per_token == sum(t.nbytes for t in tensors.values()) - unused


def test_a_token_multiplies_with_the_experts_that_it_chooses():
    graph, arrays = mixture_graph(normalise=True, chosen=3, experts=9)
    weights = {name: WeightSpec(name, array.shape, PlainFloat32()) for name, array in arrays.items()}
    of = {name: array.nbytes for name, array in arrays.items()}
    used = of["router"] + (of["gate"] + of["up"] + of["down"]) // 3 + of["x"] // len(arrays["x"])
    model = SimpleNamespace(graph=graph, weights=weights)
    assert benchmarking.model.weight_bytes_per_token(model) == used


def test_weights_stand_beside_memory_where_they_are_larger_than_a_cache(tiny, monkeypatch):
    asked = []

    def rate(buffers, threads):
        asked.append((sum(b.nbytes for b in buffers), threads))
        return 1e9 * len(asked)

    monkeypatch.setattr(benchmarking.model, "_LEAST_BYTES", 1)
    monkeypatch.setattr(benchmarking.model, "read_rate", rate)
    found = benchmark_model(tiny, prompt=2, gen=2, repeat=3, threads=1)
    assert asked == [(sum(t.nbytes for t in open_gguf(tiny).tensors.values()), 1)] * 3  # all are pinned
    assert found.memory_bytes_per_s == Spread(2e9, 1e9, 3e9)
    assert found.memory_share == pytest.approx(found.weight_bytes_per_s / 2e9)
    assert "of what memory gives" in found.render()


def test_a_model_that_streams_stands_beside_its_disk_and_stays_in_its_budget(small, tmp_path):
    code = """if True:
    import json, sys
    from ramforge_core.benchmarking import benchmark_model
    from ramforge_core.errors import BudgetTooSmallError
    options = {"prompt": 8, "gen": 2, "repeat": 2, "threads": 2}
    try:
        benchmark_model(sys.argv[1], ram="1M", **options)
    except BudgetTooSmallError as error:
        ram = error.minimum + (8 << 20)
    found = benchmark_model(sys.argv[1], ram=ram, **options)
    print(json.dumps(found.to_dict()))
    print(found.render(), file=sys.stderr)
    """
    child = subprocess.run(
        [sys.executable, "-c", code, small], capture_output=True, text=True, timeout=120, check=False
    )
    assert child.returncode == 0, child.stderr
    facts = json.loads(child.stdout)
    disk = facts["disk"]
    assert 0 < facts["streamed_bytes"] < facts["weight_bytes_per_token"]
    assert set(disk) == {"bytes_per_s", "calibrated_bytes_per_s", "share"}
    # Every token reads what is streamed, and somewhat more; the readers may be a pass ahead.
    least = facts["streamed_bytes"] * facts["decode_tokens_per_s"]["min"]
    assert disk["bytes_per_s"]["max"] > 0.4 * least
    assert disk["share"] == pytest.approx(disk["bytes_per_s"]["median"] / disk["calibrated_bytes_per_s"])
    assert facts["peak_bytes"] is None or facts["peak_bytes"] <= facts["budget_bytes"]
    assert "of them from disk" in child.stderr
    assert "disk in decode, GB/s" in child.stderr


def test_a_disk_that_cannot_be_measured_is_left_out(small, tmp_path, monkeypatch):
    monkeypatch.setattr(benchmarking.model, "calibrate_disk", lambda *_, **__: None)
    base = process_memory().rss
    with pytest.raises(BudgetTooSmallError) as caught:
        benchmark_model(small, prompt=4, gen=1, repeat=1, ram=base + (2 << 20))
    found = benchmark_model(
        small,
        prompt=4,
        gen=1,
        repeat=1,
        ram=caught.value.minimum + (6 << 20),
        store=CalibrationStore(tmp_path / "c"),
    )
    assert found.disk is not None
    assert found.disk.share is None
    assert "of them from disk" in found.render()


@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
@pytest.mark.parametrize("what", ["model", "kernels"])
def test_ctrl_c_stops_at_once(small, what):
    arguments = ["--kernels"] if what == "kernels" else [small, "--repeat", "100000"]
    started = subprocess.Popen(
        [sys.executable, "-m", "ramforge_cli", "bench", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    time.sleep(3)
    began = time.perf_counter()
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=60)
    assert time.perf_counter() - began < 15
    assert (started.returncode, out, err.strip()) == (130, b"", b"ramforge: interrupted")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--prompt", "0"], "prompt is 0"),
        (["--gen", "-1"], "gen is -1"),
        (["--repeat", "0"], "repeat is 0"),
        (["--threads", "-1"], "threads is -1"),
        (["--ram", "lots"], "'lots' is not a size"),
        (["--prompt", "4096"], "more than the 4096"),
        (["--kernels"], "leave MODEL out"),
    ],
)
def test_a_senseless_option_is_exit_code_2(ramforge, tiny, arguments, part):
    code, out, err = ramforge("bench", tiny, *arguments)
    assert (code, out) == (2, "")
    assert part in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "name a MODEL"),
        (["--kernels", "--gen", "32"], "leave --gen out"),
        (["--kernels", "--ram", "1G"], "leave --ram out"),
        (["--kernels", "--threads", "-1"], "threads is -1"),
    ],
)
def test_without_a_model_there_must_be_kernels_and_nothing_of_a_model(ramforge, arguments, part):
    code, out, err = ramforge("bench", *arguments)
    assert (code, out) == (2, "")
    assert part in err


def test_other_errors_have_the_codes_that_they_have_everywhere(ramforge, tiny, tmp_path):
    assert ramforge("bench", tmp_path / "none.gguf")[0] == 5
    assert ramforge("bench", tiny, "--ram", "1M")[0] == 6
    (tmp_path / "bad.gguf").write_bytes(b"no model")
    assert ramforge("bench", tmp_path / "bad.gguf")[0] == 3


# --------------------------------------------------------------------------------------------------- kernels


def test_json_of_kernels_has_every_format_that_is_installed(ramforge, few):
    code, out, err = ramforge("bench", "--kernels", "--json", "--threads", 1)
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert set(facts) == {
        *("backend", "isa", "threads", "memory_bytes_per_s", "rates", "without_kernels", "rows", "columns")
    }
    assert (facts["threads"], facts["rows"], facts["columns"]) == (1, 256, 256)
    assert set(facts["memory_bytes_per_s"]) == SPREAD
    installed = set(Registry.discover().quant_formats())
    assert {r["format"] for r in facts["rates"]} | set(facts["without_kernels"]) == installed
    assert {"f32", "q4_0", "q4_k", "q8_0"} <= {r["format"] for r in facts["rates"]}
    by_format = {}
    for r in facts["rates"]:
        by_format.setdefault(r["format"], []).append(r["batch"])
        assert set(r) == {"format", "isa", "batch", "weight_bytes_per_s", "operations_per_s"}
        assert r["isa"] in ("avx512", "avx2", "neon", "portable")
        values = r["operations_per_s"] / r["weight_bytes_per_s"] / r["batch"] / 2  # in a byte
        assert values == pytest.approx(_values_per_byte(r["format"]))
    assert all(batches == [1, 3] for batches in by_format.values())


def _values_per_byte(name):
    quant = Registry.discover().quant_format(name)
    return quant.block_values / quant.block_bytes


def test_text_of_kernels(ramforge, few):
    code, out, err = ramforge("bench", "--kernels")
    assert (code, err) == (0, "")
    for part in ("weights, GB/s", "operations, GOP/s", "batch 3", "memory alone:", "q4_k"):
        assert part in out


def test_kernels_tell_the_instruction_set_that_they_use(few, monkeypatch):
    monkeypatch.setenv("RAMFORGE_ISA", "portable")
    found = benchmark_kernels(threads=1)
    assert found.isa == "portable"
    assert {rate.isa for rate in found.rates} == {"portable"}


def test_rates_of_kernels_are_work_by_time(few, monkeypatch):
    monkeypatch.setattr(kernel_module.Sample, "times", lambda *_: [9.0, 0.001, 9.0])
    found = {(r.format, r.batch): r for r in benchmark_kernels(threads=1).rates}
    values = 4 * 256 * 256
    assert found["q8_0", 3].weight_bytes_per_s == pytest.approx(values / 32 * 34 / 0.001)
    assert found["q8_0", 3].operations_per_s == pytest.approx(2 * values * 3 / 0.001)


def test_formats_without_kernels_and_broken_plugins_stop_nobody(ramforge, few, site):
    site.quant("ramforge-quant-plain", "plain", quant("plain"))
    site.quant("ramforge-quant-broken", "broken", "raise OSError('no')")
    code, out, err = ramforge("bench", "--kernels", "--json")
    assert code == 0
    assert json.loads(out)["without_kernels"] == ["plain"]
    assert err.startswith("ramforge: warning: ")
    assert "ramforge-quant-broken" in err
    assert err.count("\n") == 1


# --------------------------------------------------------------------------------------------------- memory


def test_the_rate_of_memory_counts_every_whole_word(monkeypatch):
    monkeypatch.setattr(memory_module, "time", ticks(0.25))
    assert read_rate([np.zeros(4096 + 7, np.uint8), np.zeros(800, np.uint8)], 2) == 4 * (4096 + 800)


@pytest.mark.parametrize("threads", [1, 2])
def test_reading_memory_takes_time(threads):
    assert 1e8 < read_rate([np.zeros(32 << 20, np.uint8)], threads, 0.01) < 1e13

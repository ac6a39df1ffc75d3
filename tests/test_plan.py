"""`ramforge_core.planning` on small synthetic models, with given rates where speeds are judged."""

from __future__ import annotations

import json
import subprocess
import sys

import attrs
import pytest
from synthetic import SMALL, TINY, write_model

import ramforge_core
from ramforge_core.allotment import allot
from ramforge_core.calibration import (
    Calibration,
    CalibrationStore,
    ComputeRate,
    DiskRate,
    calibrate,
    measure_compute,
    remembered,
)
from ramforge_core.calibration import compute as compute_module
from ramforge_core.calibration.sample import assemble
from ramforge_core.engine import trial_workspace
from ramforge_core.errors import BudgetTooSmallError, ParameterError
from ramforge_core.gguf import open_gguf
from ramforge_core.graph import Attention
from ramforge_core.model import read_model
from ramforge_core.planning import plan_model, plan_of, render_sweep
from ramforge_core.planning.declared import plan_declared
from ramforge_core.plugins import Registry
from ramforge_core.system import ProcessMemory
from ramforge_core.testing.gguf_writer import write_gguf

M = 1 << 20
DATE = "2026-01-01T00:00:00+00:00"
DISK = DiskRate(100e6, 1e-4, "direct", 64 * M, DATE)
COMPUTE = ComputeRate(0.01, 127, 1e-6, 0.1, 64, 1e-4, DATE)
PROCESS = 40 * M
FACTS = {"backend": "cpu", "isa": "avx2", "threads": "2"}


@pytest.fixture(scope="module")
def registry():
    return Registry.discover()


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("models") / "small.gguf", SMALL)


@pytest.fixture(scope="module")
def model(small, registry):
    return read_model(open_gguf(small), registry)


@pytest.fixture
def store(tmp_path):
    return CalibrationStore(tmp_path / "calibration.json")


@pytest.fixture(scope="module")
def plan(model, registry):
    """A plan for a budget, with given rates and a process of a given size."""

    def make(ram, ctx=None, rates=None, kv_type="f16"):
        workspace = trial_workspace(model, registry.backend("cpu"), context=ctx, kv_type=kv_type, threads=2)
        found = allot(model, ram - PROCESS, workspace, context=ctx, kv_type=kv_type)
        assert found is not None
        return plan_of(
            model,
            found,
            lambda context: trial_workspace(
                model, registry.backend("cpu"), context=context, kv_type=kv_type, threads=2
            ),
            rates or Calibration(DISK, COMPUTE),
            ram_bytes=ram,
            process_bytes=PROCESS,
            context=ctx,
            kv_type=kv_type,
            facts=FACTS,
        )

    return make


# ------------------------------------------------------------------ memory


def test_e07_memory_is_itemised_and_the_items_are_the_total(plan):
    for ram in (62 * M, 66 * M, 200 * M):
        p = plan(ram)
        assert sum(p.memory.values()) == p.total_bytes <= ram
        assert {"process", "pinned weights", "stream ring", "workspace", "logits", "kv cache"} <= set(
            p.memory
        )
        assert p.memory["kv cache"] >= p.context * p.kv_bytes_per_token
        shares = p.stages
        assert sum(s.pinned_bytes for s in shares) == p.pinned_bytes
        assert sum(s.streamed_bytes for s in shares) == p.streamed_bytes


def test_e07_a_short_answer_peaks_lower_than_a_full_context_and_never_higher(plan):
    p = plan(66 * M, ctx=1024)
    assert (
        p.peak_bytes(10, 4) < p.peak_bytes(p.context, 4) <= p.peak_bytes(p.context, 10_000) <= p.total_bytes
    )


def test_e02_a_quarter_of_the_file_is_accepted_and_the_smallest_budget_works_and_one_byte_less_does_not(
    plan, model, registry
):
    p = plan(PROCESS + 16 * M, ctx=256)
    least = p.smallest_ram_bytes
    workspace = trial_workspace(model, registry.backend("cpu"), context=256, kv_type="f16", threads=2)
    assert plan(least, ctx=256).total_bytes <= least
    assert allot(model, least - PROCESS - 1, workspace, context=256) is None
    quarter = PROCESS + p.weight_bytes // 4
    assert (quarter < least) == (allot(model, quarter - PROCESS, workspace, context=256) is None)


def test_e02_below_the_minimum_the_refusal_names_it(small, registry, store):
    with pytest.raises(BudgetTooSmallError) as caught:
        plan_model(small, ram="20M", registry=registry, store=store)
    assert caught.value.minimum > 20 * M
    assert "M or more" in str(caught.value)
    assert not store.path.exists()  # refused before anything is measured


def test_everything_fits_from_the_budget_that_the_plan_names(plan):
    p = plan(66 * M)
    assert p.read_bytes_per_token > 0
    assert plan(p.all_fits_ram_bytes).read_bytes_per_token == 0
    assert plan(p.all_fits_ram_bytes - 2 * M).read_bytes_per_token > 0


def test_e08_the_context_is_modest_and_kv_bytes_and_the_longest_context_are_shown(
    tmp_path, registry, store, monkeypatch
):
    monkeypatch.setattr("ramforge_core.planning.process_memory", lambda: ProcessMemory(rss=45 << 20))
    file = write_model(tmp_path / "long.gguf", attrs.evolve(TINY, context=1 << 20))
    p = plan_model(file, ram="200M", registry=registry, store=store)
    assert p.context == 4096
    assert p.trained_context == 1 << 20
    assert p.kv_bytes_per_token == 2 * 2 * 64 * 2 * 4  # keys and values, heads, width, two bytes, layers
    text = p.render()
    assert "2.00 KiB per token" in text
    assert f"longest context here  {p.largest_context} tokens" in text
    longest = p.largest_context
    assert 4096 < longest < 1 << 20
    ram = p.ram_bytes + 8 * M  # planning twice in one process leaves it larger
    assert plan_model(file, ram=ram, ctx=longest, registry=registry, store=store).context == longest
    with pytest.raises(BudgetTooSmallError):
        plan_model(file, ram=ram, ctx=longest + 8 * 1024, registry=registry, store=store)


# ------------------------------------------------------------------ speed


def test_j15_the_slower_of_disk_and_processor_binds(plan):
    disk_bound = plan(62 * M)
    expected = disk_bound.read_bytes_per_token / DISK.bytes_per_s
    assert disk_bound.decode.binds == "disk"
    assert disk_bound.decode.pass_s == pytest.approx(expected, rel=0.05)
    fast = attrs.evolve(DISK, bytes_per_s=1e12)
    bound = plan(62 * M, rates=Calibration(fast, COMPUTE)).decode
    assert bound.binds == "processor"
    assert bound.tokens_per_s == pytest.approx(1 / (0.01 + disk_bound.reads_per_pass * 1e-4), rel=0.05)


def test_j15_short_reads_and_slots_that_are_computed_with_cost_time(plan):
    p = plan(62 * M)
    reads, slots = p.reads_per_pass, p.allotment.slots
    costly = attrs.evolve(DISK, short_s=0.01, read_cpu_s=0.001)
    slower = plan(62 * M, rates=Calibration(costly, COMPUTE)).decode
    assert p.decode.disk_s < slower.disk_s <= p.decode.disk_s + reads * 0.01
    assert slower.compute_s == pytest.approx(p.decode.compute_s + reads * 0.001)
    assert slower.pass_s == pytest.approx(costly.latency_s + slower.disk_s + slower.compute_s / slots)


def test_j15_in_memory_the_processor_alone_counts_and_a_full_context_is_slower(plan):
    p = plan(200 * M)
    assert p.decode.binds == "processor"
    assert p.decode.tokens_per_s == pytest.approx(100)
    assert p.decode_full.pass_s == pytest.approx(0.01 + 1e-6 * (p.context - 128))
    assert p.more is None


def test_j15_prefill_reads_each_weight_once_per_chunk(plan):
    p = plan(62 * M)
    assert p.chunk_tokens > 1
    assert p.prefill.disk_s == pytest.approx(p.decode.disk_s)
    assert p.prefill.tokens_per_s > p.decode.tokens_per_s


def test_one_more_gib_holds_everything_and_says_what_that_buys(plan):
    p = plan(62 * M)
    assert p.more.read_bytes_per_token == 0
    assert p.more.decode.tokens_per_s == pytest.approx(100)
    assert "one GiB more gives    100 tokens/s" in p.render()


@pytest.mark.parametrize("rates", [Calibration(DISK, None), Calibration(None, COMPUTE), Calibration()])
def test_rates_that_could_not_be_measured_leave_a_plan_of_memory(plan, rates):
    p = plan(62 * M, rates=rates)
    assert (p.decode is None) == (rates == Calibration())
    assert p.total_bytes <= 62 * M
    assert p.render()
    assert json.loads(json.dumps(p.to_dict()))["calibration"]["disk"] == (rates.disk and DISK.to_dict())


def test_the_sweep_rises_from_the_smallest_budget_to_the_one_that_holds_all(plan):
    p = plan(62 * M)
    points = p.sweep()
    assert points[0].ram_bytes == p.smallest_ram_bytes
    assert points[-1].ram_bytes == p.all_fits_ram_bytes
    assert points[-1].read_bytes_per_token == 0
    rates = [point.decode.tokens_per_s for point in points]
    assert rates[0] < rates[len(rates) // 2] < rates[-1]
    chart = render_sweep(points).splitlines()
    assert len(chart) == len(points) + 1
    assert chart[-1].count("#") == max(line.count("#") for line in chart)


# ------------------------------------------------------------------ text


def test_the_map_has_a_line_for_each_stage(plan):
    p = plan(62 * M)
    layers = p.render().partition("layers (")[2].splitlines()[1:]
    assert [line.split()[0] for line in layers] == ["embedding", *(f"blk.{i}" for i in range(8)), "head"]
    assert "-" in layers[1].partition("[")[2].partition("]")[0]
    in_memory = plan(200 * M).render().partition("layers (")[2]
    assert "-" not in "".join(line.partition("[")[2].partition("]")[0] for line in in_memory.splitlines())


def test_json_holds_the_same_numbers(plan):
    p = plan(62 * M)
    facts = json.loads(json.dumps(p.to_dict()))
    assert facts["total_bytes"] == sum(facts["memory_bytes"].values())
    assert facts["decode"]["binds"] == "disk"
    assert facts["stages"][0]["by_row_bytes"] == p.by_row_bytes > 0


# ------------------------------------------------------------------ against a run


@pytest.mark.parametrize("ram", ["62M", "70M", "120M"])
def test_e07_the_plan_is_what_a_run_does(small, ram, store):
    """Peak and bytes per token, measured in a process that fills the context."""
    program = """
import json, sys
from ramforge_core.planning import plan_model
from ramforge_core.calibration import CalibrationStore
import ramforge_core
model, ram, mode = sys.argv[1:4]
if mode == "plan":
    p = plan_model(model, ram=ram, ctx=512, threads=1, store=CalibrationStore(__import__("pathlib").Path(sys.argv[4])))
    out = p.total_bytes, p.read_bytes_per_token, p.pinned_bytes, p.peak_bytes(512, 448)
else:
    with ramforge_core.open(model, ram=ram, ctx=512, threads=1) as m:
        cache, tokens = m.engine.cache(), [5 + i for i in range(448)]
        m.engine.prefill(tokens, cache)
        for i in range(8):
            m.engine.run([7 + i], 448 + i, cache, [True])
        peak = [l for l in open("/proc/self/status") if l.startswith("VmHWM")][0].split()[1]
        parts = m.engine.allotment.residency
        out = int(peak) * 1024, parts.read_bytes, parts.pinned_bytes, 0
print(json.dumps(out))
"""
    planned, actual = (
        json.loads(
            subprocess.run(
                [sys.executable, "-c", program, str(small), ram, mode, str(store.path)],
                capture_output=True,
                check=True,
                text=True,
            ).stdout
        )
        for mode in ("plan", "run")
    )
    # two processes differ in what they have imported, and in what the system mapped
    assert planned[2] == pytest.approx(actual[2], abs=2 * M)
    assert planned[1] == pytest.approx(actual[1], abs=2 * M)
    assert actual[0] <= planned[3] + M // 2
    assert planned[0] <= 1.1 * actual[0] + 6 * M  # the heap's reserve, and buffers that this run leaves alone


# ------------------------------------------------------------------ measuring


def test_a_sample_is_a_graph_of_its_own(model):
    head, block = model.graph.stages[-1], model.graph.stages[3]
    graph, weights = assemble([model.graph.stages[0], block, block, head], model.weights, 100_000, 16)
    assert [op.layer for op in graph.attentions] == [0, 1]
    assert set(graph.weights) == set(weights)
    assert max(w.nbytes for w in weights.values()) <= 100_000
    matrices = (
        sum(w.nbytes for w in weights.values() if len(w.shape) == 2)
        - 16 * model.weights["token_embd.weight"].row_bytes
    )
    whole = 2 * sum(model.weights[n].nbytes for op in block.ops for n in _matrices(op, model))
    assert matrices == whole + model.weights["output.weight"].nbytes
    assert all(isinstance(op, Attention) for op in graph.attentions)


def _matrices(op, model):
    name = getattr(op, "weight", None)
    return [name] if name and len(model.weights[name].shape) == 2 else []


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
@pytest.mark.parametrize(("arch", "tied"), [("llama", False), ("qwen2", True)])
def test_any_backend_is_measured_through_its_contract(tmp_path, registry, backend, arch, tied):
    file = write_model(tmp_path / "m.gguf", attrs.evolve(TINY, tied=tied), arch)
    model = read_model(open_gguf(file), registry)
    rate = measure_compute(model, registry.backend(backend), threads=1, free_bytes=8 * M)
    assert 0 < rate.decode_s < 10
    assert 0 < rate.prefill_s < 10
    assert ComputeRate.from_dict(rate.to_dict()) == rate


def test_rates_are_measured_once_and_anew_on_demand(model, registry, store, monkeypatch):
    backend = registry.backend("cpu")
    monkeypatch.setattr(compute_module, "_BUSY_SPREAD", 1e9)
    monkeypatch.setattr(compute_module, "_BUSY_SHARE", 1e9)
    first = calibrate(model, backend, threads=1, store=store)
    assert calibrate(model, backend, threads=1, store=store).compute == first.compute
    assert calibrate(model, backend, threads=2, store=store).compute != first.compute
    anew = calibrate(model, backend, threads=1, store=store, anew=True)
    assert anew.compute != first.compute
    assert calibrate(model, backend, threads=1, store=store).compute == anew.compute


@pytest.mark.parametrize("limit", ["_BUSY_SPREAD", "_BUSY_SHARE"])
def test_what_other_work_disturbed_is_measured_anew_the_next_time(model, registry, store, monkeypatch, limit):
    backend = registry.backend("cpu")
    monkeypatch.setattr(compute_module, limit, -1)
    disturbed = calibrate(model, backend, threads=1, store=store)
    assert disturbed.compute.busy
    assert remembered(model, backend, kv_type="f16", threads=1, store=store).compute == disturbed.compute
    monkeypatch.setattr(compute_module, "_BUSY_SPREAD", 1e9)
    monkeypatch.setattr(compute_module, "_BUSY_SHARE", 1e9)
    quiet = calibrate(model, backend, threads=1, store=store).compute
    assert not quiet.busy
    assert calibrate(model, backend, threads=1, store=store).compute == quiet


def test_a_measurement_that_fails_costs_a_warning(model, registry, store, monkeypatch, caplog):
    def refuse(*_, **__):
        raise ramforge_core.RamforgeError("not today")

    monkeypatch.setattr("ramforge_core.calibration.measure_compute", refuse)
    monkeypatch.setattr("ramforge_core.calibration.measure_disk", refuse)
    assert calibrate(model, registry.backend("cpu"), store=store) == Calibration()
    assert caplog.text.count("not today") == 2


def test_threads_below_nought_are_refused(small, registry):
    with pytest.raises(ParameterError, match="threads is -1"):
        plan_model(small, threads=-1, registry=registry)


# ------------------------------------------------------------------ declared architectures


@pytest.fixture
def declared(tmp_path):
    keys = {
        "context_length": 8192,
        "embedding_length": 512,
        "block_count": 4,
        "feed_forward_length": 1024,
        "attention.head_count": 8,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "vocab_size": 1000,
    }
    data = bytes(2 * 4096 * 512)
    tensors = {f"blk.{i}.ffn_up.weight": (1, (4096, 512), data) for i in range(4)}
    tensors["token_embd.weight"] = (1, (1000, 512), bytes(2 * 512_000))
    tensors["output.weight"] = (1, (1000, 512), bytes(2 * 512_000))
    metadata = {"general.architecture": "qwen35", **{f"qwen35.{k}": v for k, v in keys.items()}}
    return open_gguf(write_gguf(tmp_path / "qwen35.gguf", metadata, tensors))


def test_a_declared_architecture_is_planned_from_its_header(declared, registry):
    qwen35 = registry.architecture("qwen35")

    def make(ram):
        return plan_declared(declared, qwen35, registry, DISK, ram, PROCESS, None, "f16")

    p = make(65 * M)
    assert "cannot run yet" in p.note
    assert p.kv_bytes_per_token == 4 * 2 * 2 * 64 * 2
    assert p.memory["kv cache"] == 4096 * p.kv_bytes_per_token
    assert p.pinned_bytes + p.streamed_bytes + p.by_row_bytes == p.weight_bytes
    assert 0 < p.streamed_bytes < p.weight_bytes
    assert p.decode.binds == "disk"
    assert p.decode.pass_s == pytest.approx(p.streamed_bytes / DISK.bytes_per_s)
    assert p.prefill is None
    assert p.total_bytes <= 65 * M
    whole = make(p.all_fits_ram_bytes)
    assert whole.streamed_bytes == 0
    assert whole.pinned_bytes == p.weight_bytes
    assert whole.decode is None
    assert make(p.smallest_ram_bytes).streamed_bytes > 0
    with pytest.raises(BudgetTooSmallError):
        make(p.smallest_ram_bytes - 1)
    assert "cannot run yet" in p.render()
    json.dumps(p.to_dict())
    assert p.sweep()[-1].read_bytes_per_token == 0

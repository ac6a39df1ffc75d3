"""How a graph becomes units, what is refused, and how a run is stopped."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from python_kernels import PythonKernels

from ramforge_backend_cpu import CpuBackend, machine
from ramforge_backend_cpu.units import LOGITS_SLOT, build_units
from ramforge_core.backend import Batch
from ramforge_core.errors import BackendError, Interrupted, ParameterError, ShapeError
from ramforge_core.graph import GraphBuilder, op_weights
from ramforge_core.kv import CHUNK_POSITIONS
from ramforge_core.testing.rig import PlainFloat32, Rig, packed, tiny_llama


def units_of(graph, packing="f32"):
    return build_units(graph, {w: packing for op in graph.ops for w in op_weights(op)})


def test_an_activation_is_packed_once_for_all_who_read_it():
    graph, _ = tiny_llama(layers=1, width=256)
    packs = [u for u in units_of(graph, "q8_256").units if u.kind.startswith("PACK")]
    assert len(packs) == 5  # for q, k and v; o; gate and up; down; the head


def test_products_of_one_value_run_without_a_barrier_between_them():
    graph, _ = tiny_llama(layers=1)
    products = [u for u in units_of(graph).units if u.kind == "MATMUL"]
    weights = {u.op.weight: u.sync for u in products}
    assert [weights[f"0.{n}"] for n in ("q", "up", "o", "down")] == [True, False, True, True]
    assert not weights["0.k"] or not weights["0.v"]


@pytest.mark.parametrize("packing", ["f32", "q8_32"])
def test_no_value_lies_on_one_that_is_still_needed(packing):
    graph, _ = tiny_llama()
    listed = units_of(graph, packing)
    written = {id(u.out): n for n, u in enumerate(listed.units) if u.out is not None}
    for number, unit in enumerate(listed.units):
        if unit.out is None or unit.out.slot == LOGITS_SLOT:
            continue
        end = unit.out.slot + unit.out.stride
        assert end <= listed.floats_per_token
        for place in listed.places:
            if (
                place is not unit.out
                and written[id(place)] < number < place.last_use
                and place.slot != LOGITS_SLOT
            ):
                assert place.slot >= end or place.slot + place.stride <= unit.out.slot


def test_the_workspace_is_small_and_logits_are_not_in_it():
    graph, _ = tiny_llama(layers=4, width=64, vocab=5000)
    assert units_of(graph).floats_per_token <= 64 * 2 + 96 * 2 + 64


def test_a_stage_over_all_tokens_after_one_over_the_wanted_is_refused():
    g = GraphBuilder({"x": (4, 16)})
    with g.stage("a", rows="wanted"):
        x = g.embed("x")
    with g.stage("b"):
        g.logits(g.scale(x, 2.0))
    with pytest.raises(BackendError, match="wanted"):
        units_of(g.finish())


def rig_of(matmul, abi=1, **options):
    """A graph of two products by a Python kernel."""
    weights = {
        "x": np.ones((40, 256), np.float32),
        "a": np.ones((256, 256), np.float32),
        "b": np.ones((64, 256), np.float32),
    }
    g = GraphBuilder({n: w.shape for n, w in weights.items()})
    with g.stage("only"):
        g.logits(g.linear(g.linear(g.embed("x"), "a"), "b"))
    quant = PythonKernels("f32", matmul, abi)
    return Rig(CpuBackend(), g.finish(), weights, formats={"a": quant, "b": quant}, **options)


def test_kernels_of_another_abi_are_refused():
    with pytest.raises(BackendError, match="ABI 77"):
        rig_of(lambda n_rows, acts: 0, abi=77)


def test_a_kernel_that_refuses_is_named():
    with pytest.raises(BackendError, match="step 1"):
        rig_of(lambda n_rows, acts: -1).run([0])


def test_a_thread_that_hangs_in_a_task_leaves_the_others_of_its_share_to_the_rest():
    calls, others_are_done = [], threading.Event()

    def matmul(n_rows, acts):
        calls.append(threading.get_ident())
        if len(calls) == 1:
            assert others_are_done.wait(60)
        elif len(calls) == 8:  # 256 rows, four tasks for each thread
            others_are_done.set()
        return 0

    rig_of(matmul, threads=2).run([0])
    assert len(set(calls[1:8])) == 1
    assert calls[0] != calls[1]


@pytest.mark.parametrize("threads", [1, 2])
def test_stop_in_the_middle_of_a_matrix_ends_the_run_within_a_task(threads):
    calls = []

    def matmul(n_rows, acts):
        calls.append(n_rows)
        if len(calls) == 3:
            rig.control.stop()
        return 0

    rig = rig_of(matmul, threads=threads)
    with pytest.raises(Interrupted):
        rig.run(range(40))
    assert len(calls) <= 4
    rig.control.reset()
    calls[:] = [0] * 10
    rig.run(range(40))


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("tokens must be 0 to 49", {"tokens": [1, 50]}),
        ("tokens must be 0 to 49", {"tokens": [-1, 5]}),
        ("positions", {"tokens": [1, 2], "positions": [-1, 0]}),
        ("tokens", {"tokens": [1] * 65}),
    ],
)
def test_what_does_not_fit_is_refused(what, change):
    graph, weights = tiny_llama()
    rig = Rig(CpuBackend(), graph, weights)
    rig.run([1])
    with pytest.raises(ParameterError, match=what):
        rig.run(**change)


def test_positions_past_the_cache_are_refused():
    graph, weights = tiny_llama()
    rig = Rig(CpuBackend(), graph, weights, max_context=4 * CHUNK_POSITIONS)
    rig.run([1])
    late = Batch(*(np.array([n], np.int32) for n in (1, CHUNK_POSITIONS, 0)), np.array([False]))
    with pytest.raises(ParameterError, match="capacity"):
        rig.program.run(late, rig.caches, np.zeros((0, 50), np.float32), rig.control)


def test_a_weight_that_is_not_bound_is_named():
    graph, weights = tiny_llama()
    rig = Rig(CpuBackend(), graph, weights)
    rig.program = CpuBackend().compile(graph, rig.specs, rig.program.limits)
    rig.program.bind({name: packed(w) for name, w in weights.items() if name != "1.up"})
    with pytest.raises(ParameterError, match=r"1\.up"):
        rig.run([1])


def test_logits_of_another_shape_are_refused():
    graph, weights = tiny_llama()
    rig = Rig(CpuBackend(), graph, weights)
    rig.run([1])
    one = np.zeros(1, np.int32)
    with pytest.raises(ShapeError, match="logits"):
        rig.program.run(
            Batch(one, one, one, one == 0), rig.caches, np.zeros((1, 49), np.float32), rig.control
        )


def test_an_instruction_set_that_is_not_here_is_an_error(monkeypatch):
    monkeypatch.setenv(machine.ISA_VARIABLE, "mmx")
    graph, weights = tiny_llama()
    with pytest.raises(
        BackendError, match=r"RAMFORGE_ISA asks for 'mmx', but this machine has only .*portable"
    ):
        Rig(CpuBackend(), graph, weights)
    assert "mmx" in CpuBackend().describe()["isa"]


def test_f03_more_threads_than_processors_are_clamped_aloud(caplog):
    machine.warn_once.cache_clear()
    assert machine.chosen_threads(100_000) < 100_000
    assert machine.chosen_threads(100_000) < 100_000
    assert machine.chosen_threads(1) == 1
    ((logger, _, text),) = caplog.record_tuples
    assert logger == "ramforge"
    assert text.startswith("100000 threads are asked for")


def test_a_format_without_kernels_is_one_warning_however_many_weights_it_has(caplog):
    graph, weights = tiny_llama(layers=2)
    machine.warn_once.cache_clear()
    for _ in range(2):  # a model is compiled on trial before it is compiled
        Rig(CpuBackend(), graph, weights)
    ((logger, _, text),) = caplog.record_tuples
    assert logger == "ramforge"
    assert text.startswith(f"no kernels for {PlainFloat32.name}: 15 weights are kept decoded")


def test_i05_a_missing_extension_module_is_a_reason_not_a_crash(monkeypatch):
    monkeypatch.setitem(sys.modules, "ramforge_backend_cpu._native", None)
    machine.load_native.cache_clear()
    try:
        assert "the C part of ramforge-backend-cpu is not built" in CpuBackend().available()
        assert "not built" in CpuBackend().describe()["isa"]
        graph, weights = tiny_llama()
        with pytest.raises(BackendError, match="not built"):
            Rig(CpuBackend(), graph, weights)
    finally:
        monkeypatch.undo()
        machine.load_native.cache_clear()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_gets_an_error_and_can_end():
    """The child inherits the program without its threads: it must not wait for them, in a run or at its end."""
    script = """
import os
from ramforge_backend_cpu import CpuBackend
from ramforge_core.testing.rig import PlainFloat32, Rig, packed, tiny_llama
rig = Rig(CpuBackend(), *tiny_llama(), threads=2)
rig.run([1])
if os.fork() == 0:
    try:
        rig.run([1])
    except Exception as error:
        print(error, flush=True)
    del rig
else:
    os.wait()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert "forked" in done.stdout

"""`ramforge_core.budget`: no byte too many, none forgotten."""

from __future__ import annotations

import pickle
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramforge_core.budget import MemoryBudget, TagUse
from ramforge_core.errors import BudgetExceededError, ParameterError, RamforgeError

M = 1 << 20


def state(budget):
    return budget.used, budget.free, budget.peak, dict(budget.by_tag())


def test_a_charge_lasts_as_long_as_its_block():
    budget = MemoryBudget(100)
    with budget.charge("kv", 60) as charge:
        assert (charge.tag, charge.nbytes) == ("kv", 60)
        assert (budget.used, budget.free, budget.limit) == (60, 40, 100)
    assert (budget.used, budget.free, budget.peak, charge.nbytes) == (0, 100, 60, 0)


def test_a_failing_block_gives_its_bytes_back():
    budget = MemoryBudget(100)
    with pytest.raises(KeyboardInterrupt), budget.charge("kv", 60):
        raise KeyboardInterrupt
    assert budget.used == 0


def test_all_bytes_can_be_charged_and_not_one_more():
    budget = MemoryBudget(100)
    budget.charge("weights", 100)
    before = state(budget)
    with pytest.raises(BudgetExceededError):
        budget.charge("kv", 1)
    assert state(budget) == before


def test_the_error_says_what_it_knows():
    budget = MemoryBudget(400 * M)
    budget.charge("weights", 300 * M)
    with pytest.raises(
        MemoryError, match=r"kv needs 112 MiB more, but 300 MiB of .* 400 MiB .* 12.0 MiB .*--ram"
    ) as raised:
        budget.charge("kv", 112 * M)
    error = raised.value
    assert isinstance(error, RamforgeError)
    assert error.reason == "budget"
    assert (error.tag, error.requested, error.used, error.limit) == ("kv", 112 * M, 300 * M, 400 * M)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_release_again_does_nothing():
    budget = MemoryBudget(100)
    other = budget.charge("kv", 30)
    charge = budget.charge("kv", 60)
    charge.release()
    charge.release()
    assert budget.used == other.nbytes == 30


def test_growth_that_does_not_fit_leaves_the_charge_as_it_was():
    budget = MemoryBudget(100)
    charge = budget.charge("kv", 60)
    before = state(budget)
    with pytest.raises(BudgetExceededError) as raised:
        charge.resize(101)
    assert (raised.value.requested, raised.value.used) == (41, 60)
    assert state(budget) == before
    charge.resize(100)  # nothing was lost: the last byte is still to be had
    charge.resize(10)
    assert (charge.nbytes, budget.used, budget.peak) == (10, 10, 100)


def test_what_stays_is_never_uncharged_while_others_wait_for_room():
    """A resize that gave everything back first would let the thief in."""
    budget = MemoryBudget(100)
    charge = budget.charge("kv", 60)
    stop, stolen = threading.Event(), []

    def thief():
        while not stop.is_set():
            try:
                budget.charge("thief", 51).release()
            except BudgetExceededError:
                continue
            stolen.append(1)

    thread = threading.Thread(target=thief)
    thread.start()
    for _ in range(3000):
        charge.resize(70)
        charge.resize(50)
    stop.set()
    thread.join()
    assert not stolen
    assert charge.nbytes == 50


def test_a_released_charge_cannot_come_back():
    budget = MemoryBudget(100)
    with budget.charge("kv", 60) as charge:
        pass
    with pytest.raises(ParameterError, match="kv"):
        charge.resize(0)
    assert budget.used == 0


@pytest.mark.parametrize("size", [-1, np.int64(-1)])
def test_negative_sizes_are_refused_and_change_nothing(size):
    budget = MemoryBudget(100)
    charge = budget.charge("kv", 5)
    with pytest.raises(ParameterError):
        budget.charge("kv", size)
    with pytest.raises(ParameterError):
        charge.resize(size)
    assert budget.used == 5


@pytest.mark.parametrize("limit", [0, -5])
def test_a_budget_of_nothing_is_refused(limit):
    with pytest.raises(ParameterError):
        MemoryBudget(limit)


def test_without_a_limit_everything_fits_and_is_booked():
    budget = MemoryBudget(None)
    charge = budget.charge("weights", 1 << 70)
    assert (budget.limit, budget.free, budget.used) == (None, None, 1 << 70)
    charge.release()
    assert (budget.used, budget.peak) == (0, 1 << 70)


def test_fixed_width_integers_do_not_overflow():
    budget = MemoryBudget(None)
    charges = [budget.charge("weights", np.int32(2**31 - 1)) for _ in range(3)]
    assert budget.used == sum(int(c.nbytes) for c in charges) == 3 * (2**31 - 1)


def test_tags_have_their_own_peaks_and_stay():
    budget = MemoryBudget(100)
    with budget.charge("kv", 10), budget.charge("kv", 20), budget.charge("ring", 5):
        pass
    weights = budget.charge("weights", 70)
    weights.resize(40)
    assert budget.by_tag() == {"kv": (0, 30), "ring": (0, 5), "weights": (40, 70)}
    assert budget.by_tag()["weights"].peak_bytes == 70


def test_the_book_cannot_be_written_from_outside():
    budget = MemoryBudget(100)
    book = budget.by_tag()
    with pytest.raises(TypeError):
        book["kv"] = (1, 1)
    budget.charge("kv", 7)
    assert book == {}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["charge", "resize", "release"]),
        st.sampled_from("abc"),
        st.integers(0, 70),
        st.integers(0, 9),
    ),
    max_size=60,
)


@given(STEPS)
def test_no_sequence_passes_the_limit_or_loses_a_byte(steps):
    """Against the plainest model: a list of numbers that is summed anew each time."""
    budget, held, peak, tag_peaks = MemoryBudget(100), [], 0, {}
    for action, tag, size, which in steps:
        target = held[which % len(held)] if held else None
        had = 0 if action == "charge" or target is None else target.nbytes
        room = 100 - sum(c.nbytes for c in held) + had
        if action == "release" and target is not None:
            target.release()
            held.remove(target)
        elif size > room and (action == "charge" or target is not None):
            with pytest.raises(BudgetExceededError) as raised:
                budget.charge(tag, size) if action == "charge" else target.resize(size)
            assert (raised.value.requested, raised.value.limit) == (size - had, 100)
            assert action == "charge" or target.nbytes == had
        elif action == "charge":
            held.append(budget.charge(tag, size))
        elif action == "resize" and target is not None:
            target.resize(size)
            assert target.nbytes == size
        used = sum(c.nbytes for c in held)
        by_tag = {t: sum(c.nbytes for c in held if c.tag == t) for t in "abc"}
        peak = max(peak, used)
        tag_peaks = {t: max(tag_peaks.get(t, 0), by_tag[t]) for t in "abc"}
        assert budget.used == used <= 100
        assert budget.peak == peak
        assert all(use == (by_tag[t], tag_peaks[t]) for t, use in budget.by_tag().items())
    for charge in held:
        charge.release()
    assert budget.used == 0
    assert all(use.bytes == 0 for use in budget.by_tag().values())


def test_threads_never_pass_the_limit_and_end_at_zero(monkeypatch):
    def slow(*sizes):  # lets other threads in amid the bookkeeping, where a missing lock would show
        time.sleep(1e-3)
        return TagUse(*sizes)

    monkeypatch.setattr("ramforge_core.budget.TagUse", slow)
    budget, over, kept = MemoryBudget(1000), [], []

    def work(seed):
        random = np.random.default_rng(seed)
        for size, other in random.integers(1, 200, (12, 2)).tolist():
            try:
                with budget.charge("short", size) as charge:
                    charge.resize(other)
                    over.extend([budget.used] if budget.used > 1000 else [])
                kept.append(budget.charge(f"thread {seed}", size))
            except BudgetExceededError as error:
                over.extend([error] if error.requested + error.used <= 1000 else [])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not over
    assert budget.used == sum(charge.nbytes for charge in kept) > 0
    assert budget.peak <= 1000
    for charge in kept:
        charge.release()
    assert budget.used == 0
    assert all(use.bytes == 0 for use in budget.by_tag().values())

"""Several answers at once: the same tokens as alone, shared passes, kept beginnings, and every way out."""

from __future__ import annotations

import queue
import time

import numpy as np
import pytest
from attrs import evolve
from engines import Engines
from synthetic import SMALL, TINY, write_model

from ramforge_core.answer import Answer
from ramforge_core.errors import ContextFullError, Interrupted, NonFiniteError, QueueFullError
from ramforge_core.sampling import Sampler, SamplingParameters
from ramforge_core.scheduler import Drawn, Ended, Prefilled, Request, Scheduler
from ramforge_core.tokenizer import TokenStream

PROMPTS = [[(7 * i + 31 * j) % 500 + 3 for j in range(5 + 40 * i)] for i in range(5)]


class Numbers:
    """A vocabulary whose pieces are the tokens' numbers."""

    end_of_generation = frozenset({2})

    def piece(self, token, *, special=True):
        return f"<{token}>".encode()

    def token_id(self, text):
        return None

    def stream(self, *, special=False):
        return TokenStream(self, special=special)


class Client:
    """A request and the events that came of it."""

    def __init__(self, engine, prompt, n=12, *, temperature=0.0, seed=1, stop=(), **options) -> None:
        self.events = queue.SimpleQueue()
        answer = Answer(Numbers(), engine.context - len(prompt) + 1, n, stop)
        sampler = Sampler(SamplingParameters(temperature=temperature, seed=seed))
        self.request = Request(prompt, sampler, answer, self.events.put, **options)

    def wait(self):
        """All events up to the end."""
        got = [self.events.get(timeout=60)]
        while not isinstance(got[-1], Ended):
            got.append(self.events.get(timeout=60))
        return got

    def ids(self):
        end = self.wait()[-1]
        assert end.error is None, end.error
        return list(self.request.answer.ids)


@pytest.fixture
def engines(monkeypatch):
    made = Engines(monkeypatch)
    yield made
    for engine in made.opened:
        engine.close()
        assert engine.budget.used == 0


@pytest.fixture
def schedulers():
    made = []

    def make(engine, **options):
        made.append(Scheduler(engine, **options))
        return made[-1]

    yield make
    for scheduler in made:
        scheduler.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("scheduler") / "tiny.gguf", TINY)


@pytest.fixture(scope="module")
def medium(tmp_path_factory):
    """Large enough that half of it in memory leaves room for passes over several sequences."""
    sizes = evolve(SMALL, layers=4, vocab=1030)
    return write_model(tmp_path_factory.mktemp("scheduler") / "medium.gguf", sizes)


def alone(engines, model, prompt, n=12, **options):
    engine = engines(model)
    scheduler = Scheduler(engine)
    client = Client(engine, prompt, n, **options)
    scheduler.submit(client.request)
    ids = client.ids()
    scheduler.close()
    return ids


@pytest.mark.parametrize("share", [None, 0.5])
def test_g07_answers_are_the_same_as_alone(engines, schedulers, medium, share):
    engine = (
        engines(medium, sequences=4)
        if share is None
        else engines.streaming(medium, share, context=512, sequences=4)
    )
    scheduler = schedulers(engine, sequences=4)
    clients = [Client(engine, p, temperature=0.9, seed=i) for i, p in enumerate(PROMPTS)]
    for client in clients:
        scheduler.submit(client.request)
    together = [client.ids() for client in clients]
    for i, prompt in enumerate(PROMPTS):
        assert together[i] == alone(engines, medium, prompt, temperature=0.9, seed=i)


def test_requests_share_passes(engines, schedulers, model):
    engine = engines(model, sequences=4)
    scheduler = schedulers(engine, sequences=4)
    clients = [Client(engine, p, 40) for p in PROMPTS[:4]]
    for client in clients:
        scheduler.submit(client.request)
    n = sum(len(client.ids()) for client in clients)
    assert n == 160
    assert scheduler.load.passes < 60


def test_g07_a_second_turn_computes_only_what_is_new(engines, schedulers, model):
    engine = engines(model)
    scheduler = schedulers(engine)
    first = Client(engine, PROMPTS[2])
    scheduler.submit(first.request)
    ids = first.ids()
    before = scheduler.load.tokens
    turn = [*PROMPTS[2], *ids, 9, 10, 11]
    second = Client(engine, turn)
    scheduler.submit(second.request)
    answered = second.ids()
    assert second.request.reused_tokens == len(turn) - 4  # the last one drawn was never run
    assert scheduler.load.tokens - before == 4 + len(answered) - 1
    assert answered == alone(engines, model, turn)


def test_g07_a_running_sequence_lends_its_start(engines, schedulers, model):
    engine = engines(model, sequences=2)
    scheduler = schedulers(engine, sequences=2)
    first = Client(engine, PROMPTS[3], 200)
    scheduler.submit(first.request)
    while not isinstance(first.events.get(timeout=60), Drawn):
        pass
    second = Client(engine, [*PROMPTS[3][:100], 5, 6])
    scheduler.submit(second.request)
    assert second.ids() == alone(engines, model, [*PROMPTS[3][:100], 5, 6])
    assert second.request.reused_tokens == 100


def test_who_finds_no_memory_gives_way_and_draws_the_same(engines, schedulers, medium):
    """The cache of one context serves three answers that need more than it together."""
    engine = engines.streaming(medium, 0.5, context=512, sequences=3)
    chunk = engine.allotment.kv_layout.chunk_bytes
    assert engine.budget.free < 6 * chunk
    scheduler = schedulers(engine, sequences=3)
    prompts = [[i + 3] * 250 for i in range(3)]
    clients = [Client(engine, p, 20) for p in prompts]
    for client in clients:
        scheduler.submit(client.request)
    together = [client.ids() for client in clients]
    assert together == [alone(engines, medium, p, 20) for p in prompts]
    assert engine.budget.peak <= engine.budget.limit


def test_prompts_beyond_the_context_are_refused(engines, schedulers, model):
    engine = engines(model, context=64)
    with pytest.raises(ContextFullError, match="65 tokens, but the context holds 64"):
        schedulers(engine).submit(Client(engine, [5] * 65).request)


def test_a_full_context_ends_an_answer(engines, schedulers, model):
    engine = engines(model, context=64)
    client = Client(engine, [5] * 60, 100)
    schedulers(engine).submit(client.request)
    assert len(client.ids()) == 5
    assert client.request.answer.finish_reason == "context"


def test_a_full_queue_refuses(engines, schedulers, model):
    engine = engines(model)
    scheduler = schedulers(engine, sequences=1, queue=1)
    running = Client(engine, PROMPTS[0], 2000)
    scheduler.submit(running.request)
    running.events.get(timeout=60)
    waiting = Client(engine, PROMPTS[1], 3)
    scheduler.submit(waiting.request)
    with pytest.raises(QueueFullError, match="1 requests run and 1 wait"):
        scheduler.submit(Client(engine, PROMPTS[2]).request)
    scheduler.cancel(running.request)
    assert len(waiting.ids()) == 3


def test_cancelled_requests_end_and_others_go_on(engines, schedulers, model):
    engine = engines(model, sequences=2)
    scheduler = schedulers(engine, sequences=2)
    gone, stays = Client(engine, PROMPTS[0], 2000), Client(engine, PROMPTS[1], 30)
    for client in (gone, stays):
        scheduler.submit(client.request)
    gone.events.get(timeout=60)
    scheduler.cancel(gone.request)
    assert gone.wait()[-1] == Ended()
    assert stays.ids() == alone(engines, model, PROMPTS[1], 30)
    assert len(gone.request.answer.ids) < 2000


def test_progress_text_and_order_of_events(engines, schedulers, model):
    engine = engines(model)
    client = Client(engine, list(range(3, 3 + 700 % 500)) * 4, 3)  # longer than a pass
    schedulers(engine).submit(client.request)
    events = client.wait()
    prefilled = [e for e in events if isinstance(e, Prefilled)]
    assert [e.done for e in prefilled] == [512]
    assert prefilled[0].total == 800
    drawn = [e for e in events if isinstance(e, Drawn)]
    assert "".join(e.text for e in drawn) == "".join(f"<{t}>" for t in client.request.answer.ids)


def test_stop_strings_end_without_a_further_pass(engines, schedulers, model):
    engine = engines(model)
    ids = alone(engines, model, PROMPTS[1])
    scheduler = schedulers(engine)
    at = next(i for i in range(len(ids)) if i and ids[i] not in ids[:i])
    client = Client(engine, PROMPTS[1], stop=[f"<{ids[at]}>"])
    scheduler.submit(client.request)
    text = "".join(e.text for e in client.wait() if isinstance(e, Drawn))
    assert text == "".join(f"<{t}>" for t in ids[:at])
    assert scheduler.load.passes == at + 1


def test_logprobs_are_those_of_the_model(engines, schedulers, model):
    engine = engines(model)
    client = Client(engine, PROMPTS[1], 2, logprobs=3)
    schedulers(engine).submit(client.request)
    drawn = [e for e in client.wait() if isinstance(e, Drawn)]
    ids = [e.token for e in drawn]
    logits = engine.all_logits([*PROMPTS[1], *ids])[len(PROMPTS[1]) - 1 :].astype(np.float64)
    for event, row in zip(drawn, logits, strict=False):
        expected = row - row.max() - np.log(np.exp(row - row.max()).sum())
        assert event.logprob == pytest.approx(expected[event.token], abs=1e-9)
        assert [t for t, _ in event.top] == list(np.argsort(-row)[:3])
        assert event.top[0] == (event.token, event.logprob)


class Odd:
    """Allows odd tokens only."""

    def __init__(self):
        self.taken = []

    def allow(self, logits):
        out = logits.copy()
        out[::2] = -np.inf
        return out

    def accept(self, token):
        self.taken.append(token)


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_a_constraint_bounds_the_tokens(engines, schedulers, model, temperature):
    engine = engines(model)
    odd = Odd()
    client = Client(engine, PROMPTS[1], 20, temperature=temperature, constraint=odd)
    schedulers(engine).submit(client.request)
    assert client.ids() == odd.taken
    assert all(t % 2 for t in odd.taken)


def test_a_broken_constraint_breaks_its_own_answer_only(engines, schedulers, model):
    engine = engines(model, sequences=2)

    class Broken(Odd):
        def accept(self, token):
            raise NonFiniteError("no")

    scheduler = schedulers(engine, sequences=2)
    bad, good = Client(engine, PROMPTS[0], constraint=Broken()), Client(engine, PROMPTS[1])
    for client in (bad, good):
        scheduler.submit(client.request)
    assert isinstance(bad.wait()[-1].error, NonFiniteError)
    assert good.ids() == alone(engines, model, PROMPTS[1])


def test_closing_breaks_off_what_runs_and_waits(engines, schedulers, model):
    engine = engines(model)
    scheduler = schedulers(engine, sequences=1)
    clients = [Client(engine, PROMPTS[0], 3000) for _ in range(2)]
    for client in clients:
        scheduler.submit(client.request)
    clients[0].events.get(timeout=60)
    began = time.monotonic()
    scheduler.close()
    assert time.monotonic() - began < 2
    assert all(isinstance(client.wait()[-1].error, Interrupted) for client in clients)
    with pytest.raises(Interrupted):
        scheduler.submit(clients[0].request)


def test_draining_lets_answers_end(engines, schedulers, model):
    engine = engines(model)
    scheduler = schedulers(engine, sequences=1)
    clients = [Client(engine, p, 10) for p in PROMPTS[:3]]
    for client in clients:
        scheduler.submit(client.request)
    assert scheduler.drain(60)
    assert [len(client.ids()) for client in clients] == [10, 10, 10]
    with pytest.raises(Interrupted):
        scheduler.submit(clients[0].request)


def test_many_rounds_hold_no_more_memory(engines, schedulers, medium):
    engine = engines.streaming(medium, 0.5, context=256, sequences=4)
    scheduler = schedulers(engine, sequences=4)
    for i in range(8):
        clients = [Client(engine, [(i * 13 + j * 5) % 500 + 3] * (10 + 3 * j), 4) for j in range(4)]
        for client in clients:
            scheduler.submit(client.request)
        for client in clients:
            assert len(client.ids()) == 4
    assert scheduler.load.kept <= 4
    assert engine.budget.peak <= engine.budget.limit


def test_beginnings_that_chats_share_are_kept_for_all_of_them(engines, schedulers, model):
    engine = engines(model)
    scheduler = schedulers(engine)
    common = PROMPTS[3][:60]
    chats = [[*common, *([i + 7] * 50)] for i in range(3)]
    for chat in chats:
        first = Client(engine, chat, 5)
        scheduler.submit(first.request)
        chat += first.ids()
    for chat in chats:
        second = Client(engine, [*chat, 9, 10], 5)
        scheduler.submit(second.request)
        assert second.ids() == alone(engines, model, [*chat, 9, 10], 5)
        assert second.request.reused_tokens == len(chat) - 1


def test_nobody_waits_long_for_a_longer_prompt_nor_for_ever_for_shorter_ones(engines, schedulers, model):
    engine = engines(model, sequences=4)
    scheduler = schedulers(engine, sequences=4)
    long = Client(engine, [(7 * i) % 500 + 3 for i in range(3000)], 1)
    scheduler.submit(long.request)
    long.events.get(timeout=60)
    passes = []
    for i in range(6):
        short = Client(engine, [i + 5] * 300, 1)
        before = scheduler.load.passes
        scheduler.submit(short.request)
        short.ids()
        passes.append(scheduler.load.passes - before)
    long.ids()
    assert max(passes) <= 4, "a pass that ran already, one for the long prompt, and its own"
    assert scheduler.load.passes <= 6 + 6 + 2


def test_constraint_and_seed_survive_giving_way(engines, schedulers, medium, monkeypatch):
    """Whoever finds no memory starts anew: with the tokens that it drew, the random numbers and the grammar."""
    engine = engines.streaming(medium, 0.5, context=512, sequences=3)
    scheduler = schedulers(engine, sequences=3)
    odd = [Odd() for _ in range(3)]
    clients = [
        Client(engine, [i + 3] * 250, 20, temperature=1.1, seed=i, constraint=odd[i]) for i in range(3)
    ]
    put_back, original = [], Scheduler._put_back
    monkeypatch.setattr(
        Scheduler, "_put_back", lambda s, active: (put_back.append(active), original(s, active))
    )
    for client in clients:
        scheduler.submit(client.request)
    together = [client.ids() for client in clients]
    assert put_back
    for i in range(3):
        expected = alone(engines, medium, [i + 3] * 250, 20, temperature=1.1, seed=i, constraint=Odd())
        assert together[i] == expected == odd[i].taken


def test_a_read_that_fails_ends_those_that_run_and_nobody_else(engines, schedulers, medium):
    engine = engines.streaming(medium, 0.5, context=256, sequences=2)
    scheduler = schedulers(engine, sequences=2)
    engines.source.before_window = staticmethod(lambda read: time.sleep(0.005))
    clients = [Client(engine, p, 150) for p in PROMPTS[:2]]
    for client in clients:
        scheduler.submit(client.request)
    clients[0].events.get(timeout=60)

    def fail(read):
        raise OSError(5, "Input/output error")

    engines.source.before_window = staticmethod(fail)
    for client in clients:
        assert client.wait()[-1].error is not None
    engines.source.before_window = None
    later = Client(engine, PROMPTS[0], 10)
    scheduler.submit(later.request)
    assert later.ids() == alone(engines, medium, PROMPTS[0], 10)


def test_a_pass_that_fails_in_admission_fails_its_request_only(engines, schedulers, model, monkeypatch):
    engine = engines(model, sequences=2)
    scheduler = schedulers(engine, sequences=2)

    def broken(self, active):
        raise MemoryError("no")

    monkeypatch.setattr(Scheduler, "_sequence_for", broken)
    client = Client(engine, PROMPTS[0])
    scheduler.submit(client.request)
    assert isinstance(client.wait()[-1].error, MemoryError)
    monkeypatch.undo()
    later = Client(engine, PROMPTS[0])
    scheduler.submit(later.request)
    assert later.ids()


def test_h09_a_cancelled_answer_stops_its_streamed_pass(engines, schedulers, model):
    """Not at its end, which may be seconds away."""
    engine = engines.streaming(model, 0.3, context=256)
    scheduler = schedulers(engine)
    engines.source.before_window = staticmethod(lambda read: time.sleep(0.1))
    client = Client(engine, PROMPTS[2])
    scheduler.submit(client.request)
    while not engine.reads.reads:
        time.sleep(0.01)
    began = time.monotonic()
    scheduler.cancel(client.request)
    client.wait()
    assert time.monotonic() - began < 0.1 * len(engine.allotment.residency.reads) / 2
    assert not client.request.answer.ids

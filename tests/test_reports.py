"""Reports on real runs of small models, in memory and streamed: the numbers must be true, and cost nothing when off."""

from __future__ import annotations

import json
from functools import partial

import pytest
from attrs import evolve
from synthetic import SMALL, TINY, write_model

import ramforge_core
from ramforge_core import reports
from ramforge_core.errors import BudgetTooSmallError
from ramforge_core.profile import OTHER, Profile
from ramforge_core.system import process_memory

NEW = 6


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("reports") / "small.gguf", SMALL)


def open_tight(file, more=4 << 20, **options):
    """Open it with ``more`` bytes than it needs at least."""
    with pytest.raises(BudgetTooSmallError) as caught:
        ramforge_core.open(file, ram=process_memory().rss + (2 << 20), ctx=256, **options)
    return ramforge_core.open(file, ram=caught.value.minimum + more, ctx=256, **options)


def answered(m, prompt="w300 w301 w302"):
    answer = m.generate(prompt, raw=True, max_tokens=NEW, temperature=0)
    text = "".join(answer)
    return answer, text


def test_e15_summary_of_a_streamed_model(file):
    with open_tight(file) as m:
        answer, _ = answered(m)
        found = reports.summary(m, answer)
        parts = m.engine.allotment.residency
    assert not found.fits
    assert found.weight_bytes == sum(p.nbytes for p in (*parts.pinned, *parts.streamed)) + (
        m.engine.model.weights["token_embd.weight"].nbytes
    )
    assert found.pinned_bytes == sum(p.nbytes for p in parts.pinned)
    assert found.streamed_bytes == sum(p.nbytes for p in parts.streamed) > 0
    assert found.read_bytes_per_pass == sum(r.nbytes for r in parts.reads)
    assert found.resident_weight_bytes == found.pinned_bytes + found.ring_bytes
    assert found.managed_peak_bytes <= found.budget_bytes
    values = {"q4_k": 256 / 144, "q6_k": 256 / 210, "f32": 1 / 4}
    assert found.float32_bytes == 4 * sum(
        round(w.nbytes * values[w.format.name]) for w in m.engine.model.weights.values()
    )
    assert found.disk_bytes > 0
    assert found.disk_s > 0
    assert (found.generated_tokens, found.decode_passes) == (NEW, NEW - 1)
    text = found.render()
    for part in (
        "pinned",
        "streamed for each token",
        "a token at",
        "came from memory",
        "waited",
        "ended by length",
    ):
        assert part in text


def test_e15_summary_of_a_model_in_memory(file):
    with ramforge_core.open(file, ctx=256, threads=1) as m:
        answer, _ = answered(m)
        found = reports.summary(m, answer)
    assert found.fits
    assert found.streamed_bytes == found.disk_bytes == 0
    assert found.pinned_bytes == found.weight_bytes
    assert found.threads == 1
    assert "nothing is read after load" in found.render()
    assert "disk" not in found.render()
    assert reports.plan_check(m, answer) is None


def test_e15_every_read_is_counted(file):
    with open_tight(file) as m:
        answer, _ = answered(m)
        stats, reads = answer.stats, m.engine.allotment.residency.reads
    per_pass = sum(r.nbytes for r in reads)
    for counted, passes in ((stats.prompt_reads, 1), (stats.decode_reads, NEW - 1)):
        ahead = m.engine.allotment.ring_bytes  # what was read for the next pass already, or by the last one
        assert abs(counted.read_bytes - passes * per_pass) <= ahead
        assert counted.pieces >= counted.reads > 0
        assert 0 <= counted.sequential <= counted.reads
        assert counted.gap_bytes < counted.read_bytes
        assert counted.busy_s > 0
    assert stats.decode_reads.row_reads == NEW - 1
    assert stats.prompt_reads.row_reads == len(set(answer.prompt_ids))
    assert stats.decode_reads.stall_s <= stats.decode_s


def test_e15_plan_beside_the_truth(file):
    with open_tight(file) as m:
        answer, _ = answered(m)
        check = reports.plan_check(m, answer)
    bytes_read = check.rows["bytes_read_per_token"]
    per_pass, ring = m.engine.allotment.residency.read_bytes, m.engine.allotment.ring_bytes
    assert abs(bytes_read.planned - per_pass) < 16384
    assert abs(bytes_read.actual - bytes_read.planned) <= ring / (NEW - 1) + 8192
    assert "planned" in check.render()
    assert set(check.to_dict()["answer_tokens_per_s"]) == {"planned", "actual"}


def test_f05_a_file_that_was_removed_meanwhile_is_still_reported_on(tmp_path):
    path = write_model(tmp_path / "model.gguf", SMALL)
    with open_tight(path) as m:
        path.unlink()
        answer, _ = answered(m)
        check = reports.plan_check(m, answer)
    assert check.rows["bytes_read_per_token"].actual > 0
    assert check.rows["answer_tokens_per_s"].planned is None


@pytest.mark.parametrize(("backend", "sizes", "more"), [("cpu", SMALL, 4 << 20), ("numpy", TINY, 300_000)])
@pytest.mark.parametrize("streamed", [False, True])
def test_e15_a_profile_changes_no_answer_and_adds_up(tmp_path, backend, sizes, more, streamed):
    profile = Profile()
    file = write_model(tmp_path / "model.gguf", sizes)
    start = (
        partial(open_tight, more=more)
        if streamed
        else lambda file, **o: ramforge_core.open(file, ctx=256, **o)
    )
    with start(file, backend=backend) as m:
        plain, text = answered(m)
    with start(file, backend=backend, profile=profile) as m:
        answer, same = answered(m)
        names = [stage.name for stage in m.engine.model.graph.stages]
        multiplied = sum(
            w.nbytes
            for n, w in m.engine.model.weights.items()
            if len(w.shape) > 1 and n != "token_embd.weight"
        )
    assert (answer.ids, same) == (plain.ids, text)
    chunks, alone = divmod(answer.stats.prompt_tokens - 1, m.engine.allotment.max_tokens)
    prefill = chunks + (alone > 0)  # a last token that is alone in its pass counts as decode
    for name, passes in (("prefill", prefill), ("decode", NEW - 1 + (chunks + 1 - prefill))):
        phase = profile.phases[name]
        assert phase.passes == passes
        assert list(phase.stages) == names
        assert set(phase.kinds) == {"embedding", "q4_k", "q6_k", "attention", OTHER}
        computed = sum(use.compute_s for use in phase.kinds.values())
        assert computed == pytest.approx(sum(use.compute_s for use in phase.stages.values()))
        assert 0 < computed <= answer.stats.prompt_s + answer.stats.decode_s
        assert sum(use.weight_bytes for use in phase.kinds.values()) == passes * multiplied
        come = sum(use.streamed_bytes for use in phase.stages.values())
        assert come == passes * m.engine.allotment.residency.streamed_bytes
        assert (come > 0) == streamed
    text = reports.time_report(answer.stats, profile).render()
    for part in ("prefill", "decode", "p50", "p99", "sampling", "callback", "q4_k", names[-1], "attention"):
        assert part in text
    assert ("sequential" in text) == streamed


def test_e15_time_of_the_caller_is_told_apart(file):
    import time

    with ramforge_core.open(file, ctx=256) as m:
        answer = m.generate("w300", raw=True, max_tokens=4, temperature=0)
        for _ in answer:
            time.sleep(0.02)
    stats = answer.stats
    assert stats.callback_s >= 0.06
    assert stats.decode_s < stats.callback_s + 1
    assert len(stats.token_s) == stats.decode_passes
    assert sum(stats.token_s) == pytest.approx(stats.decode_s)
    latencies = stats.latencies_s()
    assert latencies["p50"] <= latencies["p90"] <= latencies["p99"] <= latencies["max"] == max(stats.token_s)


def test_e15_memory_is_three_separate_things(file):
    with open_tight(file) as m:
        answered(m)
        found = reports.memory_report(m.engine.budget)
    facts = json.loads(json.dumps(found.to_dict()))
    assert set(facts) == {"managed", "process", "system"}
    tags = facts["managed"]["by_tag"]
    assert {"process", "pinned weights", "stream ring", "kv cache"} <= set(tags)
    assert sum(use["bytes"] for use in tags.values()) == facts["managed"]["used_bytes"]
    assert tags["kv cache"]["bytes"] == 0 < tags["kv cache"]["peak_bytes"]
    assert facts["managed"]["peak_bytes"] <= facts["managed"]["limit_bytes"]
    text = found.render()
    heads = [line for line in text.splitlines() if not line.startswith(" ")]
    assert [line.split()[:2] for line in heads] == [["memory", "that"], ["memory", "of"], ["memory", "of"]]


def test_e15_everything_is_json(file):
    with open_tight(file) as m:
        answer, _ = answered(m)
        facts = json.loads(json.dumps(reports.everything(m, answer)))
    assert facts["seed"] == answer.seed
    assert facts["profile"]["phases"] == {}
    assert facts["profile"]["reads"]["decode"]["bytes_per_s"] > 0
    assert facts["summary"]["pinned_bytes"] > 0
    assert facts["plan"]["bytes_read_per_token"]["planned"] > 0


def test_e15_an_answer_without_a_decode_pass(file):
    with open_tight(file) as m:
        answer = m.generate("w300", raw=True, max_tokens=1, temperature=0)
        answer.text()
        assert reports.summary(m, answer).render()
        assert reports.time_report(answer.stats).render()
        assert reports.plan_check(m, answer).render()


@pytest.mark.parametrize("streamed", [False, True])
def test_j13_prefill_shows_that_it_is_alive(file, streamed, monkeypatch):
    monkeypatch.setattr("ramforge_core.engine._PROGRESS_S", 0.0005)
    seen: list[tuple[float, int]] = []
    with open_tight(file) if streamed else ramforge_core.open(file, ctx=256) as m:
        prompt = "a" * 180
        answer = m.generate(
            prompt, raw=True, max_tokens=1, temperature=0, progress=lambda *at: seen.append(at)
        )
        answer.text()
    total = answer.stats.prompt_tokens
    done = [tokens for tokens, _ in seen]
    assert done == sorted(done)
    assert seen[-1] == (total, total)
    assert len({d for d in done if 0 < d < total}) >= 3


@pytest.mark.parametrize("streamed", [False, True])
def test_j13_loading_tells_bytes(file, streamed):
    seen: list[tuple[int, int]] = []
    options = {"progress": lambda *at: seen.append(at)}
    with open_tight(file, **options) if streamed else ramforge_core.open(file, ctx=256, **options) as m:
        pinned = m.engine.allotment.residency.pinned_bytes
    assert len(seen) > 5
    assert seen[-1] == (pinned, pinned)


@pytest.mark.parametrize("streamed", [False, True])
def test_j13_a_callback_that_fails_stops_the_pass_and_breaks_nothing(file, streamed, monkeypatch):
    monkeypatch.setattr("ramforge_core.engine._PROGRESS_S", 0.0005)

    def fail(done: float, total: int) -> None:
        raise BrokenPipeError

    with open_tight(file) if streamed else ramforge_core.open(file, ctx=256) as m:
        plain, _ = answered(m)
        with pytest.raises(BrokenPipeError):
            m.generate("a" * 180, raw=True, max_tokens=1, progress=fail).text()
        assert m.engine.budget.by_tag()["kv cache"].bytes == 0
        again, _ = answered(m)
    assert again.ids == plain.ids


def test_experts_are_counted(tmp_path):
    path = write_model(tmp_path / "experts.gguf", evolve(SMALL, experts=8, feed_forward=512))
    with open_tight(path) as m:
        answer, _ = answered(m)
        report = reports.time_report(answer.stats)
    decode = answer.stats.decode_reads
    assert decode.expert_misses > 0
    assert decode.expert_hits + decode.expert_misses == answer.stats.decode_passes * SMALL.layers * 2
    assert str(decode.expert_misses) in report.render()
    assert "experts read" in report.render()

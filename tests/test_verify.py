"""``ramforge verify``: sound files at every budget, and each way in which one can be unsound."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
from synthetic import SMALL, TINY, write_model

from ramforge_cli.main import main
from ramforge_core import verification
from ramforge_core.errors import (
    BudgetTooSmallError,
    GGUFError,
    TensorError,
    UnsupportedError,
    VerificationError,
)
from ramforge_core.gguf import open_gguf
from ramforge_core.testing.gguf_writer import write_gguf


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("verify") / "small.gguf", SMALL)


def damage(file, tensor, data):
    """Overwrite the beginning of a tensor."""
    info = open_gguf(file).tensors[tensor]
    with open(file, "r+b") as f:
        f.seek(info.offset)
        f.write(data)
    return file


def test_a_sound_model_is_the_same_at_every_budget(file):
    reading, running = [], []
    found = verification.verify(
        file, reading=lambda *at: reading.append(at), running=lambda *at: running.append(at)
    )
    assert found.problem() is None
    assert len(found.budgets) == 4
    assert not any(b.skipped for b in found.budgets)
    budgets = [b.budget_bytes for b in found.budgets]
    assert budgets == sorted(budgets)
    streamed = [b.streamed_bytes for b in found.budgets]
    assert streamed == sorted(streamed, reverse=True)
    assert streamed[0] > 0 == streamed[-1]
    assert [len(b.ids) for b in found.budgets] == [2, 8, 8, 8]
    assert len({b.ids[:2] for b in found.budgets}) == 1
    assert len({b.digests[1:] for b in found.budgets[1:]}) == 1
    for seen in (reading, running):
        done = [at for at, _ in seen]
        assert done == sorted(done)
        assert done[-1] == seen[-1][1]


def test_checksums_are_those_of_the_bytes_in_the_file(file):
    content, gguf = file.read_bytes(), open_gguf(file)
    found = verification.verify(file).tensors
    assert [t.name for t in found] == list(gguf.tensors)
    for t in found:
        info = gguf.tensors[t.name]
        assert t.sha256 == hashlib.sha256(content[info.offset : info.offset + info.nbytes]).hexdigest()
        assert (t.checked > 0, t.non_finite) == (True, 0)


def test_the_digest_does_not_depend_on_the_files(tmp_path):
    whole = write_model(tmp_path / "whole.gguf", TINY)
    split = write_model(tmp_path / "split.gguf", TINY, shards=3)
    other = write_model(tmp_path / "other.gguf", TINY, seed=2)
    digests = [verification.verify(f).digest for f in (whole, split, other)]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_no_numbers(tmp_path, value, capsys):
    file = write_model(tmp_path / "m.gguf", TINY)
    damage(file, "blk.1.attn_k.weight", np.float16(value).tobytes())
    found = verification.verify(file)
    assert [t.name for t in found.tensors if t.non_finite] == ["blk.1.attn_k.weight"]
    assert isinstance(found.problem(), TensorError)
    assert main(["verify", str(file)]) == 3
    out, err = capsys.readouterr()
    assert "sha256" in out
    assert "blk.1.attn_k.weight" in err


def test_a_file_that_is_cut_short(tmp_path, capsys):
    file = write_model(tmp_path / "m.gguf", TINY)
    file.write_bytes(file.read_bytes()[:-100])
    assert main(["verify", str(file)]) == 3
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_file_that_changes_meanwhile(tmp_path):
    file = write_model(tmp_path / "m.gguf", SMALL)
    size = file.stat().st_size

    def cut(done: float, total: float) -> None:
        with open(file, "r+b") as f:
            f.truncate(size // 2)

    with pytest.raises(GGUFError, match=r"m\.gguf"):
        verification.verify(file, reading=cut)


def test_a_model_that_computes_otherwise_when_streamed(file, monkeypatch, capsys):
    def crooked(engine, most, tick):
        ids, digests = answer(engine, most, tick)
        return ids, digests if engine.streamed is None else ["0" * 64, *digests[1:]]

    answer = verification._answer
    monkeypatch.setattr(verification, "_answer", crooked)
    assert isinstance(verification.verify(file).problem(), VerificationError)
    assert main(["verify", str(file)]) == 7
    out, err = capsys.readouterr()
    assert "OTHERS" in out
    assert "other logits" in err


def test_a_model_that_cannot_run_here_is_checked_and_said_so(tmp_path, capsys):
    tensors = {"x.weight": (0, (4, 8), np.ones(32, np.float32).tobytes())}
    file = write_gguf(tmp_path / "m.gguf", {"general.architecture": "qwen35"}, tensors)
    found = verification.verify(file)
    assert [t.checked for t in found.tensors] == [32]
    assert found.budgets == []
    assert isinstance(found.problem(), UnsupportedError)
    assert main(["verify", str(file)]) == 4
    assert "sha256" in capsys.readouterr().out


def test_budgets_above_the_allowed_one_are_skipped_and_below_the_smallest_refused(file, capsys):
    with pytest.raises(BudgetTooSmallError) as caught:
        verification.verify(file, ram="1M")
    found = verification.verify(file, ram=caught.value.minimum + (9 << 20))
    assert found.problem() is None
    assert [b.skipped for b in found.budgets] == [False, False, True, True]
    assert "skipped" in found.render()
    assert main(["verify", str(file), "--ram", "1M"]) == 6
    assert "--ram" in capsys.readouterr().err


def test_json(file, capsys):
    assert main(["verify", str(file), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["problem"] is None
    assert facts["same_everywhere"]
    assert len(facts["tensors"]) == len(open_gguf(file).tensors)
    assert {"share", "budget_bytes", "pinned_bytes", "streamed_bytes", "ids", "digests", "skipped"} == set(
        facts["budgets"][0]
    )

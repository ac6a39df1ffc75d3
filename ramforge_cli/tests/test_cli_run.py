"""``ramforge run``: what it asks of the engine and what it makes of the answer; at the end the real model."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from ramforge_core.errors import BudgetExceededError, ContextFullError, NonFiniteError
from ramforge_core.generation import GenerationStats


class FakeAnswer:
    def __init__(self, pieces, finish_reason="stop"):
        self._pieces = iter(pieces)
        self.finish_reason = finish_reason
        self.seed = 42
        self.stats = GenerationStats(
            prompt_tokens=10, prompt_s=0.5, generated_tokens=5, decode_passes=4, decode_s=0.1
        )

    def __iter__(self):
        for piece in self._pieces:
            if isinstance(piece, BaseException):
                raise piece
            yield piece


class FakeModel:
    """Stands where `ramforge_core.open` does, and remembers what it was asked."""

    def __init__(self):
        self.answer = FakeAnswer(["Hel", "lo wör", "ld 😀"])
        self.opened = self.generated = None
        self.closed = False
        self.engine = SimpleNamespace(context=4096, budget=None)
        self.profile = None

    def open(self, model, **options):
        self.opened = (model, options)
        options.pop("progress")(1, 2)
        return self

    def generate(self, prompt, **options):
        self.generated = (prompt, options)
        options.pop("progress")(5, 10)
        return self.answer

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.closed = True


@pytest.fixture
def model(monkeypatch):
    fake = FakeModel()
    monkeypatch.setattr("ramforge_core.open", fake.open)
    return fake


def test_stdout_is_the_answer_and_nothing_else(ramforge, model):
    assert ramforge("run", "-p", "Hi") == (0, "Hello wörld 😀", "")
    assert model.closed


def test_defaults(ramforge, model):
    ramforge("run", "-p", "Hi")
    assert model.opened == (
        "smollm2",
        {"backend": None, "threads": 0, "ctx": None, "kv_type": "f16", "ram": None, "profile": None},
    )
    assert model.generated == (
        "Hi",
        {
            "system": None,
            "raw": False,
            "max_tokens": None,
            "temperature": 0.2,
            "top_k": 40,
            "top_p": 0.95,
            "min_p": 0.05,
            "repeat_penalty": 1.0,
            "repeat_last_n": 64,
            "seed": None,
            "stop": (),
            "special": False,
        },
    )


def test_the_defaults_are_those_of_the_python_interface(ramforge, model):
    import inspect

    from ramforge_core.api import LanguageModel
    from ramforge_core.api import open as open_model

    ramforge("run", "-p", "Hi")
    for function, used in ((LanguageModel.generate, model.generated[1]), (open_model, model.opened[1])):
        parameters = inspect.signature(function).parameters
        assert used == {name: parameters[name].default for name in used}


def test_the_default_model_is_that_of_core(ramforge, model):
    from ramforge_core.pull import DEFAULT_MODEL

    ramforge("run", "-p", "Hi")
    assert model.opened[0] == DEFAULT_MODEL


def test_every_option_reaches_the_engine(ramforge, model):
    options = (
        "--raw -n 7 --temperature 0 --top-k 1 --top-p .5 --min-p .1 --repeat-penalty 1.2 --repeat-last-n -1"
    )
    options += " --seed 9 --stop A --stop B --special --ctx 99 --threads 3 --backend numpy --kv-type f32"
    options += " --system S --ram 2G"
    assert ramforge("run", "m.gguf", "--prompt", "Hi", *options.split()).code == 0
    assert model.opened == (
        "m.gguf",
        {"backend": "numpy", "threads": 3, "ctx": 99, "kv_type": "f32", "ram": "2G", "profile": None},
    )
    assert model.generated[1] == {
        "system": "S",
        "raw": True,
        "max_tokens": 7,
        "temperature": 0.0,
        "top_k": 1,
        "top_p": 0.5,
        "min_p": 0.1,
        "repeat_penalty": 1.2,
        "repeat_last_n": -1,
        "seed": 9,
        "stop": ("A", "B"),
        "special": True,
    }


@pytest.mark.parametrize("option", [[], ["-p", "-"]])
def test_the_prompt_comes_from_a_pipe(ramforge, model, option):
    ramforge("run", *option, stdin="Zeile 1\nwörtlich \n\n".encode())
    assert model.generated[0] == "Zeile 1\nwörtlich \n"


def test_a_prompt_option_wins_over_stdin(ramforge, model):
    ramforge("run", "-p", "from the option\n", stdin=b"from stdin")
    assert model.generated[0] == "from the option\n"


def test_no_prompt_at_a_terminal(model, monkeypatch, capsys):
    from ramforge_cli.main import main

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    assert main(["run"]) == 2
    assert "there is no text: give it with -p TEXT, or pipe it in" in capsys.readouterr().err
    assert model.opened is None


def test_stdin_that_is_no_text(ramforge, model):
    outcome = ramforge("run", stdin=b"abc\xff")
    assert outcome.code == 2
    assert "byte 0xff at offset 3" in outcome.err
    assert model.opened is None


def test_an_endless_stdin_is_read_to_its_limit_only(ramforge, model, monkeypatch):
    monkeypatch.setattr("ramforge_cli.inputs.MAX_BYTES", 1024)
    assert ramforge("run", stdin=b"y" * 1024).code == 0
    model.opened = None
    outcome = ramforge("run", stdin=b"y" * 1025)
    assert (outcome.code, outcome.out) == (2, "")
    assert re.fullmatch(r"ramforge: error: stdin has more than 1\.00 KiB.*\n", outcome.err)
    assert model.opened is None


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs a device without an end")
@pytest.mark.parametrize("command", [["run"], ["tokenize", "smollm2"]])
def test_the_limit_of_stdin_is_64_mib(process, command):
    with open("/dev/zero", "rb") as zeros:
        started = process(*command, stdin=zeros)
        _, err = started.communicate(timeout=60)
    assert started.returncode == 2
    assert re.fullmatch(rb"ramforge: error: stdin has more than 64\.0 MiB.*\n", err)


@pytest.mark.parametrize(
    ("options", "stdin"),
    [
        ([], b""),
        ([], b"\n"),
        (["-p", "-"], b""),
        (["-p", ""], b"x"),
        (["--raw"], b""),
        (["--raw", "-p", "-"], b""),
    ],
)
def test_an_empty_prompt_is_told_before_the_work(ramforge, model, options, stdin):
    outcome = ramforge("run", *options, stdin=stdin)
    assert (outcome.code, outcome.out) == (2, "")
    assert re.fullmatch(
        r"ramforge: error: the prompt is empty: give it with -p TEXT, or pipe it in .*\n", outcome.err
    )
    assert model.opened is None


@pytest.mark.parametrize(
    ("add_bos", "bos_id", "code"), [(True, 1, 0), (False, 1, 2), (True, None, 2), (False, None, 2)]
)
def test_a_raw_prompt_may_be_empty_if_the_vocabulary_begins_the_text(ramforge, model, add_bos, bos_id, code):
    model.tokenizer = SimpleNamespace(add_bos=add_bos, bos_id=bos_id)
    outcome = ramforge("run", "--raw", "-p", "")
    assert outcome.code == code
    assert outcome.out == ("" if code else "Hello wörld 😀")
    assert ("the prompt is empty" in outcome.err) == bool(code)
    assert model.closed


def test_an_argument_that_is_no_text(ramforge, model):
    outcome = ramforge("run", "-p", "abc\udcff")
    assert outcome.code == 2
    assert "not valid UTF-8" in outcome.err


def test_the_line_is_ended_for_a_person_only(model, monkeypatch):
    from ramforge_cli.main import main

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdout", Terminal())
    assert main(["run", "-p", "Hi"]) == 0
    assert sys.stdout.getvalue() == "Hello wörld 😀\n"


def test_text_is_written_as_it_comes(model, monkeypatch):
    from ramforge_cli.main import main

    seen = []

    class Watched(io.StringIO):
        def flush(self):
            seen.append(self.getvalue())

    monkeypatch.setattr(sys, "stdout", Watched())
    main(["run", "-p", "Hi"])
    assert list(dict.fromkeys(seen)) == ["Hel", "Hello wör", "Hello wörld 😀"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BudgetExceededError("kv cache", 2, 1, 2), 6),
        (NonFiniteError("NaN"), 7),
        (ContextFullError("full"), 7),
        (MemoryError(), 6),
        (KeyboardInterrupt(), 130),
    ],
)
def test_an_error_in_the_middle_keeps_the_text_and_says_so(ramforge, model, error, code, tmp_path):
    model.answer = FakeAnswer(["one ", "two", error])
    outcome = ramforge("run", "-p", "Hi", "--stats-json", tmp_path / "stats.json")
    assert (outcome.code, outcome.out) == (code, "one two")
    assert len(outcome.err.splitlines()) == 1
    assert model.closed
    assert list(tmp_path.iterdir()) == []


def test_an_answer_of_nothing(ramforge, model):
    model.answer = FakeAnswer([])
    assert ramforge("run", "-p", "Hi") == (0, "", "")


def test_a_full_context_is_told(ramforge, model):
    model.answer = FakeAnswer(["long"], "context")
    outcome = ramforge("run", "-p", "Hi")
    assert (outcome.code, outcome.out) == (0, "long")
    assert outcome.err.startswith("ramforge: warning: the answer filled the context of 4096 tokens")


@pytest.fixture
def reports(monkeypatch):
    """Reports of one word each."""

    def report(word):
        return lambda *_: SimpleNamespace(render=lambda: word)

    for name in ("summary", "time_report", "memory_report", "plan_check"):
        monkeypatch.setattr(f"ramforge_core.reports.{name}", report(name))
    monkeypatch.setattr("ramforge_core.reports.everything", lambda *_: {"seed": 42, "load_s": 1.5})


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ("-v", ["summary", "plan_check"]),
        ("--profile", ["time_report"]),
        ("--memory-report", ["memory_report"]),
        ("-v --profile --memory-report", ["summary", "time_report", "memory_report", "plan_check"]),
    ],
)
def test_e15_reports_that_are_asked_for_follow_the_answer_on_stderr(ramforge, model, reports, options, shown):
    outcome = ramforge("run", "-p", "Hi", *options.split())
    assert outcome == (0, "Hello wörld 😀", "".join(f"{name}\n" for name in shown))


def test_e15_a_model_that_fits_has_no_plan_to_compare(ramforge, model, reports, monkeypatch):
    monkeypatch.setattr("ramforge_core.reports.plan_check", lambda *_: None)
    assert ramforge("run", "-p", "Hi", "-v").err == "summary\n"


def test_e15_whoever_interrupts_a_slow_answer_is_told_as_well(ramforge, model, reports):
    model.answer = FakeAnswer(["one ", KeyboardInterrupt()])
    outcome = ramforge("run", "-p", "Hi", "-v")
    assert outcome == (130, "one ", "summary\nplan_check\nramforge: interrupted\n")


def test_e15_times_are_taken_only_if_asked_for(ramforge, model, reports):
    from ramforge_core.profile import Profile

    ramforge("run", "-p", "Hi", "--profile")
    assert type(model.opened[1]["profile"]) is Profile


def test_stats_go_to_a_file(ramforge, model, reports, tmp_path):
    file = tmp_path / "stats.json"
    assert ramforge("run", "-p", "Hi", "--stats-json", file) == (0, "Hello wörld 😀", "")
    assert json.loads(file.read_text()) == {"model": "smollm2", "seed": 42, "load_s": 1.5}
    assert [p.name for p in tmp_path.iterdir()] == ["stats.json"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def slow(model, monkeypatch):
    """Loading and reading the prompt take some seconds, by a clock of the test's own."""
    now = [0.0]
    monkeypatch.setattr("ramforge_cli.console.time.monotonic", lambda: now[0])

    def advance(progress, steps, total):
        for done in steps:
            progress(done, total)
            now[0] += 1.0

    def open_slowly(name, **options):
        advance(options["progress"], [0, 100 << 20, 200 << 20], 400 << 20)
        return model

    def generate_slowly(prompt, **options):
        advance(options["progress"], [0, 12.5, 25.0], 100)
        return model.answer

    monkeypatch.setattr("ramforge_core.open", open_slowly)
    monkeypatch.setattr(model, "generate", generate_slowly)
    return model


def test_j13_load_and_prefill_show_speed_and_time_left_on_a_terminal(slow, monkeypatch, capsys):
    from ramforge_cli.main import main

    monkeypatch.setattr(sys, "stderr", Terminal())
    assert main(["run", "-p", "Hi"]) == 0
    assert capsys.readouterr().out == "Hello wörld 😀"
    shown = sys.stderr.getvalue().split("\r")
    assert "loading: 200 MiB of 400 MiB, 50%, 100 MiB/s, 2 s left" in shown
    assert "reading the prompt: 25 tokens of 100 tokens, 25%, 12 tokens/s, 6 s left" in shown
    assert shown[-1] == ""
    assert shown[-2].strip() == ""


def test_j13_no_progress_where_nobody_looks(ramforge, slow):
    assert ramforge("run", "-p", "Hi") == (0, "Hello wörld 😀", "")


@pytest.mark.parametrize("place", ["no/such/folder/stats.json", ".", "", "-"])
def test_a_place_for_stats_that_is_none_is_told_before_the_work(ramforge, model, place):
    outcome = ramforge("run", "-p", "Hi", "--stats-json", place)
    assert outcome.code == 2
    assert re.fullmatch(r"ramforge: error: .*'--stats-json'.*\n", outcome.err)
    assert model.opened is None


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
@pytest.mark.parametrize(
    ("file", "why"), [("/dev/full", "No space left on device"), ("/proc/x", "No such .*")]
)
def test_stats_that_cannot_be_written_are_exit_code_8_after_the_answer(ramforge, model, reports, file, why):
    outcome = ramforge("run", "-p", "Hi", "--stats-json", file)
    assert (outcome.code, outcome.out) == (8, "Hello wörld 😀")
    assert re.fullmatch(rf"ramforge: error: cannot write {file}: {why}\n", outcome.err)


def test_a_terminal_without_the_character(model, monkeypatch):
    from ramforge_cli.main import main

    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert main(["run", "-p", "Hi"]) == 0
    assert raw.getvalue() == b"Hello w?rld ?"


# ------------------------------------------------------------------ the real model


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--temperature", "-1"),
        ("--temperature", "nan"),
        ("--top-p", "2"),
        ("--seed", "-1"),
        ("--max-tokens", "-1"),
    ],
)
def test_a_senseless_value_is_exit_code_2(ramforge, smollm2, option, value):
    outcome = ramforge("run", smollm2, "-p", "Hi", option, value)
    assert (outcome.code, outcome.out) == (2, "")
    assert len(outcome.err.splitlines()) == 1


def test_a_backend_that_is_not_installed(ramforge, smollm2):
    outcome = ramforge("run", smollm2, "-p", "Hi", "--backend", "abacus")
    assert outcome.code == 4
    assert "ramforge-backend-abacus" in outcome.err


def test_f03_more_threads_than_processors_are_one_warning(process, smollm2):
    started = process("run", smollm2, "-p", "Hi", "-n", 1, "--threads", 100_000)
    _, err = started.communicate(timeout=60)
    assert started.returncode == 0
    assert re.fullmatch(rb"ramforge: warning: 100000 threads are asked for, but only \d+ .*\n", err)


def test_a_prompt_that_is_too_long(ramforge, smollm2):
    outcome = ramforge("run", smollm2, "-p", "word " * 100, "--ctx", "50")
    assert (outcome.code, outcome.out) == (7, "")
    assert "50" in outcome.err


def test_the_same_seed_gives_the_same_answer(ramforge, smollm2, tmp_path):
    def answer(seed: int) -> str:
        outcome = ramforge("run", smollm2, "-p", "Name a colour.", "-n", 8, "--seed", seed)
        assert (outcome.code, outcome.err) == (0, "")
        return outcome.out

    assert answer(1) == answer(1)
    assert len({answer(seed) for seed in range(1, 4)}) > 1


def test_an_answer_ends_by_itself_and_shows_no_control_tokens(ramforge, smollm2, tmp_path):
    arguments = ["run", smollm2, "-p", "What is 2 plus 2? Answer with one number.", "--temperature", 0]
    outcome = ramforge(*arguments, "--stats-json", tmp_path / "stats.json", "-n", 200)
    assert outcome.code == 0
    assert outcome.out.strip()
    assert "<|" not in outcome.out
    stats = json.loads((tmp_path / "stats.json").read_text())
    assert stats["finish_reason"] == "stop"
    assert stats["generated_tokens"] < 200


def test_head_gets_its_byte_and_nobody_complains(process, smollm2):
    started = process("run", smollm2, "-p", "Count to one hundred.", "-n", 200)
    assert started.stdout.read(1)
    started.stdout.close()
    assert started.wait(60) == 141
    assert started.stderr.read() == b""
    started.stderr.close()


@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
def test_ctrl_c_stops_at_once(process, smollm2):
    started = process("run", smollm2, "--raw", "-p", "Once upon a time", "-n", 2000, "--temperature", 0)
    assert started.stdout.read(1)
    began = time.perf_counter()
    started.send_signal(signal.SIGINT)
    _, err = started.communicate(timeout=60)
    assert time.perf_counter() - began < 15  # all 2000 tokens take longer, and a busy machine needs some time
    assert started.returncode == 130
    assert err.strip() == b"ramforge: interrupted"


def test_e15_a_model_that_does_not_fit_says_where_it_is_and_what_it_waits_for(process, smollm2, tmp_path):
    prompt = ["run", smollm2, "--raw", "-p", "Once upon a time", "-n", 6, "--temperature", 0, "--ctx", 256]
    reports = ["-v", "--profile", "--memory-report", "--stats-json", tmp_path / "stats.json"]
    started = process(*prompt, "--ram", "100M", *reports)
    out, err = (data.decode() for data in started.communicate(timeout=60))
    assert started.returncode == 0, err
    assert process(*prompt).communicate(timeout=60)[0].decode() == out
    for part in (
        "pinned",
        "streamed for each token",
        "a token at",
        "came from memory",
        "waited",
        "q4_1",
        "p99",
    ):
        assert part in err
    facts = json.loads((tmp_path / "stats.json").read_text())
    found = facts["summary"]
    assert not found["fits"]
    assert 0 < found["pinned_bytes"] < found["weight_bytes"]
    assert found["managed_peak_bytes"] <= found["budget_bytes"] == 100 << 20
    assert facts["memory"]["process"]["peak_rss"] <= 100 << 20
    assert facts["plan"]["bytes_read_per_token"]["actual"] == pytest.approx(
        facts["plan"]["bytes_read_per_token"]["planned"], rel=0.1
    )
    assert facts["profile"]["phases"]["decode"]["passes"] == 5


def test_a_budget_that_is_too_small_names_the_smallest(ramforge, smollm2):
    outcome = ramforge("run", smollm2, "-p", "Hi", "--ram", "1M")
    assert (outcome.code, outcome.out) == (6, "")
    assert "too small" in outcome.err
    assert "--ram" in outcome.err


@pytest.mark.parametrize("size", ["abc", "0", "-1G", "101%"])
def test_a_budget_that_is_no_size(ramforge, smollm2, size):
    outcome = ramforge("run", smollm2, "-p", "Hi", f"--ram={size}")
    assert (outcome.code, outcome.out) == (2, "")

"""``ramforge run``: what it asks of the engine and what it makes of the answer; at the end the real model."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import time
from types import SimpleNamespace

import pytest

from ramforge_core.errors import ContextFullError, NonFiniteError
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
        self.engine = SimpleNamespace(context=4096)
        self.stats = SimpleNamespace(
            load_s=1.5,
            backend="fake",
            to_dict=lambda: {"load_s": 1.5, "backend": "fake", "generated_tokens": 5},
        )

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
    assert model.opened == ("smollm2", {"backend": None, "threads": 0, "ctx": None, "kv_type": "f16"})
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
    options += (
        " --seed 9 --stop A --stop B --special --ctx 99 --threads 3 --backend numpy --kv-type f32 --system S"
    )
    assert ramforge("run", "m.gguf", "--prompt", "Hi", *options.split()).code == 0
    assert model.opened == ("m.gguf", {"backend": "numpy", "threads": 3, "ctx": 99, "kv_type": "f32"})
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


def test_verbose_says_what_it_took(ramforge, model):
    outcome = ramforge("run", "-v", "-p", "Hi")
    assert outcome.out == "Hello wörld 😀"
    (line,) = outcome.err.splitlines()
    for part in (
        "smollm2 on fake",
        "1.50 s",
        "10 tokens at 20.0 tokens/s",
        "5 tokens at 40.0 tokens/s",
        "seed 42",
    ):
        assert part in line


def test_stats_go_to_a_file(ramforge, model, tmp_path):
    file = tmp_path / "stats.json"
    assert ramforge("run", "-p", "Hi", "--stats-json", file) == (0, "Hello wörld 😀", "")
    assert json.loads(file.read_text()) == {
        "model": "smollm2",
        "finish_reason": "stop",
        "seed": 42,
        "load_s": 1.5,
        "backend": "fake",
        "generated_tokens": 5,
    }
    assert [p.name for p in tmp_path.iterdir()] == ["stats.json"]


@pytest.mark.parametrize("place", ["no/such/folder/stats.json", "."])
def test_a_place_for_stats_that_is_none_is_told_before_the_work(ramforge, model, place):
    outcome = ramforge("run", "-p", "Hi", "--stats-json", place)
    assert outcome.code == 2
    assert "--stats-json" in outcome.err
    assert model.opened is None


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
    _, err = started.communicate(timeout=20)
    assert time.perf_counter() - began < 3
    assert started.returncode == 130
    assert err.strip() == b"ramforge: interrupted"

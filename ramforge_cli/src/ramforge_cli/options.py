"""Options that several commands share, and the state of one run of the program."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
from pathlib import Path
from typing import Any

import click


class State:
    """What the whole program needs to know; click hands it round as ``ctx.obj``."""

    def __init__(self, logger: logging.Logger) -> None:
        self.debug = False
        self.logger = logger


def _set_debug(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    state = ctx.find_root().obj
    if value and isinstance(state, State):
        state.debug = True
        state.logger.setLevel(logging.DEBUG)
        if not faulthandler.is_enabled():
            with contextlib.suppress(OSError, ValueError):  # stderr need not be a file
                faulthandler.enable()  # a crash in C tells where, too


def debug_option(command: Any) -> Any:
    """``--debug``, before the command's name and after it."""
    return click.option(
        "--debug",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_set_debug,
        help="Show tracebacks and debug messages.",
    )(command)


def output_file(ctx: click.Context, param: click.Parameter, value: str | None) -> Path | None:
    """Callback of an option for a file that is to be written: what cannot be one is told before the work."""
    if value is None:
        return None
    file = Path(value)
    if value in ("", "-"):
        raise click.BadParameter(
            f"{value!r} is no file; give the name of one, stdout is the result's", ctx, param
        )
    if file.is_dir():
        raise click.BadParameter(f"{value!r} is a folder; give the name of a file", ctx, param)
    if not file.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no folder {str(file.absolute().parent)!r}", ctx, param)
    return file


def ram_option(command: Any) -> Any:
    """``--ram``: what the whole process may take."""
    return click.option(
        "--ram",
        metavar="SIZE",
        help="What the whole process may take: 2G, 512M, 50%. [default: a safe share of what is free]",
    )(command)


def json_option(command: Any) -> Any:
    """``--json``: facts for programs."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def model_options(command: Any) -> Any:
    """How a model is opened: ram, ctx, threads, backend and kv_type, as `ramforge_core.open` has them."""
    return _together(
        command,
        ram_option,
        click.option(
            "--ctx",
            type=int,
            metavar="N",
            help="Tokens that prompt and answer may take. [default: 4096 at most]",
        ),
        click.option(
            "--threads", type=int, default=0, metavar="N", help="[default: what this machine grants]"
        ),
        click.option(
            "--backend",
            metavar="NAME",
            help="How to compute; `ramforge support` lists them. [default: the best]",
        ),
        click.option(
            "--kv-type",
            type=click.Choice(["f16", "f32", "q8_0"]),
            default="f16",
            show_default=True,
            help="KV cache type.",
        ),
    )


def opening(options: dict[str, Any]) -> dict[str, Any]:
    """Take those of `model_options` out of a command's options."""
    return {name: options.pop(name) for name in ("ram", "ctx", "threads", "backend", "kv_type")}


def answer_options(command: Any) -> Any:
    """How an answer is made: what `LanguageModel.generate` takes of the same names."""

    def option(*names: str, **settings: Any) -> Any:
        return click.option(*names, show_default="default" in settings, **settings)

    return _together(
        command,
        option(
            "-n",
            "--max-tokens",
            type=int,
            metavar="N",
            help="Stop after N tokens. [default: when the model ends]",
        ),
        option("--temperature", type=float, default=0.2, help="0 always takes the likeliest token."),
        option("--top-k", type=int, default=40, help="Draw from the K likeliest; 0 is off."),
        option("--top-p", type=float, default=0.95, help="Draw from the likeliest that sum to P."),
        option("--min-p", type=float, default=0.05, help="Drop what is rarer than P x the likeliest."),
        option("--repeat-penalty", type=float, default=1.0, help="Above 1 repeats less; 1 is off."),
        option("--repeat-last-n", type=int, default=64, help="Tokens that count as recent; -1: all."),
        option(
            "--seed", type=int, metavar="N", help="Draw the same tokens again. [default: a new one each time]"
        ),
        option(
            "--stop", multiple=True, metavar="TEXT", help="Stop before this text; may be given several times."
        ),
        option("--special", is_flag=True, help="Show control tokens such as <|im_end|>."),
    )


def _together(command: Any, *options: Any) -> Any:
    """``command`` with several options, which ``--help`` lists in this order."""
    for option in reversed(options):
        command = option(command)
    return command

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

"""Which error ends the program with which exit code. ``docs/cli.md`` shows this table; a test compares them."""

from __future__ import annotations

from typing import NamedTuple

import click

from ramforge_cli.outputs import OutputError
from ramforge_core import errors


class ExitCode(NamedTuple):
    """One row of the table: the first row that names a class of the error holds."""

    code: int
    meaning: str
    errors: tuple[type[BaseException], ...] = ()


EXIT_CODES = (
    ExitCode(0, "everything went well"),
    ExitCode(
        2,
        "the command line is wrong: an unknown option, or a value that cannot be used",
        (click.ClickException, errors.ParameterError),
    ),
    ExitCode(
        3,
        "the file is damaged, cut short or not a GGUF file, or not a session of this model",
        (errors.GGUFError, errors.SessionError),
    ),
    ExitCode(
        4,
        "the file is sound, but no installed plugin can run it, or a plugin or backend that is needed does not work",
        (errors.UnsupportedError, errors.PluginError, errors.BackendError),
    ),
    ExitCode(
        5,
        "the model was not found, or could not be downloaded",
        (errors.ModelNotFoundError, errors.DownloadError),
    ),
    ExitCode(
        6,
        "there is not enough memory, or the memory budget is too small",
        (errors.BudgetExceededError, errors.OutOfMemoryError, MemoryError),
    ),
    ExitCode(
        7,
        "the answer could not be made or is wrong: logits that are no numbers or change with the memory budget, a chat "
        "template that fails, a full context, too many requests",
        (
            errors.NonFiniteError,
            errors.VerificationError,
            errors.TemplateError,
            errors.ContextFullError,
            errors.QueueFullError,
        ),
    ),
    ExitCode(
        8,
        "the output could not be written: stdout, or a file that was asked for, does not take it",
        (OutputError,),
    ),
    ExitCode(130, "it was interrupted (Ctrl-C)", (errors.Interrupted, KeyboardInterrupt, click.Abort)),
    ExitCode(
        141, "whoever read the output went away (a closed pipe); nothing is printed", (BrokenPipeError,)
    ),
    ExitCode(1, "a fault that nobody expected: please report it, with what --debug shows", (BaseException,)),
)


def exit_code_of(error: BaseException) -> int:
    """The exit code that an error stands for."""
    return next(row.code for row in EXIT_CODES if isinstance(error, row.errors))

"""``ramforge run``: one answer. Its text goes to stdout as it becomes decodable, everything else to stderr."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ramforge_cli.console import Progress, say
from ramforge_cli.inputs import read_text
from ramforge_cli.options import answer_options, debug_option, model_options, opening, output_file
from ramforge_cli.outputs import write_file

if TYPE_CHECKING:
    from ramforge_core.api import LanguageModel
    from ramforge_core.generation import Generation

_log = logging.getLogger("ramforge")
_HOW = "give it with -p TEXT, or pipe it in"
_EMPTY = f"the prompt is empty: {_HOW}"


def _tokens(n: float) -> str:
    return f"{n:.0f} tokens"


@click.command()
@click.argument("model", default="smollm2")
@click.option(
    "-p", "--prompt", metavar="TEXT", help="What to answer; - reads stdin, as does leaving it out in a pipe."
)
@click.option("--system", metavar="TEXT", help="Instructions that stand before the prompt.")
@click.option("--raw", is_flag=True, help="Continue the prompt as it is, without the model's chat template.")
@answer_options
@model_options
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Say on stderr where the weights were, what was read, how fast it was, and what was planned.",
)
@click.option(
    "--profile", is_flag=True, help="Say on stderr where the time went, by stage and kernel; costs some."
)
@click.option(
    "--memory-report",
    is_flag=True,
    help="Say on stderr who held how much memory: we, the process, the system.",
)
@click.option(
    "--stats-json",
    callback=output_file,
    metavar="FILE",
    help="Write all of that as JSON.",
)
@debug_option
def run(
    model: str,
    prompt: str | None,
    verbose: bool,
    profile: bool,
    memory_report: bool,
    stats_json: Path | None,
    **options: Any,
) -> None:
    """Answer a prompt.

    The model's chat template is applied to it if there is one. MODEL is a file, a folder, or a name that
    `ramforge pull` knows.
    """
    text = read_text(prompt, _HOW)
    if prompt in (None, "-"):
        text = text.removesuffix("\n").removesuffix("\r")  # of `echo` and of editors, not the writer's
    if not text and not (prompt == "" and options["raw"]):
        raise click.UsageError(_EMPTY)

    import ramforge_core
    from ramforge_core.profile import Profile

    with Progress("loading") as loading:
        opened = ramforge_core.open(
            model, progress=loading, profile=Profile() if profile else None, **opening(options)
        )
    with opened as m:
        if not text and not (m.tokenizer.add_bos and m.tokenizer.bos_id is not None):
            raise click.UsageError(f"{_EMPTY}; this vocabulary has no token that begins a text, either")
        with Progress("reading the prompt", _tokens) as reading:
            answer = m.generate(text, progress=reading, **options)
            pieces = iter(answer)
            first = next(pieces, "")
        try:
            _print(first, pieces)
        except KeyboardInterrupt:  # whoever tires of waiting wants to know what for
            _tell(m, answer, verbose, profile, memory_report)
            raise
        if answer.finish_reason == "context":
            _log.warning(
                "the answer filled the context of %d tokens; --ctx chooses another size", m.engine.context
            )
        _tell(m, answer, verbose, profile, memory_report)
        if stats_json is not None:
            _write_stats(stats_json, model, m, answer)


def _print(first: str, rest: Iterable[str]) -> None:
    """Write pieces of text as they come, and end the line if a person is reading."""
    out = sys.stdout
    try:
        out.write(first)
        out.flush()
        for piece in rest:
            out.write(piece)
            out.flush()
    finally:
        if out.isatty():
            click.echo()


def _tell(m: LanguageModel, answer: Generation, verbose: bool, profile: bool, memory_report: bool) -> None:
    """The reports that were asked for, on stderr."""
    from ramforge_core import reports

    if verbose:
        say(reports.summary(m, answer).render())
    if profile:
        say(reports.time_report(answer.stats, m.profile).render())
    if memory_report:
        say(reports.memory_report(m.engine.budget).render())
    if verbose and (check := reports.plan_check(m, answer)) is not None:
        say(check.render())


def _write_stats(file: Path, model: str, m: LanguageModel, answer: Generation) -> None:
    from ramforge_core import reports

    facts = {"model": model, **reports.everything(m, answer)}
    write_file(file, json.dumps(facts, indent=2).encode() + b"\n")

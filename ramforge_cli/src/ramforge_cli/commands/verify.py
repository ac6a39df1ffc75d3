"""``ramforge verify``: is a file sound, and does streaming it change nothing?"""

from __future__ import annotations

import json

import click

from ramforge_cli.console import Progress
from ramforge_cli.options import debug_option, json_option, ram_option


@click.command()
@click.argument("model")
@ram_option
@json_option
@debug_option
def verify(model: str, ram: str | None, as_json: bool) -> None:
    """Check a model's file, and that every budget gives the same.

    Checks the header, reads every tensor once and prints a checksum of them all, and compares short answers at several
    memory budgets up to --ram, which must agree to the last bit.
    """
    from ramforge_core import verification

    with Progress("reading the tensors") as reading, Progress("comparing budgets", _tokens) as running:
        found = verification.verify(model, ram=ram, reading=reading, running=running)
    click.echo(json.dumps(found.to_dict(), indent=2) if as_json else found.render())
    if (problem := found.problem()) is not None:
        raise problem


def _tokens(n: float) -> str:
    return f"{n:.0f} tokens"

"""``ramforge support``: what is installed and works here, or what that says of one file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from ramforge_cli.options import debug_option, json_option

if TYPE_CHECKING:
    from ramforge_core.plugins import Registry


@click.command()
@click.argument("model", required=False)
@json_option
@debug_option
def support(model: str | None, as_json: bool) -> None:
    """Show what this machine can run.

    Lists every plugin with its distribution and what it can do, and what is broken and why. With MODEL: whether
    that file can run here, and every reason if it cannot.
    """
    from ramforge_core import support as reports
    from ramforge_core.plugins import Registry

    registry = Registry.discover()
    if model is not None:
        _one_file(model, registry, as_json)
        return
    report = reports.support(registry)
    click.echo(json.dumps(report.to_dict(), indent=2) if as_json else report.render())


def _one_file(model: str, registry: Registry, as_json: bool) -> None:
    from ramforge_core.errors import GGUFError
    from ramforge_core.gguf import open_gguf
    from ramforge_core.pull import resolve
    from ramforge_core.support import model_support

    gguf = open_gguf(resolve(model, registry), allow_incomplete=True)
    report = model_support(gguf, registry, build_tokenizer=True)
    click.echo(json.dumps(report.to_dict(), indent=2) if as_json else report.render())
    if gguf.incomplete:
        raise GGUFError(gguf.incomplete)

"""``ramforge inspect``: what the header of a file says."""

from __future__ import annotations

import json

import click

from ramforge_cli.options import debug_option, json_option


@click.command()
@click.argument("model")
@json_option
@debug_option
def inspect(model: str, as_json: bool) -> None:
    """Show what a GGUF file holds.

    Metadata, tensors, tokenizer, chat template, and whether it can run here; only the header is read. A file that is
    cut short is shown as far as it goes, and is an error all the same.
    """
    from ramforge_core import inspection
    from ramforge_core.errors import GGUFError
    from ramforge_core.plugins import Registry
    from ramforge_core.pull import resolve

    registry = Registry.discover()
    report = inspection.inspect(resolve(model, registry), registry)
    click.echo(
        json.dumps(report.to_dict(), indent=2, ensure_ascii=False) if as_json else inspection.render(report)
    )
    if report.incomplete:
        raise GGUFError(report.incomplete)

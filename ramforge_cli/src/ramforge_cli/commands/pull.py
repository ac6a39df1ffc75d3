"""``ramforge pull``: fetch a model, or list what can be fetched."""

from __future__ import annotations

import json

import click

from ramforge_cli.console import Progress
from ramforge_cli.options import debug_option, json_option


@click.command()
@click.argument("name", required=False)
@click.option(
    "--list", "as_list", is_flag=True, help="List the names that can be fetched, and where they are."
)
@json_option
@debug_option
def pull(name: str | None, as_list: bool, as_json: bool) -> None:
    """Fetch a model and print where it is.

    A model that is on this machine already is not fetched again. NAME is one that --list shows, or an address such
    as hf://owner/repo/file.gguf.
    """
    if as_list == (name is not None):
        raise click.UsageError("give either a NAME or --list")
    if name is not None:
        _fetch(name, as_json)
    else:
        _list(as_json)


def _fetch(name: str, as_json: bool) -> None:
    from ramforge_core import pull as models

    with Progress(f"fetching {name}") as progress:
        path = models.fetch(name, progress)
    click.echo(json.dumps({"name": name, "path": str(path)}) if as_json else str(path))


def _list(as_json: bool) -> None:
    from ramforge_core import pull as models

    known, forms = models.catalogue(), models.name_forms()
    if as_json:
        rows = [{"name": m.name, "source": m.source, "path": str(m.path) if m.path else None} for m in known]
        click.echo(json.dumps({"models": rows, "forms": forms, "cache": str(models.cache_dir())}, indent=2))
        return
    for model in known:
        click.echo(f"{model.name}\t{model.path or 'not on this machine'}")
    for form in forms:
        click.echo(form)

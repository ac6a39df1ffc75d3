"""``ramforge plugin``: start a plugin of one's own."""

from __future__ import annotations

from pathlib import Path

import click

from ramforge_cli.console import say
from ramforge_cli.options import debug_option


@click.group()
def plugin() -> None:
    """Start a plugin of your own.

    It may be a quant format, an architecture, a tokenizer, a backend, a model source or a command.
    """


@plugin.command()
@click.argument("kind", metavar="KIND")
@click.argument("name")
@click.option(
    "--into",
    default=".",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="The folder to put it in. [default: the current one]",
)
@debug_option
def new(kind: str, name: str, into: Path) -> None:
    """Write a complete package ramforge-KIND-NAME, which installs and passes its tests.

    KIND is quant, arch, tokenizer, backend, source or command. NAME is the key that a model file or the command line
    will use for it: iq4_nl, command-r.
    """
    from ramforge_cli.program import BUILT_IN
    from ramforge_core.errors import ParameterError
    from ramforge_core.scaffold import new_plugin

    if kind == "command" and name in BUILT_IN:
        raise ParameterError(
            f"ramforge has a command {name!r}, which no plugin can replace; give another name"
        )
    folder = new_plugin(kind, name, into)
    click.echo(str(folder))
    say(f"next: pip install '{_typed(folder)}[testing]' && pytest {_typed(folder)}")


def _typed(folder: Path) -> str:
    """A path that pip cannot take for the name of a package."""
    return str(folder) if folder.is_absolute() else f"./{folder}"

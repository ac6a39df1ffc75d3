"""``ramforge serve``: a model over HTTP."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ramforge_core.hookspecs import hookimpl


@hookimpl
def ramforge_commands() -> Sequence[click.Command]:
    from ramforge_serve.command import serve

    return [serve]

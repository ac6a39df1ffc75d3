"""``ramforge plan``: what a run will take, and how fast it will be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ramforge_cli.options import debug_option, json_option, output_file


@click.command()
@click.argument("model")
@click.option(
    "--ram", metavar="SIZE", help="What the whole process may take: 2G, 512M, 50%. [default: a safe share]"
)
@click.option("--ctx", type=int, metavar="N", help="Tokens the context holds. [default: 4096 at most]")
@click.option("--threads", type=int, default=0, metavar="N", help="[default: what this machine grants]")
@click.option(
    "--backend", metavar="NAME", help="How to compute; `ramforge support` lists them. [default: the best]"
)
@click.option(
    "--kv-type",
    type=click.Choice(["f16", "f32", "q8_0"]),
    default="f16",
    show_default=True,
    help="KV cache type.",
)
@click.option("--sweep", is_flag=True, help="Show tokens per second against the budget instead.")
@click.option(
    "--plot",
    callback=output_file,
    metavar="FILE",
    help="Draw the sweep as an image (PNG, SVG or PDF); needs ramforge-cli[plot].",
)
@click.option("--recalibrate", is_flag=True, help="Measure disk and processor anew.")
@json_option
@debug_option
def plan(
    model: str,
    ram: str | None,
    ctx: int | None,
    threads: int,
    backend: str | None,
    kv_type: Any,
    sweep: bool,
    plot: Path | None,
    recalibrate: bool,
    as_json: bool,
) -> None:
    """Say what a run will take.

    Memory item by item, what stays in memory and what is read for every token, tokens per second and what binds
    them, and what other budgets would give. Reads the header, and the first time a little of the file, to measure
    the disk. MODEL is a file, a folder, or a name that `ramforge pull` knows.
    """
    if plot is not None:
        from ramforge_cli.plot import require

        require(plot)

    from ramforge_core.planning import plan_model, render_sweep

    made = plan_model(
        model,
        ram=ram,
        ctx=ctx,
        kv_type=kv_type,
        threads=threads,
        backend=backend,
        recalibrate=recalibrate,
    )
    points = made.sweep() if sweep or plot is not None else []
    if as_json:
        facts = made.to_dict()
        if points:
            facts["sweep"] = [point.to_dict() for point in points]
        click.echo(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        click.echo(render_sweep(points) if sweep else made.render())
    if plot is not None:
        from ramforge_cli.plot import draw

        draw(plot, points, made)

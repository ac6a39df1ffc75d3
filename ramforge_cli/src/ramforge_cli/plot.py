"""The sweep of a plan as an image. The one place that imports matplotlib, which is an extra of this package."""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ramforge_cli.outputs import write_file

if TYPE_CHECKING:
    from ramforge_core.planning import Outlook, Plan

_FORMATS = (".png", ".svg", ".pdf")


def require(file: Path) -> None:
    """Raises UsageError if nothing could be drawn there, before anything is measured."""
    if file.suffix.lower() not in _FORMATS:
        raise click.BadParameter(f"{file.name} ends with none of {', '.join(_FORMATS)}", param_hint="--plot")
    if find_spec("matplotlib") is None:
        raise click.UsageError("--plot needs matplotlib; install it with: pip install 'ramforge-cli[plot]'")


def draw(file: Path, points: Sequence[Outlook], plan: Plan) -> None:
    """Tokens per second against the budget, the planned budget marked."""
    from matplotlib.figure import Figure

    mib = [p.ram_bytes / 2**20 for p in points]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(mib, [p.decode.tokens_per_s if p.decode else 0.0 for p in points], marker="o")
    axes.axvline(plan.ram_bytes / 2**20, linestyle=":", color="gray")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:.0f}")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("budget in MiB (dotted: the plan's)")
    axes.set_ylabel("tokens per second")
    axes.set_title(f"{Path(plan.path).name}, context {plan.context}", parse_math=False)
    axes.grid(visible=True, alpha=0.3)
    image = io.BytesIO()
    figure.savefig(image, format=file.suffix[1:].lower())
    write_file(file, image.getvalue())

"""Plans: what a model will take, and how fast it will be, before it is loaded."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache

from ramforge_core.api import Opened, budget_of, prepare
from ramforge_core.backend import Backend
from ramforge_core.calibration import CalibrationStore, calibrate, calibrate_disk, remembered
from ramforge_core.engine import Engine, divide, trial_workspace
from ramforge_core.errors import ParameterError
from ramforge_core.gguf import open_gguf
from ramforge_core.kv import KVType
from ramforge_core.model import Model
from ramforge_core.planning.declared import plan_declared
from ramforge_core.planning.forecast import Speed, forecast
from ramforge_core.planning.plan import Outlook, Plan, StageShare, plan_of
from ramforge_core.planning.text import render, render_sweep
from ramforge_core.plugins import Registry
from ramforge_core.pull import resolve
from ramforge_core.system import process_memory

__all__ = [
    "Outlook",
    "Plan",
    "Speed",
    "StageShare",
    "forecast",
    "plan_model",
    "plan_of",
    "plan_opened",
    "render",
    "render_sweep",
]


def plan_model(
    model: str | os.PathLike[str],
    *,
    ram: str | int | None = None,
    ctx: int | None = None,
    kv_type: KVType = "f16",
    threads: int = 0,
    backend: str | None = None,
    recalibrate: bool = False,
    registry: Registry | None = None,
    store: CalibrationStore | None = None,
) -> Plan:
    """What opening ``model`` with these arguments will do; they mean what they mean in `ramforge_core.open`.

    recalibrate : measure disk and processor anew, even if they were measured before.
    A model of an architecture that is declared only gets what its header tells, and a note that it cannot run.
    Raises BudgetTooSmallError, which names the smallest budget, and whatever opening the model would raise.
    """
    if threads < 0:
        raise ParameterError(f"threads is {threads}, expected at least 1, or 0 for the default")
    registry = registry or Registry.discover()
    gguf = open_gguf(resolve(model, registry))
    architecture = registry.architecture(gguf.metadata.text("general.architecture"))
    if not architecture.runnable:
        budget = budget_of(ram)
        process = process_memory().rss or 0
        disk = calibrate_disk(gguf, (budget.limit or 0) - process, anew=recalibrate, store=store)
        return plan_declared(gguf, architecture, registry, disk, budget.limit or 0, process, ctx, kv_type)
    ready = prepare(gguf, registry, backend=backend, kv_type=kv_type, ram=ram)
    facts, chosen, limit = ready.facts, ready.backend, ready.budget.limit or 0
    process = process_memory().rss or 0
    allotment = divide(facts, chosen, ready.budget, process, context=ctx, kv_type=kv_type, threads=threads)
    rates = calibrate(
        facts, chosen, limit - process, kv_type=kv_type, threads=threads, anew=recalibrate, store=store
    )
    description = {"backend": chosen.key, **chosen.describe()}
    if threads:
        description["threads"] = str(threads)
    return plan_of(
        facts,
        allotment,
        _workspaces(facts, chosen, kv_type, threads),
        rates,
        ram_bytes=limit,
        process_bytes=process,
        context=ctx,
        kv_type=kv_type,
        facts=description,
    )


def plan_opened(engine: Engine, opened: Opened) -> Plan:
    """The plan of a model that is open, with the rates that are remembered; measures nothing."""
    process = engine.budget.by_tag()["process"].bytes
    return plan_of(
        engine.model,
        engine.allotment,
        _workspaces(engine.model, opened.backend, opened.kv_type, opened.threads),
        remembered(engine.model, opened.backend, kv_type=opened.kv_type, threads=opened.threads),
        ram_bytes=engine.budget.limit or process + engine.allotment.total_bytes,
        process_bytes=process,
        facts={"backend": opened.backend.key, **opened.backend.describe()},
        context=opened.context,
        kv_type=opened.kv_type,
    )


def _workspaces(
    model: Model, backend: Backend, kv_type: KVType, threads: int
) -> Callable[[int | None], Callable[[int], int]]:
    """Scratch of passes by context: attention over a longer one takes more."""

    @cache
    def of(context: int | None) -> Callable[[int], int]:
        return trial_workspace(model, backend, context=context, kv_type=kv_type, threads=threads)

    return of

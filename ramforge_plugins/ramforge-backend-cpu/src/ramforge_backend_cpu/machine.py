"""The C part, if it is built, and the instruction set and threads that it is to use."""

from __future__ import annotations

import logging
import os
from functools import cache
from importlib import import_module
from typing import Any

from attrs import frozen

from ramforge_core.errors import BackendError
from ramforge_core.system import default_threads

log = logging.getLogger("ramforge")

ISA_VARIABLE = "RAMFORGE_ISA"


@frozen
class Native:
    ffi: Any
    lib: Any


@cache
def load_native() -> Native | str:
    """The extension module, or why there is none."""
    try:
        built = import_module("ramforge_backend_cpu._native")
    except ImportError as error:
        return f"the C part of ramforge-backend-cpu is not built: {error}; reinstall it where there is a C compiler"
    return Native(built.ffi, built.lib)


def native() -> Native:
    """The extension module. Raises BackendError if it is not built."""
    loaded = load_native()
    if isinstance(loaded, str):
        raise BackendError(loaded)
    return loaded


def instruction_sets() -> dict[str, bool]:
    """Names that this build knows, the widest first, and whether the machine has them."""
    n = native()
    out: dict[str, bool] = {}
    while (name := n.lib.rf_isa_name(len(out))) != n.ffi.NULL:
        out[n.ffi.string(name).decode()] = bool(n.lib.rf_isa_here(len(out)))
    return out


def chosen_isa() -> str:
    """The widest instruction set of this machine, or the one that the variable RAMFORGE_ISA names.

    Raises BackendError if the machine or this build lacks that.
    """
    known = instruction_sets()
    here = [name for name, is_here in known.items() if is_here]
    wanted = os.environ.get(ISA_VARIABLE) or here[0]
    if wanted not in here:
        raise BackendError(
            f"{ISA_VARIABLE} asks for {wanted!r}, but this machine has only {', '.join(here)}; "
            "unset it or name one of these"
        )
    return wanted


@cache
def warn_once(text: str) -> None:
    """A model is compiled several times, on trial to learn its memory: whoever opens it is told once."""
    log.warning("%s", text)


def chosen_threads(asked: int) -> int:
    """``asked``, but not more than there are processors for this process; 0 for the default."""
    if asked < 1:
        return default_threads()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if asked > usable:
        warn_once(
            f"{asked} threads are asked for, but only {usable} processors may be used: {usable} threads"
        )
    return min(asked, usable)

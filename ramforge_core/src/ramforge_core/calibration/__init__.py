"""What this machine can do: the rate of a model's disk and of its kernels, measured once and remembered.

Both are measured the way a run uses them: the disk with the stream's own reads, the kernels through the backend's
own contract, on a few stages of the model's own graph.
"""

from __future__ import annotations

import logging

from attrs import frozen

from ramforge_core.backend import Backend
from ramforge_core.calibration.compute import ComputeRate, compute_key, measure_compute
from ramforge_core.calibration.disk import DiskRate, device_key, measure_disk
from ramforge_core.calibration.store import CalibrationStore
from ramforge_core.datasource import DataSource
from ramforge_core.errors import RamforgeError
from ramforge_core.gguf import GGUF
from ramforge_core.kv import KVType
from ramforge_core.model import Model

__all__ = [
    "Calibration",
    "CalibrationStore",
    "ComputeRate",
    "DiskRate",
    "calibrate",
    "calibrate_disk",
    "measure_compute",
    "measure_disk",
    "remembered",
]

_log = logging.getLogger("ramforge")


@frozen
class Calibration:
    """Rates of a disk and of the kernels for one model; None where there was nothing to measure or it failed."""

    disk: DiskRate | None = None
    compute: ComputeRate | None = None


def calibrate(
    model: Model,
    backend: Backend,
    free_bytes: int | None = None,
    *,
    kv_type: KVType = "f16",
    threads: int = 0,
    anew: bool = False,
    store: CalibrationStore | None = None,
) -> Calibration:
    """What is remembered for this model's disk and kernels, measured first where there is nothing.

    free_bytes : memory that the measurements may take; they take a quarter of it, and 136 MiB at most.
    anew : measure in any case. What other work disturbed is measured anew the next time, too.
    A measurement that fails costs a warning, and its rate is None.
    """
    store = CalibrationStore() if store is None else store
    disk = calibrate_disk(model.gguf, free_bytes, anew=anew, store=store)
    key = compute_key(model, backend, kv_type, threads)
    found = None if anew else store.get("compute", key, ComputeRate.from_dict)
    if found is None or found.busy:
        try:
            found = measure_compute(model, backend, kv_type=kv_type, threads=threads, free_bytes=free_bytes)
        except (RamforgeError, MemoryError) as error:
            _log.warning("the speed of backend %s could not be measured: %s", backend.key, error)
        else:
            store.put("compute", key, found.to_dict())
    return Calibration(disk, found)


def calibrate_disk(
    gguf: GGUF,
    free_bytes: int | None = None,
    *,
    anew: bool = False,
    store: CalibrationStore | None = None,
) -> DiskRate | None:
    """The rate of the disk that a model lies on, from its own file; None, and a warning, if it cannot be measured."""
    store = CalibrationStore() if store is None else store
    try:
        key = device_key(gguf.files)
        found = None if anew else store.get("disk", key, DiskRate.from_dict)
        if found is None:
            with DataSource(gguf.files) as source:
                found = measure_disk(source, gguf.file_bytes, free_bytes)
            if found.lasting:
                store.put("disk", key, found.to_dict())
    except (RamforgeError, OSError) as error:
        _log.warning("the rate of the disk could not be measured: %s", error)
        return None
    return found


def remembered(
    model: Model, backend: Backend, *, kv_type: KVType, threads: int, store: CalibrationStore | None = None
) -> Calibration:
    """What is remembered for this model's disk and kernels; nothing is measured."""
    store = CalibrationStore() if store is None else store
    try:
        disk = store.get("disk", device_key(model.gguf.files), DiskRate.from_dict)
    except OSError:  # the file was removed since it was opened
        disk = None
    key = compute_key(model, backend, kv_type, threads)
    return Calibration(disk, store.get("compute", key, ComputeRate.from_dict))

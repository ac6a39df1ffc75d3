"""The plan of a model whose architecture is only declared: what its header tells, without a graph.

Which weights a pass reads is then a guess: all of them but the token embedding, and of experts those that are used.
"""

from __future__ import annotations

import os
from typing import Any

from attrs import frozen

from ramforge_core.allotment import DEFAULT_CONTEXT, SLOT_BYTES, SLOTS
from ramforge_core.architecture import Architecture
from ramforge_core.calibration import Calibration, DiskRate
from ramforge_core.errors import BudgetTooSmallError, RamforgeError
from ramforge_core.gguf import GGUF, TensorInfo
from ramforge_core.kv import CHUNK_POSITIONS, KVLayout, KVType
from ramforge_core.model import cannot_run, read_config
from ramforge_core.planning.forecast import Speed, speed
from ramforge_core.planning.plan import GIB, Outlook, Plan, StageShare
from ramforge_core.plugins import Registry

_EMBEDDING = "token_embd.weight"
_OTHERS = "others"
_HEAP_BYTES = 6 << 20
_RING_SHARE = 8


@frozen
class _Sizes:
    """By stage: bytes that every pass reads. by_row : of the embedding. kv : its layout, None if it is not known."""

    stages: dict[str, float]
    by_row: int
    kv: KVLayout | None
    context: int
    trained: int
    fixed: int
    """Process, heap and logits."""
    disk: DiskRate | None

    def kv_bytes(self) -> int:
        return 0 if self.kv is None else -(-self.context // CHUNK_POSITIONS) * self.kv.chunk_bytes

    @property
    def all_bytes(self) -> int:
        return int(sum(self.stages.values())) + self.by_row

    def ring(self, ram: int) -> int:
        return min(SLOTS * SLOT_BYTES, max(0, ram - self.fixed) // _RING_SHARE)

    def pinned(self, ram: int) -> int:
        """Weight bytes that stay in memory in this budget."""
        free = ram - self.fixed - self.kv_bytes()
        return self.all_bytes if free >= self.all_bytes else max(0, free - self.ring(ram))

    def streamed(self, ram: int) -> int:
        pinned = self.pinned(ram)
        return 0 if pinned == self.all_bytes else max(0, self.all_bytes - self.by_row - pinned)

    def speed(self, ram: int) -> Speed | None:
        """By the disk alone."""
        streamed = self.streamed(ram)
        return speed(1, streamed / self.disk.bytes_per_s, None) if self.disk and streamed else None

    def outlook(self, ram: int) -> Outlook:
        pinned, streamed = self.pinned(ram), self.streamed(ram)
        return Outlook(ram, self.context, pinned, streamed, self.speed(ram), None)


def plan_declared(
    gguf: GGUF,
    architecture: Architecture,
    registry: Registry,
    disk: DiskRate | None,
    ram_bytes: int,
    process_bytes: int,
    context: int | None,
    kv_type: KVType,
) -> Plan:
    """What can be known. Raises BudgetTooSmallError if not even context and buffers fit."""
    try:
        config = read_config(gguf, architecture)
    except RamforgeError:  # a declared architecture may hold what nothing here reads yet
        config = None
    sizes = _sizes(gguf, config, disk, process_bytes, context, kv_type)
    smallest = sizes.fixed + sizes.kv_bytes() + min(3 * SLOT_BYTES, sizes.all_bytes)
    if ram_bytes < smallest:
        raise BudgetTooSmallError(smallest - process_bytes, process_bytes, ram_bytes, sizes.context)
    pinned, streamed = sizes.pinned(ram_bytes), sizes.streamed(ram_bytes)
    scanned = max(1.0, sum(sizes.stages.values()))
    share = 1 - streamed / scanned
    by_row = sizes.by_row if streamed else 0
    stages = [StageShare(n, int(b * share), int(b * (1 - share))) for n, b in sizes.stages.items()]
    first = StageShare("embedding", 0 if by_row else sizes.by_row, 0, by_row)
    memory = {
        "process": process_bytes,
        "pinned weights": pinned,
        "stream ring": sizes.ring(ram_bytes) if streamed else 0,
        "logits and heap": sizes.fixed - process_bytes,
        "kv cache": sizes.kv_bytes(),
    }
    note = (
        f"{cannot_run(architecture.key, registry)}. What follows is from the header alone: memory without the "
        "workspace of passes, bytes read without rounding, and speed as far as the disk decides it"
    )
    return Plan(
        path=os.fspath(gguf.path),
        architecture=architecture.key,
        note=note if sizes.kv else f"{note}; its KV cache is not known",
        backend=None,
        isa=None,
        threads=None,
        ram_bytes=ram_bytes,
        memory=memory,
        context=sizes.context,
        trained_context=sizes.trained,
        largest_context=None,
        kv_type=kv_type,
        kv_bytes_per_token=None if sizes.kv is None else sizes.kv.bytes_per_token,
        chunk_tokens=1,
        smallest_ram_bytes=smallest,
        all_fits_ram_bytes=sizes.fixed + sizes.kv_bytes() + sizes.all_bytes,
        weight_bytes=sum(t.nbytes or 0 for t in gguf.tensors.values()),
        pinned_bytes=pinned,
        streamed_bytes=streamed,
        by_row_bytes=by_row,
        read_bytes_per_token=streamed,
        reads_per_pass=0,
        experts=None,
        load_s=None if disk is None else pinned / disk.bytes_per_s,
        decode=sizes.speed(ram_bytes),
        decode_full=None,
        prefill=None,
        more=sizes.outlook(ram_bytes + GIB) if streamed else None,
        rates=Calibration(disk, None),
        stages=(first, *stages) if sizes.by_row else tuple(stages),
        allotment=None,
        outlook=sizes.outlook,
    )


def _sizes(
    gguf: GGUF,
    config: Any,
    disk: DiskRate | None,
    process_bytes: int,
    context: int | None,
    kv_type: KVType,
) -> _Sizes:
    arch = gguf.metadata.text("general.architecture")
    experts = gguf.metadata.integer(f"{arch}.expert_count", default=0)
    used = gguf.metadata.integer(f"{arch}.expert_used_count", default=0)
    active = used / experts if 0 < used <= experts else 1.0
    tied = gguf.tied_embeddings
    stages: dict[str, float] = {}
    for info in gguf.tensors.values():
        if info.name != _EMBEDDING or tied:
            stage = _stage(info)
            part = active if "_exps." in info.name else 1.0
            stages[stage] = stages.get(stage, 0.0) + part * (info.nbytes or 0)
    stages = {**{n: b for n, b in stages.items() if n != _OTHERS}, _OTHERS: stages.get(_OTHERS, 0.0)}
    embedding = gguf.tensors.get(_EMBEDDING)
    trained = gguf.metadata.integer(f"{arch}.context_length", default=DEFAULT_CONTEXT)
    vocab = embedding.shape[0] if embedding is not None and len(embedding.shape) == 2 else 0
    kv = None
    if all(hasattr(config, n) for n in ("block_count", "kv_heads", "key_width", "value_width")):
        layers = ((config.kv_heads, config.key_width, config.value_width),) * config.block_count
        kv = KVLayout(kv_type, layers)
    return _Sizes(
        stages=stages,
        by_row=0 if tied or embedding is None else embedding.nbytes or 0,
        kv=kv,
        context=min(context or DEFAULT_CONTEXT, trained),
        trained=trained,
        fixed=process_bytes + _HEAP_BYTES + (4 + 24) * vocab,
        disk=disk,
    )


def _stage(info: TensorInfo) -> str:
    parts = info.name.split(".")
    return ".".join(parts[:2]) if parts[0] == "blk" and len(parts) > 2 else _OTHERS

"""A mixture of experts in a budget: tokens per second, and what of it is reading.

    python tests/benchmarks/experts.py MODEL RAM [--tokens 32] [--prompt 64]

The logits' checksum tells whether two runs are the same to the bit. Run it cold, and in a cgroup of the budget's size.
"""

from __future__ import annotations

import argparse
import time
import zlib

import ramforge_core
from ramforge_core.sizes import format_size
from ramforge_core.system import process_memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("ram")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=64)
    options = parser.parse_args()
    with ramforge_core.open(options.model, ram=options.ram, ctx=512) as m:
        engine = m.engine
        cache, ids = engine.cache(), list(range(300, 300 + options.prompt))
        began = time.perf_counter()
        logits = engine.prefill(ids, cache)
        prompt_s, before, times = time.perf_counter() - began, engine.reads, []
        for _ in range(options.tokens):
            ids.append(int(logits.argmax()))
            began = time.perf_counter()
            logits = engine.run([ids[-1]], len(ids) - 1, cache, [True])[0].copy()
            times.append(time.perf_counter() - began)
        took, n, pass_s = engine.reads.since(before), options.tokens, sum(times) / options.tokens
        shares = engine.allotment.residency.experts
        print(f"prompt     {options.prompt / prompt_s:.1f} tokens/s")
        print(f"answer     {1 / pass_s:.2f} tokens/s, a pass {1000 * pass_s:.1f} ms")
        if shares is not None:
            layer, kept = shares.layers[0], [a.kept for a in shares.layers]
            payload = took.expert_misses * layer.expert_bytes
            rate, disk_s = took.read_bytes / max(took.busy_s, 1e-9), took.busy_s / n
            rest_s = pass_s - took.stall_s / n
            overlapped, in_turn = max(disk_s, rest_s) / pass_s, (disk_s + rest_s) / pass_s
            print(
                f"kept       {min(kept)} to {max(kept)} of {layer.op.experts}; a token uses {layer.op.chosen}"
            )
            print(
                f"experts    {took.expert_misses / n:.1f} missing, {took.expert_hits / n:.1f} here, per token"
            )
            print(
                f"read       {format_size(took.read_bytes / n)}, {took.read_bytes / max(payload, 1):.4f} of these"
            )
            print(
                f"disk       {format_size(rate)}/s, {1000 * disk_s:.1f} ms of a pass; else {1000 * rest_s:.1f} ms"
            )
            print(
                f"of roof    {100 * overlapped:.0f} % if all overlapped, {100 * in_turn:.0f} % of both in turn"
            )
        print(f"peak       {format_size(process_memory().peak_rss or 0)}")
        print(f"logits     {zlib.crc32(logits.tobytes()):08x}")


if __name__ == "__main__":
    main()

"""Decode speed of a model larger than its budget, against the roof of the disk. Prints one JSON line.

    uv run python tests/benchmarks/streamed.py MODEL.gguf --ram 400M --gen 16

The roof is what a pass must read, divided by the rate at which the same file gives the same reads to four readers
that compute nothing, measured in the same process in turns; the medians are printed.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time

import ramforge_core
from ramforge_core.memory import allocate
from ramforge_core.stream import Stream


def bare_rate(streamed, seconds: float) -> float:
    """Bytes per second of the stream's own reads when nobody computes."""
    stream = Stream(
        streamed.source, streamed.residency.reads, allocate(len(streamed.ring)), streamed.slots, repeat=True
    )
    stream.begin()
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        read, _ = stream.take()
        stream.give_back()
        done += read.nbytes
    elapsed = time.perf_counter() - began
    stream.close()
    return done / elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--ram", required=True)
    parser.add_argument("--ctx", type=int)
    parser.add_argument("--prompt", type=int, default=8)
    parser.add_argument("--gen", type=int, default=8, help="tokens of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    a = parser.parse_args()
    with ramforge_core.open(a.model, ram=a.ram, threads=a.threads, ctx=a.ctx) as m:
        vocab = m.engine.model.config.vocab_size
        prompt = [(i * 7919 + 13) % (vocab - 300) + 259 for i in range(a.prompt)]
        cache = m.engine.cache()
        began = time.perf_counter()
        m.engine.prefill(prompt, cache)
        prefill_s = time.perf_counter() - began
        parts, rates, passes, ratios = m.engine.allotment.residency, [], [], []
        before, at = m.engine.reads, a.prompt
        for _ in range(a.rounds):
            began = time.perf_counter()
            for _ in range(a.gen):
                m.engine.run([(at * 104729 + 17) % (vocab - 300) + 259], at, cache, [True])
                at += 1
            passes.append((time.perf_counter() - began) / a.gen)
            if parts.reads:
                rates.append(bare_rate(m.engine.streamed, 1.0))
                ratios.append(parts.read_bytes / rates[-1] / passes[-1])
        after = m.engine.reads
        n = a.gen * a.rounds
        facts = {
            "decode_tps": 1 / statistics.median(passes),
            "prefill_s": prefill_s,
            "read_bytes_per_token": (after.read_bytes - before.read_bytes) / n,
            "pinned_bytes": parts.pinned_bytes,
            "streamed_bytes": parts.streamed_bytes,
            "stall_share": (after.stall_s - before.stall_s) / sum(passes) / a.gen,
            "max_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "major_faults": resource.getrusage(resource.RUSAGE_SELF).ru_majflt,
        }
        if rates:
            facts |= {
                "bare_bytes_per_s": statistics.median(rates),
                "of_disk_roof": statistics.median(ratios),
                "of_disk_roof_range": [min(ratios), max(ratios)],
            }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()

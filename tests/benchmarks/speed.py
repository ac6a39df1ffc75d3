"""Load, first token, prefill and decode of a model in memory, on token ids that need no text. Prints one JSON line.

    uv run python tests/benchmarks/speed.py MODEL.gguf --prompt 128 --gen 32 --threads 2

The ids are those of other runtimes' measurements on synthetic models, so that both do the same work. The first token
is counted from the call that loads to the end of the pass after the prompt.
"""

from __future__ import annotations

import argparse
import json
import resource
import time

import ramforge_core


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--prompt", type=int, default=128, help="prompt tokens")
    parser.add_argument("--gen", type=int, default=32, help="tokens generated one at a time")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--repeat", type=int, default=1, help="the best of so many rounds is printed")
    a = parser.parse_args()
    opened = time.perf_counter()
    with ramforge_core.open(a.model, backend=a.backend, threads=a.threads) as m:
        load_s = time.perf_counter() - opened
        vocab = m.engine.model.config.vocab_size
        prompt = [(i * 7919 + 13) % (vocab - 300) + 259 for i in range(a.prompt)]
        prefill_tps = decode_tps = first_token_s = 0.0
        for _ in range(a.repeat):
            cache = m.engine.cache()
            began = time.perf_counter()
            m.engine.prefill(prompt, cache)
            prefill_tps = max(prefill_tps, a.prompt / (time.perf_counter() - began))
            began = time.perf_counter()
            for i in range(a.gen):
                token = (i * 104729 + 17) % (vocab - 300) + 259
                m.engine.run([token], a.prompt + i, cache, [True])
                first_token_s = first_token_s or time.perf_counter() - opened
            decode_tps = max(decode_tps, a.gen / (time.perf_counter() - began))
    print(
        json.dumps(
            {
                "prefill_tps": prefill_tps,
                "decode_tps": decode_tps,
                "load_s": load_s,
                "first_token_s": first_token_s,
                "max_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            }
        )
    )


if __name__ == "__main__":
    main()

"""Speed, load and memory of a model beside another runtime, in turns. Prints one line of medians for each model.

    uv run python tests/benchmarks/pairs.py MODEL.gguf... --peer "peer/bin/python peer_llamacpp.py" --pairs 5

The peer is a command that takes the arguments of `speed.py` and prints the same JSON.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

FIGURES = (
    ("prefill_tps", "prefill", 1),
    ("decode_tps", "decode", 1),
    ("load_s", "load s", 1),
    ("first_token_s", "first token s", 1),
    ("max_rss_bytes", "peak MB", 1e-6),
)


def measured(command: Sequence[str]) -> dict[str, Any]:
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(f"{shlex.join(command)}\n{run.stderr}")
    result: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--peer", required=True, help="command of the other runtime's measurement")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--gen", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    a = parser.parse_args()
    ours = [sys.executable, str(Path(__file__).with_name("speed.py"))]
    for model in a.models:
        work = [model, "--prompt", str(a.prompt), "--gen", str(a.gen), "--threads", str(a.threads)]
        pairs = [(measured([*ours, *work]), measured([*shlex.split(a.peer), *work])) for _ in range(a.pairs)]
        said = []
        for key, name, unit in FIGURES:
            ratios = sorted(mine[key] / other[key] for mine, other in pairs)
            mine, other = (median(pair[i][key] for pair in pairs) * unit for i in (0, 1))
            said.append(
                f"{name} {mine:.4g} / {other:.4g}, {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            )
        print(f"{Path(model).name}: " + "; ".join(said), flush=True)


if __name__ == "__main__":
    main()

"""How far the logits of tiny models are from those of transformers: the figures of docs/models.md.

    uv run python tests/benchmarks/logit_errors.py ../shared/fixtures

Prints for each folder with a model and a golden result the largest error of a logit on each backend, that of llama.cpp
on the same file, and how many of the golden greedy tokens are on top.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

import ramforge_core
from ramforge_core.errors import RamforgeError


def main(folders: list[Path]) -> None:
    print(f"{'model':20} {'numpy':>8} {'cpu':>8} {'llama.cpp':>9}  top-1, numpy and cpu")
    for folder in folders:
        golden = np.load(folder / "golden.npz")
        ids = [*golden["ids"].tolist(), *golden["greedy"][:-1].tolist()]
        errors, hits = [], []
        try:
            for backend in ("numpy", "cpu"):
                with ramforge_core.open(folder / "model.gguf", backend=backend, kv_type="f32") as m:
                    logits = m.logits(ids)
                n = len(golden["ids"])
                errors.append(np.abs(logits[:n] - golden["logits"]).max())
                hits.append(int((logits[n - 1 :].argmax(axis=1) == golden["greedy"]).sum()))
        except RamforgeError as error:
            print(f"{folder.name:20} {error}")
            continue
        peer = json.loads((folder / "meta.json").read_text())["files"]["model.gguf"]["llama_cpp_file"]
        print(
            f"{folder.name:20} {errors[0]:8.1e} {errors[1]:8.1e} {peer['max_abs']:9.1e}  "
            f"{hits[0]} and {hits[1]} of {len(golden['greedy'])}"
        )


if __name__ == "__main__":
    main(sorted(path.parent for path in Path(sys.argv[1]).glob("*/golden.npz")))

"""What ``ramforge bench`` measures: a model as it runs here, and every kernel by itself.

Beside each figure stands its roof, measured in the same run: how fast the same threads read memory, how fast the disk
gives cold data.
"""

from __future__ import annotations

from ramforge_core.benchmarking.kernels import KernelBenchmark, KernelRate, benchmark_kernels
from ramforge_core.benchmarking.model import DiskUse, ModelBenchmark, benchmark_model
from ramforge_core.benchmarking.spread import Spread

__all__ = [
    "DiskUse",
    "KernelBenchmark",
    "KernelRate",
    "ModelBenchmark",
    "Spread",
    "benchmark_kernels",
    "benchmark_model",
]

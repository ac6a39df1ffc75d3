"""A format whose kernels are Python functions, to see what the C part hands to kernels."""

from __future__ import annotations

import numpy as np
from cffi import FFI

from ramforge_backend_cpu import CpuBackend
from ramforge_core.graph import GraphBuilder
from ramforge_core.quant import KERNEL_ABI, KernelFunctions, QuantKernels
from ramforge_core.testing.rig import PlainFloat32, Rig

MATMUL = "int(uint8_t *, int64_t, int64_t, int64_t, uint8_t *, int64_t, int64_t, float *, int64_t)"


class PythonKernels(PlainFloat32):
    """Float32 whose matrix product is the Python function ``matmul(n_rows, acts)``."""

    block_values = 256
    block_bytes = 1024

    def __init__(self, packing, matmul, abi=KERNEL_ABI):
        ffi = FFI()

        def call(weights, row_bytes, n_rows, n_cols, acts, act_bytes, n_acts, out, stride):
            packed = np.frombuffer(ffi.buffer(acts, act_bytes * n_acts), np.uint8).reshape(n_acts, act_bytes)
            return matmul(n_rows, packed)

        decode = ffi.callback("int(uint8_t *, int64_t, float *)", lambda *_: 0)
        functions = KernelFunctions(decode, ffi.callback(MATMUL, call, error=-9))
        self._kernels = QuantKernels(abi, packing, {"portable": functions}, functions)

    @property
    def kernels(self):
        return self._kernels


def packed_as_kernels_see_it(packing, x):
    """Activations x (T, columns) of a product as they reach a kernel: uint8 (T, bytes)."""
    seen = []

    def matmul(n_rows, acts):
        seen.append(acts.copy())
        return 0

    weights = {"x": x, "m": np.zeros((16, x.shape[1]), np.float32)}
    g = GraphBuilder({n: w.shape for n, w in weights.items()})
    with g.stage("only"):
        g.logits(g.linear(g.embed("x"), "m"))
    Rig(CpuBackend(), g.finish(), weights, formats={"m": PythonKernels(packing, matmul)}).run(range(len(x)))
    return seen[0]

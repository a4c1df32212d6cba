#!/usr/bin/env python3
"""What a launch and a replay cost on the host with CUDA, on a libcuda that does nothing.

    python tools/bench/cuda_calls.py [--rounds 20] [--tinygrad FOLDER]

With `--tinygrad`, the folder that has the package (its site-packages), tinygrad's CUDA backend does
the same on the same library, in turn with ours; the last column is ours as a share of theirs. A
round is some hundred calls; of the rounds the best counts, in time of the processor. The C compiler
is clang. A replay is of 100 kernels, 10 of which have other memory than in the call before. An
eager operation is `(x + 1).realize()` of four numbers, in a process for each side.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from gpu.backends.cuda.context import open_context
from gpu.backends.cuda.graph import ONE_BY_ONE, CudaGraph
from gpu.backends.cuda.library import BY_VALUE, SIGNATURES, load_library
from gpu.backends.cuda.memory import CudaAllocator
from gpu.backends.cuda.program import CudaProgram
from gpu.compiler.toolchain.clang import find_clang
from gpu.compiler.toolchain.nvbinary import NvBinary

CALLS: Final = 300
KERNELS, CHANGED, BUFFERS = 100, 10, 3
THEIRS: Final = (
    *("cuCtxCreate_v2", "cuModuleLoadData", "cuGraphAddKernelNode", "cuGraphInstantiate_v2"),
    *("cuGraphExecKernelNodeSetParams", "cuDeviceComputeCapability", "cuLaunchKernel"),
    *("cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2", "cuMemAllocHost_v2"),
)
"""Functions that tinygrad calls besides ours."""
_MAKES: Final = ("Alloc", "Create", "Retain", "Load", "GetFunction", "AddKernel", "Instantiate")
_OWN: Final = {
    "cuDriverGetVersion": "int *out) { *out = 13000;",
    "cuDeviceGetCount": "int *out) { *out = 1;",
    "cuDeviceGetAttribute": "int *out, int which) { *out = which == 75 ? 9 : 0;",
    "cuDeviceComputeCapability": "int *out, int *minor) { *out = 9; *minor = 0;",
    "cuDeviceGetName": "char *out) { *out = 0;",
    "cuMemHostAlloc": "void **out, size_t size) { *out = malloc(size);",
    "cuDeviceTotalMem_v2": "size_t *out) { *out = 1ul << 36;",
    "cuCtxSetCurrent": "void *context) { current = context;",
    "cuCtxGetCurrent": "void **out) { *out = current;",
}


def build(folder: str) -> str:
    """A libcuda whose functions only count what they make; gives its path."""
    lines = [
        "#include <stddef.h>",
        "#include <stdlib.h>",
        "static void *current; static size_t made;",
    ]
    for name in dict.fromkeys((*SIGNATURES, *BY_VALUE, *THEIRS)):
        makes = any(part in name for part in _MAKES)
        body = "size_t *out) { *out = ++made << 20;" if makes else "void) {"
        lines.append(f"int {name}({_OWN.get(name, body)} return 0; }}")
    path = f"{folder}/libcuda.so.1"
    command = [find_clang(), "-O2", "-shared", "-fPIC", "-x", "c", "-", "-o", path]
    subprocess.run(command, input="\n".join(lines), text=True, check=True)
    return path


def ours(path: str) -> dict[str, Callable[[], object]]:
    """What is measured, of this package."""
    context = open_context(load_library(path), 0)
    allocator = CudaAllocator(context)
    params = ", ".join(f".param .u64 p{i}" for i in range(BUFFERS))
    code = NvBinary(b"\x7fELF", f".visible .entry k({params}) {{ ret; }}").pack()
    data = {"groups": 4, "block": 64, "workspace": 0, "values": 0, "shared": 0, "written": 1}
    program = CudaProgram(context, allocator, "k", code, data)
    memories = [allocator.alloc(64) for _ in range(KERNELS + 2 * CHANGED + BUFFERS)]
    inputs = itertools.cycle((memories[:CHANGED], memories[CHANGED : 2 * CHANGED]))
    held = memories[2 * CHANGED :]
    launches = [
        (program, (CHANGED + i, CHANGED + i + 1, i if i < CHANGED else CHANGED + i + 2), ())
        for i in range(KERNELS)
    ]
    graph = CudaGraph(launches, CHANGED + len(held))
    for _ in range(ONE_BY_ONE + 1):
        graph([*next(inputs), *held])
    three = held[:BUFFERS]
    return {
        "launch": lambda: program(*three),
        "replay": lambda: graph([*next(inputs), *held]),
    }


def theirs(path: str, folder: str) -> dict[str, Callable[[], object]]:
    """The same of tinygrad's `CUDAProgram` and `CUDAGraph`, as they are after they began."""
    os.environ["CUDA_PATH"] = path
    sys.path.append(folder)
    from tinygrad.runtime.autogen import cuda
    from tinygrad.runtime.graph.cuda import CUDAGraph
    from tinygrad.runtime.ops_cuda import CUDAProgram, encode_args

    program: Any = CUDAProgram.__new__(CUDAProgram)
    program.dev, program.signature, program.smem = SimpleNamespace(context=None), [None] * 3, 0
    program.prg, program.module = cuda.CUfunction(), cuda.CUmodule()
    buffers = [cuda.CUdeviceptr_v2(i << 20) for i in range(1, 2 * CHANGED + BUFFERS + 1)]
    sizes = {"global_size": (4, 1, 1), "local_size": (64, 1, 1)}

    graph: Any = CUDAGraph.__new__(CUDAGraph)
    graph.nodes = []
    for _ in range(KERNELS):
        arguments, extra = encode_args(buffers[:BUFFERS], [], program.signature)
        parameters = cuda.CUDA_KERNEL_NODE_PARAMS_v1(program.prg, 4, 1, 1, 64, 1, 1, 0, None, extra)
        graph.nodes.append((cuda.CUgraphNode(), parameters, arguments, False))
    graph.updatable = list(range(CHANGED))
    graph.calls = [(0,)] * KERNELS
    graph.uop_replace = [[(2, i)] if i < CHANGED else [] for i in range(KERNELS)]
    graph.vars, graph.symbolic_dims = [], []
    graph.var_vals_replace, graph.launch_dims_replace = {}, {}
    graph.instance, graph.graph = cuda.CUgraphExec(), cuda.CUgraph()
    made = [SimpleNamespace(buffer=SimpleNamespace(_buf=each)) for each in buffers]
    inputs = itertools.cycle((tuple(made[:CHANGED]), tuple(made[CHANGED : 2 * CHANGED])))
    return {
        "launch": lambda: program(*buffers[:BUFFERS], **sizes),
        "replay": lambda: graph(next(inputs), {}),
    }


def cost(call: Callable[[], object]) -> float:
    """Microseconds of the processor that a call takes."""
    began = time.process_time()
    for _ in range(CALLS):
        call()
    return (time.process_time() - began) / CALLS * 1e6


EAGER: Final = """
import sys, time
sys.path.append(sys.argv[1])
from {package} import Tensor
x = Tensor([1.0, 2.0, 3.0, 4.0]).realize()
def run(count):
    began = time.process_time()
    for _ in range(count):
        (x + 1).realize()
    return (time.process_time() - began) / count * 1e6
run(100)
print(min(run(100) for _ in range(20)))
"""


def eager(path: str, package: str, folder: str) -> float:
    """Microseconds of a small operation, from the tensor down, in a process of its own."""
    # Code is PTX on both sides: neither looks for a compiler of NVIDIA's.
    told = {"DEV": "CUDA:PTX", "CUDA_LIBRARY": path, "CUDA_PATH": path}
    command = [sys.executable, "-c", EAGER.format(package=package), folder]
    environment = {**os.environ, **told}
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return float(ran.stdout)


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--tinygrad", help="the folder that has the package tinygrad")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = build(folder)
        sides = [ours(path)]
        if asked.tinygrad:
            sides.append(theirs(path, str(Path(asked.tinygrad).resolve())))
        print(f"{'us of a call':14}{'ours':>8}" + f"{'theirs':>8}{'share':>8}" * (len(sides) > 1))
        for name in sides[0]:
            rounds = [[cost(side[name]) for side in sides] for _ in range(asked.rounds)]
            best = [min(column) for column in zip(*rounds, strict=True)]
            told = "".join(f"{each:8.2f}" for each in best)
            print(f"{name:14}{told}" + (f"{best[0] / best[1]:8.2f}" if len(best) > 1 else ""))
        folders = {"gpu": str(Path(__file__).resolve().parents[2])}
        if asked.tinygrad:
            folders["tinygrad"] = str(Path(asked.tinygrad).resolve())
        turns = [[eager(path, *each) for each in folders.items()] for _ in range(3)]
        best = [min(column) for column in zip(*turns, strict=True)]
        told = "".join(f"{each:8.1f}" for each in best)
        print(f"{'eager x + 1':14}{told}" + (f"{best[0] / best[1]:8.2f}" if len(best) > 1 else ""))


if __name__ == "__main__":
    main()

"""MSL by clang for this machine: kernels run on the CPU, the threads of a threadgroup in turn."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gpu.compiler.ir.linear import Program
from gpu.compiler.render.cstyle.metal import HEAD, MetalRenderer, symbol
from gpu.compiler.toolchain.clang import ClangCompiler, find_clang
from unit.fibers import FIBERS, run_fibers
from unit.linear_kernels import HOST, printed

FAMILY = "apple7"
_OPTIONS = ["-x", "c++", "-std=c++20", "-O1", "-w", "-shared", "-fPIC"]
_MACHINE = (
    FIBERS
    + r"""
extern "C" void gpu_msl_barrier(unsigned flags) { if (flags != 2) abort(); wait_for_all(); }
extern "C" unsigned gpu_msl_exchange(unsigned value, unsigned distance) {
  if (distance > 31) abort();
  return exchanged(value, distance);
}
"""
)


def compiler() -> ClangCompiler:
    """Of MSL, for this machine."""
    return ClangCompiler(HOST.name, HOST.features, "msl")


def run_metal(
    programs: Sequence[Program], arrays: Sequence[Sequence[np.ndarray]], vals: tuple[int, ...] = ()
) -> None:
    """Runs programs on arrays, one for each parameter, which they may change."""
    renderer = MetalRenderer(FAMILY)
    texts = [HEAD, *(printed(renderer, program).replace(HEAD, "") for program in programs)]
    launches = [renderer.launch_data(program) for program in programs]
    cases = list(zip(programs, launches, strict=True))
    declared = [_declared(*case) for case in cases]
    calls = [f"if (which == {i}) {_call(*case)}" for i, case in enumerate(cases)]
    caller = "static void call(int which) { " + " ".join(calls) + " }"
    with tempfile.TemporaryDirectory() as folder:
        kernels = Path(folder) / "kernels.o"
        kernels.write_bytes(compiler().compile_cached("\n".join(texts)))
        command = [find_clang(), *_OPTIONS, "-", "-x", "none", str(kernels), "-lm", "-o"]
        code = "\n".join([_MACHINE, *declared, caller])
        run_fibers([*command, "{library}"], code, launches, arrays, vals)


def _pointers(program: Program, data: dict[str, int]) -> int:
    """Arguments before the numbers of threads: buffers, workspace, and the array of values."""
    return len(program.params) + bool(data["workspace"]) + bool(program.vals)


def _declared(program: Program, data: dict[str, int]) -> str:
    kinds = ["void *"] * _pointers(program, data) + ["unsigned"] * 2
    return f'extern "C" void {symbol(program.name)}({", ".join(kinds)});'


def _call(program: Program, data: dict[str, int]) -> str:
    """A statement that calls a kernel with what `launch` was given."""
    words = [f"given[{i}]" for i in range(_pointers(program, data))]
    if program.vals:
        words[-1] = f"given + {len(words) - 1}"
    return f"{symbol(program.name)}({', '.join([*words, 'blockIdx.x', 'threadIdx.x'])});"

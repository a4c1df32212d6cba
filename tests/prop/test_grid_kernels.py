"""Random programs for GPUs: CUDA C and MSL on the CPU, PTX on simulated lanes, NIR in numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpu.compiler.fusion.build import BuiltKernel
from gpu.compiler.ir.graph import toposort
from gpu.compiler.ir.linear import Program
from gpu.compiler.lower.linearize import linearize
from gpu.compiler.opt.policy.choose import schedule
from gpu.compiler.render.cstyle.cuda import CUDARenderer
from gpu.compiler.render.nir.nak import NAKRenderer
from gpu.compiler.targets import Target
from gpu.compiler.targets.adreno import adreno_target
from gpu.compiler.targets.apple import metal_target
from gpu.compiler.targets.nvidia import ARCHITECTURES, nv_target
from gpu.compiler.toolchain.nvrtc import NvBinary, NvrtcCompiler
from prop.judge import check, expect
from prop.programs import random_graph
from prop.test_passes import computed, run_plan
from unit.cuda.host import ARCH, run_host
from unit.cuda.lanes import run_llvm, run_nvrtc
from unit.metal.host import FAMILY, run_metal
from unit.nak.machine import CHIP, run_adreno, run_nir

Array = np.ndarray[Any, Any]
NVIDIA, APPLE, ADRENO = nv_target(ARCH), metal_target(FAMILY), adreno_target(CHIP)
NAK = NAKRenderer(ARCH).target  # which stores bfloat16 and does not convert it
# Small blocks make many of them, and rows that one block does not hold.
SMALL = {"threads": 64, "shared_bytes": 1 << 13}


def lowered(built: BuiltKernel, target: Target) -> Program:
    return linearize(schedule(built.kernel, target)[0], target)


@pytest.mark.parametrize("sizes", [{}, SMALL], ids=["blocks", "small"])
@pytest.mark.parametrize(
    ("tool", "target", "run", "seeds"),
    [
        ("clang", NVIDIA, run_host, range(2)),
        ("clang", APPLE, run_metal, range(12)),
        ("llvmlite", NVIDIA, run_llvm, range(6)),
        ("nvrtc", NVIDIA, run_nvrtc, range(4)),
        (None, NAK, run_nir, range(6)),
        (None, ADRENO, run_adreno, range(12)),
    ],
    ids=["host", "metal", "llvm", "nvrtc", "nir", "adreno"],
)
def test_kernels_mean_what_the_graph_says(
    sizes: dict[str, int],
    tool: str | None,
    target: Target,
    run: Callable[..., None],
    seeds: range,
    need: Callable[[str], None],
) -> None:
    if tool is not None:
        need(tool)
    target = replace(target, **sizes)

    def run_kernel(built: BuiltKernel, arrays: list[Array]) -> None:
        run([lowered(built, target)], [arrays])

    ran = 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        roots, inputs = random_graph(rng, depth=int(rng.integers(3, 31)), max_size=600)
        if any(node.dtype in target.native.lacking for node in toposort(roots)):
            continue
        if wanted := computed(roots):
            got = run_plan(wanted, inputs, run_kernel)
            check(got, expect(wanted, inputs, rng), wanted)
            ran += 1
    assert ran


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_kernels_compile(arch: str, need: Callable[[str], None]) -> None:
    need("nvrtc")
    renderer, compiler = CUDARenderer(arch), NvrtcCompiler(arch)
    made: list[NvBinary] = []

    def compile_only(built: BuiltKernel, arrays: list[Array]) -> None:
        source = renderer.render(lowered(built, renderer.target))
        made.append(NvBinary.unpack(compiler.compile(source)))

    rng = np.random.default_rng(ARCHITECTURES[arch])
    roots, inputs = random_graph(rng, depth=20, max_size=600)
    run_plan(computed(roots), inputs, compile_only)
    assert made and all(f".target {arch}\n" in binary.ptx for binary in made)

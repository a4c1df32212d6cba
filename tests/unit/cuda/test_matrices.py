"""Products of matrices by mma.sync: code of both renderers, run by simulated lanes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from gpu.compiler.ir.linear import Program
from gpu.compiler.lower.linearize import linearize
from gpu.compiler.opt.policy.choose import schedule
from gpu.compiler.render.cstyle.cuda import CUDARenderer
from gpu.compiler.render.llvm.ptx import PTXRenderer
from gpu.compiler.targets.nvidia import AMPERE, SHARED_KIB, number_of, nv_target
from gpu.compiler.toolchain.nvbinary import NvBinary
from gpu.compiler.toolchain.nvptx import PtxCompiler, generate_ptx
from gpu.compiler.toolchain.nvrtc import NvrtcCompiler
from gpu.core.dtype import dtypes
from gpu.drivers.nv.code.cubin import Cubin
from unit.cuda.lanes import ARCH, run_llvm, run_nvrtc
from unit.matrix_kernels import PRODUCTS, Product

Run = Callable[[Sequence[Program], Sequence[Sequence[np.ndarray]]], None]
RUNS = {"nvrtc": run_nvrtc, "llvm": run_llvm}
FEW = replace(nv_target(ARCH), workers=1)
"""For the largest tiles with little to compute."""
LARGE = (Product(128, 256, 192, dtypes.bfloat16), Product(128, 128, 264, left=True, right=True))


@pytest.mark.parametrize("way", RUNS)
def test_products(way: str, need: Callable[[str], None]) -> None:
    need("nvrtc" if way == "nvrtc" else "llvmlite")
    run: Run = RUNS[way]
    products = (*PRODUCTS, *LARGE)
    kernels = [
        schedule(p.kernel(), FEW if p in LARGE else nv_target(ARCH))[0]._replace(name=f"k{i}")
        for i, p in enumerate(products)
    ]
    programs = [linearize(kernel, nv_target(ARCH)) for kernel in kernels]
    arrays = [p.arrays(i) for i, p in enumerate(products)]
    run(programs, arrays)
    for product, given in zip(products, arrays, strict=True):
        product.check(given)


@pytest.mark.parametrize("left, right", [(False, False), (True, True)])
def test_what_is_printed(left: bool, right: bool, need: Callable[[str], None]) -> None:
    need("llvmlite")
    product = Product(256, 256, 256, dtypes.bfloat16, left=left, right=right)
    program = linearize(schedule(product.kernel(), nv_target(ARCH))[0], nv_target(ARCH))
    ptx = generate_ptx(PTXRenderer(ARCH).render(program))
    for text in (CUDARenderer(ARCH).render(program), ptx):
        assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in text
        assert re.search(r"cp\.async\.cg\.shared\.global\.L2::128B \[.*\], \[.*\], 16;", text)
        assert "cp.async.commit_group;" in text and re.search(r"wait_group [12];", text)
        loads = set(re.findall(r"ldmatrix\.sync\.aligned\.m8n8\.x[24](.*)\.shared\.b16", text))
        assert loads == ({".trans", ""} if left == right else {""})


def test_the_largest_product_fits_a_multiprocessor(need: Callable[[str], None]) -> None:
    """8192 x 8192 x 8192: one block of 8 warps, nothing spilled, copies three tiles ahead."""
    need("nvrtc")
    need("nvjitlink")
    program = linearize(
        schedule(Product(8192, 8192, 8192, dtypes.bfloat16).kernel(), nv_target(ARCH))[0],
        nv_target(ARCH),
    )
    for renderer, compiler in (
        (CUDARenderer(ARCH), NvrtcCompiler(ARCH)),
        (PTXRenderer(ARCH), PtxCompiler(ARCH)),
    ):
        data = renderer.launch_data(program)
        binary = NvBinary.unpack(compiler.compile_cached(renderer.render(program)))
        kernel = Cubin(binary.cubin).kernel(program.name)
        assert kernel.local_size(0) == 0, "registers are spilled"
        assert (data["block"], data["groups"]) == (256, 2048)
        assert kernel.registers * data["block"] <= 1 << 16
        assert 48 << 10 < data["shared"] <= SHARED_KIB[ARCH] << 10
        assert binary.ptx.count("mma.sync") % (64 * 64 // (16 * 8)) == 0


@pytest.mark.parametrize("arch", SHARED_KIB)
def test_every_architecture_has_tiles_that_fit(arch: str, need: Callable[[str], None]) -> None:
    need("nvrtc")
    target = nv_target(arch)
    program = linearize(schedule(Product(4096, 4096, 4096).kernel(), target)[0], target)
    renderer = CUDARenderer(arch)
    data = renderer.launch_data(program)
    assert data["shared"] <= SHARED_KIB[arch] << 10
    assert data["block"] == 256 or not target.matrices
    source = renderer.render(program)
    assert ("mma.sync" in source) == ("cp.async" in source) == bool(target.matrices)
    assert bool(target.matrices) == (number_of(arch) >= AMPERE)

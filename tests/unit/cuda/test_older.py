"""Architectures before sm_80, which lack some instructions, and those that nothing is known of."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gpu.compiler.ir.linear import Program
from gpu.compiler.render.cstyle.cuda import CUDARenderer
from gpu.compiler.render.llvm.ptx import PTXRenderer
from gpu.compiler.targets.nvidia import ARCHITECTURES, nearest_architecture, number_of
from gpu.compiler.toolchain.nvbinary import NvBinary
from gpu.compiler.toolchain.nvlibs import find_library
from gpu.compiler.toolchain.nvptx import DriverPtxCompiler, assemble, generate_ptx
from gpu.compiler.toolchain.nvrtc import NvrtcCompiler
from gpu.core.dtype import dtypes
from gpu.core.errors import CompileError, Unsupported
from gpu.sim.isa.ptx.bare import BareModule
from unit.linear_kernels import Kernel, printed

OLDER = ("sm_70", "sm_75")
SIZE = 4096


def narrowing() -> Program:
    """x to bfloat16 and back, and the extremes of x and y."""
    single = dtypes.float32
    k = Kernel(
        bits=(dtypes.bfloat16, SIZE), back=(single, SIZE), most=(single, SIZE),
        least=(single, SIZE), x=(single, SIZE), y=(single, SIZE),
    )  # fmt: skip
    i = k.loop(SIZE, kind="grid")
    x, y = k.load(k.x, i), k.load(k.y, i)
    bits = k("cast", dtypes.bfloat16, x)
    k.store(k.bits, i, bits)
    k.store(k.back, i, k("cast", single, bits))
    k.store(k.most, i, k.alu("max", x, y))
    k.store(k.least, i, k.alu("min", x, y))
    k.end(i)
    return k.program()


def ptx_of(way: str, arch: str, program: Program) -> str:
    if way == "llvm":
        return generate_ptx(printed(PTXRenderer(arch), program), arch)
    lib = NvrtcCompiler(arch).compile_cached(printed(CUDARenderer(arch), program))
    return NvBinary.unpack(lib).ptx


@pytest.mark.parametrize("arch", [*OLDER, "sm_80"])
@pytest.mark.parametrize("way", ["nvrtc", "llvm"])
def test_what_has_no_instruction_is_computed_the_same(
    way: str, arch: str, need: Callable[[str], None]
) -> None:
    need("nvrtc" if way == "nvrtc" else "llvmlite")
    need("nvjitlink")
    program = narrowing()
    ptx = ptx_of(way, arch, program)
    if arch in OLDER:
        assert ".bf16" not in ptx and ".NaN" not in ptx
    assert assemble(find_library("nvJitLink"), ptx, arch)
    rng = np.random.default_rng(number_of(arch))
    x = rng.integers(0, 1 << 32, SIZE, np.uint64).astype(np.uint32).view(np.float32)
    y = rng.permutation(x)
    x[:6] = [np.nan, 1, -0.0, np.inf, 3.4e38, 1 + 2**-8]
    y[:6] = [1, np.nan, -0.0, -np.inf, np.inf, 1]
    bits = np.zeros(SIZE, np.uint16)
    back, most, least = (np.zeros(SIZE, np.float32) for _ in range(3))
    data = CUDARenderer(arch).launch_data(program)
    grid, block = (data["groups"], 1, 1), (data["block"], 1, 1)
    BareModule(ptx).run(program.name, grid, block, bits, back, most, least, x, y)
    rounded = (x.view(np.uint32) + 0x7FFF + (x.view(np.uint32) >> 16 & 1)) & np.uint32(0xFFFF0000)
    numbers = ~np.isnan(x)
    np.testing.assert_array_equal(back.view(np.uint32)[numbers], rounded[numbers])
    assert np.isnan(back[~numbers]).all()
    np.testing.assert_array_equal(bits, (back.view(np.uint32) >> 16).astype(np.uint16))
    np.testing.assert_array_equal(most, np.maximum(x, y))
    np.testing.assert_array_equal(least, np.minimum(x, y))


def test_ptx_for_the_driver_has_no_machine_code(need: Callable[[str], None]) -> None:
    need("llvmlite")
    compiler = DriverPtxCompiler("sm_75")
    lib = compiler.compile_cached(PTXRenderer("sm_75").render(narrowing()))
    binary = NvBinary.unpack(lib)
    assert binary.cubin == b"" and ".target sm_70" in binary.ptx
    assert compiler.disassemble(lib).startswith(binary.ptx)
    assert compiler.key != DriverPtxCompiler("sm_80").key
    with pytest.raises(CompileError):
        compiler.compile("this is no kernel")


@pytest.mark.parametrize(
    ("arch", "code"),
    [("sm_103", "sm_100"), ("sm_110", "sm_100"), ("sm_121", "sm_120"), ("sm_150", "sm_120"),
     ("sm_87", "sm_86"), ("sm_72", "sm_70"), *((a, a) for a in ARCHITECTURES)],
)  # fmt: skip
def test_an_unknown_one_runs_code_for_the_nearest_older(arch: str, code: str) -> None:
    assert nearest_architecture(arch) == code


def test_what_is_too_old_or_none_is_refused() -> None:
    with pytest.raises(Unsupported, match="sm_61 is older than sm_70"):
        nearest_architecture("sm_61")
    for text in ("gfx1100", "sm_", "sm_90a", "90"):
        with pytest.raises(Unsupported, match="one like sm_90"):
            nearest_architecture(text)

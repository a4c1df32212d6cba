"""LLVM IR for NVIDIA GPUs, the PTX that it becomes, and machine code where nvJitLink is."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from gpu.compiler.ir.optable import MONOIDS, OPS
from gpu.compiler.render.llvm.ptx import PTXRenderer
from gpu.compiler.targets.nvidia import ARCHITECTURES
from gpu.compiler.toolchain.nvlibs import find_library
from gpu.compiler.toolchain.nvptx import PtxCompiler, assemble, generate_ptx
from gpu.compiler.toolchain.nvrtc import NvBinary
from gpu.core.dtype import ALL, DType, dtypes
from gpu.core.elf import EM_CUDA, parse_executable
from gpu.core.errors import CompileError, Unsupported
from unit.cuda.kernels import nest, reversing, roots_and_products, symbolic
from unit.linear_kernels import (
    COMPUTED,
    Kernel,
    cast_kernel,
    exchanging,
    matrix_kernel,
    printed,
    scratch_kernel,
)

RENDERER = PTXRenderer("sm_90")


@pytest.fixture(autouse=True)
def llvm(need: Callable[[str], None]) -> None:
    need("llvmlite")


def ptx_of(kernel: Kernel) -> str:
    return generate_ptx(printed(RENDERER, kernel))


def test_the_lowest_version_and_exact_arithmetic() -> None:
    ptx = ptx_of(roots_and_products())
    assert ".version 7.4\n.target sm_80\n" in ptx and ".maxntid 256" in ptx
    assert "div.rn.f32" in ptx and "sqrt.rn.f32" in ptx and "fma" not in ptx
    assert "mul.rn.f32" in ptx and "add.rn.f32" in ptx
    assert ".ftz" not in ptx and ".approx" not in ptx
    assert len(re.findall(r"\.param \.u64 .*kernel_param_\d", ptx)) == 5


def test_shared_memory_barriers_and_private_memory() -> None:
    ptx = ptx_of(reversing(2, 2, 64))
    assert ptx.count("bar.sync") == 1 and ".shared .align 16 .b8" in ptx and "ld.shared" in ptx
    ptx = ptx_of(scratch_kernel(40))
    assert ".local .align 16" in ptx and "bar.sync" not in ptx


def test_threads_that_31_bits_do_not_count_are_refused() -> None:
    with pytest.raises(Unsupported, match="workgroups"):
        RENDERER.render(nest(1 << 31).program())
    RENDERER.render(nest((1 << 29) - 256).program())


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("dtype", COMPUTED, ids=lambda d: d.name)
def test_no_operation_is_a_call(dtype: DType, lanes: int) -> None:
    """What PTX lacks LLVM would look for in a library."""
    native = RENDERER.target.native.ops
    names = [n for n, row in OPS.items() if n in native and dtype.kind in row.domain]
    ptx = ptx_of(matrix_kernel(dtype, lanes, 64, names))
    assert "call" not in ptx and ".extern" not in ptx


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_code_for_every_architecture(arch: str, need: Callable[[str], None]) -> None:
    need("nvjitlink")
    renderer, compiler = PTXRenderer(arch), PtxCompiler(arch)
    programs = [reversing(2, 2, 64), cast_kernel(renderer.target, 4), scratch_kernel(20_000)]
    programs.append(exchanging((5, 16), 32, [1, 2, 4, 8]))
    for program in [k.program() for k in (*programs, nest(7, 300))] + [symbolic("grid")]:
        binary = NvBinary.unpack(compiler.compile(printed(renderer, program)))
        found = parse_executable(binary.cubin)
        assert found.machine == EM_CUDA
        assert any(s.name == ".text.kernel" and s.size for s in found.sections)


def test_every_dtype_in_memory_and_every_fold_assembles(need: Callable[[str], None]) -> None:
    need("nvjitlink")
    k = Kernel(**{d.name: (d, 64) for d in ALL})
    lane = k("ramp", dtypes.int64, k.const(0), lanes=4, attr=(1,))
    mask = k.alu("lt", lane, k.const(3, lanes=4))
    for dtype in ALL:
        pointer = getattr(k, dtype.name)
        value = k.load(pointer, k.const(4), 4, mask)
        k.store(pointer, k.const(0), value, mask)
        for name, monoid in MONOIDS.items():
            if dtype in COMPUTED and dtype.kind in OPS[monoid.combine].domain:
                k.store(pointer, k.const(8), k("fold", dtype, value, attr=(name,)))
    assert assemble(find_library("nvJitLink"), ptx_of(k), "sm_80").startswith(b"\x7fELF")


def test_a_mistake_is_shown_with_its_line(need: Callable[[str], None]) -> None:
    with pytest.raises(CompileError, match="line 3"):
        generate_ptx("define void @k() {\nentry:\n  nonsense\n}\n")
    need("nvjitlink")
    head = ".version 7.4\n.target sm_80\n.address_size 64\n"
    with pytest.raises(CompileError) as caught:
        assemble(find_library("nvJitLink"), f"{head}.entry k() {{\n  foo.bar 1;\n}}\n", "sm_90")
    assert "sm_90" in str(caught.value) and "    foo.bar 1;" in str(caught.value)

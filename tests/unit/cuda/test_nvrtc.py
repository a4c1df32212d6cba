"""CUDA C through NVIDIA's compiler, where it is installed: no GPU is needed."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from gpu.compiler.render.cstyle.cuda import HEAD, CUDARenderer
from gpu.compiler.targets.nvidia import ARCHITECTURES
from gpu.compiler.toolchain.nvrtc import NvBinary, NvrtcCompiler
from gpu.core.elf import EM_CUDA, parse_executable
from gpu.core.errors import CompileError, Unsupported
from unit.cuda.kernels import reversing, roots_and_products
from unit.linear_kernels import Kernel, cast_kernel, printed, scratch_kernel


@pytest.fixture(autouse=True)
def nvrtc(need: Callable[[str], None]) -> None:
    need("nvrtc")


def compiled(kernel: Kernel, arch: str = "sm_90") -> NvBinary:
    source = printed(CUDARenderer(arch), kernel)
    return NvBinary.unpack(NvrtcCompiler(arch).compile(source))


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_code_for_every_architecture(arch: str) -> None:
    casts = cast_kernel(CUDARenderer(arch).target, 1)
    for kernel in (reversing(2, 2, 64), casts, scratch_kernel(20_000)):
        binary = compiled(kernel, arch)
        assert f".target {arch}\n" in binary.ptx
        found = parse_executable(binary.cubin)
        assert found.machine == EM_CUDA
        assert [s.size > 0 for s in found.sections if s.name == ".text.kernel"] == [True]


def test_what_the_ptx_says() -> None:
    """Exact arithmetic, nothing fused, a bound on the block, parameters of 8 bytes."""
    ptx = compiled(roots_and_products()).ptx
    assert "div.rn.f32" in ptx and "sqrt.rn.f32" in ptx
    assert "mul.rn.f32" in ptx and "add.rn.f32" in ptx and "fma" not in ptx
    assert ".ftz" not in ptx and ".approx" not in ptx
    assert ".maxntid 256, 1, 1" in ptx
    assert len(re.findall(r"\.param \.u64 kernel_param_\d", ptx)) == 5
    shared = compiled(reversing(2, 2, 64)).ptx
    assert shared.count("bar.sync") == 1 and ".shared .align 16 .b8" in shared


def test_the_functions_of_the_head_are_instructions() -> None:
    source = (
        f'{HEAD}\nextern "C" __global__ void k(ushort *h, float *f)'
        " { f[0] = from_half(h[0]); h[1] = to_half(f[1]); }\n"
    )
    ptx = NvBinary.unpack(NvrtcCompiler("sm_80").compile(source)).ptx
    assert "cvt.f32.f16" in ptx and "cvt.rn.f16.f32" in ptx and "call" not in ptx


def test_a_mistake_is_shown_in_its_line() -> None:
    source = 'extern "C" __global__ void k(float *p) {\n  p[0] = nothing + 1;\n}\n'
    with pytest.raises(CompileError) as caught:
        NvrtcCompiler("sm_90").compile(source)
    text = str(caught.value)
    assert "sm_90" in text and '(2): error: identifier "nothing"' in text
    assert "p[0] = nothing + 1;" in text


def test_an_architecture_that_this_nvrtc_lacks() -> None:
    with pytest.raises(Unsupported, match=r"does not compile for sm_999, but for sm_\d+"):
        NvrtcCompiler("sm_999").compile("")


def test_keys_tell_architectures_apart() -> None:
    keys = {NvrtcCompiler(arch).key for arch in ARCHITECTURES}
    assert len(keys) == len(ARCHITECTURES)


def test_disassembly_begins_with_the_ptx() -> None:
    compiler = NvrtcCompiler("sm_90")
    lib = compiler.compile(CUDARenderer("sm_90").render(reversing(1, 1, 32).program()))
    assert compiler.disassemble(lib).startswith(NvBinary.unpack(lib).ptx)

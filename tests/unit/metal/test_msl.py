"""The text that is printed for Apple's GPUs, and what clang says of MSL."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

import gpu
from gpu import Tensor
from gpu.compiler.ir.linear import Inst
from gpu.compiler.render.cstyle.metal import HEAD, MetalRenderer
from gpu.compiler.targets.apple import BUFFERS, FAMILIES
from gpu.core.dtype import dtypes
from gpu.core.errors import CompileError, Unsupported
from unit.cuda.kernels import reversing, symbolic
from unit.linear_kernels import Kernel, matrix_kernel, printed, scratch_kernel
from unit.metal.host import FAMILY, compiler

RENDERER = MetalRenderer(FAMILY)
SOURCE = f"""{HEAD}
kernel void gpu_f(
    device float *a [[buffer(0)]], constant float *b [[buffer(1)]],
    uint block [[threadgroup_position_in_grid]], uint t [[thread_position_in_threadgroup]]) {{
  threadgroup float shared[32];
  float own[4] = {{0.0f, 1.0f, 2.0f, 3.0f}};
  %s
}}
"""


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("thread float *p = a;", "cannot initialize a variable of type"),
        ("float *p = a;", "cannot initialize|address space"),
        ("device float *p = shared;", "cannot initialize a variable of type"),
        ("threadgroup float *p = own;", "cannot initialize a variable of type"),
        ("b[0] = 1.0f;", "read-only|constant"),
        ("a[0] = simd_sum(a[1]);", "undeclared identifier 'simd_sum'"),
        ("double x = 1.0;", "double"),
        ("a[0] = ;", "expected expression"),
    ],
)
def test_what_is_wrong_in_msl_is_an_error_here(
    statement: str, message: str, need: Callable[[str], None]
) -> None:
    need("clang")
    compiler().compile(SOURCE % "a[t] = shared[t] + own[t] + b[block];")
    with pytest.raises(CompileError, match=message) as caught:
        compiler().compile(SOURCE % statement)
    assert f"(line {SOURCE.splitlines().index('  %s') + 1}: {statement})" in str(caught.value)


def test_pointers_name_their_address_spaces() -> None:
    text = printed(RENDERER, reversing(2, 4, 64))
    assert re.search(r"threadgroup long local\d+\[256\]", text)
    assert "threadgroup_barrier(mem_flags::mem_threadgroup);" in text
    assert "device long *p1 [[buffer(1)]]" in text
    text = printed(RENDERER, scratch_kernel(2_100))
    assert "device uchar *workspace [[buffer(1)]]" in text
    assert RENDERER.launch_data(scratch_kernel(2_100).program())["workspace"] > 0


def test_values_of_a_launch_are_one_buffer() -> None:
    kernel = symbolic("grid", 400)
    text = printed(RENDERER, kernel)
    assert "constant long *values [[buffer(1)]]" in text and "values[0]" in text
    assert RENDERER.launch_data(kernel) == {
        "groups": 2, "block": 224, "workspace": 0, "values": 1, "written": 1,
    }  # fmt: skip


def test_constants_keep_their_value_and_sign() -> None:
    k = Kernel(f=(dtypes.float32, 8), i=(dtypes.int64, 1))
    values = (-0.0, 0.1, 2.0**-149, 3.4028234663852886e38, float("inf"))
    for position, value in enumerate(values):
        rounded = float(np.float32(value))
        k.store(k.f, k.const(position), k.const(rounded, dtypes.float32))
    k.store(k.i, k.const(0), k.const(-(1 << 63)))
    text = printed(RENDERER, k)
    for literal in ("(-0.0f)", "(0.10000000149011612f)", "(1.401298464324817e-45f)", "0x7f800000"):
        assert literal in text
    assert "(-9223372036854775807L - 1)" in text


def test_a_kernel_may_be_called_a_word_of_msl(need: Callable[[str], None]) -> None:
    need("clang")
    for name in ("kernel", "device", "thread", "max", "half", "float4"):
        program = reversing(1, 1, 32).program()._replace(name=name)
        compiler().compile(printed(RENDERER, program))


def test_what_the_target_lacks_is_refused() -> None:
    with pytest.raises(Unsupported, match="float64"):
        k = Kernel(a=(dtypes.float64, 1))
        k.store(k.a, k.const(0), k.const(1.0, dtypes.float64))
        RENDERER.render(k.program())
    with pytest.raises(Unsupported, match="is a vector"):
        RENDERER.render(matrix_kernel(dtypes.int32, 4, 64, ["add"]).program())
    program = reversing(1, 1, 64).program()
    body = tuple(
        Inst("local", i.dtype, attr=(4097, "team")) if i.op == "local" else i for i in program.body
    )
    with pytest.raises(Unsupported, match="32,784 bytes of local memory"):
        RENDERER.render(program._replace(body=body))
    with pytest.raises(Unsupported, match="apple7"):
        MetalRenderer("apple77")


@pytest.mark.parametrize("family", FAMILIES)
def test_models_compile_for_every_family(family: str, need: Callable[[str], None]) -> None:
    """No kernel has more buffers than Metal's table has entries, and each passes clang."""
    need("clang")
    rng = np.random.default_rng(0)
    x = Tensor(rng.random((8, 3, 16, 16), np.float32))
    w = Tensor(rng.random((6, 3, 3, 3), np.float32))
    many = sum((Tensor(rng.random(40, np.float32)) for _ in range(40)), Tensor(np.zeros(40, "f")))
    results = [x.conv2d(w).relu().sum(), x.softmax(3).half(), x.reshape(8, 768).argmax(1), many]
    kernels = gpu.compile_for(f"METAL::{family}", *results, x.sort(3)[0], (x @ x).bfloat16())
    assert len(kernels) >= 6
    for kernel in kernels:
        numbers = [int(n) for n in re.findall(r"\[\[buffer\((\d+)\)\]\]", kernel.source)]
        assert numbers == list(range(len(numbers))) and len(numbers) <= BUFFERS


def test_a_machine_without_a_family_says_which_there_are() -> None:
    with pytest.raises(Unsupported, match=r"METAL::apple7 \(apple7, apple8, apple9, mac2\)"):
        gpu.compile_for("METAL", Tensor([1.0]) + 1)

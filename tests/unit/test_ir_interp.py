from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gpu.compiler.ir import interp
from gpu.compiler.ir.kernel.interp import interpret_kernel
from gpu.compiler.ir.kernel.text import parse_kernel
from gpu.compiler.ir.linear.interp import interpret_linear
from gpu.compiler.ir.linear.text import parse_linear
from gpu.compiler.ir.optable import MONOIDS
from gpu.core.dtype import ALL, DType, dtypes
from gpu.core.errors import CompileError, InvalidValue, VerifyError
from gpu.runtime.device import Device
from unit.python_calls import python_calls

Array = npt.NDArray[Any]

KERNEL_MATMUL = """\
kernel mm(out: f32[64,64] global, a: f32[64,64] global, b: f32[64,64] global)
  loop i grid 64
    loop j grid 64
      alloc acc: f32[] private
      acc[] = 0.0:f32
      loop k serial 64
        acc[] add= mul(a[i, k], b[k, j])
      out[i, j] = acc[]
"""

LINEAR_MATMUL = """\
program mm(out: f32[4096] written, a: f32[4096], b: f32[4096])
  %0 = param f32 out
  %1 = param f32 a
  %2 = param f32 b
  %3 = const f32 0.0
  %4 = const i64 64
  %5 = loop grid 0..64
    %6 = mul i64 %5, %4
    %7 = loop grid 0..64
      %8 = loop serial 0..64 carry %3
        %9 = carry f32 %8 (0)
        %10 = add i64 %6, %8
        %11 = load f32 %1, %10
        %12 = mul i64 %8, %4
        %13 = add i64 %12, %7
        %14 = load f32 %2, %13
        %15 = mul f32 %11, %14
        %16 = add f32 %9, %15
      %17 = end %8 carry %16
      %18 = result f32 %17 (0)
      %19 = add i64 %6, %7
      store %0, %19, %18
    %20 = end %7
  %21 = end %5
"""


def kernel(text: str, **buffers: Array) -> None:
    interpret_kernel(parse_kernel(text), buffers)


def linear(text: str, *buffers: Array) -> None:
    interpret_linear(parse_linear(text), buffers)


@pytest.fixture
def abc() -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-8, 8, (64, 64)).astype(np.float32) for _ in range(2))
    return np.full((64, 64), 7, np.float32), a, b


@pytest.mark.parametrize("points", [300, 1 << 20])
def test_matmul_in_any_number_of_goes(
    abc: tuple[Array, Array, Array], monkeypatch: pytest.MonkeyPatch, points: int
) -> None:
    out, a, b = abc
    monkeypatch.setattr(interp, "POINTS", points)
    kernel(KERNEL_MATMUL, out=out, a=a, b=b)
    np.testing.assert_array_equal(out, a @ b)
    out[:] = 7
    linear(LINEAR_MATMUL, out, a, b)
    np.testing.assert_array_equal(out, a @ b)


@pytest.mark.parametrize("form", ["kernel", "linear"])
def test_a_matmul_of_64_is_done_on_whole_arrays(abc: tuple[Array, Array, Array], form: str) -> None:
    out, a, b = abc
    run: Callable[[], None]
    if form == "kernel":
        tree = parse_kernel(KERNEL_MATMUL)
        run = lambda: interpret_kernel(tree, {"out": out, "a": a, "b": b})  # noqa: E731
    else:
        program = parse_linear(LINEAR_MATMUL)
        run = lambda: interpret_linear(program, [out, a, b])  # noqa: E731
    calls = python_calls(run)
    np.testing.assert_array_equal(out, a @ b)
    assert calls < 64**3 / 10  # of a product each


# Kernels.


def test_masks_guards_and_offset_loops() -> None:
    x = np.arange(10, dtype=np.int32)
    out = np.full(12, -1, np.int32)
    kernel(
        """\
kernel k(out: i32[12] global, x: i32[10] global)
  loop i worker 2..11
    out[i] = x[i - 1 if 8 - i >= 0] if i - 3 >= 0
    if i - 11 >= 0
      out[0] max= x[i - 9]
""",
        out=out,
        x=x,
    )
    np.testing.assert_array_equal(out, [2, -1, -1, 2, 3, 4, 5, 6, 7, 0, 0, 0])


@pytest.mark.parametrize("kind", ["grid", "worker", "vector", "unroll", "serial"])
@pytest.mark.parametrize("monoid", sorted(MONOIDS))
def test_iterations_that_combine_into_one_element(kind: str, monoid: str) -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(-5, 6, (4, 6)).astype(np.int32)
    out = rng.integers(-5, 6, 4).astype(np.int32)
    want = [MONOIDS[monoid].ufunc.reduce([old, *row]) for old, row in zip(out, x, strict=True)]
    kernel(
        f"""\
kernel k(out: i32[4] global, x: i32[4,6] global)
  loop c {kind} 6
    loop r {kind} 4
      out[r] {monoid}= x[r, c]
""",
        out=out,
        x=x,
    )
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.fp8e4m3, dtypes.bool], ids=str)
def test_monoids_of_unusual_dtypes(dtype: DType) -> None:
    out, x = np.zeros(1, dtype.np), np.ones(3, dtype.np)
    monoid = "or" if dtype is dtypes.bool else "add"
    code = dtype.code
    kernel(
        f"kernel k(out: {code}[1] global, x: {code}[3] global)\n"
        f"  loop i vector 3\n    out[0] {monoid}= x[i]\n",
        out=out,
        x=x,
    )
    assert float(out[0]) == (1.0 if dtype is dtypes.bool else 3.0)


def test_allocs_are_one_for_each_iteration() -> None:
    out = np.zeros((3, 4), np.int64)
    kernel(
        """\
kernel k(out: i64[3,4] global)
  loop i grid 3
    alloc row: i64[4] team
    loop j vector 4
      row[j] = index(10*i + j)
    loop l unroll 4
      alloc one: i64[] private
      one[] = row[3 - l]
      out[i, l] = one[]
""",
        out=out,
    )
    np.testing.assert_array_equal(out, 10 * np.arange(3)[:, None] + np.arange(4)[::-1])


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_what_was_never_written_is_poison(dtype: DType) -> None:
    out = np.zeros(2, dtype.np)
    kernel(
        f"kernel k(out: {dtype.code}[2] global)\n  alloc a: {dtype.code}[2] private\n"
        "  loop i vector 2\n    out[i] = a[i]\n",
        out=out,
    )
    again = np.zeros(2, dtype.np)
    linear(
        f"program p(out: {dtype.code}[2] written)\n  %0 = param {dtype.code} out\n"
        f"  %1 = local {dtype.code} 2 team\n  %2 = const i64 0\n"
        f"  %3 = load {dtype.code}x2 %1, %2\n  store %0, %2, %3\n",
        again,
    )
    for result in (out, again):
        if dtype.is_float:
            assert np.isnan(result).all()
        else:
            assert (result.view(np.uint8) == result.view(np.uint8)[0]).all()
            assert result.view(np.uint8)[0] in (1, 0x5A, 0xA5)


def test_a_kernel_must_not_reach_outside() -> None:
    text = """\
kernel k(out: i32[3] global, x: i32[3,4] global)
  loop i vector 3
    if 2 - i >= 0
      loop j serial 5
        out[i] add= x[i, j if 4*i + 3 - j >= 0]
"""
    with pytest.raises(
        VerifyError, match="a read of x outside it: index 1, j, is 4 and the size 4"
    ):
        kernel(text, out=np.zeros(3, np.int32), x=np.zeros((3, 4), np.int32))


def test_kernel_arguments_must_fit() -> None:
    text = "kernel k(out: i32[2,2] global)\n  out[0, 0] = 1:i32\n"
    wrong: list[dict[str, Array]] = [
        {},
        {"out": np.zeros(4, np.int32)},
        {"out": np.zeros((2, 2), np.int64)},
        {"out": np.zeros((2, 4), np.int32)[:, ::2]},
    ]
    for buffers in wrong:
        with pytest.raises(InvalidValue, match="buffer out of k"):
            kernel(text, **buffers)


# Linear programs.


def test_every_vector_instruction() -> None:
    x = np.arange(32, dtype=np.float32)
    out = np.zeros(32, np.float32)
    linear(
        """\
program p(out: f32[32] written, x: f32[32])
  %0 = param f32 out
  %1 = param f32 x
  %2 = const i64 8
  %3 = loop worker 0..2
    %4 = mul i64 %3, %2
    %5 = load f32x4 %1, %4
    %6 = ramp i64x4 %4 (-2)
    %7 = const i64x4 7
    %8 = add i64x4 %6, %7
    %9 = load f32x4 %1, %8
    %10 = shuffle f32x4 %5, %9 (0, 7, 2, 5)
    store %0, %4, %10
    %11 = fold f32 %5 (add)
    %12 = fold f32 %9 (max)
    %13 = extract f32 %9 (3)
    %14 = pack f32x4 %11, %12, %13, %13
    %15 = const i64 4
    %16 = add i64 %4, %15
    %17 = splat f32x4 %12
    %18 = le b1x4 %14, %17
    store %0, %16, %14, %18
  %19 = end %3
""",
        out,
        x,
    )
    want = np.zeros(32, np.float32)
    for i in (0, 8):
        near, far = x[i : i + 4], x[i + 7 : i : -2] if i else x[[7, 5, 3, 1]]
        want[i : i + 4] = [near[0], far[3], near[2], far[1]]
        packed = np.array([near.sum(), far.max(), far[3], far[3]])
        want[i + 4 : i + 8] = np.where(packed <= far.max(), packed, 0)
    np.testing.assert_array_equal(out, want)


def test_masked_lanes_and_ifs_touch_nothing() -> None:
    out = np.arange(4, dtype=np.int32)
    linear(
        """\
program p(out: i32[4] written)
  %0 = param i32 out
  %1 = loop grid 0..8
    %2 = const i64 2
    %3 = lt b1 %1, %2
    %4 = ramp i64x4 %1 (1)
    %5 = const i64x4 4
    %6 = lt b1x4 %4, %5
    %7 = if %3
      %8 = load i32x4 %0, %1, %6
      %9 = const i64 1
      %10 = eq b1 %1, %9
      %11 = if %10
        store %0, %4, %8, %6
        %12 = const i32 100
        %13 = const i64 0
        store %0, %13, %12
      endif %11
    endif %7
  %14 = end %1
""",
        out,
    )
    np.testing.assert_array_equal(out, [100, 1, 2, 3])


def test_a_carry_is_read_inside_parallel_loops_and_locals_are_shared() -> None:
    out = np.zeros(6, np.int64)
    linear(
        """\
program p(out: i64[6] written)
  %0 = param i64 out
  %1 = loop grid 0..2
    %2 = local i64 3 team
    %3 = loop serial 0..4 carry %1
      %4 = carry i64 %3 (0)
      %5 = loop grid 0..3
        %6 = add i64 %4, %5
        store %2, %5, %6
      %7 = end %5
      %8 = const i64 2
      %9 = load i64 %2, %8
    %10 = end %3 carry %9
    %11 = result i64 %10 (0)
    %12 = const i64 3
    %13 = mul i64 %1, %12
    store %0, %13, %11
    barrier
  %14 = end %1
""",
        out,
    )
    np.testing.assert_array_equal(out, [8, 0, 0, 9, 0, 0])


@pytest.mark.parametrize("index", ["-1", "3"])
@pytest.mark.parametrize("memory", ["param f32 x", "local f32 3 private"])
def test_a_program_must_not_reach_outside(index: str, memory: str) -> None:
    for access in ("%3 = load f32 %0, %1", "store %0, %1, %2"):
        with pytest.raises(VerifyError, match=f"at index {index} of .*, which has 3 elements"):
            linear(
                f"program p(x: f32[3] written)\n  %0 = {memory}\n  %1 = const i64 {index}\n"
                f"  %2 = const f32 1.0\n  {access}\n",
                np.zeros(3, np.float32),
            )


def test_linear_arguments_must_fit() -> None:
    text = "program p(x: f32[3] written)\n"
    for buffers in ([], [np.zeros(2, np.float32)], [np.zeros(3)]):
        with pytest.raises(InvalidValue, match=r"p takes 1 buffers|buffer x of p"):
            linear(text, *buffers)


# The reference device.


def test_the_python_device_runs_what_it_compiled() -> None:
    device = Device["PYTHON"]
    source = device.renderer.render(parse_linear(LINEAR_MATMUL))
    lib = device.compiler.compile_cached(source)
    assert device.compiler.disassemble(lib) == source == LINEAR_MATMUL
    data = device.renderer.launch_data(parse_linear(source))
    program = device.runtime("mm", lib, data)
    a = np.arange(4096, dtype=np.float32) % 7
    memory = [device.allocator.alloc(4096 * 4) for _ in range(3)]
    for each in memory[1:]:
        device.allocator.copy_in(each, a.view(np.uint8).data)
    out = np.zeros(4096, np.float32)
    device.allocator.copy_out(out.view(np.uint8).data, memory[0])
    assert np.isnan(out).all(), "fresh memory is poisoned"
    seconds = program(*memory, wait=True)
    device.allocator.copy_out(out.view(np.uint8).data, memory[0])
    square = a.reshape(64, 64)
    np.testing.assert_array_equal(out.reshape(64, 64), square @ square)
    assert seconds is not None and seconds > 0
    with pytest.raises(InvalidValue, match="16384 are needed"):
        program(memory[0], memory[1], memory[2][:100])
    with pytest.raises(InvalidValue, match="takes 3 buffers, got 2"):
        program(*memory[:2])
    with pytest.raises(InvalidValue, match="takes 0 values, got 1"):
        program(*memory, vals=(1,))


def test_the_python_compiler_refuses_what_is_not_valid() -> None:
    compiler = Device["PYTHON"].compiler
    with pytest.raises(CompileError, match="line 1"):
        compiler.compile("nonsense")
    with pytest.raises(CompileError, match="never closed"):
        compiler.compile(LINEAR_MATMUL.replace("  %21 = end %5\n", ""))

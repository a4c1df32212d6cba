"""Programs of the linear IR on the WEBGPU device against the interpreter, and their WGSL."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpu.backends.webgpu.device import WebGPU
from gpu.compiler.ir.linear.interp import interpret_linear
from gpu.compiler.ir.linear.text import parse_linear
from gpu.compiler.render.wgsl.renderer import WGSLLimits, WGSLRenderer
from gpu.core.errors import Unsupported
from unit.linear_kernels import printed

Array = np.ndarray[Any, Any]

GRID = """program k(out: {d}[{n}] written, x: {d}[{n}])
  %0 = param {d} out
  %1 = param {d} x
  %2 = loop grid 0..{n}
    %3 = load {d} %1, %2
    store %0, %2, %3
  %4 = end %2
"""
SPILLED = """program k(out: f32[6] written, x: f32[6])
  %0 = param f32 out
  %1 = param f32 x
  %2 = loop grid 0..6
    %3 = load f32 %1, %2
    %4 = local f32 5000 private
    %5 = local b1 5000 private
    %6 = const i64 4999
    store %4, %6, %3
    %7 = const f32 2.0
    %8 = lt b1 %7, %3
    store %5, %6, %8
    %9 = load f32 %4, %6
    %10 = load b1 %5, %6
    %11 = const f32 0.0
    %12 = where f32 %10, %9, %11
    store %0, %2, %12
  %13 = end %2
"""
REVERSED = """program k(out: f32[24] written, x: f32[24])
  %0 = param f32 out
  %1 = param f32 x
  %2 = const i32 8
  %3 = const i32 7
  %4 = loop grid 0..3
    %5 = local f32 8 team
    %6 = loop thread 0..8
      %7 = cast i32 %4
      %8 = mul i32 %7, %2
      %9 = cast i32 %6
      %10 = add i32 %8, %9
      %11 = cast i64 %10
      %12 = load f32 %1, %11
      store %5, %6, %12
      barrier
      %13 = sub i32 %3, %9
      %14 = cast i64 %13
      %15 = load f32 %5, %14
      store %0, %11, %15
    %16 = end %6
  %17 = end %4
"""
COUNTED = """program k(out: i32[2] written; n 1..100000)
  %0 = param i32 out
  %1 = val i64 n
  %2 = loop grid 0..2
    %3 = const i32 0
    %4 = const i32 1
    %5 = loop serial 0..%1 most 100000 carry %3
      %6 = carry i32 %5 (0)
      %7 = add i32 %6, %4
    %8 = end %5 carry %7
    %9 = result i32 %8 (0)
    store %0, %2, %9
  %10 = end %2
"""
# 65,190 rounds, and 1,591 in which a loop finds its end.
SHORT_INSIDE = """program k(out: i32[2] written)
  %0 = param i32 out
  %1 = loop grid 0..2
    %2 = const i32 0
    %3 = const i32 1
    %4 = loop serial 0..1590 carry %2
      %5 = carry i32 %4 (0)
      %6 = loop serial 0..40 carry %5
        %7 = carry i32 %6 (0)
        %8 = add i32 %7, %3
      %9 = end %6 carry %8
      %10 = result i32 %9 (0)
    %11 = end %4 carry %10
    %12 = result i32 %11 (0)
    store %0, %1, %12
  %13 = end %1
"""


def run(device: WebGPU, text: str, x: Array | None, size: int, dtype: Any, **limits: int) -> Array:
    """The first parameter after a run of a program on its other one."""
    program = parse_linear(text)
    renderer = device.renderer
    assert isinstance(renderer, WGSLRenderer)
    own = WGSLRenderer(renderer.limits._replace(**limits), renderer.has_f16)
    vals = (70001,) * len(program.vals)
    source = printed(own, program).encode()
    loaded = device.runtime(program.name, source, own.launch_data(program))
    out = np.zeros(size, dtype)
    buffers = [np.full(size, 1).astype(dtype), *([] if x is None else [x])]
    memories = []
    for array in buffers:
        memory = device.allocator.alloc(array.nbytes)
        device.allocator.copy_in(memory, memoryview(array.view(np.uint8)))
        memories.append(memory)
    loaded(*memories, vals=vals)
    device.allocator.copy_out(memoryview(out.view(np.uint8)), memories[0])
    interpret_linear(program, buffers, vals)
    np.testing.assert_array_equal(out, buffers[0])
    return out


@pytest.mark.parametrize("code", ["b1", "i8", "u8", "i16", "u16", "f16", "i32", "f32"])
def test_invocations_write_neighbours_in_one_word(webgpu: WebGPU, code: str) -> None:
    dtype = {"b1": "bool", "f16": "float16", "f32": "float32"}.get(code) or (
        code.replace("i", "int").replace("u", "uint").replace("uuint", "uint")
    )
    x = np.random.default_rng(0).integers(0, 250, 1001).astype(np.int32)
    x = (x % 2).astype(bool) if code == "b1" else x.astype(dtype)
    run(webgpu, GRID.format(d=code, n=1001), x, 1001, x.dtype)


def test_launches_are_folded_over_dimensions(webgpu: WebGPU) -> None:
    x = np.arange(64 * 11 + 3, dtype=np.int32)
    text = GRID.format(d="i32", n=x.size)
    run(webgpu, text, x, x.size, np.int32, groups=3)
    renderer = WGSLRenderer(WGSLLimits(groups=3), has_f16=False)
    data = renderer.launch_data(parse_linear(text))
    assert (data["x"], data["y"], data["z"]) == (3, 3, 2)
    with pytest.raises(Unsupported, match="12 workgroups, 2 a dimension"):
        WGSLRenderer(WGSLLimits(groups=2), has_f16=False).render(parse_linear(text))


def test_large_locals_live_in_a_buffer(webgpu: WebGPU) -> None:
    run(webgpu, SPILLED, np.arange(6, dtype=np.float32), 6, np.float32)
    data = WGSLRenderer(WGSLLimits(), has_f16=False).launch_data(parse_linear(SPILLED))
    assert data["spilled"] == 6 * (5000 + 5000) * 4


def test_threads_share_memory_and_wait_for_each_other(webgpu: WebGPU) -> None:
    run(webgpu, REVERSED, np.arange(24, dtype=np.float32), 24, np.float32)


@pytest.mark.parametrize("rounds", [0, 65535, 2000])
def test_rounds_of_loops_are_kept_below_a_limit(webgpu: WebGPU, rounds: int) -> None:
    limit = rounds or webgpu.renderer.limits.rounds  # type: ignore[attr-defined]
    found = run(webgpu, COUNTED, None, 2, np.int32, rounds=limit)
    assert found.tolist() == [70001, 70001]
    with pytest.raises(Unsupported, match="stops after 1,000"):
        WGSLRenderer(WGSLLimits(rounds=1000), has_f16=False).render(parse_linear(COUNTED))


def test_rounds_that_end_loops_count(webgpu: WebGPU) -> None:
    assert run(webgpu, SHORT_INSIDE, None, 2, np.int32).tolist() == [63600, 63600]


def test_too_many_buffers_are_refused() -> None:
    params = ", ".join(f"p{i}: f32[4]" for i in range(9))
    program = parse_linear(f"program k({params})\n")
    with pytest.raises(Unsupported, match=r"9 buffers.*allows 8.*\.contiguous\(\)"):
        WGSLRenderer(WGSLLimits(), has_f16=False).render(program)


def test_an_operation_that_was_not_legalized_is_refused() -> None:
    text = """program k(out: i64[1] written)
  %0 = param i64 out
  %1 = const i64 3
  %2 = load i64 %0, %1
  %3 = mul i64 %2, %1
"""
    with pytest.raises(Unsupported, match="mul on int64; legalize it"):
        WGSLRenderer(WGSLLimits(), has_f16=False).render(parse_linear(text))


SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, 3e38, -2.5, 1e-30], np.float32)


@pytest.mark.parametrize(
    "lines",
    [
        ["%5 = sub f32 %4, %4"],
        ["%9 = const f32 1.0", "%10 = add f32 %9, %4", "%5 = sub f32 %10, %9"],
        ["%9 = const f32 0.0", "%5 = mul f32 %4, %9"],
        ["%9 = const f32 0.0", "%5 = div f32 %4, %9"],
        ["%9 = ne b1 %4, %4", "%5 = cast f32 %9"],
        ["%9 = const f32 1.0", "%10 = lt b1 %4, %9", "%11 = not b1 %10", "%5 = cast f32 %11"],
        ["%9 = const f32 1.0", "%10 = ne b1 %4, %9", "%5 = cast f32 %10"],
        ["%9 = const f32 1.0", "%5 = max f32 %4, %9"],
        ["%9 = const f32 1.0", "%5 = min f32 %9, %4"],
        ["%9 = lt b1 %4, %4", "%10 = cast f32 %9", "%5 = mul f32 %4, %10"],
        ["%9 = cast i32 %4", "%5 = bitcast f32 %9"],
        ["%9 = cast u32 %4", "%5 = bitcast f32 %9"],
    ],
    ids=lambda lines: lines[-1].split("= ")[1] + str(len(lines)),
)
def test_compilers_do_not_simplify_what_is_not_equal(webgpu: WebGPU, lines: list[str]) -> None:
    body = "\n".join(f"    {line}" for line in lines)
    text = f"""program k(out: f32[9] written, x: f32[9])
  %0 = param f32 out
  %1 = param f32 x
  %2 = loop grid 0..9
    %4 = load f32 %1, %2
{body}
    store %0, %2, %5
  %6 = end %2
"""
    run(webgpu, text, SPECIAL, 9, np.float32)


@pytest.mark.parametrize("name", ["tdiv", "tmod", "shl", "shr"])
@pytest.mark.parametrize("code", ["i32", "u32"])
def test_no_division_and_no_shift_is_undefined(webgpu: WebGPU, name: str, code: str) -> None:
    dtype = np.int32 if code == "i32" else np.uint32
    limits = np.iinfo(dtype)
    edges = np.array([limits.min, limits.max, 0, 1, 5, 31, 32, 33, limits.max - 1, 7], dtype)
    if code == "i32":
        edges = np.append(edges, np.array([-1, -7], dtype))
    a, b = (m.reshape(-1) for m in np.meshgrid(edges, edges))
    n = a.size
    text = f"""program k(out: {code}[{n}] written, x: {code}[{2 * n}])
  %0 = param {code} out
  %1 = param {code} x
  %2 = const i32 {n}
  %3 = loop grid 0..{n}
    %4 = load {code} %1, %3
    %5 = cast i32 %3
    %6 = add i32 %5, %2
    %7 = cast i64 %6
    %8 = load {code} %1, %7
    %9 = {name} {code} %4, %8
    store %0, %3, %9
  %10 = end %3
"""
    run(webgpu, text, np.concatenate([a, b]), n, dtype)

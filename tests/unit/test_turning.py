"""Transpositions that go through shared memory, and what a warp asks of memory for them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.backends.python.device import BLOCKS
from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.kernel.interp import interpret_kernel
from gpu.compiler.ir.kernel.text import parse_kernel
from gpu.compiler.ir.kernel.verify import verify_kernel
from gpu.compiler.ir.linear.interp import interpret_linear
from gpu.compiler.ir.linear.text import parse_linear
from gpu.compiler.ir.linear.warps import WarpAccess, warp_accesses
from gpu.compiler.opt.opts import Bind, Reorder, SharedTranspose, Split, apply
from gpu.compiler.render.cstyle.cuda import CUDARenderer
from gpu.compiler.render.llvm.amdgcn import AMDRenderer
from gpu.compiler.render.llvm.ptx import PTXRenderer
from gpu.compiler.targets import Target
from gpu.compiler.toolchain.amdgcn import AMDCompiler
from gpu.compiler.toolchain.nvrtc import NvBinary, NvrtcCompiler
from gpu.core.errors import IllegalOpt
from unit.amdgcn import lanes as amd_lanes
from unit.cuda.lanes import run_llvm, run_nvrtc
from unit.lane_kernels import GPU, lowered

Array = np.ndarray[Any, Any]
TEXT = """kernel turned(out: {t}[{mn}] global, x: {t}[{size}] global, y: {t}[{mn}] global)
  loop i serial {m}
    loop j serial {n}
      out[{n}*i + j] = {value}
"""
ACROSS = "x[{row}*j + i + {first}]"
NUMPY = {"f32": np.float32, "f16": np.float16, "u8": np.uint8, "f64": np.float64}


def turned(
    m: int, n: int, t: str = "f32", first: int = 0, row: int = 0, value: str = ACROSS
) -> K.Kernel:
    """``out[i, j] = x[j, i]`` for m rows of n, where rows of x are `row` apart from `first` on."""
    row = row or m
    text = value.format(row=row, first=first, n=n)
    size = row * n + first
    return parse_kernel(TEXT.format(t=t, m=m, n=n, mn=m * n, size=size, value=text))


def bytes_of(accesses: list[WarpAccess], space: str, op: str) -> set[int]:
    return {one.lane_bytes for one in accesses if (one.space, one.op) == (space, op)}


@pytest.mark.parametrize(("m", "n"), [(512, 512), (512, 2000), (560, 496)])
@pytest.mark.parametrize("t", NUMPY)
def test_transpositions_move_16_bytes_without_conflicts(m: int, n: int, t: str) -> None:
    found = warp_accesses(lowered(turned(m, n, t)))
    assert bytes_of(found, "param", "load") == bytes_of(found, "param", "store") == {16}
    assert bytes_of(found, "team", "store") == {16}
    for access in found:
        assert access.is_coalesced and access.moved >= 1, access


@pytest.mark.parametrize(
    ("m", "n", "first", "row", "each"),
    [(512, 512, 2, 0, 8), (512, 512, 1, 0, 4), (511, 513, 0, 0, 4), (510, 510, 0, 1024, 8)],
)
def test_what_is_not_aligned_moves_less_but_together(
    m: int, n: int, first: int, row: int, each: int
) -> None:
    found = warp_accesses(lowered(turned(m, n, "f32", first, row)))
    assert bytes_of(found, "param", "load") == bytes_of(found, "param", "store") == {each}
    assert all(access.is_coalesced for access in found)


def test_what_lies_along_the_output_is_read_as_it_lies() -> None:
    sum_of = lowered(turned(512, 512, value="add(" + ACROSS + ", y[{n}*i + j])"))
    found = warp_accesses(sum_of)
    assert {one.name for one in found if one.space == "param"} == {"out", "x", "y"}
    assert all(one.is_coalesced and one.lane_bytes == 16 for one in found if one.space == "param")


def test_two_that_lie_across_have_a_tile_each() -> None:
    both = "add(" + ACROSS + ", y[{row}*j + i])"
    program = lowered(turned(256, 256, value=both))
    assert sum(inst.op == "local" for inst in program.body) == 2
    assert all(access.is_coalesced for access in warp_accesses(program))


SIDES = st.one_of(st.integers(32, 600), st.sampled_from([32, 64, 288, 512]))


@pytest.mark.slow
@given(
    SIDES, SIDES, st.sampled_from([*NUMPY]), st.integers(0, 4), st.integers(0, 8),
    st.sampled_from([GPU, BLOCKS]), st.booleans(), st.integers(0, 1000),
)  # fmt: skip
@settings(max_examples=30, deadline=None)
def test_any_shape_and_place(
    m: int, n: int, t: str, first: int, more: int, target: Target, add: bool, seed: int
) -> None:
    row = m + more
    value = "add(" + ACROSS + ", y[{n}*i + j])" if add else ACROSS
    program = lowered(turned(m, n, t, first, row, value), target)
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 100, row * n + first).astype(NUMPY[t])
    y = rng.integers(0, 100, m * n).astype(NUMPY[t])
    out = np.zeros(m * n, NUMPY[t])
    interpret_linear(program, [out, x, y])
    want = x[first:].reshape(n, row)[:, :m].T
    want = want + y.reshape(m, n) if add else want
    np.testing.assert_array_equal(out.reshape(m, n), want)


def opts(side: int = 4) -> list[Any]:
    """A tile of 32 by 32, with accesses of `side` elements."""
    split = [Split("i", side), Split("io", 8), Split("ioi", 2), Split("j", side), Split("jo", 8)]
    order = ("ioo", "joo", "ioii", "ii", "joi", "ioio", "ji")
    threads = [Bind(name, "thread") for name in ("ioii", "ii", "joi")]
    rest = [Bind(name, "unroll") for name in ("ioio", "ji")]
    return [Bind("i", "grid"), Bind("j", "grid"), *split, Reorder(order), *threads, *rest]


def turn(buf: str = "x", side: int = 4) -> SharedTranspose:
    return SharedTranspose("joi", buf, ("joi", "ji"), ("ioio", "ioii", "ii"), side)


def test_a_turned_kernel_is_the_same_kernel() -> None:
    kernel = turned(64, 96)
    done = apply(kernel, [*opts(), turn()])
    verify_kernel(done)
    x = np.arange(64 * 96, dtype=np.float32)
    out = np.zeros(64 * 96, np.float32)
    interpret_kernel(done, {"out": out, "x": x, "y": x})
    np.testing.assert_array_equal(out.reshape(64, 96), x.reshape(96, 64).T)


@pytest.mark.parametrize(
    ("value", "opt", "message"),
    [
        (ACROSS, turn("out"), "is written in the kernel"),
        (ACROSS, turn("y"), "is read in 0 places"),
        (ACROSS, turn(side=2), "has 4 iterations"),
        ("add(x[{row}*j + i], x[{row}*j + i + 1])", turn(), "is read in 2 places"),
        (ACROSS, turn()._replace(axis="joo"), "not inside thread loops"),
        (ACROSS, turn()._replace(rows=("ji",)), "ji alone is no side"),
        (ACROSS, turn()._replace(columns=("ioii", "ii")), "does not depend on just these"),
    ],
)
def test_what_is_not_turned(value: str, opt: SharedTranspose, message: str) -> None:
    kernel = turned(64, 96, first=1, value=value)
    with pytest.raises(IllegalOpt, match=message):
        apply(kernel, [*opts(), opt])


# What compilers make of it.


@pytest.mark.parametrize("t", ["f32", "f16", "u8"])
def test_nvrtc_moves_16_bytes(t: str, need: Callable[[str], None]) -> None:
    need("nvrtc")
    renderer = CUDARenderer("sm_90")
    source = renderer.render(lowered(turned(512, 512, t), renderer.target))
    ptx = NvBinary.unpack(NvrtcCompiler("sm_90").compile_cached(source)).ptx
    for how in (r"ld\.global\.nc(\.\w+)*", r"st\.global(\.\w+)*", r"st\.shared(\.\w+)*"):
        found = {m[0] for m in re.finditer(how, ptx)}
        assert found and all(".v4." in one for one in found), found


def test_llvm_moves_16_bytes_for_amd(need: Callable[[str], None]) -> None:
    need("libllvm")
    renderer, compiler = AMDRenderer("gfx1100"), AMDCompiler("gfx1100")
    source = renderer.render(lowered(turned(512, 512), renderer.target))
    found = re.findall(
        r"(?:global|ds)_(?:load|store)_\w+", text := compiler.disassemble(compiler.compile(source))
    )
    assert {one for one in found if one.startswith("global")} == {
        "global_load_b128",
        "global_store_b128",
    }
    assert "ds_store_b128" in text


@pytest.mark.parametrize("where", ["nvrtc", "llvm", "amd"])
@pytest.mark.parametrize("t", ["f32", "f16", "u8"])
def test_simulated_lanes_turn(where: str, t: str, need: Callable[[str], None]) -> None:
    need("nvrtc" if where == "nvrtc" else "llvmlite")
    target = {"nvrtc": CUDARenderer("sm_90"), "llvm": PTXRenderer("sm_90")}.get(
        where, AMDRenderer("gfx1100")
    ).target
    m, n = 272, 1040
    x = np.random.default_rng(m).integers(0, 100, m * n).astype(NUMPY[t])
    out, program = np.zeros_like(x), lowered(turned(m, n, t), target)
    if where == "amd":
        amd_lanes.run(program, out, x, x)
    else:
        (run_nvrtc if where == "nvrtc" else run_llvm)([program], [[out, x, x]])
    np.testing.assert_array_equal(out.reshape(m, n), x.reshape(n, m).T)


# What is counted.

COUNTED = """program k(out: f32[65536] written, x: f32[65536])
  %0 = param f32 out
  %1 = param f32 x
  %2 = const i64 {step}
  %3 = const i64 {first}
  %4 = local f32 4096 team
  %5 = loop thread 0..32
    %6 = mul i64 %5, %2
    %7 = add i64 %6, %3
    %8 = load f32 %1, %7
    store %4, %6, %8
    store %0, %5, %8
  %9 = end %5
"""


@pytest.mark.parametrize(
    ("step", "first", "sectors", "rounds"),
    [(1, 0, 4, 1), (1, 3, 5, 1), (2, 0, 8, 2), (32, 0, 32, 32), (33, 0, 32, 1), (0, 0, 1, 1)],
)
def test_sectors_and_banks(step: int, first: int, sectors: int, rounds: int) -> None:
    load, team, store = warp_accesses(parse_linear(COUNTED.format(step=step, first=first)))
    least = 1 if step == 0 else 4
    assert (load.moved, load.least, load.name) == (sectors, least, "x")
    assert (team.moved, team.least) == (rounds, 1)
    assert (store.moved, store.least, store.times) == (4, 4, 1)

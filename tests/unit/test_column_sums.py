"""Reductions from row to row: threads with neighbouring columns, read in whole accesses."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
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
from gpu.compiler.ir.linear import Program, block_size
from gpu.compiler.ir.linear.interp import interpret_linear
from gpu.compiler.ir.linear.warps import warp_accesses
from gpu.compiler.opt.opts import Bind, DistributeThreads, Opt, Split, apply
from gpu.compiler.render.cstyle.cuda import CUDARenderer
from gpu.compiler.render.llvm.amdgcn import AMDRenderer
from gpu.compiler.targets import Target
from gpu.compiler.toolchain.nvrtc import NvBinary, NvrtcCompiler
from gpu.core.errors import IllegalOpt
from unit.amdgcn import lanes as amd_lanes
from unit.cuda.lanes import run_nvrtc
from unit.lane_kernels import GPU, lowered

Array = np.ndarray[Any, Any]
WITHOUT = replace(GPU, name="without", shuffle=0)
TEXT = """kernel columns(out: {t}[{n}] global, x: {t}[{size}] global)
  loop j serial {n}
    alloc s: f32[] private
    s[] = {start}:f32
    loop i serial {m}
      s[] {monoid}= {value}
    out[j] = {last}
"""
NUMPY = {"f32": np.float32, "f16": np.float16}
STARTS = {"add": "0.0", "max": "-inf", "min": "inf"}
REDUCE = {"add": np.sum, "max": np.max, "min": np.min}


def columns(m: int, n: int, t: str = "f32", monoid: str = "add", first: int = 0) -> K.Kernel:
    """The `monoid` of m rows of n, the first one `first` elements behind the beginning of x."""
    load = f"x[{n}*i + j + {first}]"
    value, last = (load, "s[]") if t == "f32" else (f"cast.f32({load})", f"cast.{t}(s[])")
    size, start = m * n + first, STARTS[monoid]
    text = TEXT.format(t=t, n=n, m=m, size=size, start=start, monoid=monoid, value=value, last=last)
    return parse_kernel(text)


def loaded(program: Program) -> set[int]:
    """Bytes of the loads of parameters, which are all side by side."""
    found = [one for one in warp_accesses(program) if one.space == "param"]
    assert all(one.is_coalesced for one in found)
    return {one.lane_bytes for one in found if one.op == "load"}


@pytest.mark.parametrize(
    ("m", "n", "t", "first", "nbytes"),
    [
        (2048, 2048, "f32", 0, 16),  # a warp has four rows of 128 bytes
        (2048, 2048, "f16", 0, 16),
        (65536, 8, "f32", 0, 16),
        (16, 1 << 20, "f32", 0, 16),  # a thread for each column
        (2048, 2046, "f32", 0, 8),
        (2048, 2048, "f32", 1, 4),
        (64, 64, "f32", 0, 4),  # little: more threads instead
    ],
)
def test_columns_are_read_side_by_side(m: int, n: int, t: str, first: int, nbytes: int) -> None:
    assert loaded(lowered(columns(m, n, t, first=first))) == {nbytes}


def test_a_block_has_a_line_of_columns() -> None:
    assert block_size(lowered(columns(4096, 1024))) == (32, 8)


@given(
    st.integers(2, 300), st.one_of(st.integers(2, 600), st.sampled_from([64, 256, 512])),
    st.sampled_from([*NUMPY]), st.sampled_from([*STARTS]), st.sampled_from([0, 0, 2, 4]),
    st.sampled_from([GPU, BLOCKS, WITHOUT]), st.integers(0, 1000),
)  # fmt: skip
@settings(max_examples=30, deadline=None)
def test_any_shape(
    m: int, n: int, t: str, monoid: str, first: int, target: Target, seed: int
) -> None:
    x = np.random.default_rng(seed).normal(size=m * n + first).astype(NUMPY[t])
    out = np.zeros(n, NUMPY[t])
    interpret_linear(lowered(columns(m, n, t, monoid, first), target), [out, x])
    want = REDUCE[monoid](x[first:].reshape(m, n).astype(np.float64), axis=0)
    np.testing.assert_allclose(out, want, rtol=2e-3 if t == "f16" else 1e-4, atol=1e-3)


def beside(axis: str = "joi") -> list[Opt]:
    """Four columns of each of eight threads, and four of these to share the rows."""
    split = [Split("j", 4), Split("jo", 8), Bind("ji", "unroll"), Bind("joi", "thread")]
    return [Bind("j", "grid"), *split, DistributeThreads(axis, 4, True, warp=32)]


def test_threads_share_the_rows_of_neighbouring_columns() -> None:
    kernel, x = columns(50, 64), np.random.default_rng(1).normal(size=(50, 64)).astype(np.float32)
    done = apply(kernel, beside())
    verify_kernel(done)
    out = np.zeros(64, np.float32)
    interpret_kernel(done, {"out": out, "x": x.reshape(-1)})
    np.testing.assert_allclose(out, x.sum(0), rtol=1e-4, atol=1e-4)


def test_neighbours_do_not_share_rows_in_memory() -> None:
    text = """kernel k(out: f32[2048] global, x: f32[2048] global)
  loop j serial 64
    alloc e: f32[32] team
    loop i serial 32
      e[i] = x[64*i + j]
    loop k serial 32
      out[64*k + j] = e[k]
"""
    with pytest.raises(IllegalOpt, match="neighbours do not share e"):
        apply(parse_kernel(text), beside())


def test_nvrtc_loads_16_bytes(need: Callable[[str], None]) -> None:
    need("nvrtc")
    renderer = CUDARenderer("sm_90")
    source = renderer.render(lowered(columns(2048, 1024), renderer.target))
    ptx = NvBinary.unpack(NvrtcCompiler("sm_90").compile_cached(source)).ptx
    found = {m[0] for m in re.finditer(r"(ld\.global\.nc|st\.global)(\.\w+)*", ptx)}
    assert found and all(".v4." in one for one in found), found


@pytest.mark.parametrize("where", ["nvrtc", "amd"])
@pytest.mark.parametrize("t", NUMPY)
def test_simulated_lanes_add_columns(where: str, t: str, need: Callable[[str], None]) -> None:
    need("nvrtc" if where == "nvrtc" else "llvmlite")
    m, n = 700, 256
    x = np.random.default_rng(m).integers(-9, 9, m * n).astype(NUMPY[t])
    out = np.zeros(n, NUMPY[t])
    if where == "amd":
        amd_lanes.run(lowered(columns(m, n, t), AMDRenderer("gfx1100").target), out, x)
    else:
        run_nvrtc([lowered(columns(m, n, t), CUDARenderer("sm_90").target)], [[out, x]])
    np.testing.assert_array_equal(out, x.reshape(m, n).sum(0, dtype=np.float32))

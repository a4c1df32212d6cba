"""Scans that the threads of a block do together."""

from __future__ import annotations

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
from gpu.compiler.ir.linear.warps import warp_accesses
from gpu.compiler.opt.opts import Bind, BlockScan, apply
from gpu.compiler.render.cstyle.cuda import CUDARenderer
from gpu.compiler.render.llvm.amdgcn import AMDRenderer
from gpu.compiler.targets import Target
from gpu.core.errors import IllegalOpt
from unit.amdgcn import lanes as amd_lanes
from unit.cuda.lanes import run_nvrtc
from unit.lane_kernels import GPU, lowered

Array = np.ndarray[Any, Any]
TEXT = """kernel scan(out: {t}[{size}] global, x: {t}[{size}] global)
  loop i serial {rows}
    alloc running: {t}[] private
    running[] = {start}
    loop k serial {n}
      running[] {monoid}= x[{at}]
      out[{at}] = {result}
"""
STARTS = {"add": "0:i32", "max": "-2147483648:i32", "min": "2147483647:i32"}
SCANS = {"add": np.cumsum, "max": np.maximum.accumulate, "min": np.minimum.accumulate}


def scan(
    rows: int, n: int, monoid: str = "add", t: str = "i32", at: str = "", result: str = ""
) -> K.Kernel:
    """The running results of `rows` rows of n."""
    start = STARTS[monoid] if t == "i32" else "0.0:f32"
    at, result = at or f"{n}*i + k", result or "running[]"
    text = TEXT.format(
        rows=rows, n=n, size=rows * n, monoid=monoid, t=t, start=start, at=at, result=result
    )
    return parse_kernel(text)


@pytest.mark.parametrize(
    ("rows", "n", "nbytes"),
    [(64, 2048, 16), (1, 1 << 16, 16), (700, 128, 16), (64, 2046, 8), (9, 2047, 4)],
)
def test_rows_are_swept_side_by_side(rows: int, n: int, nbytes: int) -> None:
    found = [one for one in warp_accesses(lowered(scan(rows, n, t="f32"))) if one.space == "param"]
    assert {one.lane_bytes for one in found} == {nbytes}
    assert all(one.is_coalesced for one in found)


def test_columns_that_lie_side_by_side_have_a_thread_each() -> None:
    program = lowered(scan(64, 512, at="64*k + i", t="f32"))
    assert not any(inst.op == "shuffle_xor" for inst in program.body)
    assert all(one.is_coalesced for one in warp_accesses(program))


@given(
    st.integers(1, 70), st.one_of(st.integers(1, 700), st.sampled_from([64, 256, 512, 2048])),
    st.sampled_from([*SCANS]), st.sampled_from([GPU, BLOCKS]), st.booleans(),
    st.integers(0, 1000),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_any_rows(
    rows: int, n: int, monoid: str, target: Target, backwards: bool, seed: int
) -> None:
    x = np.random.default_rng(seed).integers(-1000, 1000, (rows, n)).astype(np.int32)
    out, at = np.zeros(rows * n, np.int32), f"{n}*i + {n - 1} - k" if backwards else ""
    interpret_linear(lowered(scan(rows, n, monoid, at=at), target), [out, x.reshape(-1)])
    step = -1 if backwards else 1
    want = SCANS[monoid](x[:, ::step], axis=1)[:, ::step]
    np.testing.assert_array_equal(out.reshape(rows, n), want)


def test_what_is_made_of_running_results() -> None:
    kernel = scan(3, 300, result="mul(running[], cast.i32(index(k)))")
    done = apply(kernel, [Bind("i", "grid"), BlockScan("i", 16, 4, 4)])
    verify_kernel(done)
    x, out = np.arange(900, dtype=np.int32), np.zeros(900, np.int32)
    interpret_kernel(done, {"out": out, "x": x})
    want = x.reshape(3, 300).cumsum(1) * np.arange(300)
    np.testing.assert_array_equal(out.reshape(3, 300), want)


@pytest.mark.parametrize(
    ("opt", "change", "message"),
    [
        (BlockScan("j", 16, 4, 4), ("", ""), "none of the independent outer loops"),
        (BlockScan("i", 12, 4, 4), ("", ""), "a power of two of threads"),
        (BlockScan("i", 16, 8, 4), ("", ""), "whole groups of 8 among 300"),
        (BlockScan("i", 16, 4, 4), ("x[300*i + k]\n", "add(x[300*i + k], running[])\n"), "a scan"),
        (BlockScan("i", 16, 4, 4), ("x[300*i + k]\n", "out[300*i + k]\n"), "a scan is not all"),
        (BlockScan("i", 16, 4, 4), ("] = running[]", "] add= running[]"), "a scan is not all"),
    ],
)
def test_what_is_not_swept(opt: BlockScan, change: tuple[str, str], message: str) -> None:
    text = TEXT.format(
        rows=3, n=300, size=900, monoid="add", t="i32", start="0:i32", at="300*i + k",
        result="running[]",
    )  # fmt: skip
    kernel = parse_kernel(text.replace(*change) if change[0] else text)
    with pytest.raises(IllegalOpt, match=message):
        apply(kernel, [Bind("i", "grid"), opt])


@pytest.mark.parametrize("where", ["nvrtc", "amd"])
def test_simulated_lanes_sweep(where: str, need: Callable[[str], None]) -> None:
    need("nvrtc" if where == "nvrtc" else "llvmlite")
    rows, n = 5, 1500
    x = np.random.default_rng(n).integers(-9, 9, rows * n).astype(np.int32)
    out = np.zeros_like(x)
    if where == "amd":
        amd_lanes.run(lowered(scan(rows, n), AMDRenderer("gfx1100").target), out, x)
    else:
        run_nvrtc([lowered(scan(rows, n), CUDARenderer("sm_90").target)], [[out, x]])
    np.testing.assert_array_equal(out.reshape(rows, n), x.reshape(rows, n).cumsum(1))

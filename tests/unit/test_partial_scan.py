"""Scans of a few elements at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.kernel.interp import interpret_kernel
from gpu.compiler.ir.kernel.text import parse_kernel
from gpu.compiler.ir.kernel.tree import walk
from gpu.compiler.ir.kernel.verify import verify_kernel
from gpu.compiler.opt.opts import PartialScan, apply
from gpu.compiler.opt.policy.choose import schedule
from gpu.compiler.opt.policy.cpu.scan import TOGETHER
from gpu.compiler.targets.cpu import host_target
from gpu.core.errors import IllegalOpt

Array = np.ndarray[Any, Any]
TEXT = """kernel scan(out: i32[{size}] global, x: i32[{size}] global)
  loop i serial {rows}
    alloc running: i32[] private
    running[] = {start}:i32
    loop k serial {n}
      running[] {monoid}= x[{at}]
      out[{at}] = mul(running[], 3:i32)
"""
SCANS = {
    "add": (0, np.cumsum),
    "mul": (1, np.cumprod),
    "max": (-(1 << 31), np.maximum.accumulate),
    "min": ((1 << 31) - 1, np.minimum.accumulate),
}


def scan(rows: int, n: int, monoid: str, at: str) -> K.Kernel:
    return parse_kernel(
        TEXT.format(size=rows * n, rows=rows, n=n, monoid=monoid, at=at, start=SCANS[monoid][0])
    )


def along(n: int) -> str:
    return f"{n}*i + k"


@given(
    st.integers(1, 5), st.integers(2, 70), st.integers(1, 9), st.sampled_from([*SCANS]),
    st.booleans(), st.integers(0, 1000),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_any_rows(rows: int, n: int, factor: int, monoid: str, backwards: bool, seed: int) -> None:
    at = f"{n}*i + {n - 1} - k" if backwards else along(n)
    kernel = apply(scan(rows, n, monoid, at), [PartialScan("k", min(factor, n))])
    verify_kernel(kernel)
    x = np.random.default_rng(seed).integers(-9, 9, (rows, n)).astype(np.int32)
    out = np.zeros(rows * n, np.int32)
    interpret_kernel(kernel, {"out": out, "x": x.reshape(-1)})
    step = -1 if backwards else 1
    want = SCANS[monoid][1](x[:, ::step], axis=1, dtype=np.int32)[:, ::step] * 3
    np.testing.assert_array_equal(out.reshape(rows, n), want)


def test_only_every_so_many_operations_wait() -> None:
    kernel = apply(scan(1, 64, "add", "k"), [PartialScan("k", 8)])
    waiting = [s for s in walk(kernel.body) if isinstance(s, K.Update) and s.buf.name == "running"]
    assert [s.monoid for s in waiting] == [None, "add"]
    loops = {s.var.name: s.var.extent for s in walk(kernel.body) if isinstance(s, K.Loop)}
    assert loops == {"i": 1, "ko": 8}


def test_rows_take_it_and_columns_take_lanes() -> None:
    target = host_target("x86_64,+avx2")
    _, opts = schedule(scan(64, 512, "add", along(512)), target)
    assert PartialScan("k", TOGETHER) in opts
    for other in (scan(64, 512, "add", "64*k + i"), scan(64, TOGETHER, "add", along(TOGETHER))):
        assert not any(isinstance(opt, PartialScan) for opt in schedule(other, target)[1])


@pytest.mark.parametrize("change", [("] = mul(", "] add= mul("), ("= x[i", "= out[i")])
def test_what_is_no_scan(change: tuple[str, str]) -> None:
    text = TEXT.format(size=64, rows=1, n=64, monoid="add", at="i + k", start=0)
    assert change[0] in text
    with pytest.raises(IllegalOpt, match="a scan is not all"):
        apply(parse_kernel(text.replace(*change)), [PartialScan("k", 8)])
    with pytest.raises(IllegalOpt, match="between 1 and"):
        apply(parse_kernel(text), [PartialScan("k", 65)])

"""Long sums cut into partial sums: the transformation, and where the policy asks for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.kernel.interp import interpret_kernel
from gpu.compiler.ir.kernel.text import parse_kernel
from gpu.compiler.ir.kernel.verify import verify_kernel
from gpu.compiler.opt.analysis.loop_nest import leaves
from gpu.compiler.opt.opts import PartialSums, Tile, apply
from gpu.compiler.opt.policy.choose import schedule
from gpu.compiler.opt.primitives.partial_sums import LEVEL, LONGEST, PRODUCTS, long_sums
from gpu.core.errors import IllegalOpt
from unit.lane_kernels import GPU, LANES, lowered, random, result

SUMS = """kernel sums(out: f32[4] global, x: f32[{size}] global)
  loop i serial 4
    alloc t: f32[] private
    t[] = 0.0:f32
    loop r serial {n}
      t[] add= {value}
    out[i] = t[]
"""
SCAN = """kernel scan(out: f32[{n}] global, x: f32[{n}] global)
  alloc t: f32[] private
  t[] = 0.0:f32
  loop r serial {n}
    t[] add= x[r]
    out[r] = mul(t[], 2.0:f32)
"""


def sums(n: int, value: str = "x[{n}*i + r]") -> K.Kernel:
    return parse_kernel(SUMS.format(size=4 * n, n=n, value=value.format(n=n)))


def interpreted(kernel: K.Kernel, x: np.ndarray, size: int) -> np.ndarray:
    verify_kernel(kernel)
    out = np.zeros(size, np.float32)
    interpret_kernel(kernel, {"out": out, "x": x.reshape(-1)})
    return out


def longest(kernel: K.Kernel) -> int:
    """The most iterations of serial loops that add to one element between two that set it."""
    most = 0
    for leaf in leaves(kernel.body):
        update, count = leaf.update, 1
        if update.monoid != "add":
            continue
        for loop in reversed(leaf.loops):
            if any(loop.var in index.vars for index in update.indices):
                continue
            begun = [u.update for u in leaves(loop.body) if u.update.monoid is None]
            if any(u.buf is update.buf for u in begun):
                break
            count *= loop.var.extent if loop.kind in ("serial", "unroll") else 1
        most = max(most, count)
    return most


@pytest.mark.parametrize(("n", "factor"), [(12, 4), (13, 4), (7, 1), (7, 7), (1, 1)])
def test_partial_sums_add_up(n: int, factor: int) -> None:
    kernel = apply(sums(n), [PartialSums("r", factor)])
    x = np.round(random(4, n) * 100)  # whole numbers, whose sums are exact
    np.testing.assert_array_equal(interpreted(kernel, x, 4), x.sum(1))
    np.testing.assert_array_equal(result(kernel, LANES, x), x.sum(1))
    assert longest(kernel) <= max(factor, -(-n // factor))


@pytest.mark.parametrize("n", [8, 11])
def test_a_scan_stores_the_sum_so_far_with_the_partial_one(n: int) -> None:
    kernel = parse_kernel(SCAN.format(n=n))
    kernel = apply(kernel, [PartialSums("r", 2), PartialSums("ro", 2)])
    x = np.round(random(n) * 100)
    np.testing.assert_array_equal(interpreted(kernel, x, n), 2 * x.cumsum())
    np.testing.assert_array_equal(result(kernel, LANES, x), 2 * x.cumsum())


def test_what_is_no_sum_of_floats_is_left() -> None:
    with pytest.raises(IllegalOpt, match="adds floats to no accumulator"):
        apply(sums(8), [PartialSums("i", 2)])
    largest = parse_kernel(SUMS.format(size=32, n=8, value="x[8*i + r]").replace("add=", "max="))
    with pytest.raises(IllegalOpt, match="adds floats to no accumulator"):
        apply(largest, [PartialSums("r", 2)])
    with pytest.raises(IllegalOpt, match="factor must be between 1 and 8"):
        apply(sums(8), [PartialSums("r", 9)])
    counts = SUMS.replace("f32", "i32").replace("0.0", "0").format(size=4000, n=1000, value="x[r]")
    assert not long_sums(parse_kernel(counts).body)


@pytest.mark.parametrize("target", [LANES, GPU], ids=["lanes", "gpu"])
@pytest.mark.parametrize("n", [31, 33, 64, 257, 1000, 4099, 40_000])
@pytest.mark.parametrize("value", ["x[{n}*i + r]", "x[i + 4*r]"], ids=["rows", "columns"])
def test_no_loop_adds_more_than_a_few(value: str, n: int, target: object) -> None:
    kernel, _ = schedule(sums(n, value), target)  # type: ignore[arg-type]
    verify_kernel(kernel)
    assert longest(kernel) <= LONGEST


DISTANCES = """kernel rows(out: f32[640] global, a: f32[{rows}] global, b: f32[{columns}] global)
  loop i serial 32
    loop j serial 20
      alloc t: f32[] private
      t[] = 0.0:f32
      loop r serial {outer}
        loop s serial {inner}
          t[] add= abs(sub(a[{n}*i + {inner}*r + s], b[20*s + j]))
      out[20*i + j] = t[]
"""


@pytest.mark.parametrize(("outer", "inner"), [(48, 9), (5, 41), (3, 1003), (70, 70), (999, 11)])
def test_no_tile_adds_more_than_a_few(outer: int, inner: int) -> None:
    n = outer * inner
    sizes = {"rows": 32 * n, "columns": 20 * inner, "n": n, "outer": outer, "inner": inner}
    kernel, opts = schedule(parse_kernel(DISTANCES.format(**sizes)), replace(LANES, registers=32))
    verify_kernel(kernel)
    assert any(isinstance(opt, Tile) for opt in opts)
    assert longest(kernel) <= LONGEST


def test_sums_of_products_are_cut_less_often() -> None:
    product = "mul(x[{n}*i + r], x[r])"
    assert not long_sums(sums(PRODUCTS, product).body)
    assert long_sums(sums(PRODUCTS + 1, product).body) == [("r", PRODUCTS)]
    assert long_sums(sums(LONGEST + 1).body) == [("r", LONGEST)]
    level = LONGEST // LEVEL
    assert long_sums(sums(LONGEST * (2 * level - 1)).body) == [("r", LONGEST)]
    assert long_sums(sums(LONGEST * level * 2).body) == [("r", LONGEST), ("ro", level)]


def test_more_is_added_in_an_iteration_than_in_a_level() -> None:
    text = SUMS.format(size=4, n=10, value="x[i]").replace(
        "      t[] add= x[i]", "      loop u unroll 90\n        t[] add= x[i]"
    )
    kernel, _ = schedule(parse_kernel(text), GPU, optimize=False)
    assert longest(kernel) <= 90
    lowered(parse_kernel(text))

"""Loops shorter than a vector, and what vectors leave of short ones, still run in lanes."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.backends.python.device import BLOCKS
from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.kernel.text import parse_kernel
from gpu.compiler.ir.kernel.tree import walk
from gpu.compiler.opt.analysis.lanes import FEWEST, fitting
from gpu.compiler.opt.opts import Rfactor, Tile
from gpu.compiler.opt.policy.choose import schedule
from gpu.compiler.targets import Target
from unit.lane_kernels import TRANSPOSE, lowered, random, result

BIAS = """kernel bias(out: f32[{size}] global, x: f32[{size}] global, b: f32[{n}] global)
  loop i serial 7
    loop j serial {n}
      out[{n}*i + j] = add(x[{n}*i + j], b[j])
"""
PRODUCT = """kernel mm(out: f32[{size}] global, a: f32[1536] global, b: f32[{b}] global)
  loop i serial 24
    loop j serial {n}
      alloc s: f32[] private
      s[] = 0.0:f32
      loop k serial 64
        s[] add= mul(a[64*i + k], b[{index}])
      out[{n}*i + j] = s[]
"""
SIZES = (3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 31, 33)


def machine(lanes: int) -> Target:
    return Target("lanes", BLOCKS.native, "worker", 1, 4 * lanes, 32)


def one_by_one(kernel: K.Kernel) -> list[int]:
    """Iterations of the serial loops that hold nothing but one Update."""
    return [
        s.var.extent
        for s in walk(kernel.body)
        if isinstance(s, K.Loop) and s.kind == "serial" and isinstance(s.body.body[0], K.Update)
    ]


def test_lanes_fit_loops() -> None:
    assert [fitting(16, n) for n in (1, 3, 4, 7, 8, 15, 16, 40)] == [4, 4, 4, 4, 8, 8, 16, 16]
    assert [fitting(lanes, 3) for lanes in (1, 2, 4)] == [1, 2, 4]


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("n", SIZES)
def test_at_most_three_elements_of_a_row_go_one_by_one(n: int, lanes: int) -> None:
    kernel = parse_kernel(BIAS.format(n=n, size=7 * n))
    done, _ = schedule(kernel, machine(lanes))
    lowered(kernel, machine(lanes))
    assert sum(one_by_one(done)) < FEWEST
    x, b = random(7, n), random(n)
    np.testing.assert_array_equal(result(done, machine(lanes), x, b).reshape(7, n), x + b)


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("n", SIZES[1:])
def test_products_with_short_rows_have_tiles(n: int, lanes: int) -> None:
    a, b = random(24, 64), random(64, n)
    for index, stored in ((f"{n}*k + j", b), ("64*j + k", b.T.copy())):
        kernel = parse_kernel(PRODUCT.format(n=n, size=24 * n, b=64 * n, index=index))
        done, opts = schedule(kernel, machine(lanes))
        lowered(kernel, machine(lanes))
        assert any(isinstance(opt, Tile | Rfactor) for opt in opts), opts
        assert any(isinstance(s, K.Loop) and s.kind == "vector" for s in walk(done.body))
        got = result(done, machine(lanes), a, stored).reshape(24, n)
        np.testing.assert_allclose(got, a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n", SIZES[1:])
def test_squares_fit_narrow_matrices(n: int) -> None:
    kernel = parse_kernel(TRANSPOSE.format(m=40, n=n, size=40 * n))
    done, _ = schedule(kernel, machine(16))
    lowered(kernel, machine(16))
    made = {(s.kind, s.var.extent) for s in walk(done.body) if isinstance(s, K.Loop)}
    assert {("vector", fitting(16, n)), ("unroll", fitting(16, n))} <= made
    x = random(n, 40)
    np.testing.assert_array_equal(result(done, machine(16), x).reshape(40, n), x.T)

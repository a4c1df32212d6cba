"""Loops shorter than a vector, and what vectors leave of short ones, still run in lanes."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.backends.python.device import BLOCKS
from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import ALWAYS
from gpu.compiler.ir.kernel.text import parse_kernel
from gpu.compiler.ir.kernel.tree import accesses, allocated, walk
from gpu.compiler.opt.analysis.lanes import FEWEST, fitting
from gpu.compiler.opt.opts import Rfactor, Split, Tile, apply
from gpu.compiler.opt.policy.choose import schedule
from gpu.compiler.targets import Target
from gpu.core.errors import IllegalOpt
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
ROWS = """kernel rows(out: f32[{size}] global, x: f32[{size}] global)
  loop i serial 7
    alloc most: f32[] private
    most[] = -inf:f32
    loop a serial {n}
      most[] max= x[{n}*i + a]
    alloc less: f32[{n}] team
    loop b serial {n}
      less[b] = sub(x[{n}*i + b], most[])
    alloc sum: f32[] private
    sum[] = 0.0:f32
    loop c serial {n}
      sum[] add= mul(less[c], x[{n}*i + c])
    loop d serial {n}
      out[{n}*i + d] = mul(less[d], sum[])
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
    masked = [fitting(16, n, masks=True) for n in (1, 4, 5, 8, 9, 16, 40)]
    assert masked == [4, 4, 8, 8, 16, 16, 16]


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


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("n", [*SIZES[1:], 40, 60, 143, 250])
def test_what_rows_leave_over_is_masked_in_memory_from_outside_alone(n: int, lanes: int) -> None:
    kernel = parse_kernel(ROWS.format(n=n, size=7 * n))
    done, _ = schedule(kernel, machine(lanes))
    lowered(kernel, machine(lanes))
    if lanes > 4:
        assert max(one_by_one(done), default=0) <= 1
        (room,) = [buf for buf in allocated(done.body) if buf.name == "less"]
        assert room.shape[0] == n + (-n % fitting(lanes, n, masks=True) if n % lanes != 1 else 0)
        assert all(mask is ALWAYS for buf, _, mask in accesses(done.body) if buf is room)
    x = random(7, n)
    less = x - x.max(1, keepdims=True)
    wanted = less * (less * x).sum(1, keepdims=True)
    got = result(done, machine(lanes), x).reshape(7, n)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


STEPS = """kernel steps(out: f32[{size}] global, x: f32[{last}] global)
  loop i serial 5
    loop j serial {n}
      alloc s: f32[] private
      s[] = 0.0:f32
      loop k serial {taps}
        s[] add= x[{row}*i + {step}*j + k]
      out[{n}*i + j] = s[]
"""


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize(("step", "taps"), [(2, 2), (2, 3), (3, 2), (3, 3), (4, 1), (4, 3), (5, 3)])
def test_lanes_a_few_elements_apart_are_picked_from_vectors(
    step: int, taps: int, lanes: int
) -> None:
    rng = np.random.default_rng([step, taps, lanes])
    for n in (int(n) for n in rng.integers(lanes, 4 * lanes, 3)):
        row = step * (n - 1) + taps
        sizes = {"n": n, "size": 5 * n, "last": 5 * row, "row": row}
        kernel = parse_kernel(STEPS.format(step=step, taps=taps, **sizes))
        done, _ = schedule(kernel, machine(lanes))
        program = lowered(kernel, machine(lanes))
        loads = [inst for inst in program.body if inst.op == "load"]
        wide = [inst for inst in loads if inst.lanes > 1]
        assert bool(wide) == (step <= 4)
        assert all(inst.args[1].lanes == 1 for inst in wide)
        x = random(5, row)
        picked = [x[:, k : k + step * (n - 1) + 1 : step] for k in range(taps)]
        got = result(done, machine(lanes), x).reshape(5, n)
        np.testing.assert_allclose(got, sum(picked), rtol=1e-5, atol=1e-5)


SPACED = """kernel spaced(out: f32[{size}] global, x: f32[{last}] global)
  loop i serial 9
    loop j serial {n}
      out[{n}*i + j] = x[{row}*i + {n1} + {step}*j]
"""


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_lanes_of_several_rows_are_picked_from_vectors_no_longer_than_theirs(lanes: int) -> None:
    rng = np.random.default_rng(lanes)
    # Two rows in a vector that need all of two others, and drawn ones.
    cases = [(lanes // 2, 2 * lanes - lanes // 2, 1)]
    for _ in range(6):
        n, step = int(rng.integers(2, lanes)), int(rng.choice([1, 1, -1, 2, -2]))
        cases.append((n, int(rng.integers(0, 2 * lanes)) + abs(step) * n, step))
    for n, row, step in cases:
        first = 0 if step > 0 else -step * (n - 1)
        sizes = {"n": n, "size": 9 * n, "last": 9 * row, "row": row, "n1": first, "step": step}
        kernel = parse_kernel(SPACED.format(**sizes))
        loads = [i for i in lowered(kernel, machine(lanes)).body if i.op == "load"]
        assert max(inst.lanes for inst in loads) <= lanes
        x = random(9, row)
        got = result(schedule(kernel, machine(lanes))[0], machine(lanes), x).reshape(9, n)
        np.testing.assert_array_equal(got, x[:, first + step * np.arange(n)])


def test_factors_of_masked_partial_results_are_whole_vectors() -> None:
    kernel = parse_kernel(ROWS.format(n=21, size=7 * 21))
    for opt in (Rfactor("a", 12, 8), Split("b", 128, "pad"), Split("b", 128, "mask")):
        with pytest.raises(IllegalOpt, match=str(opt[1])):
            apply(kernel, [opt])
    for opt in (
        Rfactor("a", 16, 8),
        Rfactor("c", 64, 64),
        Split("b", 64, "pad"),
        Split("b", 32, "mask"),
    ):
        done = apply(kernel, [opt])
        x = random(7, 21)
        less = x - x.max(1, keepdims=True)
        wanted = less * (less * x).sum(1, keepdims=True)
        got = result(done, machine(8), x).reshape(7, 21)
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)

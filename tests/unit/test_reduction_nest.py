"""What each operand of a reduction depends on, against all places that its loops reach."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from gpu.compiler.ir.index import Expr, Var, expr
from gpu.compiler.ir.kernel.text import parse_kernel
from gpu.compiler.opt.analysis.reduction_nest import Nest, Operand, reduction_nest
from unit.reduction_kernels import random_reduction

CONVOLUTION = """\
kernel conv(out: f32[448] global, x: f32[168] global, w: f32[72] global)
  loop n serial 2
    loop o serial 4
      loop i serial 56
        alloc s: f32[] private
        s[] = 0.0:f32
        loop c serial 3
          loop t serial 3
            s[] add= mul(x[84*n + 28*c + i + t - 1 if i + t - 1 >= 0 & 28 - i - t >= 0],\
 w[9*o + 3*c + t])
        out[224*n + 56*o + i] = s[]
"""
GRAM = """\
kernel gram(out: f32[64] global, a: f32[80] global)
  loop i serial 8
    loop j serial 8
      alloc s: f32[] private
      s[] = 0.0:f32
      loop k serial 10
        s[] add= mul(a[8*k + i], a[8*k + j])
      out[8*i + j] = s[]
"""


def nest_of(text: str) -> Nest:
    found = reduction_nest(parse_kernel(text).body)
    assert found is not None
    return found


def points(extents: Mapping[Var, int]) -> Iterator[dict[Var, Expr]]:
    for values in itertools.product(*(range(n) for n in extents.values())):
        yield dict(zip(extents, map(expr, values), strict=True))


def reads(operand: Operand, at: Mapping[Var, Expr]) -> tuple[object, ...]:
    """Where the loads read, or that they do not."""
    found: list[object] = []
    for load in operand.loads:
        _, (place,), mask = load.attr
        numbers = {var: value.const for var, value in at.items()}
        found.append(place.evaluate(numbers) if mask.evaluate(numbers) else None)
    return tuple(found)


def test_operands_are_values_and_not_buffers() -> None:
    assert [operand.value.kind for operand in nest_of(GRAM).operands] == ["load", "load"]
    sums = GRAM.replace("a[8*k + i]", "add(a[8*k + i], a[0])")
    assert [operand.value.kind for operand in nest_of(sums).operands] == ["alu", "load"]


def test_pixels_and_taps_are_one_axis() -> None:
    nest = nest_of(CONVOLUTION)
    extents = {var: var.extent for var in (*nest.independent, *nest.reduction)}
    image, weights = nest.operands
    assert [axis.size for axis in image.axes(extents)] == [6, 58]
    assert [axis.size for axis in weights.axes(extents)] == [36]
    _, out, pixels = nest.independent
    lanes = image.axes(extents, pixels)[-1]
    assert [var.name for var, _ in lanes.steps] == ["i", "t"]
    assert [axis.size for axis in weights.axes(extents, out)] == [9, 4]


@pytest.mark.parametrize("seed", range(60))
def test_axes_tell_places_apart_that_differ_and_no_others(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nest = reduction_nest(random_reduction(rng).body)
    assert nest is not None
    every = (*nest.independent, *nest.reduction)
    for operand in nest.operands:
        extents = {var: int(rng.integers(1, min(var.extent, 5) + 1)) for var in every}
        lane = nest.independent[-1] if rng.random() < 0.5 else None
        axes = operand.axes(extents, lane)
        seen: dict[tuple[int, ...], tuple[object, ...]] = {}
        for at in points({var: extents[var] for var in operand.moves}):
            place = tuple(axis.place(at).const for axis in axes)
            assert all(0 <= p < axis.size for p, axis in zip(place, axes, strict=True))
            assert seen.setdefault(place, reads(operand, at)) == reads(operand, at)
            still = dict.fromkeys(operand.moves, expr(0))
            reached = [axis.reach(expr(p)) for p, axis in zip(place, axes, strict=True)]
            back = {var: value for one in reached for var, value in one.items()}
            assert reads(operand, {**still, **back}) == reads(operand, at)
        if lane in operand.moves:
            assert axes[-1].steps[0] == (lane, 1)


@pytest.mark.parametrize(
    "change",
    [
        ("out[8*i + j] = s[]", "out[8*i + j] = s[]\n      s[] = 1.0:f32\n      loop q serial 3\n"
         "        s[] add= a[q]"),
        ("a: f32[80] global", "a: f32[80] global, n: f32[1] global"),
        ("s[] add= mul(a[8*k + i], a[8*k + j])", "s[] add= mul(s[], a[8*k + j])"),
        ("s[] add= mul(a[8*k + i], a[8*k + j])", "s[] add= mul(out[8*k], a[8*k + j])"),
        ("alloc s: f32[] private", "alloc s: f32[] private\n      alloc t: f32[3] private"),
    ],
)  # fmt: skip
def test_what_is_no_reduction_of_operands_is_told(change: tuple[str, str]) -> None:
    kernel = parse_kernel(GRAM.replace(*change))
    assert (reduction_nest(kernel.body) is not None) == ("n: f32" in change[1])

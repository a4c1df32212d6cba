"""Airy's function."""

from __future__ import annotations

import math
from typing import TypeVar

from gpu.tensor.elementwise import Elementwise
from gpu.tensor.special import pairs
from gpu.tensor.special.pieces import piecewise
from gpu.tensor.special.slopes import with_slope
from gpu.tensor.special.tables import airy as tables

T = TypeVar("T", bound=Elementwise)


def _exponent(m: T) -> pairs.Pair[T]:
    """2 / 3 * m**1.5, which is large where its error counts."""
    root = m.sqrt()
    square = pairs.product(root, root)
    rest = m.sub(square.high).sub(square.low).div(root).mul(0.5)
    cube = pairs.Pair(root, rest).times(m.mul(2))
    third = cube.high.div(3)
    back = pairs.product(third, third._filled(3))
    return pairs.Pair(third, cube.high.sub(back.high).sub(back.low).add(cube.low).div(3))


@with_slope(None)
def airy_ai(input: T) -> T:
    """Airy's function Ai."""
    m = input.abs()
    z = _exponent(m)
    inverse = z.high.reciprocal()
    square, scale = inverse.square(), m.sqrt().sqrt()
    decaying = pairs.Pair(z.high.neg(), z.low.neg()).exp().div(scale)
    above = decaying.mul(piecewise(inverse, tables.FAR))
    s, c = z.high.sin(), z.high.cos()
    sine, cosine = s.add(c.mul(z.low)), c.sub(s.mul(z.low))
    even, odd = piecewise(square, tables.P), piecewise(square, tables.Q).mul(inverse)
    # cos and sin of z - pi / 4, times sqrt(2)
    swinging = even.mul(cosine.add(sine)).add(odd.mul(sine.sub(cosine)))
    below = swinging.mul(math.sqrt(0.5 / math.pi)).div(scale)
    near = input.gt(tables.NEAR[0].low).bitwise_and(input.lt(tables.NEAR[-1].high))
    far = m.eq(math.inf).where(0, input.gt(0).where(above, below))
    return near.where(piecewise(input, tables.NEAR), far)

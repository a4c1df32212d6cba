"""Numbers of twice the precision, as the sum of a float and a small one (T. Dekker, 1971).

They are for what an exponential or a large factor would make an error of many units of: exponents,
logarithms and angles. Operands are float32 or float64.
"""

from __future__ import annotations

import math
from typing import Final, Generic, NamedTuple, TypeVar

from gpu.core.dtype import dtype_named, dtypes
from gpu.tensor.elementwise import Elementwise
from gpu.tensor.special.pieces import piecewise
from gpu.tensor.special.tables import elementary

T = TypeVar("T", bound=Elementwise)

# Bits of the lower half of a fraction.
_LOWER: Final = {dtypes.float32: 12, dtypes.float64: 27}
# ln 2 as a number of so few bits that its product with any exponent is exact, and the rest.
_LN_2: Final = {
    dtypes.float32: (0.693145751953125, 1.4286068203094173e-06),
    dtypes.float64: (0.6931471805598903, 5.497923018708371e-14),
}


class Pair(NamedTuple, Generic[T]):
    """high + low, where low is at most about an ulp of high."""

    high: T
    low: T

    def times(self, x: T) -> Pair[T]:
        """The product with a float."""
        whole = product(self.high, x)
        return Pair(whole.high, whole.low.add(self.low.mul(x)))

    def plus(self, x: T) -> Pair[T]:
        """The sum with a float."""
        whole = total(self.high, x)
        return Pair(whole.high, whole.low.add(self.low))

    def exp(self) -> T:
        """e to the power of it."""
        grown = self.high.exp()
        # Of what is infinite or 0 there is nothing more, and the rest may be NaN.
        inside = grown.gt(0).bitwise_and(grown.lt(math.inf))
        return inside.where(grown.add(grown.mul(self.low)), grown)


def head(x: T) -> T:
    """x with so few bits that its products with such are exact."""
    bits = x.bitcast(dtype_named(f"int{x.dtype.bits}"))
    return bits.bitwise_and(-1 << _LOWER[x.dtype]).bitcast(x.dtype)


def product(a: T, b: T) -> Pair[T]:
    """a * b."""
    high = a.mul(b)
    a_head, b_head = head(a), head(b)
    a_rest, b_rest = a.sub(a_head), b.sub(b_head)
    low = a_head.mul(b_head).sub(high)
    low = low.add(a_head.mul(b_rest)).add(a_rest.mul(b_head)).add(a_rest.mul(b_rest))
    return Pair(high, low)


def total(a: T, b: T) -> Pair[T]:
    """a + b."""
    high = a.add(b)
    of_b = high.sub(a)
    return Pair(high, a.sub(high.sub(of_b)).add(b.sub(of_b)))


def log(x: T) -> Pair[T]:
    """The logarithm of finite numbers above 0, with an error of 1e-3 ulp of 1."""
    fraction, exponent = x._parts()
    low = fraction.lt(math.sqrt(0.5))
    f = low.where(fraction.mul(2), fraction).sub(1)
    power = low.where(exponent.sub(1), exponent).cast(x.dtype)
    # With s = f / (2 + f), of which the divisor is rounded: log(1 + f) = 2s + s**3 * LOG.
    divisor = f.add(2)
    s = f.div(divisor)
    whole = product(s, divisor)
    lost = f.sub(divisor.sub(2))
    rest = f.sub(whole.high).sub(whole.low).sub(s.mul(lost)).div(divisor)
    square = s.square()
    series = s.mul(square).mul(piecewise(square, elementary.LOG))
    ln_2, ln_2_rest = _LN_2[x.dtype]
    sum_ = total(power.mul(ln_2), s.mul(2))
    return total(sum_.high, sum_.low.add(rest.mul(2).add(series).add(power.mul(ln_2_rest))))


def power(x: T, y: T) -> T:
    """x**y of finite numbers, x above 0."""
    return log(x).times(y).exp()

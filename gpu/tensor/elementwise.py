"""Torch's further functions of elements: of two operands, of truth values, and of a float's parts.

Operands broadcast and are promoted as for the operators. Where torch takes floats only, integers
and bools are taken as float32 here. Gradients are torch's.
"""

from __future__ import annotations

import math
from typing import Self

from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import dtype_named, dtypes, promote
from gpu.core.errors import DTypeError
from gpu.core.floatlimits import limits_of
from gpu.tensor import customgrad
from gpu.tensor.arguments import Operand, check_number
from gpu.tensor.functions import Functions
from gpu.tensor.precision import float_function, float_operation


class Elementwise(Functions):
    """Angles, lengths, limits, common divisors, truth values, and the parts of floats."""

    __slots__ = ()

    # Truth values.

    def logical_and(self, other: Operand) -> Self:
        """Where both are not zero."""
        return self.cast(dtypes.bool).bitwise_and(self._lift(other).cast(dtypes.bool))

    def logical_or(self, other: Operand) -> Self:
        """Where either is not zero."""
        return self.cast(dtypes.bool).bitwise_or(self._lift(other).cast(dtypes.bool))

    def logical_xor(self, other: Operand) -> Self:
        """Where one is not zero and the other is."""
        return self.cast(dtypes.bool).bitwise_xor(self._lift(other).cast(dtypes.bool))

    # Angles and lengths.

    @float_operation
    def atan2(self, other: Self) -> Self:
        """The angle from the x axis to the point (other, self), in -pi..pi."""
        y, x = self._steep(self), other._steep(other)
        top = y.maximum(x)
        both_infinite = y.eq(math.inf).bitwise_and(x.eq(math.inf))
        nowhere = top.eq(0).bitwise_or(both_infinite)
        ratio = y.minimum(x).div(nowhere.where(1, top))
        acute = both_infinite.where(1, ratio).atan()
        angle = y.gt(x).where(acute.sub(math.pi / 2, reverse=True), acute)
        turned = other._signbit().where(angle.sub(math.pi, reverse=True), angle)
        return self._signbit().where(turned.neg(), turned)

    def arctan2(self, other: Operand) -> Self:
        """The same as `atan2`."""
        return self.atan2(other)

    def _steep(self, sign: Self) -> Self:
        """|self|, with a derivative of 1 or -1 at zeros too."""
        return sign._signbit().where(self.neg(), self)

    @float_operation
    def hypot(self, other: Self) -> Self:
        """sqrt(self**2 + other**2), finite wherever the result is; infinite beside an infinity."""
        a, b = self.abs(), other.abs()
        top = a.maximum(b)
        point = top.eq(0)
        ratio = a.minimum(b).div(point.where(1, top))
        length = point.where(0, top.mul(ratio.square().add(1).sqrt()))
        return self.isinf().bitwise_or(other.isinf()).where(math.inf, length)

    @float_function
    def deg2rad(self) -> Self:
        """Degrees in radians."""
        return self.mul(math.pi / 180)

    @float_function
    def rad2deg(self) -> Self:
        """Radians in degrees."""
        return self.mul(180 / math.pi)

    @float_function
    def sinc(self) -> Self:
        """sin(pi * self) / (pi * self); 1 at 0."""
        zero = self.eq(0)
        x = zero.where(1, self)
        # The sine of half a turn at most, since pi is rounded: the rest is whole turns and a sign.
        turns = x.round()
        sine = x.sub(turns).mul(math.pi).sin()
        sine = turns.mod(2).eq(1).where(sine.neg(), sine)
        return zero.where(1, sine.div(x.mul(math.pi)))

    # Limits and choices.

    def fmax(self, other: Operand) -> Self:
        """The larger of self and `other`; where one is NaN, the other one."""
        a, b = self._pair(other)
        return a.ge(b).bitwise_or(b.isnan()).where(a, b)

    def fmin(self, other: Operand) -> Self:
        """The smaller of self and `other`; where one is NaN, the other one."""
        a, b = self._pair(other)
        return a.le(b).bitwise_or(b.isnan()).where(a, b)

    def heaviside(self, values: Operand) -> Self:
        """0 where self is negative or NaN, `values` where it is 0, else 1.

        Raises DTypeError unless both are of one dtype.
        """
        between = self._lift(values)
        if between.dtype is not self.dtype:
            raise DTypeError(
                f"heaviside of {self.dtype.name} needs values of that, got {between.dtype.name}"
            )
        return self.eq(0).where(between, self.gt(0).cast(self.dtype))

    def sgn(self) -> Self:
        """The same as `sign`."""
        return self.sign()

    def nan_to_num(
        self, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
    ) -> Self:
        """self with numbers in place of NaN and infinities.

        Args:
            nan: in place of NaN.
            posinf: of infinity; the largest number of the dtype if None.
            neginf: of minus infinity; the smallest number if None.
        """
        if self.dtype.is_whole:
            return self._same()
        if self.dtype.is_complex:
            parts = (self._wrap(part(self._node)) for part in (G.real, G.imag))
            numbers = (part.nan_to_num(nan, posinf, neginf)._node for part in parts)
            return self._wrap(G.complex_number(*numbers))
        limits = limits_of(self.dtype)
        high = limits.max if posinf is None else posinf
        low = limits.min if neginf is None else neginf
        finite = self.isinf(True, False).where(high, self.isinf(False, True).where(low, self))
        return self.isnan().where(nan, finite)

    # Logarithms and powers.

    @float_operation
    def xlogy(self, other: Self) -> Self:
        """self * log(other); 0 where self is 0 and `other` is not NaN."""
        none = other.le(0).bitwise_or(other.eq(math.inf)).bitwise_and(self.eq(0))
        return self.mul(none.where(1, other).log())

    @float_operation
    def logaddexp2(self, other: Self) -> Self:
        """log2(2**self + 2**other), finite wherever the result is."""
        top = self.maximum(other)
        # Infinities of one sign have no difference; it is 0 between equals.
        distance = self.eq(other).where(0, self.sub(other)).abs()
        return top.add(distance.neg().exp2().log1p().mul(1 / math.log(2)))

    @float_function
    def logit(self, eps: float | None = None) -> Self:
        """log(self / (1 - self)), of self within eps..1 - eps if that is given."""
        if eps is not None:
            check_number(eps, "eps")
        share = self if eps is None else self.clamp(eps, 1 - eps)
        rest = share.sub(1, reverse=True)
        # Near 1/2, where the result is 0, this difference is exact.
        middle = share.sub(0.5).abs().lt(0.25)
        near = middle.where(share, 0.5).mul(2).sub(1).div(middle.where(rest, 0.5)).log1p()
        result = middle.where(near, share.div(rest).log())
        return self._wrap(customgrad.logit(result._node, share._node))

    def float_power(self, exponent: Operand) -> Self:
        """self to the power of `exponent`, both as float64."""
        return self.cast(dtypes.float64).pow(self._lift(exponent).cast(dtypes.float64))

    def addcmul(self, tensor1: Operand, tensor2: Operand, *, value: float = 1) -> Self:
        """self + value * tensor1 * tensor2."""
        product = self._lift(tensor1).mul(tensor2)
        return self.add(product if value == 1 else product.mul(value))

    def addcdiv(self, tensor1: Operand, tensor2: Operand, *, value: float = 1) -> Self:
        """self + value * tensor1 / tensor2."""
        return self.add(self._lift(tensor1).mul(value).div(tensor2))

    # Parts of numbers.

    def frac(self) -> Self:
        """self less its whole part, with the sign of self."""
        return self.sub(self.trunc())

    def signbit(self) -> Self:
        """Where the sign is set: below zero, and at -0.0 and NaNs that have it."""
        if self.dtype.is_float:
            return self._signbit()
        return self.lt(0)

    def nextafter(self, other: Operand) -> Self:
        """The next float from self towards `other`; NaN if either is.

        Raises DTypeError unless the promoted dtype is a float.
        """
        a, b = self._pair(other)
        if not a.dtype.is_float:
            raise DTypeError(f"nextafter needs floats, got {a.dtype.name}")
        bits = a.bitcast(dtype_named(f"int{a.dtype.bits}"))
        # Floats of one sign are in the order of their bits; the first one of a sign follows zero.
        away = a.lt(b).eq(a._signbit().logical_not())
        moved = away.where(bits.add(1), bits.sub(1)).bitcast(a.dtype)
        first = bits._filled(1).bitcast(a.dtype)
        moved = a.eq(0).where(b.lt(0).where(first.neg(), first), moved)
        missing = a.isnan().bitwise_or(b.isnan())
        next_ = missing.where(math.nan, a.eq(b).where(b, moved))
        return self._wrap(customgrad.straight(next_._node, a._node))

    def ldexp(self, other: Operand) -> Self:
        """self * 2**other."""
        power = self._lift(other)
        wide = promote(self._as_float().dtype, dtypes.float32)
        return self._as_float().mul(power.cast(wide).exp2())

    def frexp(self) -> tuple[Self, Self]:
        """Fractions of magnitudes in 0.5..1 (not 1), and exponents, int32: self is f * 2**e.

        Zeros, infinities and NaNs are their own fraction; their exponent is 0.
        """
        if not self.dtype.is_float:
            raise DTypeError(f"frexp needs floats, got {self.dtype.name}")
        wide = self.cast(promote(self.dtype, dtypes.float32))
        fraction, exponent = wide._parts()
        return fraction.cast(self.dtype), exponent

    def _parts(self) -> tuple[Self, Self]:
        """`frexp` of float32 and float64."""
        limits = limits_of(self.dtype)
        width, bias = limits.fraction_bits, limits.max_exponent - 1
        whole = self.eq(0).bitwise_or(self.isfinite().logical_not())
        small = self.abs().lt(limits.smallest_normal)
        raised = small.where(self.mul(2.0 ** (width + 1)), self)
        bits = raised.bitcast(dtype_named(f"int{self.dtype.bits}"))
        kept = bits.bitwise_and((1 << width) - 1 | -1 << (self.dtype.bits - 1))
        fraction = kept.bitwise_or((bias - 1) << width).bitcast(self.dtype)
        field = bits.rshift(width).bitwise_and(2 * limits.max_exponent - 1).cast(dtypes.int32)
        shift = small.where(width + 1, 0)
        exponent = whole.where(0, field.sub(bias - 1).sub(shift))
        scale = exponent.clamp(2 - limits.max_exponent, limits.max_exponent - 2).neg()
        value = whole.where(self, fraction).detach()
        slope = scale.cast(self.dtype).exp2().detach()
        return whole.where(0, self).mul(slope)._refined(value), exponent

    def gcd(self, other: Operand) -> Self:
        """The greatest common divisor of integers, not negative; 0 of two zeros."""
        a, b = self._integers(other, "gcd")
        a, b = a.abs(), b.abs()
        # Each pair of steps of Euclid's algorithm at least halves the larger one.
        for _ in range(_steps(a.dtype.bits)):
            a, b = b.eq(0).where(a, b), a._binary("tmod", b)
        return a

    def lcm(self, other: Operand) -> Self:
        """The least common multiple of integers, not negative; 0 where either is."""
        a, b = self._integers(other, "lcm")
        return a._binary("tdiv", a.gcd(b)).mul(b).abs()

    def _integers(self, other: Operand, name: str) -> tuple[Self, Self]:
        a, b = self._pair(other)
        if not a.dtype.is_int:
            raise DTypeError(f"{name} needs integers, got {a.dtype.name}")
        return a, b


def _steps(bits: int) -> int:
    """Steps of Euclid's algorithm after which numbers of so many bits are through (G. Lame, 1844).

    The pair that takes longest is two neighbours in Fibonacci's sequence.
    """
    a, b, count = 1, 1, 1
    while b >> bits == 0:
        a, b, count = b, a + b, count + 1
    return count

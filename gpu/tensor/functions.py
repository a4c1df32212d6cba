"""Exponentials, logarithms, trigonometric and hyperbolic functions and their inverses.

Integers and bools are taken as float32. Errors against the exact value, in units in the last place
(ulp) of float32 or float64 on arguments where the result is normal:

===============================  ==================================================================
exp, exp2, log2, sin             2, whatever the argument
log, log10, log1p                3
cosh, expm1                      3; expm1 keeps its relative accuracy near 0
cos                              absolute: 4 ulp of 1, whatever the finite argument; tan follows
sinh, tanh, asinh, acosh, atanh  4; sinh keeps its relative accuracy near 0
atan, asin, acos, erf            4
===============================  ==================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, Self, TypeVar

from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import dtypes
from gpu.tensor import coefficients
from gpu.tensor.arithmetic import Arithmetic
from gpu.tensor.precision import float_function
from gpu.tensor.sloped import Slope, sloped

T = TypeVar("T", bound=Arithmetic)
_LN_2: Final = math.log(2)
# From here on 1 + x**2 is x**2 in float64 too, and x**2 is still finite in float32.
_SQUARE_DOMINATES: Final = 1e9


def _with_slope(slope: Slope) -> Callable[[Callable[[T], T]], Callable[[T], T]]:
    """Gives a method its derivative, of the argument and the value."""
    return lambda method: sloped(method, [slope])


class Functions(Arithmetic):
    """Elementary functions of one tensor."""

    __slots__ = ()

    def sign(self) -> Self:
        """-1, 0 or 1; 0 for NaN, as in torch. The gradient is 0.

        Of a complex number that of length 1 in its direction, with a gradient.
        """
        if self.dtype is dtypes.bool:
            return self._same()
        if self.dtype.is_complex:
            return self._of_complex("sign")
        # trunc, of no effect on a zero, is what carries the gradient.
        zero = self.eq(0).where(self.trunc(), 0)
        return self.gt(0).where(1, self.lt(0).where(-1, zero) if self.dtype.is_signed else zero)

    @float_function
    def exp(self) -> Self:
        """e to the power of self."""
        return self._as_float()._unary("exp")

    def exp2(self) -> Self:
        """2 to the power of self."""
        return self._function("exp2")

    def expm1(self) -> Self:
        """exp(self) - 1, also where that is close to 0."""
        return self._function("expm1")

    @float_function
    def log(self) -> Self:
        """The natural logarithm; -inf for 0, NaN below."""
        return self.log2().mul(_LN_2)

    def log2(self) -> Self:
        """The logarithm to base 2."""
        return self._function("log2")

    @float_function
    def log10(self) -> Self:
        """The logarithm to base 10."""
        return self.log2().mul(math.log10(2))

    @float_function
    @_with_slope(lambda x, value: x.add(1).reciprocal())
    def log1p(self) -> Self:
        """log(1 + self), also where self is close to 0."""
        rounded = self.add(1)
        plain = rounded.log()
        whole = plain.add(self.sub(rounded.sub(1)).div(rounded))
        # A zero keeps its sign.
        return self.eq(0).where(self, plain.isfinite().where(whole, plain))

    def sin(self) -> Self:
        """The sine of radians."""
        return self._function("sin")

    @float_function
    def cos(self) -> Self:
        """The cosine of radians, as 1 - 2 sin(x/2)**2: x/2 is exact where x + pi/2 is not."""
        return self.mul(0.5).sin().square().mul(-2).add(1)

    @float_function
    def tan(self) -> Self:
        """The tangent of radians."""
        return self.sin().div(self.cos())

    @float_function
    @_with_slope(lambda x, value: x.cosh())
    def sinh(self) -> Self:
        """The hyperbolic sine."""
        # With g = exp(|x| / 2) - 1, which is finite where the sine is, exp(|x|) - 1 is g (g + 2).
        # The sine is half of that, and half of that once more divided by exp(|x|).
        grown = self._magnitude().mul(0.5).expm1()
        rest = grown.add(1).reciprocal().square()
        return self._odd(grown.mul(0.5).mul(grown.add(2)).mul(rest.add(1)))

    @float_function
    @_with_slope(lambda x, value: x.sinh())
    def cosh(self) -> Self:
        """The hyperbolic cosine."""
        # Of squares, since exp(|x|) is infinite before its half is.
        up, down = self.mul(0.5).exp(), self.mul(-0.5).exp()
        return up.mul(0.5).mul(up).add(down.mul(0.5).mul(down))

    @float_function
    def tanh(self) -> Self:
        """The hyperbolic tangent."""
        less_one = self._magnitude().mul(-2).expm1()
        return self._odd(less_one.neg().div(less_one.add(2)))

    @float_function
    def asinh(self) -> Self:
        """The inverse of `sinh`."""
        m = self._magnitude()
        large = m.gt(_SQUARE_DOMINATES)
        near = large.where(1, m)
        root = near.square().add(1).sqrt()
        exact = near.add(near.mul(near.div(root.add(1)))).log1p()
        return self._odd(large.where(large.where(m, 1).log().add(_LN_2), exact))

    @float_function
    def acosh(self) -> Self:
        """The inverse of `cosh` above 1; NaN below."""
        large = self.gt(_SQUARE_DOMINATES)
        above = large.where(1, self.sub(1))
        exact = above.add(above.sqrt().mul(above.add(2).sqrt())).log1p()
        return large.where(large.where(self, 1).log().add(_LN_2), exact)

    @float_function
    def atanh(self) -> Self:
        """The inverse of `tanh`: infinite at -1 and 1, NaN beyond."""
        m = self._magnitude()
        return self._odd(m.mul(2).div(m.sub(1, reverse=True)).log1p().mul(0.5))

    @float_function
    def atan(self) -> Self:
        """The inverse tangent, in -pi/2..pi/2."""
        large = self.abs().gt(1)
        inner = large.where(large.where(self, 1).reciprocal(), self)
        angle = inner.mul(inner.square()._polynomial(coefficients.ATAN))
        quarter_turn = self._odd(self._filled(math.pi / 2))
        return large.where(quarter_turn.sub(angle), angle)

    @float_function
    def asin(self) -> Self:
        """The inverse sine, in -pi/2..pi/2; NaN outside -1..1."""
        near, angle = self._angle()
        return near.where(angle, self._odd(angle.mul(-2).add(math.pi / 2)))

    @float_function
    def acos(self) -> Self:
        """The inverse cosine, in 0..pi; NaN outside -1..1."""
        near, angle = self._angle()
        double = angle.mul(2)
        far = self.lt(0).where(double.sub(math.pi, reverse=True), double)
        return near.where(angle.sub(math.pi / 2, reverse=True), far)

    def _angle(self) -> tuple[Self, Self]:
        """Whether |self| <= 1/2, and there asin(self), else that of sqrt((1 - |self|) / 2).

        The latter is half the angle whose cosine is |self|.
        """
        m = self._magnitude()
        near = m.le(0.5)
        square = near.where(self.square(), m.sub(1, reverse=True).mul(0.5))
        sine = near.where(self, near.where(0.25, square).sqrt())
        return near, sine.mul(square._polynomial(coefficients.ASIN))

    @float_function
    # The polynomial's slope has an error like that of 1, where erf's own is all but 0.
    @_with_slope(lambda x, value: x.square().neg().exp().mul(2 / math.sqrt(math.pi)))
    def erf(self) -> Self:
        """The error function, 2 / sqrt(pi) times the integral of exp(-t**2) from 0 to self."""
        m = self._magnitude()
        near = self.mul(self.square()._polynomial(coefficients.ERF_NEAR))
        # From `end` on the result is 1.
        end = 6 if self.dtype is dtypes.float64 else 4
        place = m.sub((end + 1) / 2).mul(2 / (end - 1))
        far = self._odd(m.ge(end).where(1, place._polynomial(coefficients.ERF_FAR)))
        return m.lt(1).where(near, far)

    def _magnitude(self) -> Self:
        """|self|, with a derivative of 1 at 0, for functions that are odd or even."""
        return self.lt(0).where(self.neg(), self)

    def _odd(self, of_magnitude: Self) -> Self:
        """An odd function of self, from its value at the magnitude of self."""
        return self.lt(0).where(of_magnitude.neg(), of_magnitude)

    def _refined(self, better: Self) -> Self:
        """The value of `better`, a close one, with the gradient of self."""
        return self.add(better.sub(self).detach())

    def _polynomial(self, table: coefficients.Table) -> Self:
        """The polynomial of `table` for this dtype, evaluated by Horner's rule."""
        factors: Sequence[float] = table.wide if self.dtype is dtypes.float64 else table.narrow
        result, *others = (self._filled(factor)._node for factor in reversed(factors))
        for factor in others:
            result = G.alu("fma", result, self._node, factor)
        return self._wrap(result)

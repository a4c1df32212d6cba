"""Arithmetic, element by element, with broadcasting and promotion.

Division by zero of integers gives 0, as the op table fixes it for every device; remainders by zero
give 0 too. Remainders of floats are exact, and zeros have the sign that others have.
"""

from __future__ import annotations

from typing import Final, Self

from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import dtypes, promote
from gpu.core.errors import InvalidValue
from gpu.core.scalars import check_fits
from gpu.tensor import customgrad
from gpu.tensor.arguments import Operand, choice, integer
from gpu.tensor.comparison import Comparison

# Up to this power of a float, repeated multiplication is the more exact way.
_LARGEST_PRODUCT: Final = 16


class Arithmetic(Comparison):
    """Sums, products, quotients, remainders, roundings and powers."""

    __slots__ = ()

    def add(self, x: Operand, reverse: bool = False, *, alpha: float = 1) -> Self:
        """self + alpha * x; of two bools, whether either is true."""
        if alpha != 1:
            return self.add(self._lift(x).mul(alpha), reverse)
        a, b = self._operands(x)
        op = "or" if a.dtype is dtypes.bool else "add"
        return self._wrap(G.alu(op, b, a) if reverse else G.alu(op, a, b))

    def sub(self, x: Operand, reverse: bool = False, *, alpha: float = 1) -> Self:
        """self - alpha * x, or alpha * x - self with `reverse`."""
        if alpha != 1:
            return self.sub(self._lift(x).mul(alpha), reverse)
        return self._binary("sub", x, reverse)

    def mul(self, x: Operand, reverse: bool = False) -> Self:
        """self * x; of two bools, whether both are true."""
        a, b = self._operands(x)
        op = "and" if a.dtype is dtypes.bool else "mul"
        return self._wrap(G.alu(op, b, a) if reverse else G.alu(op, a, b))

    def div(self, x: Operand, reverse: bool = False, rounding_mode: str | None = None) -> Self:
        """self / x, or x / self with `reverse`.

        Args:
            x: the divisor.
            reverse: swaps the operands.
            rounding_mode: None for the quotient, float32 if both are integers; "trunc" to round it
                toward zero, "floor" toward minus infinity, in the operands' promoted dtype.
        """
        choice(rounding_mode, "rounding_mode", (None, "trunc", "floor"))
        a, b = self._pair(x, reverse)
        if rounding_mode == "floor":
            return a._floor_div(b)
        if rounding_mode == "trunc":
            return a._binary("div", b).trunc() if a.dtype.is_float else a._binary("tdiv", b)
        return a._as_float()._binary("div", b._as_float())

    def floor_divide(self, x: Operand) -> Self:
        """The quotient rounded down, an integer of integers."""
        return self.div(x, rounding_mode="floor")

    def rsub(self, x: Operand, *, alpha: float = 1) -> Self:
        """x - alpha * self."""
        return self.mul(alpha).sub(x, reverse=True) if alpha != 1 else self.sub(x, reverse=True)

    def fmod(self, x: Operand) -> Self:
        """The remainder of division rounded toward zero, exactly; it has the sign of self."""
        a, b = self._pair(x)
        return a._binary("fmod" if a.dtype.is_float else "tmod", b)

    def mod(self, x: Operand, reverse: bool = False) -> Self:
        """The remainder of floor division, as Python's %; it has the sign of the divisor."""
        a, b = self._pair(x, reverse)
        rest = a.fmod(b)
        moved = rest._opposes(b).where(rest.add(b), rest)
        if not a.dtype.is_float:
            return moved
        signed = moved.eq(0).where(b._signed_zero(), moved)
        return self._wrap(G.custom_grad("remainder", signed._node, (a._node, b._node)))

    def _floor_div(self, y: Self) -> Self:
        """Floor division of two tensors of one dtype and shape."""
        if self.dtype is dtypes.bool:
            return self._binary("sub", y)  # which says that bools have no such arithmetic
        rest = self.fmod(y)
        if self.dtype.is_float:
            toward_zero = self.sub(rest)._binary("div", y)
        else:
            toward_zero = self._binary("tdiv", y)
        quotient = rest._opposes(y).where(toward_zero.sub(1), toward_zero)
        if not self.dtype.is_float:
            return quotient
        return y.eq(0).where(self._binary("div", y), quotient.round())

    def _opposes(self, y: Self) -> Self:
        """Where self is not zero and of the sign that `y` is not of."""
        return self.ne(0).bitwise_and(self.lt(0).ne(y.lt(0)))

    def neg(self) -> Self:
        """-self."""
        return self._unary("neg")

    def abs(self) -> Self:
        """The magnitude; of a complex number a float."""
        if self._value.dtype.kind == "complex":
            return self._of_complex("abs")
        return self._unary("abs")

    def floor(self) -> Self:
        """The largest whole number not above self; the gradient is 0."""
        return self._same() if self.dtype.is_whole else self._unary("floor")

    def ceil(self) -> Self:
        """The smallest whole number not below self; the gradient is 0."""
        return self._same() if self.dtype.is_whole else self.neg().floor().neg()

    def trunc(self) -> Self:
        """self without its fraction; the gradient is 0."""
        return self._same() if self.dtype.is_whole else self._unary("trunc")

    def round(self, *, decimals: int = 0) -> Self:
        """The nearest multiple of 10**-decimals, of two the even one; the gradient is 0."""
        if self.dtype.is_whole:
            return self._same()
        if integer(decimals, "decimals") == 0:
            return self._unary("rint")
        scale = 10.0 ** abs(decimals)
        if decimals > 0:
            return self.mul(scale)._unary("rint").div(scale)
        return self.div(scale)._unary("rint").mul(scale)

    def square(self) -> Self:
        """self * self."""
        return self.mul(self)

    def reciprocal(self) -> Self:
        """1 / self; float32 for integers."""
        return self.div(1, reverse=True)

    def sqrt(self) -> Self:
        """The square root, correctly rounded; NaN below zero, unless self is complex."""
        return self._function("sqrt")

    def _function(self, op: str) -> Self:
        """A function that the op table has for floats."""
        if self._value.dtype.kind == "complex":
            return self._of_complex(op)
        return self._as_float()._unary(op)

    def rsqrt(self) -> Self:
        """1 / sqrt(self)."""
        return self.sqrt().reciprocal()

    def copysign(self, other: Operand) -> Self:
        """The magnitude of self with the sign of `other`, a zero's included."""
        a, b = self._pair(other)
        magnitude = a._as_float().abs()
        return b._as_float()._signbit().where(magnitude.neg(), magnitude)

    def lerp(self, end: Operand, weight: Operand) -> Self:
        """self + weight * (end - self), exact at both ends."""
        dtype = promote(promote(self.dtype, self._lift(end).dtype), self._lift(weight).dtype)
        wide = promote(dtype, dtypes.float32)
        start = self.cast(wide)
        stop, share = start._lift(end).cast(wide), start._lift(weight).cast(wide)
        span = stop.sub(start)
        near_end = stop.sub(span.mul(share.sub(1, reverse=True)))
        result = share.lt(0.5).where(start.add(span.mul(share)), near_end)
        return result.cast(dtype) if dtype.is_float else result

    def pow(self, x: Operand, reverse: bool = False) -> Self:
        """self to the power of `x`, as in C: anything to the 0 is 1, (-8) ** (1/3) is NaN.

        Whole powers up to 16 are products; others of floats are 2 ** (x * log2(self)), with an
        error that grows with the exponent of the result. Of complex numbers they are exp(x *
        log(self)), on the principal branch. Integers wrap; negative powers of them
        are 0 except for 1 and -1. Gradients are torch's: that of a power that is a tensor is NaN
        where the base is negative.

        Raises:
            InvalidValue: an integer tensor to a negative Python int.
            NumberOverflow: an integer tensor to one that its dtype does not hold.
        """
        if not reverse and isinstance(x, int | float) and not isinstance(x, bool):
            return self._constant_power(x)
        base, exponent = self._pair(x, reverse)
        if base.dtype.is_complex:
            from gpu.tensor.complexmath import power  # only now: few programs need it

            return self._wrap(power(base, exponent)._node)  # type: ignore[arg-type]
        if base.dtype.is_float:
            return self._wrap(customgrad.power(base._node, exponent._node))
        return base._integer_power(exponent)

    def _constant_power(self, power: float) -> Self:
        """The power that is a Python number; of a whole one products."""
        if self.dtype.is_whole and isinstance(power, int):
            if power < 0:
                raise InvalidValue(
                    f"a tensor of {self.dtype.name} to the power {power} is not an integer; "
                    "cast it to a float first"
                )
            check_fits(power, self.dtype)
            return self._product(power)
        base = self._as_float()
        if abs(power) <= _LARGEST_PRODUCT and power == int(power):
            # Of the reciprocal, so that the gradient at zero is infinite and not 0 times that.
            return (base if power >= 0 else base.reciprocal())._product(abs(int(power)))
        if base.dtype.is_complex:
            return base.pow(base._filled(power))
        base, _ = base._pair(power, False)  # which refuses a number that the dtype does not hold
        return self._wrap(customgrad.power_of(base._node, power))

    def _product(self, count: int) -> Self:
        """self multiplied with itself `count` times."""
        result: Self | None = None
        square = self
        while count:
            if count & 1:
                result = square if result is None else result.mul(square)
            count >>= 1
            square = square.mul(square) if count else square
        return self._wrap(G.flat(self._filled(1)._node, self._node)) if result is None else result

    def _integer_power(self, y: Self) -> Self:
        """Square and multiply over every bit of the exponent."""
        result = self._filled(1)
        square = self
        bits = y.dtype.bits - y.dtype.is_signed
        for bit in range(bits):
            taken = y._binary("and", 1 << bit).ne(0)
            result = taken.where(result.mul(square), result)
            square = square.mul(square) if bit + 1 < bits else square
        if not y.dtype.is_signed:
            return result
        odd = y._binary("and", 1).ne(0)
        inverse = self.eq(1).where(1, self.eq(-1).where(odd.where(-1, 1), 0)).cast(self.dtype)
        return y.lt(0).where(inverse, result)

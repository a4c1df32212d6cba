"""Comparison, choice, limits, and operations on bits and truth values."""

from __future__ import annotations

import math
from typing import Final, Self

from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.optable import rounded
from gpu.core.dtype import PyScalar, dtypes, promote
from gpu.core.errors import DTypeError, InvalidValue
from gpu.core.scalars import compared
from gpu.tensor.arguments import Operand
from gpu.tensor.base import TensorBase, broadcast_shape, node_of, repeated
from gpu.tensor.operands import Operands

_NUMBERS: Final = (bool, int, float)
_SCALARS: Final = (*_NUMBERS, complex)
# Comparisons that the op table has with its operands swapped.
_SWAPPED: Final = {"gt": ("lt", True), "ge": ("le", True)}


class Comparison(Operands):
    """Results are bool tensors unless said otherwise; operands broadcast and are promoted.

    Integers compare with each other and with Python's numbers as the numbers that they are,
    whatever fits whose dtype. Beside floats a number counts as rounded to their dtype, and so do
    integers.
    """

    __slots__ = ()

    def eq(self, x: Operand) -> Self:
        """self == x, element by element."""
        return self._compare("eq", x)

    def ne(self, x: Operand) -> Self:
        """self != x; true where either is NaN."""
        return self._compare("ne", x)

    def lt(self, x: Operand) -> Self:
        """self < x."""
        return self._compare("lt", x)

    def le(self, x: Operand) -> Self:
        """self <= x."""
        return self._compare("le", x)

    def gt(self, x: Operand) -> Self:
        """self > x."""
        return self._compare("gt", x)

    def ge(self, x: Operand) -> Self:
        """self >= x."""
        return self._compare("ge", x)

    def _compare(self, op: str, x: Operand) -> Self:
        if not isinstance(x, _NUMBERS):
            other = self._lift(x)
            if {self.dtype.kind, other.dtype.kind} == {"int", "uint"}:
                return self._compare_signs(op, other)
            return self._ordered(op, other)
        if self.dtype.is_float:
            return self._compare_float(op, x)
        if self.dtype.is_complex:
            return self._ordered(op, x)
        found = compared(op, self.dtype, x)
        if isinstance(found, bool):
            return self._wrap(G.const(found, self.shape, dtypes.bool, self.device))
        return self._ordered(found[0], bool(found[1]) if self.dtype is dtypes.bool else found[1])

    def _ordered(self, op: str, x: Operand) -> Self:
        """A comparison in the promoted dtype."""
        row, reverse = _SWAPPED.get(op, (op, False))
        return self._binary(row, x, reverse)

    def _compare_float(self, op: str, x: PyScalar) -> Self:
        """Floats with a number, rounded to their dtype."""
        if math.isfinite(rounded(_as_float(x), self.dtype.element)):
            return self._ordered(op, x)
        # float32 holds every narrower float and, unlike fp8e4m3, an infinity to compare with.
        wide = self.cast(promote(self.dtype, dtypes.float32))
        if isinstance(x, float) and not math.isfinite(x):
            return wide._ordered(op, x)
        # The number lies between the largest float and infinity.
        if op in ("eq", "ne"):
            return self._wrap(G.const(op == "ne", self.shape, dtypes.bool, self.device))
        if x > 0:
            return wide._ordered("lt" if op in ("lt", "le") else "ge", math.inf)
        return wide._ordered("le" if op in ("lt", "le") else "gt", -math.inf)

    def _compare_signs(self, op: str, other: Self) -> Self:
        """Signed integers with unsigned ones, of which no integer may hold both."""
        if promote(self.dtype, other.dtype).is_int:
            return self._ordered(op, other)
        below = self.dtype.is_signed
        negative = (self if below else other).lt(0)
        of_negative = op in (("lt", "le", "ne") if below else ("gt", "ge", "ne"))
        unsigned = self.cast(dtypes.uint64)._ordered(op, other.cast(dtypes.uint64))
        return negative.where(of_negative, unsigned)

    def isnan(self) -> Self:
        """Where self is NaN."""
        return self.ne(self)

    def isinf(self, detect_positive: bool = True, detect_negative: bool = True) -> Self:
        """Where self is infinite, with a sign that is asked for."""
        if self.dtype.is_complex:
            re, im = (self._wrap(part(self._node)) for part in (G.real, G.imag))
            signs = (detect_positive, detect_negative)
            return re.isinf(*signs).bitwise_or(im.isinf(*signs))
        if not self.dtype.is_float or not (detect_positive or detect_negative):
            return self._wrap(G.const(False, self.shape, dtypes.bool, self.device))
        # float32 holds every narrower float and, unlike fp8e4m3, an infinity to compare with.
        x = self.cast(promote(self.dtype, dtypes.float32))
        if detect_positive and detect_negative:
            return x._unary("abs").eq(math.inf)
        return x.eq(math.inf if detect_positive else -math.inf)

    def isposinf(self) -> Self:
        """Where self is infinite and above zero."""
        return self.isinf(detect_negative=False)

    def isneginf(self) -> Self:
        """Where self is infinite and below zero."""
        return self.isinf(detect_positive=False)

    def isfinite(self) -> Self:
        """Where self is neither infinite nor NaN."""
        return self.isinf().bitwise_or(self.isnan()).logical_not()

    def isclose(
        self, other: Operand, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
    ) -> Self:
        """Where the distance to `other` is at most atol + rtol * |other|, or both are equal."""
        a, b = self._pair(other)
        if a.dtype.is_whole:
            a, b = a.cast(dtypes.float64), b.cast(dtypes.float64)
        distance = a._binary("sub", b)._size()
        limit = b._size()._binary("mul", rtol)._binary("add", atol)
        near = distance.le(limit).bitwise_and(b.isfinite()).bitwise_or(a.eq(b))
        return near.bitwise_or(a.isnan().bitwise_and(b.isnan())) if equal_nan else near

    def _size(self) -> Self:
        return self._of_complex("abs") if self.dtype.is_complex else self._unary("abs")

    def allclose(
        self, other: Operand, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
    ) -> bool:
        """Whether `isclose` holds everywhere; computes the tensors."""
        near = self.isclose(other, rtol, atol, equal_nan)
        return bool(near._wrap(G.reduce("and", near._node, range(near.ndim))).item())

    def equal(self, other: Operand) -> bool:
        """Whether shapes and all elements are the same; computes the tensors."""
        same = self._wrap(self._as_node(other))
        if same.shape != self.shape:
            return False
        return bool(self._wrap(G.reduce("and", self.eq(same)._node, range(self.ndim))).item())

    def where(self, x: Operand, y: Operand) -> Self:
        """`x` where self is true, else `y`; self is taken as a bool."""
        if isinstance(x, _SCALARS) and isinstance(y, _SCALARS):
            a, b = node_of(x, self.device, None), node_of(y, self.device, None)
        elif not isinstance(x, TensorBase) and isinstance(y, TensorBase):
            a, b = y._as_node(x), y._node
        else:
            chosen = x if isinstance(x, TensorBase) else TensorBase(x, self.device)
            a, b = chosen._node, chosen._as_node(y)
        self._as_node(self._wrap(a))  # which refuses a tensor of another device
        dtype = promote(a.dtype, b.dtype)
        shape = broadcast_shape(self.shape, a.shape, b.shape)
        condition = repeated(G.cast(self._node, dtypes.bool), shape)
        sides = [repeated(G.cast(side, dtype), shape) for side in (a, b)]
        return self._wrap(G.alu("where", condition, *sides))

    def masked_fill(self, mask: Operand, value: Operand) -> Self:
        """`value` where `mask` is true, else self. Bools stay bools: an int is one then, too."""
        condition = self._lift(mask)
        if condition.dtype is not dtypes.bool:
            raise DTypeError(f"mask must be bool, got {condition.dtype.name}; write mask != 0")
        is_truth = self.dtype is dtypes.bool and isinstance(value, int)
        return condition.where(bool(value) if is_truth else value, self)

    def maximum(self, x: Operand) -> Self:
        """The larger of self and `x`; NaN if either is."""
        return self._binary("max", x)

    def minimum(self, x: Operand) -> Self:
        """The smaller of self and `x`; NaN if either is."""
        return self._binary("min", x)

    def clamp(self, min_: Operand | None = None, max_: Operand | None = None) -> Self:
        """self, but at least `min_` and then at most `max_`; NaN of any stays.

        Where self equals a limit the gradient goes to self. Raises InvalidValue without any limit.
        """
        if min_ is None and max_ is None:
            raise InvalidValue("clamp needs min_, max_ or both, got neither")
        result = self
        if min_ is not None:
            limit = self._lift(min_)
            result = result.lt(limit).bitwise_or(limit.isnan()).where(limit, result)
        if max_ is not None:
            limit = self._lift(max_)
            result = result.gt(limit).bitwise_or(limit.isnan()).where(limit, result)
        return result

    def clip(self, min_: Operand | None = None, max_: Operand | None = None) -> Self:
        """The same as `clamp`."""
        return self.clamp(min_, max_)

    def clamp_min(self, min_: Operand) -> Self:
        """`clamp` from below."""
        return self.clamp(min_)

    def clamp_max(self, max_: Operand) -> Self:
        """`clamp` from above."""
        return self.clamp(max_=max_)

    def bitwise_and(self, x: Operand, reverse: bool = False) -> Self:
        """self & x, of integers or bools."""
        return self._binary("and", x, reverse)

    def bitwise_or(self, x: Operand, reverse: bool = False) -> Self:
        """self | x, of integers or bools."""
        return self._binary("or", x, reverse)

    def bitwise_xor(self, x: Operand, reverse: bool = False) -> Self:
        """self ^ x, of integers or bools."""
        return self._binary("xor", x, reverse)

    def bitwise_not(self) -> Self:
        """~self, of integers or bools."""
        return self._unary("not")

    def logical_not(self) -> Self:
        """Where self is zero or false."""
        return self.cast(dtypes.bool)._unary("not")

    def lshift(self, x: Operand, reverse: bool = False) -> Self:
        """self << x, of integers; 0 where `x` is negative or not less than the width."""
        return self._binary("shl", x, reverse)

    def rshift(self, x: Operand, reverse: bool = False) -> Self:
        """self >> x, keeping the sign; 0 or -1 where `x` is negative or not less than the width."""
        return self._binary("shr", x, reverse)


def _as_float(x: PyScalar) -> float:
    """The nearest float; infinity beyond them."""
    try:
        return float(x)
    except OverflowError:
        return math.inf if x > 0 else -math.inf

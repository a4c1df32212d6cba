"""Comparison, choice, limits, and operations on bits and truth values."""

from __future__ import annotations

import math
from typing import Self

from gpu.compiler.ir import graph_build as G
from gpu.core.dtype import dtypes, promote
from gpu.core.errors import DTypeError, InvalidValue
from gpu.tensor.arguments import Operand
from gpu.tensor.base import TensorBase, broadcast_shape, node_of, repeated
from gpu.tensor.operands import Operands


class Comparison(Operands):
    """Results are bool tensors unless said otherwise; operands broadcast and are promoted."""

    __slots__ = ()

    def eq(self, x: Operand) -> Self:
        """self == x, element by element."""
        return self._binary("eq", x)

    def ne(self, x: Operand) -> Self:
        """self != x; true where either is NaN."""
        return self._binary("ne", x)

    def lt(self, x: Operand) -> Self:
        """self < x."""
        return self._binary("lt", x)

    def le(self, x: Operand) -> Self:
        """self <= x."""
        return self._binary("le", x)

    def gt(self, x: Operand) -> Self:
        """self > x."""
        return self._binary("lt", x, reverse=True)

    def ge(self, x: Operand) -> Self:
        """self >= x."""
        return self._binary("le", x, reverse=True)

    def isnan(self) -> Self:
        """Where self is NaN."""
        return self.ne(self)

    def isinf(self, detect_positive: bool = True, detect_negative: bool = True) -> Self:
        """Where self is infinite, with a sign that is asked for."""
        if not self.dtype.is_float or not (detect_positive or detect_negative):
            return self._wrap(G.const(False, self.shape, dtypes.bool, self.device))
        # float32 holds every narrower float and, unlike fp8e4m3, an infinity to compare with.
        x = self.cast(promote(self.dtype, dtypes.float32))
        if detect_positive and detect_negative:
            return x._unary("abs").eq(math.inf)
        return x.eq(math.inf if detect_positive else -math.inf)

    def isfinite(self) -> Self:
        """Where self is neither infinite nor NaN."""
        return self.isinf().bitwise_or(self.isnan()).logical_not()

    def isclose(
        self, other: Operand, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
    ) -> Self:
        """Where the distance to `other` is at most atol + rtol * |other|, or both are equal."""
        a, b = self._pair(other)
        if not a.dtype.is_float:
            a, b = a.cast(dtypes.float64), b.cast(dtypes.float64)
        distance = a._binary("sub", b)._unary("abs")
        limit = b._unary("abs")._binary("mul", rtol)._binary("add", atol)
        near = distance.le(limit).bitwise_and(b.isfinite()).bitwise_or(a.eq(b))
        return near.bitwise_or(a.isnan().bitwise_and(b.isnan())) if equal_nan else near

    def allclose(
        self, other: Operand, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
    ) -> bool:
        """Whether `isclose` holds everywhere; computes the tensors."""
        near = self.isclose(other, rtol, atol, equal_nan)
        return bool(near._wrap(G.reduce("and", near._node, range(near.ndim))).item())

    def where(self, x: Operand, y: Operand) -> Self:
        """`x` where self is true, else `y`; self is taken as a bool."""
        if not isinstance(x, TensorBase) and isinstance(y, TensorBase):
            a, b = y._as_node(x), y._node
        else:
            chosen = x if isinstance(x, TensorBase) else TensorBase(x, self.device)
            a, b = chosen._node, chosen._as_node(y)
        self._as_node(self._wrap(a))  # which refuses a tensor of another device
        dtype = promote(a.dtype, b.dtype)
        if not isinstance(x, TensorBase) and not isinstance(y, TensorBase):
            a, b = node_of(x, self.device, dtype), node_of(y, self.device, dtype)
        shape = broadcast_shape(self.shape, a.shape, b.shape)
        condition = repeated(G.cast(self._node, dtypes.bool), shape)
        sides = [repeated(G.cast(side, dtype), shape) for side in (a, b)]
        return self._wrap(G.alu("where", condition, *sides))

    def masked_fill(self, mask: Operand, value: Operand) -> Self:
        """`value` where `mask` is true, else self."""
        condition = self._lift(mask)
        if condition.dtype is not dtypes.bool:
            raise DTypeError(f"mask must be bool, got {condition.dtype.name}; write mask != 0")
        return condition.where(value, self)

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

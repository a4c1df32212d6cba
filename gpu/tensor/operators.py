"""Python's operators. In-place ones, as ``a += b``, write to the tensor, its base and its views."""

from __future__ import annotations

from typing import Final, Self

import numpy as np

from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import KIND_ORDER
from gpu.core.errors import DTypeError, ShapeError
from gpu.tensor.arguments import Operand
from gpu.tensor.arithmetic import Arithmetic
from gpu.tensor.base import TensorBase
from gpu.tensor.matmul import Matmul

_COMPARABLE: Final = (TensorBase, bool, int, float, complex, np.generic, np.ndarray, list, tuple)


class Operators(Matmul, Arithmetic):
    """`//`, `%` and `divmod` follow Python's rules for signs; `==` compares element by element."""

    __slots__ = ()

    __hash__ = TensorBase.__hash__

    # The four that are called most skip what gives their methods torch's names of keywords.

    def __add__(self, x: Operand) -> Self:
        return Arithmetic.add(self, x)

    def __radd__(self, x: Operand) -> Self:
        return Arithmetic.add(self, x, reverse=True)

    def __sub__(self, x: Operand) -> Self:
        return Arithmetic.sub(self, x)

    def __rsub__(self, x: Operand) -> Self:
        return Arithmetic.sub(self, x, reverse=True)

    def __mul__(self, x: Operand) -> Self:
        return Arithmetic.mul(self, x)

    def __rmul__(self, x: Operand) -> Self:
        return Arithmetic.mul(self, x, reverse=True)

    def __truediv__(self, x: Operand) -> Self:
        return Arithmetic.div(self, x)

    def __rtruediv__(self, x: Operand) -> Self:
        return Arithmetic.div(self, x, reverse=True)

    def __floordiv__(self, x: Operand) -> Self:
        return self.div(x, rounding_mode="floor")

    def __rfloordiv__(self, x: Operand) -> Self:
        return self.div(x, reverse=True, rounding_mode="floor")

    def __mod__(self, x: Operand) -> Self:
        return self.mod(x)

    def __rmod__(self, x: Operand) -> Self:
        return self.mod(x, reverse=True)

    def __divmod__(self, x: Operand) -> tuple[Self, Self]:
        return self // x, self % x

    def __rdivmod__(self, x: Operand) -> tuple[Self, Self]:
        return x // self, x % self

    def __pow__(self, x: Operand) -> Self:
        return self.pow(x)

    def __rpow__(self, x: Operand) -> Self:
        return self.pow(x, reverse=True)

    def __matmul__(self, x: Operand) -> Self:
        return self.matmul(x)

    def __rmatmul__(self, x: Operand) -> Self:
        return self.matmul(x, reverse=True)

    def __and__(self, x: Operand) -> Self:
        return self.bitwise_and(x)

    def __rand__(self, x: Operand) -> Self:
        return self.bitwise_and(x, reverse=True)

    def __or__(self, x: Operand) -> Self:
        return self.bitwise_or(x)

    def __ror__(self, x: Operand) -> Self:
        return self.bitwise_or(x, reverse=True)

    def __xor__(self, x: Operand) -> Self:
        return self.bitwise_xor(x)

    def __rxor__(self, x: Operand) -> Self:
        return self.bitwise_xor(x, reverse=True)

    def __lshift__(self, x: Operand) -> Self:
        return self.lshift(x)

    def __rlshift__(self, x: Operand) -> Self:
        return self.lshift(x, reverse=True)

    def __rshift__(self, x: Operand) -> Self:
        return self.rshift(x)

    def __rrshift__(self, x: Operand) -> Self:
        return self.rshift(x, reverse=True)

    def __iadd__(self, x: Operand) -> Self:
        return self._take(self + x)

    def __isub__(self, x: Operand) -> Self:
        return self._take(self - x)

    def __imul__(self, x: Operand) -> Self:
        return self._take(self * x)

    def __itruediv__(self, x: Operand) -> Self:
        return self._take(self / x)

    def __ifloordiv__(self, x: Operand) -> Self:
        return self._take(self // x)

    def __imod__(self, x: Operand) -> Self:
        return self._take(self % x)

    def __ipow__(self, x: Operand) -> Self:
        return self._take(self**x)

    def __imatmul__(self, x: Operand) -> Self:
        return self._take(self @ x)

    def __ilshift__(self, x: Operand) -> Self:
        return self._take(self << x)

    def __irshift__(self, x: Operand) -> Self:
        return self._take(self >> x)

    def __iand__(self, x: Operand) -> Self:
        return self._take(self & x)

    def __ior__(self, x: Operand) -> Self:
        return self._take(self | x)

    def __ixor__(self, x: Operand) -> Self:
        return self._take(self ^ x)

    def __neg__(self) -> Self:
        return self.neg()

    def __pos__(self) -> Self:
        return self._same()

    def __abs__(self) -> Self:
        return self.abs()

    def __invert__(self) -> Self:
        return self.bitwise_not()

    def __lt__(self, x: Operand) -> Self:
        return self.lt(x)

    def __le__(self, x: Operand) -> Self:
        return self.le(x)

    def __gt__(self, x: Operand) -> Self:
        return self.gt(x)

    def __ge__(self, x: Operand) -> Self:
        return self.ge(x)

    def __eq__(self, x: Operand) -> Self:  # type: ignore[override]
        return self.eq(x) if isinstance(x, _COMPARABLE) else NotImplemented

    def __ne__(self, x: Operand) -> Self:  # type: ignore[override]
        return self.ne(x) if isinstance(x, _COMPARABLE) else NotImplemented

    def _take(self, result: Self) -> Self:
        """Replaces the elements by those of `result`, which an operator made of self.

        Raises:
            ShapeError: the operands broadcast to another shape than that of self.
            DTypeError: the result is of a kind that self does not hold, as a float in an int.
            InvalidValue: self shows elements more than once, or has requires_grad=True.
        """
        self._refuse_leaf()
        if result.shape != self.shape:
            raise ShapeError(
                f"the result has shape {list(result.shape)} and cannot replace elements of shape "
                f"{list(self.shape)} in place"
            )
        if KIND_ORDER[result.dtype.kind] > KIND_ORDER[self.dtype.kind]:
            raise DTypeError(
                f"the result is {result.dtype.name} and cannot replace {self.dtype.name} in place; "
                "write x = x + y instead of x += y, or cast an operand"
            )
        self._set(G.cast(result._node, self.dtype))
        return self

"""What every family of element-wise operations is built on."""

from __future__ import annotations

from typing import Self

from gpu.compiler.ir.dims import upper
from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import Number, dtype_named, dtypes
from gpu.core.errors import DTypeError
from gpu.core.scalars import check_fits
from gpu.tensor.arguments import Operand
from gpu.tensor.base import TensorBase


class Operands(TensorBase):
    """Reading of operands, and the way from a row of the op table to a tensor."""

    __slots__ = ()

    def _unary(self, op: str) -> Self:
        return self._wrap(G.alu(op, self._node))

    def _binary(self, op: str, x: Operand, reverse: bool = False) -> Self:
        a, b = self._operands(x)
        return self._wrap(G.alu(op, b, a) if reverse else G.alu(op, a, b))

    def _lift(self, x: Operand) -> Self:
        """`x` as a tensor that can be combined with this one."""
        return self._wrap(self._as_node(x))

    def _pair(self, x: Operand, reverse: bool = False) -> tuple[Self, Self]:
        """self and `x` of one dtype and shape, swapped with `reverse`."""
        a, b = map(self._wrap, self._operands(x))
        return (b, a) if reverse else (a, b)

    def _filled(self, value: Number) -> Self:
        """A constant of this tensor's shape, dtype and device."""
        check_fits(value, self.dtype)
        return self._wrap(G.const(value, self.shape, self.dtype, self.device))

    def _as_float(self) -> Self:
        """self, or for integers, bools and images self as the default float."""
        dtype = self.dtype
        return self.cast(dtypes.default_float) if dtype.is_whole or dtype.is_image else self

    def _require_real(self, name: str) -> None:
        if self.dtype.is_complex:
            raise DTypeError(f"{name} is not defined for {self.dtype.name}; take .real or .abs()")

    def _of_complex(self, name: str) -> Self:
        """The function called `name` of complex numbers. Raises DTypeError where there is none."""
        from gpu.tensor.complexmath import apply  # only now: few programs need it

        result: Self = apply(name, self)
        return result

    def _index_along(self, axis: int, shape: tuple[int, ...]) -> Self:
        """The position along `axis` of every element of a tensor of `shape`.

        int32 while that holds the size of the axis, else int64.
        """
        count = shape[axis]
        line = tuple(count if a == axis else 1 for a in range(len(shape)))
        iota: Node = G.iota(count, dtypes.of(upper(count)), self.device)
        return self._wrap(G.expand(G.reshape(iota, line), shape))

    def _signed_zero(self) -> Self:
        """A zero with the sign of each element, of floats."""
        bits = self.bitcast(dtype_named(f"uint{self.dtype.bits}"))
        return bits._binary("and", 1 << (self.dtype.bits - 1)).bitcast(self.dtype)

    def _signbit(self) -> Self:
        """Where the sign is set, that of a zero or NaN included; of floats."""
        return self.bitcast(dtype_named(f"int{self.dtype.bits}"))._binary("lt", 0)

"""`gpu.Var`: sizes and positions that are values of a launch instead of constants of a program."""

from __future__ import annotations

from typing import Any

from gpu.compiler.ir.dims import dimension, symbol
from gpu.compiler.ir.index.expression import VAR_NAME, Expr
from gpu.core.errors import InvalidValue
from gpu.tensor.arguments import integer


class Var:
    """A whole number with bounds, for sizes of tensors and bounds of slices.

    What `bind` gives stands wherever an int could be: in shapes and slices. It adds and
    subtracts, and multiplies, divides (``//``) and leaves remainders (``%``) by ints. Programs are
    compiled for the bounds, once, and run with the value. Memory is taken for the largest value.

    One program knows one value of each variable: what was computed with another one is computed
    before, in a program of its own, and one jitted call has one value. What must hold of a size or
    slice, such as that its elements are there, must hold for all values in the bounds.

    A decoder that keeps keys for all positions, and attends to those so far; writing a row costs
    that row, not the cache:

    >>> from gpu import Tensor, Var
    >>> position = Var("position", 0, 511)
    >>> keys = Tensor.zeros(512, 8).contiguous().realize()
    >>> for step in range(3):
    ...     p = position.bind(step)
    ...     keys[p:p + 1] = Tensor.full((1, 8), float(step))
    ...     weights = (keys[:p + 1] @ Tensor.ones(8)).softmax(0)
    >>> weights.shape, weights.numpy().shape
    ((position + 1,), (3,))

    Attributes:
        name: letters, digits and `_`; equal names in one program must have equal bounds.
        lo: the smallest value, 0 or more.
        hi: the largest one.
        multiple_of: what all values are multiples of; lets such an axis be split evenly.
    """

    __slots__ = ("hi", "lo", "multiple_of", "name")

    def __init__(self, name: str, lo: int, hi: int, multiple_of: int = 1):
        """Raises InvalidValue for bounds that are negative or hold no value, and for a name."""
        self.name = name
        self.lo, self.hi = integer(lo, "lo"), integer(hi, "hi")
        self.multiple_of = integer(multiple_of, "multiple_of")
        if not isinstance(name, str) or not VAR_NAME.fullmatch(name) or "." in name:
            raise InvalidValue(f"name {name!r}: expected letters, digits and '_', no digit first")
        if self.multiple_of < 1:
            raise InvalidValue(f"multiple_of of {name} is {multiple_of}; expected 1 or more")
        least, most = self._units()
        if self.lo < 0 or least > most:
            raise InvalidValue(
                f"{self!r} has no value to be bound to: expected 0 <= lo <= hi with a multiple of "
                f"{self.multiple_of} between them"
            )

    def _units(self) -> tuple[int, int]:
        """The bounds, counted in multiples."""
        return -(-self.lo // self.multiple_of), self.hi // self.multiple_of

    def bind(self, value: int) -> Any:
        """The variable with a value, to be used as an int in shapes and slices; `.value` of it, or
        of what was computed from it, is the int.

        Raises InvalidValue for a value outside the bounds, or that is no multiple.
        """
        number = integer(value, f"the value of {self.name}")
        if not self.lo <= number <= self.hi or number % self.multiple_of:
            multiple = f" and a multiple of {self.multiple_of}" if self.multiple_of > 1 else ""
            raise InvalidValue(
                f"{self.name} cannot be bound to {number}: expected {self.lo}..{self.hi}{multiple}"
            )
        by = self.multiple_of
        name = self.name if by == 1 else f"{self.name}.by{by}"
        bound: Expr = symbol(name, *self._units(), number // by).as_expr * by
        return dimension(bound)

    def __repr__(self) -> str:
        multiple = f", multiple_of={self.multiple_of}" if self.multiple_of > 1 else ""
        return f"Var({self.name!r}, {self.lo}, {self.hi}{multiple})"

"""Functions as polynomials over pieces of an interval, by the tables in `tables/`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from gpu.tensor.coefficients import Table
from gpu.tensor.functions import Functions

T = TypeVar("T", bound=Functions)


class Piece(NamedTuple):
    """A function over low..high: a polynomial, times the distance from the root if there is one.

    Attributes:
        low, high: the variable of the polynomial is -1 at the one and 1 at the other.
        table: the polynomial.
        root: a zero of the function there, as the sum of a float32 and what that lacks.
    """

    low: float
    high: float
    table: Table
    root: tuple[float, float] | None = None

    def of(self, x: T) -> T:
        """The value at `x`, which is right within low..high."""
        half = (self.high - self.low) / 2
        value = x.sub(self.low + half).mul(1 / half)._polynomial(self.table)
        if self.root is None:
            return value
        near, rest = self.root
        # Close to the root the first difference is exact.
        return value.mul(x.sub(near).sub(rest))


def piecewise(x: T, pieces: Sequence[Piece]) -> T:
    """The function that `pieces`, from low to high, are of; the outer ones go on beyond."""
    *first, last = pieces
    value = last.of(x)
    for piece in reversed(first):
        value = x.lt(piece.high).where(piece.of(x), value)
    return value

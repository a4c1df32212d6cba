"""Real and complex numbers in kernels that are written once for both.

A kernel has complex numbers as pairs of floats, in arrays with a last axis of two. `Cells` reads
and writes numbers of either kind, and the functions here take either.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from gpu.compiler.ir.kernel.author import Array, KernelBuilder
from gpu.compiler.ir.kernel.scalar import Scalar


class Pair(NamedTuple):
    """A complex number: real and imaginary part."""

    re: Scalar
    im: Scalar

    def __add__(self, other: Pair) -> Pair:  # type: ignore[override]
        return Pair(self.re + other.re, self.im + other.im)

    def __sub__(self, other: Pair) -> Pair:
        return Pair(self.re - other.re, self.im - other.im)

    def __mul__(self, other: Pair | Scalar) -> Pair:  # type: ignore[override]
        if not isinstance(other, Pair):
            return Pair(self.re * other, self.im * other)
        return Pair(
            self.re * other.re - self.im * other.im, self.re * other.im + self.im * other.re
        )

    def __rmul__(self, other: Any) -> Pair:
        return Pair(self.re * other, self.im * other)

    def __neg__(self) -> Pair:
        return Pair(-self.re, -self.im)

    def __truediv__(self, other: Pair | Scalar) -> Pair:
        """The larger part of the divisor is divided by, so that no square over- or underflows."""
        if not isinstance(other, Pair):
            return Pair(self.re / other, self.im / other)
        wide = abs(other.im) <= abs(other.re)
        large, small = wide.where(other.re, other.im), wide.where(other.im, other.re)
        ratio = small / large
        size = large + small * ratio
        first, second = wide.where(self.re, self.im), wide.where(self.im, self.re)
        across = wide.where(second - first * ratio, first * ratio - second)
        return Pair((first + second * ratio) / size, across / size)


Number: TypeAlias = Scalar | Pair


def conj(x: Any) -> Any:
    """The conjugate; a real number itself."""
    return Pair(x.re, -x.im) if isinstance(x, Pair) else x


def real(x: Number) -> Scalar:
    """The real part."""
    return x.re if isinstance(x, Pair) else x


def size(x: Number) -> Scalar:
    """How large a number is, for comparisons: of complex ones the sum of both parts."""
    return abs(x.re) + abs(x.im) if isinstance(x, Pair) else abs(x)


def largest(x: Number) -> Scalar:
    """The absolute value of the larger part; NaN where one is."""
    return abs(x.re).maximum(abs(x.im)) if isinstance(x, Pair) else abs(x)


def square(x: Number) -> Scalar:
    """The square of the absolute value."""
    return x.re * x.re + x.im * x.im if isinstance(x, Pair) else x * x


def is_real(x: Number) -> Scalar:
    """Whether the imaginary part is 0, or there is none; NaN is real."""
    return x.im == 0 if isinstance(x, Pair) else (x == 0) | (x != 0)


def like(x: Number, value: Scalar) -> Any:
    """A real number as one of the kind of `x`."""
    return Pair(value, 0 * value) if isinstance(x, Pair) else value


def where(condition: Scalar, x: Any, otherwise: Any) -> Any:
    """`x` where the condition holds, else `otherwise`, a number of the same kind or a real one."""
    if not isinstance(x, Pair):
        return condition.where(x, otherwise)
    pair = otherwise if isinstance(otherwise, Pair) else Pair(otherwise, 0 * x.im)
    return Pair(condition.where(x.re, pair.re), condition.where(x.im, pair.im))


class Cells:
    """An array of a kernel whose elements are numbers, pairs if `is_complex`."""

    def __init__(self, k: KernelBuilder, array: Array, is_complex: bool):
        self._k, self._array, self._is_complex = k, array, is_complex

    @classmethod
    def own(cls, k: KernelBuilder, shape: tuple[int, ...], like: Cells) -> Cells:
        """Memory of an iteration's own for numbers as `like` has them, full of zeros."""
        last = (2,) if like._is_complex else ()
        return cls(k, k.alloc((*shape, *last), like._array.dtype), like._is_complex)

    def __getitem__(self, place: Any) -> Any:
        if not self._is_complex:
            return self._array[place]
        place = place if isinstance(place, tuple) else (place,)
        return Pair(self._array[(*place, 0)], self._array[(*place, 1)])

    def __setitem__(self, place: Any, value: Any) -> None:
        if not self._is_complex:
            self._array[place] = value
            return
        place = place if isinstance(place, tuple) else (place,)
        imaginary = self._k.keep(value.im) if isinstance(value, Pair) else 0
        self._array[(*place, 0)] = value.re if isinstance(value, Pair) else value
        self._array[(*place, 1)] = imaginary

    def keep(self, value: Any) -> Any:
        """A number as it is now; see `KernelBuilder.keep`."""
        if isinstance(value, Pair):
            return Pair(self._k.keep(value.re), self._k.keep(value.im))
        return self._k.keep(value)

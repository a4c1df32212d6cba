"""`interpolate`: a grid of samples read at other places.

Places are fractions of whole numbers, formed exactly: an element lies at numerator / denominator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Final, NamedTuple, Self, TypeVar

from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import accumulator, dtypes
from gpu.core.errors import InvalidValue, ShapeError
from gpu.tensor.arguments import choice, integer
from gpu.tensor.gathering import Gathering


class _Place(NamedTuple):
    """Where element i of the result lies in the source: (factor * i + offset) / divisor."""

    factor: int
    offset: int
    divisor: int


# Numerator and denominator of how far apart the places are, in elements of the source -> place.
_PLACES: Final[dict[str, Callable[[int, int], _Place]]] = {
    "linear": lambda p, q: _Place(2 * p, p - q, 2 * q),
    "nearest": lambda p, q: _Place(p, 0, q),
    "nearest-exact": lambda p, q: _Place(2 * p, p, 2 * q),
}
_LINEAR: Final = ("linear", "bilinear", "trilinear")
_SMOOTH: Final = (*_LINEAR, "bicubic")
# The parameter of the cubic convolution (R. Keys, 1981); torch's.
_CUBIC: Final = -0.75


T = TypeVar("T", bound=Gathering)


def cubic_weights(share: T) -> list[T]:
    """The weights of the elements at -1, 0, 1 and 2 for a place at `share` in 0..1."""

    def near(x: T) -> T:
        return x.mul(_CUBIC + 2).sub(_CUBIC + 3).mul(x).mul(x).add(1)

    def far(x: T) -> T:
        return x.sub(5).mul(x).add(8).mul(x).sub(4).mul(_CUBIC)

    rest = share.sub(1, reverse=True)
    return [far(share.add(1)), near(share), near(rest), far(rest.add(1))]


class Interpolation(Gathering):
    """Resizing along the last axes."""

    __slots__ = ()

    def interpolate(
        self, size: int | Sequence[int], mode: str = "linear", align_corners: bool = False
    ) -> Self:
        """self with the last axes brought to `size`, by reading between the elements.

        Args:
            size: a size for each of the last axes, or one for all axes but the first two.
            mode: "linear" ("bilinear" and "trilinear" mean the same) mixes the two neighbours along
                each axis, "bicubic" four; "nearest" takes the element below, "nearest-exact" the
                one whose centre is nearest.
            align_corners: linear and bicubic only: first and last elements lie on those of self;
                otherwise elements are areas, and the areas cover each other.
        """
        choice(mode, "mode", (*_SMOOTH, "nearest", "nearest-exact"))
        if align_corners and mode not in _SMOOTH:
            raise InvalidValue(
                f"align_corners goes with linear and bicubic interpolation, not {mode!r}"
            )
        spatial = max(self.ndim - 2, 0)
        named = size if isinstance(size, Sequence) else [size] * spatial
        sizes = [integer(n, "a size") for n in named]
        if not 0 < len(sizes) <= self.ndim or min(sizes) < 1:
            raise ShapeError(f"size {size!r} does not fit the shape {list(self.shape)}")
        steps = [
            Fraction(old, new) for old, new in zip(self.shape[-len(sizes) :], sizes, strict=True)
        ]
        return self._resized(sizes, steps, mode, align_corners)

    def _resized(
        self, sizes: Sequence[int], steps: Sequence[Fraction], mode: str, align_corners: bool
    ) -> Self:
        """The same of checked arguments; `steps` are how far apart the elements are read."""
        kind = "linear" if mode in _SMOOTH else mode
        result = self
        for axis, (new, step) in enumerate(zip(sizes, steps, strict=True), self.ndim - len(sizes)):
            old = self.shape[axis]
            if old == 0:
                raise ShapeError(f"axis {axis} of shape {list(self.shape)} has nothing to read")
            if align_corners:
                place = _Place(old - 1, 0, max(new - 1, 1))
            else:
                place = _PLACES[kind](step.numerator, step.denominator)
            if mode == "bicubic":
                read = result._cubic
            else:
                read = result._mixed if mode in _LINEAR else result._nearest
            # In memory: the work of the axes adds up, nested it would multiply.
            result = read(axis, new, place).contiguous()
        return result

    def _nearest(self, axis: int, new: int, place: _Place) -> Self:
        """The element at or below each place."""
        below = self._numerator(axis, new, place).div(place.divisor, rounding_mode="floor")
        # Rounding of a size may leave the last place behind the end.
        return self._taken(below.minimum(self.shape[axis] - 1), axis)

    def _mixed(self, axis: int, new: int, place: _Place) -> Self:
        """The elements at and behind each place, by their distances from it."""
        if self.dtype.is_whole:
            return self._as_float()._mixed(axis, new, place)
        last = self.shape[axis] - 1
        numerator = self._numerator(axis, new, place).minimum(last * place.divisor)
        below = numerator.div(place.divisor, rounding_mode="floor")
        above = below.add(1).minimum(last)
        wide = accumulator(self.dtype)
        share = numerator.sub(below.mul(place.divisor)).cast(wide).div(float(place.divisor))
        low, high = self._taken(below, axis).cast(wide), self._taken(above, axis).cast(wide)
        return low.mul(share.sub(1, reverse=True)).add(high.mul(share)).cast(self.dtype)

    def _cubic(self, axis: int, new: int, place: _Place) -> Self:
        """Two elements on each side of each place, by cubic convolution; the ends go on beyond."""
        if self.dtype.is_whole:
            return self._as_float()._cubic(axis, new, place)
        numerator = self._numerator(axis, new, place, least=None)
        below = numerator.div(place.divisor, rounding_mode="floor")
        wide = accumulator(self.dtype)
        share = numerator.sub(below.mul(place.divisor)).cast(wide).div(float(place.divisor))
        result = share._filled(0)
        for offset, weight in enumerate(cubic_weights(share), start=-1):
            at = below.add(offset).maximum(0).minimum(self.shape[axis] - 1)
            result = result.add(self._taken(at, axis).cast(wide).mul(weight))
        return result.cast(self.dtype)

    def _numerator(self, axis: int, new: int, place: _Place, least: int | None = 0) -> Self:
        """The numerators of the places along `axis`, in the result's shape."""
        shape = tuple(new if a == axis else n for a, n in enumerate(self.shape))
        largest = dtypes.of(place.factor * new + abs(place.offset))
        line = self._wrap(G.iota(new, largest, self.device))
        at = line.mul(place.factor).add(place.offset)
        at = at if least is None else at.maximum(least)
        across = at._reshaped(tuple(new if a == axis else 1 for a in range(self.ndim)))
        return across.expand(shape)

"""`interpolate`: a grid of samples read at other places.

Places are fractions of whole numbers, formed exactly: an element lies at numerator / denominator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Self

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


# (size of the source, size of the result) -> place.
_PLACES: Final[dict[str, Callable[[int, int], _Place]]] = {
    "linear": lambda old, new: _Place(2 * old, old - new, 2 * new),
    "aligned": lambda old, new: _Place(old - 1, 0, max(new - 1, 1)),
    "nearest": lambda old, new: _Place(old, 0, new),
    "nearest-exact": lambda old, new: _Place(2 * old, old, 2 * new),
}
_LINEAR: Final = ("linear", "bilinear", "trilinear")


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
                each axis; "nearest" takes the element below, "nearest-exact" the one whose centre
                is nearest.
            align_corners: linear only: first and last elements lie on those of self; otherwise
                elements are areas, and the areas cover each other.
        """
        choice(mode, "mode", (*_LINEAR, "nearest", "nearest-exact"))
        if align_corners and mode not in _LINEAR:
            raise InvalidValue(f"align_corners goes with linear interpolation, not {mode!r}")
        spatial = max(self.ndim - 2, 0)
        named = size if isinstance(size, Sequence) else [size] * spatial
        sizes = [integer(n, "a size") for n in named]
        if not 0 < len(sizes) <= self.ndim or min(sizes) < 1:
            raise ShapeError(f"size {size!r} does not fit the shape {list(self.shape)}")
        kind = mode
        if mode in _LINEAR:
            kind = "aligned" if align_corners else "linear"
        result = self
        for axis, new in enumerate(sizes, self.ndim - len(sizes)):
            if self.shape[axis] == 0:
                raise ShapeError(f"axis {axis} of shape {list(self.shape)} has nothing to read")
            place = _PLACES[kind](self.shape[axis], new)
            read = result._mixed if mode in _LINEAR else result._nearest
            # In memory: the work of the axes adds up, nested it would multiply.
            result = read(axis, new, place).contiguous()
        return result

    def _nearest(self, axis: int, new: int, place: _Place) -> Self:
        """The element at or below each place."""
        below = self._numerator(axis, new, place).div(place.divisor, rounding_mode="floor")
        return self._taken(below, axis)

    def _mixed(self, axis: int, new: int, place: _Place) -> Self:
        """The elements at and behind each place, by their distances from it."""
        if self.dtype.is_whole:
            return self._as_float()._mixed(axis, new, place)
        numerator = self._numerator(axis, new, place)
        below = numerator.div(place.divisor, rounding_mode="floor")
        above = below.add(1).minimum(self.shape[axis] - 1)
        wide = accumulator(self.dtype)
        share = numerator.sub(below.mul(place.divisor)).cast(wide).div(float(place.divisor))
        low, high = self._taken(below, axis).cast(wide), self._taken(above, axis).cast(wide)
        return low.mul(share.sub(1, reverse=True)).add(high.mul(share)).cast(self.dtype)

    def _numerator(self, axis: int, new: int, place: _Place) -> Self:
        """The numerators of the places along `axis`, not below 0, in the result's shape."""
        shape = tuple(new if a == axis else n for a, n in enumerate(self.shape))
        largest = dtypes.of(place.factor * new + abs(place.offset))
        line = self._wrap(G.iota(new, largest, self.device))
        at = line.mul(place.factor).add(place.offset).maximum(0)
        across = at._reshaped(tuple(new if a == axis else 1 for a in range(self.ndim)))
        return across.expand(shape)

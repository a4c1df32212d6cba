"""Where a value of several processes is: on this one's devices, which are part of a grid of all.

An axis of the grid goes over ranks or over a rank's own devices. Ranks differ in their place along
the former alone, which is a `Symbol`: so all of them compile the same kernels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from gpu.compiler.ir.dims import Dim, dimension, symbol
from gpu.compiler.ir.graph.node import Place

# Along each axis of a grid the axis of the value that is cut; None where all have the same. Of one
# axis of devices of this process, which is what a tuple of names stands for, just that.
Layout: TypeAlias = "int | tuple[int | None, ...] | None"


class Axis(NamedTuple):
    """An axis of a grid.

    Attributes:
        size: how many ranks, or devices of each rank.
        ranks: of ranks the sizes of all such axes, of which the last counts fastest; () of devices.
        number: which of `ranks` it is.
        place: where this rank is along it.
    """

    size: int
    ranks: tuple[int, ...] = ()
    number: int = 0
    place: int = 0

    @property
    def offset(self) -> Dim:
        """`place` as a variable, whose value is the only thing that ranks have of their own."""
        name = "_".join(["mesh", *map(str, (*self.ranks, self.number))])
        return dimension(symbol(name, 0, self.size - 1, self.place).as_expr)


class Grid(tuple[str, ...]):
    """The names of this rank's devices, with what all ranks have.

    Attributes:
        axes: those over ranks first.
        mesh: what users call it.
    """

    axes: tuple[Axis, ...]
    mesh: Any

    def __new__(cls, devices: Sequence[str], axes: Sequence[Axis], mesh: object = None) -> Grid:
        """`devices` are counted along the axes that are not over ranks."""
        made = super().__new__(cls, devices)
        made.axes, made.mesh = tuple(axes), mesh
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Grid) and tuple.__eq__(self, other) and self.axes == other.axes

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((tuple.__hash__(self), self.axes))

    @property
    def is_shared(self) -> bool:
        """Whether other ranks have parts of what is on it."""
        return any(axis.ranks for axis in self.axes)


def axes_of(device: Place) -> tuple[Axis, ...]:
    """The axes of where a value is: none of one device."""
    if isinstance(device, str):
        return ()
    return device.axes if isinstance(device, Grid) else (Axis(len(device)),)


def is_shared(device: Place) -> bool:
    """Whether other ranks have parts of what is there."""
    return isinstance(device, Grid) and device.is_shared


def cuts_of(layout: Layout) -> tuple[int | None, ...]:
    """A layout with one entry for each axis."""
    return layout if isinstance(layout, tuple) else (layout,)


def layout_of(device: Place, cuts: Sequence[int | None]) -> Layout:
    """Cuts as the nodes of a place have them."""
    return tuple(cuts) if isinstance(device, Grid) else cuts[0]


def moved_cuts(layout: Layout, by: int) -> Layout:
    """The layout where as many axes of the value were put before the others."""
    moved = tuple(None if cut is None else cut + by for cut in cuts_of(layout))
    return moved if isinstance(layout, tuple) else moved[0]


class Region(NamedTuple):
    """A part of a value.

    Attributes:
        start: the first place of it along each axis.
        shape: of it.
        copy: how many places, along axes of the grid that do not cut the value, come before it.
    """

    start: tuple[int, ...]
    shape: tuple[int, ...]
    copy: int = 0


def own_regions(grid: Grid, cuts: Sequence[int | None], shape: tuple[int, ...]) -> list[Region]:
    """What each of this rank's devices has of a value of a shape."""
    part: tuple[int, ...] = cut_shape(shape, cuts, grid.axes)
    ranks = [axis.place for axis in grid.axes if axis.ranks]
    inside = [range(axis.size) for axis in grid.axes if not axis.ranks]
    found = []
    for places in itertools.product(*inside):
        numbers, copy = [0] * len(part), 0
        for axis, cut, at in zip(grid.axes, cuts, (*ranks, *places), strict=True):
            if cut is None:
                copy = copy * axis.size + at
            else:
                numbers[cut] = numbers[cut] * axis.size + at
        start = tuple(n * size for n, size in zip(numbers, part, strict=True))
        found.append(Region(start, part, copy))
    return found


def copies(grid: Grid, cuts: Sequence[int | None]) -> int:
    """How many devices have each part of a value."""
    pairs = zip(grid.axes, cuts, strict=True)
    return math.prod(axis.size for axis, cut in pairs if cut is None)


def cut_shape(shape: tuple[Dim, ...], cuts: Sequence[object], axes: Sequence[Axis]) -> Any:
    """The shape of what one device has; other cuts than whole numbers cut nothing."""
    sizes = list(shape)
    for cut, axis in zip(cuts, axes, strict=True):
        if isinstance(cut, int):
            sizes[cut] = dimension(sizes[cut] // axis.size)
    return tuple(sizes)

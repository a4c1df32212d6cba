"""Products of matrices by their loops, and tiles of them for a CPU that poses as a GPU.

One output loop (`v`, along which the output is contiguous) gives lanes, another one (`u`) that only
the other operand depends on is written out, so that a tile of the output stays in registers while
the reduction runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import Var, divides
from gpu.compiler.ir.kernel.tree import loads_of
from gpu.compiler.opt.analysis.lanes import fitting, lanes_of
from gpu.compiler.opt.analysis.reduction_nest import Nest, reduction_nest
from gpu.compiler.opt.opts import Bind, Opt, Reorder, Split
from gpu.compiler.targets import WORD, Target

# Vectors of a tile along `v` at least.
TILE_VECTORS: Final = 2
# Steps of the sum that are written out where memory is read by fours.
STEPS: Final = 4
# Vectors of a tile where nothing is used twice.
MOST_VECTORS: Final = 4
# Multiplications below which tiling gains nothing.
SMALL: Final = 1 << 12


class Contraction(NamedTuple):
    """The loops of a contraction.

    Attributes:
        outer: output loops that are neither `v` nor `u`.
        v: the loop along which the output and lanes run.
        u: the loop to write out, or None.
        reduction: loops summed over, outermost first.
        along: the operand that depends on `v`.
        across: the other operand.
    """

    outer: tuple[Var, ...]
    v: Var
    u: Var | None
    reduction: tuple[Var, ...]
    along: K.Value
    across: K.Value


def match(kernel: K.Kernel, symbolic: bool = False) -> Contraction | None:
    """The kernel as a contraction, or None if it is something else.

    With `symbolic`, how often `u` and `v` run may be known at launch only.
    """
    found = reduction_nest(kernel.body)
    if found is None or found.update.monoid != "add" or found.update.value.attr != ("mul",):
        return None
    for v in reversed(found.independent):
        known = symbolic or v.stop is None
        if known and all(s.indices[0].coeff(v) == 1 for s in found.stores):
            counted = [u for u in found.independent if symbolic or u.stop is None]
            return _with_lanes(v, counted, found)
    return None


def _with_lanes(v: Var, counted: Sequence[Var], found: Nest) -> Contraction | None:
    a, b = found.update.value.args
    if (v in a.vars) == (v in b.vars):
        return None
    along, across = (a, b) if v in a.vars else (b, a)
    unrollable = [u for u in counted if u in across.vars and u not in along.vars]
    u = max(unrollable, key=lambda var: var.extent, default=None)
    outer = tuple(var for var in found.independent if var not in (v, u))
    return Contraction(outer, v, u, found.reduction, along, across)


class _Tiles(NamedTuple):
    """Lanes of a vector, vectors of a tile along `v`, and its rows along `u`."""

    lanes: int
    vectors: int
    rows: int


class _Levels(NamedTuple):
    """The loops that `v` becomes; levels of one iteration do not exist."""

    tile: str | None
    vector: str | None
    lane: str

    def inside(self) -> tuple[str, ...]:
        """The loops of a tile: over its vectors, and their lanes."""
        return (self.vector, self.lane) if self.vector else (self.lane,)

    def bind(self, suffix: str = "") -> Iterator[Opt]:
        """Vectors are written out; lanes are lanes."""
        if self.vector:
            yield Bind(f"{self.vector}{suffix}", "unroll")
        yield Bind(f"{self.lane}{suffix}", "vector")


def tile(kernel: K.Kernel, target: Target) -> Iterator[Opt]:
    """Register tiles and the loop order for a contraction; nothing for another kernel."""
    c = match(kernel, symbolic=True)
    tiles = _choose(c, target) if c else None
    if c is None or tiles is None:
        return
    splits, levels = _split_along(c.v, tiles)
    yield from splits
    if c.u is None:
        yield from levels.bind()
        return
    outer = tuple(var.name for var in c.outer)
    counted = (levels.tile,) if levels.tile else ()
    # Too few tiles along `v` for all workers: they share out the rows instead.
    rows_first = not outer and c.v.extent < target.workers * tiles.lanes * tiles.vectors
    around = (c.u.name, *counted) if rows_first else (*counted, c.u.name)
    yield Reorder((*outer, *around, *levels.inside()))
    if _by_fours(c, target):
        yield from _steps(c.reduction[-1])
    yield from _split_across(c.u, counted if rows_first else (), levels, tiles.rows)


def _by_fours(c: Contraction, target: Target) -> bool:
    """Whether memory of the operands is accessed by four elements at a time."""
    loads = [*loads_of(c.along), *loads_of(c.across)]
    return target.native.quads and all(load.dtype.bits <= WORD for load in loads)


def _steps(inner: Var) -> Iterator[Opt]:
    """Some steps of the sum written out, whose operands are neighbours in memory."""
    if inner.stop is not None:
        return
    if inner.extent <= STEPS:
        yield Bind(inner.name, "unroll")
    elif inner.extent % STEPS == 0 or inner.extent >= 4 * STEPS:
        yield Split(inner.name, STEPS, "exact" if inner.extent % STEPS == 0 else "peel")
        yield Bind(f"{inner.name}i", "unroll")


def _choose(c: Contraction, target: Target) -> _Tiles | None:
    work = math.prod(var.extent for var in (*c.outer, c.v, *c.reduction))
    work *= c.u.extent if c.u else 1
    lanes = fitting(lanes_of(target, c.along.dtype.itemsize), c.v.extent)
    if lanes < 2 or c.v.extent < lanes or work < SMALL:
        return None
    apart = any(load.attr[1][0].coeff(c.v) != 1 for load in loads_of(c.along))
    if c.u is None:
        if apart or c.v.stop is not None:
            return None  # nothing is used twice: gathering would not pay
        return _Tiles(lanes, min(MOST_VECTORS, c.v.extent // lanes), 1)
    # What is accessed by fours is loaded so fast that tiles of half the size will do.
    registers = target.registers // 2 if _by_fours(c, target) else target.registers
    vectors = _vectors(c.v, registers, lanes)
    return _Tiles(lanes, vectors, _rows(c.u.extent, registers, vectors))


def _vectors(v: Var, registers: int, lanes: int) -> int:
    """Vectors of a tile along `v`: with many registers as many as make the tile a square.

    A number nearby that divides `v` is better still.
    """
    square = math.isqrt(registers // lanes)
    # Vectors are written out: where it is not known how many there are, a tile is full of them.
    most = -(-v.extent // lanes) if v.stop is None else v.extent // lanes
    if square <= TILE_VECTORS:
        return min(TILE_VECTORS, most)
    wanted = min(1 << (square.bit_length() - 1), most)
    near = range(wanted // 2 + 1, 2 * wanted)
    exact = [count for count in near if divides(count * lanes, v)]
    return min(exact, key=lambda count: abs(count - wanted), default=wanted)


def _rows(extent: int, registers: int, vectors: int) -> int:
    """Iterations of `u` in a tile: as many as registers allow, dividing the extent if possible."""
    most = min((registers - vectors - 1) // vectors, extent)
    for rows in range(most, max(most * 2 // 3, 1) - 1, -1):
        if extent % rows == 0:
            return rows
    return most


def _split_along(v: Var, tiles: _Tiles) -> tuple[list[Opt], _Levels]:
    """Splits `v` into tiles, vectors and lanes."""
    name, extent, counted_at_launch = v.name, v.extent, v.stop is not None
    splits: list[Opt] = []
    names: list[str | None] = []
    for size in (tiles.lanes * tiles.vectors, tiles.lanes):
        if size < extent or (size == extent and counted_at_launch):
            exact = divides(size, v) if name == v.name else extent % size == 0
            splits.append(Split(name, size, "exact" if exact else "mask"))
            names.append(f"{name}o")
            name, extent, counted_at_launch = f"{name}i", size, False
        else:
            names.append(None)
    tile_, vector = names
    return splits, _Levels(tile_, vector, name)


def _split_across(u: Var, counted: tuple[str, ...], levels: _Levels, rows: int) -> Iterator[Opt]:
    """Writes out `rows` of `u` inside the loops `counted`, around the vectors of a tile.

    Tiles are large, so that few rows left over would be much text: where it is known how many there
    are, rows that are none fill the last tile up, else they are done one by one.
    """
    name, known = u.name, u.stop is None
    if rows < u.extent:
        exact = divides(rows, u)
        yield Split(name, rows, "exact" if exact else "mask" if known else "peel")
        if not exact and not known:
            yield from levels.bind("t")
        name = f"{name}i"
    elif not known:
        yield from levels.bind()
        return
    if counted:
        yield Reorder((*counted, name, *levels.inside()))
    yield Bind(name, "unroll")
    yield from levels.bind()

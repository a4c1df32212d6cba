"""Tiles for contractions: sums of products in which each operand is used again along some loop.

Matrix products, batched or transposed, and convolutions have this shape. One output loop (`v`,
along which the output is contiguous) gives lanes, another one (`u`) that only the other operand
depends on is written out, so that a tile of the output stays in registers while the reduction
runs. The operand along `v` is packed into panels first where it is read often enough to pay for
it. Where `v` is the line of an image that vectors do not divide into tiles, a tile has vectors of
several lines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import Var, divides, expr, iterations
from gpu.compiler.ir.kernel.tree import loads_of
from gpu.compiler.opt.analysis.lanes import fitting, lanes_of
from gpu.compiler.opt.analysis.loop_nest import SumOfProducts, leaves, sum_of_products
from gpu.compiler.opt.opts import Bind, Opt, Reorder, Split, Stage
from gpu.compiler.targets import WORD, Target

# Vectors of a tile along `v` at least, and how many tiles share a packed panel.
TILE_VECTORS: Final = 2
PANEL_TILES: Final = 4
# Bytes of a packed panel: it should stay in a core's second-level cache.
PANEL_BYTES: Final = 1 << 18
# Bytes of an operand that is at hand without packing it.
NEAR_BYTES: Final = 1 << 15
# Steps of the sum that are written out where memory is read by fours.
STEPS: Final = 4
# Which part of a tile's rows a second tile has, for what is left over where that is not known.
SHORT: Final = 3
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
    found = sum_of_products(kernel)
    if found is None:
        return None
    stores = [leaf.update for leaf in leaves(kernel.body) if leaf.update.buf.space == "global"]
    for v in reversed(found.independent):
        known = symbolic or v.stop is None
        if known and all(s.indices[0].coeff(v) == 1 for s in stores):
            counted = [u for u in found.independent if symbolic or u.stop is None]
            return _with_lanes(v, counted, found)
    return None


def _with_lanes(v: Var, counted: Sequence[Var], found: SumOfProducts) -> Contraction | None:
    a, b = found.update.value.args
    if (v in a.vars) == (v in b.vars):
        return None
    along, across = (a, b) if v in a.vars else (b, a)
    unrollable = [u for u in counted if u in across.vars and u not in along.vars]
    u = max(unrollable, key=lambda var: var.extent, default=None)
    outer = tuple(var for var in found.independent if var not in (v, u))
    return Contraction(outer, v, u, found.reduction, along, across)


class _Tiles(NamedTuple):
    """Sizes of the tiles, and whether `along` is packed.

    The vectors of a tile are neighbours along `v`, or one each of so many of the loop `lines`.
    """

    lanes: int
    vectors: int
    group: int
    rows: int
    packed: bool
    lines: Var | None = None


class _Levels(NamedTuple):
    """The loops that `v` becomes; levels of one iteration do not exist."""

    panel: str | None
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


def tile(c: Contraction, target: Target) -> Iterator[Opt]:
    """Register tiles, packed panels and the loop order for a contraction."""
    tiles = _choose(c, target)
    if tiles is None:
        return
    splits, levels = _split_along(c.v, tiles)
    yield from splits
    if c.u is None:
        yield from levels.bind()
        return
    outer = tuple(f"{var.name}o" if var is tiles.lines else var.name for var in c.outer)
    panel = (levels.panel,) if levels.panel else ()
    counted = (levels.tile,) if levels.tile else ()
    # Too few panels for all workers: they share out the rows instead.
    rows_first = not outer and not tiles.packed and c.v.extent < target.workers * _width(tiles)
    if rows_first:
        counted, panel = (*panel, *counted), ()
    yield Reorder((*outer, *panel, c.u.name, *counted, *levels.inside()))
    if tiles.packed:
        holder = (*outer, *panel)[-1]
        (buf,) = {load.attr[0].name for load in loads_of(c.along)}
        depends = [r.name for r in c.reduction if r in c.along.vars]
        yield Stage(holder, buf, (*counted, *depends, *levels.inside()))
        masked = {var for load in loads_of(c.along) for var in load.attr[2].vars}
        outside = [r.name for r in c.reduction if r in masked]
        if outside and outside != depends:
            # So that masks are made once for all that they hold for.
            rest = [name for name in depends if name not in outside]
            yield Reorder(tuple(f"{n}s" for n in (*counted, *outside, *rest, *levels.inside())))
        yield from levels.bind("s")
    if _by_fours(c, target):
        yield from _steps(c.reduction[-1])
    # Where tiles are large, few rows left over beside the loop over the others are much text.
    rounded = target.native.scalar and c.u.stop is None
    yield from _split_across(c.u, counted, levels, tiles.rows, rounded)


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


def _width(tiles: _Tiles) -> int:
    return tiles.lanes * tiles.vectors * tiles.group


def lanes_along(c: Contraction, target: Target) -> int:
    """Lanes of a tile; there is none where `v` is shorter."""
    return fitting(lanes_of(target, c.along.dtype.itemsize), c.v.extent)


def _choose(c: Contraction, target: Target) -> _Tiles | None:
    work = math.prod(var.extent for var in (*c.outer, c.v, *c.reduction))
    work *= c.u.extent if c.u else 1
    lanes = lanes_along(c, target)
    if lanes < 2 or c.v.extent < lanes or work < SMALL:
        return None
    apart = any(load.attr[1][0].coeff(c.v) != 1 for load in loads_of(c.along))
    if c.u is None and (apart or c.v.stop is not None):
        return None  # nothing is used twice: packing would not pay, gathering neither
    vectors = min(PANEL_TILES, c.v.extent // lanes)
    if c.u is None:
        return _Tiles(lanes, vectors, 1, 1, packed=False)
    # What is accessed by fours is loaded so fast that tiles of half the size will do.
    registers = target.registers // 2 if _by_fours(c, target) else target.registers
    vectors = _vectors(c.v, registers, lanes)
    rows = _rows(c.u.extent, registers, vectors)
    # Packing takes memory near a worker; where blocks are one thread, theirs is as far as any.
    pays = target.parallel == "worker" and _worth_packing(c, rows, lanes)
    depth_bytes = math.prod(r.extent for r in c.reduction) * c.along.dtype.itemsize
    lines = _lines(c, lanes, vectors)
    if pays and lines and depth_bytes * c.v.extent * vectors <= PANEL_BYTES:
        return _Tiles(lanes, vectors, 1, rows, packed=True, lines=lines)
    panels = -(-c.v.extent // (lanes * vectors))
    holder = panels > 1 or c.outer  # a loop around the panel that is packed
    if not holder or not pays:
        return _Tiles(lanes, vectors, 1, rows, packed=False)
    fit = PANEL_BYTES // (depth_bytes * lanes * vectors)
    spread = panels if c.outer else panels // max(target.workers, 2)
    group = max(min(PANEL_TILES, spread, fit), 1)
    return _Tiles(lanes, vectors, group, rows, packed=True)


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


def _lines(c: Contraction, lanes: int, vectors: int) -> Var | None:
    """A loop whose iterations give the vectors of a tile where those along `v` leave a rest."""
    if c.v.stop is not None or c.v.extent % lanes or c.v.extent % (lanes * vectors) == 0:
        return None
    for var in reversed(c.outer):
        independent = var in c.along.vars and var not in c.across.vars
        if independent and var.stop is None and var.extent > vectors and var.extent % vectors == 0:
            return var
    return None


def _rows(extent: int, registers: int, vectors: int) -> int:
    """Iterations of `u` in a tile: as many as registers allow, dividing the extent if possible."""
    most = min((registers - vectors - 1) // vectors, extent)
    for rows in range(most, max(most * 2 // 3, 1) - 1, -1):
        if extent % rows == 0:
            return rows
    return most


def _worth_packing(c: Contraction, rows: int, lanes: int) -> bool:
    """Whether panels of `along` are read often enough, and badly enough as they lie."""
    assert c.u is not None
    loads = loads_of(c.along)
    if len({load.attr[0] for load in loads}) != 1:
        return False
    whole = c.v.extent % lanes == 0  # else the last vector is masked, packed it is not
    awkward = not whole or any(
        load.attr[1][0].coeff(c.v) != 1 or load.attr[2].constraints for load in loads
    )
    reused = c.u.extent // rows >= 4
    depth = math.prod(r.extent for r in c.reduction)
    far = depth * c.v.extent * c.along.dtype.itemsize > NEAR_BYTES
    return awkward or (reused and far)


def _split_along(v: Var, tiles: _Tiles) -> tuple[list[Opt], _Levels]:
    """Splits `v` into panels, tiles, vectors and lanes."""
    if tiles.lines is not None:
        lines, counted = tiles.lines.name, f"{v.name}o" if tiles.lanes < v.extent else None
        both: list[Opt] = [Split(lines, tiles.vectors)]
        both += [Split(v.name, tiles.lanes)] if counted else []
        return both, _Levels(None, counted, f"{lines}i", f"{v.name}i" if counted else v.name)
    name, extent, counted_at_launch = v.name, v.extent, v.stop is not None
    splits: list[Opt] = []
    names: list[str | None] = []
    for size in (_width(tiles), tiles.lanes * tiles.vectors, tiles.lanes):
        if size < extent or (size == extent and counted_at_launch):
            exact = divides(size, v) if name == v.name else extent % size == 0
            splits.append(Split(name, size, "exact" if exact else "mask"))
            names.append(f"{name}o")
            name, extent, counted_at_launch = f"{name}i", size, False
        else:
            names.append(None)
    panel, tile_, vector = names
    return splits, _Levels(panel, tile_, vector, name)


def _split_across(
    u: Var, counted: tuple[str, ...], levels: _Levels, rows: int, rounded: bool
) -> Iterator[Opt]:
    """Writes out `rows` of `u` inside the loops `counted`, around the vectors of a tile.

    What is left over is written out too. Where its number is not known it is done a few at a time,
    and what is left of that one by one. If `rounded`, rows that are none fill the last ones up.
    """
    left, name, suffix = iterations(u), u.name, ""
    written_out: list[tuple[str, str]] = []
    short = [] if u.stop is None or rows < 2 * SHORT else [rows // SHORT]
    for size in (rows, *short):
        if size < left.hi:
            left = left % size
            tail = "exact" if left is expr(0) else "mask" if rounded else "peel"
            left = expr(0) if rounded else left
            yield Split(name, size, tail)
            written_out.append((f"{name}i", suffix))
            name, suffix = f"{name}t", f"{suffix}t"
    if left.is_const and left is not expr(0):
        written_out.append((name, suffix))
    elif left is not expr(0):
        yield from levels.bind(suffix)
    for loop, copy in written_out:
        above = [f"{n}{copy}" for n in counted]
        if above:
            below = [f"{n}{copy}" for n in levels.inside()]
            yield Reorder((*above, loop, *below))
        yield Bind(loop, "unroll")
        yield from levels.bind(copy)

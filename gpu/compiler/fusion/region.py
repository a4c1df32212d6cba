"""The part of a node that must be computed while some outer loops stand still, and how often."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from gpu.compiler.fusion.views import Access, Indices
from gpu.compiler.ir.dims import Dim, is_many, is_symbolic, upper, upper_shape
from gpu.compiler.ir.graph import Shape
from gpu.compiler.ir.index import ALWAYS, Expr, Mask, Mod, Var, between, expr
from gpu.compiler.ir.index.rows import ZERO


class Region(NamedTuple):
    """A box of elements.

    Attributes:
        base: its first element, an expression over the outer loops.
        extents: its size along each axis.
    """

    base: Indices
    extents: Shape

    @property
    def size(self) -> int:
        """Number of elements, symbolic extents at their largest."""
        return math.prod(upper_shape(self.extents))


def needed_region(reads: Iterable[Indices], shape: Shape, outer: frozenset[Var]) -> Region:
    """The smallest known box of a node of `shape` that covers `reads`, `outer` standing still."""
    reads = list(reads)
    spans = [_span([r[axis] for r in reads], outer, size) for axis, size in enumerate(shape)]
    return Region(tuple(base for base, _ in spans), tuple(extent for _, extent in spans))


def own_element(region: Region, loops: Iterable[Var], shape: Shape) -> Access:
    """The element of a node of `shape` that loops over the wide axes of a region stand at.

    Its mask tells where there is one: a block of rows may reach beyond the last, and rows that are
    read under a mask may begin before the first.
    """
    remaining = iter(loops)
    own = tuple(
        base + next(remaining) if is_many(extent) else base
        for base, extent in zip(region.base, region.extents, strict=True)
    )
    mask = ALWAYS
    for index, size in zip(own, shape, strict=True):
        if not is_symbolic(size):
            mask = mask & between(index, 0, size - 1)
    return own, mask


def _span(reads: list[Expr], outer: frozenset[Var], size: Dim) -> tuple[Expr, Dim]:
    """First element and extent along one axis of `size` elements."""
    parts = [_split_terms(read, outer) for read in reads]
    start = parts[0][0]
    if any(fixed is not start for fixed, _ in parts):
        return ZERO, size
    lo = min(moving.lo for _, moving in parts)
    hi = max(moving.hi for _, moving in parts)
    if lo != hi and (is_symbolic(size) or (not start.is_const and any(map(_is_loose, reads)))):
        return ZERO, size  # bounds of what depends on a launch may reach outside the node
    if start.is_const:
        # Masked reads may lie outside the node: nothing is computed there.
        lo, hi = max(lo + start.const, 0), min(hi + start.const, upper(size) - 1)
        start = ZERO
    if hi - lo + 1 >= upper(size):
        return ZERO, size
    return start + lo, hi - lo + 1


def _is_loose(read: Expr) -> bool:
    """Whether the bounds of an index are those of no launch: they are for several at once."""
    return any(var.bound is not None or var.stop is not None for var in read.vars)


def _split_terms(e: Expr, outer: frozenset[Var]) -> tuple[Expr, Expr]:
    """`e` as a part fixed by `outer` and a part that moves with the loops inside."""
    fixed = ZERO
    for var in e.vars & outer:
        fixed = fixed + expr(var) * e.coeff(var)
    moving = e - fixed
    if moving.vars & outer:
        # A division mixes both: fixed only if nothing but the outer loops is in it.
        return (e, ZERO) if e.vars <= outer else (ZERO, e)
    return fixed, moving


def iterations_under(mask: Mask) -> dict[Var, int]:
    """How many iterations of a loop a mask lets through, at most, whatever those of others are.

    It does where it keeps a sum of loops within bounds, or asks for multiples: of what windows
    overlap in, or step over, each place is in few of them.
    """
    plain = [c for c in mask.constraints if c.is_affine]
    lows = {constraint - constraint.const: -constraint.const for constraint in plain}
    asked = {
        a.num - a.num.const: a.den
        for c in mask.constraints
        for a, _ in c.terms
        if isinstance(a, Mod) and len(c.terms) == 1 and c.const == 0 and c.hi == 0
    }
    found: dict[Var, int] = {}
    for place, low in lows.items():
        if len(place.terms) < 2 or -place not in lows or place.vars & found.keys():
            continue
        factor = asked.get(place, asked.get(-place, 1))
        units = [var for var in place.vars if abs(place.coeff(var)) == 1]
        if units:
            longest = max(units, key=lambda var: (var.extent, var.name))
            found[longest] = min(longest.extent, (-lows[-place] - low) // factor + 1)
    return found


def loops_of(indices: Indices) -> frozenset[Var]:
    """The loops that indices depend on."""
    return frozenset(var for index in indices for var in index.vars if var.bound is None)

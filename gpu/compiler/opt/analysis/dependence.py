"""Whether the iterations of a loop may run in any order, or at once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import Expr, Mask, Var, expr
from gpu.compiler.ir.index.rows import flatten
from gpu.compiler.ir.kernel.tree import accesses, loads_of, walk, writes

Place = tuple[Expr, Mask]

# Differences of two indices that are looked at one by one.
FEW_MEETINGS: Final = 8


def is_independent(loop: K.Loop) -> bool:
    """Whether every iteration of `loop` writes elements that no other one touches.

    For each buffer from outside that the body writes there must be an axis along which all its
    accesses keep iterations apart, or else one Update whose places are distinct is the only one.
    """
    if loop.var.extent == 1:
        return True
    own = {s.buf for s in walk(loop.body) if isinstance(s, K.Alloc)}
    updates = [s for s in walk(loop.body) if isinstance(s, K.Update)]
    inside = frozenset(vars_inside(loop)) - {loop.var}
    for buf in {buf for buf, _, _ in writes(loop.body)} - own:
        places = [(indices, mask) for b, indices, mask in accesses(loop.body) if b is buf]
        if len(places) == 1 and any(s.distinct for s in updates if s.buf is buf):
            continue
        axes = range(len(buf.shape))
        if not any(separates([(i[a], m) for i, m in places], loop.var, inside) for a in axes):
            return False
    return True


def is_repeatable(loop: K.Loop) -> bool:
    """Whether the last iterations of `loop` may run again after all have run, and change nothing.

    They only store, at places that no data decides, and read nothing of what is stored. Neither may
    they read another buffer just where they store: both may be in one memory (`Plan.reuses`).
    """
    statements = [s for s in walk(loop.body) if not isinstance(s, K.Block | K.Loop | K.If)]
    updates = [s for s in statements if isinstance(s, K.Update) and not s.lets]
    written = {s.buf for s in updates}
    return len(updates) == len(statements) and not any(
        update.monoid is not None
        or update.value.bufs & written
        or any(_may_be_where(load, update) for load in loads_of(update.value))
        for update in updates
    )


def _may_be_where(load: K.Value, update: K.Update) -> bool:
    """Whether `load` may read, in each iteration, the element with the number of the one stored."""
    buf, indices, _ = load.attr
    apart = flatten(indices, buf.shape) - flatten(update.indices, update.buf.shape)
    return not apart.is_affine or apart.lo == apart.hi == 0


def vars_inside(loop: K.Loop) -> Iterator[Var]:
    """Variables whose value may change while the loop stands still: of loops and of lets."""
    for stmt in walk(loop):
        if isinstance(stmt, K.Loop):
            yield stmt.var
        elif isinstance(stmt, K.Update):
            yield from (let.var for let in stmt.lets)


class _Parts(NamedTuple):
    """An index as `fixed + large + step * var + small`, over the loops inside and `var`."""

    fixed: Expr
    large: Expr
    small: Expr


def separates(places: Iterable[Place], var: Var, inside: frozenset[Var]) -> bool:
    """Whether two values of `var` never give these indices a common value.

    This is so where all indices lie close together, or where no two of them can meet.
    """
    distinct = list(dict.fromkeys(places))
    steps = {e.coeff(var) for e, _ in distinct}
    if len(steps) != 1 or steps == {0}:
        return False
    (step,) = steps
    parts = [_split(e - expr(var) * step, step, inside) for e, _ in distinct]
    if len({p.fixed for p in parts}) != 1 or parts[0].fixed.vars & (inside | {var}):
        return False
    g = math.gcd(*(abs(factor) for p in parts for _, factor in p.large.terms))
    masks = [mask for _, mask in distinct]
    return _lie_close(parts, masks, expr(var) * step, step, g) or not _meet(
        parts, masks, var.extent, step, g
    )


def _lie_close(
    parts: Sequence[_Parts], masks: Sequence[Mask], moving: Expr, step: int, g: int
) -> bool:
    """Whether indices span too little to meet for two values of the variable that is `moving`.

    Let every large part be a multiple of g. Two indices that are equal have then equal values of
    `step * var + small` modulo g; if those span less than g they are equal, and if the small parts
    span less than `step` so are the values of `var`.
    """
    small = [_modulo(p.small, g) if g else p.small for p in parts]
    still = [_bounds(s, mask) for s, mask in zip(small, masks, strict=True)]
    whole = [_bounds(s + moving, mask) for s, mask in zip(small, masks, strict=True)]
    first = min(max(lo, low + moving.lo) for (lo, _), (low, _) in zip(whole, still, strict=True))
    last = max(min(hi, high + moving.hi) for (_, hi), (_, high) in zip(whole, still, strict=True))
    moved = max(high for _, high in still) - min(low for low, _ in still)
    window = last - first
    return moved < abs(step) and (not g or window < g)


def _meet(parts: Sequence[_Parts], masks: Sequence[Mask], extent: int, step: int, g: int) -> bool:
    """Whether some of these indices may be equal for two values of a variable, or too many may.

    Their small parts then differ by `step * t + g * m`, t being the difference of the values.
    """
    common = math.gcd(step, g)
    spans = {_bounds(p.small, mask) for p, mask in zip(parts, masks, strict=True)}
    period = g // common
    for (low, high), (other_low, other_high) in itertools.product(spans, repeat=2):
        first, last = -(-(low - other_high) // common), (high - other_low) // common
        if last - first >= FEW_MEETINGS:
            return True
        for multiple in range(first, last + 1):
            if not g:
                nearest = abs(multiple) if multiple else extent
            else:
                t = multiple * pow(step // common, -1, period) % period
                nearest = min(t or period, period - t)
            if nearest < extent:
                return True
    return False


def _split(e: Expr, step: int, inside: frozenset[Var]) -> _Parts:
    large, small = expr(0), expr(e.const)
    for var in e.vars & inside:
        term = expr(var) * e.coeff(var)
        if abs(e.coeff(var)) < abs(step):
            small = small + term
        else:
            large = large + term
    return _Parts(e - large - small, large, small)


def _modulo(e: Expr, g: int) -> Expr:
    """What equals `e` modulo `g`, shifted so that it begins below `g` if it was not around 0."""
    return e if e.lo < g and e.hi >= 0 else e - e.lo // g * g


def _bounds(e: Expr, mask: Mask) -> tuple[int, int]:
    """Bounds of `e` where `mask` holds: c >= 0 gives k e - m c <= k e <= k e + m c, k, m > 0."""
    lo, hi = e.lo, e.hi
    for c in mask.constraints:
        for k, m in {(1, 1), *_ratios(c, e)}:
            lo = max(lo, -((c * m - e * k).hi // k))
            hi = min(hi, (e * k + c * m).hi // k)
    return lo, hi


def _ratios(c: Expr, e: Expr) -> Iterator[tuple[int, int]]:
    """How many times each of two must be taken for terms to be equal, by the variables of both."""
    for var in e.vars & c.vars:
        own, other = abs(e.coeff(var)), abs(c.coeff(var))
        if own and other:
            common = math.gcd(own, other)
            yield other // common, own // common

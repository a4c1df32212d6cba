"""Sums of floats in a bounded number of steps, so that rounding stays small however long they are.

Adding n floats one after another rounds n times, each time by up to half an ulp of what has been
added so far. A loop that adds more than `LONGEST` to one accumulator is cut: some iterations are
added to a partial sum that begins at zero, and partial sums are added to the accumulator, in levels
where there are many of them. Loops keep their order and what they hold, so the policies need not
know of it: it is the last thing that is done to a kernel, and costs two operations for each
`LONGEST` additions. Integers wrap and rounding is nothing to them; maxima do not round.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import Expr, Var, divides, iterations
from gpu.compiler.ir.kernel.tree import (
    Substitution,
    allocated,
    around,
    as_block,
    find_loop,
    loops_around,
    reads,
    replace_loop,
    rewrite,
    writes,
)
from gpu.compiler.ir.optable import DOTS
from gpu.compiler.opt.analysis.loop_nest import Leaf, leaves
from gpu.compiler.opt.primitives.loops import split
from gpu.core.errors import IllegalOpt

# Additions to one accumulator, one after another. Sums of products have many accumulators in
# registers, and levels for those take time: with 64 a 3x3 convolution of 64 channels took 1.17
# times as long, a product of 256 x 256 1.4 times. Their terms, of two factors, vary more.
LONGEST: Final = 32
PRODUCTS: Final = 1024
# That over how many partial sums are added up, where there are so many that they take levels.
LEVEL: Final = 4


class Level(NamedTuple):
    """A loop whose sums become partial sums of `factor` iterations."""

    axis: str
    factor: int


class _Adding(NamedTuple):
    """What a statement does to accumulators that exist outside of it.

    Attributes:
        updates: those that add floats, and how often each adds to one element.
        begun: buffers that are set to a value inside.
    """

    updates: list[tuple[K.Update, int]]
    begun: set[K.Buf]

    def counts(self) -> dict[K.Buf, int]:
        """How often one element of each accumulator is added to."""
        counts: dict[K.Buf, int] = {}
        for update, count in self.updates:
            counts[update.buf] = counts.get(update.buf, 0) + count
        return counts


# By the identity of statements, which are compared as deep as they are.
_Known = dict[int, _Adding]


def long_sums(body: K.Block) -> list[Level]:
    """The levels for the first innermost loop that adds too much to one accumulator, or none."""
    known: _Known = {}
    _look_through(body, known)
    return next(_long_sums(body, (), set(), known), [])


def _long_sums(
    stmt: K.Stmt, outside: tuple[K.Loop, ...], others: set[K.Buf], known: _Known
) -> Iterator[list[Level]]:
    """See `long_sums`; to `others` more is added beside this statement, in the loops `outside`."""
    if isinstance(stmt, K.Block):
        for child, beside in zip(stmt.body, _added_beside(stmt, known), strict=True):
            yield from _long_sums(child, outside, beside, known)
    elif isinstance(stmt, K.If):
        yield from _long_sums(stmt.body, outside, others, known)
    elif isinstance(stmt, K.Loop):
        yield from _long_sums(stmt.body, (*outside, stmt), set(), known)
        most = _longest(stmt, known)
        alone = most if stmt.var.extent > 1 else math.inf
        shared = 2 * most // LEVEL - 1
        counts = known[id(stmt)].counts()
        long = {b for b, count in counts.items() if count > (shared if b in others else alone)}
        if long and not _accumulators(stmt, outside).keys().isdisjoint(long):
            inside = known[id(stmt.body)].counts()
            additions = max(inside[buf] for buf in long)
            yield list(_levels(stmt.var, max(most // additions, 1), most // LEVEL))


def _longest(loop: K.Loop, known: _Known) -> int:
    """The most that a loop may add to one accumulator."""
    added = [update.value for update, _ in known[id(loop)].updates]
    names = {value.attr[0] if value.kind == "alu" else "" for value in added}
    if not names <= {"mul", *DOTS}:
        return LONGEST
    return PRODUCTS // max((DOTS[name].together for name in names & DOTS.keys()), default=1)


def _added_beside(block: K.Block, known: _Known) -> list[set[K.Buf]]:
    """For each statement of a block, to what the others add that begins where its sums begin."""
    begin: dict[K.Buf, int] = {}  # where what a buffer holds now began
    adding: dict[tuple[K.Buf, int], list[int]] = {}
    for place, child in enumerate(block.body):
        inside = known[id(child)]
        begin |= dict.fromkeys(inside.begun, place)
        for buf in {update.buf for update, _ in inside.updates}:
            adding.setdefault((buf, begin.get(buf, -1)), []).append(place)
    beside: list[set[K.Buf]] = [set() for _ in block.body]
    for (buf, _), places in adding.items():
        for place in places if len(places) > 1 else ():
            beside[place].add(buf)
    return beside


def _look_through(stmt: K.Stmt, known: _Known) -> _Adding:
    """Files what a statement, and all inside it, adds."""
    found = _Adding([], set())
    if isinstance(stmt, K.Update):
        if stmt.monoid is None:
            found = _Adding([], {stmt.buf})
        elif stmt.monoid == "add" and stmt.buf.dtype.is_float:
            found = _Adding([(stmt, 1)], set())
    elif isinstance(stmt, K.If):
        found = _look_through(stmt.body, known)
    elif isinstance(stmt, K.Block):
        inside = [_look_through(child, known) for child in stmt.body]
        own = {child.buf for child in stmt.body if isinstance(child, K.Alloc)}
        updates = [u for part in inside for u in part.updates if u[0].buf not in own]
        found = _Adding(updates, set[K.Buf]().union(*(part.begun for part in inside)) - own)
    elif isinstance(stmt, K.Loop):
        found = _repeated(stmt, _look_through(stmt.body, known))
    known[id(stmt)] = found
    return found


def _repeated(loop: K.Loop, inside: _Adding) -> _Adding:
    """What a loop adds whose body adds `inside`: lanes are folded, all else one after another."""
    if loop.kind not in ("serial", "unroll"):
        return inside
    updates = []
    for update, count in inside.updates:
        again = loop.var not in _chosen_by(update) and update.buf not in inside.begun
        updates.append((update, count * loop.var.extent if again else count))
    return _Adding(updates, inside.begun)


def _levels(var: Var, most: int, level: int) -> Iterator[Level]:
    """Levels for a loop: the innermost of at most `most` iterations, then of `level`.

    The last one has less than twice as many, so that no loop is cut for a few iterations.
    """
    name, extent = var.name, var.extent
    while True:
        factor = min(_factor(var, extent, most), extent)
        yield Level(name, factor)
        name, extent, most = f"{name}o", extent // factor, level
        if extent < 2 * most:
            return


def _factor(var: Var, extent: int, most: int) -> int:
    """Iterations of a level: a number that leaves no rest if there is one of some size."""
    if var.stop is not None:
        return most
    exact = (n for n in range(most, most // 2, -1) if extent % n == 0)
    return next(exact, most)


def _chosen_by(update: K.Update) -> frozenset[Var]:
    """The variables that say to which element is added."""
    return frozenset().union(*(index.vars for index in update.indices))


def _accumulators(loop: K.Loop, outside: Sequence[K.Loop]) -> dict[K.Buf, list[Leaf]]:
    """The buffers to which a loop adds floats, always to the same elements, and no more than that.

    Those are left out that iterations of the loops `outside` share which run at once, or are
    written out: what begins at zero for one of them would do so for all. With each are the Updates
    that add, and the loops inside which count elements. A scan reads them as well, where it adds.
    """
    if loop.kind != "serial":
        return {}
    own = set(allocated(loop))
    read: dict[K.Buf, set[tuple[Expr, ...]]] = {}
    for buf, indices, _ in reads(loop.body):
        read.setdefault(buf, set()).add(indices)
    found: dict[K.Buf, list[Leaf]] = {}
    for leaf in leaves(loop.body):
        chosen_by = _chosen_by(leaf.update)
        counting = tuple(inner for inner in leaf.loops if inner.var in chosen_by)
        found.setdefault(leaf.update.buf, []).append(Leaf(leaf.update, counting))
    others = [buf for buf, _, _ in writes(loop.body)]
    return {
        buf: sums
        for buf, sums in found.items()
        if buf.space in ("private", "team")
        and buf.dtype.is_float
        and buf not in own
        and read.get(buf, set()) <= {leaf.update.indices for leaf in sums}
        and others.count(buf) == len(sums)
        and all(_adds(leaf.update, loop.var) for leaf in sums)
        and len({_elements(leaf) for leaf in sums}) == 1
        and not any(_share(around, leaf.update) for around in outside for leaf in sums)
    }


def _share(loop: K.Loop, update: K.Update) -> bool:
    """Whether iterations of a loop, run at once, combine into one element."""
    together = loop.kind != "serial" and loop.var not in _chosen_by(update)
    return together and update.buf not in allocated(loop)


def _elements(leaf: Leaf) -> tuple[object, ...]:
    """To which elements it adds, whatever else is in the loops that count them."""
    return leaf.update.indices, tuple((loop.var, loop.kind) for loop in leaf.loops)


def _adds(update: K.Update, var: Var) -> bool:
    """Whether it adds to an element that neither `var` nor data chooses."""
    others = {var, *(let.var for let in update.lets)}
    return update.monoid == "add" and _chosen_by(update).isdisjoint(others)


def partial_sums(body: K.Block, axis: str, factor: int) -> K.Stmt:
    """See `gpu.compiler.opt.opts.PartialSums`. Raises IllegalOpt."""
    loop = find_loop(body, axis)
    sums = _accumulators(loop, loops_around(body, loop))
    if not sums:
        raise IllegalOpt("the loop only adds floats to no accumulator")
    if not 1 <= factor <= loop.var.extent:
        raise IllegalOpt(f"the factor must be between 1 and {iterations(loop.var)}")
    partial = {b: K.Buf(f"{b.name}{axis}s", b.dtype, b.shape, b.space) for b in sums}
    begins, ends = [], []
    for buf, (leaf, *_) in sums.items():
        own, indices = partial[buf], leaf.update.indices
        zero = K.Update(own, indices, None, K.const(own.dtype, 0.0))
        begins.append(around(leaf.loops, zero))
        whole = K.Update(buf, indices, "add", K.load(own, indices))
        ends.append(around(leaf.loops, whole))

    def summed(part: K.Stmt) -> K.Block:
        read = [K.load(*access) for access in reads(part) if access[0] in sums]
        # What is read in the loop, with the partial sum so far: a rest has loops of its own inside.
        both = {v: K.alu("add", v, K.load(partial[v.attr[0]], *v.attr[1:])) for v in read}
        return K.Block((*begins, Substitution({}, partial, both).stmt(part), *ends))

    if factor == loop.var.extent:
        cut: K.Stmt = summed(loop)
    else:
        cut = split(
            K.Block((loop,)), axis, factor, "exact" if divides(factor, loop.var) else "peel"
        )
        outer, *rest = as_block(cut).body
        assert isinstance(outer, K.Loop)
        main = K.Loop(outer.var, outer.kind, summed(*outer.body.body))
        cut = K.Block((main, *(s for left in rest for s in summed(left).body)))

    def declared(stmt: K.Stmt) -> K.Stmt | None:
        if not isinstance(stmt, K.Block):
            return None
        known = [s.buf for s in stmt.body if isinstance(s, K.Alloc) and s.buf in partial]
        return K.Block((*(K.Alloc(partial[buf]) for buf in known), *stmt.body)) if known else None

    return rewrite(replace_loop(body, loop, cut), declared)

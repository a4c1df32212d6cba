"""The transformations of single loops and nests: split, fused, reordered, bound to a kind."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import Var, expr, iterations, loop_var
from gpu.compiler.ir.index.rows import flatten
from gpu.compiler.ir.kernel.tree import (
    Substitution,
    allocated,
    as_block,
    expressions,
    find_loop,
    fresh_copy,
    replace_loop,
    values_of,
    walk,
)
from gpu.compiler.opt.analysis.dependence import is_independent, is_repeatable, separates
from gpu.compiler.opt.analysis.loop_nest import at_iteration
from gpu.compiler.opt.primitives.predication import ROUNDED, guarded, room_for
from gpu.core.errors import IllegalOpt

PARALLEL: Final = ("grid", "worker", "thread")
# Iterations of a shifted tail: fewer take as long, as a strip of a transposition 4 to 16 wide does.
FEWEST_AGAIN: Final = 16
# Iterations of a vector that a loop which is padded may be shorter than.
SHORTEST: Final = 64


def split(body: K.Block, axis: str, factor: int, tail: str) -> K.Stmt:
    """See `gpu.compiler.opt.opts.Split`. Raises IllegalOpt."""
    loop = find_loop(body, axis)
    extent = iterations(loop.var)
    whole, rest = extent // factor, extent % factor
    most = max(extent.hi, SHORTEST if tail in ("pad", "mask", "zero") else 0)
    if loop.var.lo != 0 or not 1 <= factor <= most:
        raise IllegalOpt(f"the factor must be between 1 and {most}, of {extent} iterations")
    has_rest = rest is not expr(0)
    masked = has_rest and tail in ("mask", "pad")
    if has_rest and tail == "exact":
        raise IllegalOpt(f"{extent} is not a multiple of {factor}")
    if masked and loop.kind not in PARALLEL and not is_independent(loop):
        raise IllegalOpt("only independent iterations can be masked")
    if has_rest and tail == "shift" and not is_repeatable(loop):
        raise IllegalOpt("iterations that run twice would change what they wrote")
    if has_rest and tail in ("shift", "pad") and loop.var.stop is not None:
        raise IllegalOpt("the extent is known at launch only")
    rounded_up = has_rest and tail in (*ROUNDED, "pad")
    outer = loop_var(f"{axis}o", (extent + factor - 1) // factor if rounded_up else whole)
    inner = Var(f"{axis}i", 0, factor - 1)
    body_of_loop, most = loop, factor * outer.extent
    if rounded_up and tail == "pad":
        room = room_for(loop, most)
        body_of_loop, body = guarded(loop, most, room), Substitution({}, room).block(body)
    elif rounded_up:
        body_of_loop = ROUNDED[tail](loop, most)
    main = Substitution({body_of_loop.var: outer * factor + inner}).block(body_of_loop.body)
    nest = K.Loop(outer, loop.kind, K.Block((K.Loop(inner, loop.kind, main),)))
    if not has_rest or rounded_up:
        return replace_loop(body, loop, nest)
    if tail == "shift":
        rest = expr(shifted(loop.var.extent, factor))
    tail_var = loop_var(f"{axis}t", rest)
    tail_body = as_block(fresh_copy(loop.body, _suffix(body, loop)))
    last = Substitution({loop.var: tail_var + (extent - rest)}).block(tail_body)
    return replace_loop(body, loop, K.Block((nest, K.Loop(tail_var, loop.kind, last))))


def _suffix(body: K.Block, loop: K.Loop) -> str:
    """What makes new names of those of the buffers inside a loop."""
    suffix, taken, own = "t", {buf.name for buf in allocated(body)}, allocated(loop)
    while any(buf.name + suffix in taken for buf in own):
        suffix += "t"
    return suffix


def shifted(extent: int, factor: int) -> int:
    """How many iterations end a loop of `extent` that is split by `factor` with a shifted tail."""
    rest = extent % factor
    return min(max(1 << (rest - 1).bit_length(), FEWEST_AGAIN), factor) if rest else 0


def nested(outer: K.Loop) -> K.Loop | None:
    """The loop that is all that `outer` holds, is as often in all launches, and of one kind."""
    if len(outer.body.body) != 1 or not isinstance(outer.body.body[0], K.Loop):
        return None
    inner = outer.body.body[0]
    if outer.kind != inner.kind or inner.var.lo or outer.var.lo or inner.var.stop is not None:
        return None
    return inner


def fusable(outer: K.Loop) -> K.Loop | None:
    """The loop with which `outer` can become one walk through memory, or None.

    They can where every index uses the two only as `outer * extent + inner`, and where one of them
    has a single iteration.
    """
    inner = nested(outer)
    if inner is None:
        return None
    extent = inner.var.extent
    if 1 in (outer.var.extent, extent):
        return inner
    both = {outer.var, inner.var}
    for e in expressions(inner.body):
        if not e.vars & both:
            continue
        rest = e - expr(outer.var) * e.coeff(outer.var) - expr(inner.var) * e.coeff(inner.var)
        if rest.vars & both or e.coeff(outer.var) != extent * e.coeff(inner.var):
            return None
    return inner


def fuse(body: K.Block, outer: str, inner: str) -> K.Stmt:
    """See `gpu.compiler.opt.opts.Fuse`. Raises IllegalOpt."""
    around = find_loop(body, outer)
    within = nested(around)
    if within is None or within.var.name != inner:
        raise IllegalOpt("the loops are not directly nested, or not alike")
    fused = loop_var(outer, iterations(around.var) * within.var.extent)
    env = at_iteration((around.var, within.var), expr(fused), list(expressions(within.body)))
    loop = K.Loop(fused, around.kind, Substitution(env).block(within.body))
    apart = loop.kind != "vector" or (is_independent(around) and is_independent(within))
    if not apart and not _folds(loop):
        raise IllegalOpt(f"lanes of {outer} and {inner} together meet in elements")
    return replace_loop(body, around, loop)


def reorder(body: K.Block, axes: Sequence[str]) -> K.Stmt:
    """See `gpu.compiler.opt.opts.Reorder`. Raises IllegalOpt."""
    nest = [find_loop(body, name) for name in axes]
    by_depth = sorted(nest, key=lambda loop: -sum(1 for _ in walk(loop)))
    for outer, inner in itertools.pairwise(by_depth):
        if outer.body.body != (inner,):
            raise IllegalOpt(f"{inner.var.name} is not directly inside {outer.var.name}")
    if nest != by_depth and counts_threads(by_depth[0]):
        raise IllegalOpt("inside threads meet, or exchange values by their numbers")
    for loop in by_depth:
        if loop.kind == "serial" and not is_independent(loop) and not _one_reduction(by_depth[-1]):
            raise IllegalOpt(f"iterations of {loop.var.name} depend on each other")
    inner_body = by_depth[-1].body
    for loop in reversed(nest):
        inner_body = K.Block((K.Loop(loop.var, loop.kind, inner_body),))
    return replace_loop(body, by_depth[0], inner_body.body[0])


def _one_reduction(innermost: K.Loop) -> bool:
    """Whether all the loops do is combine into one buffer: a monoid takes any order."""
    body = innermost.body.body
    return len(body) == 1 and isinstance(body[0], K.Update) and body[0].monoid is not None


def bind(body: K.Block, axis: str, kind: str) -> K.Stmt:
    """See `gpu.compiler.opt.opts.Bind`. Raises IllegalOpt."""
    loop = find_loop(body, axis)
    if kind not in K.LOOP_KINDS:
        raise IllegalOpt(f"loop kinds are {K.LOOP_KINDS}")
    if kind in ("vector", "unroll") and loop.var.stop is not None:
        raise IllegalOpt(f"how often it runs, {loop.var.stop}, is known at launch only")
    if "thread" in (kind, loop.kind) and kind != loop.kind and counts_threads(loop):
        raise IllegalOpt("inside threads meet, or exchange values by their numbers")
    if kind in ("vector", "unroll") and counts_threads(loop):
        raise IllegalOpt("what threads do together has no lanes, and is not written out")
    parallel = kind in PARALLEL
    lanes = kind in ("vector", "unroll") and not _folds(loop._replace(kind=kind))
    # What Split and Reorder make of an independent loop stays independent.
    if (parallel or lanes) and loop.kind not in PARALLEL and not is_independent(loop):
        raise IllegalOpt(f"iterations of {axis} write the same elements")
    return replace_loop(body, loop, K.Loop(loop.var, kind, loop.body))


def counts_threads(stmt: K.Stmt) -> bool:
    """Whether what is inside depends on which threads there are: barriers, exchanges, matrices."""
    seen: set[K.Value] = set()
    return any(
        isinstance(s, K.Barrier | K.MatrixStmt)
        or (
            isinstance(s, K.Update)
            and any(value.kind == "shuffle_xor" for value in values_of(s, seen))
        )
        for s in walk(stmt)
    )


def _folds(loop: K.Loop) -> bool:
    """Whether what the iterations share is only combined by a monoid, so that lanes can fold."""
    own = {s.buf for s in walk(loop.body) if isinstance(s, K.Alloc)}
    shared = [s for s in walk(loop.body) if isinstance(s, K.Update) and s.buf not in own]
    reads = {b for s in shared for b in s.value.bufs}
    return all(
        s.monoid is not None
        and s.buf not in reads
        and not _picks(s)
        and (loop.kind != "vector" or not _some_meet(s, loop.var))
        for s in shared
    )


def _some_meet(update: K.Update, lane: Var) -> bool:
    """Whether lanes that are at this update together may meet in an element, but not all do."""
    if not any(lane in index.vars for index in update.indices):
        return False
    indices = (*update.indices, flatten(update.indices, update.buf.shape))
    return not any(separates([(index, update.mask)], lane, frozenset()) for index in indices)


def _picks(update: K.Update) -> bool:
    """Whether data says which element is updated, so that lanes may meet in one."""
    return any(let.var in index.vars for let in update.lets for index in update.indices)

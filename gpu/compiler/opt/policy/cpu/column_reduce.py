"""Reductions along columns: rows are walked through as they lie, and each column's result waits.

Where a reduction steps from row to row of something large, lanes over a few columns would touch a
piece of every row and come back for the next one when it has left the cache. So whole stretches of
rows are combined into results that are kept in memory near by, one for each column.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import Var
from gpu.compiler.ir.kernel.tree import allocated, values_of
from gpu.compiler.opt.analysis.lanes import lanes_of, widest
from gpu.compiler.opt.analysis.loop_nest import Leaf, leaves, outer_nest
from gpu.compiler.opt.opts import Bind, Distribute, Opt, Split
from gpu.compiler.targets import Target

# Bytes of an operand of which a core's caches, and its share of one that cores have in common, keep
# little: below, pieces of rows were 2 to 4 times as fast, and at 16 MB a quarter as fast.
FAR_BYTES: Final = 1 << 23
# Bytes of the results that wait: they should leave most of the first-level cache to the rows.
WAITING_BYTES: Final = 1 << 13
# Vectors that are written out, at most.
VECTORS: Final = 8


class Columns(NamedTuple):
    """A reduction along columns: the loop over them, how many wait at once, and lanes."""

    var: Var
    waiting: int
    lanes: int


def match(kernel: K.Kernel, target: Target) -> Columns | None:
    """The columns of a kernel that only reduces along them, or None."""
    nest = outer_nest(kernel.body)
    if target.parallel != "worker" or not nest or nest[-1].var.stop is not None:
        return None
    var, around = nest[-1].var, frozenset(loop.var for loop in nest)
    inside = list(leaves(nest[-1].body))
    if any(buf.shape or buf.space != "private" for buf in allocated(nest[-1])):
        return None
    if not any(_is_far(leaf, var, around) for leaf in inside):
        return None
    nbytes = widest(leaf.update for leaf in inside)
    lanes = lanes_of(target, nbytes)
    panels = -(-target.workers // math.prod(v.extent for v in around - {var}))
    most = min(WAITING_BYTES // nbytes, var.extent // panels) // lanes
    if lanes == 1 or most < VECTORS:
        return None
    # A number of vectors that leaves no rest, or else one that is easily written out.
    exact = [n for n in range(most, most // 4, -1) if var.extent % (n * lanes) == 0]
    return Columns(var, lanes * (exact[0] if exact else most // VECTORS * VECTORS), lanes)


def _is_far(leaf: Leaf, var: Var, around: frozenset[Var]) -> bool:
    """Whether an Update reduces something large once, whose rows lie along `var`."""
    if leaf.update.monoid is None or not leaf.loops:
        return False
    inner = leaf.loops[-1].var
    for value in values_of(leaf.update, set()):
        if value.kind != "load" or not around | {inner} <= value.vars:
            continue
        index = value.attr[1][-1]
        nbytes = math.prod(v.extent for v in value.vars) * value.dtype.itemsize
        if index.coeff(var) == 1 and abs(index.coeff(inner)) > 1 and nbytes >= FAR_BYTES:
            return True
    return False


def tile(columns: Columns) -> Iterator[Opt]:
    """The transformations that make rows the innermost walk."""
    name, count = columns.var.name, columns.waiting
    if count < columns.var.extent:
        yield Split(name, count, "mask" if columns.var.extent % count else "exact")
        name = f"{name}i"
    inner = []
    vectors = count // columns.lanes
    written_out = max(n for n in range(1, VECTORS + 1) if vectors % n == 0)
    for size in (columns.lanes * written_out, columns.lanes):
        if size < count:
            yield Split(name, size)
            inner.append(f"{name}o")
            name, count = f"{name}i", size
    yield from (Bind(loop, "unroll") for loop in inner[-1:])
    yield Bind(name, "vector")
    yield Distribute((*inner, name))

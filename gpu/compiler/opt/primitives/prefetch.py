"""`Prefetch`: what the next iteration of a loop stages comes near while this one is used.

A processor that reads a row guesses where it goes on, but of the rows of the next tile, which lie
pages away, it knows nothing: it waits for memory when it copies a tile, and leaves memory idle
while it uses one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import Expr, Var, expr
from gpu.compiler.ir.kernel.nontemporal import LINE_BYTES
from gpu.compiler.ir.kernel.tree import find_loop, loads_of, replace_loop
from gpu.compiler.opt.analysis.loop_nest import Leaf, iteration, last_index, leaves
from gpu.core.errors import IllegalOpt

# Hints that an iteration gives at most: it has other work to do.
MOST: Final = 8


def prefetch(body: K.Block, axis: str, buf: str, loop: str) -> K.Stmt:
    """See `gpu.compiler.opt.opts.Prefetch`. Raises IllegalOpt."""
    outer = find_loop(body, axis)
    user = find_loop(outer.body, loop)
    inside = list(leaves(outer.body))
    copies = [leaf for leaf in inside if leaf.update.buf.name == f"{buf}s"]
    users = [leaf for leaf in inside if user in leaf.loops]
    if len(copies) != 1 or not users or users[0] in copies:
        raise IllegalOpt(f"in {axis} nothing is staged that {loop} uses")
    if not _is_copy(copies[0]):
        raise IllegalOpt(f"in {axis} no parameter is copied to what {loop} uses")
    counted = users[0].loops[: users[0].loops.index(user) + 1]
    if any(around.kind != "serial" or around.var.stop is not None for around in counted):
        raise IllegalOpt(f"{loop} is not in serial loops of known extents")
    hints = _hints(copies[0], outer.var, [around.var for around in counted])
    if len(hints) > MOST:
        raise IllegalOpt(f"{len(hints)} cache lines for each iteration")
    return replace_loop(body, user, user._replace(body=K.Block((*hints, *user.body.body))))


def _is_copy(leaf: Leaf) -> bool:
    """Whether loops copy elements of a parameter."""
    value = leaf.update.value
    return bool(leaf.loops) and value.kind == "load" and value.attr[0].space == "global"


def _hints(copy: Leaf, axis: Var, counted: Sequence[Var]) -> list[K.Prefetch]:
    """The part of an iteration in the cache lines that `copy` reads in the next one of `axis`.

    Iterations are those of the nested loops `counted`.
    """
    (load,) = loads_of(copy.update.value)
    buf, indices, _ = load.attr
    axes = sorted((s.var for s in copy.loops), key=lambda v: -abs(last_index(indices).coeff(v)))
    *rows, row = axes
    line = LINE_BYTES // buf.dtype.itemsize
    in_a_row = -(-row.extent // line)
    lines = in_a_row * math.prod(var.extent for var in rows)
    each = -(-lines // math.prod(var.extent for var in counted))
    first = iteration(counted) * each
    hints = []
    for number in range(each):
        place = first + number
        at: dict[Var, Expr | int] = {axis: expr(axis) + 1, row: place % in_a_row * line}
        rest = place // in_a_row
        for var in reversed(rows):
            at[var], rest = rest % var.extent, rest // var.extent
        hints.append(K.Prefetch(buf, tuple(index.subst(at) for index in indices)))
    return hints

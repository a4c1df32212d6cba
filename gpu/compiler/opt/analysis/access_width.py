"""Elements side by side that one thread moves at once: how many, and rows that it reads once.

`Target.access_bytes` says what fits one access. Whoever gives a thread as many neighbours names
them in a loop that is written out; `gpu/compiler/lower/vectorize_access.py` makes one access of
them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import Expr, Mask, Var, expr
from gpu.compiler.ir.kernel.tree import (
    reads,
)
from gpu.compiler.opt.analysis.loop_nest import Leaf, last_index
from gpu.compiler.targets import Target

# Accesses of the wider elements for one of the narrower: threads then still meet in cache lines.
MOST_ACCESSES = 2


def neighbours(walked: Iterable[tuple[K.Update, Var]], target: Target) -> int:
    """How many neighbours along its variable each Update should have in a thread.

    A power of two; 1 where an access is not to elements side by side, or they do not begin where
    an access may.
    """
    sizes, most = list[int](), target.access_bytes
    for update, var in walked:
        if var.stop is not None or var.lo:
            return 1
        for buf, index, mask in in_memory(update):
            step = index.coeff(var)
            rest = index - var * step
            if var in rest.vars or step not in (0, 1) or buf.image:
                return 1
            most = _agreeing(mask, var, most)
            if step == 1:
                sizes.append(buf.dtype.itemsize)
                most = aligned(index, var, most)
        most = math.gcd(most, var.extent)
    if not sizes:
        return 1
    return min(most, max(_fitting(min(sizes), max(sizes), target), 1))


def packed(updates: Iterable[K.Update], var: Var, few: Var, target: Target) -> int:
    """How many neighbours along `var` a thread should have that does all iterations of `few`.

    So it is where some access has these side by side for each of those, as channels of a pixel or
    parts of a complex number are, and each other one walks along `var`, or stays. 1 where not.
    """
    most, packs = math.gcd(target.access_bytes, var.extent), False
    for update in updates:
        for buf, index, mask in in_memory(update):
            step, unit = index.coeff(var), index.coeff(few)
            rest = index - var * step - few * unit
            if rest.vars & {var, few} or buf.image:
                return 1
            most = math.gcd(_agreeing(mask, var, most), target.access_bytes // buf.dtype.itemsize)
            if (step, unit) == (few.extent, 1):
                most, packs = math.gcd(most, rest.gcd()), True
            elif step == 1:
                most = aligned(index, var, most)
            elif step:
                return 1
    return most if packs else 1


def _agreeing(mask: Mask, var: Var, most: int) -> int:
    """Up to `most` neighbours along a variable that all satisfy a condition, or do not."""
    while most > 1 and not all(all_alike(c, var, most) for c in mask.constraints):
        most //= 2
    return most


def aligned(index: Expr, var: Var, most: int) -> int:
    """Up to `most` elements, from the first one, that begin at a multiple of their number.

    The index steps by one along `var`.
    """
    rest = index - var
    return math.gcd(most, rest.const, *(factor for _, factor in rest.terms), var.extent)


def conditioned(updates: Iterable[K.Update], var: Var) -> bool:
    """Whether a condition of an access to a parameter depends on a variable."""
    return any(var in mask.vars for update in updates for _, _, mask in in_memory(update))


def _fitting(smallest: int, largest: int, target: Target) -> int:
    return min(target.access_bytes // smallest, MOST_ACCESSES * target.access_bytes // largest)


def in_memory(update: K.Update) -> Iterator[tuple[K.Buf, Expr, Mask]]:
    """Accesses of an Update to parameters."""
    if update.buf.space == "global":
        yield update.buf, last_index(update.indices), update.mask
    for buf, indices, mask in reads(update):
        if buf.space == "global":
            yield buf, last_index(indices), mask


def all_alike(constraint: Expr, var: Var, size: int) -> bool:
    """Whether `constraint >= 0` holds for all of `size` elements that follow each other, or none.

    They begin at multiples of `size` of `var`, which a constraint counts up or down by.
    """
    step = constraint.coeff(var)
    rest = constraint - expr(var) * step
    if var in rest.vars:
        return False
    return (
        step == 0
        or (step == 1 and rest.gcd() % size == 0)
        or (step == -1 and (rest + 1).gcd() % size == 0)
    )


def inner_walks(found: Sequence[Leaf], depth: int) -> list[tuple[K.Update, Var]]:
    """The Updates inside more than `depth` loops, with their innermost variables."""
    return [(leaf.update, leaf.loops[-1].var) for leaf in found if len(leaf.loops) > depth]

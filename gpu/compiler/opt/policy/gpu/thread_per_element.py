"""A thread for every iteration of the outer loops, or a few of them.

Neighbouring threads have neighbouring elements; where those of a thread lie side by side too, they
are one access (`gpu/compiler/opt/analysis/access_width.py`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import Var
from gpu.compiler.ir.kernel.tree import walk
from gpu.compiler.opt.analysis.access_width import conditioned, neighbours, packed
from gpu.compiler.opt.analysis.loop_nest import Leaf, leaves, outer_nest, scattered
from gpu.compiler.opt.opts import Bind, Opt, Reorder, Split, UniformMask
from gpu.compiler.targets import Target
from gpu.core.errors import IllegalOpt

# Threads of a block, unless there is too little to do for blocks of that size.
BLOCK: Final = 256
# Threads from which the smallest machine is busy.
BUSY: Final = 1 << 14
# Thread loops at most, those of the tiles of matrix instructions aside.
DIMENSIONS: Final = 3
# Elements that a thread writes where each is little work, and elements from which it does.
MANY: Final = 4
# The same where several of them lie side by side.
SIDE_BY_SIDE: Final = 8
PLENTY: Final = 1 << 20
# Iterations of a loop that a thread does all of, where they lie side by side.
FEW: Final = range(2, 5)
# Updates of a reduction: a start, a step, and what is written.
LIGHT: Final = 3


def block_of(target: Target) -> int:
    """Threads of a block."""
    return min(BLOCK, target.threads)


def rows_of_block(axis: Var | None, rows: int) -> tuple[list[Opt], str]:
    """What gives a block `rows` iterations of its innermost loop, and the name that they have.

    That is `axis`, "" for none, where a block has one.
    """
    if axis is None or min(rows, axis.extent) < 2:
        return [], axis.name if axis else ""
    if rows >= axis.extent and axis.stop is None:
        return [Bind(axis.name, "thread")], axis.name
    name = f"{axis.name}i"
    return [Split(axis.name, min(rows, axis.extent), "mask"), Bind(name, "thread")], name


def cost(found: Sequence[Leaf], var: Var) -> int:
    """Accesses that neighbours over `var` would make far apart."""
    return sum(scattered(leaf.update, var) for leaf in found)


def flat(kernel: K.Kernel, target: Target) -> Iterator[Opt]:
    """A thread for every iteration of the outer loops, neighbours next to each other in memory.

    Raises IllegalOpt where each would need team memory of its own.
    """
    nest, found = outer_nest(kernel.body), list(leaves(kernel.body))
    if any(isinstance(s, K.Alloc) and s.buf.space == "team" for s in walk(kernel.body)):
        raise IllegalOpt("threads have no team memory of their own")
    if not nest:
        raise IllegalOpt("there are no independent loops outside")
    yield from (Bind(loop.var.name, "grid") for loop in nest)
    simple, own = all(len(leaf.loops) == len(nest) for leaf in found), _own(found, nest, target)
    near, side = own.near, own.side
    if side > 1:
        yield from side_by_side([leaf.update for leaf in found], near, side)
    yield from (Bind(var.name, "unroll") for var in own.whole)
    dealt = {v.name: v for v in own.order}
    if side > 1:
        dealt[near.name] = Var(f"{near.name}o", 0, near.extent // side - 1)
    parts, steps = _Parts([], [], []), _steps(nest, target, simple, own.elements)
    yield from _dealt(list(dealt.values()), _small_block(nest, target), steps, parts)
    names = [dealt[loop.var.name].name for loop in nest if loop.var.name in dealt]
    kept = [name for name in names if name in parts.blocks]
    made = [name for name in parts.blocks if name not in kept]
    beside = (*((f"{near.name}i",) if side > 1 else ()), *(var.name for var in own.whole))
    yield Reorder((*kept, *made, *parts.threads, *parts.each, *beside))
    yield from (Bind(name, "thread") for name in parts.threads)
    yield from (Bind(name, "unroll" if steps <= MANY else "serial") for name in parts.each)


class _Own(NamedTuple):
    """What a thread has that lies together.

    Attributes:
        order: variables of loops that are dealt out, the one of neighbours first.
        side: neighbours along it.
        whole: variables of short loops that are all its own.
    """

    order: tuple[Var, ...]
    side: int
    whole: tuple[Var, ...] = ()

    @property
    def near(self) -> Var:
        """The variable along which neighbours are."""
        return self.order[0]

    @property
    def elements(self) -> int:
        """Elements of a thread."""
        return math.prod(var.extent for var in self.whole) * self.side


def _own(found: Sequence[Leaf], nest: Sequence[K.Loop], target: Target) -> _Own:
    """How elements come to threads: neighbours where they make fewer accesses."""
    ordered = sorted(nest, key=lambda loop: (cost(found, loop.var), -nest.index(loop)))
    order = tuple(loop.var for loop in ordered)
    simple = all(len(leaf.loops) == len(nest) for leaf in found)
    if target.access_bytes and simple:
        for near, few in itertools.permutations(order, 2):
            if few.extent in FEW and (side := _packed(found, near, few, nest, target)) > 1:
                rest = (var for var in order if var not in (near, few))
                return _Own((near, *rest), side, (few,))
    light = simple or _is_light(found, len(nest))
    return _Own(order, _side(found, nest, order[0], target) if light else 1)


def _packed(
    found: Sequence[Leaf], near: Var, few: Var, nest: Sequence[K.Loop], target: Target
) -> int:
    """Neighbours along `near` of a thread that does all of `few`, where threads are left."""
    if near.stop is not None or few.stop is not None or near.lo:
        return 1
    side = min(packed([leaf.update for leaf in found], near, few, target), SIDE_BY_SIDE)
    return worthwhile(side, math.prod(loop.var.extent for loop in nest) // few.extent)


def _is_light(found: Sequence[Leaf], depth: int) -> bool:
    """Whether all that is done for an element of the outer loops is a reduction, in plain loops."""
    kinds = {loop.kind for leaf in found for loop in leaf.loops[depth:]}
    return len(found) <= LIGHT and kinds == {"serial"}


def _side(found: Sequence[Leaf], nest: Sequence[K.Loop], near: Var, target: Target) -> int:
    """Neighbours along `near` that a thread has, where enough threads are left."""
    if not target.access_bytes:
        return 1
    most = neighbours([(leaf.update, near) for leaf in found], target)
    return worthwhile(most, math.prod(loop.var.extent for loop in nest))


def side_by_side(updates: Sequence[K.Update], var: Var, side: int) -> Iterator[Opt]:
    """A loop in steps of `side` neighbours, which a thread names one by one."""
    yield Split(var.name, side)
    if conditioned(updates, var):
        yield UniformMask(f"{var.name}i")
    yield Bind(f"{var.name}i", "unroll")


def worthwhile(side: int, elements: int) -> int:
    """Up to `side` neighbours of a thread, where so many elements leave threads enough."""
    while side > 1 and side * BUSY > elements:
        side //= 2
    return side


class _Parts(NamedTuple):
    """Names of the loops that the outer loops become: over blocks, threads, and what each does."""

    blocks: list[str]
    threads: list[str]
    each: list[str]


def _dealt(variables: Sequence[Var], left: int, steps: int, parts: _Parts) -> Iterator[Opt]:
    """Loops, those of neighbours first, dealt out to blocks of `left` threads."""
    longest = max(variables, key=lambda var: var.extent)
    for number, var in enumerate(variables):
        slots = DIMENSIONS - len(parts.threads)
        takes_threads = not number or (slots > 0 and left > 1)
        if slots == 1 and number:  # the last one has to fill the block
            takes_threads &= var is _filling(variables[number:], left)
        size = _threads(var, left) if takes_threads else 1
        yield from _split(var, size, steps if var is longest else 1, parts)
        left //= size


def _filling(variables: Sequence[Var], threads: int) -> Var:
    """The first of the loops that has so many iterations, or the longest one."""
    return max(variables, key=lambda var: min(var.extent, threads))


def _split(var: Var, size: int, steps: int, parts: _Parts) -> Iterator[Opt]:
    """Loop `var` into blocks, `size` threads, and up to `steps` iterations of each."""
    name, steps = var.name, max(min(steps, var.extent // size), 1)
    if size * steps < var.extent or var.stop is not None:
        if size * steps == 1:
            parts.blocks.append(name)
            return
        yield Split(name, size * steps, "skip")
        parts.blocks.append(f"{name}o")
        name = f"{name}i"
    if steps > 1 and size > 1:
        yield Split(name, size)
        parts.each.append(f"{name}o")
        name = f"{name}i"
    (parts.each if size == 1 and steps > 1 else parts.threads).insert(0, name)


def _small_block(nest: Sequence[K.Loop], target: Target) -> int:
    """Threads of a block, fewer where that gives more of the machine something to do."""
    elements, threads = math.prod(loop.var.extent for loop in nest), block_of(target)
    while threads >= 2 * target.warp and elements < threads * target.workers:
        threads //= 2
    return threads


def _threads(var: Var, most: int) -> int:
    """Threads along `var`, `most` at most: few of them idle, and many of them."""
    if var.extent <= most and var.stop is None:
        return var.extent
    sizes = [most >> shift for shift in range(4) if 0 < most >> shift <= var.extent]
    if not sizes:
        return min(var.extent, max(most, 1))
    return min(sizes, key=lambda s: (-(-var.extent // s) * s * 16 // var.extent, -s))


def _steps(nest: Sequence[K.Loop], target: Target, simple: bool, side: int) -> int:
    """How many elements a thread writes, or how many times `side` of them."""
    elements = math.prod(loop.var.extent for loop in nest) // side
    least = -(-elements // (target.max_blocks * block_of(target) // 2))
    many = MANY if side == 1 else max(SIDE_BY_SIDE // side, 1)
    return max(least, many if simple and elements * side >= PLENTY else 1)

"""Which loop transformations a kernel gets where blocks have threads (`Target.threads`).

There are five ways to spread a kernel, tried in an order that its form suggests; a way that is not
legal, or takes more team memory than there is, is left for the next one:

- `matrices.by_instructions`: a block computes a tile, by matrix instructions if the target has any;
- `tiles.product` and `tiles.transpose`: a block computes a tile, operands go through team memory;
- `in_rows`: a block computes a few rows together, reductions included;
- `in_columns`: the same where neighbours in memory belong to different results;
- `flat`: every iteration of the outer loops, or a few of them, has a thread of its own.

Where vectors are written out (`Native.scalar`) threads are the lanes of a CPU. Blocks then only do
rows that are gone through several times; the tiles of `gpu/compiler/opt/policy.py` do the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import Var
from gpu.compiler.opt import matrices, tiles
from gpu.compiler.opt.neighbours import held_rows, inner_walks, neighbours
from gpu.compiler.opt.opts import Bind, Cooperate, Hold, Inline, Opt, Reorder, Reuse, Split, apply
from gpu.compiler.opt.own import KEPT
from gpu.compiler.opt.shape import Leaf, leaves, outer_nest, scattered
from gpu.compiler.opt.share import work_of
from gpu.compiler.opt.sync import thread_loops
from gpu.compiler.opt.tree import IllegalOpt, loops, walk
from gpu.compiler.target import Target
from gpu.core.log import get_logger

log = get_logger(__name__)

# Threads of a block, unless there is too little to do for blocks of that size.
BLOCK: Final = 256
# Threads from which the smallest machine is busy.
BUSY: Final = 1 << 14
# Iterations that a thread does of a shared loop before more threads are worth their meeting.
EACH: Final = 4
# Threads that share a row at least: as many as read a piece of memory that comes in one go.
FEWEST: Final = 8
# One in so many of its registers holds an element of a row that a thread keeps.
KEPT_SHARE: Final = 4
# Elements of a row that a thread keeps where its registers are a CPU's memory.
KEPT_BY_LANES: Final = 64
# Neighbours that a thread has where memory is read by fours.
FOUR: Final = 4
# Thread loops at most, those of the tiles of matrix instructions aside.
DIMENSIONS: Final = 3
# Elements that a thread writes where each is little work, and elements from which it does.
MANY: Final = 4
# The same where several of them lie side by side.
SIDE_BY_SIDE: Final = 8
PLENTY: Final = 1 << 20

Way = Callable[[K.Kernel, Target], Iterator[Opt]]


def spread(kernel: K.Kernel, target: Target) -> tuple[K.Kernel, list[Opt]]:
    """The kernel for blocks of threads, and the transformations that did it."""
    for way in (*((matrices.by_instructions,) if target.matrices else ()), *_ways(kernel, target)):
        for inlined in _inlinings(kernel):
            try:
                lighter = apply(kernel, inlined)
                opts = list(way(lighter, target))
                done = apply(lighter, opts)
                if team_bytes(done, target) > target.shared_bytes:
                    opts.append(Reuse())
                    done = apply(done, opts[-1:])
            except IllegalOpt as error:
                log.debug("%s: not %s: %s", kernel.name, way.__name__, error)
                continue
            if (
                team_bytes(done, target) <= target.shared_bytes
                and threads_of(done) <= target.threads
            ):
                return done, [*inlined, *opts]
    return kernel, []


def team_bytes(kernel: K.Kernel, target: Target) -> int:
    """Bytes of team memory that a block takes."""
    bufs = (s.buf for s in walk(kernel.body) if isinstance(s, K.Alloc) and s.buf.space == "team")
    return sum(_size(buf, target) for buf in bufs)


def _size(buf: K.Buf, target: Target) -> int:
    """Bytes of a buffer; what a device computes in 32 bits it holds in as many."""
    narrowest = 4 if target.native.compute_as_int32 else 1
    return math.prod(buf.shape) * max(buf.dtype.itemsize, narrowest)


def threads_of(kernel: K.Kernel) -> int:
    """Threads of a block."""
    return math.prod(loop.var.extent for loop in thread_loops(kernel.body))


def _ways(kernel: K.Kernel, target: Target) -> Sequence[Way]:
    nest, found = outer_nest(kernel.body), list(leaves(kernel.body))
    own = [s for s in walk(kernel.body) if isinstance(s, K.Alloc) and s.buf.shape]
    if target.native.scalar:
        passes = sum(len(leaf.loops) > len(nest) for leaf in found)
        return (in_rows,) if nest and passes > 1 else ()
    if all(len(leaf.loops) == len(nest) for leaf in found) and not own:
        return tiles.transpose, flat
    if not nest:
        return (in_rows,)
    work = work_of(nest[-1].body)
    if work.alone >= work.shared:
        return flat, in_rows
    outer = min((_cost(found, loop.var) for loop in nest), default=0)
    if own or _cost_inside(found, len(nest)) < outer:
        return tiles.product, in_rows, flat
    if math.prod(loop.var.extent for loop in nest) < _busy(target):
        return tiles.product, in_columns, flat
    return tiles.product, flat


def _cost(found: Sequence[Leaf], var: Var) -> int:
    """Accesses that neighbours over `var` would make far apart."""
    return sum(scattered(leaf.update, var) for leaf in found)


def _cost_inside(found: Sequence[Leaf], depth: int) -> int:
    """The same for the best of the loops that are inside the outer ones, for each Update."""
    return sum(
        min((scattered(leaf.update, loop.var) for loop in leaf.loops[depth:]), default=0)
        for leaf in found
    )


def _inlinings(kernel: K.Kernel) -> Iterator[list[Opt]]:
    """No buffer of a row made again where it is read, then the largest ones, then more of them."""
    shaped = [s.buf for s in walk(kernel.body) if isinstance(s, K.Alloc) and s.buf.shape]
    by_size = sorted(shaped, key=lambda buf: -math.prod(buf.shape) * buf.dtype.itemsize)
    for count in range(len(by_size) + 1):
        yield [Inline(buf.name) for buf in by_size[:count]]


def in_rows(kernel: K.Kernel, target: Target) -> Iterator[Opt]:
    """A block of threads for each iteration of the outer loops, or for a few where rows are short.

    Rows that several loops read are read once, and threads have neighbours where that makes fewer
    accesses. Raises IllegalOpt where no loop inside is long enough to share.
    """
    nest = outer_nest(kernel.body)
    outer = math.prod(loop.var.extent for loop in nest)
    longest = work_of(nest[-1].body if nest else kernel.body).shared
    walks = inner_walks(list(leaves(kernel.body)), len(nest))
    side = neighbours(walks, target) if walks and target.access_bytes else 1
    threads = _team(longest, outer, target, side)
    yield from (Bind(loop.var.name, "grid") for loop in nest)
    axis = nest[-1].var if nest else None
    held = list(_holds(kernel, axis, threads, target))
    yield from held
    if target.native.quads:
        yield from _by_fours(kernel, len(nest), threads)
    else:
        yield from _side_by_side(apply(kernel, held), len(nest), threads, side)
    fit = target.shared_bytes // max(_row_bytes(kernel, target), 1)
    rows = min(_block(target) // threads, axis.extent, fit) if axis else 1
    kept = _kept(target)
    if axis is None or rows < 2:
        yield Cooperate(axis.name if axis else "", threads, kept=kept, warp=target.shuffle)
        return
    whole = rows == axis.extent and axis.stop is None
    name = axis.name if whole else f"{axis.name}i"
    if not whole:
        yield Split(axis.name, rows, "mask")
    yield Bind(name, "thread")
    yield Cooperate(name, threads, kept=kept, warp=target.shuffle)


def _kept(target: Target) -> int:
    """Elements of a row that a thread keeps."""
    if target.native.scalar:
        return KEPT_BY_LANES
    return max(KEPT, target.registers // KEPT_SHARE) if target.access_bytes else KEPT


def _holds(kernel: K.Kernel, axis: Var | None, threads: int, target: Target) -> Iterator[Opt]:
    """What reads rows once that threads can keep."""
    if axis is None or not target.access_bytes:
        return
    for buf in held_rows(kernel.body, axis.name):
        opt = Hold(axis.name, buf.name)
        made = loops(apply(kernel, [opt]).body)[f"{buf.name}h"]
        if made.var.extent % threads == 0 and made.var.extent // threads <= _kept(target):
            yield opt


def _side_by_side(kernel: K.Kernel, depth: int, threads: int, side: int) -> Iterator[Opt]:
    """Loops inside the outer ones in steps of as many neighbours as `threads` threads can have."""
    inner = dict.fromkeys(var for _, var in inner_walks(list(leaves(kernel.body)), depth))
    side = math.gcd(side, *(var.extent // threads for var in inner)) if inner else 1
    whole = all(var.extent % (threads * side) == 0 for var in inner)
    for var in inner if side > 1 and whole else ():
        yield Split(var.name, side)
        yield Bind(f"{var.name}i", "unroll")


def _by_fours(kernel: K.Kernel, depth: int, threads: int) -> Iterator[Opt]:
    """Loops inside the outer ones in steps of four neighbours, where `threads` share all steps."""
    for leaf in leaves(kernel.body):
        var = leaf.loops[-1].var
        shared = len(leaf.loops) > depth and var.stop is None
        if shared and var.extent % (FOUR * threads) == 0 and not scattered(leaf.update, var):
            yield Split(var.name, FOUR)
            yield Bind(f"{var.name}i", "unroll")


def _block(target: Target) -> int:
    """Threads of a block."""
    return min(BLOCK, target.threads)


def _busy(target: Target) -> int:
    """Threads from which a machine is busy."""
    return max(BUSY, target.workers * 2 * BLOCK)


def _row_bytes(kernel: K.Kernel, target: Target) -> int:
    """Bytes of the buffers that each row takes."""
    bufs = (s.buf for s in walk(kernel.body) if isinstance(s, K.Alloc) and s.buf.shape)
    return sum(_size(buf, target) for buf in bufs)


def _team(longest: int, outer: int, target: Target, side: int = 1) -> int:
    """How many threads share loops of `longest` iterations in each of `outer` blocks.

    Each has `side` neighbours of them at least.
    """
    most = _block(target)
    if outer * most < _busy(target):
        most = target.threads
    if outer * target.shuffle >= _busy(target) and longest <= target.shuffle * _kept(target):
        most = target.shuffle  # threads that meet without barriers
    threads = min(FEWEST, target.warp)
    while threads * 2 <= most and threads * 2 * max(EACH, side) <= longest:
        threads *= 2
    if longest < threads * 2:
        raise IllegalOpt(f"loops of {longest} iterations are too short to be shared")
    return threads


def in_columns(kernel: K.Kernel, target: Target) -> Iterator[Opt]:
    """A warp has neighbouring results, and several warps share the work on them.

    Raises IllegalOpt where no loop inside is long enough to share.
    """
    nest, found = outer_nest(kernel.body), list(leaves(kernel.body))
    longest = work_of(nest[-1].body).shared
    near = min(reversed(nest), key=lambda loop: _cost(found, loop.var)).var
    width, threads = min(target.warp, near.extent), 1
    while threads * 2 * width <= target.threads and threads * 2 * EACH <= longest:
        threads *= 2
    if threads == 1:
        raise IllegalOpt(f"loops of {longest} iterations are too short to be shared")
    yield from (Bind(loop.var.name, "grid") for loop in nest)
    yield Reorder((*(one.var.name for one in nest if one.var is not near), near.name))
    axis = near.name
    if near.extent > target.warp or near.stop is not None:
        yield Split(axis, width, "mask")
        axis = f"{axis}i"
    yield Bind(axis, "thread")
    yield Cooperate(axis, threads, True, warp=target.shuffle)


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
    order = sorted(nest, key=lambda loop: (_cost(found, loop.var), -nest.index(loop)))
    simple = all(len(leaf.loops) == len(nest) for leaf in found)
    near = order[0].var
    side = _side(found, nest, near, target) if simple else 1
    variables = [loop.var for loop in order]
    if side > 1:
        yield Split(near.name, side)
        near = variables[0] = Var(f"{near.name}o", 0, near.extent // side - 1)
    longest = max(variables, key=lambda var: var.extent)
    parts, left = _Parts([], [], []), _small_block(nest, target)
    steps = _steps(nest, target, simple, side)
    for number, var in enumerate(variables):
        slots = DIMENSIONS - len(parts.threads)
        takes_threads = var is near or (slots > 0 and left > 1)
        if slots == 1 and number:  # the last one has to fill the block
            takes_threads &= var is _filling(variables[number:], left)
        size = _threads(var, left) if takes_threads else 1
        yield from _split(var, size, steps if var is longest else 1, parts)
        left //= size
    names = [order[0].var.name + "o" if side > 1 and loop is order[0] else loop.var.name for loop in nest]
    kept = [name for name in names if name in parts.blocks]
    made = [name for name in parts.blocks if name not in kept]
    beside = [f"{order[0].var.name}i"] if side > 1 else []
    yield Reorder((*kept, *made, *parts.threads, *parts.each, *beside))
    yield from (Bind(name, "thread") for name in parts.threads)
    yield from (Bind(name, "unroll" if steps <= MANY else "serial") for name in parts.each)
    yield from (Bind(name, "unroll") for name in beside)


def _side(found: Sequence[Leaf], nest: Sequence[K.Loop], near: Var, target: Target) -> int:
    """Neighbours along `near` that a thread has, where enough threads are left."""
    if not target.access_bytes:
        return 1
    most = neighbours([(leaf.update, near) for leaf in found], target)
    threads = math.prod(loop.var.extent for loop in nest)
    while most > 1 and most * BUSY > threads:
        most //= 2
    return most


def _filling(variables: Sequence[Var], threads: int) -> Var:
    """The first of the loops that has so many iterations, or the longest one."""
    return max(variables, key=lambda var: min(var.extent, threads))


class _Parts(NamedTuple):
    """Names of the loops that the outer loops become: over blocks, threads, and what each does."""

    blocks: list[str]
    threads: list[str]
    each: list[str]


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
    elements, threads = math.prod(loop.var.extent for loop in nest), _block(target)
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
    least = -(-elements // (target.max_blocks * _block(target) // 2))
    many = MANY if side == 1 else max(SIDE_BY_SIDE // side, 1)
    return max(least, many if simple and elements * side >= PLENTY else 1)

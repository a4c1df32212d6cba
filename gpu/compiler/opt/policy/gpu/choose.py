"""Which loop transformations a kernel gets where blocks have threads (`Target.threads`).

There are six ways to spread a kernel, tried in an order that its form suggests; a way that is not
legal, or takes more team memory than there is, is left for the next one:

- `mma.by_instructions`: a block computes a tile, by matrix instructions if the target has any;
- `shared_tiling.product` and `transpose.by_accesses`: a block has a tile, operands go through
  team memory;
- `scan.along_rows`: a block computes running results of a few rows;
- `in_rows`: a block computes a few rows together, reductions included;
- `in_columns`: the same where neighbours in memory belong to different results;
- `thread_per_element`: every iteration of the outer loops, or a few of them, has a thread of its
  own.

Where vectors are written out (`Native.scalar`) threads are the lanes of a CPU. Blocks then only do
rows that are gone through several times; the tiles of `gpu/compiler/opt/policy/choose.py` do the
rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import Var
from gpu.compiler.ir.kernel.tree import loops, walk
from gpu.compiler.opt.analysis.access_width import in_memory, inner_walks, neighbours
from gpu.compiler.opt.analysis.loop_nest import Leaf, leaves, outer_nest, scattered
from gpu.compiler.opt.opts import (
    Bind,
    CacheRow,
    DistributeThreads,
    Inline,
    Opt,
    Reorder,
    ReuseShared,
    Split,
    apply,
)
from gpu.compiler.opt.policy.gpu import mma, scan, shared_tiling, transpose
from gpu.compiler.opt.policy.gpu.thread_per_element import (
    BLOCK,
    BUSY,
    SIDE_BY_SIDE,
    block_of,
    cost,
    flat,
    rows_of_block,
    side_by_side,
    worthwhile,
)
from gpu.compiler.opt.policy.gpu.transpose import LINE_BYTES
from gpu.compiler.opt.primitives.barriers import thread_loops
from gpu.compiler.opt.primitives.cache_row import held_rows
from gpu.compiler.opt.primitives.privatize import KEPT
from gpu.compiler.opt.primitives.thread_distribution import work_of
from gpu.compiler.targets import Target
from gpu.core.errors import IllegalOpt
from gpu.core.log import get_logger

log = get_logger(__name__)

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

Way = Callable[[K.Kernel, Target], Iterator[Opt]]


def spread(kernel: K.Kernel, target: Target) -> tuple[K.Kernel, list[Opt]]:
    """The kernel for blocks of threads, and the transformations that did it."""
    return next(spreads(kernel, target), (kernel, []))


def spreads(kernel: K.Kernel, target: Target) -> Iterator[tuple[K.Kernel, list[Opt]]]:
    """The ways to spread a kernel over blocks of threads that are legal, and fit."""
    by_instructions = (mma.by_instructions,) if target.matrices else ()
    scans = (scan.along_rows,) if target.access_bytes else ()
    for way in (*by_instructions, *scans, *_ways(kernel, target)):
        for inlined in _inlinings(kernel):
            try:
                lighter = apply(kernel, inlined)
                opts = list(way(lighter, target))
                done = apply(lighter, opts)
                if team_bytes(done, target) > target.shared_bytes:
                    opts.append(ReuseShared())
                    done = apply(done, opts[-1:])
            except IllegalOpt as error:
                log.debug("%s: not %s: %s", kernel.name, way.__name__, error)
                continue
            if (
                team_bytes(done, target) <= target.shared_bytes
                and threads_of(done) <= target.threads
            ):
                yield done, [*inlined, *opts]


def team_bytes(kernel: K.Kernel, target: Target) -> int:
    """Bytes of team memory that a block takes."""
    bufs = (s.buf for s in walk(kernel.body) if isinstance(s, K.Alloc) and s.buf.space == "team")
    return sum(_size(buf, target) for buf in bufs)


def _size(buf: K.Buf, target: Target) -> int:
    """Bytes of a buffer."""
    return math.prod(buf.shape) * target.native.held_bytes(buf.dtype)


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
        return transpose.by_accesses, flat
    if not nest:
        return (in_rows,)
    work = work_of(nest[-1].body)
    if work.alone >= work.shared:
        return flat, in_rows
    outer = min((cost(found, loop.var) for loop in nest), default=0)
    if own or _cost_inside(found, len(nest)) < outer:
        return shared_tiling.product, in_rows, flat
    if math.prod(loop.var.extent for loop in nest) < _busy(target):
        return shared_tiling.product, in_columns, flat
    return shared_tiling.product, flat


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
    rows = min(block_of(target) // threads, axis.extent, fit) if axis else 1
    if axis is not None and side > 1:  # a mask would keep accesses of several elements apart
        rows = math.gcd(rows, axis.extent)
    teams, name = rows_of_block(axis, rows)
    yield from teams
    yield DistributeThreads(name, threads, kept=_kept(target), warp=target.shuffle)


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
        opt = CacheRow(axis.name, buf.name)
        made = loops(apply(kernel, [opt]).body)[f"{buf.name}h"]
        if made.var.extent % threads == 0 and made.var.extent // threads <= _kept(target):
            yield opt


def _side_by_side(kernel: K.Kernel, depth: int, threads: int, side: int) -> Iterator[Opt]:
    """Loops inside the outer ones in steps of as many neighbours as `threads` threads can have.

    Where a row is kept, each thread has to have the same elements of it in all loops.
    """
    inner = dict.fromkeys(var for _, var in inner_walks(list(leaves(kernel.body)), depth))
    kept = any(isinstance(s, K.Alloc) and s.buf.shape for s in walk(kernel.body))
    if kept and inner:
        side = math.gcd(side, *(var.extent // threads for var in inner))
    step = threads * side
    whole = all(var.extent % step == 0 if kept else var.extent >= step for var in inner)
    updates = [leaf.update for leaf in leaves(kernel.body)]
    for var in inner if side > 1 and whole else ():
        yield from side_by_side(updates, var, side)


def _by_fours(kernel: K.Kernel, depth: int, threads: int) -> Iterator[Opt]:
    """Loops inside the outer ones in steps of four neighbours, where `threads` share all steps."""
    for leaf in leaves(kernel.body):
        var = leaf.loops[-1].var
        shared = len(leaf.loops) > depth and var.stop is None
        if shared and var.extent % (FOUR * threads) == 0 and not scattered(leaf.update, var):
            yield Split(var.name, FOUR)
            yield Bind(f"{var.name}i", "unroll")


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
    most = block_of(target)
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
    near = min(reversed(nest), key=lambda loop: cost(found, loop.var)).var
    side = _beside(found, near, target)
    width = min(_width(found, side, target), near.extent // side)
    threads = 1
    while threads * 2 * width <= target.threads and threads * 2 * EACH <= longest:
        threads *= 2
    if threads == 1:
        raise IllegalOpt(f"loops of {longest} iterations are too short to be shared")
    yield from (Bind(loop.var.name, "grid") for loop in nest)
    axis, beside = near.name, list[str]()
    if side > 1:
        yield from side_by_side([leaf.update for leaf in found], near, side)
        beside, axis = [f"{axis}i"], f"{axis}o"
    yield Reorder((*(one.var.name for one in nest if one.var is not near), axis, *beside))
    if near.extent > width * side or near.stop is not None:
        yield Split(axis, width, "mask")
        axis = f"{axis}i"
    yield Bind(axis, "thread")
    yield DistributeThreads(axis, threads, True, warp=target.shuffle)


def _beside(found: Sequence[Leaf], near: Var, target: Target) -> int:
    """Neighbouring results that a thread has."""
    if not target.access_bytes:
        return 1
    side = min(neighbours([(leaf.update, near) for leaf in found], target), SIDE_BY_SIDE)
    steps = max(math.prod(loop.var.extent for loop in leaf.loops) for leaf in found)
    return worthwhile(side, steps)


def _width(found: Sequence[Leaf], side: int, target: Target) -> int:
    """Threads side by side: those of a warp, or fewer where they have what memory gives at once."""
    if side == 1:
        return target.warp
    narrowest = min(buf.dtype.itemsize for leaf in found for buf, *_ in in_memory(leaf.update))
    return min(max(LINE_BYTES // (side * narrowest), 1), target.warp)

"""Schedules of a kernel besides the one that the policies choose, for a search to measure.

`alternatives` are what the policies had to choose from, those with a cost before those without.
`neighbours` differ from a given schedule in one number: the size of a split, of a tile or of a
block, how far an operand is staged, what is written out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.opt.analysis.reduction_nest import reduction_nest
from gpu.compiler.opt.opts import (
    Bind,
    BlockScan,
    DistributeThreads,
    MatrixTile,
    Opt,
    Prefetch,
    Rfactor,
    SharedTranspose,
    Split,
    Stage,
    Tile,
    apply,
)
from gpu.compiler.opt.policy.choose import canonical, with_partial_sums
from gpu.compiler.opt.policy.cpu import tiling
from gpu.compiler.opt.policy.cpu.tile_cost import Costs
from gpu.compiler.opt.policy.cpu.vectorize import vectorize
from gpu.compiler.opt.policy.gpu.choose import spreads, team_bytes, threads_of
from gpu.compiler.opt.policy.images import writes_image
from gpu.compiler.opt.primitives.matrix_tiling import MatrixTiling
from gpu.compiler.opt.primitives.tiling import Tiling
from gpu.compiler.targets import Target
from gpu.core.errors import IllegalOpt


class Alternative(NamedTuple):
    """A schedule, and what it costs in cycles where there is a number for that."""

    opts: tuple[Opt, ...]
    cost: float | None = None


def alternatives(kernel: K.Kernel, target: Target) -> Iterator[Alternative]:
    """Schedules of a kernel, those that cost least first."""
    if writes_image(kernel):
        return
    ready, opts = canonical(kernel)
    for cost, tiled in sorted(tiling.schedules(ready, target), key=lambda found: found[0]):
        yield Alternative((*opts, *tiled), cost)
    if target.threads:
        for _, spread in spreads(ready, target):
            yield Alternative((*opts, *spread))
    elif target.vector_bytes:
        yield Alternative((*opts, *vectorize(ready, target)))


def made(kernel: K.Kernel, opts: Sequence[Opt], target: Target) -> tuple[K.Kernel, list[Opt]]:
    """A kernel with a schedule, and with the partial sums that keep its rounding small.

    Raises IllegalOpt where the kernel does not allow it, or the target has no room for it.
    """
    done = apply(kernel, opts)
    if target.threads and (
        threads_of(done) > target.threads or team_bytes(done, target) > target.shared_bytes
    ):
        raise IllegalOpt(f"{list(opts)}: a block takes more threads or memory than there is")
    return with_partial_sums(done, opts)


def cost_of(kernel: K.Kernel, opts: Sequence[Opt], target: Target) -> float | None:
    """What a legal schedule costs, in cycles, where the whole kernel is tiled; else None."""
    for number, opt in enumerate(opts):
        if isinstance(opt, Tile) and not opt.nest:
            nest = reduction_nest(apply(kernel, opts[:number]).body)
            return Costs(nest, target).launched(opt.tiling)[0] if nest else None
    return None


def neighbours(opts: Sequence[Opt]) -> Iterator[tuple[Opt, ...]]:
    """Schedules that differ from one in one of its transformations."""
    for number, opt in enumerate(opts):
        for other in _others(opt):
            yield (*opts[:number], *([] if other is None else [other]), *opts[number + 1 :])


def _others(opt: Opt) -> Iterator[Opt | None]:
    """What may stand in the place of a transformation; None for nothing."""
    match opt:
        case Split(factor=factor):
            yield from (opt._replace(factor=other) for other in _sizes(factor, 2))
        case Rfactor(factor=factor):
            yield from (opt._replace(factor=other) for other in _sizes(factor, 2))
        case DistributeThreads(threads=threads, kept=kept):
            yield from (opt._replace(threads=other) for other in _sizes(threads, 2))
            yield from (opt._replace(kept=other) for other in _sizes(kept, 1))
        case BlockScan(threads=threads, side=side):
            yield from (opt._replace(threads=other) for other in _sizes(threads, 2))
            yield from (opt._replace(side=other) for other in _sizes(side, 1))
        case Tile(tiling=tiled):
            yield from (opt._replace(tiling=other) for other in _tilings(tiled))
        case MatrixTile(tiling=tiled):
            yield from (opt._replace(tiling=other) for other in _matrix_tilings(tiled))
        case Bind(kind="worker" | "unroll") | Stage() | Prefetch() | SharedTranspose():
            yield None


def _sizes(size: int, least: int) -> Iterator[int]:
    """Twice a size, and half of it."""
    yield 2 * size
    if size >= 2 * least:
        yield size // 2


def _tilings(tiled: Tiling) -> Iterator[Tiling]:
    yield from (tiled._replace(steps=steps) for steps in _sizes(tiled.steps, 1))
    for number, (name, size) in enumerate(tiled.loops):
        least = tiled.lanes if name == tiled.lane else 1
        for other in {*_sizes(size, least), size + least, max(size - least, least)} - {size}:
            changed = (*tiled.loops[:number], (name, other), *tiled.loops[number + 1 :])
            yield tiled._replace(loops=changed)
    for order in itertools.islice(itertools.permutations(tiled.loops), 1, 7):
        yield tiled._replace(loops=order)
    for number, copy in enumerate(tiled.copies):
        others = (*tiled.copies[:number], *tiled.copies[number + 1 :])
        yield tiled._replace(copies=others)
        for depth in (copy.depth - 1, copy.depth + 1):
            yield tiled._replace(copies=(*others, copy._replace(depth=depth)))
    if tiled.parallel:
        yield tiled._replace(parallel="")


def _matrix_tilings(tiled: MatrixTiling) -> Iterator[MatrixTiling]:
    yield from (tiled._replace(depth=size) for size in _sizes(tiled.depth, 1))
    yield from (tiled._replace(slots=size) for size in _sizes(tiled.slots, 1))
    yield from (tiled._replace(group=size) for size in _sizes(tiled.group, 1))
    (m, n), (batch, rows, columns) = tiled.tiles, tiled.warps
    yield from (tiled._replace(tiles=(size, n)) for size in _sizes(m, 1))
    yield from (tiled._replace(tiles=(m, size)) for size in _sizes(n, 1))
    yield from (tiled._replace(warps=(batch, size, columns)) for size in _sizes(rows, 1))
    yield from (tiled._replace(warps=(batch, rows, size)) for size in _sizes(columns, 1))

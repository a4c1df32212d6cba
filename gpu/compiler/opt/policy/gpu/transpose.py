"""Transpositions by blocks of threads, in whole accesses on both sides.

A block turns a tile (`gpu.compiler.opt.opts.SharedTranspose`) of `line` elements along what is
read and `each` times as many along what is written. With accesses of `side` elements loops become

    read  = line * ro + lines * rio + side * rii + ri      rii, ri: threads
    write = each * line * wo + line * wio + side * wii + wi      wii: threads, in the same block

Threads that differ in `wii`, the innermost, so have neighbours where they write; where they copy,
it is them again that follow each other along a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import Var
from gpu.compiler.ir.kernel.tree import loads_of
from gpu.compiler.opt.analysis.access_width import aligned
from gpu.compiler.opt.analysis.loop_nest import Transposition, last_index, outer_nest, transposition
from gpu.compiler.opt.opts import Bind, Opt, Reorder, SharedTranspose, Split
from gpu.compiler.opt.policy.gpu.thread_per_element import block_of, worthwhile
from gpu.compiler.targets import Target
from gpu.core.errors import IllegalOpt

# Extent below which a loop is not worth a tile.
SMALL: Final = 32
# Bytes that threads side by side move together, where there are as many: what memory gives at once.
LINE_BYTES: Final = 128
# Bytes of the tiles of a block, at most: there is room for more blocks, which hide its waiting.
TILE_BYTES: Final = 1 << 14
# Threads side by side, at most: a warp's.
LANES: Final = 32
# Part of the team memory that tiles take, at most.
TEAM_SHARE: Final = 2


class _Form(NamedTuple):
    """Sizes of a tile: elements of an access, threads along a line, across, and lines of each."""

    side: int
    lanes: int
    lines: int
    each: int

    @property
    def line(self) -> int:
        """Elements of a line."""
        return self.side * self.lanes


def by_accesses(kernel: K.Kernel, target: Target) -> Iterator[Opt]:
    """The transformations for a kernel that only transposes. Raises IllegalOpt for others."""
    found = transposition(kernel, SMALL)
    if found is None:
        raise IllegalOpt("no transposition")
    loads = _across(found)
    form = _form(found, loads, target)
    yield from (Bind(loop.var.name, "grid") for loop in outer_nest(kernel.body))
    read, write = _Axis(found.read, form.side), _Axis(found.write, form.side)
    yield from read.split(form.lanes, form.lines // form.side)
    yield from write.split(form.lanes * form.each, form.lanes)
    threads = (*read.threads, *read.near, *write.threads)
    written_out = (*read.turns, *write.turns, *write.near)
    others = (var.name for var in found.others)
    yield Reorder((*others, *read.block, *write.block, *threads, *written_out))
    yield from (Bind(name, "thread") for name in threads)
    yield from (Bind(name, "unroll") for name in written_out)
    for load in loads:
        yield SharedTranspose(threads[-1], load.attr[0].name, write.inside, read.inside, form.side)


class _Axis:
    """One of the two loops, and those that it becomes: names, in the order of their nesting."""

    def __init__(self, var: Var, side: int):
        self.side, self.extent = side, var.extent // side
        self.var = var
        self.block: tuple[str, ...] = ()
        self.turns: tuple[str, ...] = ()
        self.threads: tuple[str, ...] = ()
        self.near: tuple[str, ...] = (f"{var.name}i",) if side > 1 else ()

    @property
    def inside(self) -> tuple[str, ...]:
        """The loops of a tile."""
        return (*self.turns, *self.threads, *self.near)

    def split(self, count: int, threads: int) -> Iterator[Opt]:
        """Into blocks of `count` accesses, by so many threads, and the elements of an access."""
        name = self.var.name
        if self.side > 1:  # first: conditions then hold for all elements of an access
            yield Split(name, self.side)
            name = f"{name}o"
        if count < self.extent:
            yield Split(name, count, "mask" if self.extent % count else "exact")
            self.block, name = (f"{name}o",), f"{name}i"
        if threads == 1:
            self.turns = (name,)
        elif threads < count:
            yield Split(name, threads)
            self.turns, self.threads = (f"{name}o",), (f"{name}i",)
        else:
            self.threads = (name,)


def _across(found: Transposition) -> tuple[K.Value, ...]:
    """The loads that lie along the other loop. Raises IllegalOpt where they do not."""
    loads = [v for v in loads_of(found.update.value) if _step(v, found.write) not in (0, 1)]
    names = {load.attr[0].name for load in loads}
    if len(names) < len(loads) or any(_step(load, found.read) != 1 for load in loads):
        raise IllegalOpt("what is read across does not lie along one other loop")
    return tuple(loads)


def _step(load: K.Value, var: Var) -> int:
    return last_index(load.attr[1]).coeff(var)


def _form(found: Transposition, loads: Sequence[K.Value], target: Target) -> _Form:
    """The largest accesses that alignment allows, and a tile of which there are enough."""
    itemsize = max(load.dtype.itemsize for load in loads)
    held = sum(target.native.held_bytes(load.dtype) for load in loads)
    threads = block_of(target)
    extent = min(found.read.extent, found.write.extent)
    most = min(TILE_BYTES, target.shared_bytes // TEAM_SHARE) // held
    line = min(LINE_BYTES // itemsize, _power_below(extent), _power_below(math.isqrt(most)))
    others = math.prod(var.extent for var in found.others)
    elements = others * found.read.extent * found.write.extent
    side = min(worthwhile(_aligned(found, loads, target), elements), line)
    lanes = min(line // side, LANES, threads // side)
    if lanes < 2:
        raise IllegalOpt("too few threads for the tile of a transposition")
    line = lanes * side
    lines = min(threads // lanes, line)
    each = _power_below(max(min(most // (line * line), found.write.extent // line), 1))
    tiles = others * -(-found.read.extent // line)
    while each > 1 and tiles * -(-found.write.extent // (line * each)) < 2 * target.workers:
        each //= 2
    return _Form(side, lanes, lines, each)


def _aligned(found: Transposition, loads: Sequence[K.Value], target: Target) -> int:
    """Elements of an access: what all of those fit that walk along one of the two loops."""
    update, buf = found.update, found.update.buf
    walked = [(buf, last_index(update.indices), update.mask, found.write)]
    for load in loads_of(update.value):
        source, indices, mask = load.attr
        var = found.read if load in loads else found.write
        if var in load.vars:
            walked.append((source, last_index(indices), mask, var))
    most = max(target.access_bytes // max(source.dtype.itemsize for source, *_ in walked), 1)
    for _, index, mask, var in walked:
        step = index.coeff(var)
        if var in mask.vars or var in (index - var * step).vars:
            return 1
        most = aligned(index, var, most) if step else most
    return most


def _power_below(count: int) -> int:
    """The largest power of two that is not above `count`, which is positive."""
    return 1 << (count.bit_length() - 1)

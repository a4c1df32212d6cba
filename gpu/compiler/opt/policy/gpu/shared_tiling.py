"""Tiles for blocks of threads: products of matrices, convolutions.

A block computes a tile of the output. Its threads copy the operands into team memory together, a
few steps of the sum at a time, and each keeps a tile of sums in its registers. Loops become

    u = BM * uo + TU * 4 * ug + 4 * ut + ul        ut, vt: threads
    v = BN * vo + TV * 4 * vg + 4 * vt + vl        ug, ul, vg, vl: registers

so that neighbouring threads reach groups of four that lie side by side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import Var
from gpu.compiler.ir.kernel.tree import only_buffer
from gpu.compiler.opt.analysis.loop_nest import outer_nest
from gpu.compiler.opt.opts import Bind, Distribute, Opt, Reorder, Split, Stage
from gpu.compiler.opt.policy.cpu import register_tiling
from gpu.compiler.targets import Target
from gpu.core.errors import IllegalOpt

# Elements that a thread has side by side.
GROUP: Final = 4
# Steps of the sum between two copies, or where team memory is small.
DEPTHS: Final = (16, 8)
# Registers that addresses and counters take beside the sums and the operands of a step.
OTHER_REGISTERS: Final = 32
# Extent below which an output loop is not worth a tile.
SMALL: Final = 32


_Rows = list[tuple[Var, int]]


class Tile(NamedTuple):
    """Sizes of a block's tile, and groups of `GROUP` of each thread, along `u` and `v`."""

    u: int
    v: int
    groups_u: int
    groups_v: int

    @property
    def sums(self) -> int:
        """Sums of a thread."""
        return self.groups_u * self.groups_v * GROUP * GROUP

    @property
    def operands(self) -> int:
        """Elements of the operands that a thread holds for a step."""
        return (self.groups_u + self.groups_v) * GROUP


TILES: Final = (
    Tile(128, 128, 2, 2),
    Tile(128, 64, 2, 1),
    Tile(64, 128, 1, 2),
    Tile(64, 64, 1, 1),
    Tile(64, 32, 1, 1),
    Tile(32, 64, 1, 1),
    Tile(32, 32, 1, 1),
)


SHORT_TILES: Final = ((128, 2, 2), (64, 1, 4), (32, 1, 4), (64, 1, 2), (32, 1, 2))
"""For short lines of the output: a tile's size and groups along `u`, and lines of each thread."""


def product(kernel: K.Kernel, target: Target) -> Iterator[Opt]:
    """The transformations for a sum of products. Raises IllegalOpt for anything else."""
    c = register_tiling.match(kernel)
    if c is None or c.u is None or c.u.extent < SMALL:
        raise IllegalOpt("no product of matrices")
    if c.along.vars.isdisjoint(c.reduction) or any(r.stop is not None for r in c.reduction):
        raise IllegalOpt("how long the sums are is not known")
    rows, u, v = _choose(c, target)
    yield from (Bind(loop.var.name, "grid") for loop in outer_nest(kernel.body))
    yield from (*u.split(), *v.split())
    outer = tuple(var.name for var in c.outer if var not in v.taken)
    written_out = (*u.registers, *v.registers)
    threads = (*u.threads, *v.threads)
    yield Reorder((*outer, *u.block, *v.block, *threads, *written_out))
    yield from (Bind(name, "thread") for name in threads)
    yield from (Bind(name, "unroll") for name in written_out[:-1])
    yield Bind(written_out[-1], "vector" if target.vector_bytes else "unroll")
    yield from _staged(c, rows, u, v)


def _staged(c: register_tiling.Contraction, rows: _Rows, u: _Axis, v: _Axis) -> Iterator[Opt]:
    """Both operands in team memory, as much of them as `rows` of the sum need."""
    holder, names = v.threads[-1], []
    for var, size in rows:
        if size < var.extent:
            yield Split(var.name, size, "zero" if var.extent % size else "exact")
        names.append(f"{var.name}i" if size < var.extent else var.name)
    whole = [f"{var.name}o" for var, size in rows if size < var.extent]
    outside = [r.name for r in c.reduction if r not in [var for var, _ in rows]]
    holder = (holder, *outside, *whole)[-1]
    yield Distribute((*u.registers, *v.registers))
    for operand, axis in ((c.across, u), (c.along, v)):
        used = [n for n, (var, _) in zip(names, rows, strict=True) if var in operand.vars]
        yield Stage(holder, only_buffer(operand), (*used, *axis.inside), True)


class _Axis:
    """An output loop and the loops it becomes.

    Attributes:
        block: loops over blocks.
        threads: loops over threads, the last one over neighbours.
        registers: loops over what a thread holds, the last one over elements side by side.
        inside: the loops of a tile, in the order in which it lies.
        taken: other output loops that are part of it.
    """

    def __init__(self, var: Var, size: int, groups: int):
        self.var, self.size, self.groups = var, size, groups
        self.taken: tuple[Var, ...] = ()
        self.block: tuple[str, ...] = (f"{var.name}o",) if size < var.extent else ()
        own = f"{var.name}i" if self.block else var.name
        inner = f"{own}i" if groups > 1 else own
        self.threads: tuple[str, ...] = (f"{inner}o",)
        self.registers = (*((f"{own}o",) if groups > 1 else ()), f"{inner}i")
        self.inside = (*self.registers[:-1], *self.threads, self.registers[-1])

    def split(self) -> Iterator[Opt]:
        """Into blocks, groups, threads, and elements side by side."""
        name = self.var.name
        if self.block:
            yield Split(name, self.size, "mask" if self.var.extent % self.size else "exact")
            name = f"{name}i"
        if self.groups > 1:
            yield Split(name, self.size // self.groups)
            name = f"{name}i"
        yield Split(name, GROUP)


class _Lines(_Axis):
    """A short output loop, whole, and some iterations of another one, the lines: an image's."""

    def __init__(self, var: Var, lines: Var, count: int, teams: int):
        """`teams` of threads have `count` lines each."""
        super().__init__(var, var.extent, 1)
        self.lines, self.count, self.teams = lines, count, teams
        self.taken = (lines,)
        self.block = (f"{lines.name}o",) if count * teams < lines.extent else ()
        self.own = f"{lines.name}i" if self.block else lines.name
        line, team = (f"{self.own}i", (f"{self.own}o",)) if teams > 1 else (self.own, ())
        self.threads = (*team, *self.threads)
        self.registers = (line, f"{var.name}i")
        self.inside = (*team, line, self.threads[-1], self.registers[-1])

    def split(self) -> Iterator[Opt]:
        """Into blocks of lines, teams, and threads with elements side by side in each line."""
        if self.block:
            size = self.count * self.teams
            yield Split(self.lines.name, size, "mask" if self.lines.extent % size else "exact")
        if self.teams > 1:
            yield Split(self.own, self.count)
        yield Split(self.var.name, GROUP, "mask" if self.var.extent % GROUP else "exact")


def _rows(reduction: Sequence[Var], most: int) -> _Rows:
    """The innermost loops of the sum, as far as `most` steps reach, and how much of each."""
    rows: _Rows = []
    left = most
    for var in reversed(reduction):
        if var.extent <= left:
            rows.insert(0, (var, var.extent))
            left //= var.extent
            continue
        if not rows:
            exact = [d for d in range(most // 2, most + 1) if var.extent % d == 0]
            rows.insert(0, (var, exact[-1] if exact else most))
        break
    return rows


class _Choice(NamedTuple):
    """A tile, the loops that make it, and how many there are."""

    tile: Tile
    u: _Axis
    v: _Axis
    blocks: int


def _choose(c: register_tiling.Contraction, target: Target) -> tuple[_Rows, _Axis, _Axis]:
    """The largest tile that fits, and of which there are enough for the machine."""
    assert c.u is not None
    itemsize = max(c.along.dtype.itemsize, c.across.dtype.itemsize)
    fitting: list[_Choice] = []
    for depth in DEPTHS:
        rows = _rows(c.reduction, depth * 4 // max(itemsize, 4))
        row_bytes = math.prod(size for _, size in rows) * itemsize
        choices = _choices(c, c.u, target.warp)
        fitting = [one for one in choices if _fits(one.tile, target, row_bytes)]
        if fitting:
            break
    if not fitting:
        raise IllegalOpt("no tile fits")
    wanted = min(target.workers * 2, max(choice.blocks for choice in fitting))
    enough = [choice for choice in fitting if choice.blocks >= wanted]
    elements = math.prod(var.extent for var in (c.u, c.v, *c.outer))

    def merit(choice: _Choice) -> tuple[float, int, int]:
        # Elements that are computed for each one that is wanted count in steps of a quarter.
        waste = choice.blocks * choice.tile.u * choice.tile.v / elements
        return waste // 1.25, -choice.tile.sums, -choice.tile.u * choice.tile.v

    best = min(enough, key=merit)
    return rows, best.u, best.v


def _choices(c: register_tiling.Contraction, u: Var, warp: int) -> Iterator[_Choice]:
    batch = math.prod(var.extent for var in c.outer)
    for t in TILES:
        if t.u <= u.extent and t.v <= c.v.extent:
            blocks = -(-u.extent // t.u) * -(-c.v.extent // t.v) * batch
            yield _Choice(t, _Axis(u, t.u, t.groups_u), _Axis(c.v, t.v, t.groups_v), blocks)
    lines = [v for v in c.outer if v in c.along.vars and v not in c.across.vars and v.stop is None]
    if not lines or c.v.extent <= GROUP:
        return
    threads = -(-c.v.extent // GROUP)
    for size, groups, count in SHORT_TILES:
        if size <= u.extent and count < lines[-1].extent:
            teams, most = 1, lines[-1].extent // count
            while teams * 2 <= most and size // (groups * GROUP) * threads * teams < warp:
                teams *= 2
            t = Tile(size, threads * GROUP * count * teams, groups, count)
            per_line = batch // lines[-1].extent * -(-lines[-1].extent // (count * teams))
            v = _Lines(c.v, lines[-1], count, teams)
            yield _Choice(t, _Axis(u, size, groups), v, per_line * -(-u.extent // size))


def _fits(t: Tile, target: Target, row_bytes: int) -> bool:
    registers = target.registers or 4 * OTHER_REGISTERS
    return (
        t.u * t.v // t.sums <= target.threads
        and t.sums + t.operands + OTHER_REGISTERS <= registers
        and row_bytes * (t.u + t.v + 2 * GROUP) <= target.shared_bytes
    )

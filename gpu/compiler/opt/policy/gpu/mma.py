"""Tiles of matrix instructions for products of matrices whose operands have 16 bits.

A block computes a tile of the output, each of its warps a part of that. Loops become

    u = BU * uo + WU * uw + 16 * ut + 8 * uh + ur        uw, ur: threads; ut, uh: registers
    v = BV * vo + WV * vw +  8 * vt + 2 * vp + vl        vw, vp: threads; vt, vl: registers
    k = BK * ko + 16 * ks + ki

where ur and vp count the 32 threads of a warp. Operands go through team memory, where copies bring
them some steps ahead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import Expr, Var
from gpu.compiler.ir.kernel.tree import loads_of, only_buffer
from gpu.compiler.ir.matrix import HELD, MATRICES, SIDE, WARP, Matrix
from gpu.compiler.opt.analysis.loop_nest import outer_nest
from gpu.compiler.opt.opts import (
    AsyncFetch,
    Bind,
    Distribute,
    Opt,
    Pipeline,
    Reorder,
    Split,
    Tensorize,
)
from gpu.compiler.opt.policy.cpu import register_tiling
from gpu.compiler.opt.primitives.async_fetch import APART, copy_size, narrow
from gpu.compiler.targets import Target
from gpu.core.errors import IllegalOpt

# Registers of a thread beside its sums and parts: addresses of both operands, and copies' places.
OTHER_REGISTERS: Final = 48
# Steps of the sum between two copies and how many tiles of them there is room for, the best first.
STAGES: Final = ((64, 3), (32, 4), (32, 3), (16, 4), (32, 2), (16, 3), (16, 2), (32, 1), (16, 1))
# Rows of blocks that follow each other before the next column does.
GROUPS: Final = (8, 4, 2)


class Tile(NamedTuple):
    """Sizes of a block's tile along `u` and `v`, and how many warps share each."""

    u: int
    v: int
    warps_u: int
    warps_v: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warps_u * self.warps_v * WARP

    @property
    def sums(self) -> int:
        """Sums of a thread."""
        return self.u * self.v // self.threads

    @property
    def registers(self) -> int:
        """Registers of a thread, about."""
        parts = self.u // self.warps_u // SIDE * 2 + self.v // self.warps_v // SIDE * 2
        return self.sums + parts + OTHER_REGISTERS


TILES: Final = (
    Tile(128, 256, 2, 4),
    Tile(256, 128, 4, 2),
    Tile(128, 128, 2, 4),
    Tile(64, 128, 2, 4),
    Tile(128, 64, 4, 2),
    Tile(64, 64, 2, 2),
    Tile(32, 64, 1, 2),
    Tile(64, 32, 2, 1),
    Tile(32, 32, 1, 2),
)
"""Tiles of blocks, those that use an operand the most often first."""


def by_instructions(kernel: K.Kernel, target: Target) -> Iterator[Opt]:
    """The transformations for a product of matrices. Raises IllegalOpt for anything else."""
    c = register_tiling.match(kernel)
    if c is None or c.u is None:
        raise IllegalOpt("no product of matrices")
    how = _instruction(c, target)
    k = max(c.reduction, key=lambda var: var.extent)
    if any(r.stop is not None for r in c.reduction):
        raise IllegalOpt("how long the sums are is not known")
    tile = _tile(c, target)
    across = _Axis(c.u, tile.u, tile.warps_u, how.m, SIDE)
    along = _Axis(c.v, tile.v, tile.warps_v, how.n, HELD)
    operands = (_operand(c.across, across, k), _operand(c.along, along, k))
    depth, slots = _stages(tile, k, operands, target)
    yield from (Bind(loop.var.name, "grid") for loop in outer_nest(kernel.body))
    yield from (*across.split(), *along.split())
    threads = (across.warps, along.warps, across.lanes, along.lanes)
    registers = (across.tiles, along.tiles, across.inner, along.inner)
    outer = tuple(var.name for var in c.outer)
    yield Reorder((*outer, across.block, along.block, *threads, *registers))
    yield from _grouped(across, along)
    yield from (Bind(name, "thread") for name in threads)
    yield from (Bind(name, "unroll") for name in registers)
    others = tuple(var.name for var in c.reduction if var is not k)
    if others:
        yield Reorder((*others, k.name))
    whole, steps, step = f"{k.name}o", f"{k.name}io", f"{k.name}ii"
    yield Split(k.name, depth, "zero" if k.extent % depth else "exact")
    yield Split(f"{k.name}i", how.k)
    yield Distribute(registers)
    for one in operands:
        summed, lines = (steps, step), one.axis.inside
        rows, columns = (lines, summed) if one.along_sum else (summed, lines)
        yield AsyncFetch(whole, one.buf, rows, columns, one.size)
    yield Tensorize((steps, step), how.name)
    if slots > 1:
        yield Pipeline(whole, slots)


def _instruction(c: register_tiling.Contraction, target: Target) -> Matrix:
    """The instruction whose operands these are."""
    held = {narrow(operand).dtype for operand in (c.across, c.along)}
    for name in target.matrices:
        if held == {MATRICES[name].operand}:
            return MATRICES[name]
    raise IllegalOpt(f"no matrix instruction for {sorted(d.name for d in held)}")


class _Axis:
    """An output loop and the loops it becomes.

    Attributes:
        block, blocks: the loop over blocks, and how many there are.
        warps, lanes: loops over threads: warps, and neighbours in a warp.
        tiles, inner: loops over what a thread holds: tiles of an instruction, elements of a tile.
        inside: the loops of a block's tile, outermost first.
    """

    def __init__(self, var: Var, size: int, warps: int, side: int, run: int):
        """A tile of `size` for `warps` warps; an instruction does `side`, `run` by a thread."""
        self.var, self.size, self.warp_size = var, size, size // warps
        self.side, self.run = side, run
        self.blocks = -(-var.extent // size)
        name = var.name
        self.block, self.warps = f"{name}o", f"{name}io"
        self.tiles, of_tile = f"{name}iio", f"{name}iiio"
        last = f"{name}iiii"
        # Rows of A: halves of 8 rows, a thread each. Columns of B: threads, neighbours of each.
        self.lanes, self.inner = (last, of_tile) if run == SIDE else (of_tile, last)
        self.inside = (self.warps, self.tiles, of_tile, last)

    def split(self) -> Iterator[Opt]:
        """Into blocks, warps, tiles, and what a tile is made of."""
        name = self.var.name
        yield Split(name, self.size, "mask" if self.var.extent % self.size else "exact")
        yield Split(f"{name}i", self.warp_size)
        yield Split(f"{name}ii", self.side)
        yield Split(f"{name}iii", self.run)


def _grouped(across: _Axis, along: _Axis) -> Iterator[Opt]:
    """Blocks that run at once make up a square, which reads less than a few whole lines of blocks.

    Neighbours are then in groups of rows, where these divide all of them.
    """
    rows, columns = across.blocks, along.blocks
    size = max((n for n in GROUPS if rows % n == 0 and rows > n), default=1)
    if size > 1 and columns > 1:
        yield Split(across.block, size)
        yield Reorder((f"{across.block}o", along.block, f"{across.block}i"))


class _Operand(NamedTuple):
    """An operand: its buffer, which way it lies, and how much of it is copied at once."""

    buf: str
    axis: _Axis
    along_sum: bool
    size: int


def _operand(operand: K.Value, axis: _Axis, k: Var) -> _Operand:
    buf = only_buffer(operand)
    index: Expr = loads_of(operand)[0].attr[1][-1]
    along_sum = index.coeff(axis.var) != 1
    value = narrow(operand)
    near = k if along_sum else axis.var
    return _Operand(buf, axis, along_sum, copy_size(value, (near,)))


def _tile(c: register_tiling.Contraction, target: Target) -> Tile:
    """The largest tile that fits, and of which there are enough for the machine."""
    assert c.u is not None
    u, v, batch = c.u.extent, c.v.extent, math.prod(var.extent for var in c.outer)

    def blocks(tile: Tile) -> int:
        return -(-u // tile.u) * -(-v // tile.v) * batch

    def merit(tile: Tile) -> tuple[float, int]:
        # Elements that are computed for each one that is wanted count in steps of a quarter.
        waste = blocks(tile) * tile.u * tile.v / (u * v * batch)
        return waste // 1.25, TILES.index(tile)

    most = 2 * (target.registers or 4 * OTHER_REGISTERS)
    fitting = [
        t
        for t in TILES
        if t.u <= u and t.v <= v and t.threads <= target.threads and t.registers <= most
    ]
    if not fitting:
        raise IllegalOpt(f"no tile of matrix instructions fits {u} x {v}")
    wanted = min(target.workers, max(map(blocks, fitting)))
    return min((t for t in fitting if blocks(t) >= wanted), key=merit)


def _stages(tile: Tile, k: Var, operands: tuple[_Operand, ...], target: Target) -> tuple[int, int]:
    """Steps of the sum that a tile of operands has, and how many of these there is room for."""
    ahead = all(operand.size > 1 for operand in operands)
    exact = [depth for depth, _ in STAGES if depth <= k.extent and k.extent % depth == 0]
    for depth, slots in STAGES:
        elements = 0
        for operand in operands:
            lines = operand.axis.size
            rows, columns = (lines, depth) if operand.along_sum else (depth, lines)
            elements += rows * (columns + APART)
        few = slots == 1 or (ahead and slots <= -(-k.extent // depth))
        best = depth <= k.extent and (depth in exact or not exact)
        if few and best and 2 * elements * slots <= target.shared_bytes:
            return depth, slots
    raise IllegalOpt(f"sums of {k.extent} products are too short, or tiles do not fit")

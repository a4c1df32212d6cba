"""Tiles for products of matrices by instructions that one thread executes.

Four tiles of sums stay in registers, two by two, so that each tile of an operand that is loaded is
used twice. Loops become

    u = 32 * uo + 16 * ut + ur
    v = 32 * (P * vo + vp) + 16 * vt + vc
    k = 32 * ko + 2 * kw + ki

or with operands of 8 bits

    k = 64 * ko + 4 * kw + ki

with a worker for each panel of P times 32 columns, which it packs, and in it all rows; where there
are fewer panels than workers these have chunks of rows instead. Rows of the other operand are read
where they lie, or are packed as well, 32 of them for all columns of a panel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import ALWAYS, Var
from gpu.compiler.ir.kernel.tree import loads_of, only_buffer
from gpu.compiler.ir.matrix import MATRICES, TILE_ROWS, Matrix
from gpu.compiler.opt.analysis.loop_nest import outer_nest
from gpu.compiler.opt.analysis.reduction_nest import reduction_nest
from gpu.compiler.opt.opts import (
    Bind,
    Distribute,
    Fuse,
    Opt,
    Pack,
    Reorder,
    Split,
    Tensorize,
    Widen,
    apply,
)
from gpu.compiler.opt.policy.cpu import register_tiling
from gpu.compiler.opt.policy.cpu.tile_cost import SERIAL
from gpu.compiler.opt.policy.cpu.tiling import schedules
from gpu.compiler.opt.primitives.narrow_operand import narrow
from gpu.compiler.targets import Target
from gpu.core.dtype import dtypes
from gpu.core.errors import IllegalOpt

# Tiles of sums along either side, where there are elements for so many.
SIDE_BY_SIDE: Final = 2
# Bytes of a packed panel: half of the second-level cache that every CPU with AMX has, 2 MiB
# (Intel, "Xeon Scalable processors", 4th generation).
PANEL_BYTES: Final = 1 << 20
# Lines of the other operand that pay for packing elements which have to be picked one by one: that
# takes about 2.5 cycles for each, in which vectors of AVX-512 multiply with 80 lines.
PAYING_LINES: Final = 128
# Cycles of an element of columns that is packed, of one of rows that is, and of a result.
COLUMN: Final = 0.35
ROW: Final = 0.15
RESULT: Final = 0.3
# Products of neighbours that vectors do in a cycle at most.
FASTEST: Final = 32


class _Axis(NamedTuple):
    """An output loop, split into blocks of `tiles` tiles of `side` iterations."""

    var: Var
    tiles: int
    side: int

    @property
    def size(self) -> int:
        """Iterations of a block."""
        return self.tiles * self.side

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return -(-self.var.extent // self.size)

    @property
    def whole(self) -> bool:
        """Whether all blocks are."""
        return self.var.extent % self.size == 0

    @property
    def block(self) -> str:
        """The loop over blocks."""
        return f"{self.var.name}o"

    @property
    def inside(self) -> tuple[str, str]:
        """The loops over the tiles of a block, and over what a tile is made of."""
        return f"{self.var.name}io", f"{self.var.name}ii"

    def split(self) -> Iterator[Opt]:
        """The loop into these."""
        yield Split(self.var.name, self.size, "exact" if self.whole else "mask")
        yield Split(f"{self.var.name}i", self.side)


class _Shares(NamedTuple):
    """How work is shared out: blocks of columns in a panel, and of rows in a chunk.

    Where `rows_first` workers have chunks, else panels.
    """

    panel: int
    chunk: int
    rows_first: bool


def by_thread(kernel: K.Kernel, target: Target, parallel: bool) -> Iterator[Opt]:
    """The transformations for a product of matrices, which workers share if it is `parallel`.

    Raises IllegalOpt for anything else.
    """
    before = kernel
    if _is_narrow_sum(kernel):
        yield Widen()
        kernel = apply(kernel, [Widen()])
    c = register_tiling.match(kernel)
    if c is None or c.u is None:
        raise IllegalOpt("no product of matrices")
    how, k = _instruction(c, target), _summed(c)
    if not _is_worth_it(before, target, c, how, k):
        raise IllegalOpt(f"{c.u.extent} x {c.v.extent} x {k.extent} fills tiles too little")
    rows, columns = _axis(c.u, how.m), _Axis(c.v, min(SIDE_BY_SIDE, -(-c.v.extent // how.n)), how.n)
    shares = _shares(c, rows, columns, target, _step(c.across, k) != 1)
    whole = rows.whole and rows.blocks % shares.chunk == 0 and k.extent % how.k == 0
    direct, squares = whole and _lies_in_rows(c, k), whole and _step(c.across, c.u) == 1
    if not squares and _step(c.across, k) != 1 and shares.panel * columns.size < PAYING_LINES:
        raise IllegalOpt("too few columns to pick rows for, element by element")
    if 1 not in (_step(c.along, c.v), _step(c.along, k)) and c.u.extent < PAYING_LINES:
        raise IllegalOpt("too few rows to pick columns for, element by element")
    # Loops stay independent whatever they are split into, but that shows best while they are whole.
    yield from (Bind(loop.var.name, "worker") for loop in outer_nest(kernel.body))
    yield from _blocked(tuple(var.name for var in c.outer), rows, columns, shares, parallel)
    others = tuple(var.name for var in c.reduction if var is not k)
    if others:
        yield Reorder((*others, k.name))
    steps, word, one = f"{k.name}o", f"{k.name}io", f"{k.name}ii"
    yield Split(k.name, how.k, "zero" if k.extent % how.k else "exact")
    yield Split(f"{k.name}i", how.together)
    (ut, ur), (vt, vc) = rows.inside, columns.inside
    yield Distribute((ut, vt, ur, vc))
    yield from _packed_columns(c, columns, (steps, vt, word, vc), one)
    if not direct:
        yield from _packed_rows(c, k, f"{rows.block}i", (steps, ut, ur, word, one), squares)
    yield Tensorize((*others, steps, word, one), how.name)


def _is_worth_it(
    kernel: K.Kernel, target: Target, c: register_tiling.Contraction, how: Matrix, k: Var
) -> bool:
    """Whether tiles are faster than vectors, which need not be packed, nor be as full."""
    assert c.u is not None
    sides = ((c.u, how.m), (c.v, how.n), (k, how.k))
    tiles = [-(-var.extent // side) for var, side in sides]
    m, n, depth = (count * side for count, (_, side) in zip(tiles, sides, strict=True))
    results = math.prod(var.extent for var in c.outer)
    others = results * math.prod(var.extent for var in c.reduction) / k.extent
    packed = COLUMN * n * depth + ROW * m * depth
    time = others * (math.prod(tiles) * how.m + packed) + results * m * n * RESULT
    steps = others * math.prod(var.extent for var, _ in sides)
    if time * FASTEST * how.together < steps:
        return True
    core = replace(target, workers=1)
    return time < min((cost - SERIAL for cost, _ in schedules(kernel, core)), default=math.inf)


def _is_narrow_sum(kernel: K.Kernel) -> bool:
    """Whether it adds products of integers up in fewer bits than instructions do."""
    found = reduction_nest(kernel.body)
    dtype = found.update.value.dtype if found else dtypes.int32
    is_product = found is not None and found.update.value.attr == ("mul",)
    return is_product and dtype.is_int and dtype.bits < dtypes.int32.bits


def _blocked(
    outer: tuple[str, ...], rows: _Axis, columns: _Axis, shares: _Shares, parallel: bool
) -> Iterator[Opt]:
    """The loops of the output in blocks, of which workers may share the outermost."""
    yield from (*rows.split(), *columns.split())
    for axis, size in ((columns, shares.panel), (rows, shares.chunk)):
        yield Split(axis.block, size, "mask" if axis.blocks % size else "exact")
    chunk, block = f"{rows.block}o", f"{rows.block}i"
    panel, tile = f"{columns.block}o", f"{columns.block}i"
    shared = (chunk, *outer, panel) if shares.rows_first else (*outer, panel, chunk)
    counted = (*shared, block, tile)
    (ut, ur), (vt, vc) = rows.inside, columns.inside
    yield Reorder((*counted, ut, vt, ur, vc))
    yield from (Bind(name, "serial") for name in (*counted[int(parallel) :], ur))
    yield from (Bind(ut, "unroll"), Bind(vt, "unroll"), Bind(vc, "vector"))


def _instruction(c: register_tiling.Contraction, target: Target) -> Matrix:
    """The instruction whose operands these are."""
    held = narrow(c.across).dtype, narrow(c.along).dtype
    for name in target.matrices:
        how = MATRICES[name]
        if (how.operands, how.sums, how.threads) == (held, c.along.dtype, 1):
            return how
    raise IllegalOpt(f"no matrix instruction for {held[0].name} and {held[1].name}")


def _summed(c: register_tiling.Contraction) -> Var:
    """The longest loop of the sum on which both operands depend."""
    both = [var for var in c.reduction if var in c.across.vars and var in c.along.vars]
    if not both or any(var.stop is not None for var in c.reduction):
        raise IllegalOpt("how long the sums are is not known, or an operand is the same in them")
    return max(both, key=lambda var: var.extent)


def _axis(var: Var, side: int) -> _Axis:
    """Blocks of `SIDE_BY_SIDE` tiles, but of one where that leaves no rest."""
    single = var.extent < SIDE_BY_SIDE * side or (
        var.extent % side == 0 and var.extent % (SIDE_BY_SIDE * side)
    )
    return _Axis(var, 1 if single else SIDE_BY_SIDE, side)


def _shares(
    c: register_tiling.Contraction, rows: _Axis, columns: _Axis, target: Target, picks_rows: bool
) -> _Shares:
    depth = math.prod(var.extent for var in c.reduction if var in c.along.vars)
    fit = PANEL_BYTES // (depth * narrow(c.along).dtype.itemsize * columns.size)
    most = max(min(fit, columns.blocks), 1)
    if not c.outer and columns.blocks >= target.workers:
        fewer = min(most, columns.blocks // target.workers)
        # Rows that are picked element by element are picked for each panel: few columns do not pay.
        if not picks_rows or fewer * columns.size >= PAYING_LINES:
            most = fewer
    panels = -(-columns.blocks // most)
    top = c.outer[0].extent if c.outer else panels
    chunk, enough = rows.blocks, min(target.workers, rows.blocks)
    if top < enough:
        # A few more chunks than workers, each of which packs its panels, or one that is not full.
        exact = (n for n in range(enough, 2 * enough) if rows.blocks % n == 0)
        chunk = -(-rows.blocks // next(exact, enough))
    return _Shares(-(-columns.blocks // panels), chunk, top < enough)


def _step(operand: K.Value, var: Var) -> int:
    """How far an iteration of `var` moves on in the memory of an operand."""
    steps = {load.attr[1][-1].coeff(var) for load in loads_of(operand)}
    return int(steps.pop()) if len(steps) == 1 else 0


def _lies_in_rows(c: register_tiling.Contraction, k: Var) -> bool:
    """Whether tiles of rows can be loaded where they are."""
    value = narrow(c.across)
    plain = value.kind == "load" and value.attr[2] is ALWAYS and len(value.attr[1]) == 1
    return plain and _step(value, k) == 1


def _packed_columns(
    c: register_tiling.Contraction, columns: _Axis, inside: tuple[str, ...], one: str
) -> Iterator[Opt]:
    """A panel in words, 16 x 16 of them for each tile."""
    steps, of_block, word, column = inside
    others = tuple(v.name for v in c.reduction if v in c.along.vars and f"{v.name}o" != steps)
    order = (f"{columns.block}i", *others, steps, of_block, word, column)
    yield Pack(f"{columns.block}o", only_buffer(c.along), order, one)
    # Where columns are no neighbours, two steps of each may be, and are loaded as one word.
    yield Bind(f"{column}w", "vector" if _step(c.along, c.v) == 1 else "unroll")


def _packed_rows(
    c: register_tiling.Contraction, k: Var, block: str, inside: tuple[str, ...], squares: bool
) -> Iterator[Opt]:
    """The rows of a block; where rows are neighbours, in `squares` that are transposed."""
    steps, of_block, row, word, one = inside
    others = tuple(v.name for v in c.reduction if v in c.across.vars and v is not k)
    yield Pack(block, only_buffer(c.across), (*others, steps, of_block, row, word, one))
    copied = f"{word}s"
    yield Fuse(copied, f"{one}s")
    if _step(c.across, k) == 1:
        yield Bind(copied, "vector")
    elif squares:
        yield Split(copied, TILE_ROWS)
        yield Reorder((f"{copied}o", f"{row}s", f"{copied}i"))
        yield from (Bind(f"{row}s", "unroll"), Bind(f"{copied}i", "vector"))

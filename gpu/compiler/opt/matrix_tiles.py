"""Tiles for products of matrices by instructions that one thread executes.

Four tiles of sums stay in registers, two by two, so that each tile of an operand that is loaded is
used twice. Loops become

    u = 32 * uo + 16 * ut + ur
    v = 32 * (P * vo + vp) + 16 * vt + vc
    k = 32 * ko + 2 * kw + ki

with a worker for each panel of P times 32 columns, which it packs, and in it all rows; where there
are fewer panels than workers these have chunks of rows instead. Rows of the other operand are read
where they lie, or are packed as well, 32 of them for all columns of a panel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import ALWAYS, Var
from gpu.compiler.ir.matrix import MATRICES, Matrix
from gpu.compiler.opt import contraction
from gpu.compiler.opt.fetch import narrow
from gpu.compiler.opt.opts import Bind, Fuse, Opt, Pack, Reorder, Sink, Split, Tensorize
from gpu.compiler.opt.tree import IllegalOpt, loads_of, only_buffer
from gpu.compiler.target import Target

# Tiles of sums along either side, where there are elements for so many.
SIDE_BY_SIDE: Final = 2
# Bytes of a packed panel: half of the second-level cache that every CPU with AMX has, 2 MiB
# (Intel, "Xeon Scalable processors", 4th generation).
PANEL_BYTES: Final = 1 << 20
# Columns of a panel that pay for packing rows whose elements have to be picked one by one.
PAYING_COLUMNS: Final = 64


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


def by_thread(kernel: K.Kernel, target: Target) -> Iterator[Opt]:
    """The transformations for a product of matrices. Raises IllegalOpt for anything else."""
    c = contraction.match(kernel)
    if c is None or c.u is None:
        raise IllegalOpt("no product of matrices")
    how, k = _instruction(c, target), _summed(c)
    if c.u.extent < how.m or c.v.extent < how.n or k.extent < how.k:
        raise IllegalOpt(f"{c.u.extent} x {c.v.extent} x {k.extent} is less than a tile")
    rows, columns = _axis(c.u, how.m), _axis(c.v, how.n)
    shares = _shares(c, rows, columns, target)
    direct = _lies_in_rows(c, k) and rows.whole and k.extent % how.k == 0
    if not direct and not _packs_well(c, k) and shares.panel * columns.size < PAYING_COLUMNS:
        raise IllegalOpt("few columns for which rows would be packed element by element")
    yield from (*rows.split(), *columns.split())
    yield Split(columns.block, shares.panel, "mask" if columns.blocks % shares.panel else "exact")
    yield Split(rows.block, shares.chunk)
    outer = tuple(var.name for var in c.outer)
    chunk, block = f"{rows.block}o", f"{rows.block}i"
    panel, tile = f"{columns.block}o", f"{columns.block}i"
    counted = (chunk, *outer, panel) if shares.rows_first else (*outer, panel, chunk)
    (ut, ur), (vt, vc) = rows.inside, columns.inside
    yield Reorder((*counted, block, tile, ut, vt, ur, vc))
    yield from (Bind(ut, "unroll"), Bind(vt, "unroll"), Bind(vc, "vector"))
    others = tuple(var.name for var in c.reduction if var is not k)
    if others:
        yield Reorder((*others, k.name))
    whole, word, one = f"{k.name}o", f"{k.name}io", f"{k.name}ii"
    yield Split(k.name, how.k, "zero" if k.extent % how.k else "exact")
    yield Split(f"{k.name}i", how.together)
    yield Sink((ut, vt, ur, vc))
    yield from _packed_columns(c, panel, tile, (whole, vt, word, vc), one)
    if not direct:
        yield from _packed_rows(c, k, block, (whole, ut, ur, word, one))
    yield Tensorize((*others, whole, word, one), how.name)


def _instruction(c: contraction.Contraction, target: Target) -> Matrix:
    """The instruction whose operands these are."""
    held = {narrow(operand).dtype for operand in (c.across, c.along)}
    for name in target.matrices:
        if held == {MATRICES[name].operand} and MATRICES[name].threads == 1:
            return MATRICES[name]
    raise IllegalOpt(f"no matrix instruction for {sorted(d.name for d in held)}")


def _summed(c: contraction.Contraction) -> Var:
    """The longest loop of the sum on which both operands depend."""
    both = [var for var in c.reduction if var in c.across.vars and var in c.along.vars]
    if not both or any(var.stop is not None for var in c.reduction):
        raise IllegalOpt("how long the sums are is not known, or an operand is the same in them")
    return max(both, key=lambda var: var.extent)


def _axis(var: Var, side: int) -> _Axis:
    return _Axis(var, min(SIDE_BY_SIDE, var.extent // side), side)


def _shares(c: contraction.Contraction, rows: _Axis, columns: _Axis, target: Target) -> _Shares:
    depth = math.prod(var.extent for var in c.reduction if var in c.along.vars)
    fit = PANEL_BYTES // (depth * narrow(c.along).dtype.itemsize * columns.size)
    most = max(min(fit, columns.blocks), 1)
    if not c.outer and columns.blocks >= target.workers:
        most = min(most, columns.blocks // target.workers)
    panels = -(-columns.blocks // most)
    top = c.outer[0].extent if c.outer else panels
    chunks = 1
    if top < min(target.workers, rows.blocks):
        chunks = (
            min(
                n for n in range(1, rows.blocks + 1) if rows.blocks % n == 0 and n >= target.workers
            )
            if rows.blocks >= target.workers
            else rows.blocks
        )
    return _Shares(-(-columns.blocks // panels), rows.blocks // chunks, chunks > 1)


def _step(operand: K.Value, var: Var) -> int:
    """How far an iteration of `var` moves on in the memory of an operand."""
    steps = {load.attr[1][-1].coeff(var) for load in loads_of(operand)}
    return int(steps.pop()) if len(steps) == 1 else 0


def _lies_in_rows(c: contraction.Contraction, k: Var) -> bool:
    """Whether tiles of rows can be loaded where they are."""
    value = narrow(c.across)
    plain = value.kind == "load" and value.attr[2] is ALWAYS and len(value.attr[1]) == 1
    return plain and _step(value, k) == 1


def _packs_well(c: contraction.Contraction, k: Var) -> bool:
    """Whether steps of the sum are neighbours in the memory of rows."""
    return _step(c.across, k) == 1


def _packed_columns(
    c: contraction.Contraction, panel: str, tile: str, inside: tuple[str, ...], one: str
) -> Iterator[Opt]:
    """A panel in words, 16 x 16 of them for each tile."""
    whole, of_block, word, column = inside
    others = tuple(v.name for v in c.reduction if v in c.along.vars and f"{v.name}o" != whole)
    yield Pack(panel, only_buffer(c.along), (tile, *others, whole, of_block, word, column), one)
    # Where columns are no neighbours, two steps of each may be, and are loaded as one word.
    yield Bind(f"{column}w", "vector" if _step(c.along, c.v) == 1 else "unroll")


def _packed_rows(
    c: contraction.Contraction, k: Var, block: str, inside: tuple[str, ...]
) -> Iterator[Opt]:
    """The rows of a block."""
    whole, of_block, row, word, one = inside
    others = tuple(v.name for v in c.reduction if v in c.across.vars and v is not k)
    yield Pack(block, only_buffer(c.across), (*others, whole, of_block, row, word, one))
    yield Fuse(f"{word}s", f"{one}s")
    if _packs_well(c, k):
        yield Bind(f"{word}s", "vector")

"""Rules for the statements of matrix instructions, checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from gpu.compiler.ir.index import ALWAYS, Expr, Mask, expr
from gpu.compiler.ir.kernel import (
    AsyncCopy,
    Buf,
    Commit,
    Fragment,
    LoadTile,
    Loop,
    MatrixStmt,
    Mma,
    StoreTile,
    Wait,
)
from gpu.compiler.ir.matrix import (
    COPY_BYTES,
    HELD,
    MATRICES,
    SIDE,
    TILE_BYTES,
    TILE_ROWS,
    WARP,
)


class Checker(Protocol):
    """What checks the statements around these."""

    loops: list[Loop]

    def require(self, condition: bool, rule: str) -> None:
        """Raises for the current statement unless `condition` holds."""
        ...

    def access(self, buf: Buf, indices: tuple[Expr, ...], mask: Mask) -> None:
        """A buffer that exists, with as many indices as dimensions, all inside it."""
        ...

    def uniform(self, what: str, kinds: Sequence[str]) -> None:
        """All threads of a block get here, or none, through loops of these kinds alone."""
        ...

    def is_written(self, buf: Buf) -> bool:
        """Whether some statement of the kernel writes a buffer."""
        ...


_ANY_LOOP = ("grid", "thread", "serial", "unroll")


def check_matrix(check: Checker, stmt: MatrixStmt) -> None:
    """Raises VerifyError for a statement that breaks a rule of its class."""
    match stmt:
        case AsyncCopy():
            _copy(check, stmt)
        case Commit():
            check.uniform("a commit", ("grid", "thread", "serial"))
        case Wait(pending):
            check.uniform("a wait", ("grid", "thread", "serial"))
            check.require(pending >= 0, "a wait is for all but some groups")
        case Fragment():
            _fragment(check, stmt)
        case Mma():
            _mma(check, stmt)
        case LoadTile():
            _tile(check, (stmt.buf, stmt.indices), (stmt.source, stmt.places), stmt.row)
        case StoreTile(buf):
            local = buf.space in ("team", "private")
            check.require(local, "a tile is stored to team or private memory")
            _tile(check, (stmt.source, stmt.places), (buf, stmt.indices), stmt.row)


def _copy(check: Checker, copy: AsyncCopy) -> None:
    buf, source, size = copy.buf, copy.source, copy.size
    spaces = buf.space == "team" and source.space == "global" and not check.is_written(source)
    check.require(spaces, "a copy goes from a parameter that is only read to team memory")
    check.require(buf.dtype is source.dtype, f"{source.name} holds {source.dtype.code}")
    sizes = size * buf.dtype.itemsize in COPY_BYTES
    check.require(sizes, f"a copy has {COPY_BYTES} bytes, not {size} of {buf.dtype.code}")
    for place, mask in (((buf, copy.indices), ALWAYS), ((source, copy.places), copy.mask)):
        check.access(*place, mask)
        last = place[1][-1]
        check.require(last.gcd() % size == 0, f"a copy of {size} does not begin at {last}")
        check.access(place[0], (*place[1][:-1], last + (size - 1)), mask)


def _warps(check: Checker, what: str, warp: int = WARP) -> None:
    check.uniform(what, _ANY_LOOP)
    threads = math.prod(loop.var.extent for loop in check.loops if loop.kind == "thread")
    check.require(threads % warp == 0, f"{what} takes warps of {warp}, a block has {threads}")


def _registers(
    check: Checker, buf: Buf, indices: tuple[Expr, ...], space: str, held: int = HELD
) -> None:
    check.require(buf.space == space, f"{buf.name} must be {space}")
    fits = len(buf.shape) >= 2 and buf.shape[-1] == held
    check.require(fits, f"{buf.name} must hold parts of {held} elements")
    check.access(buf, (*indices, expr(0), expr(0)), ALWAYS)


def _fragment(check: Checker, load: Fragment) -> None:
    _warps(check, "a fragment")
    buf, source, count = load.buf, load.source, 1 << len(load.steps)
    _registers(check, buf, load.indices, "fragment")
    rows = count // buf.shape[-2]
    check.require(count % buf.shape[-2] == 0 and count <= 4, f"{count} parts are no whole rows")
    last = load.indices[-1] if load.indices else expr(0)
    inside = (*load.indices[:-1], last + (rows - 1)) if load.indices else ()
    _registers(check, buf, inside, "fragment")
    narrow = source.dtype is buf.dtype and buf.dtype.bits == 16 and source.space == "team"
    check.require(narrow, f"{buf.name} is loaded from team memory with elements of 16 bits")
    first = load.places[-1]
    aligned = math.gcd(first.gcd(), load.row, *load.steps) % SIDE == 0
    check.require(aligned, f"rows of parts begin at multiples of {SIDE}")
    check.access(source, load.places, ALWAYS)
    reach = sum(load.steps) + (SIDE - 1) * (load.row + 1)
    check.access(source, (*load.places[:-1], first + reach), ALWAYS)


def _mma(check: Checker, stmt: Mma) -> None:
    check.require(stmt.name in MATRICES, f"{stmt.name} is no matrix instruction")
    how = MATRICES[stmt.name]
    _executed(check, "a mma", how.threads)
    sums = "private" if how.layout else "fragment"
    own = "private" if how.layout and not how.layout.together else "fragment"
    operands = (
        (stmt.a, stmt.a_indices, how.a, own),
        (stmt.b, stmt.b_indices, how.b, own),
        (stmt.buf, stmt.indices, how.c, sums),
    )
    for (buf, indices, parts, space), part in zip(operands, how.parts, strict=True):
        _registers(check, buf, indices, space, part.held)
        check.require(buf.shape[-2] == len(parts), f"{buf.name} must hold {len(parts)} parts")
    dtypes = (*how.operands, how.sums)
    for buf, dtype in zip((stmt.a, stmt.b, stmt.buf), dtypes, strict=True):
        check.require(buf.dtype is dtype, f"{buf.name} must hold {dtype.code}")


def _executed(check: Checker, what: str, threads: int) -> None:
    """By a whole warp, or by one thread."""
    if threads > 1:
        _warps(check, what, threads)
    alone = all(loop.kind != "vector" for loop in check.loops)
    check.require(alone, f"{what} is in no loop of lanes")


def _tile(
    check: Checker,
    fragment: tuple[Buf, tuple[Expr, ...]],
    memory: tuple[Buf, tuple[Expr, ...]],
    row: int,
) -> None:
    """A fragment that is a tile, and memory that has all rows of one."""
    _executed(check, "a tile", 1)
    held, (buf, indices) = fragment[0], memory
    elements = TILE_ROWS * TILE_BYTES // held.dtype.itemsize
    _registers(check, *fragment, "fragment", elements)
    check.require(held.shape[-2] == 1, f"{held.name} must hold tiles, each a single part")
    check.access(buf, indices, ALWAYS)
    across = TILE_BYTES // buf.dtype.itemsize
    check.require(row >= across, f"rows of {across} elements are {row} apart")
    last = _flat(buf, indices) + (TILE_ROWS - 1) * row + across - 1
    size = math.prod(buf.shape)
    check.require(last.hi < size, f"a tile ends at {last.hi} of {buf.name}, which has {size}")


def _flat(buf: Buf, indices: tuple[Expr, ...]) -> Expr:
    position = expr(0)
    for index, size in zip(indices, buf.shape, strict=True):
        position = position * size + index
    return position

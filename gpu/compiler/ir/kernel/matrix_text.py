"""The statements for matrix instructions in the text form of the kernel IR.

copy xs[0, 8*t] = x[64*k + 8*t if 99 - k >= 0] size 8
commit
wait 1
fragment a[m] = xs[0, 16*m] row 40 steps (320, 8) transposed
mma acc[m, n] += a[m] b[n] m16n8k16.f16
load_tile a[m] = x[64*m] row 128
store_tile t[m, n, 0, 0] = acc[m, n] row 16
"""

from __future__ import annotations

from typing import Final, Protocol

from gpu.compiler.ir.index import ALWAYS, Expr, Mask
from gpu.compiler.ir.kernel import (
    AsyncCopy,
    Buf,
    Commit,
    Fragment,
    LoadTile,
    MatrixStmt,
    Mma,
    StoreTile,
    Wait,
)
from gpu.compiler.ir.matrix import MATRICES
from gpu.compiler.ir.text import Cursor

WORDS: Final = ("copy", "commit", "wait", "fragment", "mma", "load_tile", "store_tile")
"""What these statements start with."""


class Places(Protocol):
    """What reads `name[indices]` within a kernel."""

    def place(self, at: Cursor) -> tuple[Buf, tuple[Expr, ...], Mask]:
        """The buffer, its indices, and the mask behind them."""
        ...


def print_matrix(stmt: MatrixStmt) -> str:
    """A statement as a line."""
    match stmt:
        case AsyncCopy():
            source = _place(stmt.source, stmt.places, stmt.mask)
            return f"copy {_place(stmt.buf, stmt.indices)} = {source} size {stmt.size}"
        case Commit():
            return "commit"
        case Wait(pending):
            return f"wait {pending}"
        case Fragment():
            target, source = _place(stmt.buf, stmt.indices), _place(stmt.source, stmt.places)
            steps = f"({', '.join(map(str, stmt.steps))})"
            how = " transposed" if stmt.transposed else ""
            return f"fragment {target} = {source} row {stmt.row} steps {steps}{how}"
        case Mma():
            a, b = _place(stmt.a, stmt.a_indices), _place(stmt.b, stmt.b_indices)
            return f"mma {_place(stmt.buf, stmt.indices)} += {a} {b} {stmt.name}"
        case LoadTile() | StoreTile():
            word = "load_tile" if isinstance(stmt, LoadTile) else "store_tile"
            target, source = _place(stmt.buf, stmt.indices), _place(stmt.source, stmt.places)
            return f"{word} {target} = {source} row {stmt.row}"


def _place(buf: Buf, indices: tuple[Expr, ...], mask: Mask = ALWAYS) -> str:
    guard = "" if mask is ALWAYS else f" if {mask}"
    return f"{buf.name}[{', '.join(map(str, indices))}{guard}]"


def parse_matrix(word: str, at: Cursor, places: Places) -> MatrixStmt:
    """The statement that `word` starts, from behind it. Raises ParseError."""
    match word:
        case "copy":
            return _read_copy(at, places)
        case "commit":
            at.end()
            return Commit()
        case "wait":
            pending = at.integer("how many groups may be on their way")
            at.end()
            return Wait(pending)
        case "fragment":
            return _read_fragment(at, places)
        case "load_tile" | "store_tile":
            return _read_tile(LoadTile if word == "load_tile" else StoreTile, at, places)
    return _read_mma(at, places)


def _plain(at: Cursor, places: Places) -> tuple[Buf, tuple[Expr, ...]]:
    buf, indices, mask = places.place(at)
    if mask is not ALWAYS:
        raise at.refused("a place without a mask")
    return buf, indices


def _read_copy(at: Cursor, places: Places) -> AsyncCopy:
    target = _plain(at, places)
    at.expect("=")
    source, there, mask = places.place(at)
    at.expect("size")
    size = at.integer("how many elements")
    at.end()
    return AsyncCopy(*target, source, there, size, mask)


def _read_fragment(at: Cursor, places: Places) -> Fragment:
    target = _plain(at, places)
    at.expect("=")
    source = _plain(at, places)
    at.expect("row")
    row = at.integer("how far rows lie apart")
    at.expect("steps")
    at.expect("(")
    steps = at.listed(lambda: at.integer("how far parts lie apart"), ")")
    transposed = at.accept("transposed")
    at.end()
    return Fragment(*target, *source, row, steps, transposed)


def _read_tile(
    kind: type[LoadTile] | type[StoreTile], at: Cursor, places: Places
) -> LoadTile | StoreTile:
    target = _plain(at, places)
    at.expect("=")
    source = _plain(at, places)
    at.expect("row")
    row = at.integer("how far rows lie apart")
    at.end()
    return kind(*target, *source, row)


def _read_mma(at: Cursor, places: Places) -> Mma:
    target = _plain(at, places)
    at.expect("+")
    at.expect("=")
    a, b = _plain(at, places), _plain(at, places)
    name = at.name("a matrix instruction")
    if name not in MATRICES:
        raise at.refused(f"a matrix instruction, one of {' '.join(MATRICES)}")
    at.end()
    return Mma(name, *target, *a, *b)

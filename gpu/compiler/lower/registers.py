"""Which private buffers and fragments of a kernel live in registers, and what is in them.

A private buffer is promoted when every access is at a place known while emitting: its indices use
only loops that are written out (`unroll`) and, in the last one, the lanes of the vector loop. Each
element, for each iteration of the written-out loops around its Alloc, is then one SSA value. So is
each matrix of a fragment that one thread holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import Expr, Var
from gpu.compiler.ir.kernel.tree import accesses, walk, writes
from gpu.compiler.ir.linear import Inst
from gpu.core.errors import CompileError

MAX_ELEMENTS: Final = 4096

Key = tuple[K.Buf, tuple[int, ...], tuple[int, ...]]


class Home(NamedTuple):
    """How a promoted buffer is kept.

    Attributes:
        copies: written-out loops around its Alloc; there is one copy for each iteration of them.
        lanes: 1, or the lanes of the vector loop: of the loop around its Alloc (each lane has a
            copy), or of the loop that its last index runs over (`rowwise`).
        rowwise: the last index runs over lanes, so that a register holds a row of elements.
    """

    copies: tuple[Var, ...]
    lanes: int
    rowwise: bool


def find_homes(kernel: K.Kernel) -> dict[K.Buf, Home]:
    """The private buffers that can live in registers, and how."""
    kinds = {s.var: s.kind for s in walk(kernel.body) if isinstance(s, K.Loop)}
    guarded = {
        buf for s in walk(kernel.body) if isinstance(s, K.If) for buf in _changed_from_outside(s)
    }
    places: dict[K.Buf, list[tuple[Expr, ...]]] = {}
    for buf, indices, mask in accesses(kernel.body):
        places.setdefault(buf, []).append(indices)
        if mask.constraints and buf.space == "private":
            guarded.add(buf)
    homes: dict[K.Buf, Home] = {}
    _visit(kernel.body, (), 1, kinds, guarded, places, homes)
    return homes


def _changed_from_outside(stmt: K.If) -> set[K.Buf]:
    """Buffers that exist before the condition: what they hold after it is not one SSA value."""
    own = {s.buf for s in walk(stmt.body) if isinstance(s, K.Alloc)}
    return {buf for buf, _, _ in writes(stmt.body)} - own


def _visit(
    stmt: K.Stmt,
    copies: tuple[Var, ...],
    lanes: int,
    kinds: Mapping[Var, str],
    guarded: set[K.Buf],
    places: Mapping[K.Buf, list[tuple[Expr, ...]]],
    homes: dict[K.Buf, Home],
) -> None:
    if isinstance(stmt, K.Block):
        for child in stmt.body:
            _visit(child, copies, lanes, kinds, guarded, places, homes)
    elif isinstance(stmt, K.If):
        _visit(stmt.body, copies, lanes, kinds, guarded, places, homes)
    elif isinstance(stmt, K.Loop):
        if stmt.kind == "unroll":
            copies = (*copies, stmt.var)
        if stmt.kind == "vector":
            lanes = stmt.var.hi + 1
        _visit(stmt.body, copies, lanes, kinds, guarded, places, homes)
    elif isinstance(stmt, K.Alloc) and stmt.buf.space != "team" and stmt.buf not in guarded:
        home = _home(stmt.buf, copies, lanes, kinds, places.get(stmt.buf, []))
        if home is not None:
            homes[stmt.buf] = home


def _home(
    buf: K.Buf,
    copies: tuple[Var, ...],
    lanes: int,
    kinds: Mapping[Var, str],
    places: list[tuple[Expr, ...]],
) -> Home | None:
    elements = 1
    for size in buf.shape:
        elements *= size
    used = {var for indices in places for e in indices for var in e.vars}
    if elements > MAX_ELEMENTS or any(kinds.get(v) not in ("unroll", "vector") for v in used):
        return None
    across = {v for v in used if kinds[v] == "vector"}
    if not across:
        return Home(copies, lanes, rowwise=False)
    widths = {v.hi + 1 for v in across}
    if lanes > 1 or len(widths) != 1:
        return None
    (width,) = widths
    return Home(copies, width, rowwise=True) if _rows(places, across, width) else None


def _rows(places: list[tuple[Expr, ...]], across: set[Var], width: int) -> bool:
    """Whether every access is a whole register: lane i at a multiple of `width`, plus i."""
    for *outer, last in places:
        (lane,) = (last.vars & across) or (None,)
        if lane is None or any(e.vars & across for e in outer):
            return False
        rest = last - lane
        if last.coeff(lane) != 1 or lane in rest.vars or rest.gcd() % width:
            return False
    return True


class Registers:
    """The current value of every promoted element."""

    def __init__(self, homes: Mapping[K.Buf, Home]):
        self.homes = homes
        self._values: dict[Key, Inst] = {}

    def key(self, buf: K.Buf, indices: tuple[Expr, ...], unrolled: Mapping[Var, int]) -> Key:
        """Names the register that holds an element at this iteration of the written-out loops."""
        home = self.homes.get(buf)
        if home is None:
            raise CompileError(f"{buf.name} holds a matrix, and loops over it are not written out")
        copy = tuple(unrolled[v] for v in home.copies)
        place = tuple(e.subst(unrolled).const for e in indices)
        return buf, copy, place

    def read(self, key: Key) -> Inst:
        """The value in a register. Raises CompileError where nothing was written yet."""
        if key not in self._values:
            raise CompileError(f"{key[0].name}{list(key[2])} is read before it is written")
        return self._values[key]

    def write(self, key: Key, value: Inst) -> None:
        """Makes `value` what the register holds."""
        self._values[key] = value

    def held(self, bufs: set[K.Buf]) -> list[Key]:
        """The registers of `bufs` that hold something, in a fixed order."""
        return [key for key in self._values if key[0] in bufs]

    def forget(self, key: Key) -> None:
        """The register holds nothing any more."""
        del self._values[key]

"""Operands of matrix instructions in team memory, as what threads of a block copy there together.

An operand is a value at a line (a row of A, a column of B) and a step of the sum, whatever it is
computed from. Each thread copies a few elements that follow each other, in one store of 16 bytes:
loads are as wide where memory has them together, copies are asynchronous where nothing is computed
and the target has such, and else elements are loaded one by one, by neighbours side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import Expr, Var, at_most, expr
from gpu.compiler.ir.kernel.tree import as_block, loads_of
from gpu.compiler.ir.matrix import COPY_BYTES
from gpu.compiler.opt.analysis.access_width import all_alike
from gpu.compiler.opt.analysis.loop_nest import iteration

APART_BYTES: Final = 16
"""Bytes between rows of a tile. Rows have a multiple of 32, so that they then begin an odd number
of 16 bytes apart: eight of them, which are read at once, lie in different banks."""
STORE_BYTES: Final = 16
"""Bytes that a thread stores at once."""

Element = Callable[[Expr, Expr], K.Value]
"""The value of an operand at a line and a step of a tile."""


class Fetch(NamedTuple):
    """How a tile of an operand is copied, and lies.

    Attributes:
        lines, steps: elements of it in both directions.
        transposed: whether lines follow each other in team memory, and not steps.
        run: elements that a thread copies at once, in the direction of that memory.
        by_lines: whether neighbouring threads copy neighbouring lines, and not runs.
        ahead: whether copies are asynchronous.
    """

    lines: int
    steps: int
    transposed: bool
    run: int
    by_lines: bool
    ahead: bool

    def pitch(self, itemsize: int) -> int:
        """How many elements rows are apart in team memory."""
        return (self.lines if self.transposed else self.steps) + APART_BYTES // itemsize

    def elements(self, itemsize: int) -> int:
        """Elements of team memory that a tile takes."""
        return (self.steps if self.transposed else self.lines) * self.pitch(itemsize)


def fetch_of(element: Element, lines: int, steps: int, near: str, together: bool) -> Fetch:
    """How an operand is best copied.

    `near` says in which direction its elements are neighbours in memory, "lines" or "steps".
    `together` is of a target whose warps load transposed tiles, and that has asynchronous copies.
    """
    value = element(expr(0), expr(0))
    most = STORE_BYTES // value.dtype.itemsize
    transposed = False
    run = _run(element, lines, steps, False, most)
    if run == 1 and together:
        run = _run(element, lines, steps, True, most)
        transposed = run > 1
    wide = run > 1
    plain = value.kind == "load" and run * value.dtype.itemsize in COPY_BYTES[1:]
    ahead = together and plain
    if not ahead:
        run = most
    return Fetch(lines, steps, transposed, run, not wide and near == "lines", ahead)


def _run(element: Element, lines: int, steps: int, along_lines: bool, most: int) -> int:
    """The most elements that each load has side by side, from a multiple of their number on."""
    size = most
    while size > 1:
        first = Var("first", 0, (lines if along_lines else steps) // size - 1)
        other = Var("other", 0, (steps if along_lines else lines) - 1)
        near = Var("near", 0, size - 1)
        along = expr(first) * size + near
        value = element(along, expr(other)) if along_lines else element(expr(other), along)
        if all(_is_wide(load, near, size) for load in loads_of(value)):
            return size
        size //= 2
    return 1


def _is_wide(load: K.Value, near: Var, size: int) -> bool:
    """Whether `size` iterations of `near` load elements side by side, all of them or none."""
    _, (*outer, last), mask = load.attr
    rest = last - near
    moves = not rest.vars & {near} and rest.gcd() % size == 0
    stays = near not in last.vars
    whole = all(all_alike(c, near, size) for c in mask.constraints)
    return (moves or stays) and whole and not any(near in place.vars for place in outer)


def tile_of(name: str, fetch: Fetch, value: K.Value, slots: int) -> K.Buf:
    """Team memory for `slots` tiles."""
    elements = fetch.elements(value.dtype.itemsize)
    return K.Buf(name, value.dtype, (slots, elements), "team")


def place(fetch: Fetch, buf: K.Buf, line: Expr, step: Expr) -> Expr:
    """Where an element is in its tile."""
    row, column = (step, line) if fetch.transposed else (line, step)
    return row * fetch.pitch(buf.dtype.itemsize) + column


def filled(
    fetch: Fetch, buf: K.Buf, slot: Expr, element: Element, threads: Sequence[Var], suffix: str
) -> K.Stmt:
    """The threads of a block copy a tile, each some runs."""
    height, width = fetch.lines, fetch.steps
    if fetch.transposed:
        height, width = width, height
    across, together = width // fetch.run, math.prod(t.extent for t in threads)
    count = height * across
    rounds = Var(f"c{suffix}", 0, -(-count // together) - 1)
    number = expr(rounds) * together + iteration(threads)
    row, part = number // across, number % across
    if fetch.by_lines:
        row, part = number % height, number // height
    column = part * fetch.run

    def at(column: Expr) -> tuple[Expr, Expr]:
        return (column, row) if fetch.transposed else (row, column)

    copy: K.Stmt
    if fetch.ahead:
        source, places, mask = element(*at(column)).attr
        to = (slot, place(fetch, buf, *at(column)))
        copy = K.AsyncCopy(buf, to, source, places, fetch.run, mask)
    else:
        near = Var(f"e{suffix}", 0, fetch.run - 1)
        to = (slot, place(fetch, buf, *at(column + near)))
        store = K.Update(buf, to, None, element(*at(column + near)))
        copy = K.Loop(near, "unroll", as_block(store))
    if count % together:
        copy = K.If(at_most(number, count - 1), as_block(copy))
    return K.Loop(rounds, "unroll", as_block(copy)) if rounds.extent > 1 else copy

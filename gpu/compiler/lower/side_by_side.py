"""Stores whose lanes lie apart, and which fill the places between each other's.

Where so many statements follow each other that they fill every place, their vectors are put
together in registers, and whole vectors are stored: real and imaginary parts of complex numbers, or
what one pass of a Fourier transform makes of each of its inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import ALWAYS, Expr, Var
from gpu.compiler.ir.index.rows import flatten
from gpu.compiler.ir.linear import Inst
from gpu.compiler.lower.emit import Emitter

# Shuffles for each vector that is stored, from which on lanes are stored one by one instead.
MOST_SHUFFLES: Final = 8


def filling(stmts: Sequence[K.Stmt], lane: Var) -> tuple[K.Update, ...]:
    """The first of `stmts` that together fill what they store to, in the order of memory.

    Empty where the first one does not begin such a run.
    """
    first = stmts[0]
    if not isinstance(first, K.Update):
        return ()
    start = _position(first)
    step = start.coeff(lane)
    run = stmts[:step] if 1 < step <= len(stmts) and shuffles(step) <= MOST_SHUFFLES else ()
    placed: dict[int, K.Update] = {}
    for stmt in run:
        if not isinstance(stmt, K.Update) or stmt.buf is not first.buf or not _is_plain(stmt):
            return ()
        apart = _position(stmt) - start
        if apart.vars:
            return ()
        placed[apart.const] = stmt
    order = sorted(placed)
    if not run or order != list(range(order[0], order[0] + step)):
        return ()
    return tuple(placed[place] for place in order)


def _position(stmt: K.Update) -> Expr:
    return flatten(stmt.indices, stmt.buf.shape)


def _is_plain(stmt: K.Update) -> bool:
    """Whether a statement only stores, everywhere, and what is not read of where it does."""
    stores = stmt.monoid is None and stmt.mask is ALWAYS and not stmt.lets
    return stores and stmt.buf not in stmt.value.bufs and not stmt.buf.image


def shuffles(count: int) -> int:
    """How many shuffles it takes for each vector to put so many together."""
    halvings = (count & -count).bit_length() - 1
    return halvings + (count >> halvings) - 1


def in_turn(emitter: Emitter, vectors: Sequence[Inst]) -> list[Inst]:
    """The first lanes of all vectors, then the second ones, and so on, as as many vectors."""
    count, lanes, dtype = len(vectors), vectors[0].lanes, vectors[0].dtype
    if count == 1:
        return list(vectors)
    if count % 2:
        return [_picked(emitter, vectors, number) for number in range(count)]
    # Those of even and of odd number, each in turn, are two rows of which elements alternate.
    even, odd = in_turn(emitter, vectors[::2]), in_turn(emitter, vectors[1::2])
    result = []
    for pair in zip(even, odd, strict=True):
        for start in (0, lanes):
            order = tuple(i // 2 + i % 2 * lanes for i in range(start, start + lanes))
            result.append(emitter.pure("shuffle", dtype, lanes, pair, (order,)))
    return result


def _picked(emitter: Emitter, vectors: Sequence[Inst], number: int) -> Inst:
    """Vector `number` of what vectors are in turn, from one of them after the other."""
    count, lanes = len(vectors), vectors[0].lanes
    places = [number * lanes + i for i in range(lanes)]
    result = vectors[0]
    order = [place // count for place in places]
    for source in range(1, count):
        picked = [
            lanes + place // count if place % count == source else own
            for place, own in zip(places, order, strict=True)
        ]
        pair = (result, vectors[source])
        result = emitter.pure("shuffle", result.dtype, lanes, pair, (tuple(picked),))
        order = list(range(lanes))
    return result

"""Squares of vectors, turned in registers."""

from __future__ import annotations

from typing import Final

from gpu.compiler.ir.linear import Inst
from gpu.compiler.lower.emit import Emitter

# Bytes of a vector among which processors interleave elements in one instruction.
GROUP_BYTES: Final = 16


def transpose(emitter: Emitter, rows: list[Inst]) -> list[Inst]:
    """The columns of a square of vectors, in steps that each are one instruction a vector.

    Pairs of rows exchange ever smaller halves, down to groups of 16 bytes. In these they are
    interleaved: each such step takes the row's last bit into the place of an element, from below,
    and the first bit of its place into the number of the row.
    """
    lanes, dtype = len(rows), rows[0].dtype
    group = min(max(GROUP_BYTES // dtype.itemsize, 1), lanes)
    half = lanes // 2
    while half:
        low, high = _exchanged(lanes, half) if half >= group else _interleaved(lanes, group)
        mixed = list(rows)
        for a in range(lanes):
            if not a & half:
                pair = (rows[a], rows[a | half])
                mixed[a] = emitter.pure("shuffle", dtype, lanes, pair, (low,))
                mixed[a | half] = emitter.pure("shuffle", dtype, lanes, pair, (high,))
        rows, half = mixed, half // 2
    return rows


def _exchanged(lanes: int, half: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The lanes of both vectors of a pair after the first's odd halves went for even ones."""
    low = tuple(i if not i & half else lanes + (i ^ half) for i in range(lanes))
    high = tuple(i | half if not i & half else lanes + i for i in range(lanes))
    return low, high


def _interleaved(lanes: int, group: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """In each group of lanes: first halves of both vectors in turn, then second halves."""
    low = tuple(i // group * group + i % group // 2 + i % 2 * lanes for i in range(lanes))
    return low, tuple(i + group // 2 for i in low)

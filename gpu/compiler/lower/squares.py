"""Squares of vectors, turned in registers."""

from __future__ import annotations

from gpu.compiler.ir.linear import Inst
from gpu.compiler.lower.emit import Emitter


def transpose(emitter: Emitter, rows: list[Inst]) -> list[Inst]:
    """The columns of a square of vectors, by exchanging ever smaller halves between pairs."""
    lanes = len(rows)
    half = lanes // 2
    while half:
        low = tuple(i if not i & half else lanes + (i ^ half) for i in range(lanes))
        high = tuple(i | half if not i & half else lanes + i for i in range(lanes))
        mixed = list(rows)
        for a in range(lanes):
            if not a & half:
                pair = (rows[a], rows[a | half])
                first = rows[a]
                mixed[a] = emitter.pure("shuffle", first.dtype, lanes, pair, (low,))
                mixed[a | half] = emitter.pure("shuffle", first.dtype, lanes, pair, (high,))
        rows, half = mixed, half // 2
    return rows

"""How many lanes: a vector of the target, or half or a quarter of one where a loop is short."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpu.compiler.ir import kernel as K
from gpu.compiler.targets import Target

# Lanes below which what vectors cost beside the work is more than they save.
FEWEST: Final = 4


def lanes_of(target: Target, itemsize: int) -> int:
    """Lanes of a whole vector of elements of `itemsize` bytes.

    Narrow ones are computed in 4 bytes, and those of more than 8 take several registers.
    """
    return max(target.vector_bytes // min(max(itemsize, 4), 8), 1)


def widest(updates: Iterable[K.Update]) -> int:
    """Bytes of the widest element that is computed or written."""
    return max(max(u.value.dtype.itemsize, u.buf.dtype.itemsize) for u in updates)


def fitting(lanes: int, extent: int, masks: bool = False) -> int:
    """`lanes`, halved until a loop of `extent` iterations fills them, though not below `FEWEST`.

    A loop that is shorter than the result is too short for lanes; but with `masks` it is halved
    while they hold the whole loop, and lanes that it leaves are masked.
    """
    while lanes > FEWEST and extent <= (lanes // 2 if masks else lanes - 1):
        lanes //= 2
    return lanes


def has_masks(target: Target) -> bool:
    """Whether a vector whose last lanes are masked costs little more than a whole one.

    Vectors of 16 bytes have no masks on CPUs: each lane is asked on its own.
    """
    return target.parallel == "worker" and target.vector_bytes > 16

"""Matrix instructions: what the threads of a warp multiply together, and which of them hold what.

An instruction adds the product of A (m x k) and B (k x n) to C (m x n). The three are held in
*parts* of 8 x 8 elements: thread t of 32 has of each part two neighbours, those of row t // 4 in
columns 2 * (t % 4) and the next. The columns of a part of A and B are steps of k and its rows the
rows of A, or the columns of B; a part of C lies as C does. Parts follow each other along m or n
first, then along k; those of C along m, then n.

Rows with 16-bit operands are NVIDIA's ("PTX ISA", section 9.7.14.5, "Matrix Fragments for
mma.m16n8k16"). Sums are of float32; how an instruction rounds in between is its own affair.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from gpu.compiler.ir.evaluate import Array
from gpu.core.dtype import DType, dtypes

WARP: Final = 32
"""Threads that execute an instruction together: those from a multiple of 32 on."""
SIDE: Final = 8
HELD: Final = 2
"""Elements of a part that a thread has."""
PART_ROW: Final = np.repeat(np.arange(WARP) // 4, HELD).reshape(WARP, HELD)
PART_COLUMN: Final = np.arange(HELD) + HELD * (np.arange(WARP)[:, None] % 4)
COPY_BYTES: Final = (4, 8, 16)
"""Bytes that one asynchronous copy can have."""

Places = tuple[tuple[int, int], ...]


class Matrix(NamedTuple):
    """A matrix instruction.

    Attributes:
        name: as text forms and targets have it.
        m, n, k: sizes.
        operand: dtype of A and B; that of C is float32.
    """

    name: str
    m: int
    n: int
    k: int
    operand: DType

    @property
    def a(self) -> Places:
        """Row and step of k at which each part of A begins."""
        return tuple((m, k) for k in range(0, self.k, SIDE) for m in range(0, self.m, SIDE))

    @property
    def b(self) -> Places:
        """Column and step of k at which each part of B begins."""
        return tuple((n, k) for k in range(0, self.k, SIDE) for n in range(0, self.n, SIDE))

    @property
    def c(self) -> Places:
        """Row and column at which each part of C begins."""
        return tuple((m, n) for n in range(0, self.n, SIDE) for m in range(0, self.m, SIDE))


MATRICES: Final = {
    row.name: row
    for row in (
        Matrix("m16n8k16.f16", 16, 8, 16, dtypes.float16),
        Matrix("m16n8k16.bf16", 16, 8, 16, dtypes.bfloat16),
    )
}


def whole(held: Array, places: Places, shape: tuple[int, int]) -> Array:
    """Matrices (warps, *shape) from what threads hold: (warps, WARP, parts, HELD)."""
    result = np.empty((len(held), *shape), held.dtype)
    for part, (row, column) in enumerate(places):
        result[:, PART_ROW + row, PART_COLUMN + column] = held[:, :, part]
    return result


def spread(matrices: Array, places: Places) -> Array:
    """What threads hold, (warps, WARP, parts, HELD), of matrices (warps, rows, columns)."""
    parts = [matrices[:, PART_ROW + row, PART_COLUMN + column] for row, column in places]
    return np.stack(parts, axis=2)


def multiply(how: Matrix, a: Array, b: Array, c: Array) -> Array:
    """C plus the product, all as threads hold them: (warps, WARP, parts, HELD)."""
    left = whole(a, how.a, (how.m, how.k)).astype(np.float32)
    right = whole(b, how.b, (how.n, how.k)).astype(np.float32)
    total = whole(c, how.c, (how.m, how.n)) + left @ right.transpose(0, 2, 1)
    return spread(total, how.c)


def part_steps(steps: Sequence[int]) -> list[int]:
    """How far each of 2 ** len(steps) parts is from the first one: a step for each bit."""
    count = 1 << len(steps)
    return [sum(s for i, s in enumerate(steps) if part >> i & 1) for part in range(count)]


def held_offsets(row: int, steps: Sequence[int], transposed: bool) -> Array:
    """Where each thread's elements of parts in memory lie: (WARP, parts, HELD).

    Rows of a part lie `row` apart and their elements side by side; `transposed` exchanges the two.
    """
    down, across = (PART_COLUMN, PART_ROW) if transposed else (PART_ROW, PART_COLUMN)
    inside = row * down + across
    return np.asarray(inside[:, None, :] + np.array(part_steps(steps))[None, :, None])


def by_warp(values: Array, threads: int, lanes: int) -> Array:
    """Values of points, (points, ...), as (warps, WARP, ...).

    `threads` are those of a block, each of which is `lanes` points.
    """
    blocks = values.reshape(-1, threads // WARP, WARP, lanes, *values.shape[1:])
    return np.moveaxis(blocks, 3, 2).reshape(-1, WARP, *values.shape[1:])


def by_point(values: Array, threads: int, lanes: int) -> Array:
    """The inverse of `by_warp`."""
    blocks = values.reshape(-1, threads // WARP, lanes, WARP, *values.shape[2:])
    return np.moveaxis(blocks, 2, 3).reshape(-1, *values.shape[2:])

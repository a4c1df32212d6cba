"""Matrix instructions: what threads multiply together, and which of them hold what.

An instruction adds the product of A (m x k) and B (k x n) to C (m x n). The three are held in
*parts*. The columns of a part of A and B are steps of k and its rows the rows of A, or the columns
of B; a part of C lies as C does. Parts follow each other along m or n first, then along k; those of
C along m, then n. A row of the table says how the threads of a warp hold parts, its layout, or that
one thread holds all:

- **PTX**: parts have 8 x 8 elements, and thread t has of each two neighbours, those of row t // 4
  in columns 2 * (t % 4) and the next ("PTX ISA", section 9.7.14.5, "Matrix Fragments for
  mma.m16n8k16").
- **RDNA3**: parts have 16 x 16 elements. Thread t has row t % 16 of A and B, which two threads hold
  thus, and of C column t % 16 of every second row from t // 16 on ("RDNA3" ISA, section 7.9, "Wave
  Matrix Multiply Accumulate").
- **One thread** has each matrix as one part, a *tile*: 16 rows of 64 bytes in memory. A and C lie
  there as they are; of B a row has words of 4 bytes, one for each column, with the steps of k that
  fit into one. These rows are AMX's ("Intel 64 and IA-32 Architectures Software Developer's
  Manual", volume 2, TDPBF16PS and TDPBSSD). Those of floats take denormal numbers, and give
  them, as zero.

Sums of floats are of float32; how an instruction rounds in between is its own affair. Sums of
integers are of int32 and wrap.
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

TILE_ROWS: Final = 16
TILE_BYTES: Final = 64
"""Bytes of a row of a tile."""
WORD: Final = 4
"""Bytes of the steps of k that lie together in a tile of B."""

Places = tuple[tuple[int, int], ...]


class Part(NamedTuple):
    """Row and column in a part of each element that a thread has of it: (threads, elements)."""

    row: Array
    column: Array

    @property
    def held(self) -> int:
        """Elements of a part that a thread has."""
        return int(self.row.shape[1])


OF_WARP: Final = Part(PART_ROW, PART_COLUMN)


def _by_rows(rows: int, columns: int) -> Part:
    row, column = np.divmod(np.arange(rows * columns), columns)
    return Part(row[None], column[None])


def _in_words(columns: int, steps: int, together: int) -> Part:
    """A tile of B, of which a row has `together` steps of every column."""
    word, step = np.divmod(np.arange(columns * steps), together)
    row, column = np.divmod(word, columns)
    return Part(column[None], (row * together + step)[None])


class Held(NamedTuple):
    """Which elements of a part threads (i, j) of a warp hold: a linear map of i, j and the number.

    Attributes:
        size: how many elements each thread holds.
        row: how many rows on each of i, j and the number goes.
        column: the same for columns.
    """

    size: int
    row: tuple[int, int, int]
    column: tuple[int, int, int]

    def part(self, threads: tuple[int, int]) -> Part:
        """The places as arrays, for a warp of so many times so many threads."""
        i, j = np.divmod(np.arange(WARP), threads[1])
        own = i[:, None], j[:, None], np.arange(self.size)

        def places(steps: tuple[int, int, int]) -> Array:
            return sum(
                (n * step for n, step in zip(own, steps, strict=True)), np.zeros(1, np.int64)
            )

        return Part(places(self.row), places(self.column))


class Layout(NamedTuple):
    """How the threads of a warp hold parts.

    Attributes:
        threads: the threads of a warp in two dimensions, the last one counting fastest.
        side: rows and columns of a part.
        operand: what a thread has of a part of A or B.
        sums: what it has of a part of C.
        together: whether the warp loads operands together, by an instruction for that
            (`Fragment` of the kernel IR); else each thread loads its own.
    """

    threads: tuple[int, int]
    side: int
    operand: Held
    sums: Held
    together: bool


_PAIRS: Final = Held(HELD, (1, 0, 0), (0, HELD, 1))
PTX: Final = Layout((SIDE, WARP // SIDE), SIDE, _PAIRS, _PAIRS, together=True)
RDNA3: Final = Layout(
    (2, 16), 16, Held(16, (0, 1, 0), (0, 0, 1)), Held(8, (1, 0, 2), (0, 1, 0)), together=False
)


class Matrix(NamedTuple):
    """A matrix instruction.

    Attributes:
        name: as text forms and targets have it.
        m, n, k: sizes.
        operand: dtype of A, and of B where `other` is None.
        layout: how the threads of a warp hold the matrices; None where one thread does.
        other: dtype of B where it is another one.
        sums: dtype of C.
    """

    name: str
    m: int
    n: int
    k: int
    operand: DType
    layout: Layout | None = PTX
    other: DType | None = None
    sums: DType = dtypes.float32

    @property
    def threads(self) -> int:
        """How many execute it together: `WARP` or 1."""
        return WARP if self.layout else 1

    @property
    def operands(self) -> tuple[DType, DType]:
        """dtypes of A and B."""
        return self.operand, self.other or self.operand

    @property
    def a(self) -> Places:
        """Row and step of k at which each part of A begins."""
        return self._places(self.m, self.k)

    @property
    def b(self) -> Places:
        """Column and step of k at which each part of B begins."""
        return self._places(self.n, self.k)

    @property
    def c(self) -> Places:
        """Row and column at which each part of C begins."""
        return tuple((m, n) for n, m in self._places(self.n, self.m))

    @property
    def together(self) -> int:
        """Steps of k in a word of B, where one thread holds it."""
        return WORD // self.operand.itemsize

    @property
    def parts(self) -> tuple[Part, Part, Part]:
        """What threads have of a part of A, of B and of C."""
        if self.layout is not None:
            operand = self.layout.operand.part(self.layout.threads)
            return operand, operand, self.layout.sums.part(self.layout.threads)
        b = _in_words(self.n, self.k, self.together)
        return _by_rows(self.m, self.k), b, _by_rows(self.m, self.n)

    def _places(self, lines: int, steps: int) -> Places:
        if self.layout is None:
            return ((0, 0),)
        side = self.layout.side
        return tuple((line, k) for k in range(0, steps, side) for line in range(0, lines, side))


MATRICES: Final = {
    row.name: row
    for row in (
        Matrix("m16n8k16.f16", 16, 8, 16, dtypes.float16),
        Matrix("m16n8k16.bf16", 16, 8, 16, dtypes.bfloat16),
        Matrix("m16n16k16.f16", 16, 16, 16, dtypes.float16, RDNA3),
        Matrix("m16n16k16.bf16", 16, 16, 16, dtypes.bfloat16, RDNA3),
        *(
            Matrix(f"m16n16k16.{name}", 16, 16, 16, a, RDNA3, b, dtypes.int32)
            for name, a, b in (
                ("i8", dtypes.int8, None),
                ("u8", dtypes.uint8, None),
                ("i8u8", dtypes.int8, dtypes.uint8),
                ("u8i8", dtypes.uint8, dtypes.int8),
            )
        ),
        Matrix("m16n16k32.bf16", 16, 16, 32, dtypes.bfloat16, None),
        Matrix("m16n16k64.i8", 16, 16, 64, dtypes.int8, None, None, dtypes.int32),
        Matrix("m16n16k64.u8", 16, 16, 64, dtypes.uint8, None, None, dtypes.int32),
        Matrix("m16n16k64.i8u8", 16, 16, 64, dtypes.int8, None, dtypes.uint8, dtypes.int32),
        Matrix("m16n16k64.u8i8", 16, 16, 64, dtypes.uint8, None, dtypes.int8, dtypes.int32),
    )
}


def names_for(layout: Layout | None) -> tuple[str, ...]:
    """The instructions whose matrices threads of a warp hold thus, or one thread alone."""
    return tuple(name for name, how in MATRICES.items() if how.layout is layout)


def whole(held: Array, places: Places, shape: tuple[int, int], of: Part = OF_WARP) -> Array:
    """Matrices (groups, *shape) from what threads hold: (groups, threads, parts, elements)."""
    result = np.empty((len(held), *shape), held.dtype)
    for part, (row, column) in enumerate(places):
        result[:, of.row + row, of.column + column] = held[:, :, part]
    return result


def spread(matrices: Array, places: Places, of: Part = OF_WARP) -> Array:
    """What threads hold, (groups, threads, parts, elements), of matrices (groups, rows, columns).

    A group is the threads that execute an instruction together.
    """
    parts = [matrices[:, of.row + row, of.column + column] for row, column in places]
    return np.stack(parts, axis=2)


def multiply(how: Matrix, a: Array, b: Array, c: Array) -> Array:
    """C plus the product, all as threads hold them: (groups, threads, parts, elements)."""
    of_a, of_b, of_c = how.parts
    left = whole(a, how.a, (how.m, how.k), of_a).astype(how.sums.np)
    right = whole(b, how.b, (how.n, how.k), of_b).astype(how.sums.np)
    total = whole(c, how.c, (how.m, how.n), of_c) + left @ right.transpose(0, 2, 1)
    return spread(total, how.c, of_c)


def tile_offsets(row: int, dtype: DType) -> Array:
    """Where the elements of a tile lie in memory whose rows are `row` apart, in order."""
    across = np.arange(TILE_BYTES // dtype.itemsize)
    return np.asarray((row * np.arange(TILE_ROWS)[:, None] + across).ravel())


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


def by_warp(values: Array, threads: int, lanes: int, together: int = WARP) -> Array:
    """Values of points, (points, ...), as (groups, together, ...).

    `threads` are those of a block, each of which is `lanes` points.
    """
    groups = values.reshape(-1, threads // together, together, lanes, *values.shape[1:])
    return np.moveaxis(groups, 3, 2).reshape(-1, together, *values.shape[1:])


def by_point(values: Array, threads: int, lanes: int, together: int = WARP) -> Array:
    """The inverse of `by_warp`."""
    groups = values.reshape(-1, threads // together, lanes, together, *values.shape[2:])
    return np.moveaxis(groups, 2, 3).reshape(-1, *values.shape[2:])

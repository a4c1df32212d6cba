"""Matrix instructions: what threads multiply together, and which of them hold what.

An instruction adds the product of A (m x k) and B (k x n) to C (m x n). The three are held in
*parts*. The columns of a part of A and B are steps of k and its rows the rows of A, or the columns
of B; a part of C lies as C does. Parts follow each other along m or n first, then along k; those of
C along m, then n. A row of the table says how the threads of a warp hold parts, its layout, or that
one thread holds all:

- **PTX**: parts have 8 x 8 elements, and thread t has of each two neighbours, those of row t // 4
  in columns 2 * (t % 4) and the next ("PTX ISA", section 9.7.14.5, "Matrix Fragments for
  mma.m16n8k16").
- **AMD's**: parts have 16 rows, and those of A and B all steps of k. Thread t has row t % 16 of A
  and B, and column t % 16 of C. On **RDNA3** two threads hold each row of A and B whole, and of C
  every second row from t // 16 on ("RDNA3" ISA, section 7.9, "Wave Matrix Multiply Accumulate").
  On **RDNA4** two threads share a row of A and B, on **CDNA3** and **CDNA4**, with waves of 64,
  four do: each has a run of its steps, and rows of C that follow each other (AMD's "Matrix
  Instruction Calculator"; "CDNA3" ISA, chapter 7, "Matrix Arithmetic Instructions"). Hardware
  counts the steps of some in another order, but those of A and B in the same: a sum cannot tell.
- **One thread** has each matrix as one part, a *tile*: 16 rows of 64 bytes in memory. A and C lie
  there as they are; of B a row has words of 4 bytes, one for each column, with the steps of k that
  fit into one. These rows are AMX's ("Intel 64 and IA-32 Architectures Software Developer's
  Manual", volume 2, TDPBF16PS and TDPBSSD). Those of floats take denormal numbers, and give
  them, as zero.

Sums of floats are of float32; how an instruction rounds in between is its own affair. Sums of
integers are of int32 and wrap.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from gpu.compiler.ir.evaluate import Array
from gpu.core.dtype import DType, dtypes

WARP: Final = 32
"""Threads of NVIDIA's warps: those from a multiple of 32 on."""
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
        i, j = np.divmod(np.arange(math.prod(threads)), threads[1])
        own = i[:, None], j[:, None], np.arange(self.size)

        def places(steps: tuple[int, int, int]) -> Array:
            return sum(
                (n * step for n, step in zip(own, steps, strict=True)), np.zeros(1, np.int64)
            )

        return Part(places(self.row), places(self.column))


class Layout(NamedTuple):
    """How the threads of a warp hold parts.

    Attributes:
        name: of the machines that have it.
        threads: the threads of a warp in two dimensions, the last one counting fastest.
        side: rows of a part; columns too, but for operands of which a part has all steps of k.
        sums: what a thread has of a part of C.
        sharers: how many threads share a row of A or B, each with a run of its steps; 0 where the
            warp loads operands together, by an instruction for that (`Fragment` of the kernel IR),
            and has of their parts what it has of those of C.
    """

    name: str
    threads: tuple[int, int]
    side: int
    sums: Held
    sharers: int

    @property
    def together(self) -> bool:
        """Whether the warp loads operands together; else each thread loads its own."""
        return not self.sharers

    def operand(self, k: int) -> Held:
        """What a thread has of a part of A or B, of instructions with k steps."""
        if self.together:
            return self.sums
        run = k // self.sharers
        return Held(run, (0, 1, 0), (run if self.sharers > 1 else 0, 0, 1))


PTX: Final = Layout("ptx", (SIDE, WARP // SIDE), SIDE, Held(HELD, (1, 0, 0), (0, HELD, 1)), 0)
RDNA3: Final = Layout("rdna3", (2, 16), 16, Held(8, (1, 0, 2), (0, 1, 0)), 1)
RDNA4: Final = Layout("rdna4", (2, 16), 16, Held(8, (8, 0, 1), (0, 1, 0)), 2)
CDNA3: Final = Layout("cdna3", (4, 16), 16, Held(4, (4, 0, 1), (0, 1, 0)), 4)
CDNA4: Final = CDNA3._replace(name="cdna4")


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
        """How many execute it together: those of a warp, or 1."""
        return math.prod(self.layout.threads) if self.layout else 1

    @property
    def operands(self) -> tuple[DType, DType]:
        """dtypes of A and B."""
        return self.operand, self.other or self.operand

    @property
    def a(self) -> Places:
        """Row and step of k at which each part of A begins."""
        return self._operand(self.m)

    @property
    def b(self) -> Places:
        """Column and step of k at which each part of B begins."""
        return self._operand(self.n)

    @property
    def c(self) -> Places:
        """Row and column at which each part of C begins."""
        side = self.layout.side if self.layout else max(self.m, self.n)
        return tuple((m, n) for m in range(0, self.m, side) for n in range(0, self.n, side))

    @property
    def together(self) -> int:
        """Steps of k in a word of B, where one thread holds it."""
        return WORD // self.operand.itemsize

    @property
    def parts(self) -> tuple[Part, Part, Part]:
        """What threads have of a part of A, of B and of C."""
        if self.layout is not None:
            operand = self.layout.operand(self.k).part(self.layout.threads)
            return operand, operand, self.layout.sums.part(self.layout.threads)
        b = _in_words(self.n, self.k, self.together)
        return _by_rows(self.m, self.k), b, _by_rows(self.m, self.n)

    def _operand(self, lines: int) -> Places:
        side = self.layout.side if self.layout else lines
        steps = side if self.layout and self.layout.together else self.k
        return tuple((line, k) for k in range(0, self.k, steps) for line in range(0, lines, side))


_BYTES: Final = (
    ("i8", dtypes.int8, None),
    ("u8", dtypes.uint8, None),
    ("i8u8", dtypes.int8, dtypes.uint8),
    ("u8i8", dtypes.uint8, dtypes.int8),
)
_FP8: Final = (
    ("fp8", dtypes.fp8e4m3, None),
    ("bf8", dtypes.fp8e5m2, None),
    ("fp8bf8", dtypes.fp8e4m3, dtypes.fp8e5m2),
    ("bf8fp8", dtypes.fp8e5m2, dtypes.fp8e4m3),
)
_HALVES: Final = (("f16", dtypes.float16, None), ("bf16", dtypes.bfloat16, None))
_Operands = tuple[tuple[str, DType, DType | None], ...]


def _rows(layout: Layout, k: int, operands: _Operands, suffix: str = "") -> Iterator[Matrix]:
    """Instructions of AMD's with k steps."""
    for name, a, b in operands:
        sums = dtypes.float32 if a.is_float else dtypes.int32
        yield Matrix(f"m16n16k{k}.{name}{suffix}", 16, 16, k, a, layout, b, sums)


MATRICES: Final = {
    row.name: row
    for row in (
        Matrix("m16n8k16.f16", 16, 8, 16, dtypes.float16),
        Matrix("m16n8k16.bf16", 16, 8, 16, dtypes.bfloat16),
        *_rows(RDNA3, 16, (*_HALVES, *_BYTES)),
        *_rows(RDNA4, 16, (*_HALVES, *_BYTES, *_FP8), ".rdna4"),
        # None of fp8: CDNA3's is FNUZ, in which bytes are other numbers than in the OCP's.
        *_rows(CDNA3, 16, _HALVES, ".cdna3"),
        *_rows(CDNA3, 32, _BYTES[:1], ".cdna3"),
        *_rows(CDNA4, 32, (*_HALVES, *_FP8), ".cdna4"),
        *_rows(CDNA4, 64, _BYTES[:1], ".cdna4"),
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

"""Lanes for transpositions: squares in registers, and for large ones tiles that go through caches.

A square has as many rows as a vector has lanes. Squares alone read parts of lines, of as many rows
at once, and where these lie pages apart, more often than not by a power of two, a cache holds few
of them. A worker therefore turns a tile of such a transposition, if it is large, into memory of its
own, which stays in its cache, by squares that follow each other along what is read; then it writes
the tile row by row, lines that follow each other whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.kernel.nontemporal import LINE_BYTES, streamed_outputs
from gpu.compiler.opt.analysis.dependence import is_repeatable
from gpu.compiler.opt.analysis.lanes import fitting
from gpu.compiler.opt.analysis.loop_nest import (
    Transposition,
    last_index,
    leaves,
    memory_accesses,
)
from gpu.compiler.opt.opts import Bind, Opt, Prefetch, Reorder, Split, Stage, apply
from gpu.compiler.opt.primitives.loops import shifted
from gpu.compiler.targets import Target
from gpu.core.errors import IllegalOpt

# Bytes of a row that squares write side by side: two cache lines, which go to memory whole.
PIECE_BYTES: Final = 128
# Rows that are written a piece each, one after another, without losing any by it.
FEW_ROWS: Final = 4
# Bytes between rows on both sides from which squares touch a page in each row.
PAGE_BYTES: Final = 4096
# Most bytes of what a tile reads in one go, and of what it writes.
READ_BYTES: Final = 512
WRITTEN_BYTES: Final = 512
# Most bytes of a tile: a part of the memory that a worker's own cache holds.
TILE_BYTES: Final = 1 << 17


def turn(kernel: K.Kernel, found: Transposition, lanes: int, target: Target) -> list[Opt]:
    """Tiles where workers have memory and that is a gain, else squares alone.

    A square has `lanes` rows, or as many as fit.
    """
    lanes = fitting(lanes, min(found.read.extent, found.write.extent))
    out, workers = found.update.buf, target.parallel == "worker"
    far = lanes > FEW_ROWS and _is_far_apart(found)
    if workers and far and out in streamed_outputs(kernel, {out}):
        tiles = list(_tiles(found, lanes))
        try:
            apply(kernel, tiles)
        except IllegalOpt:
            pass
        else:
            return tiles
    (leaf,) = leaves(kernel.body)
    return list(_squares(found, lanes, "shift" if is_repeatable(leaf.loops[0]) else "peel"))


def _squares(found: Transposition, lanes: int, tail: str) -> Iterator[Opt]:
    """Squares of `lanes` by `lanes`, a few of them side by side so that cache lines are written
    whole, and those below each other next, so that reading goes on where it was.
    """
    read, write, extent = found.read.name, found.write.name, found.write.extent
    columns = _columns(extent, lanes, found.update.buf.dtype.itemsize, tail)
    yield Reorder((*(var.name for var in found.others), write, read))
    if columns < extent:
        yield Split(write, columns, tail)
        if tail == "shift" and (last := shifted(extent, columns)):
            yield from _strip(f"{read}t", f"{write}t", found.read.extent, last, lanes, tail)
        write = f"{write}i"
    yield from _strip(read, write, found.read.extent, columns, lanes, tail)


def _strip(
    read: str, write: str, extent: int, columns: int, lanes: int, tail: str
) -> Iterator[Opt]:
    """`write`, of `columns` iterations, around `read` of `extent`: squares below each other."""
    yield Reorder((read, write))
    if lanes < extent:
        yield Split(read, lanes, tail)
        if tail == "shift" and extent % lanes:
            yield from _row_of_squares(f"{read}t", f"{write}t", columns, lanes)
        read = f"{read}i"
    yield from _row_of_squares(read, write, columns, lanes)


def _row_of_squares(read: str, write: str, columns: int, lanes: int) -> Iterator[Opt]:
    yield Reorder((write, read))
    if columns > lanes:
        yield Split(write, lanes)
        # Lines are written whole, one after another: processors hold parts of few of them.
        yield Reorder((read, f"{write}o", f"{write}i"))
        yield Bind(f"{write}o", "unroll")
        write = f"{write}i"
    yield Bind(write, "vector")
    yield Bind(read, "unroll")


def _columns(extent: int, lanes: int, itemsize: int, tail: str) -> int:
    """How much of a row of `extent` a transposition writes at once, without a long rest."""
    rest = extent if tail == "shift" else max(lanes - 1, extent // 16)
    most = min(max(PIECE_BYTES // itemsize, lanes), extent)
    return next(n for n in range(most // lanes * lanes, 0, -lanes) if extent % n <= rest)


def _tiles(found: Transposition, lanes: int) -> Iterator[Opt]:
    """Tiles that squares turn into memory of a worker, from which rows are written."""
    source, _ = _read_apart(found)
    itemsize = max(found.update.buf.dtype.itemsize, source.dtype.itemsize)
    line = max(LINE_BYTES // itemsize, lanes)
    height = _side(found.read.extent, READ_BYTES // itemsize, line)
    most = min(WRITTEN_BYTES // itemsize, TILE_BYTES // (height * itemsize))
    width = _side(found.write.extent, most, line)
    read, write = found.read.name, found.write.name
    yield Reorder((*(var.name for var in found.others), write, read))
    yield Split(write, width, "peel")
    yield Reorder((read, f"{write}i"))
    yield Split(read, height, "peel")
    yield Stage(f"{read}o", source.name, (f"{read}i", f"{write}i"), apart=lanes)
    yield Split(f"{write}i", line)
    yield Prefetch(f"{read}o", source.name, f"{write}io")
    yield from _turned(f"{read}is", f"{write}is", lanes)
    yield Split(f"{write}ii", lanes)
    yield Bind(f"{write}iio", "unroll")
    yield Bind(f"{write}iii", "vector")


def _turned(read: str, write: str, lanes: int) -> Iterator[Opt]:
    """The loops `read` around `write` in squares, those along `read` one after another."""
    yield Reorder((write, read))
    yield Split(write, lanes)
    yield Split(read, lanes)
    yield Reorder((f"{read}o", f"{write}i", f"{read}i"))
    yield Bind(f"{write}i", "vector")
    yield Bind(f"{read}i", "unroll")


def _read_apart(found: Transposition) -> tuple[K.Buf, int]:
    """A buffer that is read where what is written next to each other lies apart, and how far."""
    for buf, index in memory_accesses(found.update):
        step = index.coeff(found.write)
        if buf is not found.update.buf and step not in (0, 1):
            return buf, abs(step)
    raise AssertionError("a transposition that reads nothing apart")


def _is_far_apart(found: Transposition) -> bool:
    """Whether rows lie apart by a page or more, where they are read and where they are written."""
    source, read_step = _read_apart(found)
    out, indices = found.update.buf, found.update.indices
    write_step = abs(last_index(indices).coeff(found.read))
    read_bytes, written_bytes = read_step * source.dtype.itemsize, write_step * out.dtype.itemsize
    return min(read_bytes, written_bytes) >= PAGE_BYTES


def _side(extent: int, most: int, step: int) -> int:
    """A multiple of `step` of at most `most` that leaves the least of `extent`."""
    largest = max(min(most, extent) // step * step, step)
    return min(range(largest, largest // 2, -step), key=lambda n: extent % n)

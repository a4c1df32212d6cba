"""The state that the warps of a grid start with."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from gpu.sim.isa import layout
from gpu.sim.isa.circles import Circle
from gpu.sim.isa.memorymap import MemoryMap
from gpu.sim.isa.ptx import wave
from gpu.sim.isa.ptx.engine import PtxEngine
from gpu.sim.isa.ptx.program import Program
from gpu.sim.isa.waves import aligned_bytes

_MXCSR: Final = 0x1F80  # all exceptions masked, to nearest; the direction is in bits 14:13
_LANES: Final = np.arange(layout.LANES, dtype=np.uint32)
_STATE: Final = struct.Struct("<IQII")  # ALIVE, CODE, BLOCKED, AT_BARRIER
_AXES: Final = ("x", "y", "z")
Three = tuple[int, int, int]


@dataclass(frozen=True)
class GridShape:
    """What a grid starts with.

    Attributes:
        grid, block, cluster: blocks of the grid, threads of a block, blocks of a cluster.
        parameters: what the kernel is called with.
        shared_bytes: shared memory of a block.
        shared_window, shared_window_size, local_window: generic addresses of those memories.
        barriers: how many a block has, at most 16.
    """

    grid: Three
    block: Three
    parameters: bytes = b""
    shared_bytes: int = 0
    cluster: Three = (1, 1, 1)
    shared_window: int = 0x7F00_0000_0000
    shared_window_size: int = 1 << 24
    local_window: int = 0x7F80_0000_0000
    barriers: int = 16

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return -(-self.threads // layout.LANES)

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]


class Warp:
    """A warp: its memory, and where it goes on.

    Attributes:
        memory: see `wave` and gpu/sim/isa/layout.py.
        words: the same as dwords.
        index: its place in the block.
        record: address of the record to go on with.
        barrier: the barrier that it stands at.
        circle: what is known of where it goes round.
    """

    __slots__ = (
        *("address", "barrier", "circle", "done", "index", "keep", "memory", "record", "view"),
        "words",
    )

    def __init__(self, memory: npt.NDArray[np.uint8], keep: npt.NDArray[np.uint8] | None):
        self.memory = memory
        self.words = memory.view(np.uint32)
        self.address: int = memory.ctypes.data
        self.view = memory.data
        self.keep = keep
        self.index = 0
        self.record = 0
        self.barrier: int | None = None
        self.circle = Circle()
        self.done = False

    def word(self, offset: int, format: str = "<I") -> int:
        """A field of the header."""
        value: int = struct.unpack_from(format, self.view, offset)[0]
        return value

    def set(self, offset: int, value: int, format: str = "<I") -> None:
        """Writes a field of the header."""
        struct.pack_into(format, self.view, offset, value)

    def state(self) -> tuple[int, bytes, bytes]:
        """All that decides what it does next but memory; the clock is asked for by name."""
        return self.record, bytes(self.view[: layout.COUNT]), bytes(self.view[layout.LOWEST :])

    def places(self, program: Program) -> list[int]:
        """The records that its lanes are at."""
        alive, active = self.word(wave.ALIVE), self.word(layout.EXEC_OFFSET)
        found = {program.place_of(self.record)}
        for lane in range(layout.LANES):
            if (alive & ~active) >> lane & 1:
                found.add(int(self.words[wave.PCS // 4 + lane]) // layout.RECORD.size)
        return sorted(found)

    def fill(self, offset: int, value: int) -> None:
        """Writes a word into all lanes of a row."""
        self.words[offset // 4 : offset // 4 + layout.LANES] = value & 0xFFFFFFFF


class WarpMaker:
    """Makes the warps of a grid; those that have ended are used again."""

    def __init__(self, engine: PtxEngine, program: Program, shape: GridShape, memory: MemoryMap):
        self._program = program
        self._shape = shape
        self._memory = memory
        self._parameters = np.frombuffer(shape.parameters + bytes(16), np.uint8).copy()
        self._spare: list[Warp] = []
        self._all: list[Warp] = []
        self._thread_rows = _thread_rows(program, shape)
        self._block_rows = _block_rows(program, shape)
        self._base = self._make_base(engine.address("resolve_lanes"))
        self.table = memory.table()

    def make(self, block: int, index: int, shared: int) -> Warp:
        """Warp `index` of a block, whose shared memory lies at a host address."""
        warp = self._spare.pop() if self._spare else self._fresh()
        warp.index, warp.barrier, warp.done, warp.circle = index, None, False, Circle()
        warp.record = self._program.address
        left = self._shape.threads - index * layout.LANES
        mask = (1 << min(left, layout.LANES)) - 1
        _STATE.pack_into(*(warp.view, wave.ALIVE, mask, self._program.address, 0, 0))
        warp.set(layout.LOWEST, layout.NOBODY)
        struct.pack_into("<I", warp.view, layout.EXEC_OFFSET, mask)
        struct.pack_into("<Q", warp.view, layout.LDS, shared)
        struct.pack_into("<q", warp.view, layout.COUNT, 0)
        first = index * layout.LANES
        for place, values in self._thread_rows:
            warp.words[place : place + layout.LANES] = values[first : first + layout.LANES]
        for place, value_of in self._block_rows:
            warp.words[place : place + layout.LANES] = value_of(block)
        if "%warpid" in self._program.specials:
            warp.fill(wave.SPECIALS["%warpid"], index)
        return warp

    def recycle(self, warp: Warp) -> None:
        """Takes back a warp that has ended."""
        self._spare.append(warp)

    def take_ranges(self) -> None:
        """Tells all warps what addresses mean now."""
        self.table = self._memory.table()  # kept: the warps hold its address
        for memory in (self._base, *(warp.memory for warp in self._all)):
            self._set_ranges(memory)

    def _set_ranges(self, memory: npt.NDArray[np.uint8]) -> None:
        where = (self.table.ctypes.data, len(self.table))
        struct.pack_into("<QQ", memory.data, layout.RANGES, *where)

    def _fresh(self) -> Warp:
        memory = aligned_bytes(len(self._base))
        memory[:] = self._base
        local = self._program.local_bytes * layout.LANES
        keep = aligned_bytes(local) if local else None
        warp = Warp(memory, keep)
        if keep is not None:
            warp.set(layout.SCRATCH, keep.ctypes.data, "<Q")
        self._all.append(warp)
        self._set_ranges(memory)
        return warp

    def _make_base(self, resolve: int) -> npt.NDArray[np.uint8]:
        """What all warps of the grid have in common."""
        program, shape = self._program, self._shape
        base = aligned_bytes(program.end)
        base[: layout.HEADER] = 0
        fields = {
            layout.LDS_SIZE: ("<I", shape.shared_bytes),
            layout.SCRATCH_SIZE: ("<I", program.local_bytes),
            layout.MXCSR32: ("<I", _MXCSR),
            wave.ROUND_DOWN: ("<I", _MXCSR | 1 << 13),
            wave.ROUND_UP: ("<I", _MXCSR | 2 << 13),
            wave.ROUND_TOWARD_ZERO: ("<I", _MXCSR | 3 << 13),
            wave.RESOLVE: ("<Q", resolve),
            wave.PARAMETERS: ("<Q", self._parameters.ctypes.data),
            wave.PARAMETER_SIZE: ("<Q", len(shape.parameters)),
            wave.SHARED_WINDOW: ("<Q", shape.shared_window),
            wave.SHARED_WINDOW_SIZE: ("<Q", shape.shared_window_size),
            wave.LOCAL_WINDOW: ("<Q", shape.local_window),
        }
        for place, (form, value) in fields.items():
            struct.pack_into(form, base.data, place, value)
        for place, data in program.constants.items():
            base[place : place + len(data)] = np.frombuffer(data, np.uint8)
        for name in program.specials:
            _fill_special(base, name, shape)
        for field, place in program.windows.items():
            pair = base[place : place + 2 * layout.ROW].view(np.uint64)
            pair[:] = struct.unpack_from("<Q", base.data, field)[0]
        return base


def _fill_special(base: npt.NDArray[np.uint8], name: str, shape: GridShape) -> None:
    """A special register that is the same for all blocks and warps."""
    one = np.uint32(1)
    blocks = tuple(g // c for g, c in zip(shape.grid, shape.cluster, strict=True))
    in_cluster = shape.cluster[0] * shape.cluster[1] * shape.cluster[2]
    same: dict[str, int | npt.NDArray[np.uint32]] = {
        "%laneid": _LANES,
        "%lanemask_eq": one << _LANES,
        "%lanemask_lt": (one << _LANES) - one,
        "%lanemask_le": (np.uint32(2) << _LANES) - one,
        "%lanemask_ge": ~((one << _LANES) - one),
        "%lanemask_gt": ~((np.uint32(2) << _LANES) - one),
        "%nwarpid": shape.warps,
        "%total_smem_size": shape.shared_bytes,
        "%aggr_smem_size": shape.shared_bytes,
        "%cluster_nctarank": in_cluster,
        "%is_explicit_cluster": int(in_cluster > 1),
        "%nsmid": 1,
    }
    for axis, letter in enumerate(_AXES):
        same[f"%ntid.{letter}"] = shape.block[axis]
        same[f"%nctaid.{letter}"] = shape.grid[axis]
        same[f"%nclusterid.{letter}"] = blocks[axis]
        same[f"%cluster_nctaid.{letter}"] = shape.cluster[axis]
    place = wave.SPECIALS[name] // 4
    base.view(np.uint32)[place : place + layout.LANES] = same.get(name, 0)


def _thread_rows(program: Program, shape: GridShape) -> list[tuple[int, npt.NDArray[np.uint32]]]:
    """(dword of the row, values of all threads of a block) of the registers %tid that are used."""
    x, y, _ = shape.block
    flat = np.arange(shape.warps * layout.LANES, dtype=np.uint32)
    values = {"%tid.x": flat % x, "%tid.y": flat // x % y, "%tid.z": flat // (x * y)}
    used = program.specials & set(values)
    return [(wave.SPECIALS[name] // 4, values[name]) for name in sorted(used)]


def _block_rows(program: Program, shape: GridShape) -> list[tuple[int, Callable[[int], int]]]:
    """(dword of the row, its value by number of the block) of registers that differ by block."""
    found: list[tuple[int, Callable[[int], int]]] = []
    for axis, letter in enumerate(_AXES):
        step = (1, shape.grid[0], shape.grid[0] * shape.grid[1])[axis]
        count, size = shape.grid[axis], shape.cluster[axis]

        def block_of(number: int, step: int = step, count: int = count) -> int:
            return number // step % count

        def cluster_of(number: int, of: Callable[[int], int] = block_of, size: int = size) -> int:
            return of(number) // size

        def within(number: int, of: Callable[[int], int] = block_of, size: int = size) -> int:
            return of(number) % size

        for name, value_of in (
            (f"%ctaid.{letter}", block_of),
            (f"%clusterid.{letter}", cluster_of),
            (f"%cluster_ctaid.{letter}", within),
        ):
            if name in program.specials:
                found.append((wave.SPECIALS[name] // 4, value_of))
    if "%cluster_ctarank" in program.specials:
        found.append((wave.SPECIALS["%cluster_ctarank"] // 4, partial(_rank, shape)))
    return found


def _rank(shape: GridShape, number: int) -> int:
    """The place of a block in its cluster, by its number in the grid."""
    x, y, z = number % shape.grid[0], number // shape.grid[0], 0
    y, z = y % shape.grid[1], y // shape.grid[1]
    a, b, c = (v % size for v, size in zip((x, y, z), shape.cluster, strict=True))
    return a + shape.cluster[0] * (b + shape.cluster[1] * c)

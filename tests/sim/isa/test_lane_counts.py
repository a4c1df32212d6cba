"""The engine for waves of 32, 64 and 128 lanes, on records made by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from gpu.sim.isa import layout, scheduler
from gpu.sim.isa.engine import Engine
from gpu.sim.isa.grid import GroupId, LaneGrid, Start
from gpu.sim.isa.memorymap import MemoryMap
from gpu.sim.isa.rdna.chip import chip_of
from gpu.sim.isa.waves import Wave, aligned_bytes

LANES = (32, 64, 128)
VECTORS = 8


@pytest.fixture(autouse=True)
def needs_llvm(need: Callable[[str], None]) -> None:
    need("llvmlite")


def engine(lanes: int) -> Engine:
    return chip_of("gfx1100").engine(lanes)


class Bare(LaneGrid):
    """A grid of records that never stop for anything but an end."""

    def _stopped(self, number: int, wave: Wave, status: int) -> None:
        raise AssertionError(status)

    def _where(self, number: int) -> str:
        raise NotImplementedError

    def _places(self, wave: Wave) -> list[int]:
        raise NotImplementedError

    def _is_endless(self, wave: Wave) -> bool:
        raise NotImplementedError


class Records:
    """A program of records, on waves whose vector registers begin as one likes."""

    def __init__(self, lanes: int, active: int, vectors: list[npt.NDArray[np.uint32]]):
        self.wave = layout.WaveLayout(lanes)
        self.active = active
        self.memory = MemoryMap()
        self._vectors = vectors
        self._records: list[bytes] = []

    def vector(self, number: int) -> int:
        return self.wave.constants + number * self.wave.row

    def add(self, function: str, immediate: int = 0, aux: int = 0, **rows: int) -> None:
        """Adds a record; operands that are not given are trash."""
        slots = [rows.get(slot, self.wave.trash) for slot in "dabcef"]
        address, place = engine(self.wave.lanes).address(function), len(self._records)
        self._records.append(
            layout.RECORD.pack(address, *slots, immediate, 0, place, aux, layout.NOBODY)
        )

    def run(self) -> npt.NDArray[np.uint32]:
        """The rows of a wave."""
        self.add("end")
        code = aligned_bytes(len(self._records) * layout.RECORD.size)
        code[:] = np.frombuffer(b"".join(self._records), np.uint8)
        wave = self.wave
        memory = aligned_bytes(self.vector(VECTORS))
        view, rows = Wave(memory), memory.view(np.uint32).reshape(-1, wave.lanes)
        memory[: layout.HEADER] = 0
        for field, value in (
            *((layout.MXCSR32, 0x1F80), (layout.LOWEST, layout.NOBODY)),
            (layout.LOOK, scheduler.LOOK),
        ):
            view.set(field, value)
        view.record = code.ctypes.data
        for word in range(wave.words):
            rows[wave.exec // wave.row + word] = self.active >> 32 * word & 0xFFFFFFFF
        for number, values in enumerate(self._vectors):
            rows[self.vector(number) // wave.row] = values
        ids = [GroupId(self.vector(VECTORS - 1), 1, 3, scale=5)]
        rows[self.vector(VECTORS - 1) // wave.row] = 7
        start = Start(wave, 3, memory.reshape(1, -1), ids)
        run = engine(wave.lanes).address(scheduler.NAME)
        grid = Bare(run, NotImplemented, start, self.memory, None, seed=1)
        while not grid.step(1):
            pass
        assert grid.instructions == 3 * len(self._records)
        found = [grid._wave(n).words.reshape(-1, wave.lanes).copy() for n in range(3)]
        groups = sorted(int(each[self.vector(VECTORS - 1) // wave.row, 0]) for each in found)
        assert groups == [7, 12, 17]
        return found[0]

    def row(self, rows: npt.NDArray[np.uint32], offset: int) -> npt.NDArray[np.uint32]:
        found: npt.NDArray[np.uint32] = rows[offset // self.wave.row]
        return found

    def mask(self, rows: npt.NDArray[np.uint32], offset: int) -> int:
        """A mask in as many scalar registers as it takes."""
        words = [int(self.row(rows, offset + n * self.wave.row)[0]) for n in range(self.wave.words)]
        return sum(word << 32 * n for n, word in enumerate(words))


def drawn(lanes: int, seed: int) -> tuple[int, npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """A mask that is neither full nor empty, and two rows."""
    rng = np.random.default_rng(seed)
    mask = int.from_bytes(rng.bytes(lanes // 8), "little") | 2
    values = rng.integers(0, 1 << 32, (2, lanes), np.uint32)
    return mask & ~1, values[0], values[1]


def bits_of(mask: int, lanes: int) -> npt.NDArray[np.bool_]:
    return np.array([mask >> lane & 1 for lane in range(lanes)], np.bool_)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("seed", range(3))
def test_masks(lanes: int, seed: int) -> None:
    """Results are written in active lanes, comparisons give masks, branches see all of them."""
    active, x, y = drawn(lanes, seed)
    records = Records(lanes, active, [x, y, x])
    records.add("v_add_nc_u32", d=records.vector(2), a=records.vector(0), b=records.vector(1))
    vcc = records.wave.vcc
    records.add("v_cmp_lt_u32", d=vcc, a=records.vector(0), b=records.vector(1))
    records.add("v_readfirstlane_b32", d=records.wave.scalar(4), a=records.vector(0))
    rows, on = records.run(), bits_of(active, lanes)
    np.testing.assert_array_equal(records.row(rows, records.vector(2)), np.where(on, x + y, x))
    less = bits_of(records.mask(rows, vcc), lanes)
    np.testing.assert_array_equal(less, (x < y) & on)
    first = int(np.flatnonzero(on)[0])
    np.testing.assert_array_equal(
        records.row(rows, records.wave.scalar(4)), np.full(lanes, x[first])
    )


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("seed", range(3))
def test_memory(lanes: int, seed: int) -> None:
    """Each active lane's address is resolved; loads, stores and atomics touch those alone."""
    active, x, _ = drawn(lanes, seed)
    table = np.arange(4 * lanes, dtype=np.uint32)
    sums, on, zero = np.zeros(1, np.uint32), bits_of(active, lanes), np.zeros_like(x)
    places = np.random.default_rng(seed).permutation(4 * lanes)[:lanes].astype(np.uint32)
    records = Records(lanes, active, [4 * places, zero, x, x, zero, zero])
    pointers, flags = records.wave.pointers, layout.READ | layout.WRITE | layout.ATOMIC
    records.memory.add(0x1000, table.nbytes, table.ctypes.data, flags)
    records.memory.add(0x9000_0000, 4, sums.ctypes.data, flags)
    reads, atomic = 4 | layout.READ << 8, 4 | flags << 8 | 3 << 16
    rows = [records.vector(number) for number in range(6)]
    records.add("resolve_vector", 0x1000, reads, d=pointers, a=rows[0])
    records.add("load_b32", d=rows[3], b=pointers)
    records.add("resolve_vector", 0x9000_0000, atomic, d=pointers, a=rows[4])
    records.add("atomic_add_32", a=rows[2], b=pointers)
    found = records.run()
    np.testing.assert_array_equal(records.row(found, rows[3]), np.where(on, places, x))
    assert sums[0] == 3 * int(x[on].sum(dtype=np.uint64)) % (1 << 32)


@pytest.mark.parametrize("lanes", LANES)
def test_moves_between_lanes(lanes: int) -> None:
    """DPP and DS_BPERMUTE see which lanes are active, within groups of 32 where they do."""
    active, x, y = drawn(lanes, 7)
    on, lane = bits_of(active, lanes), np.arange(lanes)
    source = lane & ~3 | 3 - (lane & 3)
    records = Records(lanes, active, [x, source.astype(np.uint32), y, 4 * y, y])
    rows = [records.vector(number) for number in range(5)]
    records.add("dpp", -1, d=rows[2], a=rows[0], b=rows[1])
    records.add("restore_exec")
    records.add("ds_bpermute_b32", d=rows[4], a=rows[0], b=rows[3])
    found = records.run()
    moved = np.where(on[source], x[source], 0)
    np.testing.assert_array_equal(records.row(found, rows[2]), moved)
    assert records.mask(found, records.wave.exec) == active
    place = (y & 31) | (lane & ~31)
    wanted = np.where(on, np.where(on[place], x[place], 0), y)
    np.testing.assert_array_equal(records.row(found, rows[4]), wanted)

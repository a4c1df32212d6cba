"""The state that waves of a dispatch start with."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from gpu.core.errors import InvalidValue
from gpu.sim.isa import layout
from gpu.sim.isa.control import mxcsr_of
from gpu.sim.isa.memorymap import MemoryMap
from gpu.sim.isa.rdna.constants import PRIVATE_APERTURE, SHARED_APERTURE
from gpu.sim.isa.rdna.dispatch import Dispatch
from gpu.sim.isa.rdna.program import Program

POISON: Final = 0xA5
"""The byte that registers, LDS and scratch hold before anything is written there."""


class Wave:
    """A wave: its memory, and where it goes on.

    Attributes:
        memory: see gpu/sim/isa/layout.py; its first byte is aligned to a row.
        words: the same as dwords.
        address: of its memory.
        group: number of its workgroup in the dispatch.
        index: its place in the workgroup.
        record: address of the record to go on with.
        waiting: it stands at a barrier.
        done: it has ended.
        keep: memory that it points to.
    """

    __slots__ = (
        *("memory", "words", "address", "group", "index", "record", "waiting", "done", "keep"),
        "_view",
    )

    def __init__(self, memory: npt.NDArray[np.uint8]):
        self.memory = memory
        self.words = memory.view(np.uint32)
        self.address: int = memory.ctypes.data
        self._view = memory.data
        self.begin(0, 0, 0)

    def begin(self, group: int, index: int, record: int) -> None:
        """Makes another wave of it, whose memory is still to be filled."""
        self.group = group
        self.index = index
        self.record = record
        self.waiting = False
        self.done = False
        self.keep: list[npt.NDArray[np.uint8]] = []

    def word(self, offset: int, format: str = "<I") -> int:
        """A field of the header."""
        value: int = struct.unpack_from(format, self._view, offset)[0]
        return value

    def set(self, offset: int, value: int, format: str = "<I") -> None:
        """Writes a field of the header."""
        struct.pack_into(format, self._view, offset, value)


def aligned_bytes(size: int, align: int = layout.ROW) -> npt.NDArray[np.uint8]:
    """Fresh memory, poisoned."""
    raw = np.full(size + align, POISON, np.uint8)
    skip = -raw.ctypes.data % align
    return raw[skip : skip + size]


class WaveMaker:
    """Makes the waves of a dispatch from one template."""

    def __init__(self, dispatch: Dispatch, program: Program, memory: MemoryMap):
        self._dispatch = dispatch
        self._memory = memory
        self._program = program
        self.size = program.rows * layout.ROW
        self._template = self._make_template()
        self._ids = _packed_ids(dispatch)
        self._spare: list[Wave] = []
        self._entry = self._program.record_address(0)

    def groups(self) -> int:
        """Workgroups of the dispatch."""
        x, y, z = self._dispatch.grid
        return x * y * z

    def make(self, group: int, index: int, lds: npt.NDArray[np.uint8], slot: int) -> Wave:
        """Wave `index` of a workgroup; `slot` is its place in scratch memory."""
        dispatch = self._dispatch
        wave = self._spare.pop() if self._spare else Wave(aligned_bytes(self.size))
        wave.begin(group, index, self._entry)
        wave.memory[: len(self._template)] = self._template
        wave.memory[len(self._template) :] = POISON
        wave.keep.append(lds)
        wave.set(layout.LDS, lds.ctypes.data, "<Q")
        words = wave.words
        self._set_group_registers(words, group, index)
        first = index * layout.LANES
        ids = self._ids[first : first + layout.LANES]
        start = self._program.vector_offset // 4
        words[start : start + len(ids)] = ids
        lanes = (1 << len(ids)) - 1
        exec_word = layout.EXEC_OFFSET // 4
        words[exec_word : exec_word + layout.LANES] = lanes
        if dispatch.scratch_bytes:
            self._set_scratch(wave, slot)
        return wave

    def recycle(self, wave: Wave) -> None:
        """Takes back a wave that has ended, to make another of it."""
        self._spare.append(wave)

    def take_ranges(self, waves: Sequence[Wave]) -> None:
        """Tells waves that live, and those still to be made, what addresses mean now."""
        self._table = self._memory.table()  # kept: the waves hold its address
        for memory in (self._template, *(wave.memory for wave in waves)):
            struct.pack_into(
                "<QQ", memory.data, layout.RANGES, self._table.ctypes.data, len(self._table)
            )
            struct.pack_into("<QQQI", memory.data, layout.HIT_START, 0, 0, 0, 0)

    def _make_template(self) -> npt.NDArray[np.uint8]:
        dispatch = self._dispatch
        template = aligned_bytes(self._program.vector_offset)
        template[: layout.HEADER] = 0
        words = template.view(np.uint32)
        rows = words[layout.HEADER // 4 :].reshape(-1, layout.LANES)
        first = (layout.SGPRS - layout.HEADER) // layout.ROW
        for number, value in enumerate(dispatch.user_sgprs):
            rows[first + number] = value
        for number in (layout.VCC_LO, layout.VCC_LO + 1, layout.EXEC + 1, layout.M0, layout.NULL):
            rows[first + number] = 0
        if len(self._program.constants):
            rows[-len(self._program.constants) :] = self._program.constants
        mode = dispatch.mode
        small = {
            layout.LDS_SIZE: dispatch.lds_bytes,
            layout.SCRATCH_SIZE: dispatch.scratch_bytes,
            layout.SHARED_APERTURE: SHARED_APERTURE,
            layout.PRIVATE_APERTURE: PRIVATE_APERTURE,
            layout.MODE: mode,
            layout.MXCSR32: mxcsr_of(mode & 3, mode >> 4 & 3),
            layout.MXCSR64: mxcsr_of(mode >> 2 & 3, mode >> 6 & 3),
        }
        for place, value in small.items():
            struct.pack_into("<I", template.data, place, value)
        return template

    def _set_group_registers(self, words: npt.NDArray[np.uint32], group: int, index: int) -> None:
        """The workgroup's ids behind the user SGPRs, those that the dispatch enables."""
        dispatch = self._dispatch
        x, y, _ = dispatch.grid
        ids = (group % x, group // x % y, group // (x * y))
        values = [number for number, on in zip(ids, dispatch.workgroup_ids, strict=True) if on]
        if dispatch.workgroup_info:  # TG_SIZE: waves of the group 5:0, first wave 31
            values.append(dispatch.waves_per_group | (index == 0) << 31)
        place = layout.SGPRS // 4 + len(dispatch.user_sgprs) * layout.LANES
        for number in values:
            words[place : place + layout.LANES] = number
            place += layout.LANES

    def _set_scratch(self, wave: Wave, slot: int) -> None:
        dispatch = self._dispatch
        size = dispatch.scratch_bytes * layout.LANES
        if dispatch.scratch_address is None:
            own = aligned_bytes(size)
            wave.keep.append(own)
            wave.set(layout.SCRATCH, own.ctypes.data, "<Q")
            return
        address = dispatch.scratch_address + slot * size
        host = self._memory.host_address(address, size)
        if host is None:
            raise InvalidValue(f"scratch of a wave, {size:#x} bytes at {address:#x}, is not mapped")
        wave.set(layout.SCRATCH, host, "<Q")


def _packed_ids(dispatch: Dispatch) -> npt.NDArray[np.uint32]:
    """v0 of every work-item of a workgroup: 10 bits for each of x, y and z."""
    x, y, z = dispatch.block
    flat = np.arange(x * y * z, dtype=np.uint32)
    ids = flat % x
    if dispatch.workitem_dims > 1:
        ids |= (flat // x % y) << 10
    if dispatch.workitem_dims > 2:
        ids |= (flat // (x * y)) << 20
    return ids

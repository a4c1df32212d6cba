"""The state that waves of a dispatch start with."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpu.core.errors import InvalidValue
from gpu.sim.isa import layout
from gpu.sim.isa.circles import Circle
from gpu.sim.isa.control import mxcsr_of
from gpu.sim.isa.memorymap import MemoryMap
from gpu.sim.isa.rdna.constants import PRIVATE_APERTURE, SHARED_APERTURE
from gpu.sim.isa.rdna.dispatch import Dispatch
from gpu.sim.isa.rdna.program import Program
from gpu.sim.isa.waves import aligned_bytes


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
        circle: what is known of where it goes round.
        done: it has ended.
        keep: memory that it points to.
    """

    __slots__ = (
        *("memory", "words", "address", "group", "index", "record", "waiting", "done", "keep"),
        *("_view", "circle"),
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
        self.circle = Circle()
        self.keep: list[npt.NDArray[np.uint8]] = []

    def state(self) -> tuple[int, bytes, bytes]:
        """All that decides what it does next but memory."""
        counted = layout.COUNT + 8
        return self.record, bytes(self._view[: layout.COUNT]), bytes(self._view[counted:])

    def word(self, offset: int, format: str = "<I") -> int:
        """A field of the header."""
        value: int = struct.unpack_from(format, self._view, offset)[0]
        return value

    def set(self, offset: int, value: int, format: str = "<I") -> None:
        """Writes a field of the header."""
        struct.pack_into(format, self._view, offset, value)


class WaveMaker:
    """Makes the waves of a dispatch from templates, one for each place in a workgroup."""

    def __init__(self, dispatch: Dispatch, program: Program, memory: MemoryMap):
        self._dispatch = dispatch
        self._memory = memory
        self._program = program
        self.size = program.rows * layout.ROW
        self._base = self._make_base()
        self._templates: dict[int, npt.NDArray[np.uint8]] = {}
        self._ids = _packed_ids(dispatch)
        self._spare: list[Wave] = []
        self._entry = self._program.record_address(0)
        places = self._id_places()
        # Dwords at which an id begins that is not the same for all workgroups.
        self._moving = [(axis, at) for axis, at in places.items() if dispatch.grid[axis] > 1]

    def groups(self) -> int:
        """Workgroups of the dispatch."""
        x, y, z = self._dispatch.grid
        return x * y * z

    def make(self, group: int, index: int, lds: int, slot: int) -> Wave:
        """Wave `index` of a workgroup, whose LDS is at `lds`; `slot`: its place in scratch memory.

        Addresses are the host's.
        """
        wave = self._spare.pop() if self._spare else Wave(aligned_bytes(self.size))
        wave.begin(group, index, self._entry)
        template = self._templates.get(index)
        if template is None:
            template = self._templates[index] = self._make_template(index)
        wave.memory[:] = template
        wave.set(layout.LDS, lds, "<Q")
        if self._moving:
            x, y, _ = self._dispatch.grid
            ids = (group % x, group // x % y, group // (x * y))
            for axis, at in self._moving:
                wave.words[at : at + layout.LANES] = ids[axis]
        if self._dispatch.scratch_bytes:
            self._set_scratch(wave, slot)
        return wave

    def recycle(self, wave: Wave) -> None:
        """Takes back a wave that has ended, to make another of it."""
        self._spare.append(wave)

    def take_ranges(self, waves: Sequence[Wave]) -> None:
        """Tells waves that live, and those still to be made, what addresses mean now."""
        self._table = self._memory.table()  # kept: the waves hold its address
        where = (self._table.ctypes.data, len(self._table))
        for memory in (self._base, *self._templates.values(), *(wave.memory for wave in waves)):
            struct.pack_into("<QQ", memory.data, layout.RANGES, *where)

    def _make_base(self) -> npt.NDArray[np.uint8]:
        """What all waves begin with; vector registers are poisoned."""
        dispatch = self._dispatch
        base = aligned_bytes(self.size)
        base[: layout.HEADER] = 0
        end = self._program.vector_offset // 4
        rows = base.view(np.uint32)[layout.HEADER // 4 : end].reshape(-1, layout.LANES)
        first = (layout.SGPRS - layout.HEADER) // layout.ROW
        for number, value in enumerate(dispatch.user_sgprs):
            rows[first + number] = value
        for number in (layout.VCC_LO, layout.VCC_LO + 1, layout.EXEC + 1, layout.M0, layout.NULL):
            rows[first + number] = 0
        for at in self._id_places().values():
            base.view(np.uint32)[at : at + layout.LANES] = 0
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
            struct.pack_into("<I", base.data, place, value)
        return base

    def _make_template(self, index: int) -> npt.NDArray[np.uint8]:
        """What the wave at a place of every workgroup begins with."""
        dispatch = self._dispatch
        template = aligned_bytes(self.size)
        template[:] = self._base
        words = template.view(np.uint32)
        first = index * layout.LANES
        ids = self._ids[first : first + layout.LANES]
        start = self._program.vector_offset // 4
        words[start : start + len(ids)] = ids
        exec_word = layout.EXEC_OFFSET // 4
        words[exec_word : exec_word + layout.LANES] = (1 << len(ids)) - 1
        if dispatch.workgroup_info:  # TG_SIZE: waves of the group 5:0, first wave 31
            at = self._first_id() + layout.LANES * len(self._id_places())
            info = dispatch.waves_per_group | (index == 0) << 31
            words[at : at + layout.LANES] = info
        return template

    def _first_id(self) -> int:
        """The dword behind the user SGPRs, where what the dispatch enables follows."""
        return layout.SGPRS // 4 + len(self._dispatch.user_sgprs) * layout.LANES

    def _id_places(self) -> dict[int, int]:
        """At which dword the workgroup's id of each axis begins, of those that are enabled."""
        axes = [axis for axis, on in enumerate(self._dispatch.workgroup_ids) if on]
        return {axis: self._first_id() + n * layout.LANES for n, axis in enumerate(axes)}

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

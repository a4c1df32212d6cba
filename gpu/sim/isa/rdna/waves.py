"""What the waves of a dispatch begin with."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from gpu.core.errors import InvalidValue
from gpu.sim.isa import layout, scheduler
from gpu.sim.isa.control import mxcsr_of
from gpu.sim.isa.grid import GroupId, Start, resident_groups
from gpu.sim.isa.memorymap import MemoryMap
from gpu.sim.isa.rdna.constants import PRIVATE_APERTURE, SHARED_APERTURE
from gpu.sim.isa.rdna.dispatch import Dispatch
from gpu.sim.isa.rdna.program import Program
from gpu.sim.isa.waves import POISON, aligned_bytes

_POISON: int = POISON * 0x01010101
_ZEROS = np.array(
    (layout.VCC_LO, layout.VCC_LO + 1, layout.EXEC + 1, layout.M0, layout.NULL)
)  # scalar registers that begin as 0


def start_of(dispatch: Dispatch, program: Program, memory: MemoryMap) -> Start:
    """What the waves of a dispatch begin with.

    Raises InvalidValue where scratch memory has no room for a workgroup, or is not mapped.
    """
    x, y, z = dispatch.grid
    places = _id_places(dispatch, program)
    steps = (1, x, x * y)
    place = program.wave.scalar(_behind_ids(dispatch, program) + dispatch.workgroup_info)
    ids = [
        GroupId(at, steps[axis], dispatch.grid[axis], scale=scale)
        for axis, (at, scale) in places.items()
    ]
    described = program.chip.scratch_in_sgprs
    most, scratch = _scratch(dispatch, memory, described)
    per_wave = dispatch.scratch_bytes * dispatch.lanes
    return Start(
        wave=program.wave,
        groups=x * y * z,
        templates=_templates(dispatch, program, places),
        arguments=np.array(dispatch.user_sgprs, np.uint32).view(np.uint8),
        users=program.wave.scalars,
        ids=[each for each in ids if each.wrap > 1],
        lds_bytes=dispatch.lds_bytes,
        scratch_bytes=0 if described else per_wave,
        scratch=scratch,
        most_groups=most,
        place=(place, per_wave) if described and dispatch.has_scratch else (0, 0),
    )


def _templates(
    dispatch: Dispatch, program: Program, places: dict[int, tuple[int, int]]
) -> npt.NDArray[np.uint8]:
    """The waves of a workgroup as they begin, but for user SGPRs; vector registers are poisoned."""
    wave, count = program.wave, dispatch.waves_per_group
    size, row = program.rows * wave.row, wave.row
    memory = aligned_bytes(count * size).reshape(count, size)
    rows = memory.view(np.uint32).reshape(count, -1, wave.lanes)
    rows[:, : layout.HEADER // row] = 0
    header = _header(dispatch, program)
    memory[:, : len(header)] = np.frombuffer(header, np.uint8)
    first = wave.scalars // row
    rows[:, first + _ZEROS] = 0
    for at, _ in places.values():
        rows[:, at // row] = 0
    constants = wave.constants // row
    rows[:, constants : constants + len(program.constants)] = program.constants
    threads, ids = dispatch.threads, _packed_ids(dispatch)
    rows[:, program.vector_offset // row] = ids.reshape(count, wave.lanes)
    for number in range(count):
        active = (1 << min(wave.lanes, threads - number * wave.lanes)) - 1
        for word in range(wave.words):
            rows[number, first + layout.EXEC + word] = active >> 32 * word & 0xFFFFFFFF
    if dispatch.workgroup_info:  # TG_SIZE: waves of the group 5:0, first wave 31
        at = first + _behind_ids(dispatch, program)
        rows[:, at] = count
        rows[0, at] |= np.uint32(1 << 31)
    return memory


def _header(dispatch: Dispatch, program: Program) -> bytes:
    header = bytearray(layout.HEADER)
    mode = dispatch.mode
    if not program.chip.has_ieee_mode:
        mode = mode & ~layout.MODE_IEEE | layout.MODE_DX10_CLAMP
    for place, value in {
        layout.LDS_SIZE: dispatch.lds_bytes,
        layout.SCRATCH_SIZE: 0 if program.chip.scratch_in_sgprs else dispatch.scratch_bytes,
        layout.SHARED_APERTURE: SHARED_APERTURE,
        layout.PRIVATE_APERTURE: PRIVATE_APERTURE,
        layout.MODE: mode,
        layout.MXCSR32: mxcsr_of(mode & 3, mode >> 4 & 3),
        layout.MXCSR64: mxcsr_of(mode >> 2 & 3, mode >> 6 & 3),
        layout.LOWEST: layout.NOBODY,
        layout.LOOK: scheduler.LOOK,
    }.items():
        struct.pack_into("<I", header, place, value)
    struct.pack_into("<Q", header, layout.RESUME, program.record_address(0))
    struct.pack_into("<Q", header, layout.TALLY, dispatch.tally)
    return bytes(header)


def _id_places(dispatch: Dispatch, program: Program) -> dict[int, tuple[int, int]]:
    """Where the workgroup's id of each axis lies, and how much one counts there.

    In SGPRs those that are enabled lie one behind the other (LLVM, "User Guide for AMDGPU
    Backend", "Initial Kernel Execution State"); RDNA4 has x in TTMP9, y and z in halves of TTMP7.
    """
    wave = program.wave
    if program.chip.ids_in_ttmp:
        seventh, ninth = (wave.scalar(layout.TTMP + number) for number in (7, 9))
        return {0: (ninth, 1), 1: (seventh, 1), 2: (seventh, 1 << 16)}
    axes = [axis for axis, on in enumerate(dispatch.workgroup_ids) if on]
    first = len(dispatch.user_sgprs)
    return {axis: (wave.scalar(first + n), 1) for n, axis in enumerate(axes)}


def _behind_ids(dispatch: Dispatch, program: Program) -> int:
    """The first SGPR behind user SGPRs and ids."""
    ids = 0 if program.chip.ids_in_ttmp else sum(dispatch.workgroup_ids)
    return len(dispatch.user_sgprs) + ids


def _scratch(dispatch: Dispatch, memory: MemoryMap, described: bool) -> tuple[int, list[int]]:
    """(workgroups that it has room for, host addresses of its waves'). Raises InvalidValue.

    There are no addresses where user SGPRs have them.
    """
    base, count = dispatch.scratch_address, dispatch.waves_per_group
    if not dispatch.has_scratch if described else base is None:
        return scheduler.RESIDENT, []
    room = dispatch.scratch_waves // count
    if not room:
        raise InvalidValue(
            f"scratch memory has room for {dispatch.scratch_waves} waves, a workgroup has {count}"
        )
    if base is None:
        return room, []
    x, y, z = dispatch.grid
    size, addresses = dispatch.scratch_bytes * dispatch.lanes, []
    for wave in range(min(room, resident_groups(count, x * y * z)) * count if size else 0):
        address = base + wave * size
        host = memory.host_address(address, size)
        if host is None:
            raise InvalidValue(f"scratch of a wave, {size:#x} bytes at {address:#x}, is not mapped")
        addresses.append(host)
    return room, addresses


def _packed_ids(dispatch: Dispatch) -> npt.NDArray[np.uint32]:
    """v0 of every work-item: 10 bits for each of x, y and z; poison where there is none."""
    x, y, _ = dispatch.block
    flat = np.arange(dispatch.waves_per_group * dispatch.lanes, dtype=np.uint32)
    ids = flat % x
    if dispatch.workitem_dims > 1:
        ids |= (flat // x % y) << 10
    if dispatch.workitem_dims > 2:
        ids |= (flat // (x * y)) << 20
    ids[dispatch.threads :] = _POISON
    return ids

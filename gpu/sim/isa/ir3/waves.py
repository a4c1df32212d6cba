"""What the waves of a dispatch begin with."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from gpu.core.errors import InvalidValue
from gpu.sim.isa import layout, scheduler
from gpu.sim.isa.control import mxcsr_of
from gpu.sim.isa.grid import GroupId, Start, resident_groups
from gpu.sim.isa.ir3 import wave as own
from gpu.sim.isa.ir3.dispatch import Dispatch
from gpu.sim.isa.ir3.program import Program
from gpu.sim.isa.ir3.registers import SHARED
from gpu.sim.isa.memorymap import MemoryMap
from gpu.sim.isa.waves import aligned_bytes

_AXES = 3


def start_of(dispatch: Dispatch, program: Program, memory: MemoryMap) -> Start:
    """What the waves of a dispatch begin with.

    Raises InvalidValue where private memory has no room for a workgroup, or is not mapped, and for
    ids in registers that a thread does not have.
    """
    x, y, z = dispatch.groups
    places = _group_places(dispatch, program)
    steps = (1, x, x * y)
    ids = [GroupId(at, steps[axis], dispatch.groups[axis]) for axis, at in enumerate(places)]
    most, private = _private(dispatch, memory)
    return Start(
        wave=program.wave,
        groups=x * y * z,
        templates=_templates(dispatch, program, places),
        arguments=np.frombuffer(dispatch.constants, np.uint8).copy(),
        users=program.wave.constants if dispatch.constants else 0,
        ids=[each for each in ids if each.wrap > 1],
        lds_bytes=dispatch.shared_bytes,
        scratch_bytes=dispatch.private_bytes * dispatch.lanes,
        scratch=private,
        most_groups=most,
    )


def _register(program: Program, first: int) -> list[int]:
    """Rows of three components. Raises InvalidValue."""
    if first >> 2 >= SHARED:
        return [program.rows.shared(first + axis) for axis in range(_AXES)]
    if first + 1 > program.rows.components:
        raise InvalidValue(
            f"ids in r{first >> 2}: a thread has {program.rows.components // 4} registers"
        )
    last = program.rows.components - first
    return [program.rows.register(first + axis) for axis in range(min(_AXES, last))]


def _group_places(dispatch: Dispatch, program: Program) -> list[int]:
    if dispatch.group_at is None:
        return []
    return _register(program, dispatch.group_at)


def _templates(dispatch: Dispatch, program: Program, groups: list[int]) -> npt.NDArray[np.uint8]:
    """The waves of a workgroup as they begin; what nobody has written is poisoned."""
    wave, count = program.wave, dispatch.waves_per_group
    threads = _register(program, dispatch.thread_at) if dispatch.thread_at is not None else []
    size, row = program.rows.count * wave.row, wave.row
    memory = aligned_bytes(count * size).reshape(count, size)
    rows = memory.view(np.uint32).reshape(count, -1, wave.lanes)
    header = _header(dispatch, program)
    memory[:, : layout.HEADER] = 0
    memory[:, : len(header)] = np.frombuffer(header, np.uint8)
    rows[:, wave.pcs // row] = layout.NOBODY
    for at in groups:
        rows[:, at // row] = 0
    for (kind, word), place in program.rows.extra.items():
        if kind == "word":
            behind = program.rows.registers // row + program.rows.components
            rows[:, behind + place] = word
    flat = np.arange(count * wave.lanes, dtype=np.uint32).reshape(count, wave.lanes)
    x, y, _ = dispatch.block
    for at, ids in zip(threads, (flat % x, flat // x % y, flat // (x * y)), strict=False):
        rows[:, at // row] = ids
    for number in range(count):
        active = (1 << min(wave.lanes, dispatch.threads - number * wave.lanes)) - 1
        for word in range(wave.words):
            rows[number, wave.exec // row + word] = active >> 32 * word & 0xFFFFFFFF
    return memory


def _header(dispatch: Dispatch, program: Program) -> bytes:
    header = bytearray(layout.HEADER)
    for place, value in {
        layout.LDS_SIZE: dispatch.shared_bytes,
        layout.SCRATCH_SIZE: dispatch.private_bytes,
        layout.MXCSR32: mxcsr_of(0, 0),
        layout.LOWEST: layout.NOBODY,
        layout.LOOK: scheduler.LOOK,
        own.BRANCHES: 2 * dispatch.branches,
    }.items():
        struct.pack_into("<I", header, place, value)
    for place, address in {
        layout.RESUME: program.record_address(0),
        own.CODE: program.record_address(0),
        own.JOIN: program.join(),
    }.items():
        struct.pack_into("<Q", header, place, address)
    return bytes(header)


def _private(dispatch: Dispatch, memory: MemoryMap) -> tuple[int, list[int]]:
    """(workgroups that it has room for, host addresses of its waves'). Raises InvalidValue."""
    base, count = dispatch.private_address, dispatch.waves_per_group
    size = dispatch.private_bytes * dispatch.lanes
    if base is None or not size:
        return scheduler.RESIDENT, []
    room = dispatch.private_size // size // count
    if not room:
        raise InvalidValue(
            f"{dispatch.private_size} bytes of private memory: a workgroup needs {size * count}"
        )
    x, y, z = dispatch.groups
    addresses = []
    for wave in range(min(room, resident_groups(count, x * y * z)) * count):
        address = base + wave * size
        host = memory.host_address(address, size)
        if host is None:
            raise InvalidValue(
                f"private memory of a wave, {size:#x} bytes at {address:#x}, is not mapped"
            )
        addresses.append(host)
    return room, addresses

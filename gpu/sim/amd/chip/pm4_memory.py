"""PM4 packets that read, write, wait and signal.

Layouts: Linux 6.12 amdgpu/nvd.h (GFX10 and later) and soc15d.h (GFX9); COPY_DATA and ATOMIC_MEM as
in hw/dossier 5.3 and the kernel's users of them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

from gpu.autogen.amd import pm4_gfx9, pm4_gfx10
from gpu.autogen.amd import pm4_gfx10 as op
from gpu.sim.amd.chip.atomics import COMPARE_SWAP, find_atomic
from gpu.sim.amd.chip.caches import CacheControl
from gpu.sim.amd.chip.errors import PacketError
from gpu.sim.amd.chip.hwqueue import Blocked
from gpu.sim.amd.chip.pm4 import Handler, PacketProcessor, address_of, need, reserved
from gpu.sim.amd.chip.port import Port

COMPARE: Final[dict[int, tuple[str, Callable[[int, int], bool]]]] = {
    0: ("always", lambda a, b: True),
    1: ("<", operator.lt),
    2: ("<=", operator.le),
    3: ("==", operator.eq),
    4: ("!=", operator.ne),
    5: (">=", operator.ge),
    6: (">", operator.gt),
}
_EVENTS = op.EVENTS
# Event -> the index that belongs to it: 5 for end-of-pipe time stamps, 6 for the end of shaders.
_RELEASE_EVENTS: Final = {
    _EVENTS["CACHE_FLUSH_TS"]: 5,
    _EVENTS["CACHE_FLUSH_AND_INV_TS_EVENT"]: 5,
    _EVENTS["BOTTOM_OF_PIPE_TS"]: 5,
    _EVENTS["CS_DONE"]: 6,
}
_HDP_FLUSH: Final = (0xE26, 0xE27)
"""Dwords of BIF_BX_PF0_GPU_HDP_FLUSH_REQ and _DONE (nbio_4_3_0_offset.h; segment 2 is 0xd20)."""
_COUNTER: Final = 4
"""Where COPY_DATA finds a performance counter (Mesa's sid.h, COPY_DATA_PERF)."""
_RELEASE_WIDTH: Final = {0: 0, 1: 4, 2: 8, 3: 8, 4: 8}
_GCR: Final = pm4_gfx10.FIELDS["ACQUIRE_MEM"]
_COHER: Final = pm4_gfx9.FIELDS["ACQUIRE_MEM"]


def _write_data(cp: PacketProcessor, body: list[int]) -> None:
    if len(body) < 4:
        raise PacketError(f"WRITE_DATA with {len(body)} dwords after the header: at least 4")
    reserved("WRITE_DATA", 1, body[0], 0xF00 | 1 << 16 | 1 << 20 | 3 << 25 | 3 << 30)
    target = body[0] >> 8 & 0xF
    if target not in (2, 5):
        raise PacketError(f"WRITE_DATA to {target}: user queues write memory (5) or L2 (2)")
    if body[0] >> 30:
        raise PacketError(f"WRITE_DATA by engine {body[0] >> 30}: compute has only 0")
    address = address_of("WRITE_DATA", body[1], body[2], 4)
    port = cp.l2_port if target == 2 else cp.port
    values = body[3:]
    if body[0] >> 16 & 1:  # WR_ONE_ADDR: each overwrites the one before
        port.write_word(address, 4, values[-1])
    elif len(values) == 1:
        port.write_word(address, 4, values[0])
    elif len(values) == 2 and not address % 8:
        port.write_word(address, 8, values[1] << 32 | values[0])
    else:
        port.write(address, b"".join(value.to_bytes(4, "little") for value in values))


def _copy_data(cp: PacketProcessor, body: list[int]) -> None:
    need("COPY_DATA", body, 5)
    control = body[0]
    allowed = 0xF | 0xF00 | 3 << 13 | 1 << 16 | 1 << 20 | 3 << 25 | 1 << 29
    reserved("COPY_DATA", 1, control, allowed)
    source, target = control & 0xF, control >> 8 & 0xF
    width = 8 if control >> 16 & 1 else 4
    ports = {1: cp.port, 2: cp.l2_port, 5: cp.port}
    if source in (1, 2):
        from_address = address_of("COPY_DATA source", body[1], body[2], width)
        value = ports[source].read_word(from_address, width)
    elif source == 5:
        value = body[2] << 32 | body[1]
    elif source == 9:
        value = cp.queue.sim.clock.gpu_ticks
    elif source == _COUNTER:
        reserved("COPY_DATA", 2, body[1], 0x3FFFF)
        if width == 8 or body[2]:
            raise PacketError("COPY_DATA of a counter: 32 bits, of which GFX11's have no more")
        value = cp.queue.asic.counters.read(body[1])
    else:
        raise PacketError(f"COPY_DATA from {source}: user queues copy from 1, 2, 4, 5 and 9")
    if target not in ports:
        raise PacketError(f"COPY_DATA to {target}: user queues copy to 1, 2 and 5")
    to_address = address_of("COPY_DATA target", body[3], body[4], width)
    ports[target].write_word(to_address, width, value)


def _wait_reg_mem(cp: PacketProcessor, body: list[int]) -> bool:
    need("WAIT_REG_MEM", body, 6)
    if not body[0] >> 4 & 3:
        return _flush_hdp(cp, body)
    address = address_of("WAIT_REG_MEM", body[1], body[2], 4)
    reserved("WAIT_REG_MEM", 6, body[5], 0xFFFF | 1 << 31)
    return _wait(cp, "WAIT_REG_MEM", body[0], address, body[3], body[4], 4)


def _flush_hdp(cp: PacketProcessor, body: list[int]) -> bool:
    """WAIT_REG_MEM that writes a register and waits for another: the request to flush HDP.

    Linux 6.12, gfx_v11_0_ring_emit_hdp_flush.
    """
    reserved("WAIT_REG_MEM", 1, body[0], 0x7 | 0xC0)
    if body[0] >> 6 & 3 != 1 or tuple(body[1:3]) != _HDP_FLUSH:
        raise PacketError(
            f"WAIT_REG_MEM on registers {body[1]:#x} and {body[2]:#x}: user queues wait on memory,"
            f" and write {_HDP_FLUSH[0]:#x} and wait for {_HDP_FLUSH[1]:#x} to flush HDP"
        )
    cp.queue.asic.vram.flush()
    return True


def _wait_reg_mem64(cp: PacketProcessor, body: list[int]) -> bool:
    need("WAIT_REG_MEM64", body, 8)
    if cp.queue.asic.chip.gc[0] < 11:
        raise PacketError("WAIT_REG_MEM64 needs GFX11")
    address = address_of("WAIT_REG_MEM64", body[1], body[2], 8)
    reserved("WAIT_REG_MEM64", 8, body[7], 0xFFFF | 1 << 31)
    reference, mask = body[4] << 32 | body[3], body[6] << 32 | body[5]
    return _wait(cp, "WAIT_REG_MEM64", body[0], address, reference, mask, 8)


def _wait(
    cp: PacketProcessor,
    name: str,
    control: int,
    address: int,
    reference: int,
    mask: int,
    width: int,
) -> bool:
    reserved(name, 1, control, 0x7 | 0x30 | 0xC0 | 0x300 | 3 << 25)
    if control >> 4 & 3 != 1:
        raise PacketError(f"{name} on a register: user queues wait on memory")
    if control >> 6 & 3 or control >> 8 & 3:
        raise PacketError(f"{name} with control {control:#x}: compute only waits, with engine 0")
    if control & 7 not in COMPARE:
        raise PacketError(f"{name} with function 7")
    text, compare = COMPARE[control & 7]
    port = cp.port

    def met() -> bool:
        return compare(port.read_word(address, width) & mask, reference)

    if met():
        return True
    what = f"{name} of {address:#x} & {mask:#x} {text} {reference:#x}"
    cp.queue.blocked = Blocked(what, met)
    return False


def _release_mem(cp: PacketProcessor, body: list[int]) -> None:
    need("RELEASE_MEM", body, 7)
    control, select = body[0], body[1]
    gfx9 = cp.queue.asic.chip.pm4 == "gfx9"
    allowed = 0xF3F | (0x3FF000 if gfx9 else 0xFFF000) | 3 << 25 | 1 << 28
    reserved("RELEASE_MEM", 1, control, allowed)
    reserved("RELEASE_MEM", 2, select, 3 << 16 | 7 << 24 | 7 << 29)
    event, index = control & 0x3F, control >> 8 & 0xF
    if _RELEASE_EVENTS.get(event) != index:
        raise PacketError(f"RELEASE_MEM of event {event:#x} with index {index}")
    target, interrupt, data = select >> 16 & 3, select >> 24 & 7, select >> 29
    if data not in _RELEASE_WIDTH or target > 1 or interrupt > 3:
        raise PacketError(f"RELEASE_MEM dword 2 is {select:#x}: a selector out of range")
    width = _RELEASE_WIDTH[data]
    address = address_of("RELEASE_MEM", body[2], body[3], width) if width else 0
    flush = _released_caches(control, gfx9)
    port = cp.l2_port if target else cp.port
    value = body[5] << 32 | body[4]

    def act() -> None:
        cp.queue.asic.caches.control(flush)
        if cp.queue.loses_completion():
            return
        if width:
            stamp = cp.queue.sim.clock.gpu_ticks
            port.write_word(address, width, stamp if data in (3, 4) else value)
        if interrupt in (1, 2):
            cp.queue.interrupt(body[6], 32)

    cp.at_end_of_pipe(act)


@cache
def _released_caches(control: int, gfx9: bool) -> CacheControl:
    if gfx9:
        values = pm4_gfx9.VALUES["RELEASE_MEM"]
        return CacheControl(
            invalidate_vector=bool(control & values["EOP_TCL1_ACTION_EN"]),
            invalidate_l2=bool(control & values["EOP_TC_ACTION_EN"]),
            write_back_l2=bool(control & values["EOP_TC_WB_ACTION_EN"]),
        )
    values = pm4_gfx10.VALUES["RELEASE_MEM"]
    return CacheControl(
        invalidate_vector=bool(control & values["GCR_GLV_INV"]),
        invalidate_l2=bool(control & values["GCR_GL2_INV"]),
        write_back_l2=bool(control & values["GCR_GL2_WB"]),
    )


def _acquire_mem(cp: PacketProcessor, body: list[int]) -> None:
    if cp.queue.asic.chip.pm4 == "gfx9":
        need("ACQUIRE_MEM", body, 6)
        control = _acquired_gfx9(body[0])
    else:
        need("ACQUIRE_MEM", body, 7)
        reserved("ACQUIRE_MEM", 1, body[0], 1 << 31)
        reserved("ACQUIRE_MEM", 7, body[6], 0x7FFFF)
        control = gcr_control(body[6])
    if body[2] >> 24:  # hardware ignores them: some drivers set all
        size = f"COHER_SIZE_HI is {body[2]:#x}, it has 24 bits"
        cp.queue.sim.debug.note(f"{cp.queue}: ACQUIRE_MEM: {size}")
    reserved("ACQUIRE_MEM", 5, body[4], 0xFFFFFF)
    reserved("ACQUIRE_MEM", 6, body[5], 0xFFFF)
    if body[1] == 0 and body[2] & 0xFFFFFF == 0:
        raise PacketError("ACQUIRE_MEM of size 0 does nothing")
    cp.queue.asic.caches.control(control)


def gcr_control(value: int) -> CacheControl:
    """What a GCR_CNTL field asks for."""
    vector = value >> _GCR["GCR_CNTL_GLV_INV"] & 1
    return CacheControl(
        invalidate_code=bool(value & 3),
        invalidate_scalar=bool(value >> _GCR["GCR_CNTL_GLK_INV"] & 1),
        invalidate_vector=bool(vector and value >> _GCR["GCR_CNTL_GL1_INV"] & 1),
        invalidate_l2=bool(value >> _GCR["GCR_CNTL_GL2_INV"] & 1),
        write_back_l2=bool(value >> _GCR["GCR_CNTL_GL2_WB"] & 1),
    )


def _acquired_gfx9(value: int) -> CacheControl:
    def has(name: str) -> bool:
        return bool(value >> _COHER[f"CP_COHER_CNTL_{name}_ACTION_ENA"] & 1)

    return CacheControl(has("SH_ICACHE"), has("SH_KCACHE"), has("TCL1"), has("TC"), has("TC_WB"))


def _atomic_mem(cp: PacketProcessor, body: list[int]) -> bool:
    need("ATOMIC_MEM", body, 8)
    reserved("ATOMIC_MEM", 1, body[0], 0x7F | 0xF00 | 3 << 25)
    reserved("ATOMIC_MEM", 8, body[7], 0x1FFF)
    command = body[0] >> 8 & 0xF
    if command > 1:
        raise PacketError(f"ATOMIC_MEM with command {command}: 0 is once, 1 is until it compares")
    atomic = find_atomic(body[0] & 0x7F)
    address = address_of("ATOMIC_MEM", body[1], body[2], atomic.width)
    source, compare = body[4] << 32 | body[3], body[6] << 32 | body[5]
    port: Port = cp.l2_port
    if command == 0 or atomic.code != COMPARE_SWAP:
        atomic.apply(port, address, source, compare)
        return True
    wanted = compare & (1 << 8 * atomic.width) - 1

    def met() -> bool:
        return port.read_word(address, atomic.width) == wanted

    if met():
        atomic.apply(port, address, source, compare)
        return True
    cp.queue.blocked = Blocked(f"ATOMIC_MEM until {address:#x} is {wanted:#x}", met)
    return False


MEMORY_PACKETS: Final[Mapping[int, Handler]] = {
    op.PACKET3_WRITE_DATA: _write_data,
    op.PACKET3_COPY_DATA: _copy_data,
    op.PACKET3_WAIT_REG_MEM: _wait_reg_mem,
    op.PACKET3_WAIT_REG_MEM64: _wait_reg_mem64,
    op.PACKET3_RELEASE_MEM: _release_mem,
    op.PACKET3_ACQUIRE_MEM: _acquire_mem,
    op.PACKET3_ATOMIC_MEM: _atomic_mem,
}

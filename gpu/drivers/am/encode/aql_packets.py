"""AQL packets: 64 bytes each, of which queues take a whole number.

Sources: hsa.h (autogen/hsa.py); for the packet that runs PM4, `amd_aql_pm4_ib` of ROCr's
amd_aql_queue.cpp and tinygrad's ops_amd.py.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import Final, NamedTuple

from gpu.autogen import hsa
from gpu.core.errors import InvalidValue
from gpu.core.regs import Register, field
from gpu.drivers.am.encode import pm4_fields as fields
from gpu.drivers.am.encode import pm4_packets as pm4
from gpu.drivers.am.encode.dispatch import LoadedKernel
from gpu.drivers.am.encode.kernarg import times
from gpu.drivers.dwords import check_word
from gpu.hcq.commands import Block, Grid
from gpu.hcq.encoder import Patch
from gpu.hcq.symbol import Symbol, Value

PACKET_SIZE: Final = 64
_DIMENSIONS: Final = 3
_MAX_BLOCK: Final = 0xFFFF


class PacketType(IntEnum):
    """What a packet is."""

    VENDOR_SPECIFIC = hsa.HSA_PACKET_TYPE_VENDOR_SPECIFIC
    INVALID = hsa.HSA_PACKET_TYPE_INVALID
    KERNEL_DISPATCH = hsa.HSA_PACKET_TYPE_KERNEL_DISPATCH
    BARRIER_AND = hsa.HSA_PACKET_TYPE_BARRIER_AND
    AGENT_DISPATCH = hsa.HSA_PACKET_TYPE_AGENT_DISPATCH
    BARRIER_OR = hsa.HSA_PACKET_TYPE_BARRIER_OR


class Scope(IntEnum):
    """For whom memory is made to agree before (acquire) and after (release) a packet."""

    NONE = hsa.HSA_FENCE_SCOPE_NONE
    AGENT = hsa.HSA_FENCE_SCOPE_AGENT
    SYSTEM = hsa.HSA_FENCE_SCOPE_SYSTEM


class AqlHeader(Register, bits=16):
    """The first 16 bits of a packet."""

    TYPE = field(7, 0, enum=PacketType)
    BARRIER = field(8, doc="starts when all before it is done")
    ACQUIRE = field(10, 9, enum=Scope)
    RELEASE = field(12, 11, enum=Scope)


class VendorFormat(IntEnum):
    """What a vendor's packet is."""

    PM4_IB = 1


class Pm4Packet(ctypes.Structure):
    """A vendor's packet that runs an indirect buffer."""

    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (
        ("header", ctypes.c_uint16),
        ("format", ctypes.c_uint16),
        ("call", ctypes.c_uint32 * 4),  # an INDIRECT_BUFFER packet
        ("words_left", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32 * 8),
        ("completion_signal", ctypes.c_uint64),
    )


_WORDS_LEFT: Final = 10  # of the packet, behind the call

LAYOUTS: Final[dict[PacketType, type[ctypes.Structure]]] = {
    PacketType.VENDOR_SPECIFIC: Pm4Packet,
    PacketType.KERNEL_DISPATCH: hsa.hsa_kernel_dispatch_packet_s,
    PacketType.BARRIER_AND: hsa.hsa_barrier_and_packet_s,
    PacketType.AGENT_DISPATCH: hsa.hsa_agent_dispatch_packet_s,
    PacketType.BARRIER_OR: hsa.hsa_barrier_or_packet_s,
}
assert all(ctypes.sizeof(layout) == PACKET_SIZE for layout in LAYOUTS.values())


class AqlPacket(NamedTuple):
    """64 bytes, and the patches of what is not known yet, for segment 0."""

    data: bytes
    patches: tuple[Patch, ...] = ()


class _Fields:
    """A packet in the making."""

    def __init__(self, layout: type[ctypes.Structure], header: AqlHeader):
        self.layout = layout
        self.packet = layout()
        self.patches: list[Patch] = []
        self.put("header", header.value)

    def put(self, name: str, value: Value) -> None:
        if isinstance(value, Symbol):
            place = getattr(self.layout, name)
            mask = (1 << 8 * place.size) - 1
            self.patches.append(Patch(0, place.offset, place.size, 0, mask, value))
        else:
            setattr(self.packet, name, value)

    def finish(self) -> AqlPacket:
        return AqlPacket(bytes(self.packet), tuple(self.patches))


def kernel_dispatch(
    loaded: LoadedKernel, grid: Grid, block: Block, arguments: Value, header: AqlHeader
) -> AqlPacket:
    """The launch of ``grid`` groups. Raises InvalidValue for sizes that do not fit.

    The packet counts work-items, so that of a symbolic grid another symbol is derived.
    """
    if max(block) > _MAX_BLOCK:
        raise InvalidValue(f"group of {block} work-items: at most {_MAX_BLOCK} in a direction")
    packet_fields = _Fields(hsa.hsa_kernel_dispatch_packet_s, header)
    packet_fields.put("setup", _DIMENSIONS)
    for axis, groups, size in zip("xyz", grid, block, strict=True):
        items = times(groups, size)
        check_word("number of work-items", items)
        packet_fields.put(f"workgroup_size_{axis}", size)
        packet_fields.put(f"grid_size_{axis}", items)
    packet_fields.put("private_segment_size", loaded.private_size)
    packet_fields.put("group_segment_size", loaded.group_size)
    packet_fields.put("kernel_object", loaded.descriptor)
    packet_fields.put("kernarg_address", arguments)
    return packet_fields.finish()


def barrier(header: AqlHeader) -> AqlPacket:
    """Waits for no signal; without the header's barrier bit it does nothing."""
    return _Fields(hsa.hsa_barrier_and_packet_s, header).finish()


def run_pm4(address: Symbol, words: int, header: AqlHeader) -> AqlPacket:
    """Runs an indirect buffer of PM4 packets."""
    control = fields.BufferControl(SIZE=words, VALID=1)
    call = fields.Header(
        OPCODE=pm4.INDIRECT_BUFFER.opcode, COUNT=len(pm4.INDIRECT_BUFFER.words) - 1, TYPE=pm4.TYPE
    )
    packet_fields = _Fields(Pm4Packet, header)
    packet_fields.put("format", VendorFormat.PM4_IB)
    packet_fields.packet.call[:] = (call.value, 0, 0, control.value)
    packet_fields.put("words_left", _WORDS_LEFT)
    packet = packet_fields.finish()
    low = Pm4Packet.call.offset + 4
    patches = [Patch(0, low + 4 * half, 4, 32 * half, 0xFFFF_FFFF, address) for half in (0, 1)]
    return AqlPacket(packet.data, (*packet.patches, *patches))

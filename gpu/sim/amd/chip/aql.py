"""Queues of AQL packets: kernel dispatches, barriers and vendor packets.

Layouts: HSA runtime's hsa.h and amd_hsa_queue.h, amd_hsa_signal.h (gpu.autogen.hsa); which user
registers a kernel gets: the LLVM AMDGPU usage guide, "Initial Kernel Execution State".
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from gpu.autogen import amdhsa, hsa
from gpu.autogen.amd import pm4_gfx10
from gpu.sim.amd.chip.asic import Asic
from gpu.sim.amd.chip.caches import CacheControl
from gpu.sim.amd.chip.dispatch import UNSET, Dispatch, check_sizes, user_count
from gpu.sim.amd.chip.errors import PacketError
from gpu.sim.amd.chip.hwqueue import Blocked, Kind, QueueHost, RingSettings
from gpu.sim.amd.chip.pm4_queue import ComputeQueue
from gpu.sim.executor import Size3

PACKET: Final = 64
VENDOR, INVALID, KERNEL, BARRIER_AND, AGENT, BARRIER_OR = range(6)
_SIGNAL_VALUE: Final = 8
_MAILBOX: Final = 16
_EVENT_ID: Final = 24
_FORMAT_PM4_IB: Final = 1
_PM4_DWORDS_LEFT: Final = 0xA
_PROPERTIES: Final = amdhsa.FIELDS["KERNEL_CODE_PROPERTY"]


class Header(NamedTuple):
    """The first 16 bits of a packet."""

    kind: int
    barrier: bool
    acquire: int
    release: int


class AqlQueue(ComputeQueue):
    """An AQL queue; its pointers count packets."""

    kind: Kind = "aql"
    unit, unit_name = PACKET, "packets"

    def __init__(self, host: QueueHost, asic: Asic, settings: RingSettings):
        super().__init__(host, asic, settings)
        self._completion: Callable[[], None] | None = None  # of a vendor packet under way

    def _take_wptr(self, doorbell: int, in_memory: int) -> None:
        """The doorbell wakes it; how far it may read says the write index in memory."""
        if doorbell > in_memory:
            raise PacketError(
                f"doorbell {doorbell:#x} while the write index in memory is {in_memory:#x}: it"
                " takes the index of the last packet"
            )
        self._check_room(in_memory)
        self.wptr = max(self.wptr, in_memory)

    def _is_amid(self) -> bool:
        return super()._is_amid() or self._completion is not None

    def report(self) -> None:
        """The index of the next packet to read, 64 bits."""
        self.port.write_word(self.settings.rptr, 8, self.rptr)

    def _step_ring(self) -> None:
        if self._completion:
            self.processor.at_end_of_pipe(self._completion)
            self._completion = None
            return
        address = self.settings.ring + self.rptr % (self.settings.size // PACKET) * PACKET
        packet = self.port.read(address, PACKET)
        header = self._header(int.from_bytes(packet[:2], "little"))
        if header.kind == INVALID:
            what = f"packet {self.rptr:#x}, whose header is still INVALID"
            self.blocked = Blocked(what, lambda: self.port.read(address, 1)[0] != INVALID)
            return
        if header.barrier and self._busy():
            self.blocked = Blocked("packets before a barrier bit", lambda: not self._busy())
            return
        if header.kind in (BARRIER_AND, BARRIER_OR) and self._waits(header.kind, packet):
            return
        self._acquire(header)
        if header.kind == VENDOR:
            self._vendor(packet)
        elif header.kind == KERNEL:
            self._kernel(address, packet)
        elif header.kind not in (BARRIER_AND, BARRIER_OR):
            raise PacketError(f"AQL packet of type {header.kind} is not for the GPU")
        signal = int.from_bytes(packet[56:64], "little")
        self.rptr += 1
        self.sim.counts.packets += 1
        if header.kind == VENDOR:
            self._completion = partial(self._complete, address, header, signal)
        else:
            self.processor.at_end_of_pipe(partial(self._complete, address, header, signal))

    def _busy(self) -> bool:
        return self.processor.busy() or bool(self.processor.streams or self._completion)

    def _header(self, value: int) -> Header:
        header = Header(value & 0xFF, bool(value >> 8 & 1), value >> 9 & 3, value >> 11 & 3)
        if value >> 13 or header.kind > BARRIER_OR or 3 in (header.acquire, header.release):
            raise PacketError(f"AQL header {value:#06x} of packet {self.rptr:#x}")
        return header

    def _acquire(self, header: Header) -> None:
        if header.acquire:
            system = header.acquire == 2
            self.asic.caches.control(
                CacheControl(invalidate_scalar=True, invalidate_vector=True, invalidate_l2=system)
            )

    def _complete(self, address: int, header: Header, signal: int) -> None:
        self.port.write(address, bytes([INVALID]))
        if header.release:
            self.asic.caches.control(CacheControl(write_back_l2=header.release == 2))
        if not signal or self.loses_completion():
            return
        if signal % 64:
            raise PacketError(f"signal at {signal:#x}: must be a multiple of 64")
        value = self.port.read_word(signal + _SIGNAL_VALUE, 8)
        self.port.write_word(signal + _SIGNAL_VALUE, 8, value - 1)
        mailbox = self.port.read_word(signal + _MAILBOX, 8)
        if mailbox:
            event = self.port.read_word(signal + _EVENT_ID, 4)
            self.port.write_word(mailbox, 8, event)
            self.interrupt(event, 32)

    def _waits(self, kind: int, packet: bytes) -> bool:
        """Whether a barrier's signals hold the queue up."""
        if any(packet[2:8]) or any(packet[48:56]):
            raise PacketError(f"barrier packet {self.rptr:#x}: reserved fields must be 0")
        signals = [s for s in struct.unpack("<5Q", packet[8:48]) if s]

        def met() -> bool:
            done = [self.port.read_word(s + _SIGNAL_VALUE, 8) == 0 for s in signals]
            return all(done) if kind == BARRIER_AND else any(done) or not done

        if met():
            return False
        self.blocked = Blocked(f"the signals of barrier packet {self.rptr:#x}", met)
        return True

    def _vendor(self, packet: bytes) -> None:
        """The vendor packet that holds an INDIRECT_BUFFER of PM4."""
        words = struct.unpack("<16I", packet)
        if words[0] >> 16 != _FORMAT_PM4_IB:
            raise PacketError(f"vendor packet of format {words[0] >> 16:#x}: 1 is a PM4 buffer")
        if words[1] >> 8 & 0xFF != pm4_gfx10.PACKET3_INDIRECT_BUFFER or words[1] >> 30 != 3:
            raise PacketError(f"vendor packet with header {words[1]:#x}: INDIRECT_BUFFER expected")
        if words[5] != _PM4_DWORDS_LEFT:
            raise PacketError(f"vendor packet with {words[5]:#x} for 0xa dwords left")
        self.processor.execute(words[1], list(words[2:5]))

    def _kernel(self, address: int, packet: bytes) -> None:
        fields = hsa.hsa_kernel_dispatch_packet_s.from_buffer_copy(packet)
        dimensions = fields.setup & 3
        if fields.setup >> 2 or not dimensions or fields.reserved0 or fields.reserved2:
            raise PacketError(f"dispatch packet {self.rptr:#x}: setup {fields.setup:#x}, reserved")
        threads = Size3(fields.workgroup_size_x, fields.workgroup_size_y, fields.workgroup_size_z)
        grid = Size3(fields.grid_size_x, fields.grid_size_y, fields.grid_size_z)
        check_sizes(grid, threads)
        groups = Size3(*(-(-items // size) for items, size in zip(grid, threads, strict=True)))
        self.processor.launch(self._dispatch(address, fields, groups, threads))

    def _dispatch(
        self,
        address: int,
        fields: hsa.hsa_kernel_dispatch_packet_s,
        groups: Size3,
        threads: Size3,
    ) -> Dispatch:
        at = fields.kernel_object
        if at % 64:
            raise PacketError(f"kernel descriptor at {at:#x}: must be a multiple of 64")
        kernel = amdhsa.kernel_descriptor_t.from_buffer_copy(self.port.read(at, 64))
        entry = at + kernel.kernel_code_entry_byte_offset
        if entry % 256:
            raise PacketError(f"kernel entry {entry:#x}: must be a multiple of 256")
        if fields.group_segment_size < kernel.group_segment_fixed_size:
            raise PacketError(
                f"group segment of {fields.group_segment_size} bytes, and the kernel needs"
                f" {kernel.group_segment_fixed_size}"
            )
        properties = kernel.kernel_code_properties
        wave32 = bool(properties >> _PROPERTIES["ENABLE_WAVEFRONT_SIZE32"][0] & 1)
        return Dispatch(
            source="aql",
            chip=self.asic.chip.name,
            entry=entry,
            groups=groups,
            threads=threads,
            wave_size=32 if wave32 else 64,
            user_sgprs=self._user_sgprs(kernel, address, fields),
            rsrc1=kernel.compute_pgm_rsrc1,
            rsrc2=kernel.compute_pgm_rsrc2,
            rsrc3=kernel.compute_pgm_rsrc3,
            lds_bytes=fields.group_segment_size,
            tmpring=self._queue_word("compute_tmpring_size", 4),
            scratch_base=self._queue_word("scratch_backing_memory_location", 8),
            registers={},
            aql_packet=address,
            descriptor=at,
        )

    def _user_sgprs(
        self,
        kernel: amdhsa.kernel_descriptor_t,
        address: int,
        fields: hsa.hsa_kernel_dispatch_packet_s,
    ) -> tuple[int, ...]:
        descriptor = [self._queue_word("scratch_resource_descriptor", 4, i) for i in range(4)]
        sources: dict[str, list[int]] = {
            "PRIVATE_SEGMENT_BUFFER": descriptor,
            "DISPATCH_PTR": _two(address),
            "QUEUE_PTR": _two(self._queue_address),
            "KERNARG_SEGMENT_PTR": _two(fields.kernarg_address),
            "DISPATCH_ID": _two(self.rptr),
            "FLAT_SCRATCH_INIT": _two(self._queue_word("scratch_backing_memory_location", 8)),
            "PRIVATE_SEGMENT_SIZE": [fields.private_segment_size],
        }
        found: list[int] = []
        for name, values in sources.items():
            if kernel.kernel_code_properties >> _PROPERTIES[f"ENABLE_SGPR_{name}"][0] & 1:
                found += values
        return (*found, *[UNSET] * (user_count(kernel.compute_pgm_rsrc2) - len(found)))

    @property
    def _queue_address(self) -> int:
        """Where amd_queue_t is: the write pointer is its write_dispatch_id."""
        return self.settings.wptr - _queue_offset("write_dispatch_id")

    def _queue_word(self, name: str, width: int, index: int = 0) -> int:
        at = self._queue_address + _queue_offset(name) + index * width
        return self.port.read_word(at, width)


def _queue_offset(name: str) -> int:
    offset: int = getattr(hsa.amd_queue_s, name).offset
    return offset


def _two(value: int) -> list[int]:
    return [value & 0xFFFFFFFF, value >> 32]

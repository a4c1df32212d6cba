"""Which launches of a queue may be under way, read back from its ring.

Nothing is noted when launches are submitted: what they are made of is still in memory. A ring
begins with a packet, as no submission goes over its end (`gpu.hcq.channel`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpu.drivers.am.encode import pm4_fields as fields
from gpu.drivers.am.encode import pm4_packets as pm4
from gpu.drivers.am.encode.aql_packets import LAYOUTS, PACKET_SIZE, PacketType, Pm4Packet
from gpu.drivers.am.encode.pm4 import packets_of
from gpu.drivers.am.queue import AmQueue, QueueKind
from gpu.drivers.am.target import Generation
from gpu.drivers.dwords import WORD
from gpu.drivers.fault_report import Read, SentLaunch

_USER_DATA: Final = 16
_MOST_CALLS: Final = 4  # one within another; no encoder makes more than one

IsDone = Callable[[int, int], bool]
"""Whether a release of a value to an address tells of the end of a submission, and has happened."""


@dataclass
class _Walk:
    """What packets have been read so far."""

    generation: Generation
    read: Read
    is_done: IsDone
    registers: dict[int, int] = field(default_factory=dict)
    found: list[SentLaunch] = field(default_factory=list)

    def pm4(self, data: bytes, depth: int = 0) -> None:
        """Follows packets of PM4; stops at what is none."""
        packets = packets_of(self.generation)
        for opcode, body in _packets(data):
            if opcode == pm4.SET_SH_REG.opcode:
                first = pm4.SH_REGISTERS[0] + fields.RegisterStart.parse(body[0]).OFFSET
                self.registers |= dict(enumerate(body[1:], first))
            elif opcode in (packets.dispatch_direct.opcode, packets.dispatch_indirect.opcode):
                self.found.append(self._launch())
            elif opcode == packets.release_mem.opcode:
                _, _, low, high, value, *_ = body
                if self.is_done(high << 32 | low, value):
                    self.found.clear()
            elif opcode == pm4.INDIRECT_BUFFER.opcode and depth < _MOST_CALLS:
                self.call(body, depth)

    def call(self, body: Sequence[int], depth: int = 0) -> None:
        """Follows an INDIRECT_BUFFER packet, without its header."""
        low, high, control = body
        size = WORD * fields.BufferControl.parse(control).SIZE
        data = self.read(high << 32 | low, size)
        if data is not None:
            self.pm4(data, depth + 1)

    def aql(self, data: bytes) -> None:
        """Follows packets of AQL."""
        for at in range(0, len(data), PACKET_SIZE):
            packet = data[at : at + PACKET_SIZE]
            if packet[0] == PacketType.KERNEL_DISPATCH:
                launch = LAYOUTS[PacketType.KERNEL_DISPATCH].from_buffer_copy(packet)
                self.found.append(SentLaunch(launch.kernel_object, launch.kernarg_address))
            elif packet[0] == PacketType.VENDOR_SPECIFIC:
                self.call(Pm4Packet.from_buffer_copy(packet).call[1:])

    def _launch(self) -> SentLaunch:
        low, high = self._register("COMPUTE_PGM_LO"), self._register("COMPUTE_PGM_HI")
        user = self._register_number("COMPUTE_USER_DATA_0")
        return SentLaunch(
            (high << 32 | low) << 8,
            user=tuple(self.registers.get(user + index, 0) for index in range(_USER_DATA)),
        )

    def _register(self, name: str) -> int:
        return self.registers.get(self._register_number(name), 0)

    def _register_number(self, name: str) -> int:
        return packets_of(self.generation).number(name)


def launches_in_flight(
    queue: AmQueue, generation: Generation, read: Read, is_done: IsDone
) -> list[SentLaunch]:
    """Launches that were submitted and are not known to be done, the oldest first."""
    walk = _Walk(generation, read, is_done)
    for data in queue.unread():
        if queue.kind is QueueKind.AQL:
            walk.aql(data)
        elif queue.kind is QueueKind.PM4:
            walk.pm4(data)
    return walk.found


def _packets(data: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Opcode and words of each packet, up to the first that is cut off or is none."""
    words = struct.unpack(f"<{len(data) // WORD}I", data[: len(data) // WORD * WORD])
    at = 0
    while at < len(words):
        header = fields.Header.parse(words[at])
        at += 1
        if header.value == pm4.SINGLE_NOP:
            continue
        body = words[at : at + header.COUNT + 1]
        if header.TYPE != pm4.TYPE or len(body) <= header.COUNT:
            return
        at += len(body)
        yield header.OPCODE, body

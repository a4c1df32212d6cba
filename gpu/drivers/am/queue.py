"""Queues of AMD's GPUs in memory: what an empty one holds, publishing, reading back what is left.

A queue is a ring and a page with its pointers. That page is an `amd_queue_t`, which packet
processors of AQL queues read more from; other queues use its two pointers alone.

Sources: amd_hsa_queue.h; the HSA runtime specification 1.2, section 2.8.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final, Protocol

from gpu.autogen import hsa
from gpu.core.window import MemoryWindow, Window
from gpu.drivers.am.encode.aql_packets import PACKET_SIZE, PacketType
from gpu.drivers.am.encode.sdma import RING_ALIGN
from gpu.drivers.am.encode.tmpring import Scratch
from gpu.drivers.cleanup import Undo
from gpu.hcq.encoder import Encoder
from gpu.hcq.far import FarRing
from gpu.hcq.hostring import HostRing
from gpu.hcq.ports import MemoryKind


class QueueKind(enum.Enum):
    """What a queue reads: bytes that its pointers count in, how it aligns.

    An AQL doorbell gets the number of the last packet, the others the write pointer.
    """

    PM4 = (4, 4, 0)
    AQL = (PACKET_SIZE, PACKET_SIZE, -1)
    SDMA = (1, RING_ALIGN, 0)

    def __init__(self, unit: int, align: int, doorbell_bias: int):
        self.unit = unit
        self.align = align
        self.doorbell_bias = doorbell_bias


class HostDataPath(Protocol):
    """Pushes what the host wrote to device memory out of the bridge, so that queues read it."""

    @property
    def is_needed(self) -> bool:
        """Whether the host can have written to device memory that queues read."""

    def flush(self) -> None:
        """Push it out."""


def prepare(kind: QueueKind, ring: Window, pointers: Window, local: int, scratch: int) -> None:
    """Fill ring and pointers with what an empty queue holds.

    Generic addresses of local memory begin at ``local``, those of scratch memory at ``scratch``.
    """
    state = hsa.amd_queue_s(read_dispatch_id_field_base_byte_offset=READ_POINTER)
    if kind is QueueKind.AQL:
        # Invalid packets: the processor must not take what was there before for one.
        empty = PacketType.INVALID.to_bytes(PACKET_SIZE, "little")
        ring.store(0, empty * (ring.size // PACKET_SIZE))
        assert isinstance(ring, MemoryWindow), "over a bus there are PM4 and SDMA alone"
        state.hsa_queue.type = hsa.HSA_QUEUE_TYPE_MULTI
        state.hsa_queue.features = hsa.HSA_QUEUE_FEATURE_KERNEL_DISPATCH
        state.hsa_queue.base_address = ring.address
        state.hsa_queue.size = ring.size // PACKET_SIZE
        state.group_segment_aperture_base_hi = local >> 32
        state.private_segment_aperture_base_hi = scratch >> 32
        state.queue_properties = hsa.AMD_QUEUE_PROPERTIES_IS_PTR64
    pointers.store(0, bytes(state))


def _place(field: str) -> int:
    """Where a field of `amd_queue_t` is."""
    return int(getattr(hsa.amd_queue_s, field).offset)


READ_POINTER: Final = _place("read_dispatch_id")
"""Offsets of the pointers within their page."""
WRITE_POINTER: Final = _place("write_dispatch_id")


class AmQueue:
    """One hardware queue that is open; a `gpu.hcq.ports.QueuePort`.

    Attributes:
        far: its ring, where that is not mapped here.
    """

    command_memory: MemoryKind = MemoryKind.SYSTEM

    def __init__(
        self,
        kind: QueueKind,
        encoder: Encoder,
        ring: Window,
        pointers: Window,
        host_ring: HostRing | FarRing,
        hdp: HostDataPath,
        undo: Undo,
    ):
        """``host_ring`` publishes in ``ring``; ``undo`` takes the queue off the hardware."""
        self.kind = kind
        self._is_open = True
        self._ring = ring
        self.encoder = encoder
        self.ring_size = host_ring.size
        self.ring_align = kind.align
        self._publish = host_ring.publisher()
        self._hdp = hdp
        self._pointers = pointers
        self.far = host_ring if isinstance(host_ring, FarRing) else None
        self._put = self.far.put if self.far else pointers.sub(WRITE_POINTER, 8)
        self._undo = undo

    def publish(self, position: int, words: int, size: int, last: int, value: int, /) -> None:
        """As `QueuePort.publish`, behind what the host wrote to device memory, if it could have."""
        if self._hdp.is_needed:
            self._hdp.flush()
        self._publish(position, words, size, last, value)

    def set_scratch(self, scratch: Scratch, tmpring: int, buffer: Sequence[int]) -> None:
        """Gives an AQL queue that is idle its scratch memory.

        ``tmpring`` is TMPRING_SIZE; ``buffer`` is the resource descriptor, which has the bytes of
        one XCC; its index stride the processor fills in by the kernel from GFX10 on.
        """
        for index, word in enumerate(buffer):
            self._pointers.write(_place("scratch_resource_descriptor") + 4 * index, 4, word)
        for field, width, value in (
            ("compute_tmpring_size", 4, tmpring),
            ("scratch_backing_memory_location", 8, scratch.address),
            ("scratch_backing_memory_byte_size", 8, buffer[2]),
            ("scratch_wave64_lane_byte_size", 4, scratch.size.per_wave // 64),
        ):
            self._pointers.write(_place(field), width, value)

    @property
    def is_drained(self) -> bool:
        """Whether the processor has read all packets, as far as it tells."""
        written, read = self._bytes_written_and_read()
        return written == read

    def unread(self) -> list[bytes]:
        """The ring from where a packet begins before the first that was not read, in order.

        Of a queue that was closed there is none.
        """
        if not self._is_open:
            return []
        written, read = self._bytes_written_and_read()
        lap, end = divmod(written, self.ring_size)
        before, start = divmod(read, self.ring_size)
        pieces = [self._ring.load(0, end)] if end else []
        if before < lap:
            pieces.insert(0, self._ring.load(start, self.ring_size - start))
        return pieces

    def _bytes_written_and_read(self) -> tuple[int, int]:
        """How many, ever; packet processors write 32 bits of the pointer for PM4."""
        written = self._put.read(0, 8)
        if self.kind is not QueueKind.PM4:
            return written * self.kind.unit, self._pointers.read(READ_POINTER, 8) * self.kind.unit
        behind = (written - self._pointers.read(READ_POINTER, 4)) & 0xFFFF_FFFF
        return written * self.kind.unit, (written - behind) * self.kind.unit

    def close(self) -> None:
        """Takes it off the hardware and frees what it was made of.

        It must be idle: a queue that waits for memory may not let itself be taken off, and the
        kernel then resets the GPU.
        """
        self._is_open = False
        self._undo.close()

"""Queues of a GPU through KFD: what each is made of, and publishing in it.

A queue is a ring, a page with its pointers, for compute an end-of-pipe ring and a save area, and a
doorbell in the process's page of doorbells. The page of pointers is an `amd_queue_t`, which packet
processors of AQL queues read more from; other queues use its two pointers alone.

Sources: kfd_queue.c and kfd_doorbell.c of Linux 6.12; amd_hsa_queue.h; the HSA runtime
specification 1.2, section 2.8.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from gpu.autogen import hsa
from gpu.autogen import kfd as ids
from gpu.core import hostmem
from gpu.core.bits import is_power_of_two
from gpu.core.errors import InvalidValue
from gpu.core.window import MemoryWindow
from gpu.drivers.am.encode.aql_packets import PACKET_SIZE, PacketType
from gpu.drivers.am.encode.sdma import RING_ALIGN
from gpu.drivers.am.encode.tmpring import Scratch
from gpu.drivers.am.kfd.cwsr import EOP_SIZE, context_save
from gpu.drivers.am.kfd.hdp import HdpPage
from gpu.drivers.am.kfd.ioctls import Apertures, Kfd, QueueRequest
from gpu.drivers.am.kfd.memory import PAGE, BufferObject, KfdMemory, Use
from gpu.drivers.cleanup import Undo
from gpu.hcq.encoder import Encoder
from gpu.hcq.hostring import HostRing
from gpu.hcq.ports import MemoryKind

DOORBELL_PAGE: Final = 0x2000
"""Bytes of doorbells of a process and GPU: 1024 queues with 8 each."""
_DOORBELL: Final = 8
_READ_WRITE: Final = hostmem.PROT_READ | hostmem.PROT_WRITE


class QueueKind(enum.Enum):
    """What a queue reads: KFD's number of it, bytes that its pointers count in, how it aligns.

    An AQL doorbell gets the number of the last packet, the others the write pointer.
    """

    PM4 = (ids.KFD_IOC_QUEUE_TYPE_COMPUTE, 4, 4, 0)
    AQL = (ids.KFD_IOC_QUEUE_TYPE_COMPUTE_AQL, PACKET_SIZE, PACKET_SIZE, -1)
    SDMA = (ids.KFD_IOC_QUEUE_TYPE_SDMA, 1, RING_ALIGN, 0)

    def __init__(self, number: int, unit: int, align: int, doorbell_bias: int):
        self.number = number
        self.unit = unit
        self.align = align
        self.doorbell_bias = doorbell_bias

    @property
    def is_compute(self) -> bool:
        """Whether it runs launches."""
        return self is not QueueKind.SDMA


class Doorbells:
    """The page of doorbells of one GPU, mapped with the first queue."""

    def __init__(self, kfd: Kfd):
        self._kfd = kfd
        self._address = 0

    def address_of(self, offset: int) -> int:
        """Where a queue's doorbell is, from what CREATE_QUEUE told. Raises TransportError."""
        if not self._address:
            self._address = self._kfd.os.mmap(
                *(self._kfd.fd, DOORBELL_PAGE, _READ_WRITE, hostmem.MAP_SHARED),
                offset & ~(DOORBELL_PAGE - 1),
            )
            hostmem.dontfork(self._address, DOORBELL_PAGE)
        return self._address + (offset & (DOORBELL_PAGE - 1))

    def close(self) -> None:
        """Unmaps it; its queues are gone."""
        if self._address:
            self._kfd.os.munmap(self._address, DOORBELL_PAGE)
            self._address = 0


@dataclass(frozen=True, slots=True)
class QueueMaker:
    """What the queues of a device have in common."""

    kfd: Kfd
    memory: KfdMemory
    apertures: Apertures
    doorbells: Doorbells
    hdp: HdpPage

    def make(self, kind: QueueKind, encoder: Encoder, ring_size: int) -> KfdQueue:
        """A queue with an empty ring of ``ring_size`` bytes.

        Raises InvalidValue for a size that is no power of two of at least 4096, OutOfMemory,
        TransportError; nothing is left then.
        """
        if not is_power_of_two(ring_size) or ring_size < PAGE:
            raise InvalidValue(f"ring of {ring_size} bytes: give a power of two from {PAGE} up")
        with Undo() as undo:
            ring = self._hold(ring_size, Use.QUEUE, undo)
            pointers = self._hold(PAGE, Use.QUEUE, undo)
            self._prepare(kind, ring, pointers)
            made = self.kfd.create_queue(
                self.memory.gpu.gpu_id, self._request(kind, ring, pointers, undo)
            )
            undo.add(self.kfd.destroy_queue, made.number)
            doorbell = self.doorbells.address_of(made.doorbell_offset)
            host_ring = HostRing(
                address=ring.address,
                size=ring_size,
                put=pointers.address + _WRITE_POINTER,
                put_width=8,
                unit=kind.unit,
                doorbell=doorbell,
                doorbell_width=_DOORBELL,
                bias=kind.doorbell_bias,
            )
            return KfdQueue(kind, encoder, pointers, ring, host_ring, self.hdp, undo.take())

    def _hold(self, size: int, use: Use, undo: Undo) -> BufferObject:
        bo = self.memory.hold(size, use)
        undo.add(self.memory.drop, bo)
        return bo

    def _prepare(self, kind: QueueKind, ring: BufferObject, pointers: BufferObject) -> None:
        """Fills ring and pointers with what an empty queue holds."""
        state = hsa.amd_queue_s(read_dispatch_id_field_base_byte_offset=_READ_POINTER)
        if kind is QueueKind.AQL:
            # Invalid packets: the processor must not take what was there before for one.
            empty = PacketType.INVALID.to_bytes(PACKET_SIZE, "little")
            ring.window.store(0, empty * (ring.size // PACKET_SIZE))
            state.hsa_queue.type = hsa.HSA_QUEUE_TYPE_MULTI
            state.hsa_queue.features = hsa.HSA_QUEUE_FEATURE_KERNEL_DISPATCH
            state.hsa_queue.base_address = ring.address
            state.hsa_queue.size = ring.size // PACKET_SIZE
            state.group_segment_aperture_base_hi = self.apertures.local[0] >> 32
            state.private_segment_aperture_base_hi = self.apertures.scratch[0] >> 32
            state.queue_properties = hsa.AMD_QUEUE_PROPERTIES_IS_PTR64
        pointers.window.store(0, bytes(state))

    def _request(
        self, kind: QueueKind, ring: BufferObject, pointers: BufferObject, undo: Undo
    ) -> QueueRequest:
        common = (
            *(kind.number, ring.address, ring.size),
            *(pointers.address + _READ_POINTER, pointers.address + _WRITE_POINTER),
        )
        if not kind.is_compute:
            return QueueRequest(*common)
        sizes = context_save(self.memory.gpu)
        eop = self._hold(EOP_SIZE, Use.PRIVATE, undo)
        save = self._hold(sizes.allocation, Use.PRIVATE, undo)
        return QueueRequest(
            *common,
            eop=eop.address,
            eop_size=EOP_SIZE,
            save_area=save.address,
            save_size=sizes.area,
            control_stack=sizes.control_stack,
        )


def _place(field: str) -> int:
    """Where a field of `amd_queue_t` is."""
    return int(getattr(hsa.amd_queue_s, field).offset)


_READ_POINTER: Final = _place("read_dispatch_id")
_WRITE_POINTER: Final = _place("write_dispatch_id")


class KfdQueue:
    """One hardware queue; a `gpu.hcq.ports.QueuePort`. Made by `QueueMaker.make`."""

    command_memory: MemoryKind = MemoryKind.SYSTEM

    def __init__(
        self,
        kind: QueueKind,
        encoder: Encoder,
        pointers: BufferObject,
        memory: BufferObject,
        ring: HostRing,
        hdp: HdpPage,
        undo: Undo,
    ):
        """``memory`` is that of the ring."""
        self.kind = kind
        self._is_open = True
        self._ring = memory
        self.encoder = encoder
        self.ring_size = ring.size
        self.ring_align = kind.align
        self.publish: Callable[[int, int, int, int, int], None] = _flushing(ring.publisher(), hdp)
        self._pointers: MemoryWindow = pointers.window
        self._undo = undo

    def set_scratch(self, scratch: Scratch, tmpring: int, buffer: Sequence[int]) -> None:
        """Gives an AQL queue that is idle its scratch memory.

        ``tmpring`` is TMPRING_SIZE; ``buffer`` is the resource descriptor, whose index stride the
        processor fills in by the kernel on GFX10.
        """
        for index, word in enumerate(buffer):
            self._pointers.write(_place("scratch_resource_descriptor") + 4 * index, 4, word)
        for field, width, value in (
            ("compute_tmpring_size", 4, tmpring),
            ("scratch_backing_memory_location", 8, scratch.address),
            ("scratch_backing_memory_byte_size", 8, scratch.size.total),
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
        pieces = [self._ring.window.load(0, end)] if end else []
        if before < lap:
            pieces.insert(0, self._ring.window.load(start, self.ring_size - start))
        return pieces

    def _bytes_written_and_read(self) -> tuple[int, int]:
        """How many, ever; packet processors write 32 bits of the pointer for PM4."""
        written = self._pointers.read(_WRITE_POINTER, 8)
        if self.kind is not QueueKind.PM4:
            return written * self.kind.unit, self._pointers.read(_READ_POINTER, 8) * self.kind.unit
        behind = (written - self._pointers.read(_READ_POINTER, 4)) & 0xFFFF_FFFF
        return written * self.kind.unit, (written - behind) * self.kind.unit

    def close(self) -> None:
        """Takes it off the hardware and frees what it was made of.

        It must be idle: a queue that waits for memory may not let itself be taken off, and the
        kernel then resets the GPU.
        """
        self._is_open = False
        self._undo.close()


def _flushing(
    publish: Callable[[int, int, int, int, int], None], hdp: HdpPage
) -> Callable[[int, int, int, int, int], None]:
    """Publishing that first pushes out what the host wrote to device memory, if it could have."""

    def publish_flushed(position: int, words: int, size: int, last: int, value: int, /) -> None:
        if hdp.is_needed:
            hdp.flush()
        publish(position, words, size, last, value)

    return publish_flushed

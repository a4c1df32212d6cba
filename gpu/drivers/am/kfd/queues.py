"""Queues of a GPU through KFD: rings and pointers in its memory, what else it wants, doorbells.

Sources: kfd_queue.c and kfd_doorbell.c of Linux 6.12.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gpu.autogen import kfd as ids
from gpu.core import hostmem
from gpu.core.bits import is_power_of_two
from gpu.core.errors import InvalidValue
from gpu.drivers.am.kfd.cwsr import EOP_SIZE, context_save
from gpu.drivers.am.kfd.hdp import HdpPage
from gpu.drivers.am.kfd.ioctls import Apertures, Kfd, QueueRequest
from gpu.drivers.am.kfd.memory import PAGE, BufferObject, KfdMemory, Use
from gpu.drivers.am.queue import (
    READ_POINTER,
    WRITE_POINTER,
    AmQueue,
    QueueKind,
    prepare,
)
from gpu.drivers.cleanup import Undo
from gpu.hcq.encoder import Encoder
from gpu.hcq.hostring import HostRing

DOORBELL_PAGE: Final = 0x2000
"""Bytes of doorbells of a process and GPU: 1024 queues with 8 each."""
_DOORBELL: Final = 8
_NUMBERS: Final = {
    QueueKind.PM4: ids.KFD_IOC_QUEUE_TYPE_COMPUTE,
    QueueKind.AQL: ids.KFD_IOC_QUEUE_TYPE_COMPUTE_AQL,
    QueueKind.SDMA: ids.KFD_IOC_QUEUE_TYPE_SDMA,
}
_READ_WRITE: Final = hostmem.PROT_READ | hostmem.PROT_WRITE


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


class QueueMaker(NamedTuple):
    """What the queues of a device have in common."""

    kfd: Kfd
    memory: KfdMemory
    apertures: Apertures
    doorbells: Doorbells
    hdp: HdpPage

    def make(self, kind: QueueKind, encoder: Encoder, ring_size: int) -> AmQueue:
        """A queue with an empty ring of ``ring_size`` bytes.

        Raises InvalidValue for a size that is no power of two of at least 4096, OutOfMemory,
        TransportError; nothing is left then.
        """
        if not is_power_of_two(ring_size) or ring_size < PAGE:
            raise InvalidValue(f"ring of {ring_size} bytes: give a power of two from {PAGE} up")
        with Undo() as undo:
            ring = self._hold(ring_size, Use.QUEUE, undo)
            pointers = self._hold(PAGE, Use.QUEUE, undo)
            windows = (self.apertures.local[0], self.apertures.scratch[0])
            prepare(kind, ring.window, pointers.window, *windows)
            made = self.kfd.create_queue(
                self.memory.gpu.gpu_id, self._request(kind, ring, pointers, undo)
            )
            undo.add(self.kfd.destroy_queue, made.number)
            doorbell = self.doorbells.address_of(made.doorbell_offset)
            host_ring = HostRing(
                address=ring.address,
                size=ring_size,
                put=pointers.address + WRITE_POINTER,
                put_width=8,
                unit=kind.unit,
                doorbell=doorbell,
                doorbell_width=_DOORBELL,
                bias=kind.doorbell_bias,
            )
            return AmQueue(
                *(kind, encoder, ring.window, pointers.window, host_ring, self.hdp, undo.take())
            )

    def _hold(self, size: int, use: Use, undo: Undo) -> BufferObject:
        bo = self.memory.hold(size, use)
        undo.add(self.memory.drop, bo)
        return bo

    def _request(
        self, kind: QueueKind, ring: BufferObject, pointers: BufferObject, undo: Undo
    ) -> QueueRequest:
        common = (
            *(_NUMBERS[kind], ring.address, ring.size),
            *(pointers.address + READ_POINTER, pointers.address + WRITE_POINTER),
        )
        if kind is QueueKind.SDMA:
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

"""Going on after a fault, in the same process and with the same memory.

A fault ends a channel group, with all channels in it. What is made anew is a ladder: first the
groups, then the page tables that they run in too. Above is only the client, that is, opening the
device anew, without the memory.
"""

from __future__ import annotations

from dataclasses import replace

from gpu.drivers.bringup import Trail
from gpu.drivers.cleanup import Undo
from gpu.drivers.device import Rung
from gpu.drivers.nv.channel.all import ALL_QUEUE_STEPS, QueueOpener
from gpu.drivers.nv.channel.channel import GpfifoChannel
from gpu.drivers.nv.channel.open import GpuMemory, GpuQueues, new_vaspace


class Renewal:
    """The queues of one device, opened once and then again after faults."""

    def __init__(self, opener: QueueOpener, memory: GpuMemory):
        self._opener = opener
        self._memory = memory
        self._undo = Undo()

    @property
    def copies_on_compute(self) -> bool:
        """Whether compute queues copy too."""
        return self._opener.copies_on_compute

    def open(self, trail: Trail) -> GpuQueues:
        """Opens the first queues; on an error none stays open. Raises as opening does."""
        with Undo() as undo:
            queues = self._opener.open(self._memory, trail, undo)
            self._undo = undo.take()
        return queues

    def open_compute(self, number: int) -> GpfifoChannel:
        """Another compute queue. Raises as opening does."""
        with Undo() as undo:
            channel = self._opener.open_compute(number, self._memory, undo)
            self._undo.add(undo.take().close)
        return channel

    def renew(self, rung: Rung) -> GpuQueues:
        """Closes all queues and opens the first anew. Raises as opening does; then none is open."""
        self.close()
        if rung is Rung.ADDRESS_SPACE:
            self._renew_address_space()
        return self.open(Trail(ALL_QUEUE_STEPS, self._opener.session.log))

    def _renew_address_space(self) -> None:
        """Other page tables, with all memory where it was."""
        uvm, memory = self._opener.session.uvm, self._memory
        memory.port.unmap_all()
        uvm.unregister_vaspace(memory.uuid)
        memory.vaspace.free()
        vaspace = new_vaspace(self._opener.gpu)
        uvm.register_vaspace(memory.uuid, vaspace)
        self._memory = replace(memory, vaspace=vaspace)
        memory.port.map_all()

    def close(self) -> None:
        """Gives the queues back; again does nothing."""
        self._undo.close()

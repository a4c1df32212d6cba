"""Compute queues whose ring holds PM4 packets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpu.sim.amd.chip.asic import Asic
from gpu.sim.amd.chip.errors import PacketError
from gpu.sim.amd.chip.hwqueue import HwQueue, Kind, QueueHost, RingSettings
from gpu.sim.amd.chip.pm4 import CONTROL_PACKETS, Handler, PacketProcessor, packet_size
from gpu.sim.amd.chip.pm4_memory import MEMORY_PACKETS

PACKETS: Final[Mapping[int, Handler]] = {**CONTROL_PACKETS, **MEMORY_PACKETS}


class Pm4Queue(HwQueue):
    """A PM4 queue; its pointers count dwords."""

    kind: Kind = "pm4"

    def __init__(self, host: QueueHost, asic: Asic, settings: RingSettings):
        super().__init__(host, asic, settings)
        self.processor = PacketProcessor(self, PACKETS)

    def _take_wptr(self, doorbell: int, in_memory: int) -> None:
        if in_memory < doorbell:
            self._violation(
                f"doorbell {doorbell:#x} while the write pointer in memory is {in_memory:#x}: store"
                " it first, the scheduler reads it when it maps the queue again"
            )
        if doorbell < self.wptr:
            raise PacketError(f"doorbell {doorbell:#x} after {self.wptr:#x}: pointers only grow")
        size = self.settings.size // 4
        if doorbell - self.rptr > size:
            raise PacketError(
                f"write pointer {doorbell:#x} is more than the ring's {size:#x} dwords ahead of"
                f" {self.rptr:#x}: packets were overwritten"
            )
        self.wptr = doorbell

    def has_work(self) -> bool:
        """Packets to handle, or kernels under way."""
        processor = self.processor
        if processor.gets_on() or super().has_work():
            return True
        return bool(processor.streams) and not self.waits()

    def runs_kernels(self) -> bool:
        """Whether kernels go on beside its packets."""
        return bool(self.processor.kernels)

    def why_kernels_stuck(self) -> str:
        """Why none of them gets on. Raises PageFault, PacketError."""
        return self.processor.why_stuck()

    def step(self) -> None:
        """One packet, or a slice of what goes on beside."""
        processor = self.processor
        if processor.busy() and (not self._more() or self.sim.rng.random() < 0.5):
            processor.work_beside()
        elif processor.streams:
            processor.step_stream()
        else:
            self._step_ring()

    def _more(self) -> bool:
        return not self.blocked and bool(self.processor.streams or self.wptr > self.rptr)

    def _step_ring(self) -> None:
        ring, rptr, wptr = self.ring_words, self.rptr, self.wptr
        header = ring.word(rptr, wptr)
        size = packet_size(header)
        if rptr + size > wptr:
            raise PacketError(
                f"a packet of {size} dwords at {rptr:#x} goes beyond the write pointer {wptr:#x}"
            )
        body = ring.words(rptr + 1, wptr, size - 1) if size > 1 else []
        if self.processor.execute(header, body):
            self.rptr = rptr + size

    def report(self) -> None:
        """The read pointer, 32 bits that wrap at the ring's size (kfdtest, PM4Queue.cpp)."""
        self.port.write_word(self.settings.rptr, 4, self.rptr % (self.settings.size // 4))

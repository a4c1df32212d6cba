"""Compute queues, and those of them whose ring holds PM4 packets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpu.sim.amd.chip.asic import Asic
from gpu.sim.amd.chip.errors import PacketError
from gpu.sim.amd.chip.hwqueue import HwQueue, Kind, QueueHost, RingSettings
from gpu.sim.amd.chip.pm4 import CONTROL_PACKETS, Handler, PacketProcessor, packet_size
from gpu.sim.amd.chip.pm4_memory import MEMORY_PACKETS

PACKETS: Final[Mapping[int, Handler]] = {**CONTROL_PACKETS, **MEMORY_PACKETS}


class ComputeQueue(HwQueue):
    """A queue with a packet processor, whose kernels go on beside the packets."""

    def __init__(self, host: QueueHost, asic: Asic, settings: RingSettings):
        super().__init__(host, asic, settings)
        self.processor = PacketProcessor(self, PACKETS)

    def has_work(self) -> bool:
        """Packets to handle, or kernels under way."""
        if self.processor.gets_on() or super().has_work():
            return True
        return self._is_amid() and not self.waits()

    def runs_kernels(self) -> bool:
        """Whether kernels go on beside its packets."""
        return bool(self.processor.kernels)

    def why_kernels_stuck(self) -> str:
        """Why none of them gets on. Raises PageFault, PacketError."""
        return self.processor.why_stuck()

    def step(self) -> None:
        """One packet, or a slice of what goes on beside."""
        processor = self.processor
        more = not self.blocked and (self._is_amid() or self.wptr > self.rptr)
        if processor.busy() and (not more or self.sim.rng.random() < 0.5):
            processor.work_beside()
        elif processor.streams:
            processor.step_stream()
        elif more:
            self._step_ring()

    def _is_amid(self) -> bool:
        """Whether a packet has begun that is not done with."""
        return bool(self.processor.streams)

    def _step_ring(self) -> None:
        raise NotImplementedError


class Pm4Queue(ComputeQueue):
    """A PM4 queue; its pointers count dwords."""

    kind: Kind = "pm4"
    unit, unit_name = 4, "dwords"

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

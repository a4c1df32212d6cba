"""What an NVIDIA GPU was at when it failed: for messages, and for reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from gpu.drivers.fault_report import SentLaunch, Suspect
from gpu.drivers.nv.channel.channel import GONE, GpfifoChannel
from gpu.drivers.nv.encode.launch import LoadedKernel
from gpu.drivers.nv.encode.qmd_layout import qmd_layout
from gpu.drivers.nv.fault.inflight import launches_in_flight, unfinished
from gpu.drivers.nv.fault.pushbuf_text import bound_classes, decode_pushbuffer
from gpu.drivers.nv.fault.report import blame, suspects
from gpu.drivers.nv.fault.sm_errors import FaultDetails
from gpu.drivers.nv.port import NvPort, NvQueue
from gpu.drivers.scene import Scene
from gpu.hcq.channel import Channel
from gpu.hcq.ports import Memory

if TYPE_CHECKING:
    from gpu.drivers.crash import Buffer


class NvScene(Scene):
    """That of a device on a port."""

    def __init__(self, port: NvPort, kernels: Mapping[Memory, LoadedKernel]):
        """``kernels`` are those that are loaded."""
        self.name = port.name
        self._gpu, self._target = port.gpu, port.target
        self._kernels = kernels
        port.gpu.explain = self.explain

    @property
    def is_there(self) -> bool:
        """As `Scene.is_there`."""
        return all(fault.number != GONE for fault in self._gpu.noted().values())

    def explain(self, channels: Sequence[GpfifoChannel], details: FaultDetails | None) -> str:
        """What `NvDevice.check` adds to a fault of these channels: kernels and arguments."""
        memory = self._gpu.memory.extents
        address = details.address if details is not None else None
        extent = memory.nearest(address) if address is not None else None
        sent = self._sent(channels)
        why = blame(self._kernels.values(), sent, memory.read, details, extent)
        return "; ".join(filter(None, (why, "recover() makes the device usable again")))

    def _sent(self, channels: Iterable[GpfifoChannel]) -> list[SentLaunch]:
        layout, read = qmd_layout(self._target.generation.qmd_major), self._gpu.memory.extents.read
        return [each for c in channels for each in launches_in_flight(c, layout, read)]

    def launches(self) -> list[Suspect]:
        """As `Scene.launches`."""
        sent = self._sent(self._gpu.channels)
        return suspects(self._kernels.values(), sent, self._gpu.memory.extents.read)

    def place_of(self, address: int) -> str:
        """As `Scene.place_of`."""
        return self._gpu.memory.extents.describe(address)

    def buffers(self) -> list[Buffer]:
        """As `Scene.buffers`."""
        from gpu.drivers.crash import Buffer

        return [Buffer(e.address, e.size, e.name) for e in self._gpu.memory.extents.all()]

    def packets(self, channel: Channel) -> list[str]:
        """As `Scene.packets`: pushbuffers of submissions that are not known to be done."""
        queue, generation = channel.port, self._target.generation
        assert isinstance(queue, NvQueue), "its queues are NVIDIA's"
        classes = bound_classes(generation.compute, generation.dma)
        buffers = unfinished(queue.channel, self._gpu.memory.extents.read)
        return [str(line) for data in buffers for line in decode_pushbuffer(data, classes)]

    def waves(self) -> list[str]:
        """As `Scene.waves`: the SMs that stopped."""
        details = self._details()
        return [str(each) for each in details.sms] if details is not None else []

    def evidence(self) -> Mapping[str, bytes]:
        """As `Scene.evidence`."""
        return self._gpu.session.evidence()

    def stops(self) -> list[int]:
        """As `Scene.stops`."""
        details = self._details()
        return [each.pc for each in details.sms] if details is not None else []

    def _details(self) -> FaultDetails | None:
        return self._gpu.fault_details() if self._gpu.failed() else None

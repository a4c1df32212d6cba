"""What a GPU of AMD's was at when it failed: for messages, and for reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from gpu.drivers.am.encode.dispatch import LoadedKernel
from gpu.drivers.am.port import AmPort
from gpu.drivers.am.queue import AmQueue, QueueKind
from gpu.drivers.dwords import WORD
from gpu.drivers.scene import Scene
from gpu.hcq.channel import Channel
from gpu.hcq.ports import Memory

if TYPE_CHECKING:
    from gpu.drivers.crash import Buffer
    from gpu.drivers.fault_report import Read, Suspect


class AmScene(Scene):
    """That of a device on a port."""

    def __init__(
        self,
        port: AmPort,
        kernels: Mapping[Memory, LoadedKernel],
        channels: Callable[[], Sequence[Channel]],
    ):
        """``kernels`` are those that are loaded, ``channels`` gives the queues that are open."""
        self.name = port.name
        self._port = port
        self._kernels = kernels
        self._channels = channels
        port.explain = self.explain

    def explain(self, address: int) -> str:
        """What the port's `check` adds to a fault: kernels under way, and their arguments."""
        from gpu.drivers.fault_report import under_way

        near = self._port.memory.nearest(address)
        return under_way(
            self.launches(), address, lambda pointer: near is not None and pointer in near
        )

    def launches(self) -> list[Suspect]:
        """As `Scene.launches`."""
        from gpu.drivers.am.fault.inflight import launches_in_flight
        from gpu.drivers.am.fault.report import suspects

        read, generation = self._port.memory.read, self._port.target.generation
        launches = [
            launch
            for channel in self._channels()
            if isinstance(channel.port, AmQueue)
            for launch in launches_in_flight(
                channel.port, generation, read, partial(_is_done, channel, read)
            )
        ]
        return suspects(self._kernels.values(), launches, read)

    def place_of(self, address: int) -> str:
        """As `Scene.place_of`."""
        return self._port.memory.describe(address)

    def translation(self, address: int) -> Sequence[str]:
        """As `Scene.translation`."""
        return self._port.memory.translation(address)

    def buffers(self) -> list[Buffer]:
        """As `Scene.buffers`."""
        from gpu.drivers.crash import Buffer

        return [Buffer(e.address, e.size, e.label) for e in self._port.memory.extents()]

    def packets(self, channel: Channel) -> list[str]:
        """As `Scene.packets`: what is left in its ring. Raises Unsupported for unknown engines."""
        queue = channel.port
        assert isinstance(queue, AmQueue), "its queues are AMD's"
        # Only now: a device that never fails needs none of their tables.
        from gpu.drivers.am.decode.aql import decode_aql
        from gpu.drivers.am.decode.pm4 import decode_pm4
        from gpu.drivers.am.decode.sdma import decode_sdma

        target, kind = self._port.target, queue.kind
        found: list[str] = []
        for data in queue.unread():
            if kind is QueueKind.SDMA:
                found += map(str, decode_sdma(data, target.sdma))
            else:
                decode = decode_aql if kind is QueueKind.AQL else decode_pm4
                found += map(str, decode(data, target.generation))
        return found


def _is_done(channel: Channel, read: Read, address: int, payload: int) -> bool:
    """Whether a release to an address is that of a submission of a queue that is done."""
    now = read(address, WORD) if address == channel.timeline.address else None
    return now is not None and int.from_bytes(now, "little") >= payload

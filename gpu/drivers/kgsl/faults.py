"""What an Adreno GPU was at when it failed: launches read back from the ring, memory, packets."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gpu.drivers.dwords import WORD
from gpu.drivers.kgsl.packets import Op, StateType, commands_of
from gpu.drivers.kgsl.pm4 import REGISTER_WRITE
from gpu.drivers.kgsl.port import KgslPort, KgslQueue
from gpu.drivers.kgsl.program import LoadedKernel
from gpu.drivers.kgsl.state import SP_CS_OBJ_FIRST_EXEC_OFFSET
from gpu.drivers.scene import Scene
from gpu.hcq.channel import Channel
from gpu.hcq.ports import Memory

if TYPE_CHECKING:
    from gpu.drivers.crash import Buffer
    from gpu.drivers.fault_report import Read, Suspect

_CODE: Final = SP_CS_OBJ_FIRST_EXEC_OFFSET.OFFSET + 1
_TYPE_SHIFT, _TYPE_MASK, _SOURCE_SHIFT = 14, 3, 16
_MOST_CALLS: Final = 4
"""One within another; no encoder makes more than one."""
_INDIRECT: Final = 2


@dataclass
class _Walk:
    """What packets have been read so far: launches, as addresses of code and arguments."""

    read: Read
    registers: dict[int, int] = field(default_factory=dict)
    arguments: int = 0
    found: list[tuple[int, int]] = field(default_factory=list)

    def follow(self, data: bytes, depth: int = 0) -> None:
        """Follows packets; stops at what is none."""
        words = struct.unpack(f"<{len(data) // WORD}I", data[: len(data) // WORD * WORD])
        for header, body in commands_of(words):
            if header.type == REGISTER_WRITE:
                self.registers |= dict(enumerate(body, header.number))
            elif header.number == Op.LOAD_STATE6_FRAG:
                kind, source = body[0] >> _TYPE_SHIFT & _TYPE_MASK, body[0] >> _SOURCE_SHIFT & 3
                if kind == StateType.CONSTANTS and source == _INDIRECT:
                    self.arguments = body[2] << 32 | body[1]
            elif header.number == Op.EXEC_CS:
                low, high = self.registers.get(_CODE, 0), self.registers.get(_CODE + 1, 0)
                self.found.append((high << 32 | low, self.arguments))
                self.arguments = 0
            elif header.number == Op.INDIRECT_BUFFER and depth < _MOST_CALLS:
                called = self.read(body[1] << 32 | body[0], WORD * body[2])
                if called is not None:
                    self.follow(called, depth + 1)


class KgslScene(Scene):
    """That of a device on a port."""

    def __init__(
        self,
        port: KgslPort,
        kernels: Mapping[Memory, LoadedKernel],
        channels: Callable[[], Sequence[Channel]],
    ):
        """``kernels`` are those that are loaded, ``channels`` gives the queues that are open."""
        self.name = port.name
        self._port, self._kernels, self._channels = port, kernels, channels
        port.explain = self.explain

    def explain(self, address: int | None) -> str:
        """What the port's `check` adds to a failure: kernels under way, and their arguments."""
        from gpu.drivers.fault_report import under_way

        near = None if address is None else self._port.memory.nearest(address)
        return under_way(
            self.launches(), address, lambda pointer: near is not None and pointer in near
        )

    def launches(self) -> list[Suspect]:
        """As `Scene.launches`."""
        return [
            self._suspect(code, arguments)
            for channel in self._channels()
            for data in _not_done(channel)
            for code, arguments in _launches(data, self._port.memory.read)
        ]

    def _suspect(self, code: int, arguments: int) -> Suspect:
        from gpu.drivers.fault_report import SentLaunch, Suspect

        loaded = next((each for each in self._kernels.values() if each.address == code), None)
        if loaded is None:
            return Suspect(
                "a copy" if code == self._port.encoder.copier.address else f"code at {code:#x}"
            )
        kernel = loaded.kernel
        places = ((at // 8, at, 8) for at in range(0, kernel.parameters, 8))
        launch = SentLaunch(code, arguments)
        return launch.suspect(
            kernel.name, (code, len(kernel.code)), arguments, places, self._port.memory.read
        )

    def place_of(self, address: int) -> str:
        """As `Scene.place_of`."""
        return self._port.memory.describe(address)

    def buffers(self) -> list[Buffer]:
        """As `Scene.buffers`."""
        from gpu.drivers.crash import Buffer

        return [Buffer(e.address, e.size, e.label) for e in self._port.memory.extents()]

    def packets(self, channel: Channel) -> list[str]:
        """As `Scene.packets`: what is not known to be done."""
        from gpu.drivers.kgsl.decode import decode_a6xx  # it has the registers of all units

        return [str(line) for data in _not_done(channel) for line in decode_a6xx(data)]


def _launches(data: bytes, read: Read) -> list[tuple[int, int]]:
    walk = _Walk(read)
    walk.follow(data)
    return walk.found


def _not_done(channel: Channel) -> list[bytes]:
    """Packets of each submission that is not known to be done, the oldest first."""
    queue, timeline = channel.port, channel.timeline
    assert isinstance(queue, KgslQueue), "its queue is KGSL's"
    reached = timeline.reached()
    return [
        queue.packets(sent)
        for sent in queue.sent
        if sent.last == timeline.last_address and reached < sent.value <= timeline.submitted
    ]

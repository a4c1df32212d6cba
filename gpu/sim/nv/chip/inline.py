"""Inline-to-memory within the compute class: data that comes in the pushbuffer itself."""

from __future__ import annotations

from typing import Final

from gpu.core.bits import bits
from gpu.sim.nv.chip.errors import class_error
from gpu.sim.nv.chip.grids import write_release
from gpu.sim.nv.chip.host import Host
from gpu.sim.nv.chip.qmd import Release

_LENGTH: Final = 0x180
_COUNT: Final = 0x184
_TARGET: Final = 0x188, 0x18C
_PITCH: Final = 0x190
_LAUNCH: Final = 0x1B0
_DATA: Final = 0x1B4
_SEMAPHORE: Final = 0x1DC, 0x1E0
_PAYLOAD: Final = 0x1E4
METHODS: Final = frozenset((_LAUNCH, _DATA))
_RELEASE: Final = 2  # COMPLETION_TYPE


class InlineCopy:
    """What LAUNCH_DMA began and LOAD_INLINE_DATA fills."""

    def __init__(self, channel: Host, registers: dict[int, int]):
        """`registers` are the compute class's methods as last written."""
        self._channel = channel
        self._registers = registers
        self._launched = 0
        self._missing = 0
        self._data = bytearray()

    @property
    def busy(self) -> bool:
        """Whether data is missing; nothing else may come then."""
        return self._missing > 0

    def method(self, address: int, value: int) -> None:
        """LAUNCH_DMA or LOAD_INLINE_DATA. Raises ChannelError, PageFault."""
        if address == _LAUNCH:
            self._begin(value)
        elif not self.busy:
            raise class_error("LOAD_INLINE_DATA without a LAUNCH_DMA that wants any")
        else:
            self._data += value.to_bytes(4, "little")
            self._missing -= 4
            if not self.busy:
                self._finish()

    def _register(self, address: int) -> int:
        return self._registers.get(address, 0)

    def _begin(self, value: int) -> None:
        length, lines = self._register(_LENGTH), self._register(_COUNT)
        if not value & 1 or value >> 1 & 1:
            raise class_error(f"inline LAUNCH_DMA {value:#x}: only PITCH without reduction")
        if not length or not lines or (lines > 1 and length % 4):
            raise class_error(f"inline data of {lines} lines of {length:#x} bytes")
        self._launched = value
        self._missing = (length * lines + 3) // 4 * 4
        self._data.clear()

    def _finish(self) -> None:
        high, low = (self._register(method) for method in _TARGET)
        length, lines = self._register(_LENGTH), self._register(_COUNT)
        port = self._channel.port
        for line in range(lines):
            start = (high << 32 | low) + line * self._register(_PITCH)
            port.write(start, self._data[line * length : (line + 1) * length])
        if bits(self._launched, 5, 4) == _RELEASE:
            self._release(1 if self._launched >> 12 & 1 else 4)
        if bits(self._launched, 9, 8):
            self._channel.interrupt()

    def _release(self, words: int) -> None:
        high, low = (self._register(method) for method in _SEMAPHORE)
        address = high << 32 | low
        if address % (4 * words):
            raise class_error(f"an inline copy's semaphore of {words} words at {address:#x}")
        channel = self._channel
        if not channel.loses_completion():
            release = Release(address, self._register(_PAYLOAD), words, wide=False, trap=False)
            write_release(channel.port, release, channel.gpu.clock.now_ns)

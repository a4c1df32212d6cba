"""Memory of the device that the host reaches, and has not mapped: over a bus such as USB.

What native code writes goes into an image of it in this process first, and from there in runs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpu.core.interrupts import put_off
from gpu.core.window import MemoryWindow, Window
from gpu.hcq.ports import Memory

_BLOCK: Final = 64  # bytes that are compared at once


class FarImage:
    """What such memory is to hold; `send` and `send_changes` make it so.

    Attributes:
        host: the image, all of it memory of this process.
    """

    def __init__(self, window: Window):
        self._window = window
        self.host = MemoryWindow.over(bytearray(window.size))
        self._sent = b""

    def send(self, offset: int, size: int) -> None:
        """Sends a part."""
        self._window.store(offset, self.host.memory[offset : offset + size])

    def send_changes(self) -> None:
        """Sends, run by run, what is not as it was the last time; nothing runs in it."""
        new, old = self.host.memory.tobytes(), self._sent
        self._sent = b""  # unknown, should this be interrupted
        start = end = 0
        for at in range(0, len(new), _BLOCK):
            if new[at : at + _BLOCK] == old[at : at + _BLOCK]:
                continue
            if at != end:
                self.send(start, end - start)
                start = at
            end = min(at + _BLOCK, len(new))
        self.send(start, end - start)
        self._sent = new


def command_window(memory: Memory) -> tuple[MemoryWindow, FarImage | None]:
    """What native code writes of command memory: itself, or an image of it, and that image."""
    window = memory.window
    assert window is not None, "the host reaches command memory"
    if isinstance(window, MemoryWindow):
        return window, None
    far = FarImage(window)
    return far.host, far


@dataclass(frozen=True, slots=True)
class FarRing:
    """A ring and its doorbell, of 8 bytes, in windows.

    Units and ``bias`` are those of `gpu.hcq.hostring.HostRing`. ``address`` is where the device has
    the ring. ``put`` is a put pointer of this process, and ``told`` the one that the device reads
    in memory, if it does. What is stored in the ring and there the device sees before what is
    stored in the doorbell behind a ``flush``.
    """

    address: int
    ring: Window
    put: MemoryWindow
    told: Window | None
    doorbell: Window
    flush: Callable[[], None]
    unit: int
    bias: int

    @property
    def size(self) -> int:
        """Bytes of the ring."""
        return self.ring.size

    def publisher(self) -> Callable[[int, int, int, int, int], None]:
        """A function that is `QueuePort.publish`, for one caller at a time.

        Nothing is read: what waits for the device finds where it is lost. Interrupted before the
        value is stored it has done nothing that the device sees; from there to the doorbell, on
        which whoever waits for the value relies, a Ctrl-C is put off.
        """
        ring, put, told, doorbell = self.ring, self.put, self.told, self.doorbell

        def publish(position: int, words: int, count: int, last: int, value: int, /) -> None:
            data = ctypes.string_at(words, count)
            start = position % ring.size
            ring.store(start, data[: ring.size - start])
            if start + count > ring.size:
                ring.store(0, data[ring.size - start :])
            written = (position + count) // self.unit
            if told is not None and (written ^ put.read(0, 8)) >> 32:
                told.write(0, 8, written)
            elif told is not None:
                told.write(0, 4, written & 0xFFFF_FFFF)
            put.write(0, 8, written)
            self.flush()
            with put_off():
                ctypes.c_uint64.from_address(last).value = value
                doorbell.write(0, 8, written + self.bias)

        return publish

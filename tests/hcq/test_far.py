"""Rings over a bus such as USB: what an interrupt in the middle of a submission leaves."""

from __future__ import annotations

import ctypes
import signal
import struct
from collections.abc import Callable

import pytest

from gpu.core.window import MemoryWindow
from gpu.hcq.far import FarRing

WORDS = struct.pack("<4I", 1, 2, 3, 4)


class Interrupted(MemoryWindow):
    """Memory that a Ctrl-C comes to each time before it is written."""

    def write(self, offset: int, width: int, value: int) -> None:
        signal.raise_signal(signal.SIGINT)
        super().write(offset, width, value)

    def store(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        signal.raise_signal(signal.SIGINT)
        super().store(offset, data)


def window(kind: type[MemoryWindow] = MemoryWindow, size: int = 64) -> MemoryWindow:
    return kind.over(bytearray(size))


def published(ring: MemoryWindow, doorbell: MemoryWindow) -> ctypes.c_uint64:
    """The last value that counts as submitted after a submission of value 7."""
    far = FarRing(0x1000, ring, window(), None, doorbell, lambda: None, unit=4, bias=0)
    publish: Callable[[int, int, int, int, int], None] = far.publisher()
    words, last = ctypes.create_string_buffer(WORDS), ctypes.c_uint64(6)
    with pytest.raises(KeyboardInterrupt):
        publish(0, ctypes.addressof(words), len(WORDS), ctypes.addressof(last), 7)
    return last


def test_what_counts_as_submitted_has_been_rung_for() -> None:
    ring, doorbell = window(), window(Interrupted)
    assert published(ring, doorbell).value == 7
    assert bytes(ring.load(0, len(WORDS))) == WORDS
    assert doorbell.read(0, 8) == len(WORDS) // 4


def test_what_is_interrupted_before_that_is_not_submitted() -> None:
    doorbell = window()
    assert published(window(Interrupted), doorbell).value == 6
    assert doorbell.read(0, 8) == 0

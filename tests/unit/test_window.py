"""Windows over memory: what is accessed, and what is refused before anything is touched."""

from __future__ import annotations

import ctypes
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu.core.errors import InvalidIndex, InvalidValue
from gpu.core.window import MemoryWindow, RecordingWindow, TrappedWindow, Window, WindowAccess

WIDTHS = (1, 2, 4, 8)


def test_memory_and_recording_windows_are_windows() -> None:
    windows: list[Window] = [MemoryWindow.over(bytearray(8))]
    windows.append(RecordingWindow(windows[0], lambda access: None))
    assert [w.size for w in windows] == [8, 8]


@given(st.sampled_from(WIDTHS), st.integers(0, 7), st.integers(0, 2**64 - 1))
def test_write_stores_little_endian_and_nothing_beside(width: int, slot: int, value: int) -> None:
    memory = bytearray(b"\xa5" * 64)
    expected = bytearray(memory)
    value %= 1 << (8 * width)
    expected[slot * width : (slot + 1) * width] = value.to_bytes(width, "little")
    window = MemoryWindow.over(memory)
    window.write(slot * width, width, value)
    assert memory == expected
    assert window.read(slot * width, width) == value


@pytest.mark.parametrize("start", range(9))
def test_alignment_is_that_of_the_address(start: int) -> None:
    memory = np.arange(1, 65, dtype=np.uint8)
    whole = MemoryWindow.over(memory.data)
    skew = whole.address % 8
    part = whole.sub(start, 40)
    for width in WIDTHS:
        for offset in range(32):
            if (skew + start + offset) % width:
                with pytest.raises(InvalidValue, match=f"width {width} .*misaligned"):
                    part.read(offset, width)
            else:
                at = start + offset
                wanted = int.from_bytes(memory[at : at + width].tobytes(), "little")
                assert part.read(offset, width) == wanted


@pytest.mark.parametrize(("offset", "width"), [(16, 1), (12, 8), (-4, 4), (-1, 1), (1 << 40, 8)])
def test_nothing_outside_is_accessed(offset: int, width: int) -> None:
    part = MemoryWindow.over(bytearray(64)).sub(16, 16)
    with pytest.raises(InvalidIndex, match=r"are not inside a window of 0x10 bytes"):
        part.read(offset, width)
    with pytest.raises(InvalidIndex, match=r"are not inside a window of 0x10 bytes"):
        part.write(offset, width, 0)


@pytest.mark.parametrize("width", [0, 3, 16, -4])
def test_other_widths_are_refused(width: int) -> None:
    window = MemoryWindow.over(bytearray(64))
    with pytest.raises(InvalidValue, match="widths are 1, 2, 4, 8"):
        window.read(0, width)
    with pytest.raises(InvalidValue, match="widths are 1, 2, 4, 8"):
        window.write(0, width, 0)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("excess", [0, 1, 1 << 70])
def test_values_that_do_not_fit_are_refused(width: int, excess: int) -> None:
    memory = bytearray(16)
    window = MemoryWindow.over(memory)
    for value in ((1 << 8 * width) + excess, -1 - excess):
        with pytest.raises(InvalidValue, match=f"at offset 0x8 does not fit width {width}"):
            window.write(8, width, value)
    assert not any(memory)


def test_bulk_copies() -> None:
    window = MemoryWindow.over(bytearray(range(32)))
    assert window.load(3, 5) == bytes(range(3, 8))
    window.store(1, memoryview(np.array([7, 9], np.uint16)))
    assert window.load(0, 6) == bytes([0, 7, 0, 9, 0, 5])
    assert bytes(window.memory[:2]) == b"\0\7"
    assert window.load(32, 0) == b""
    for refused in (lambda: window.load(30, 3), lambda: window.store(31, b"ab")):
        with pytest.raises(InvalidIndex, match="not inside a window of 0x20"):
            refused()
    with pytest.raises(InvalidIndex):
        window.sub(16, 17)


def test_a_part_keeps_the_memory_alive() -> None:
    part = MemoryWindow.over(bytearray(b"x" * 4096)).sub(4000, 8)
    others = [bytearray(4096) for _ in range(50)]  # would reuse the memory if it were freed
    assert part.load(0, 8) == b"x" * 8
    assert not any(map(any, others))


def test_a_window_at_an_address() -> None:
    word = ctypes.c_uint32(0)
    MemoryWindow(ctypes.addressof(word), 4, keep=word).write(0, 4, 0xDEADBEEF)
    assert word.value == 0xDEADBEEF
    for address, size in ((0, 4), (4096, 0), (4096, -1)):
        with pytest.raises(InvalidValue, match="both must be positive"):
            MemoryWindow(address, size)
    with pytest.raises(InvalidValue, match="writable"):
        MemoryWindow.over(memoryview(b"constant"))


def test_recording_tells_every_access_with_its_outermost_offset() -> None:
    seen: list[WindowAccess] = []
    window = RecordingWindow(MemoryWindow.over(bytearray(32)), seen.append)
    part = window.sub(8, 16).sub(4, 8)
    part.write(0, 4, 5)
    part.read(0, 2)
    window.store(1, b"ab")
    part.load(0, 2)
    with pytest.raises(InvalidIndex):
        part.read(8, 4)
    assert seen == [
        ("write", 12, 4, 5),
        ("read", 12, 2, 5),
        ("store", 1, 2, b"ab"),
        ("load", 12, 2, b"\5\0"),
    ]


def trapped(memory: bytearray, seen: list[tuple[str, int, int]], widest: int) -> TrappedWindow:
    """A window whose functions keep what is stored, and write down each access."""

    def read(offset: int, width: int) -> int:
        seen.append(("read", offset, width))
        return int.from_bytes(memory[offset : offset + width], "little")

    def write(offset: int, width: int, value: int) -> None:
        seen.append(("write", offset, width))
        memory[offset : offset + width] = value.to_bytes(width, "little")

    return TrappedWindow(len(memory), read, write, widest)


@given(st.randoms(use_true_random=False), st.sampled_from(WIDTHS))
def test_a_trapped_window_is_told_each_access_once(random: Random, widest: int) -> None:
    seen: list[tuple[str, int, int]] = []
    memory = bytearray(64)
    start, size = random.randrange(32), random.randrange(1, 32)
    part: Window = trapped(memory, seen, widest).sub(start, size)
    model = bytearray(64)
    for _ in range(8):
        at = random.randrange(size)
        data = random.randbytes(random.randrange(size - at + 1))
        part.store(at, data)
        model[start + at : start + at + len(data)] = data
        assert part.load(at, len(data)) == data
        half = len(seen) // 2
        assert [(o, w) for _, o, w in seen[:half]] == [(o, w) for _, o, w in seen[half:]]
        assert sum(width for _, _, width in seen[:half]) == len(data)
        assert all(width <= widest and not offset % width for _, offset, width in seen)
        seen.clear()
    assert memory == model


def test_a_trapped_window_refuses_before_it_asks() -> None:
    seen: list[tuple[str, int, int]] = []
    window = trapped(bytearray(16), seen, 8)
    for refused in (
        lambda: window.read(1, 2),
        lambda: window.read(0, 3),
        lambda: window.write(0, 1, 256),
        lambda: window.write(12, 8, 0),
        lambda: window.load(10, 7),
        lambda: window.sub(8, 9),
    ):
        with pytest.raises((InvalidValue, InvalidIndex)):
            refused()
    assert not seen
    with pytest.raises(InvalidValue, match="does not fit width 1"):
        TrappedWindow(4, lambda offset, width: 256, lambda offset, width, value: None).read(0, 1)

"""What is refused, clocks, and a submission that an exception meets while it fills a ring."""

from __future__ import annotations

import ctypes
from functools import partial

import numpy as np
import pytest

from gpu.core.clocks import ClockMap, bracketed
from gpu.core.errors import (
    DeviceError,
    DeviceLost,
    HwTimeout,
    InvalidIndex,
    InvalidType,
    InvalidValue,
)
from gpu.hcq.conformance.kit import WORDS, download, numbers, upload
from gpu.hcq.device import HCQDevice
from gpu.hcq.hostdevice import HostPort
from gpu.hcq.hostring import HostRing
from gpu.hcq.ports import Memory
from gpu.hcq.signal import Timeline
from gpu.hcq.symbol import Symbol
from hcq.host_target import HostTarget


def test_what_is_refused() -> None:
    target = HostTarget()
    with target.open(small=True) as device:
        fill, n = target.program(device, "fill"), Symbol("n")
        buffer = upload(device, numbers(0))
        with pytest.raises(InvalidIndex, match="no compute queue 5; its queues are compute: 2"):
            device.queue("compute", 5)
        args = fill.arguments(buffer, vals=(1, n))
        with pytest.raises(InvalidValue, match="symbols n have no value"):
            device.queue().exec(fill, args, (1, 1, 1), (1, 1, 1)).submit(device)
        with pytest.raises(InvalidValue, match="grid"):
            fill(buffer, vals=(1, 1), grid=(n, 1, 1))
        with pytest.raises(InvalidValue, match=r"grid of fill is 0: give 1 to"):
            fill(buffer, vals=(1, 1), grid=(0, 1, 1))
        with pytest.raises(InvalidType, match=r"grid of fill must be an int, got float 1.5"):
            fill(buffer, vals=(1, 1), grid=(1.5, 1, 1))  # type: ignore[arg-type]
        queue = device.queue()
        for _ in range(200):
            queue.copy(buffer, buffer, 4)
        with pytest.raises(InvalidValue, match="submit less at once, or bind it"):
            queue.submit(device)
        queue.bind(device).submit()
        other = target.program(device, "add")
        with pytest.raises(InvalidValue, match="were not made by add"):
            device.queue().exec(other, fill.arguments(buffer, vals=(1, 1)), (1, 1, 1), (1, 1, 1))
    with pytest.raises(DeviceLost, match="it is closed"):
        device.signal()


def test_buffers_of_queues_are_checked() -> None:
    target = HostTarget()
    with target.open() as device, target.open() as other:
        one, two, theirs = (upload(d, numbers(0)) for d in (device, device, other))
        for size, told in ((-4, "size of a copy is -4"), (two.size + 4, f"it has {two.size}")):
            with pytest.raises(InvalidValue, match=told):
                device.queue().copy(one, two, size)
        queues = [device.queue().copy(one, two, 4), device.queue().copy(one, theirs, 4)]
        with pytest.raises(InvalidValue, match="call map_to"):
            queues[1].submit(device)
        two.free()
        for act in (queues[0].submit, queues[0].bind):
            with pytest.raises(InvalidValue, match="has been freed"):
                act(device)


def test_clock_map() -> None:
    """Ticks become host time within the error that was measured, also after a second."""
    port = HostPort()
    read = partial(bracketed, port.clock, port.now_ns)
    clocks = ClockMap(read, port.clock_hz, port.now_ns)
    for _ in range(2):
        for _ in range(5):
            port.step()
        assert abs(clocks.host_ns(port.clock()) - port.now_ns()) <= 10
        port.skip(2_000_000_000)
        assert clocks.refresh().host_ns == port.now_ns()
    port.close()


def test_timeline_numbers() -> None:
    target = HostTarget(signal_bits=32)
    with target.open(near_wrap=True) as device:
        timeline = device.channel("compute").timeline
        assert isinstance(timeline, Timeline)
        first = timeline.signal
        last = [device.queue().submit(device) for _ in range(30)][-1]
        device.wait(last)
        assert last.value == (1 << 32) - 10 + 30 == timeline.reached()
        assert timeline.signal is not first and timeline.signal.value < 30
        assert timeline.payload(5) == 0 and timeline.passed(5)


@pytest.mark.parametrize(
    ("unit", "wraps", "token", "bias", "puts", "bells"),
    [
        (4, False, None, 0, [6, 12, 18], [6, 12, 18]),
        (1, False, None, 0, [24, 48, 72], [24, 48, 72]),
        (8, True, 0x55, 0, [3, 6, 1], [0x55] * 3),
        (8, False, None, -1, [3, 6, 9], [2, 5, 8]),
    ],
)
def test_put_pointers(
    unit: int, wraps: bool, token: int | None, bias: int, puts: list[int], bells: list[int]
) -> None:
    """PM4, SDMA, GP entries and AQL-like packets; the third submission crosses the end."""
    memory, words = (ctypes.c_uint64 * 8)(), (ctypes.c_uint64 * 3)(1, 2, 3)
    put, bell, last = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64()
    a = ctypes.addressof
    publish = HostRing(
        a(memory), 64, a(put), 4, unit, a(bell), 4, wraps=wraps, token=token, bias=bias
    ).publisher()
    for number in range(3):
        publish(24 * number, a(words), 24, a(last), number + 1)
        assert (put.value, bell.value, last.value) == (puts[number], bells[number], number + 1)
    assert list(memory) == [3, 2, 3, 1, 2, 3, 1, 2]
    with pytest.raises(InvalidValue, match="ring of 30 bytes"):
        HostRing(a(memory), 30, a(put), 4, 4, a(bell), 4)


def test_interrupt_behind_filler() -> None:
    """Filler that was published stays: the device may have read it already."""
    target = HostTarget(1)
    with target.open(small=True) as device:
        add, one = target.program(device, "add"), upload(device, np.ones(WORDS, np.int32))
        count = upload(device, np.zeros(WORDS, np.int32))
        channel = device.channel("compute")
        fill, struck = channel._fill, []

        def interrupted(position: int, size: int) -> None:
            fill(position, size)
            device.port.waiter.idle(0)
            struck.append(position)
            raise KeyboardInterrupt

        channel._fill = interrupted  # type: ignore[method-assign]
        launched = 0
        for _ in range(200):
            try:
                add(count, count, one, vals=(WORDS,))
                launched += 1
            except KeyboardInterrupt:
                device.synchronize()
        assert struck
        np.testing.assert_array_equal(download(device, count), np.full(WORDS, launched, np.int32))


def test_the_cache_goes_back_once_nothing_uses_it() -> None:
    """What was freed is kept for the next allocation, until one asks for it."""
    port = HostPort(seed=2)
    with HCQDevice(port) as device:
        before = port.memory.used
        buffer = device.allocator.alloc(1 << 20)
        go = device.signal()
        device.queue().wait(go, 1).copy(buffer, buffer.address + 4096, 64).submit(device)
        buffer.free()
        with pytest.raises(HwTimeout):  # a queue still writes it
            device.allocator.free_cache()
        assert port.memory.used >= before + (1 << 20)
        go.set(1)
        device.allocator.free_cache()
        assert port.memory.used < before + (1 << 20)


def test_closing_gives_back_all_but_what_is_refused() -> None:
    port = HostPort(seed=4)
    device = HCQDevice(port)
    buffers = [device.allocator.alloc(1 << 16) for _ in range(3)]
    free, refused = port.memory.free, list[Memory]()

    def refuse_one(memory: Memory) -> None:
        if not refused:
            refused.append(memory)
            raise DeviceError("not now")
        free(memory)

    port.memory.free = refuse_one  # type: ignore[method-assign]
    with pytest.raises(DeviceError, match="not now"):
        device.close()
    free(refused[0])
    assert port.memory.used == 0 and len(buffers) == 3


def test_queues_open_at_their_first_use() -> None:
    port = HostPort(seed=3)
    with HCQDevice(port) as device:
        assert [len(found) for found in device.queues.values()] == [1, 0]
        device.channel("compute", 1)
        assert [len(found) for found in device.queues.values()] == [2, 0]
        with pytest.raises(InvalidIndex, match="its queues are compute: 2, copy: 2"):
            device.channel("copy", 2)

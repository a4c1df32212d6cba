"""Checks of memory: reuse behind fences, staging, running out, mapping the host's."""

from __future__ import annotations

import gc
from typing import Final

import numpy as np

from gpu.core.errors import InvalidIndex, InvalidValue, OutOfMemory
from gpu.hcq.buffer import HCQBuffer
from gpu.hcq.channel import Point
from gpu.hcq.conformance.kit import (
    WORDS,
    Check,
    Target,
    download,
    expect,
    expect_equal,
    expect_raises,
    numbers,
    peek,
    place,
    system,
    upload,
)
from gpu.hcq.device import HCQDevice
from gpu.hcq.signal import Signal

_ONE: Final = (1, 1, 1)


def _read_later(
    target: Target, device: HCQDevice, go: Signal, out: HCQBuffer, source: HCQBuffer
) -> Point:
    """A launch that sets ``out`` to ``source`` once ``go`` is 1, on a second queue if there is."""
    add, zeros = target.program(device, "add"), system(device, np.zeros(WORDS, np.int32))
    args = add.arguments(out, source, zeros, vals=(WORDS,))
    device.synchronize()
    queue = device.queue(*place(device, "compute", 1))
    return queue.wait(go, 1).exec(add, args, _ONE, _ONE).submit(device)


def freed_memory_waits(target: Target) -> None:
    """What is freed is used again, but not before all that was submitted by then is done."""
    with target.open() as device:
        go, out = device.signal(), system(device, numbers(0))
        source = upload(device, numbers(1))
        address = source.address
        point = _read_later(target, device, go, out, source)
        source.free()
        expect_raises(InvalidValue, "using freed memory", lambda: source.window)
        other = upload(device, numbers(2))
        expect(other.address != address, "memory was used again while a launch waits to read it")
        go.set(1)
        device.wait(point)
        expect_equal(peek(out), numbers(1), "a launch on memory freed after it was submitted")
        device.synchronize()
        expect(upload(device, numbers(3)).address == address, "freed memory is not used again")


def collected_memory_waits(target: Target) -> None:
    """The same for memory that nobody holds any more."""
    with target.open() as device:
        go, out = device.signal(), system(device, numbers(0))
        source = upload(device, numbers(1))
        address = source.address
        point = _read_later(target, device, go, out, source)
        del source
        gc.collect()
        expect(upload(device, numbers(2)).address != address, "collected memory was used too early")
        go.set(1)
        device.wait(point)
        expect_equal(peek(out), numbers(1), "a launch on memory collected after it was submitted")


def views(target: Target) -> None:
    """Parts of buffers are checked, and die with the whole."""
    with target.open() as device:
        whole = upload(device, numbers(0))
        part = whole.view(16, 32)
        expect_equal(download(device, part), numbers(0)[4:12], "a part of a buffer")
        expect_raises(InvalidIndex, "a part that sticks out", lambda: part.view(16, 17))
        whole.free()
        expect_raises(InvalidValue, "a part of what was freed", lambda: download(device, part))
        data = bytes(WORDS)
        other = upload(device, numbers(0))
        expect_raises(InvalidValue, "a size", lambda: device.allocator.copy_in(other, data))


def staging_goes_round(target: Target) -> None:
    """Copies from and to the host may be larger than what they are staged in."""
    with target.open(small=True) as device:
        first, second = np.random.default_rng(1).integers(0, 256, (2, 40_000), np.uint8)
        a, b = (device.allocator.alloc(first.nbytes) for _ in range(2))
        device.allocator.copy_in(a, first.tobytes())
        device.allocator.copy_in(b, second.tobytes())
        expect_equal(np.frombuffer(device.allocator.copy_out(a), np.uint8), first, "40 kB")
        expect_equal(np.frombuffer(device.allocator.copy_out(b), np.uint8), second, "40 kB more")


def the_host_may_go_on(target: Target) -> None:
    """What is copied from may change as soon as the copy has been asked for."""
    with target.open(small=True) as device:
        data, buffers = bytearray(1000), []
        for number in range(50):
            data[:] = bytes([number]) * len(data)
            buffers.append(device.allocator.alloc(len(data)))
            device.allocator.copy_in(buffers[-1], data)
        for number, buffer in enumerate(buffers):
            found = np.frombuffer(device.allocator.copy_out(buffer), np.uint8)
            expect_equal(found, np.full(len(data), number, np.uint8), f"copy number {number}")


def running_out(target: Target) -> None:
    """Too much is `OutOfMemory`; memory that was freed makes room, also of another size."""
    with target.open(small=True) as device:
        expect_raises(OutOfMemory, "2^50 bytes", lambda: device.allocator.alloc(1 << 50))
        expect_raises(InvalidValue, "no bytes", lambda: device.allocator.alloc(0))
        held: list[HCQBuffer] = []
        size = 1 << 16
        try:
            while len(held) < 1 << 16:
                held.append(device.allocator.alloc(size))
        except OutOfMemory:
            pass
        go = device.signal()
        point = device.queue().wait(go, 1).submit(device)
        half = len(held) // 2 * size
        while held:
            held.pop().free()
        go.set(1)
        device.allocator.alloc(half).free()
        device.wait(point)


def mapped_host_memory(target: Target) -> None:
    """Memory of the host is used in place."""
    with target.open() as device:
        host = numbers(1, 2 * WORDS)
        mapped = device.allocator.map_host(host)
        add, b = target.program(device, "add"), upload(device, numbers(2))
        out = mapped.view(0, 4 * WORDS)
        add(out, mapped.view(4 * WORDS, 4 * WORDS), b, vals=(WORDS,))
        device.synchronize()
        wanted = numbers(1, 2 * WORDS)[WORDS:] + numbers(2)
        expect_equal(host[:WORDS], wanted, "a sum written to memory of the host")
        mapped.free()


CHECKS: Final[tuple[Check, ...]] = (
    freed_memory_waits,
    collected_memory_waits,
    views,
    staging_goes_round,
    the_host_may_go_on,
    running_out,
    mapped_host_memory,
)

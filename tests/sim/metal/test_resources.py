"""Buffers: what they hold, who sees it, and what copies and fills do."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np

from gpu.core import hostmem
from gpu.sim.metal.library import MetalLibrary
from sim.metal.raw_metal import (
    MANAGED,
    MEMORYLESS,
    PRIVATE,
    SHARED,
    Range,
    RawMetal,
    compile_msl,
)

Broken = Callable[[str], str]
PAGE = 16384
OVER = "newBufferWithBytesNoCopy:length:options:deallocator:"


def test_buffers_are_zeroed_and_shared(metal: RawMetal) -> None:
    buffer = metal.buffer(1000)
    values = metal.floats(buffer, np.uint8)
    assert values.shape == (1000,)
    assert not values.any()
    assert metal.send(buffer, "storageMode") == 0
    assert metal.send(buffer, "gpuAddress")
    assert metal.send(metal.device, "currentAllocatedSize") == 1000
    metal.release(buffer)
    assert metal.send(metal.device, "currentAllocatedSize") == 0


def test_bytes_are_copied_into_a_buffer(metal: RawMetal, seed: int) -> None:
    given = np.random.default_rng(seed).integers(0, 256, 100, np.uint8)
    expected = given.copy()
    make = "newBufferWithBytes:length:options:"
    buffer = metal.send(metal.device, make, given.ctypes.data, given.nbytes, SHARED)
    given[:] = 0
    assert np.array_equal(metal.floats(buffer, np.uint8), expected)


def test_bad_buffers(raw: RawMetal, broken: Broken) -> None:
    assert raw.buffer(0) == 0
    broken("empty-buffer")
    assert raw.buffer(1 << 40) == 0
    broken("buffer-too-long")
    assert raw.buffer(16, MEMORYLESS) == 0
    broken("buffer-options")
    assert raw.buffer(16, 1 << 20) == 0
    broken("buffer-options")
    assert raw.send(raw.device, "newBufferWithBytes:length:options:", 0, 16, SHARED) == 0
    broken("nil-argument")


def test_memory_ends(metal: RawMetal) -> None:
    largest = metal.send(metal.device, "maxBufferLength")
    made = [metal.buffer(largest, PRIVATE) for _ in range(4)]
    assert all(made)
    assert metal.buffer(largest, PRIVATE) == 0
    metal.release(*made)


def test_private_buffers_have_no_contents(raw: RawMetal, broken: Broken) -> None:
    buffer = raw.buffer(64, PRIVATE)
    assert raw.send(buffer, "contents") == 0
    broken("private-contents")


def test_memory_of_the_program_is_borrowed_in_whole_pages(raw: RawMetal, broken: Broken) -> None:
    start = hostmem.reserve(2 * PAGE, align=PAGE)
    hostmem.map_anonymous(2 * PAGE, start, fixed=True)
    buffer = raw.send(raw.device, OVER, start, 2 * PAGE, SHARED, 0)
    assert raw.send(buffer, "contents") == start
    for at, length in ((start + 4096, PAGE), (start, 100), (0, PAGE)):
        assert raw.send(raw.device, OVER, at, length, SHARED, 0) == 0
        broken("no-copy-pages")
    assert raw.send(raw.device, OVER, start, PAGE, PRIVATE, 0) == 0
    broken("no-copy-mode")
    assert raw.send(raw.device, OVER, start, PAGE, SHARED, start) == 0
    broken("no-deallocator")
    raw.release(buffer)
    ctypes.memset(start, 1, 2 * PAGE)  # it is still the program's
    hostmem.unmap(start, 2 * PAGE)


def blit(metal: RawMetal) -> tuple[int, int]:
    buffer = metal.command_buffer()
    return buffer, metal.send(buffer, "blitCommandEncoder")


def finish(metal: RawMetal, buffer: int, encoder: int) -> None:
    metal.end(encoder)
    metal.commit(buffer)
    assert metal.wait(buffer) == 4


def test_copies_and_fills(metal: RawMetal, seed: int) -> None:
    source, target = metal.buffer(300), metal.buffer(200)
    metal.floats(source, np.uint8)[:] = expected = np.random.default_rng(seed).integers(
        0, 256, 300, np.uint8
    )
    buffer, encoder = blit(metal)
    metal.copy(encoder, source, 17, target, 50, 100)
    metal.copy(encoder, source, 0, source, 200, 100)
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_size_t] * 3, Range, ctypes.c_uint8)
    fill = kind(metal._address("objc_msgSend"))
    fill(encoder, metal.selector("fillBuffer:range:value:"), target, Range(150, 50), 0xAB)
    finish(metal, buffer, encoder)
    values = metal.floats(target, np.uint8)
    assert not values[:50].any()
    assert np.array_equal(values[50:150], expected[17:117])
    assert (values[150:] == 0xAB).all()
    assert np.array_equal(metal.floats(source, np.uint8)[200:], expected[:100])


def test_bad_copies(raw: RawMetal, broken: Broken) -> None:
    a, b = raw.buffer(100), raw.buffer(100)
    buffer, encoder = blit(raw)
    raw.copy(encoder, a, 50, b, 0, 51)
    broken("out-of-range")
    raw.copy(encoder, a, 0, b, 1 << 63, 4)
    broken("out-of-range")
    raw.copy(encoder, a, 0, a, 10, 20)
    broken("copy-overlap")
    raw.send(encoder, "fillBuffer:range:value:", a, Range(0, 0), 0, result=None)
    broken("empty-fill")
    finish(raw, buffer, encoder)


def test_on_other_gpus_copies_are_of_whole_words(seed: int) -> None:
    library = MetalLibrary("mac2", seed, compile=compile_msl)
    metal = RawMetal(library.address)
    with metal.pool():
        metal.start()
        a, b = metal.buffer(64), metal.buffer(64)
        buffer, encoder = blit(metal)
        metal.copy(encoder, a, 0, b, 2, 8)
        metal.copy(encoder, a, 0, b, 4, 8)
        finish(metal, buffer, encoder)
    assert [each.split(":")[0] for each in library.violations] == ["blit-alignment"]


def test_managed_buffers_have_two_copies(metal: RawMetal) -> None:
    managed, plain = metal.buffer(64, MANAGED), metal.buffer(64)
    values = metal.floats(managed, np.uint8)
    values[:] = 5
    metal.send(managed, "didModifyRange:", Range(0, 32), result=None)
    buffer, encoder = blit(metal)
    metal.copy(encoder, managed, 0, plain, 0, 64)
    metal.copy(encoder, plain, 0, managed, 32, 16)
    finish(metal, buffer, encoder)
    seen = metal.floats(plain, np.uint8)
    assert (seen[:32] == 5).all()  # what the GPU was told of
    assert not seen[32:].any()
    assert (values == 5).all()  # nothing has come back
    buffer, encoder = blit(metal)
    metal.send(encoder, "synchronizeResource:", managed, result=None)
    finish(metal, buffer, encoder)
    assert (values[:48] == 5).all()
    assert not values[48:].any()


def test_only_managed_buffers_are_synchronized(raw: RawMetal, broken: Broken) -> None:
    shared, managed = raw.buffer(64), raw.buffer(64, MANAGED)
    raw.send(shared, "didModifyRange:", Range(0, 4), result=None)
    broken("not-managed")
    raw.send(managed, "didModifyRange:", Range(60, 8), result=None)
    broken("out-of-range")
    buffer, encoder = blit(raw)
    raw.send(encoder, "synchronizeResource:", shared, result=None)
    broken("not-managed")
    finish(raw, buffer, encoder)


def test_devices_keep_their_own(library: MetalLibrary) -> None:
    two = MetalLibrary("apple7,mac2", compile=compile_msl)
    metal = RawMetal(two.address)
    with metal.pool():
        metal.start()
        devices = metal.call("MTLCopyAllDevices")
        assert metal.send(devices, "count") == 2
        other = metal.send(devices, "objectAtIndex:", 1)
        foreign = metal.send(other, "newBufferWithLength:options:", 64, SHARED)
        buffer, encoder = blit(metal)
        metal.copy(encoder, foreign, 0, metal.buffer(64), 0, 64)
        finish(metal, buffer, encoder)
    assert [each.split(":")[0] for each in two.violations] == ["other-device"]


def test_queues_have_room(raw: RawMetal, broken: Broken) -> None:
    assert raw.send(raw.device, "newCommandQueueWithMaxCommandBufferCount:", 0) == 0
    broken("queue-size")

"""What goes over USB: how many transfers a launch takes, and copies through the bridge's memory."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from am.usb_target import UsbTarget
from bounded import bounded
from gpu.autogen.amd import amdgpu_ucode
from gpu.core.errors import DeviceError, DeviceHang, DeviceLost, TransportError
from gpu.drivers.am.device import AmDevice
from gpu.drivers.am.pci.port import PciPort, boot, close_chip
from gpu.drivers.am.pci.usb import take_card
from gpu.drivers.device import Rung
from gpu.hcq.conformance.kit import WORDS, download, numbers, upload
from gpu.hcq.ports import MemoryKind
from gpu.sim.usb.chip import CONTROL_NS, SRAM_RATE
from gpu.sim.usb.sram import SRAM_BYTES

PART = SRAM_BYTES // 2 - 512


@pytest.fixture
def target() -> Iterator[UsbTarget]:
    with closing(UsbTarget(5)) as target:
        yield target


def transfers(target: UsbTarget) -> int:
    count = target.machine.bridges[0].transfers
    return count.control + count.bulk


def random_bytes(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng([size, seed]).bytes(size)


def fetch(device: AmDevice, data: bytes) -> bytes:
    buffer = device.allocator.alloc(len(data))
    device.allocator.copy_in(buffer, data)
    return device.allocator.copy_out(buffer)


def test_a_launch_takes_six_transfers(target: UsbTarget) -> None:
    with target.open_gpu(0) as device:
        fill, out = target.program(device, "fill"), upload(device, numbers(0))
        fill(out, vals=(0, WORDS))
        device.synchronize()
        counts = []
        for number in range(1, 140):  # the ring goes round
            before = transfers(target)
            fill(out, vals=(number, WORDS))
            counts.append(transfers(target) - before)
            if number % 8 == 0:
                device.synchronize()
                assert np.all(download(device, out) == number)
        counts.sort()
        assert counts[len(counts) // 2] <= 6, counts
        assert sum(counts) / len(counts) < 7, counts  # with what fills the end of the ring
    assert target.complaints() == []


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_copies_of_any_size_come_back(seed: int) -> None:
    rng = random.Random(seed)
    edges = (1, 511, 512, 513, (16 << 10) - 4, (16 << 10) - 3, PART - 1, PART, PART + 1, 2 * PART)
    sizes = [*rng.sample(edges, 5), *(rng.randrange(1, 3 << 20) for _ in range(3))]
    with closing(UsbTarget(seed, ("gfx1100", "gfx1201")[seed])) as target:
        with target.open_gpu(0) as device:
            for size in sizes:
                data = random_bytes(size, seed)
                assert fetch(device, data) == data, size
        assert target.complaints() == []


def test_copies_are_as_fast_as_the_bridge_lets_them(target: UsbTarget) -> None:
    """A part takes a request that begins it, one that asks or tells how far it is, its bytes."""
    size = 16 << 20
    parts = -(-size // PART)
    limit = size * 1_000_000_000 / SRAM_RATE + parts * 2 * CONTROL_NS
    data = random_bytes(size)
    clock = target.machine.clock
    with target.open_gpu(0) as device:
        assert fetch(device, data[:1]) == data[:1]  # queues are open
        buffer = device.allocator.alloc(size)
        start = clock.now_ns
        device.allocator.copy_in(buffer, data)
        device.synchronize()
        middle = clock.now_ns
        assert device.allocator.copy_out(buffer) == data
        assert limit / (middle - start) > 0.9
        assert limit / (clock.now_ns - middle) > 0.8


def test_what_another_process_left_in_the_bridge_is_no_part(target: UsbTarget) -> None:
    sram = target.machine.bridges[0].chip.sram
    for memory in (sram.sram, sram.queue):
        memory.data[:] = b"\xff" * len(memory.data)
    with target.open_gpu(0) as device:
        data = random_bytes(3 * PART + 5)
        assert fetch(device, data) == data
    assert target.complaints() == []


@pytest.mark.parametrize(
    "trouble", ["stall", "unplug", pytest.param("link_dies", marks=pytest.mark.slow)]
)
def test_a_copy_that_breaks_off_is_typed(trouble: str) -> None:
    with closing(UsbTarget(7)) as target:
        bridge = target.machine.bridges[0]
        device = target.open_gpu(0)
        data = random_bytes(4 * PART)
        buffer = device.allocator.alloc(len(data))
        device.allocator.copy_in(buffer, data)
        device.synchronize()
        bridge.troubles = replace(bridge.troubles, **{trouble: bridge._count + 13})  # in the midst
        kind = {"stall": TransportError, "unplug": DeviceLost, "link_dies": DeviceError}[trouble]
        with bounded(60), pytest.raises(kind):
            device.allocator.copy_in(buffer, data[::-1])
            device.synchronize()
        if trouble == "stall":  # the card is not left waiting for the rest
            assert fetch(device, data) == data
            device.close()
        else:
            with pytest.raises(DeviceError):
                device.synchronize()
                device.close()


def test_a_hang_is_found_before_the_bridge_waits_for_it(target: UsbTarget) -> None:
    with target.open_gpu(0) as device:
        buffer = upload(device, numbers(1))
        device.synchronize()
        device.timeout = 0.05
        never = device.signal()
        device.submit_in_order(device.channel("compute"), device.queue().wait(never, 1).commands)
        with bounded(60), pytest.raises(DeviceHang):
            device.allocator.copy_out(buffer)
        never.set(1)
        assert np.array_equal(download(device, buffer), numbers(1))


@pytest.mark.parametrize("parts", [1, 5])
def test_copies_go_on_after_one_that_was_dropped(target: UsbTarget, parts: int) -> None:
    """Behind a hang, whether the host waited for a window or not."""
    with target.open_gpu(0) as device:
        data = random_bytes(parts * PART)
        buffer = device.allocator.alloc(len(data))
        device.synchronize()
        device.timeout = 0.05
        poll = device.queue("copy").poll(buffer.address, 1).commands
        device.submit_in_order(device.channel("copy"), poll)
        with bounded(60), pytest.raises(DeviceHang):
            device.allocator.copy_in(buffer, data)
            device.synchronize()
        assert device.recover() is Rung.QUEUES
        for seed in range(3):
            again = random_bytes(3 * PART + 9, seed)
            assert fetch(device, again) == again
    assert target.complaints() == []


def test_threads_take_turns_at_the_bridge(target: UsbTarget) -> None:
    failed: list[BaseException] = []
    with target.open_gpu(0) as device:
        fill = target.program(device, "fill")

        def copy(seed: int) -> None:
            try:
                for size in (PART + 7, 100):
                    data = random_bytes(size, seed)
                    assert fetch(device, data) == data
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=copy, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        out = upload(device, numbers(0))
        for number in range(10):
            fill(out, vals=(number, WORDS))
        for thread in threads:
            thread.join(60)
        assert not failed and np.all(download(device, out) == 9)
    assert target.complaints() == []


def test_firmware_goes_through_the_bridge(target: UsbTarget) -> None:
    """All of it, byte for byte, and no table that led there is left."""
    sram = target.machine.bridges[0].chip.sram
    seen: list[bytes] = []
    take = sram.take

    def watched(data: memoryview) -> None:
        seen.append(bytes(data))
        take(data)

    sram.take = watched  # type: ignore[method-assign]
    card = take_card(target.world, 0, target.load)
    for _ in boot(card):
        pass
    given = b"".join(seen)
    image = target.machine.firmware["amdgpu/gc_11_0_0_mec.bin"]
    header = amdgpu_ucode.common_firmware_header.from_buffer_copy(image)
    start = header.ucode_array_offset_bytes
    assert image[start : start + 1024] in given
    assert card.vram.in_use == 0
    close_chip(card)
    assert target.complaints() == []


def test_the_card_clears_its_memory(target: UsbTarget) -> None:
    """New memory, and what a device leaves: the host sends no zeros for it."""
    sent = target.machine.bridges[0].transfers
    vram = target.machine.gpus[0].chip.vram
    with target.open_gpu(0) as device:
        port = device.port
        assert isinstance(port, PciPort)
        size = 3 << 20
        place = port.chip.vram.take(size)
        port.chip.vram.free(place)
        vram.store(place, b"\xa5" * size)
        before = sent.bytes_out
        memory = device.exclusively(device.allocate, size, MemoryKind.VISIBLE)
        assert sent.bytes_out - before < 64 << 10
        assert memory.window is not None and not any(memory.window.load(0, size))
        device.allocator.copy_in(device.allocator.alloc(size), b"\x5a" * size)
        device.synchronize()
        before = sent.bytes_out
    assert sent.bytes_out - before < 128 << 10
    assert b"\x5a" * 64 not in vram.load(place, 8 << 20)
    assert target.complaints() == []

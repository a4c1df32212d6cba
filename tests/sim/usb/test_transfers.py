"""Streams to and from the card, and sectors of SRAM, over both bulk endpoints."""

from __future__ import annotations

import random

import pytest

from gpu.core.errors import DeviceLost, HwTimeout, TransportError
from sim.usb.client import (
    BULK_IN,
    BULK_OUT,
    COMPLETION_AT,
    MEMORY_READ,
    MEMORY_WRITE,
    REGISTER_BAR,
    SLOT,
    SRAM_AT,
    STREAM_READ,
    STREAM_WRITE,
    VRAM_BAR,
    Bridge,
)
from sim.usb.conftest import Make

SPEEDS = (480, 5000, 10000, 20000)


@pytest.mark.parametrize("speed", SPEEDS)
def test_streams_bring_what_was_sent(make: Make, speed: int) -> None:
    bridge = make(speed=speed)
    bridge.start()
    draw, base = random.Random(speed), bridge.bars[VRAM_BAR][0]
    for _ in range(20):
        size = 4 * draw.choice((1, 2, 127, 128, 129, 255, 256, 257, 1024, draw.randrange(1, 5000)))
        at, data = base + 4 * draw.randrange(1 << 20), draw.randbytes(size)
        bridge.write_memory(at, data)
        assert bridge.read_memory(at, size) == data
    assert not bridge.violations


def test_streams_of_registers_come_one_by_one(bridge: Bridge) -> None:
    at = 4 * bridge.card.chip.regs.address("MP0_SMN_C2PMSG_33")
    word = bridge.window(REGISTER_BAR).read(at, 4)
    data = bridge.read_memory(bridge.bars[REGISTER_BAR][0] + at, 4)
    assert data == word.to_bytes(4, "little")
    assert not bridge.violations


def test_a_stream_reads_before_it_is_asked(bridge: Bridge) -> None:
    """The first packet is fetched at once, each further one when the last was taken."""
    at = bridge.bars[VRAM_BAR][0]
    bridge.write_memory(at, b"old!" * 768)
    bridge.send(MEMORY_READ, at, 768, mode=STREAM_READ)
    bridge.card.chip.vram.store(0, b"new!" * 768)
    first = bridge.device.bulk_in(BULK_IN, 1024)
    assert first == b"old!" * 256
    assert bridge.device.bulk_in(BULK_IN, 2048) == b"new!" * 512
    assert not bridge.violations


@pytest.mark.parametrize(
    ("rule", "form", "mode", "offset", "enables"),
    [
        ("stream-type", MEMORY_READ, STREAM_WRITE, 0, 0xF),
        ("stream-type", MEMORY_WRITE, STREAM_READ, 0, 0xF),
        ("stream-type", 0x04, STREAM_READ, 0, 0xF),
        ("stream-dwords", MEMORY_WRITE, STREAM_WRITE, 2, 0xF),
        ("stream-dwords", MEMORY_WRITE, STREAM_WRITE, 0, 0x3),
    ],
)
def test_streams_that_are_refused(
    bridge: Bridge, rule: str, form: int, mode: int, offset: int, enables: int
) -> None:
    bridge.send(form, bridge.bars[VRAM_BAR][0] + offset, 4, enables, mode)
    assert bridge.told(rule)


def test_nobody_looks_at_the_status_of_a_stream(bridge: Bridge) -> None:
    base, size = bridge.bars[REGISTER_BAR]
    bridge.window(REGISTER_BAR).read(size - 4, 4)
    bridge.world.debug.records.clear()
    data = bridge.read_memory(base + size - 4, 16)
    assert data == data[:4] * 4  # stale words
    bridge.world.debug.records[:] = [r for r in bridge.world.debug.records if "bridge" in r.what]
    assert bridge.told(*["stream-unclaimed"] * 3)
    bridge.write_memory(base + size, b"lost")
    assert bridge.told("stream-unclaimed")


def test_a_stream_read_at_a_dead_link_brings_stale_words(bridge: Bridge) -> None:
    at = bridge.bars[VRAM_BAR][0]
    bridge.write_memory(at, b"word")
    bridge.ask(MEMORY_READ, at)
    bridge.model.chip.link.fail()
    assert bridge.read_memory(at + 64, 12) == b"wordwordword"
    assert bridge.told(*["stream-dead-link"] * 3)


def test_a_stream_read_at_a_dead_link_wedges_the_bridge(make: Make) -> None:
    bridge = make(dead_link="wedge")
    bridge.start()
    bridge.model.chip.link.fail()
    with pytest.raises(HwTimeout):
        bridge.read_memory(bridge.bars[VRAM_BAR][0], 64)
    assert bridge.told("stream-dead-link")
    with pytest.raises(HwTimeout):
        bridge.read(0)
    with pytest.raises(HwTimeout):
        bridge.device.bulk_in(BULK_IN, 64)
    with pytest.raises(DeviceLost, match="switch it off and on"):
        bridge.device.reset()
    bridge.model.power_cycle()
    bridge.open()
    bridge.start()
    assert not bridge.violations


def test_a_link_that_dies_within_a_stream(make: Make) -> None:
    bridge = make(dead_link="wedge")
    bridge.start()
    bridge.send(MEMORY_READ, bridge.bars[VRAM_BAR][0], 512, mode=STREAM_READ)
    bridge.model.chip.link.fail()
    with pytest.raises(HwTimeout):
        bridge.device.bulk_in(BULK_IN, 2048)


def test_writes_to_a_dead_link_are_lost(bridge: Bridge) -> None:
    bridge.model.chip.link.fail()
    bridge.write_memory(bridge.bars[VRAM_BAR][0], bytes(64))
    assert bridge.told("stream-dead-link")


def test_what_was_not_taken_comes_first(bridge: Bridge) -> None:
    at = bridge.bars[VRAM_BAR][0]
    bridge.write_memory(at, b"one!two!")
    bridge.send(MEMORY_READ, at, 1, mode=STREAM_READ)
    bridge.send(MEMORY_READ, at + 4, 1, mode=STREAM_READ)
    assert bridge.told("stream-not-taken")
    assert bridge.device.bulk_in(BULK_IN, 8) == b"one!two!"
    bridge.send(MEMORY_READ, at, 1, mode=STREAM_READ)
    bridge.device.clear_halt(BULK_IN)
    assert bridge.read_memory(at + 4, 4) == b"two!"
    assert not bridge.violations


def test_a_stream_that_was_given_up_swallows_a_packet(bridge: Bridge) -> None:
    at = bridge.bars[VRAM_BAR][0]
    bridge.send(MEMORY_WRITE, at, 4, mode=STREAM_WRITE)
    bridge.ask(MEMORY_READ, at)
    bridge.device.bulk_out(BULK_OUT, b"lost")
    assert bridge.told("stream-abandoned")
    bridge.send(MEMORY_WRITE, at, 4, mode=STREAM_WRITE)
    bridge.device.clear_halt(BULK_OUT)
    bridge.write_memory(at, b"this")
    assert bridge.read_memory(at, 4) == b"this"
    assert not bridge.violations


def test_a_stream_has_the_length_that_was_said(bridge: Bridge) -> None:
    at = bridge.bars[VRAM_BAR][0]
    bridge.send(MEMORY_WRITE, at, 2, mode=STREAM_WRITE)
    bridge.device.bulk_out(BULK_OUT, bytes(12))
    assert bridge.told("stream-too-long")
    bridge.send(MEMORY_WRITE, at, 2, mode=STREAM_WRITE)
    bridge.device.bulk_out(BULK_OUT, b"fourth")
    assert bridge.told("stream-part")
    bridge.device.bulk_out(BULK_OUT, b"more")  # it went on where it was
    assert bridge.read_memory(at, 8) == b"fourmore"
    for words in (0, 2):
        bridge.send(MEMORY_WRITE, at, words, mode=STREAM_WRITE)
        if words:
            bridge.device.bulk_out(BULK_OUT, bytes(8))
        with pytest.raises(HwTimeout):
            bridge.device.bulk_out(BULK_OUT, b"more", timeout=10)
    assert not bridge.violations


def test_bulk_reads_that_do_not_fit_their_packets(bridge: Bridge) -> None:
    at = bridge.bars[VRAM_BAR][0]
    bridge.send(MEMORY_READ, at, 256, mode=STREAM_READ)
    with pytest.raises(TransportError, match="more than was asked for"):
        bridge.device.bulk_in(BULK_IN, 1000)
    bridge.device.clear_halt(BULK_IN)
    bridge.send(MEMORY_READ, at, 256, mode=STREAM_READ)
    with pytest.raises(HwTimeout):  # a whole packet ends no transfer
        bridge.device.bulk_in(BULK_IN, 2048, timeout=10)
    bridge.send(MEMORY_READ, at, 255, mode=STREAM_READ)
    assert len(bridge.device.bulk_in(BULK_IN, 2048)) == 1020
    assert not bridge.violations


@pytest.mark.parametrize("speed", SPEEDS)
def test_64_kib_through_sram_and_back(make: Make, speed: int) -> None:
    bridge = make(speed=speed, seed=speed)
    bridge.start()
    data = random.Random(speed).randbytes(64 << 10)
    bridge.arm(len(data), slot=3)
    bridge.device.bulk_out(BULK_OUT, data)
    assert bridge.card.chip.bus.load(SRAM_AT + 3 * SLOT, len(data)) == data
    back = data[::-1]
    bridge.dma(SRAM_AT + 8 * SLOT, back)
    bridge.arm(len(data), slot=8, to_host=True)
    with pytest.raises(HwTimeout):
        bridge.device.bulk_in(BULK_IN, len(back), timeout=10)
    bridge.dma(COMPLETION_AT, bytes(4))
    assert bridge.device.bulk_in(BULK_IN, len(back)) == back
    assert not bridge.violations


def test_all_of_sram_in_pieces(bridge: Bridge) -> None:
    data = random.Random(1).randbytes(512 << 10)
    bridge.arm(len(data))
    for at in range(0, len(data), 128 << 10):
        bridge.device.bulk_out(BULK_OUT, memoryview(data)[at : at + (128 << 10)])
    bridge.arm(len(data), to_host=True)
    bridge.dma(COMPLETION_AT, bytes(4))
    assert bridge.device.bulk_in(BULK_IN, 1 << 10) == data[: 1 << 10]
    assert bridge.device.bulk_in(BULK_IN, len(data) - (1 << 10)) == data[1 << 10 :]
    assert bridge.read(0xF000, 512) == data[:512]
    assert not bridge.violations


def test_sram_fills_from_its_start(make: Make) -> None:
    """What the card finds at the end of a transfer came last."""
    seen = set()
    for seed in range(12):
        bridge = make(seed=seed)
        bridge.start()
        looks: list[int] = []

        def look(bridge: Bridge = bridge, looks: list[int] = looks) -> None:
            held = bridge.card.chip.bus.load(SRAM_AT, 256 << 10)
            looks.append(held.count(1))
            assert held.startswith(b"\1" * looks[-1])

        bridge.card.sample = look  # type: ignore[method-assign]
        bridge.arm(256 << 10)
        bridge.device.bulk_out(BULK_OUT, b"\1" * (256 << 10))
        seen.update(looks)
    assert seen - {0, 256 << 10}


@pytest.mark.parametrize(
    ("rule", "size", "slot", "slots"),
    [
        ("no-sectors", 0, 0, 1),
        ("slot-bounds", 512, 32, 1),
        ("slot-bounds", 2 * SLOT, 31, 2),
        ("slot-room", SLOT + 512, 0, 1),
    ],
)
def test_slots(bridge: Bridge, rule: str, size: int, slot: int, slots: int) -> None:
    bridge.arm(size, slot, slots=slots)
    assert bridge.told(rule)


def test_no_slots_are_one(bridge: Bridge) -> None:
    bridge.arm(SLOT, slots=0)
    bridge.device.bulk_out(BULK_OUT, bytes(SLOT))
    assert not bridge.violations


def test_one_transfer_at_a_time(bridge: Bridge) -> None:
    at = bridge.bars[VRAM_BAR][0]
    bridge.arm(1024)
    bridge.arm(1024)
    assert bridge.told("rearm")
    bridge.send(MEMORY_WRITE, at, 1, mode=STREAM_WRITE)
    assert bridge.told("stream-during-sram")
    bridge.device.clear_halt(BULK_OUT)
    bridge.send(MEMORY_WRITE, at, 1, mode=STREAM_WRITE)
    bridge.arm(1024)
    assert bridge.told("sram-during-stream")


def test_sectors_come_whole(bridge: Bridge) -> None:
    bridge.arm(2048)
    bridge.device.bulk_out(BULK_OUT, bytes(1500))
    assert bridge.told("sram-short")
    bridge.device.clear_halt(BULK_OUT)
    bridge.arm(1024)
    with pytest.raises(HwTimeout):
        bridge.device.bulk_out(BULK_OUT, bytes(2048), timeout=10)
    assert bridge.told("sram-too-long")


def test_nothing_is_armed(bridge: Bridge) -> None:
    with pytest.raises(HwTimeout):
        bridge.device.bulk_out(BULK_OUT, bytes(512), timeout=10)
    with pytest.raises(HwTimeout):
        bridge.device.bulk_in(BULK_IN, 512, timeout=10)
    bridge.arm(512, to_host=True)
    bridge.device.clear_halt(BULK_IN)
    bridge.arm(512)
    bridge.device.bulk_out(BULK_OUT, bytes(512))
    assert not bridge.violations


def test_the_clock_counts_bytes_and_requests(bridge: Bridge) -> None:
    at, size = bridge.bars[VRAM_BAR][0], 64 << 10

    def took(rate: int) -> bool:
        nonlocal began
        expected, began = 100_000 + size * 1_000_000_000 // rate, bridge.now_ns - began
        ok = 0.99 < began / expected < 1.01
        began = bridge.now_ns
        return ok

    began = bridge.now_ns
    bridge.write_memory(at, bytes(size))
    assert took(3_600_000)
    bridge.read_memory(at, size)
    assert took(1_800_000)
    bridge.arm(size)
    bridge.device.bulk_out(BULK_OUT, bytes(size))
    assert took(700_000_000)
    bridge.arm(size, to_host=True)
    bridge.dma(COMPLETION_AT, bytes(4))
    bridge.device.bulk_in(BULK_IN, size)
    assert took(700_000_000)


def test_high_speed_is_slower(make: Make) -> None:
    bridge, size = make(speed=480), 512 << 10
    bridge.start()
    bridge.arm(size)
    began = bridge.now_ns
    bridge.device.bulk_out(BULK_OUT, bytes(size))
    assert size / (bridge.now_ns - began) < 0.0533


def test_a_transfer_has_a_timeout(bridge: Bridge) -> None:
    at, size = bridge.bars[VRAM_BAR][0], 1 << 20
    bridge.send(MEMORY_WRITE, at, size // 4, mode=STREAM_WRITE)
    began = bridge.now_ns
    with pytest.raises(HwTimeout):
        bridge.device.bulk_out(BULK_OUT, bytes(size), timeout=100)
    assert bridge.now_ns - began < 102_000_000

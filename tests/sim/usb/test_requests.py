"""Requests of the open firmware on endpoint 0: XDATA, power, single requests to the card."""

from __future__ import annotations

import random
import struct

import pytest

from gpu.core.errors import HwTimeout
from sim.usb.client import (
    CONFIG_READ,
    IN,
    L0,
    LTSSM,
    MEMORY_READ,
    MEMORY_WRITE,
    OUT,
    REGISTER_BAR,
    STREAM_WRITE,
    UNSUPPORTED,
    VRAM_BAR,
    Bridge,
    TlpError,
)
from sim.usb.conftest import Make


def test_descriptors_name_the_open_firmware(off: Bridge) -> None:
    device = off.device.control_in(0x80, 6, 1 << 8, 0, 18)
    vendor, product = struct.unpack_from("<HH", device, 8)
    assert (vendor, product) == (0xADD1, 1) == off.device.id[:2]
    configuration = off.device.control_in(0x80, 6, 2 << 8, 0, 255)
    assert len(configuration) == int.from_bytes(configuration[2:4], "little")
    assert off.device.control_in(0x80, 6, 3 << 8 | 1, 0, 255) == b"\x0a\x03" + "tiny".encode(
        "utf-16-le"
    )


@pytest.mark.parametrize(("speed", "most"), [(480, 64), (10000, 512)])
def test_reads_of_xdata_have_a_length(make: Make, speed: int, most: int) -> None:
    off = make(speed=speed)
    for size in (1, 63, 64, 65, 512, 600):
        assert len(off.read(0x100, size)) == min(size, most)
    assert not off.violations


def test_memory_of_the_8051_keeps_what_is_written(off: Bridge) -> None:
    random.seed(5)
    written = {random.randrange(0x6000): random.randrange(256) for _ in range(50)}
    for address, value in written.items():
        off.write(address, value)
    assert {address: off.read(address)[0] for address in written} == written
    assert not off.violations


def test_unknown_registers(off: Bridge) -> None:
    assert off.read(0xC800) == b"\0"
    off.write(0xC800, 1)
    assert off.read(0x5084, bank=1) == b"\0"
    assert off.told("xdata-unknown", "xdata-unknown", "xdata-unknown")


@pytest.mark.parametrize("address", [LTSSM, 0xB455, 0xE765, 0xB22A, 0xB22B, 0xB284])
def test_registers_that_tell_are_read_only(off: Bridge, address: int) -> None:
    off.write(address, 0x78)
    assert off.told("xdata-read-only")
    assert off.read(address) == b"\0"


def test_reads_do_not_wrap(off: Bridge) -> None:
    off.read(0xFFFF, 2)
    assert off.told("xdata-wrap")


def test_unknown_requests_have_no_answer(off: Bridge) -> None:
    began = off.now_ns
    with pytest.raises(HwTimeout):
        off.device.control_in(IN, 0xE6, 0, 0, 4, timeout=50)
    assert off.now_ns - began == 50_000_000
    off.device.control_out(OUT, 0xE6, 0, 0)  # acknowledged, as the source has it
    with pytest.raises(HwTimeout):
        off.device.control_out(OUT, 0xE6, 0, 0, b"data", timeout=50)
    assert off.told("unknown-request", "unknown-request", "unknown-request")


def test_requests_without_data_have_none(off: Bridge) -> None:
    off.device.control_out(OUT, 0xE5, 0x100, 1, b"more")
    assert off.told("request-data")


@pytest.mark.parametrize("train_ms", [0, 150, 1500, 5000])
def test_power_on_waits_for_a_stable_link(make: Make, train_ms: int) -> None:
    off = make(train_ns=train_ms * 1_000_000)
    began = off.now_ns
    off.power()
    took = (off.now_ns - began) // 1_000_000
    samples = -(-train_ms // 100) + 3
    assert 100 * min(samples, 20) <= took <= 100 * min(samples, 20) + 1
    assert off.read(LTSSM)[0] == L0 if samples <= 20 else 0x10
    assert not off.violations


def test_power_on_takes_longer_than_usual_requests(make: Make) -> None:
    off = make(train_ns=1_200_000_000)
    with pytest.raises(HwTimeout):
        off.power(timeout=1000)
    with pytest.raises(HwTimeout):
        off.device.control_in(IN, 0xE4, LTSSM, 0, 1, timeout=100)
    assert off.device.control_in(IN, 0xE4, LTSSM, 0, 1, timeout=1000) == bytes((L0,))


def test_states_of_the_link(make: Make) -> None:
    off = make(train_ns=400_000_000, boots_powered=True)
    seen = []
    while (state := off.read(LTSSM)[0]) != L0:
        seen.append(state)
        off.world.waiter.idle(10_000_000)
    assert seen == sorted(seen) and set(seen) == {0x01, 0x10}
    assert off.read(0xE765) == b"\x02" and off.read(0x4092, bank=1) == b"\x23"


def test_without_a_card_there_is_no_link(make: Make) -> None:
    off = make(no_card=True)
    began = off.now_ns
    off.power()
    assert off.now_ns - began >= 2_000_000_000
    seen = set()
    for _ in range(20):
        seen.add(off.read(LTSSM)[0])
        off.world.waiter.idle(5_000_000)
    assert seen == {0, 1}


def test_perst_can_be_held_by_hand(bridge: Bridge) -> None:
    bridge.write(0xB480, 1)
    assert (bridge.read(LTSSM), bridge.read(0xB480)) == (b"\0", b"\x01")
    bridge.write(0xB480, 0)
    bridge.world.waiter.idle(200_000_000)
    assert bridge.read(LTSSM)[0] == L0
    assert bridge.config(0, 0x18) == 0  # forgotten


def test_power_has_two_values(off: Bridge) -> None:
    off.device.control_out(OUT, 0xF3, 2, 0)
    assert off.told("power-value")


def test_registers_and_memory_by_single_requests(bridge: Bridge) -> None:
    registers, vram = bridge.window(REGISTER_BAR), bridge.window(VRAM_BAR)
    scratch = 4 * bridge.card.chip.regs.address("MP0_SMN_C2PMSG_33")
    assert registers.read(scratch, 4) >> 31 == 1
    random.seed(3)
    for width in (1, 2, 4):
        for _ in range(20):
            offset = random.randrange(1 << 20) // width * width
            value = random.getrandbits(8 * width)
            vram.write(offset, width, value)
            assert vram.read(offset, width) == value
    vram.write(0x100, 4, 0x11223344)
    base = bridge.bars[VRAM_BAR][0]
    bridge.send(MEMORY_WRITE, base + 0x100, 0xAABBCCDD, enables=0b1001)
    assert vram.read(0x100, 4) == 0xAA2233DD
    assert bridge.ask(MEMORY_READ, base + 0x100, enables=0) == 0  # what flushes writes
    assert not bridge.violations


def test_byte_counts_of_completions(bridge: Bridge) -> None:
    base = bridge.bars[VRAM_BAR][0]
    for enables, count in ((0xF, 4), (0b0110, 2), (0b1000, 1), (0b1001, 4), (0, 1)):
        bridge.send(MEMORY_READ, base, enables=enables)
        assert bridge.completion()[4:8] == bytes((0, count, 1, 0))
    bridge.send(0x44, 0x18, 0, enables=1)
    assert bridge.completion()[4:8] == bytes((0, 4, 0, 0))


def test_nobody_claims_an_address(bridge: Bridge) -> None:
    vram = bridge.bars[VRAM_BAR][0]
    bridge.send(MEMORY_WRITE, vram, 0x5A5A)
    assert bridge.ask(MEMORY_READ, vram) == 0x5A5A
    bridge.send(MEMORY_READ, 0x1F000000)
    answer = bridge.completion()
    assert answer[7] == 0 and answer[4] >> 5 == UNSUPPORTED
    assert answer[:4] == (0x5A5A).to_bytes(4, "little")  # a stale word
    bridge.send(MEMORY_WRITE, 0x1F000000, 1)
    with pytest.raises(TlpError):
        bridge.ask(MEMORY_READ, 0x1F000000)
    assert bridge.told("posted-unclaimed")


def test_a_completion_is_of_something(bridge: Bridge) -> None:
    began = bridge.now_ns
    bridge.send(MEMORY_WRITE, bridge.bars[VRAM_BAR][0], 1)
    assert bridge.completion() == bytes(7) + b"\xff"
    assert bridge.now_ns - began > 400_000_000
    assert bridge.told("completion-of-nothing")


@pytest.mark.parametrize(
    ("rule", "form", "address", "enables"),
    [
        ("tlp-type", 0x30, 0, 0xF),
        ("tlp-type", 0x02, 0, 0xF),
        ("last-enables", MEMORY_READ, 0, 0x1F),
        ("tlp-alignment", MEMORY_READ, 2, 0xF),
        ("config-address", CONFIG_READ, 0x1000, 0xF),
        ("config-address", CONFIG_READ, 0x2, 0xF),
    ],
)
def test_requests_that_are_refused(
    bridge: Bridge, rule: str, form: int, address: int, enables: int
) -> None:
    bridge.send(form, address, enables=enables)
    assert bridge.told(rule)


def test_lengths_that_are_refused(bridge: Bridge) -> None:
    bridge.write(0xB213, 2)
    bridge.send(MEMORY_READ, bridge.bars[VRAM_BAR][0])
    assert bridge.told("tlp-length")


@pytest.mark.parametrize("mode", [3, 4, STREAM_WRITE | 4])
def test_modes_that_are_refused(bridge: Bridge, mode: int) -> None:
    bridge.send(MEMORY_WRITE, bridge.bars[VRAM_BAR][0], 1, mode=mode)
    bridge.device.control_out(OUT, 0xF0, MEMORY_READ | 0xF00, 0, bytes(8))
    assert bridge.told("tlp-request", "tlp-request")


def test_the_engine_by_its_registers(bridge: Bridge) -> None:
    """Both orders of the last two writes send a request once."""
    header = bytes((CONFIG_READ, 0, 0, 1, 0, 0, 0, 0xF, 0, 0, 0, 0))
    for last in ((0xB254, 0x0F), (0xB296, 4)), ((0xB296, 4), (0xB254, 0x0F)):
        for at, value in enumerate(header):
            bridge.write(0xB210 + at, value)
        bridge.write(0xB296, 3)
        for address, value in last:
            assert bridge.read(0xB296)[0] & 3 == 0
            bridge.write(address, value)
        assert bridge.read(0xB296) == b"\x02"
        assert bridge.read(0xB22A, 2) == b"\0\x04" and bridge.read(0xB284) == b"\x01"
        assert bridge.read(0xB220, 4) == bytes.fromhex("2461174c")
    assert not bridge.violations


def test_a_dead_link_is_told_once(bridge: Bridge) -> None:
    bridge.model.chip.link.fail()
    with pytest.raises(TlpError) as error:
        bridge.ask(CONFIG_READ, 0)
    assert error.value.returned == 1
    assert bridge.told("dead-link")
    for address, value in ((0xB296, 4), (0xB254, 0x0F), (0xB296, 4), (0xB254, 0x0F)):
        bridge.write(address, value)
    assert bridge.told("dead-link", "error-kept", "dead-link")


def test_a_dead_link_may_answer_nothing(make: Make) -> None:
    bridge = make(dead_link="wedge")
    bridge.start()
    bridge.model.chip.link.fail()
    with pytest.raises(TlpError) as error:
        bridge.ask(CONFIG_READ, 0)
    assert error.value.returned == 0xFF
    assert bridge.told("dead-link")
    assert bridge.read(0x100) == b"\0"  # a single request does not wedge


def test_posted_writes_arrive_later(bridge: Bridge) -> None:
    """A write has no completion: it is there once something else was asked for."""
    at, seen = bridge.bars[VRAM_BAR][0], set()
    for number in range(1, 20):
        bridge.send(MEMORY_WRITE, at, number)
        seen.add(bridge.card.chip.vram.read_word(0, 4) == number)
        assert bridge.ask(MEMORY_READ, at) == number
    assert seen == {False}
    bridge.send(MEMORY_WRITE, at, 1)
    bridge.model.chip.link.fail()
    for _ in range(32):  # by then, some request has let it go
        bridge.read(0)
    assert bridge.told("posted-lost")

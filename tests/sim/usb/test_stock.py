"""The stock firmware: SCSI commands by bulk-only transport."""

from __future__ import annotations

import random
import struct

import pytest

from gpu.core.errors import TransportError
from sim.usb.client import BULK_IN, BULK_OUT, CONFIG_READ, TlpError
from sim.usb.conftest import Make
from sim.usb.scsi import AGAIN, PREPARE, Scsi


@pytest.fixture
def scsi(make: Make) -> Scsi:
    bridge = make(firmware="stock", crs_ns=0)
    bridge.world.waiter.idle(100_000_000)
    return Scsi(bridge)


def recover(scsi: Scsi) -> None:
    """The transport's reset (5.3.4), after which both endpoints are cleared."""
    scsi.device.control_out(0x21, 0xFF, 0, 0)
    for endpoint in (BULK_IN, BULK_OUT):
        scsi.device.clear_halt(endpoint)


@pytest.mark.parametrize("speed", [480, 10000])
@pytest.mark.parametrize(("product", "bank"), [(0x2464, 0x50), (0x2362, 0)])
def test_xdata_by_commands(make: Make, speed: int, product: int, bank: int) -> None:
    scsi = Scsi(make(firmware="stock", speed=speed, product=product), bank)
    data = random.Random(speed).randbytes(255)
    scsi.write(0x1000, data)
    for size in (1, 64, 255):
        assert scsi.read(0x1000, size) == data[:size]
    assert scsi.read(0x7F0, 6) == bytes.fromhex("231204850000")
    other = struct.pack(">BBBHB", 0xE4, 1, 0x50 - bank, 0x1000, 0)
    scsi.command(other, 1)
    assert scsi.bridge.told("xdata-command")


def test_the_link_is_up_by_itself(scsi: Scsi) -> None:
    assert scsi.read(0xB450) == b"\x48"
    assert scsi.ask(CONFIG_READ, 0) == 0x2461174C
    scsi.ask(0x44, 0x18, 0x040100)
    assert scsi.ask(CONFIG_READ | 1, 1 << 24) == 0x2461174C
    with pytest.raises(TlpError) as error:
        scsi.ask(CONFIG_READ | 1, 9 << 24)
    assert error.value.status == 1
    assert not scsi.bridge.violations


def test_what_drives_answer(scsi: Scsi) -> None:
    assert scsi.command(bytes((0x12, 0, 0, 0, 36, 0)), 36)[8:12] == b"ASMT"
    assert scsi.device.control_in(0xA1, 0xFE, 0, 0, 1) == b"\0"
    scsi.command(bytes(6))
    scsi.send(bytes((0x28,)) + bytes(9), 512, True)
    with pytest.raises(TransportError):
        scsi.device.bulk_in(BULK_IN, 512)
    scsi.device.clear_halt(BULK_IN)
    assert scsi.status() == (512, 1)
    sense = scsi.command(bytes((3, 0, 0, 0, 18, 0)), 18)
    assert (sense[2], sense[12]) == (5, 0x20)
    assert not scsi.bridge.violations


def test_requests_that_it_does_not_have_stall(scsi: Scsi) -> None:
    for call in (
        lambda: scsi.device.control_in(0xC0, 0xE4, 0, 0, 1),
        lambda: scsi.device.control_out(0x40, 0xE5, 0, 0),
        lambda: scsi.device.control_in(0x80, 6, 9 << 8, 0, 1),
    ):
        with pytest.raises(TransportError, match="stalled"):
            call()
    assert scsi.read(0) == b"\0"


def test_writes_land_in_sram_once_it_is_prepared(scsi: Scsi) -> None:
    draw = random.Random(2)
    for at, value in PREPARE:
        scsi.write(at, value)
    for size in (512, 4096, 16 << 10, 64 << 10):
        data = draw.randbytes(size)
        scsi.write_sram(data)
        assert scsi.bridge.card.chip.bus is not None
        assert scsi.bridge.model.chip.sram.sram.load(0, size) == data
        assert scsi.read(0xF000, 255) == data[:255]
        for at, value in (*AGAIN, *([(0xCE40, bytes(4))] if size > 16 << 10 else [])):
            scsi.write(at, value)
    assert not scsi.bridge.violations


def test_writes_that_are_not_prepared(scsi: Scsi) -> None:
    block = struct.pack(">BBQIBB", 0x8A, 0, 0, 1, 0, 0)

    def refused() -> bool:
        scsi.send(block, 512, False)
        scsi.device.bulk_out(BULK_OUT, b"\x11" * 512)
        return scsi.status() == (0, 1) and scsi.bridge.told("write16-unprepared")

    assert refused()
    for at, value in PREPARE:
        scsi.write(at, value)
    scsi.write_sram(b"\x22" * 512)
    assert refused()  # what was done was not yet seen
    assert scsi.read(0xF000) == b"\x22"


def test_writes_that_go_nowhere(make: Make) -> None:
    scsi = Scsi(make(firmware="stock", write16_lands=False))
    for at, value in PREPARE:
        scsi.write(at, value)
    scsi.write_sram(b"\x22" * 512)
    assert scsi.read(0xF000) == b"\0"
    assert not scsi.bridge.violations


@pytest.mark.parametrize(("lba", "sectors"), [(1, 1), (0, 129), (0, 0)])
def test_places_of_writes(scsi: Scsi, lba: int, sectors: int) -> None:
    scsi.send(struct.pack(">BBQIBB", 0x8A, 0, lba, sectors, 0, 0), 512 * sectors, False)
    assert scsi.bridge.told("write16-place")


def test_data_of_writes_has_its_length(scsi: Scsi) -> None:
    scsi.send(struct.pack(">BBQIBB", 0x8A, 0, 0, 1, 0, 0), 512, False)
    scsi.device.bulk_out(BULK_OUT, bytes(513))
    assert scsi.bridge.told("bot-data", "write16-unprepared")


@pytest.mark.parametrize(
    "packet",
    [
        bytes(30),
        bytes(32),
        struct.pack("<IIIBBB16s", 0x53425355, 1, 0, 0, 0, 6, bytes(16)),
        struct.pack("<IIIBBB16s", 0x43425355, 1, 0, 1, 0, 6, bytes(16)),
        struct.pack("<IIIBBB16s", 0x43425355, 1, 0, 0, 1, 6, bytes(16)),
        struct.pack("<IIIBBB16s", 0x43425355, 1, 0, 0, 0, 0, bytes(16)),
        struct.pack("<IIIBBB16s", 0x43425355, 1, 0, 0, 0, 17, bytes(16)),
    ],
)
def test_commands_that_are_none(scsi: Scsi, packet: bytes) -> None:
    with pytest.raises(TransportError, match="stalled"):
        scsi.device.bulk_out(BULK_OUT, packet)
    assert scsi.bridge.told("cbw")
    scsi.device.clear_halt(BULK_OUT)
    with pytest.raises(TransportError, match="stalled"):
        scsi.read(0)  # until the transport is reset
    recover(scsi)
    assert scsi.read(0) == b"\0"


def test_statuses_are_read(scsi: Scsi) -> None:
    scsi.send(bytes(6), 0, False)
    with pytest.raises(TransportError, match="stalled"):
        scsi.send(bytes(6), 0, False)
    assert scsi.bridge.told("bot-phase")
    recover(scsi)
    scsi.command(bytes(6))


@pytest.mark.parametrize(("length", "to_host"), [(0, True), (3, True), (4, False)])
def test_lengths_agree_with_commands(scsi: Scsi, length: int, to_host: bool) -> None:
    scsi.send(struct.pack(">BBBHB", 0xE4, 4, 0x50, 0, 0), length, to_host)
    assert scsi.bridge.told("bot-length")
    assert scsi.status() == (length, 2)


def test_less_than_was_asked_for(scsi: Scsi) -> None:
    scsi.send(struct.pack(">BBBHB", 0xE4, 4, 0x50, 0, 0), 64, True)
    assert scsi.device.bulk_in(BULK_IN, 64) == bytes(4)
    assert scsi.status() == (60, 0)
    assert not scsi.bridge.violations


def test_sizes_of_reads(scsi: Scsi) -> None:
    scsi.send(struct.pack(">BBBHB", 0xE4, 0, 0x50, 0, 0), 0, True)
    assert scsi.status() == (0, 0)
    scsi.read(0xFFFF, 2)
    assert scsi.bridge.told("xdata-size", "xdata-size")


def test_nothing_of_flash_is_modelled(scsi: Scsi) -> None:
    scsi.send(bytes((0xE3,)) + bytes(5), 0, False)
    assert scsi.status() == (0, 1)
    assert scsi.bridge.told("flash-command")


def test_uas_is_not_modelled(scsi: Scsi) -> None:
    scsi.device.claim(0, 1)
    assert scsi.bridge.told("uas")


def test_perst_restarts_the_card(scsi: Scsi) -> None:
    scsi.ask(0x44, 0x18, 0x040100)
    scsi.write(0xB480, b"\1")
    assert scsi.read(0xB450) == b"\0"
    scsi.write(0xB480, b"\0")
    scsi.bridge.world.waiter.idle(100_000_000)
    assert scsi.ask(CONFIG_READ, 0x18) == 0
    assert not scsi.bridge.violations


def test_a_request_is_some_twenty_commands(scsi: Scsi) -> None:
    before, began = scsi.bridge.model.transfers.bulk, scsi.bridge.now_ns
    scsi.ask(CONFIG_READ, 0)
    commands = scsi.tag
    assert 8 <= commands <= 20
    assert scsi.bridge.model.transfers.bulk - before == 2 * commands + 3  # three of them read
    assert scsi.bridge.now_ns - began >= 100_000 * commands

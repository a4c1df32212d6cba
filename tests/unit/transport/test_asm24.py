"""A PCI function behind a bridge on USB: numbering, addresses, accesses, copies, and what fails."""

from __future__ import annotations

import errno
from collections.abc import Callable

import numpy as np
import pytest

from gpu.core.errors import (
    DeviceError,
    DeviceLost,
    HwTimeout,
    InvalidIndex,
    InvalidValue,
    TransportError,
    Unsupported,
)
from gpu.core.pci import Bar, PciAddress, PciIds
from gpu.core.wait import HostWaiter
from gpu.transport.asm24.find import list_bridges
from gpu.transport.asm24.function import UsbFunction, open_function, open_link
from gpu.transport.asm24.link import Link
from gpu.transport.asm24.scsi import BulkOnly
from gpu.transport.asm24.stock import StockBridge
from gpu.transport.asm24.tlp import CompletionError, Kind, Request, RequestFailed, Status
from gpu.transport.asm24.topology import Walk
from gpu.transport.pci.config import COMMAND, MASTER, MEMORY
from gpu.transport.usb import UsbId
from unit.transport.usb_fabric import (
    ABORT,
    MIB,
    UNSUPPORTED,
    Bus,
    Card,
    Fabric,
    Firmware,
    OpenFirmware,
    Port,
    Refused,
    Space,
    StockFirmware,
)

AMD = 0x1002
UPSTREAM, DOWNSTREAM = 5, 6
MEMORY_64, PREFETCHABLE_64, MEMORY_32, PORTS = 4, 12, 0, 1


def card() -> Card:
    """BARs as an RX 7900 XTX has them, memory resizable."""
    return Card(
        [
            (0, 256 * MIB, PREFETCHABLE_64, (256, 512, 8192, 32768)),
            (2, 2 * MIB, PREFETCHABLE_64, (2, 256)),
            (4, 256, PORTS, ()),
            (5, MIB, MEMORY_32, ()),
        ],
        header=0x80,
    )


def sound() -> Card:
    return Card([(0, 16384, MEMORY_32, ())], (AMD, 0xAB30))


def behind(levels: int, *functions: Space | None) -> Fabric:
    """The functions of a device behind so many bridges, every other one the port of a link."""
    here: list[Space | None] = list(functions)
    for level in reversed(range(levels)):
        here = [Port(DOWNSTREAM if level % 2 else UPSTREAM, here)]
    (root,) = here if levels else functions[:1]
    assert root is not None
    return Fabric(root)


def opened(firmware: Firmware) -> UsbFunction:
    return open_function(Bus(firmware), HostWaiter(), 0, AMD)


@pytest.fixture
def target() -> Card:
    return card()


@pytest.fixture
def firmware(target: Card) -> OpenFirmware:
    return OpenFirmware(behind(4, target, sound()))


@pytest.fixture
def function(firmware: OpenFirmware) -> UsbFunction:
    return opened(firmware)


KINDS: dict[str, Callable[[Fabric], Firmware]] = {"open": OpenFirmware, "stock": StockFirmware}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("levels", [0, 1, 2, 4, 5])
def test_a_card_is_found_however_deep_it_sits(kind: str, levels: int) -> None:
    target = card()
    function = opened(KINDS[kind](behind(levels, target, sound() if levels else None)))
    assert function.address == PciAddress(0, levels, 0, 0)
    assert function.ids == PciIds(AMD, 0x744C, 0x1EAE, 0x7901, 0x01, 0x030000)
    assert function.bars == {
        0: Bar(32 << 30, prefetchable=True),
        2: Bar(256 * MIB, prefetchable=True),
        5: Bar(MIB, is_64bit=False),
    }
    function.window(5).write(0x40, 4, 0xCAFE0000 + levels)
    assert target.memory[5][0x40:0x44] == (0xCAFE0000 + levels).to_bytes(4, "little")
    assert function.window(0).load(4090, 3) == bytes(3)
    function.close()


def test_bus_numbers_are_written_at_once_and_end_where_the_buses_end(function: UsbFunction) -> None:
    fabric = function._link.bridge.device.fabric  # type: ignore[attr-defined]
    for bus, _ in enumerate(function._found.path):
        space = fabric._device(bus, 0, 0)
        assert bytes(space.data[0x18:0x1B]) == bytes((bus, bus + 1, 4))
        assert {size for at, size, _ in space.writes if at in range(0x18, 0x1B)} == {4}


@pytest.mark.parametrize("slot", [0, 3, 31])
def test_behind_a_switch_any_device_leads_on(slot: int) -> None:
    ports: list[Space | None] = [None] * (32 * 8)
    ports[8 * slot] = Port(DOWNSTREAM, [card()])
    function = opened(OpenFirmware(Fabric(Port(UPSTREAM, ports))))
    assert function.address == PciAddress(0, 2, 0, 0)
    assert function._found.path[1] == PciAddress(0, 1, slot, 0)


def test_functions_of_a_device_need_not_follow_each_other(firmware: OpenFirmware) -> None:
    firmware.fabric = behind(2, card(), None, sound())
    found = Walk(open_link(Bus(firmware), HostWaiter(), 0)).found
    assert [(each.address.function, each.ids.device) for each in found] == [
        *((0, 0x744C), (2, 0xAB30)),
    ]


def test_windows_lead_to_the_bars_and_nowhere_else(function: UsbFunction, target: Card) -> None:
    assert target.start(0) == 32 << 30 and target.start(2) == 64 << 30
    assert target.start(5) == 0x1000_0000
    link = function._link
    for outside in (0x1000_0000 - 4, 0x1010_0000, (32 << 30) - 4, (64 << 30) + 256 * MIB):
        with pytest.raises(CompletionError) as caught:
            link.read(outside, 4)
        assert caught.value.status is Status.UNSUPPORTED_REQUEST


@pytest.mark.parametrize(
    "bars",
    [
        [(5, MIB, MEMORY_32, ())],
        [(0, 4 * MIB, PREFETCHABLE_64, ())],
        [(0, 4 * MIB, MEMORY_64, ()), (3, 8 * MIB, MEMORY_32 | 8, ())],
        [(1, 4096, MEMORY_32, ()), (2, 16 << 30, PREFETCHABLE_64, ()), (4, 8 << 30, 12, ())],
    ],
)
def test_bars_of_other_cards_get_places_that_do_not_overlap(
    bars: list[tuple[int, int, int, tuple[int, ...]]],
) -> None:
    target = Card(bars)
    function = opened(OpenFirmware(behind(3, target)))
    assert {number: bar.size for number, bar in function.bars.items()} == {
        number: size for number, size, _, _ in bars
    }
    for number, bar in function.bars.items():
        assert target.start(number) % bar.size == 0
        assert target.start(number) + bar.size <= 1 << (
            44 if bar.prefetchable and bar.is_64bit else 32
        )
        target.accesses.clear()
        function.window(number).read(bar.size - 4, 4)
        assert target.accesses == [("read", number, bar.size - 4)]


def test_a_bridge_for_32_bits_is_refused() -> None:
    with pytest.raises(Unsupported, match="32 bits"):
        opened(OpenFirmware(Fabric(Port(DOWNSTREAM, [card()], has_64bit=False))))


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_accesses_of_every_width(kind: str, width: int, target: Card) -> None:
    registers = opened(KINDS[kind](behind(2, target))).window(5)
    value = int.from_bytes(bytes(range(0xA1, 0xA1 + width)), "little")
    for at in range(0, 16, width):
        target.memory[5][:16] = bytes(range(16))
        registers.write(at, width, value)
        expected = bytearray(range(16))
        expected[at : at + width] = value.to_bytes(width, "little")
        assert target.memory[5][:16] == expected
        assert registers.read(at, width) == value
    with pytest.raises(InvalidIndex):
        registers.read(registers.size, width)
    with pytest.raises(InvalidValue):
        registers.write(0, width, 1 << 8 * width)
    if width > 1:
        with pytest.raises(InvalidValue):
            registers.read(1, width)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_copies_of_any_bytes(kind: str, seed: int, target: Card) -> None:
    window = opened(KINDS[kind](behind(2, target))).window(0)
    random = np.random.default_rng(seed)
    most = 64 if kind == "stock" else 4096
    for _ in range(6):
        start = int(random.integers(0, 4096 - 1))
        data = random.bytes(int(random.integers(0, min(most, 4096 - start))))
        expected = bytearray(random.bytes(4096))
        target.memory[0][:] = expected
        window.store(start, data)
        expected[start : start + len(data)] = data
        assert target.memory[0] == expected
        assert window.load(start, len(data)) == data
        assert window.sub(start - start % 8, 512).load(start % 8, 3) == expected[
            start : start + 3
        ] or (start + 3 > 4096)


def test_long_copies_are_streams_between_reads(
    function: UsbFunction, firmware: OpenFirmware, target: Card
) -> None:
    window = function.window(0)
    firmware.transfers.clear()
    target.accesses.clear()
    window.store(0, bytes(8192))
    first, *_, last = target.accesses
    assert first == ("read", 0, 0), "whether the BAR is decoded is seen before"
    assert last == ("read", 0, 8188), "and after that the card still answers"
    assert len(firmware.transfers) == 2 + 2 + 2
    target.accesses.clear()
    for _ in range(40):
        window.store(0, bytes(64))
    reads = [number for number, (kind, *_) in enumerate(target.accesses) if kind == "read"]
    assert len(reads) == 2, "short ones leave it to a later read, some in a row at most"
    firmware.transfers.clear()
    window.load(0, 200 << 10)
    assert len(firmware.transfers) == 4 * (2 + 2), "64 KiB at a time"
    function.config.write(COMMAND, 2, MEMORY | MASTER)
    firmware.transfers.clear()
    window.load(0, 4096)
    assert len(firmware.transfers) == 2 + 2 + 2, "the command register may have ended it"


def test_registers_are_never_streamed(function: UsbFunction, firmware: OpenFirmware) -> None:
    function.window(5).store(0, bytes(256))
    function.window(5).load(0, 256)
    assert not {"bulk in", "bulk out"} & set(firmware.transfers)


def test_memory_that_is_not_decoded_is_never_streamed(
    function: UsbFunction, firmware: OpenFirmware
) -> None:
    function.config.write(COMMAND, 2, MASTER)
    for copy in (
        lambda: function.window(0).load(0, 4096),
        lambda: function.window(0).store(0, bytes(64)),
    ):
        with pytest.raises(CompletionError):
            copy()
    assert not {"bulk in", "bulk out"} & set(firmware.transfers)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("status", [1, 2, 3, 4, 5, 6, 7])
def test_every_completion_status_is_typed(
    kind: str, status: int, target: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = KINDS[kind](behind(1, target))
    function = opened(device)

    def refuse(*request: int) -> int:
        raise Refused(status)

    monkeypatch.setattr(device.fabric, "request", refuse)
    with pytest.raises(CompletionError) as caught:
        function.window(5).read(0, 4)
    assert caught.value.status == status and caught.value.errno == errno.EIO
    assert caught.value.request == Request(Kind.MEMORY_READ, target.start(5))
    known = {1: "Unsupported Request", 2: "Retry", 4: "Completer Abort"}
    assert known.get(status, f"reserved status {status}") in caught.value.message


def test_a_card_that_still_starts_is_waited_for(firmware: OpenFirmware) -> None:
    firmware.fabric.retries = 7
    assert opened(firmware).ids.device == 0x744C and not firmware.fabric.retries
    firmware.fabric.retries = 5_000
    with pytest.raises(DeviceError, match="nothing"):
        opened(OpenFirmware(firmware.fabric))


def test_requests_that_fail_are_tried_again(function: UsbFunction, firmware: OpenFirmware) -> None:
    firmware.results = [1] * 9
    assert function.window(5).read(0, 4) == 0
    firmware.results = [1] * 10
    with pytest.raises(RequestFailed, match="tried 10 times"):
        function.window(5).read(0, 4)
    firmware.results = [0xFF]
    with pytest.raises(RequestFailed, match="nobody answers"):
        function.window(5).read(0, 4)
    firmware.results = [0x33]
    with pytest.raises(TransportError, match="result is 0x33"):
        function.window(5).read(0, 4)
    assert function.window(5).read(0, 4) == 0


def test_each_who_opens_it_finds_a_card_after_power_on(firmware: OpenFirmware) -> None:
    opened(firmware)
    assert firmware.transfers.count("out 0xf3") == 1
    opened(firmware)
    assert firmware.transfers.count("out 0xf3") == 2


def test_an_enclosure_without_a_card(firmware: OpenFirmware) -> None:
    firmware.has_card = False
    with pytest.raises(DeviceLost, match="is a card in it"):
        opened(firmware)
    assert firmware.closed


def test_what_is_behind_is_named_where_it_is_no_gpu() -> None:
    disk = OpenFirmware(behind(2, Card([(0, 16384, MEMORY_64, ())], (0x144D, 0xA808))))
    with pytest.raises(DeviceError, match="vendor 1002 is behind it: 144d:a808"):
        opened(disk)
    assert disk.closed


def test_a_link_that_dies(function: UsbFunction, firmware: OpenFirmware) -> None:
    function.check()
    firmware.state = 0x01
    for act in (
        function.check,
        lambda: function.window(5).read(0, 4),
        lambda: function.config.read(0, 4),
    ):
        with pytest.raises(DeviceLost, match="link is down"):
            act()
    firmware.state = firmware.up
    with pytest.raises(DeviceLost):
        function.check()  # who came back is another card
    function.close()
    assert firmware.closed


def test_a_stream_on_a_dead_link_is_told(function: UsbFunction, firmware: OpenFirmware) -> None:
    window = function.window(0)
    window.load(0, 64)
    firmware.state = 0
    with pytest.raises(DeviceLost, match="take its power away"):
        window.load(0, 64)
    with pytest.raises(DeviceLost, match="take its power away"):
        function.window(5).read(0, 4)
    function.close()


@pytest.mark.parametrize("kind", KINDS)
def test_unplugged_at_any_request(kind: str) -> None:
    def run(device: Firmware) -> int:
        function = opened(device)
        try:
            function.set_bus_master(True)
            function.window(0).store(0, bytes(32))
            function.window(5).read(0, 4)
            return len(device.transfers)
        finally:
            function.close()

    count = run(KINDS[kind](behind(1, card())))
    for last in range(1, count, 5 if kind == "open" else 127):
        device = KINDS[kind](behind(1, card()))

        def unplug(number: int, last: int = last) -> None:
            if number >= last:
                raise DeviceLost("it was unplugged")

        device.before = unplug
        with pytest.raises(DeviceLost):
            run(device)
        assert device.closed


def test_bus_mastering_and_config_space(function: UsbFunction, target: Card) -> None:
    assert not target.data[COMMAND] & MASTER and target.data[COMMAND] & MEMORY
    function.set_bus_master(True)
    assert target.data[COMMAND] & MASTER
    assert function.config.size == 4096 and function.config.read(0x200, 2) == 0x15
    with pytest.raises(Unsupported, match="BARs"):
        function.config.write(0x10, 4, 0)
    function.close()
    function.close()
    assert not target.data[COMMAND] & MASTER
    with pytest.raises(TransportError) as caught:
        function.window(0)
    assert caught.value.errno == errno.EBADF


def test_bars_can_be_resized(function: UsbFunction, target: Card) -> None:
    function.resize(0, 512 * MIB)
    assert function.bars[0].size == 512 * MIB == target.sizes[0]
    function.window(0).write(512 * MIB - 4, 4, 7)
    with pytest.raises(Unsupported, match="not one of its sizes"):
        function.resize(0, 1024 * MIB)
    assert function.bars[0].size == 512 * MIB and function.window(0).read(0, 4) == 0
    with pytest.raises(Unsupported, match="one size only"):
        function.resize(5, MIB)
    with pytest.raises(InvalidValue):
        function.resize(0, 3 * MIB)
    with pytest.raises(InvalidIndex, match="no BAR 1, but 0, 2, 5"):
        function.resize(1, MIB)


def test_a_reset_that_the_card_did_by_itself_is_made_good(
    function: UsbFunction, target: Card
) -> None:
    function.resize(0, 512 * MIB)
    starts = {number: target.start(number) for number in (0, 2, 5)}
    target.write(COMMAND, bytes(2))
    target.write(0x208, (8 << 8 | 2 << 5).to_bytes(4, "little"))
    for at in range(0x10, 0x28, 4):
        target.write(at, bytes(4))
    with pytest.raises(CompletionError):
        function.window(5).read(0, 4)
    function.set_bus_master(True)
    assert {number: target.start(number) for number in starts} == starts
    assert target.sizes[0] == 512 * MIB and target.data[COMMAND] & 7 == MASTER | MEMORY
    function.window(0).write(512 * MIB - 4, 4, 1)


def test_what_usb_has_not_is_unsupported(function: UsbFunction) -> None:
    for act in (
        lambda: function.map(0, 0, 4096),
        lambda: function.allocate(4096),
        lambda: function.share(0x1000, 4096),
        lambda: function.interrupts(1),
        function.reset,
    ):
        with pytest.raises(Unsupported):
            act()


def test_bridges_are_known_by_their_ids() -> None:
    ids = [
        (0xADD1, 1),
        (0x3801, 1),
        (0x174C, 0x2362),
        (0x174C, 0x2464),
        (0x174C, 0x55AA),
        (0x1D6B, 3),
    ]
    fabric = behind(0, card())
    devices = [OpenFirmware(fabric, UsbId(*each, f"1-{i}")) for i, each in enumerate(ids)]
    assert [device.port for device in list_bridges(Bus(*devices))] == ["1-0", "1-1", "1-2", "1-3"]
    with pytest.raises(InvalidIndex, match="add1:0001 at 1-0"):
        open_link(Bus(devices[0]), HostWaiter(), 1)
    with pytest.raises(DeviceError, match="DEV=PCI"):
        open_link(Bus(devices[5]), HostWaiter(), 0)


def test_usb_2_has_smaller_packets() -> None:
    device = OpenFirmware(behind(0, card()))
    device.speed = 480
    link = open_link(Bus(device), HostWaiter(), 0)
    assert link.bridge.read(0x20, 200) == bytes(range(0x20, 0x20 + 200))


def test_older_stock_bridges_have_another_bank() -> None:
    fabric = behind(1, card())
    device = StockFirmware(fabric, UsbId(0x174C, 0x2362, "1-1"), bank=0x00)
    assert opened(device).ids.vendor == AMD


def test_stock_firmware_that_answers_something_else(target: Card) -> None:
    device = StockFirmware(behind(1, target))
    function = opened(device)
    resets = device.resets

    def confuse(number: int) -> None:
        if device.transfers[-1] == "bulk in" and len(device.replies) == 1:
            device.replies[0] = b"USBS" + bytes(9)

    device.before = confuse
    with pytest.raises(TransportError, match="an answer to something else"):
        function.window(5).write(0, 4, 1)
    assert device.resets == resets + 1
    device.before = lambda number: None
    function.window(5).write(0, 4, 1)
    assert target.memory[5][0] == 1


def test_what_a_failed_command_may_have_written_is_written_again(target: Card) -> None:
    device = StockFirmware(behind(1, target))
    registers = opened(device).window(5)
    registers.write(0, 4, 1)

    def fail(number: int) -> None:
        if device.transfers[-1] == "bulk in":
            device.before = lambda number: None
            raise HwTimeout("a status", None, "an answer", 1.0)

    device.before = fail
    with pytest.raises(HwTimeout):
        registers.write(4, 4, 1)
    target.memory[5][0] = 0
    registers.write(0, 4, 1)
    assert bytes(target.memory[5][:8]) == (1).to_bytes(8, "little")


@pytest.mark.parametrize("size", [0, 8])
def test_scsi_commands_that_fail_are_told(size: int, target: Card) -> None:
    device = StockFirmware(behind(1, target))
    scsi = BulkOnly(device)
    with pytest.raises(TransportError, match=r"SCSI command e6 .*: status 1") as caught:
        scsi.run(bytes((0xE6, size, 0x50, 0, 0, 0)), size)
    assert caught.value.errno == errno.EIO
    assert device.transfers.count("clear halt") == 2 + bool(size)
    assert scsi.run(bytes((0xE4, 4, 0x50, 0xB4, 0x50, 0)), 4)[0] == device.up


def test_stock_firmware_neither_powers_nor_streams(target: Card) -> None:
    device = StockFirmware(behind(1, target))
    device.state = 0
    with pytest.raises(DeviceLost, match="is a card in it"):
        opened(device)
    with pytest.raises(Unsupported, match="powers the card by itself"):
        StockBridge(StockFirmware(behind(1, target))).set_power(True)
    bridge = StockBridge(StockFirmware(behind(1, target)))
    with pytest.raises(Unsupported):
        bridge.stream_in(0, 64)
    with pytest.raises(Unsupported):
        bridge.stream_out(0, bytes(64))
    late = StockFirmware(behind(1, target))
    link = Link(StockBridge(late), HostWaiter())
    late.fabric.request = lambda *request: (_ for _ in ()).throw(Refused(ABORT))  # type: ignore[method-assign]
    with pytest.raises(CompletionError, match="Completer Abort"):
        link.read(0x1000_0000, 4)


def test_a_wedged_bridge_times_out(function: UsbFunction, firmware: OpenFirmware) -> None:
    firmware.stuck = True
    with pytest.raises(HwTimeout):
        function.window(5).read(0, 4)
    assert UNSUPPORTED == Status.UNSUPPORTED_REQUEST

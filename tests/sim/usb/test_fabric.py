"""PCI Express behind the bridge: routing, bus numbers, windows, BARs, resets."""

from __future__ import annotations

import pytest

from gpu.sim.amd.pci.boards import BOARDS
from sim.usb.client import (
    COMPLETION_AT,
    CONFIG_READ,
    GPU_BUS,
    MEMORY_READ,
    PORTS,
    REGISTER_BAR,
    RETRY,
    SRAM_AT,
    UNSUPPORTED,
    VRAM_BAR,
    Bridge,
    TlpError,
)
from sim.usb.conftest import Make


@pytest.mark.parametrize("chip", BOARDS)
def test_from_power_on_to_bars(make: Make, chip: str) -> None:
    bridge = make(chip=chip)
    bridge.start()
    board = BOARDS[chip]
    assert bridge.config(GPU_BUS, 0) == board.ids.device << 16 | 0x1002
    assert {index: size for index, (_, size) in bridge.bars.items()} == {
        index: bar.bar.size for index, bar in bridge.card.bars.items()
    }
    base, size = bridge.bars[VRAM_BAR][0], bridge.card.chip.vram.size
    bridge.write_memory(base + size - 8, b"the end!")
    assert bridge.read_memory(base + size - 8, 8) == b"the end!"
    assert not bridge.violations


def test_who_is_there(bridge: Bridge) -> None:
    found = [bridge.config(bus, 0) for bus in range(GPU_BUS + 1)]
    assert found[:PORTS] == [0x2461174C, 0x2461174C, 0x14781002, 0x14791002]
    assert bridge.function_config(GPU_BUS, 1, 0) == 0xAB301002
    assert [bridge.config(bus, 0x0E, width=1) for bus in range(GPU_BUS + 1)] == [1, 1, 1, 1, 0x80]
    for device in range(32):
        assert bridge.ask(CONFIG_READ, device << 19) == 0x2461174C  # bus 0 does not look
    for address in (1 << 24 | 1 << 19, 1 << 24 | 1 << 16, GPU_BUS << 24 | 2 << 16, 5 << 24):
        with pytest.raises(TlpError) as error:
            bridge.ask(CONFIG_READ | 1, address)
        assert error.value.status == UNSUPPORTED
    assert not bridge.violations


def test_capabilities_are_a_list(bridge: Bridge) -> None:
    for bus in range(GPU_BUS + 1):
        at, seen = bridge.config(bus, 0x34, width=1), []
        while at:
            head = bridge.config(bus, at)
            seen.append(head & 0xFF)
            at = head >> 8 & 0xFF
        assert seen == [0x10, 5] if bus == GPU_BUS else seen == [0x10]
    at, seen = 0x100, []
    while at:
        head = bridge.config(GPU_BUS, at)
        seen.append(head & 0xFFFF)
        at = head >> 20
    assert seen == [0x0B, 0x15]


def test_buses_lead_on_where_numbers_say(make: Make) -> None:
    bridge = make()
    bridge.power()
    bridge.config(0, 0x18, 0x040100)
    assert bridge.config(1, 0) == 0x2461174C
    with pytest.raises(TlpError) as error:
        bridge.config(2, 0)
    assert error.value.status == UNSUPPORTED
    assert not bridge.violations


def test_types_of_config_requests(bridge: Bridge) -> None:
    for form, bus in ((CONFIG_READ, 1), (CONFIG_READ | 1, 0)):
        with pytest.raises(TlpError):
            bridge.ask(form, bus << 24)
        assert bridge.told("config-type")


def test_the_card_puts_requests_off_for_a_while(make: Make) -> None:
    bridge = make(crs_ns=900_000_000)
    bridge.power()
    for bus in (0, 1):
        bridge.config(bus, 0x18, bus | bus + 1 << 8 | GPU_BUS << 16)
    with pytest.raises(TlpError) as error:
        bridge.config(2, 0)
    assert error.value.status == RETRY
    bridge.world.waiter.idle(700_000_000)
    assert bridge.config(2, 0) == 0x14781002
    assert not bridge.violations


def test_memory_needs_windows_and_decoding(bridge: Bridge) -> None:
    at = bridge.bars[REGISTER_BAR][0]
    bridge.ask(MEMORY_READ, at)
    for bus in range(GPU_BUS + 1):
        bridge.config(bus, 4, 4, 2)
        with pytest.raises(TlpError):
            bridge.ask(MEMORY_READ, at)
        bridge.config(bus, 4, 6, 2)
    bridge.config(2, 0x20, 0xFFF0)  # a window that is empty
    with pytest.raises(TlpError):
        bridge.ask(MEMORY_READ, at)
    assert not bridge.violations


def test_bars_lie_side_by_side(bridge: Bridge) -> None:
    bridge.config(GPU_BUS, 4, 0, 2)
    bridge.config(GPU_BUS, 0x18, bridge.bars[VRAM_BAR][0] & 0xFFFFFFFF)
    bridge.config(GPU_BUS, 0x1C, bridge.bars[VRAM_BAR][0] >> 32)
    bridge.config(GPU_BUS, 4, 6, 2)
    bridge.ask(MEMORY_READ, bridge.bars[VRAM_BAR][0])
    assert bridge.told("bar-overlap")


def test_bars_change_while_nothing_is_decoded(bridge: Bridge) -> None:
    bridge.config(GPU_BUS, 0x24, bridge.bars[REGISTER_BAR][0])  # the same
    assert not bridge.violations
    bridge.config(GPU_BUS, 0x24, 0xFFFFFFFF)
    assert bridge.told("bar-while-decoding")


def test_resizing(make: Make) -> None:
    bridge = make()
    bridge.start(resize=False)
    assert bridge.bars[VRAM_BAR][1] == 256 << 20
    base = bridge.bars[VRAM_BAR][0]
    with pytest.raises(TlpError):
        bridge.ask(MEMORY_READ, base + (1 << 30))
    bridge.config(GPU_BUS, 0x208, 9 << 8)
    assert bridge.told("rebar-while-decoding")
    bridge.config(GPU_BUS, 4, 0, 2)
    bridge.config(GPU_BUS, 0x208, 3 << 8)
    assert bridge.told("rebar-size")
    bridge.config(GPU_BUS, 0x208, 9 << 8)
    bridge.place()
    assert bridge.bars[VRAM_BAR][1] == 512 << 20


def test_a_power_cycle_forgets_all(bridge: Bridge) -> None:
    vram = bridge.bars[VRAM_BAR][0]
    bridge.write_memory(vram, b"gone")
    bridge.power(False)
    assert bridge.read(0xB450) == b"\0"
    bridge.bars.clear()
    bridge.start()
    assert bridge.read_memory(vram, 4) == bytes(4)
    bridge.power()  # on again, without having been off
    assert bridge.config(0, 0x18) == 0
    assert not bridge.violations


def test_a_reset_of_a_bus(bridge: Bridge) -> None:
    bridge.config(3, 0x3E, 0x40, 2)
    with pytest.raises(TlpError) as error:
        bridge.config(GPU_BUS, 0)
    assert error.value.status == UNSUPPORTED
    bridge.config(3, 0x3E, 0, 2)
    with pytest.raises(TlpError) as error:
        bridge.config(GPU_BUS, 0)
    assert error.value.status == RETRY
    bridge.world.waiter.idle(100_000_000)
    assert bridge.config(GPU_BUS, 0x10) == 0xC  # forgotten
    assert bridge.config(3, 0x18) == 0x040403  # above the bus nothing is
    assert not bridge.violations


def test_dma_reaches_the_bridges_memory(bridge: Bridge) -> None:
    for address, xdata in (
        (SRAM_AT, 0xF000),
        (0x820000, 0xA000),
        (0x820800, 0xA800),
        (0x800000, 0xB000),
        (0x822010, 0xB810),
    ):
        data = address.to_bytes(4, "little")
        bridge.dma(address, data)
        assert bridge.read(xdata, 4) == data
        assert bridge.card.chip.bus.load(address, 4) == data
    bridge.write(0xA004, 0x77)
    assert bridge.card.chip.bus.load(0x820004, 1) == b"\x77"
    assert not bridge.violations and not bridge.world.debug.faults
    bridge.dma(SRAM_AT + (512 << 10), b"more")
    assert bridge.card.chip.bus.load(0x1_0000_0000, 4) == b"\xff" * 4
    assert len(bridge.world.debug.faults) == 2


def test_dma_needs_bus_masters(bridge: Bridge) -> None:
    for bus in range(PORTS):
        bridge.config(bus, 4, 2, 2)
        bridge.dma(SRAM_AT, b"data")
        assert bridge.told("port-master")
        bridge.config(bus, 4, 6, 2)
    bridge.config(GPU_BUS, 4, 2, 2)
    bridge.dma(SRAM_AT, b"data")
    assert "while it is no bus master" in bridge.violations[0]
    assert bridge.read(0xF000, 4) == bytes(4)


def test_dma_does_not_turn_round(bridge: Bridge) -> None:
    bridge.dma(bridge.bars[REGISTER_BAR][0], b"data")
    assert bridge.told("dma-window")


def test_dma_needs_a_link(bridge: Bridge) -> None:
    bridge.model.chip.link.fail()
    bridge.dma(SRAM_AT, b"data")
    assert bridge.read(0xF000, 4) == bytes(4)
    assert "while the link is down" in bridge.world.debug.faults[0]


def test_messages_are_writes(bridge: Bridge) -> None:
    for offset, value in ((0x44, 0x820100), (0x48, 0), (0x4C, 0x55)):
        bridge.config(GPU_BUS, offset, value)
    bridge.config(GPU_BUS, 0x42, 1, 2)
    bridge.card.chip.bus.interrupt()
    assert bridge.read(0xA100, 4) == b"\x55\0\0\0"
    assert not bridge.violations


def test_completions_are_for_armed_transfers(bridge: Bridge) -> None:
    bridge.dma(COMPLETION_AT, bytes(4))
    assert bridge.told("trigger-unarmed")
    bridge.arm(512, to_host=True)
    for _ in range(2):
        bridge.dma(COMPLETION_AT, bytes(4))
    assert bridge.told("trigger-twice")

"""Registers, BARs and the bus: what an access may be, and when."""

from __future__ import annotations

import pytest

from gpu.core.errors import TransportError
from gpu.sim.nv.pci.boards import BOARDS
from sim.nv_pci.client import (
    AT,
    CPUCTL,
    EMEMC,
    HWCFG2,
    MIB,
    PAGE,
    STATUS,
    WPR2_HI,
    Client,
)

ONES = 0xFFFFFFFF
ADDED = {"NV_PMC_BOOT_0": 0, "NV_PMC_BOOT_42": 0xA00, "VRAM": 0x1183A4}


def test_who_it_is(client: Client) -> None:
    board = BOARDS[client.chip]
    assert client.read(0) == board.boot_0 and client.read(0xA00) == board.boot_42
    assert client.read(0x1183A4) == board.chip.vram_size >> 20
    assert client.read(0xA00) >> 20 & 0x3FF == board.boot_0 >> 20
    assert client.function.ids == board.ids
    for offset in (0, 4, 0x2C):
        assert client.read(0x92000 + offset) == client.function.config.read(offset, 4)
    assert not client.violations


@pytest.mark.parametrize(
    "offset,width", [(0, 1), (0, 2), (0xA00, 8)], ids=["byte", "half", "double"]
)
def test_registers_have_four_bytes(client: Client, offset: int, width: int) -> None:
    window = client.card.bars[0].window
    assert window.read(offset, width) == (1 << 8 * width) - 1
    assert client.told(f"a read of {width} bytes at {offset:#x}", "registers have 4")
    window.write(offset, width, 0)
    assert client.told(f"a write of {width} bytes")


def test_unknown_registers(client: Client) -> None:
    assert client.read(0x12344) == ONES
    assert client.told("a read of register 0x12344, which the model does not have")
    client.write(0x12344, 1)
    assert client.told("a write of register 0x12344")


def test_unknown_registers_are_noted_for_drivers_of_others() -> None:
    other = Client("gh100", lenient=True)
    assert other.read(0x101000) == ONES and not other.violations
    assert any("0x101000" in record.what for record in other.world.debug.records)
    other.close()


@pytest.mark.parametrize("offset", [0, 0xA00, 0x1183A4, WPR2_HI, 0x92004, 0x8F0334])
def test_read_only_registers(client: Client, offset: int) -> None:
    before = client.read(offset)
    client.write(offset, before ^ 1)
    assert client.told("which is read-only") and client.read(offset) == before


def test_fsps_status_is_read_only(client: Client) -> None:
    client.write(STATUS[client.chip], 0xFF)
    assert client.told("NV_THERM_I2CS_SCRATCH", "read-only")


def test_memory_is_not_decoded(client: Client) -> None:
    function = client.world.pci.functions[AT]
    function.config.allow(memory=False)
    assert client.read(0) == ONES
    assert client.told("while it decodes no memory")


def test_nothing_is_asked_within_100_ms_of_a_reset(client: Client) -> None:
    client.card.reset()
    client.pass_ms(99)
    assert client.read(0) == ONES
    assert client.told("a read of BAR 0 at 0x0 within 100 ms of a function level reset")
    client.write(EMEMC, 0)
    assert client.told("a write to BAR 0", "within 100 ms")
    client.pass_ms(1)
    assert client.read(0) != ONES and not client.violations


def test_the_kernel_waits_for_a_reset(client: Client) -> None:
    client.function.reset()
    assert client.read(0) != ONES and not client.violations


def test_gsp_is_fsps_until_it_is_booted(client: Client) -> None:
    for offset in (HWCFG2, CPUCTL, 0x110040, 0x111668):
        assert client.read(offset) == 0xBADF4100
    client.write(0x110040, 0)
    assert client.told("NV_PGSP_FALCON_MAILBOX0, which is locked")


def test_bar_1_is_video_memory(client: Client) -> None:
    frame = client.function.window(1)
    frame.store(MIB, b"0123456789ab")
    assert client.card.chip.vram.load(MIB, 12) == b"0123456789ab"
    assert frame.load(MIB + 2, 8) == b"23456789"
    assert not client.violations


def test_bar_1_ends_with_video_memory(client: Client) -> None:
    window, size = client.card.bars[1].window, client.card.chip.vram.size
    if window.size > size:
        assert window.read(size, 4) == ONES
        assert client.told("a read of BAR 1", "beyond video memory")


def test_what_is_mapped_is_there(client: Client) -> None:
    """Of BAR 1 video memory, of BAR 0 the page with the doorbell."""
    size = client.card.chip.vram.size
    if client.card.bars[1].window.size > size:
        with pytest.raises(TransportError):
            client.function.map(1, size, PAGE)
    with pytest.raises(TransportError):
        client.function.map(0, 0xBA0000, PAGE)


@pytest.mark.parametrize(
    "value,why",
    [(3, "without TRIGGER"), (1 << 31, "some addresses"), (1 << 31 | 1 << 2 | 3, "not modelled")],
)
def test_invalidations_that_do_nothing(client: Client, value: int, why: str) -> None:
    client.write(0xB830B0, value)
    assert client.told("MMU_INVALIDATE", why)


def test_one_invalidation_at_a_time(client: Client) -> None:
    client.write(0xB830B0, 1 << 31 | 3)
    client.write(0xB830B0, 1 << 31 | 3)
    assert client.told("MMU_INVALIDATE", "the one before is not done")


def test_bar_2_needs_a_page_table(client: Client) -> None:
    window = client.function.window(3)
    assert window.read(0, 4) == ONES
    assert client.told("a read of BAR 2", "no page table")
    window.write(0, 4, 1)
    assert client.told("a write of BAR 2", "no page table")


def test_wpr2_is_gsps(booted: Client) -> None:
    frame, wpr2 = booted.function.window(1), booted.card.chip.wpr2
    before = booted.card.chip.vram.load(wpr2.start, 4)
    frame.write(wpr2.start, 4, 0x12345678)
    assert booted.told("a write of BAR 1", "which WPR2 protects")
    assert booted.card.chip.vram.load(wpr2.start, 4) == before
    assert frame.read(wpr2.stop - 4, 4) == ONES
    assert booted.told("a read of BAR 1", "which WPR2 protects")
    frame.write(wpr2.start - PAGE, 4, 1)
    frame.write(wpr2.stop, 4, 1)
    assert not booted.violations

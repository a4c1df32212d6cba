"""Ampere and Ada: what FWSEC, the scrubber and booter must leave behind; else it is refused."""

from __future__ import annotations

import random
import struct

import pytest

from gpu.autogen.nv import gsp
from gpu.core.errors import Unsupported
from gpu.drivers.boot import BootError, BootTimeout
from gpu.drivers.nv.pci.boot import BootCard
from gpu.drivers.nv.pci.booter import FalconWay
from gpu.drivers.nv.pci.chips import AD10X, GA10X, Chip
from gpu.drivers.nv.pci.layout import Reserved
from unit.nv_pci import made
from unit.nv_pci.test_vbios import MAPPER, rom

GSP, SEC2, CPUCTL, MAILBOX0 = 0x110000, 0x840000, 0x100, 0x40
WPR2_LO, WPR2_HI, SCRUBBER = 0x1FA824, 0x1FA828, 0x1180FC
SCRATCH_0E, SCRATCH_15 = 0x1438, 0x1454
FRTS_AT = 0x5_FE00_0000


class Engines:
    """GSP and SEC2 that run what they are given: ``runs`` tells which engine, and its mailboxes."""

    def __init__(self, chip: Chip):
        self.card, self.function = made.make_card(chip, seconds=60.0)
        values = self.function.values
        for base in (GSP, SEC2):
            values.update({base + 0xF4: 0x80000400, base + 0x118: 2, base + CPUCTL: 0x10})
            self.function.writes[base + 0x118] = lambda value: None
            self.function.writes[base + CPUCTL] = lambda value, base=base: self.run(base)  # type: ignore[misc]
        data = rom(3).ljust(1 << 17, b"\0")
        for at in range(0, 0x6000, 4):
            values[0x300000 + at] = int.from_bytes(data[at : at + 4], "little")
        values[0x8241C0 + 4 * 8] = 1  # fuse version 1 of FWSEC
        values.update({0x118128: 1, 0x118234: 0xFF})
        self.runs: list[tuple[int, int]] = []
        self.says = 0
        self.left: dict[int, int] = {
            WPR2_LO: FRTS_AT >> 12 << 4,
            WPR2_HI: (FRTS_AT + 0x100000) >> 12 << 4,
        }
        rng = random.Random(1)
        parts = ("booter_load", "booter_unload", "scrubber")
        files = {part: made.falcon_file(rng, 1)[0] for part in parts}
        self.card.cores.libos_at = 0x12_3456_7000
        self.way = FalconWay(self.card, self.card.cores, files)
        self.meta = gsp.GspFwWprMeta(frtsOffset=FRTS_AT)

    def run(self, base: int) -> None:
        self.runs.append((base, self.function.values.get(base + MAILBOX0, 0)))
        self.function.values.update(self.left)
        if base == SEC2:
            self.function.values[base + MAILBOX0] = self.says

    def command(self) -> int:
        """FWSEC's command in the image that was loaded last."""
        dmem = self.function.memory[-1].window.load(0x300, 0x400)
        command: int = struct.unpack_from("<I", dmem, MAPPER + 44)[0]
        return command


def test_frts_is_made_by_fwsec_on_gsp() -> None:
    """Its command, on the engine that was reset before."""
    engines = Engines(GA10X)
    engines.way.make_frts(engines.meta)
    assert [base for base, _ in engines.runs] == [GSP] and engines.command() == 0x15
    log = engines.function.log
    assert log.index((GSP + 0x3C0, 1)) < log.index((GSP + CPUCTL, 2))


@pytest.mark.parametrize(
    ("left", "what"),
    [
        ({SCRATCH_0E: 0x10000}, r"VBIOS_SCRATCH\[14\] is 0x10000.*refused to make FRTS"),
        ({WPR2_HI: 0}, "WPR2_ADDR_HI is 0x0"),
        ({WPR2_LO: (FRTS_AT >> 12 << 4) + 0x10}, "WPR2_ADDR_LO is .*FRTS at 0x5fe000000"),
        ({WPR2_LO: 0}, "WPR2_ADDR_LO is 0x0"),
    ],
)
def test_frts_that_is_not_where_it_is_wanted_is_refused(left: dict[int, int], what: str) -> None:
    """By error code, and both bounds of WPR2."""
    engines = Engines(GA10X)
    engines.left.update(left)
    with pytest.raises(BootError, match=what):
        engines.way.make_frts(engines.meta)


def test_booter_is_given_wpr_meta_and_gsp_libos_arguments() -> None:
    """GSP waits on RISC-V with its arguments in the mailboxes, then SEC2 runs booter."""
    engines = Engines(GA10X)
    engines.way.start(0xAB_CDEF_0000)
    values, log = engines.function.values, engines.function.log
    assert engines.runs == [(SEC2, 0xCDEF0000)]
    assert values[GSP + 0x40] | values[GSP + 0x44] << 32 == 0x12_3456_7000
    assert values[GSP + 0x1668] == 0x111 and (SEC2 + 0x44, 0xAB) in log
    assert log.index((GSP + 0x1668, 0x111)) < log.index((SEC2 + CPUCTL, 2))


def test_an_error_of_booter_is_told_with_its_code() -> None:
    """It is in mailbox 0."""
    engines = Engines(GA10X)
    engines.says = 0x31
    with pytest.raises(BootError, match=r"SEC2\.FALCON_MAILBOX0 is 0x31.*booter_load failed"):
        engines.way.start(0x1000)


@pytest.mark.parametrize(("before", "runs"), [(0, 2), (3 << 29, 1)])
def test_adas_scrubber_runs_if_it_has_not(before: int, runs: int) -> None:
    """Before booter; and it must have."""
    engines = Engines(AD10X)
    engines.function.values[SCRUBBER] = before
    if not before:
        with pytest.raises(BootError, match="SCRUBBER is 0x0"):
            engines.way.start(0x1000)
        engines.runs.clear()
    engines.left[SCRUBBER] = 3 << 29
    engines.way.start(0x1000)
    assert [base for base, _ in engines.runs] == [SEC2] * runs


def test_leaving_gives_the_card_back_to_its_own_firmware() -> None:
    """RM ends; FWSEC (SB) on GSP, then booter on SEC2; each error is named."""
    engines = Engines(GA10X)
    engines.function.values[GSP + MAILBOX0] = 0x80000000
    engines.way.leave()
    assert [base for base, _ in engines.runs] == [GSP, SEC2]
    for left, what in (
        ({SCRATCH_15: 5}, r"VBIOS_SCRATCH\[21\] is 0x5"),
        ({SCRATCH_15: 0, 0x118234: 0x7F}, "GFW_BOOT is 0x7f"),
        ({0x118128: 0}, "GFW_BOOT_MASK is 0x0"),
    ):
        engines.left.update(left)
        with pytest.raises(BootError, match=what):
            engines.way.leave()
    engines.function.values[GSP + MAILBOX0] = 0
    with pytest.raises(BootTimeout, match="RM has ended"):
        engines.way.leave()


def test_what_the_vbios_has_reserved_is_read() -> None:
    """The workspace of VGA where there is a display, and what is locked."""
    engines = Engines(GA10X)
    values = engines.function.values
    values.update({0x1FA7C8: 1, 0x1FA82C: 0x10, 0x1FA830: 0})
    assert engines.way.reserved() == Reserved(None, None)
    values[0x625F04] = 0x5FFE00 << 4 | 8
    values.update({0x1FA82C: 0x5FF0000 & ~0xF, 0x1FA830: 0x5FFFFF0})
    assert engines.way.reserved() == Reserved(0x5FFE << 20, 0x5FF000 << 12)
    values[0x820C04] = 1
    assert engines.way.reserved().vga is None
    values[0x1FA7C8] = 0
    with pytest.raises(Unsupported, match="hides"):
        engines.way.reserved()


def test_gsp_resumes_through_sec2() -> None:
    """As a program of GSP's asks for it: RISC-V, SEC2, then RM's version."""
    engines = Engines(GA10X)
    card: BootCard = engines.card
    card.cores.app_version = 0x77
    engines.left = {0x1180F8: 1 << 26}
    engines.function.values[GSP + 0x1388] = 0x80
    card.cores.resume()
    assert engines.function.values[GSP + 0x80] == 0x77 and engines.runs == [(SEC2, 0)]
    engines.says = 9
    with pytest.raises(BootError, match=r"SEC2\.FALCON_MAILBOX0 is 0x9"):
        card.cores.resume()

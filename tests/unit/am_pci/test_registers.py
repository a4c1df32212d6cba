"""Registers by name: where they are, which chip has which, and those behind an index register."""

from __future__ import annotations

import pytest

from gpu.core.errors import InvalidIndex, InvalidValue, Unsupported
from gpu.core.window import TrappedWindow
from gpu.drivers.am.pci.discovery import Discovery, parse_discovery
from gpu.drivers.am.pci.registers import Registers
from unit.am_pci import tables

BAR = 1 << 20


class Card:
    """Registers that keep what is written, some of them behind an index."""

    def __init__(self) -> None:
        self.words: dict[int, int] = {}
        self.seen: list[tuple[str, int]] = []
        self.window = TrappedWindow(BAR, self._read, self._write, 4)

    def _read(self, offset: int, width: int) -> int:
        self.seen.append(("r", offset))
        return self.words.get(offset, 0)

    def _write(self, offset: int, width: int, value: int) -> None:
        self.seen.append(("w", offset))
        self.words[offset] = value


def discovery(**versions: tuple[int, int, int]) -> Discovery:
    """That of a gfx1100 with some versions changed, by the names of `tables`."""
    named = {getattr(tables, name): version for name, version in versions.items()}
    ips = [
        tables.Ip(ip.hw_id, named.get(ip.hw_id, ip.version), ip.bases) for ip in tables.gfx1100()
    ]
    return parse_discovery(tables.make([ips]))


def test_registers_are_where_segment_and_offset_say() -> None:
    card = Card()
    registers = Registers(card.window, discovery())
    # Dossier, appendix C: offset and segment of GC 11.0.0, MMHUB 3.0.0, MP 13.0.0.
    wanted = {
        "GC.CP_STAT": 0x1260 + 0xF40,
        "GC.RLC_RLCS_BOOTLOAD_STATUS": 0xA000 + 0x4E82,
        "GC.CP_HQD_ACTIVE": 0x1260 + 0x1FAB,
        "MMHUB.MMVM_INVALIDATE_ENG17_SEM": 0x1A000 + 0x762,
        "MP0.MP0_SMN_C2PMSG_81": 0x16000 + 0x91,
        "MP1.MP1_SMN_C2PMSG_90": 0x16000 + 0x29A,
        "OSSSYS.IH_RB_CNTL": 0x10A0 + 0x80,
    }
    for name, dword in wanted.items():
        block, register = registers.find(name)
        assert block.offset_of(register) == 4 * dword, name
        assert registers.name_of(4 * dword) == name
    with pytest.raises(InvalidIndex, match="CP_STATE"):
        registers.find("CP_STATE")
    assert registers.find("cp_stat")[1] == "CP_STAT"


def test_a_hub_that_moved_has_its_own_table() -> None:
    """gfxhub_v3_0_3.c and mmhub_v3_0_2.c exist because these chips' hubs are elsewhere."""
    first, second = (
        Registers(Card().window, discovery(**versions))
        for versions in ({}, {"GC": (11, 0, 3), "MMHUB": (3, 0, 2)})
    )
    for block in ("gc", "mmhub"):
        name = "GCVM_CONTEXT0_CNTL" if block == "gc" else "MMVM_CONTEXT0_CNTL"
        assert getattr(first, block).offset_of(name) != getattr(second, block).offset_of(name)


@pytest.mark.parametrize(
    "versions, told",
    [
        ({"GC": (11, 0, 7)}, r"GC\[0\] 11\.0\.7"),
        ({"MMHUB": (3, 0, 1)}, r"MMHUB\[0\] 3\.0\.1"),
        ({"MP0": (13, 0, 9)}, r"MP0\[0\] 13\.0\.9"),
        ({"OSSSYS": (5, 0, 0)}, r"OSSSYS\[0\] 5\.0\.0.*DEV=KFD"),
    ],
)
def test_unknown_versions_are_refused_by_name(
    versions: dict[str, tuple[int, int, int]], told: str
) -> None:
    with pytest.raises(Unsupported, match=told):
        Registers(Card().window, discovery(**versions))


def test_fields_and_shifts() -> None:
    card = Card()
    core = Registers(card.window, discovery()).gc
    core.set("GCVM_CONTEXT0_CNTL", 0xFFFF_FFFF, 8)
    written = core.update("GCVM_CONTEXT0_CNTL", 8, ENABLE_CONTEXT=0, PAGE_TABLE_DEPTH=1)
    assert written == 0xFFFF_FFFA == core.get("GCVM_CONTEXT0_CNTL", 8)
    assert core.get("GCVM_CONTEXT0_CNTL") == 0
    assert core.field("GCVM_CONTEXT0_CNTL", "PAGE_TABLE_DEPTH", written) == 1
    core.set_pair("SDMA0_QUEUE0_RB_BASE", "SDMA0_QUEUE0_RB_BASE_HI", 0x12_3456_789A)
    assert (core.get("SDMA0_QUEUE0_RB_BASE"), core.get("SDMA0_QUEUE0_RB_BASE_HI")) == (
        0x3456_789A,
        0x12,
    )
    with pytest.raises(InvalidValue, match="PAGE_TABLE_DEPTH"):
        core.fields("GCVM_CONTEXT0_CNTL", PAGE_TABLE_DEPTH=4)


def test_registers_beyond_the_bar_go_through_the_index() -> None:
    card = Card()
    bridge = Registers(card.window, discovery()).nbif
    at = bridge.offset_of("S2A_DOORBELL_ENTRY_0_CTRL")
    assert at >= BAR
    bridge.set("S2A_DOORBELL_ENTRY_0_CTRL", 0x3000_0007)
    index, data = 4 * 0xE, 4 * 0xF  # PCIE_INDEX2, PCIE_DATA2: segment 0 of the bridge
    assert card.seen == [("w", index), ("r", index), ("w", data)]
    assert (card.words[index], card.words[data]) == (at, 0x3000_0007)
    assert bridge.get("S2A_DOORBELL_ENTRY_0_CTRL") == 0x3000_0007

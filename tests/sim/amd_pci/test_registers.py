"""Registers, the windows beyond BARs, HDP, and the table in which the card tells of itself."""

from __future__ import annotations

import struct

import pytest

from gpu.core.errors import TransportError
from gpu.sim.amd.pci import discovery
from gpu.sim.amd.pci.boards import BOARDS, find_board
from gpu.sim.amd.pci.nbio import HOLE
from gpu.sim.amd.pci.world import AmPciWorld
from gpu.sim.pci.host import DEVICES
from sim.amd_pci.client import AT, MIB, Client

ONES = 0xFFFFFFFF
MEMSIZE = 0xDE3


def parse(data: bytes) -> dict[tuple[int, int], tuple[tuple[int, int, int], tuple[int, ...]]]:
    """(hw_id, instance) to version and bases; written from discovery.h, with its checksums."""
    signature, _, _, total, size = struct.unpack_from("<IHHHH", data)
    assert signature == 0x28211407 and total == sum(data[10:size]) & 0xFFFF
    at, checksum, length, _ = struct.unpack_from("<4H", data, 12)
    assert sum(data[at : at + length]) & 0xFFFF == checksum
    magic, version, whole, _, dies = struct.unpack_from("<IHHIH", data, at)
    assert (magic, whole, dies) == (0x53445049, length, 1) and version in (3, 4)
    (die,) = struct.unpack_from("<H", data, at + 16)
    (count,) = struct.unpack_from("<H", data, die + 2)
    found, at = {}, die + 4
    for _ in range(count):
        hw_id, instance, bases, *revision, _ = struct.unpack_from("<H6B", data, at)
        found[hw_id, instance] = tuple(revision), struct.unpack_from(f"<{bases}I", data, at + 8)
        at += 8 + 4 * bases
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("chip", BOARDS)
def test_discovery_table(chip: str) -> None:
    client = Client(chip)
    size = client.registers.read(4 * MEMSIZE, 4) << 20
    blocks = parse(client.vram.load(size - (64 << 10), 10 << 10))
    board = client.card.chip.board
    assert blocks[11, 0][0] == board.chip.gc and blocks[42, 0][0] == board.chip.sdma
    assert {(b.hw_id, b.instance): (b.version, b.bases) for b in board.blocks} == blocks
    client.close()


def test_tables_of_the_graphics_core_and_of_what_is_broken() -> None:
    data = discovery.build(find_board("gfx1102"))
    at, checksum, size, _ = struct.unpack_from("<4H", data, 12 + 8)
    assert struct.unpack_from("<IHHI", data, at) == (0x4347, 1, 0, size)
    assert sum(data[at : at + size]) & 0xFFFF == checksum
    engines, wgps = struct.unpack_from("<2I", data, at + 12)
    assert (engines, wgps) == (2, 4)
    at, checksum, size, _ = struct.unpack_from("<4H", data, 12 + 16)
    assert sum(data[at : at + size]) & 0xFFFF == checksum
    assert struct.unpack_from("<IIHBBI", data, at) == (0x56524148, 0, 12, 1, 0, 0)


def test_bases_may_be_elsewhere() -> None:
    board = find_board("gfx1100").moved(0x40)
    assert parse(discovery.build(board))[11, 0][1][:2] == (0x12A0, 0xA040)
    assert (
        parse(discovery.build(board))[255, 0]
        == parse(discovery.build(find_board("gfx1100")))[255, 0]
    )


def test_a_card_just_plugged_in_is_not_ready() -> None:
    client = Client(settle_ns=50_000_000)
    place = client.card.chip.vram.size - (64 << 10)
    assert client.read("MP0_SMN_C2PMSG_33") == 0 and client.vram.read(place, 4) == 0
    client.wait("MP0_SMN_C2PMSG_33", 1 << 31, 1 << 31, 1000)
    assert client.world.waiter.now_ns() >= 50_000_000
    assert client.vram.read(place, 4) == 0x28211407
    client.close()


def test_unknown_registers(cold: Client) -> None:
    assert cold.registers.read(4 * 0x2345, 4) == ONES
    cold.told("a read of register 0x2345", "does not have")
    cold.registers.write(4 * 0x2345, 4, 7)
    cold.told("a write of 0x7 to register 0x2345")


def test_the_wrong_segment_is_named(cold: Client) -> None:
    cold.registers.read(4 * (0x1260 + 0x4E82), 4)
    cold.told("RLC_RLCS_BOOTLOAD_STATUS is in segment 1, not 0")


def test_another_versions_place_is_unknown() -> None:
    client = Client("gfx1101")
    cold = Client("gfx1100")
    there = cold.known.address("GCVM_INVALIDATE_ENG17_ACK")
    found = [n for n in client.known.names() if client.known.address(n) == there]
    assert found != ["GCVM_INVALIDATE_ENG17_ACK"]
    client.close()
    cold.close()


@pytest.mark.parametrize("width", [1, 2])
def test_widths(cold: Client, width: int) -> None:
    assert cold.registers.read(4 * MEMSIZE, width) == (1 << 8 * width) - 1
    cold.told(f"an access of {width} bytes at {4 * MEMSIZE:#x}")


def test_read_only_registers(cold: Client) -> None:
    for name in ("RCC_DEV0_EPF0_RCC_CONFIG_MEMSIZE", "MP0_SMN_C2PMSG_33", "MP0_SMN_C2PMSG_81"):
        before = cold.read(name)
        cold.write(name, 5)
        cold.told(name)
        assert cold.read(name) == before
    for name in ("MMMC_VM_FB_LOCATION_BASE", "GCVM_INVALIDATE_ENG17_ACK"):
        cold.write(name, 5)
        cold.told(name, "read-only")


def test_registers_beyond_the_bar(cold: Client) -> None:
    assert 4 * cold.known.address("RCC_DEV0_EPF2_STRAP2") >= cold.registers.size
    cold.change("RCC_DEV0_EPF2_STRAP2", STRAP_NO_SOFT_RESET_DEV0_F2=0)
    assert cold.read("RCC_DEV0_EPF2_STRAP2") == 0
    cold.write("BIF_BX0_PCIE_INDEX2", 0x10)
    cold.read("BIF_BX0_PCIE_DATA2")
    cold.told("register 0x4 (byte 0x10)")
    cold.write("BIF_BX0_PCIE_INDEX2", 4 * cold.known.address("BIF_BX0_PCIE_DATA2"))
    cold.read("BIF_BX0_PCIE_DATA2")
    cold.told("the byte address of another register")


def test_the_other_way_to_any_register(cold: Client) -> None:
    cold.write("BIF_BX_PF0_RSMU_INDEX", 4 * MEMSIZE)
    assert cold.read("BIF_BX_PF0_RSMU_DATA") == cold.card.chip.vram.size >> 20
    cold.write("BIF_BX_PF0_RSMU_INDEX", 4 * cold.known.address("SCRATCH_REG6"))
    cold.write("BIF_BX_PF0_RSMU_DATA", 55)
    assert cold.read("SCRATCH_REG6") == 55


def test_time_stamps(cold: Client) -> None:
    def now() -> int:
        high, low = (cold.read(f"GOLDEN_TSC_COUNT_{half}") for half in ("UPPER", "LOWER"))
        return high << 32 | low

    start = now()
    cold.settle(10_000_000)
    assert 1_000_000 <= now() - start <= 1_001_000  # 100 MHz
    cold.write("GOLDEN_TSC_COUNT_LOWER", 0)
    cold.told("read-only")


def test_memory_beyond_a_small_bar() -> None:
    client = Client(bar_size=256 << 20)
    assert client.function.bars[0].size == client.vram.size == 256 << 20
    place = client.card.chip.vram.size - (64 << 10)
    client.write("MM_INDEX_HI", place >> 31)
    client.write("MM_INDEX", place & (1 << 31) - 1 | 1 << 31)
    assert client.read("MM_DATA") == 0x28211407
    client.write("MM_INDEX_HI", 0)
    client.write("MM_INDEX", 0x1000 | 1 << 31)
    client.write("MM_DATA", 77)
    assert client.vram.read(0x1000, 4) == 77
    client.write("MM_INDEX", 0x1000)
    client.read("MM_DATA")
    client.told("bit 31")
    client.write("MM_INDEX", 2 | 1 << 31)
    client.read("MM_DATA")
    client.told("beyond video memory or between words")
    client.close()


def test_hdp_hides_what_is_not_flushed() -> None:
    client = Client(coherence="oldest")
    client.vram.write(MIB, 4, 1)
    assert client.card.chip.vram.read_word(MIB, 4) == 0
    flushes = (
        client.flush,
        lambda: client.registers.write(HOLE, 4, 0),
        lambda: client.write("BIF_BX_PF0_GPU_HDP_FLUSH_REQ", 1),
    )
    for value, flush in enumerate(flushes, 1):
        client.vram.write(MIB, 4, value)
        flush()
        client.read("SCRATCH_REG6")
        assert client.card.chip.vram.read_word(MIB, 4) == value
    assert client.read("BIF_BX_PF0_GPU_HDP_FLUSH_DONE") == 1
    client.close()


def test_the_flush_can_be_put_elsewhere_in_its_page() -> None:
    client = Client(coherence="oldest")
    client.write("BIF_BX0_REMAP_HDP_MEM_FLUSH_CNTL", HOLE + 8)
    client.vram.write(MIB, 4, 9)
    client.registers.write(HOLE, 4, 0)
    client.told("no register is remapped")
    client.hole.write(8, 4, 0)
    client.read("SCRATCH_REG6")
    assert client.card.chip.vram.read_word(MIB, 4) == 9
    client.write("BIF_BX0_REMAP_HDP_MEM_FLUSH_CNTL", 0x1000)
    client.told("BIF_BX0_REMAP_HDP_MEM_FLUSH_CNTL")
    client.close()


def test_only_one_page_of_registers_is_memory(cold: Client) -> None:
    with pytest.raises(TransportError):
        cold.function.map(5, HOLE - 0x1000, 0x1000)


def test_the_bus(cold: Client) -> None:
    """The card and its sound behind a root port, each group apart, in a process's hands."""
    tree = cold.world.tree
    classes = {
        address: tree.read(f"{DEVICES}/{address}/class").decode().strip()
        for address in ("0000:00:01.1", "0000:03:00.0", "0000:03:00.1")
    }
    assert list(classes.values()) == ["0x060400", "0x030000", "0x040300"]
    assert cold.function.ids[:2] == (0x1002, 0x744C) and cold.function.ids.revision == 0xC8
    with pytest.raises(TransportError, match=r"EBUSY|in use|busy"):
        cold.open()
    assert cold.function.address == AT


def test_several_cards() -> None:
    world = AmPciWorld(chip=("gfx1100", "gfx1201"))
    assert [str(each) for each in world.pci.functions][1::3] == ["0000:03:00.0", "0000:04:00.0"]
    assert len(world.firmware) == 18
    world.close()

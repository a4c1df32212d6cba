"""Virtual memory: walks, stale translations, invalidation, faults; and interrupts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpu.core.window import MemoryWindow
from gpu.sim.amd.pci.gmc import Vmid
from gpu.sim.amd.pci.silicon import FB_BASE
from gpu.sim.translate import PageFault
from sim.amd_pci.client import MAPPED, MIB, Client

VA, ROOT = 0x7000_0000, 16 * MIB
STATUS = "GCVM_L2_PROTECTION_FAULT_STATUS"


def space(client: Client, vmid: int = 1, hub: str = "gfxhub") -> Vmid:
    card = client.card
    return {"gfxhub": card.gfxhub, "mmhub": card.mmhub}[hub].spaces[vmid]


@pytest.fixture(params=["gfx1100", "gfx1101", "gfx1102", "gfx1201"])
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    client = Client(request.param)
    client.start_hub("MMHUB")
    client.start_hub("GFXHUB")
    client.start_memory(1)
    yield client
    client.close()


def fault(client: Client, address: int, write: bool = False, vmid: int = 1) -> int:
    """The status after an access that faults; it is cleared."""
    name = STATUS if STATUS in client.known.names() else f"{STATUS}_LO32"
    with pytest.raises(PageFault):
        space(client, vmid).store(address, b"1") if write else space(client, vmid).load(address, 1)
    status = client.read(name)
    client.change("GCVM_L2_PROTECTION_FAULT_CNTL", CLEAR_PROTECTION_FAULT_STATUS_ADDR=1)
    assert client.read(name) == 0
    return status


def test_pages(client: Client) -> None:
    client.map(ROOT, VA, 20 * MIB)
    client.map(ROOT, VA + 0x1000, 21 * MIB, 1 | 1 << 5)
    client.vram.store(20 * MIB + 0x10, b"hello")
    assert space(client).load(VA + 0x10, 5) == b"hello"
    first, second = (space(client).translate(VA + at, False) for at in (0, 0x1000))
    assert (first.writable, first.executable, first.cached) == (True, True, True)
    assert (second.writable, second.executable) == (False, False)
    assert fault(client, VA + 0x1000, write=True) >> 4 & 0xF == 2
    assert fault(client, VA + 0x2000) >> 1 & 7 and fault(client, VA + 0x2000) >> 20 & 0xF == 1
    assert fault(client, 1 << 49) >> 8 & 1  # beyond the end of the tables
    client.map(ROOT, VA + 0x3000, 22 * MIB, 1 | 1 << 6)
    assert fault(client, VA + 0x3000) >> 4 & 0xF == 1


def test_uncached_pages(client: Client) -> None:
    kind = 3 << 54 if client.is_gfx12 else 3 << 48
    client.map(ROOT, VA, 20 * MIB, MAPPED | kind)
    assert not space(client).translate(VA, False).cached


def test_large_pages(client: Client) -> None:
    at = client.map(ROOT, VA, 0)
    table = at & ~0xFFF
    directory = table - 0x1000
    leaf = 1 << 63 if client.is_gfx12 else 1 << 54
    entry = directory + 8 * (VA >> 21 & 0x1FF)
    client.vram.write(entry, 8, 32 * MIB | MAPPED | leaf)
    found = space(client).translate(VA + 0x12345, False)
    assert (found.start, found.end - found.start, found.offset) == (VA, 2 * MIB, 32 * MIB)
    client.vram.write(entry, 8, 33 * MIB | MAPPED | leaf)
    client.invalidate("GFXHUB", 1)
    assert fault(client, VA)
    client.told("512 pages is not aligned")


def test_fragments(client: Client) -> None:
    for page in range(16):
        client.map(ROOT, VA + 0x1000 * page, 20 * MIB + 0x1000 * page, MAPPED | 4 << 7)
    found = space(client).translate(VA + 0x5000, False)
    assert (found.start, found.end, found.offset) == (VA, VA + 0x10000, 20 * MIB)
    client.map(ROOT, VA + 0xF000, 30 * MIB, MAPPED | 4 << 7)
    client.invalidate("GFXHUB", 1)
    assert fault(client, VA)
    client.told("fragment of 16 pages: entry")
    for page in range(16):
        client.map(ROOT, VA + 0x1000 * page, 20 * MIB + 0x1000 * (page + 1), MAPPED | 4 << 7)
    assert fault(client, VA)
    client.told("not aligned in memory")


@pytest.mark.parametrize("bit", [52, 53, 57, 60])
def test_bits_without_a_name(client: Client, bit: int) -> None:
    client.map(ROOT, VA, 20 * MIB, MAPPED | 1 << bit)
    assert fault(client, VA)
    client.told("has bits without a name")


def test_the_bit_of_leaves(client: Client) -> None:
    at = client.map(ROOT, VA, 20 * MIB)
    client.vram.write(at, 8, client.vram.read(at, 8) ^ (1 << 63 if client.is_gfx12 else 1 << 54))
    assert fault(client, VA)
    client.told("the bit of leaves is wrong")


def test_tables_beyond_memory(client: Client) -> None:
    client.vram.write(ROOT + 8 * (VA >> 39), 8, (1 << 46) | 1)
    assert fault(client, VA)
    client.told("beyond video memory")
    client.map(client.start_memory(1), VA, 1 << 46)
    assert fault(client, VA)
    client.told("beyond video memory")


def test_translations_outlive_their_tables(client: Client) -> None:
    client.map(ROOT, VA, 20 * MIB)
    assert space(client).translate(VA, False).offset == 20 * MIB
    client.map(ROOT, VA, 21 * MIB)
    assert space(client).translate(VA, False).offset == 20 * MIB
    client.invalidate("GFXHUB", 2)
    assert space(client).translate(VA, False).offset == 20 * MIB
    client.write("GCVM_INVALIDATE_ENG17_REQ", 1 << 1 | 1 << 20)  # directories alone
    client.world.run_until_idle()
    assert space(client).translate(VA, False).offset == 20 * MIB
    client.invalidate("GFXHUB", 1)
    assert space(client).translate(VA, False).offset == 21 * MIB


def test_invalidation_needs_a_hub_that_is_up(client: Client) -> None:
    for register, field in (("GCMC_VM_MX_L1_TLB_CNTL", "ENABLE_L1_TLB"), ("GCVM_L2_CNTL", None)):
        client.change(register, **{field or "ENABLE_L2_CACHE": 0})
        client.write("GCVM_INVALIDATE_ENG17_REQ", 0xF8 << 16 | 2)
        client.world.run_until_idle()
        assert client.read("GCVM_INVALIDATE_ENG17_ACK") == 0
        client.start_hub("GFXHUB")
    client.invalidate("GFXHUB", 1)
    client.pair("GCVM_INVALIDATE_ENG17_ADDR_RANGE_LO32", "GCVM_INVALIDATE_ENG17_ADDR_RANGE_HI32", 0)
    client.write("GCVM_INVALIDATE_ENG17_REQ", 0xF8 << 16 | 2)
    client.told("ADDR_RANGE is 0")


def test_the_semaphore(client: Client) -> None:
    client.write("MMVM_INVALIDATE_ENG17_REQ", 0xF8 << 16 | 1)
    client.told("semaphore was not taken")
    assert client.read("MMVM_INVALIDATE_ENG17_SEM") == 1
    assert client.read("MMVM_INVALIDATE_ENG17_SEM") == 0
    client.write("MMVM_INVALIDATE_ENG17_SEM", 1)
    client.told("released by 0")
    client.write("MMVM_INVALIDATE_ENG17_SEM", 0)
    client.invalidate("MMHUB", 0)


def test_vmid_0_sees_video_memory_and_its_tables(client: Client) -> None:
    client.vram.store(50 * MIB, b"abcd")
    assert space(client, 0).load(FB_BASE + 50 * MIB, 4) == b"abcd"
    assert fault(client, VA, vmid=0)
    client.told("VMID 0 is used while CONTEXT0_CNTL.ENABLE_CONTEXT is 0")
    root = client.start_memory(0, 18 * MIB)
    client.map(root, VA, 50 * MIB)
    assert space(client, 0).load(VA, 4) == b"abcd"
    client.write("GCMC_VM_SYSTEM_APERTURE_HIGH_ADDR", FB_BASE + 49 * MIB >> 18)
    assert fault(client, FB_BASE + 50 * MIB, vmid=0)
    with pytest.raises(PageFault):
        space(client, 1).translate(FB_BASE, False)


def test_hubs_are_two(client: Client) -> None:
    client.map(ROOT, VA, 20 * MIB)
    assert space(client, 1, "gfxhub").translate(VA, False)
    with pytest.raises(PageFault):
        space(client, 1, "mmhub").translate(VA, False)
    client.told("MMHUB VMID 1 is used while")


def test_memory_before_a_hub_is_up(cold: Client) -> None:
    cold.vram.store(MIB, b"abcd")
    assert space(cold, 0, "mmhub").load(FB_BASE + MIB, 4) == b"abcd"
    with pytest.raises(PageFault):
        space(cold, 1).translate(VA, False)
    cold.told("ENABLE_L1_TLB is 0")


def test_the_first_fault_stays(cold: Client) -> None:
    cold.start_hub("GFXHUB")
    cold.start_memory(1)
    for address in (VA, VA + 0x5000):
        with pytest.raises(PageFault):
            space(cold).store(address, b"1")
    assert cold.read("GCVM_L2_PROTECTION_FAULT_ADDR_LO32") == VA >> 12
    assert cold.read(STATUS) & 1


# Interrupts.


def start_ring(client: Client, log2: int = 4, **bits: int) -> MemoryWindow:
    """A ring of 2**log2 dwords on the bus; the write pointer goes behind it."""
    memory = client.function.allocate(0x2000)
    at = memory.pieces[0].address
    client.pair("IH_RB_BASE", "IH_RB_BASE_HI", at >> 8)
    client.pair("IH_RB_WPTR_ADDR_LO", "IH_RB_WPTR_ADDR_HI", at + 0x1000)
    fields = {"RB_SIZE": log2, "MC_SPACE": 2, "WPTR_WRITEBACK_ENABLE": 1, "ENABLE_INTR": 1}
    fields |= {"WPTR_OVERFLOW_ENABLE": 1, "RPTR_REARM": 1, **bits}
    client.write("IH_RB_CNTL", client.pack("IH_RB_CNTL", RB_ENABLE=1, **fields))
    return memory.window


def test_interrupts_arm_again_with_the_read_pointer(cold: Client) -> None:
    window = start_ring(cold, 6)
    (message,) = cold.function.interrupts(1)
    for number in range(3):
        cold.card.ih.send(0x14, 181, 4, 1, (number,))
    assert message.wait(0) == 1
    assert [window.read(32 * n + 16, 4) for n in range(3)] == [0, 1, 2]
    cold.write("IH_RB_RPTR", 64)
    assert message.wait(0) == 1  # one more is there
    cold.write("IH_RB_RPTR", 96)
    assert message.wait(0) == 0
    cold.write("IH_RB_RPTR", 5)
    cold.told("IH_RB_RPTR 0x5")


def test_a_full_ring_overflows(cold: Client) -> None:
    window = start_ring(cold)
    for number in range(5):
        cold.card.ih.send(0x14, 181, 4, 1, (number,))
    assert cold.read("IH_RB_WPTR") & 1 and window.read(0x1000, 4) & 1
    clear = {"WPTR_OVERFLOW_CLEAR": 1}
    cold.change("IH_RB_CNTL", **clear)
    cold.change("IH_RB_CNTL", WPTR_OVERFLOW_CLEAR=0)
    assert not cold.read("IH_RB_WPTR") & 1


def test_without_overflow_entries_are_lost(cold: Client) -> None:
    start_ring(cold, WPTR_OVERFLOW_ENABLE=0)
    for number in range(5):
        cold.card.ih.send(0x14, 181, 4, 1, (number,))
    assert cold.read("IH_RB_WPTR") == 32
    cold.card.ih.send(0x14, 181, 4, 1, (9,))
    assert any("full" in record.what for record in cold.world.debug.records)


def test_interrupts_while_the_ring_is_off(cold: Client) -> None:
    cold.card.ih.send(0x14, 181, 4, 1, ())
    assert any("IH_RB_CNTL is off" in record.what for record in cold.world.debug.records)
    start_ring(cold, MC_SPACE=1, ENABLE_INTR=0)
    cold.card.ih.send(0x14, 181, 4, 1, ())
    cold.told("MC_SPACE is 1")


def test_a_ring_in_video_memory(cold: Client) -> None:
    start_ring(cold, MC_SPACE=4, WPTR_WRITEBACK_ENABLE=0)
    cold.pair("IH_RB_BASE", "IH_RB_BASE_HI", FB_BASE + 60 * MIB >> 8)
    cold.card.ih.send(0x0A, 49, 0, 3, (7,))
    assert cold.vram.read(60 * MIB, 4) == 0x0A | 49 << 8 | 3 << 24

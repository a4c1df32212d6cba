"""Queues that registers put on the hardware: packets, copies, interrupts, and what is refused."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from gpu.sim.amd.chip.dispatch import KernelExecutor
from gpu.sim.amd.pci.boards import BOARDS
from gpu.sim.amd.pci.silicon import FB_BASE
from gpu.sim.linecaches import Mode
from sim.amd_pci.client import MAPPED, MIB, Client
from sim.isa.asm import END, op
from sim.raw_kfd import L2_WRITE_BACK, halves, packet3, release_mem

MQD, RING, DATA = 8 * MIB, 9 * MIB, 10 * MIB
VA = 0x4000_0000
RPTR, TARGET, FENCE_VA = VA + 0x2000, VA + 0x3000, VA + 0x4000
WRITE_DATA = 0xC0033700


def write_data(address: int, value: int) -> list[int]:
    return [WRITE_DATA, 5 << 8 | 1 << 20, address & 0xFFFFFFFF, address >> 32, value]


def started(
    chip: str, coherence: Mode = "check", vmid: int = 1, executor: KernelExecutor | None = None
) -> Client:
    """A booted card with six pages of video memory at VA."""
    client = Client(chip, coherence=coherence, executor=executor)
    client.boot()
    client.start_engines()
    root = client.start_memory(vmid)
    for page in range(6):
        client.map(root, VA + 0x1000 * page, RING + 0x1000 * page)
    client.invalidate("GFXHUB", vmid)
    return client


@pytest.fixture
def client() -> Iterator[Client]:
    client = started("gfx1100")
    yield client
    client.close()


@pytest.mark.parametrize("coherence", ["check", "oldest"])
@pytest.mark.parametrize("chip", BOARDS)
def test_packets_and_copies(chip: str, coherence: Mode) -> None:
    client = started(chip, coherence)
    client.make_queue(MQD, VA, RPTR, vmid=1)
    words = write_data(TARGET, 0x1234)
    client.vram.store(RING, struct.pack("<5I", *words))
    client.flush()
    client.ring_doorbell(6, len(words))
    client.poll(RING + 0x3000, 0x1234)
    client.select()
    assert client.read("CP_HQD_PQ_RPTR") == client.read("CP_HQD_PQ_WPTR_LO") == 5
    doorbell = client.make_copy_queue(VA + 0x1000, RPTR + 8, vmid=1)
    copy = [1, 4 - 1, 0, TARGET & 0xFFFFFFFF, TARGET >> 32, FENCE_VA & 0xFFFFFFFF, FENCE_VA >> 32]
    client.vram.store(RING + 0x1000, struct.pack("<7I", *copy))
    client.flush()
    client.ring_doorbell(doorbell, 28)
    client.poll(RING + 0x4000, 0x1234)
    assert client.read("SDMA0_QUEUE0_RB_RPTR") == 28
    assert not client.violations
    client.close()


def test_a_queue_needs_its_descriptor_to_agree(client: Client) -> None:
    client.vram.store(MQD, bytes(2048))
    client.select()
    client.make_queue(MQD, VA, RPTR, vmid=1)
    client.select()
    assert client.read("CP_HQD_ACTIVE") == 1
    client.write("CP_HQD_PQ_CONTROL", 0)
    client.told("CP_HQD_PQ_CONTROL", "is active")
    client.write("CP_HQD_DEQUEUE_REQUEST", 2)
    client.wait("CP_HQD_ACTIVE", 1, 0)
    client.write("CP_HQD_VMID", 3)
    client.write("CP_HQD_ACTIVE", 1)
    client.told("CP_HQD_ACTIVE", "CP_HQD_VMID is 0x3, in the MQD")
    assert client.read("CP_HQD_ACTIVE") == 0
    client.vram.write(MQD, 4, 0)
    client.flush()
    client.write("CP_HQD_ACTIVE", 1)
    client.told("begins with 0x0")


def test_registers_of_queues_need_a_selection(client: Client) -> None:
    for value, said in ((0, "ME 0"), (1 << 2 | 5 << 8, "queue 5"), (2 << 2, "ME 2")):
        client.write("GRBM_GFX_CNTL", value)
        assert client.read("CP_HQD_PQ_BASE") == 0xFFFFFFFF
        client.told("CP_HQD_PQ_BASE", said)
        client.write("CP_HQD_PQ_BASE", 1)
        client.told("CP_HQD_PQ_BASE", said)
    client.select(1, 2)
    client.write("CP_HQD_PQ_BASE", 77)
    client.select(1, 3)
    assert client.read("CP_HQD_PQ_BASE") == 0
    client.select(1, 2)
    assert client.read("CP_HQD_PQ_BASE") == 77


@pytest.mark.parametrize(
    ("register", "value", "said"),
    [
        ("RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN", 0, "APER_EN is 0"),
        ("S2A_DOORBELL_ENTRY_0_CTRL", 0x30000006, "not enabled"),
        ("S2A_DOORBELL_ENTRY_0_CTRL", 0x30000003, "AWID 0x1"),
        ("CP_MEC_DOORBELL_RANGE_UPPER", 8, "RANGE is 0x0 to 0x8"),
    ],
)
def test_a_doorbell_needs_its_way(client: Client, register: str, value: int, said: str) -> None:
    client.make_queue(MQD, VA, RPTR, vmid=1)
    client.write(register, value)
    client.ring_doorbell(6, 5)
    client.world.run_until_idle()
    client.told("doorbell 0x6 is not heard", said)


def test_copies_need_a_doorbell_in_the_range(client: Client) -> None:
    client.write("S2A_DOORBELL_ENTRY_2_CTRL", 3 << 28 | 4 << 17 | 0x200 << 7 | 0xE << 1 | 1)
    doorbell = client.make_copy_queue(VA + 0x1000, RPTR, vmid=1, engine=1)
    client.ring_doorbell(doorbell, 28)
    client.world.run_until_idle()
    client.told("covers dwords 0x200 to 0x204, not 0x214")


def test_nothing_runs_while_mec_is_halted(client: Client) -> None:
    client.write("CP_MEC_RS64_CNTL", 1 << 30)
    client.make_queue(MQD, VA, RPTR, vmid=1)
    client.vram.store(RING, struct.pack("<5I", *write_data(TARGET, 7)))
    client.ring_doorbell(6, 5)
    client.world.run_until_idle()
    assert client.vram.read(RING + 0x3000, 4) == 0
    client.write("CP_MEC_RS64_CNTL", 1 << 26)
    client.world.run_until_idle()
    assert client.vram.read(RING + 0x3000, 4) == 7


def test_pipes_run_each_by_itself(client: Client) -> None:
    client.make_queue(MQD, VA, RPTR, vmid=1, slot=(1, 0))
    client.vram.store(RING, struct.pack("<5I", *write_data(TARGET, 7)))
    client.ring_doorbell(6, 5)
    client.world.run_until_idle()
    assert client.vram.read(RING + 0x3000, 4) == 0
    assert "pipe 1 of MEC does not run" in client.card.queues[0].why_idle()
    client.write("CP_MEC_RS64_CNTL", 1 << 26 | 1 << 27)
    client.world.run_until_idle()
    assert client.vram.read(RING + 0x3000, 4) == 7


def test_engines_need_firmware() -> None:
    client = Client()
    client.write("CP_MEC_RS64_CNTL", 1 << 26)
    client.told("before RLC has loaded it")
    client.write("SDMA0_F32_CNTL", 0)
    client.told("before RLC has loaded it")
    client.close()


def test_a_copy_queue_tells_whether_it_is_idle(client: Client) -> None:
    status = "SDMA0_QUEUE0_CONTEXT_STATUS"
    assert client.read(status) == 4
    doorbell = client.make_copy_queue(VA + 0x1000, RPTR, vmid=1)
    assert client.read(status) == 4
    poll = [8 | 3 << 28 | 1 << 31, TARGET & 0xFFFFFFFF, TARGET >> 32, 1, 0xFFFFFFFF, 0xFFF << 16]
    client.vram.store(RING + 0x1000, struct.pack("<6I", *poll))
    client.ring_doorbell(doorbell, 24)
    client.world.run_until_idle()
    assert client.read(status) == 0
    client.vram.write(RING + 0x3000, 4, 1)
    client.world.run_until_idle()
    assert client.read(status) == 4 and client.read("SDMA0_QUEUE0_RB_RPTR") == 24
    client.change("SDMA0_QUEUE0_RB_CNTL", RB_ENABLE=0)
    assert not client.card.queues and client.read("SDMA0_QUEUE0_RB_RPTR") == 24


def test_what_a_copy_queue_needs(client: Client) -> None:
    client.write("SDMA0_QUEUE0_RB_CNTL", 1)
    client.told("RPTR_WRITEBACK_ENABLE")
    client.write("SDMA0_QUEUE0_RB_CNTL", 0)
    client.write("SDMA0_QUEUE0_MINOR_PTR_UPDATE", 1)
    client.write("SDMA0_QUEUE0_RB_CNTL", 1 << 12 | 1)
    client.told("MINOR_PTR_UPDATE is still 1")


def test_a_fault_is_latched_and_told(client: Client) -> None:
    ring = client.function.allocate(0x2000)
    at = ring.pieces[0].address
    client.pair("IH_RB_BASE", "IH_RB_BASE_HI", at >> 8)
    client.pair("IH_RB_WPTR_ADDR_LO", "IH_RB_WPTR_ADDR_HI", at + 0x1000)
    (message,) = client.function.interrupts(1)
    bits = {"RB_SIZE": 10, "MC_SPACE": 2, "WPTR_WRITEBACK_ENABLE": 1, "ENABLE_INTR": 1}
    bits |= {"WPTR_OVERFLOW_ENABLE": 1, "RPTR_REARM": 1}
    client.write("IH_RB_CNTL", client.pack("IH_RB_CNTL", RB_ENABLE=1, **bits))
    client.make_queue(MQD, VA, RPTR, vmid=1)
    client.vram.store(RING, struct.pack("<5I", *write_data(0x7777_0000, 1)))
    client.ring_doorbell(6, 5)
    client.world.run_until_idle()
    assert message.wait(0) == 1
    assert ring.window.read(0x1000, 4) == 32
    words = struct.unpack("<8I", ring.window.load(0, 32))
    assert words[0] == 0x0A | 0x08 << 16 | 1 << 24  # GFX, source 0, not valid, VMID 1
    assert words[4:6] == (0x77770, 0x20)
    status = "GCVM_L2_PROTECTION_FAULT_STATUS"
    assert client.read(status) >> 20 & 0xF == 1 and client.read(status) >> 18 & 1
    assert client.read("GCVM_L2_PROTECTION_FAULT_ADDR_LO32") == 0x77770
    client.change("GCVM_L2_PROTECTION_FAULT_CNTL", CLEAR_PROTECTION_FAULT_STATUS_ADDR=1)
    assert client.read(status) == 0
    assert "page fault" in client.card.queues[0].stopped
    client.write("IH_RB_RPTR", 32)
    assert message.wait(0) == 0


def test_dequeue_and_soft_reset(client: Client) -> None:
    client.make_queue(MQD, VA, RPTR, vmid=1)
    wait = [0xC0053C00, 3 | 1 << 4, TARGET & 0xFFFFFFFF, TARGET >> 32, 1, 0xFFFFFFFF, 4]
    client.vram.store(RING, struct.pack("<7I", *wait))
    client.ring_doorbell(6, 7)
    client.world.run_until_idle()
    client.select()
    client.write("CP_HQD_DEQUEUE_REQUEST", 1)  # drained, it would wait for ever
    client.world.run_until_idle()
    assert client.read("CP_HQD_ACTIVE") == 1
    client.write("CP_HQD_DEQUEUE_REQUEST", 2)
    client.wait("CP_HQD_ACTIVE", 1, 0)
    client.make_queue(MQD, VA, RPTR, vmid=1, slot=(0, 1))
    client.write("GRBM_SOFT_RESET", 1)
    client.select(0, 1)
    assert client.read("CP_HQD_ACTIVE") == 0
    assert client.read("CP_MEC_RS64_CNTL") == 1 << 30


def test_memory_of_the_machine_needs_the_iommu(client: Client) -> None:
    memory = client.function.allocate(0x1000)
    client.map(16 * MIB, VA + 0x10000, memory.pieces[0].address, MAPPED | 2)
    client.map(16 * MIB, VA + 0x11000, 0x5_0000_0000, MAPPED | 2)
    client.invalidate("GFXHUB", 1)
    client.make_queue(MQD, VA, RPTR, vmid=1)
    words = write_data(VA + 0x10000, 5) + write_data(VA + 0x11000, 6)
    client.vram.store(RING, struct.pack("<10I", *words))
    client.ring_doorbell(6, 10)
    client.world.run_until_idle()
    assert memory.window.read(0, 4) == 5
    assert any("0x500000000" in fault for fault in client.world.debug.faults)


def test_descriptors_are_read_by_vmid_0(client: Client) -> None:
    client.make_queue(MQD, VA, RPTR, vmid=1, CP_MQD_BASE_ADDR_HI=(FB_BASE >> 32) + 0x1000)
    client.told("CP_MQD_BASE_ADDR")


@pytest.mark.parametrize("coherence", ["check", "oldest"])
@pytest.mark.parametrize("seed", range(3))
def test_a_kernel_and_its_interrupt(seed: int, coherence: Mode) -> None:
    """Code and results in video memory, the argument in the machine's, an end-of-pipe message."""
    pytest.importorskip("llvmlite")
    from gpu.sim.amd.chip.lanes import LaneExecutor

    client = started("gfx1100", coherence, executor=LaneExecutor(seed))
    host = client.function.allocate(0x3000)
    at = host.pieces[0].address
    client.map(16 * MIB, VA + 0x10000, at, MAPPED | 1 << 1 | 3 << 48)
    client.invalidate("GFXHUB", 1)
    client.pair("IH_RB_BASE", "IH_RB_BASE_HI", at + 0x1000 >> 8)
    (message,) = client.function.interrupts(1)
    bits = {"RB_SIZE": 10, "MC_SPACE": 2, "ENABLE_INTR": 1, "RPTR_REARM": 1}
    client.write("IH_RB_CNTL", client.pack("IH_RB_CNTL", RB_ENABLE=1, **bits))
    client.make_queue(MQD, VA, RPTR, vmid=1)
    text = op("s_load_b64", sdata=10, sbase=0) + op("v_lshlrev_b32", vdst=1, src0=130, vsrc1=0)
    text += op("v_mov_b32", vdst=2, src0=255, literal=0xC0FFEE)
    text += op("global_store_b32", addr=1, data=2, saddr=10) + END
    client.vram.store(RING + 0x1000, text)
    host.window.write(0, 8, TARGET)
    words = packet3(0x76, 0x20C, *halves(VA + 0x1000 >> 8))
    words += packet3(0x76, 0x212, 0x60AF0000, 2 << 1) + packet3(0x76, 0x204, 0, 0, 0, 32, 1, 1)
    words += packet3(0x76, 0x240, *halves(VA + 0x10000)) + packet3(0x15, 1, 1, 1, 0x8001)
    words += release_mem(VA + 0x10008, 9, interrupt=2, gcr=L2_WRITE_BACK)
    client.vram.store(RING, struct.pack(f"<{len(words)}I", *words))
    client.flush()
    client.ring_doorbell(6, len(words))
    assert message.wait(1_000_000_000) == 1
    assert host.window.read(8, 8) == 9
    assert host.window.read(0x1000, 4) == 0x14 | 181 << 8 | 4 << 16 | 1 << 24
    assert client.vram.load(RING + 0x3000, 0x84) == (0xC0FFEE).to_bytes(4, "little") * 32 + bytes(4)
    assert not client.violations and not client.world.debug.faults
    client.close()


def test_faults_on_purpose_are_told_too() -> None:
    pytest.importorskip("llvmlite")
    from gpu.sim.amd.chip.lanes import LaneExecutor

    client = started("gfx1100", executor=LaneExecutor(0))
    client.world.faults.add("page-fault:write")
    client.make_queue(MQD, VA, RPTR, vmid=1)
    client.vram.store(RING + 0x1000, END)
    words = packet3(0x76, 0x20C, *halves(VA + 0x1000 >> 8))
    words += packet3(0x76, 0x212, 0x60AF0000, 0) + packet3(0x76, 0x204, 0, 0, 0, 32, 1, 1)
    words += packet3(0x15, 1, 1, 1, 0x8001)
    client.vram.store(RING, struct.pack(f"<{len(words)}I", *words))
    client.ring_doorbell(6, len(words))
    client.world.run_until_idle()
    status = client.read("GCVM_L2_PROTECTION_FAULT_STATUS")
    assert status >> 20 & 0xF == 1 and status >> 18 & 1
    client.close()


def test_code_must_be_executable() -> None:
    pytest.importorskip("llvmlite")
    from gpu.sim.amd.chip.lanes import LaneExecutor

    client = started("gfx1100", executor=LaneExecutor(0))
    client.map(16 * MIB, VA + 0x1000, RING + 0x1000, MAPPED)
    client.invalidate("GFXHUB", 1)
    client.vram.store(RING + 0x1000, END)
    client.make_queue(MQD, VA, RPTR, vmid=1)
    words = packet3(0x76, 0x20C, *halves(VA + 0x1000 >> 8))
    words += packet3(0x76, 0x212, 0x60AF0000, 0) + packet3(0x76, 0x204, 0, 0, 0, 32, 1, 1)
    words += packet3(0x15, 1, 1, 1, 0x8001)
    client.vram.store(RING, struct.pack(f"<{len(words)}I", *words))
    client.ring_doorbell(6, len(words))
    client.world.run_until_idle()
    assert client.read("GCVM_L2_PROTECTION_FAULT_STATUS") >> 4 & 0xF == 4
    client.close()

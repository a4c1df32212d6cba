"""Compute queues by hand: what a queue keeps in memory (MQD), put into a hardware slot (HQD).

There is no scheduler: each queue has a slot of its own, and stays there. The descriptor's words
from ``cp_mqd_base_addr_lo`` on are the slot's registers, one for one.

Sources: kfd_mqd_manager_v11.c and kfd_mqd_manager_v12.c, hqd_load_v11 and hqd_destroy_v11 of
amdgpu_amdkfd_gfx_v11.c, v11_structs.h, v12_structs.h, amdgpu_doorbell.h of Linux 6.12.117. On GFX12
Linux leaves slots to a scheduler: there the same order of stores is tinygrad's (T).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpu.autogen.amd import v11_structs, v12_structs
from gpu.core.errors import InvalidValue
from gpu.drivers.am.pci.chip import Chip
from gpu.drivers.am.pci.registers import DWORD, Block

MQD_SIZE: Final = 4096
FIRST_DOORBELL: Final = 0x3  # of queue 0 (AMDGPU_NAVI10_DOORBELL_MEC_RING0)
MOST_QUEUES: Final = 8
_ME: Final = 1
_PIPES: Final = 4
_REGISTERS_AT: Final = DWORD * 0x80  # of the descriptor: from cp_mqd_base_addr_lo on
_HEADER: Final = 0xC031_0800
_PRELOAD: Final = 0x55
_READ_BLOCK: Final = 5  # the read pointer is written every 32 dwords
_DISPATCH_POINTER: Final = 1 << 14
_LEAST_IB: Final = 3
_MOST_EOP: Final = 0xA
_PIPE_PRIORITY, _QUEUE_PRIORITY = 1, 7
_RESET_WAVES: Final = 2
_SHADER_ENGINES: Final = 8


@dataclass(frozen=True, slots=True)
class ComputeRing:
    """A PM4 ring: its slot, addresses in the VMID, sizes in bytes.

    Attributes:
        index: of the queue; each has a slot of another pipe as long as there are pipes.
        doorbell: its number, of 8 bytes each.
    """

    index: int
    vmid: int
    ring: int
    size: int
    read_pointer: int
    write_pointer: int
    eop: int
    eop_size: int

    @property
    def slot(self) -> tuple[int, int]:
        """Pipe and queue of it."""
        return self.index % _PIPES, self.index // _PIPES

    @property
    def doorbell(self) -> int:
        """Its number."""
        return FIRST_DOORBELL + self.index


Mqd = v11_structs.v11_compute_mqd | v12_structs.v12_compute_mqd


def descriptor(core: Block, ring: ComputeRing, place: int) -> Mqd:
    """What a queue keeps in memory at ``place``, an address of VMID 0, before it first runs."""
    if ring.size & (ring.size - 1) or ring.size < 4096 or ring.ring % 256 or ring.eop % 256:
        raise InvalidValue(f"compute ring {ring}: sizes are powers of two, places multiples of 256")
    kind = v12_structs.v12_compute_mqd if core.ip.version[0] >= 12 else v11_structs.v11_compute_mqd
    mqd = kind(header=_HEADER, compute_pipelinestat_enable=1)
    for engine in range(_SHADER_ENGINES):
        setattr(mqd, f"compute_static_thread_mgmt_se{engine}", 0xFFFF_FFFF)
    mqd.cp_mqd_base_addr_lo, mqd.cp_mqd_base_addr_hi = place & 0xFFFF_FFFF, place >> 32
    mqd.cp_mqd_control = core.fields("CP_MQD_CONTROL", PRIV_STATE=1)
    mqd.cp_hqd_vmid = core.fields("CP_HQD_VMID", VMID=ring.vmid)
    mqd.cp_hqd_persistent_state = core.fields(
        "CP_HQD_PERSISTENT_STATE", PRELOAD_REQ=1, PRELOAD_SIZE=_PRELOAD
    )
    mqd.cp_hqd_pipe_priority, mqd.cp_hqd_queue_priority = _PIPE_PRIORITY, _QUEUE_PRIORITY
    mqd.cp_hqd_quantum = core.fields(
        "CP_HQD_QUANTUM", QUANTUM_EN=1, QUANTUM_SCALE=1, QUANTUM_DURATION=1
    )
    mqd.cp_hqd_pq_base_lo = ring.ring >> 8 & 0xFFFF_FFFF
    mqd.cp_hqd_pq_base_hi = ring.ring >> 40
    mqd.cp_hqd_pq_control = core.fields(
        "CP_HQD_PQ_CONTROL",
        QUEUE_SIZE=(ring.size // DWORD).bit_length() - 2,
        RPTR_BLOCK_SIZE=_READ_BLOCK,
        UNORD_DISPATCH=1,
    )
    mqd.cp_hqd_pq_rptr_report_addr_lo = ring.read_pointer & 0xFFFF_FFFF
    mqd.cp_hqd_pq_rptr_report_addr_hi = ring.read_pointer >> 32
    mqd.cp_hqd_pq_wptr_poll_addr_lo = ring.write_pointer & 0xFFFF_FFFF
    mqd.cp_hqd_pq_wptr_poll_addr_hi = ring.write_pointer >> 32
    mqd.cp_hqd_pq_doorbell_control = core.fields(
        "CP_HQD_PQ_DOORBELL_CONTROL", DOORBELL_OFFSET=2 * ring.doorbell, DOORBELL_EN=1
    )
    mqd.cp_hqd_ib_control = core.fields("CP_HQD_IB_CONTROL", MIN_IB_AVAIL_SIZE=_LEAST_IB)
    mqd.cp_hqd_hq_status0 = _DISPATCH_POINTER
    mqd.cp_hqd_eop_base_addr_lo = ring.eop >> 8 & 0xFFFF_FFFF
    mqd.cp_hqd_eop_base_addr_hi = ring.eop >> 40
    eop = min(_MOST_EOP, (ring.eop_size // DWORD).bit_length() - 2)
    mqd.cp_hqd_eop_control = core.fields("CP_HQD_EOP_CONTROL", EOP_SIZE=eop)
    return mqd


def load(chip: Chip, ring: ComputeRing, place: int) -> None:
    """Puts a queue into its slot, and has it run; its descriptor goes to ``place`` in VRAM."""
    core = chip.registers.gc
    mqd = descriptor(core, ring, chip.mc(place))
    chip.store(place, bytes(mqd).ljust(MQD_SIZE, b"\0"))
    first = _REGISTERS_AT
    count = core.offset_of("CP_HQD_PQ_WPTR_HI") - core.offset_of("CP_MQD_BASE_ADDR") + DWORD
    words = memoryview(bytes(mqd)[first : first + count]).cast("I")
    pipe, queue = ring.slot
    with chip.selected(_ME, pipe, queue):
        for number, word in enumerate(words):
            core.set("CP_MQD_BASE_ADDR", word, number)
        core.set("CP_HQD_PQ_DOORBELL_CONTROL", mqd.cp_hqd_pq_doorbell_control)
        core.set("CP_HQD_EOP_RPTR", core.fields("CP_HQD_EOP_RPTR", INIT_FETCHER=1))
        core.set("CP_HQD_ACTIVE", core.fields("CP_HQD_ACTIVE", ACTIVE=1))


def unload(chip: Chip, ring: ComputeRing) -> None:
    """Takes a queue off its slot, and ends its waves. Raises BootTimeout where it stays."""
    core = chip.registers.gc
    pipe, queue = ring.slot
    with chip.selected(_ME, pipe, queue):
        if not core.get("CP_HQD_ACTIVE") & 1:
            return
        core.set("CP_HQD_DEQUEUE_REQUEST", _RESET_WAVES)
        core.set("SPI_COMPUTE_QUEUE_RESET", 1)
        chip.wait(core, "CP_HQD_ACTIVE", 1, 0)
        core.set("CP_HQD_DEQUEUE_REQUEST", 0)
        core.set("CP_HQD_PQ_DOORBELL_CONTROL", 0)

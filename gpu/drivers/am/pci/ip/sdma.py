"""The copy engines: started, and one ring of each.

Sources: sdma_v6_0.c, sdma_v7_0.c (gfx_resume, get_reg_offset), amdgpu_amdkfd_gfx_v11.c
(hqd_sdma_load, hqd_sdma_destroy) of Linux 6.12.117.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpu.drivers.am.pci.chip import Chip
from gpu.drivers.am.pci.discovery import HwId
from gpu.drivers.am.pci.ip.soc import open_copy_doorbells

FIRST_DOORBELL: Final = (
    0x100  # of engine 0; each has ten more (AMDGPU_NAVI10_DOORBELL_sDMA_ENGINE0)
)
DOORBELLS: Final = 0xA
_DOORBELL_DWORDS: Final = 20
_MOST: Final = 2
_RESPONSE, _REDO = 3, 9
_POLICIES: Final = 0xFF_0FFF
_IDLE: Final = 4  # of CONTEXT_STATUS


@dataclass(frozen=True, slots=True)
class CopyRing:
    """A ring of a copy engine: addresses in the VMID, size in bytes."""

    engine: int
    vmid: int
    ring: int
    size: int
    read_pointer: int
    write_pointer: int
    doorbell: int


def engines_of(chip: Chip) -> int:
    """How many engines there are."""
    found = {each.hw_id for each in chip.discovery.blocks}
    return min(_MOST, len(found & {HwId.SDMA0, HwId.SDMA1}))


def _unit(chip: Chip) -> tuple[str, str]:
    """The control register of an engine's processor, and the field that resets it."""
    return ("MCU_CNTL", "RESET") if chip.gc[0] >= 12 else ("F32_CNTL", "TH1_RESET")


def start_copying(chip: Chip) -> None:
    """Lets all engines run, with no ring yet."""
    core = chip.registers.gc
    count = engines_of(chip)
    open_copy_doorbells(chip, 2 * FIRST_DOORBELL, _DOORBELL_DWORDS * count)
    control, in_reset = _unit(chip)
    for engine in range(count):
        name = f"SDMA{engine}"
        core.update(f"{name}_WATCHDOG_CNTL", QUEUE_HANG_COUNT=1)
        core.update(f"{name}_UTCL1_CNTL", RESP_MODE=_RESPONSE, REDO_DELAY=_REDO)
        page = core.get(f"{name}_UTCL1_PAGE") & _POLICIES
        core.set(
            f"{name}_UTCL1_PAGE",
            core.fields(f"{name}_UTCL1_PAGE", page, RD_L2_POLICY=0, WR_L2_POLICY=0)
            if chip.gc[0] >= 12
            else core.fields(
                f"{name}_UTCL1_PAGE", page, RD_L2_POLICY=0, WR_L2_POLICY=0, LLC_NOALLOC=1
            ),
        )
        core.update(f"{name}_{control}", **{"HALT": 0, in_reset: 0})
        core.update(f"{name}_CNTL", TRAP_ENABLE=1)


def open_ring(chip: Chip, ring: CopyRing) -> None:
    """Gives an engine its ring, which is empty. Raises BootTimeout where it is not idle."""
    core, name = chip.registers.gc, f"SDMA{ring.engine}_QUEUE0"
    core.set(f"{name}_RB_CNTL", 0)
    chip.wait(core, f"{name}_CONTEXT_STATUS", _IDLE, _IDLE)
    core.set(
        f"{name}_DOORBELL_OFFSET", core.fields(f"{name}_DOORBELL_OFFSET", OFFSET=2 * ring.doorbell)
    )
    core.update(f"{name}_DOORBELL", ENABLE=1)
    core.set_pair(f"{name}_RB_RPTR", f"{name}_RB_RPTR_HI", 0)
    core.set(f"{name}_MINOR_PTR_UPDATE", 1)
    core.set_pair(f"{name}_RB_WPTR", f"{name}_RB_WPTR_HI", 0)
    core.set(f"{name}_MINOR_PTR_UPDATE", 0)
    core.set_pair(f"{name}_RB_BASE", f"{name}_RB_BASE_HI", ring.ring >> 8)
    core.set_pair(f"{name}_RB_RPTR_ADDR_LO", f"{name}_RB_RPTR_ADDR_HI", ring.read_pointer)
    core.set_pair(
        f"{name}_RB_WPTR_POLL_ADDR_LO", f"{name}_RB_WPTR_POLL_ADDR_HI", ring.write_pointer
    )
    core.update(f"{name}_IB_CNTL", IB_ENABLE=1)
    polls = "MCU_WPTR_POLL_ENABLE" if chip.gc[0] >= 12 else "F32_WPTR_POLL_ENABLE"
    fields = {
        "RB_SIZE": (ring.size // 4).bit_length() - 1,
        "RPTR_WRITEBACK_ENABLE": 1,
        "RPTR_WRITEBACK_TIMER": 4,
        "RB_VMID": ring.vmid,
        polls: 1,
    }
    value = core.fields(f"{name}_RB_CNTL", **fields)
    core.set(f"{name}_RB_CNTL", value)
    core.set(f"{name}_RB_CNTL", core.fields(f"{name}_RB_CNTL", value, RB_ENABLE=1))


def close_ring(chip: Chip, engine: int) -> None:
    """Takes an engine's ring away. Raises BootTimeout where it does not stop."""
    core, name = chip.registers.gc, f"SDMA{engine}_QUEUE0"
    core.update(f"{name}_RB_CNTL", RB_ENABLE=0)
    chip.wait(core, f"{name}_CONTEXT_STATUS", _IDLE, _IDLE)
    core.set(f"{name}_DOORBELL", 0)

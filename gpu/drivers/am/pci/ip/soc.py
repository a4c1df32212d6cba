"""The bridge to the bus: doorbells open, and a page of registers for the host's data path.

Sources: nbio_v4_3.c, nbif_v6_3_1.c (init_registers, enable_doorbell_aperture, gc_doorbell_init,
remap_hdp_registers), soc21.c (MMIO_REG_HOLE_OFFSET), kfd_ioctl.h of Linux 6.12.117.
"""

from __future__ import annotations

from typing import Final

from gpu.drivers.am.pci.chip import Chip

_HOLE: Final = 0x80000 - 0x1000
# Ports of the path from the bus to engines: of the command processor, and what its doorbells
# become.
_PORTS: Final = {0: 0x3000_0007, 3: 0x3000_000D}


def start_bridge(chip: Chip) -> None:
    """Lets doorbells through, and maps the register that empties the host's data path."""
    bridge = chip.registers.nbif
    bridge.update("RCC_DEV0_EPF2_STRAP2", STRAP_NO_SOFT_RESET_DEV0_F2=0)
    bridge.update("RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN", BIF_DOORBELL_APER_EN=1)
    bridge.set("BIF_BX0_REMAP_HDP_MEM_FLUSH_CNTL", _HOLE)
    chip.map_flush()
    chip.flush_hdp()


def _port(chip: Chip, number: int) -> str:
    prefix = "GDC_S2A0_" if chip.registers.nbif.ip.version[0] >= 6 else ""
    return f"{prefix}S2A_DOORBELL_ENTRY_{number}_CTRL"


def open_core_doorbells(chip: Chip) -> None:
    """Doorbells of the command processor."""
    for number, value in _PORTS.items():
        chip.registers.nbif.set(_port(chip, number), value)


def open_copy_doorbells(chip: Chip, first: int, size: int) -> None:
    """Doorbells of the copy engines: ``size`` dwords from dword ``first`` on."""
    name = _port(chip, 2)
    chip.registers.nbif.update(
        name,
        S2A_DOORBELL_PORT2_ENABLE=1,
        S2A_DOORBELL_PORT2_AWID=0xE,
        S2A_DOORBELL_PORT2_RANGE_OFFSET=first,
        S2A_DOORBELL_PORT2_RANGE_SIZE=size,
        S2A_DOORBELL_PORT2_AWADDR_31_28_VALUE=3,
    )

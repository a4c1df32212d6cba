"""Cards that can be modelled: their place on PCI, and what differs between chips on the way up.

Numbers of PMC_BOOT_0 are those that retail cards show (R), as are subsystem numbers; class codes
are `lspci`'s (R). What FSP is sent: g_kern_fsp_nvoc.c; sizes of memory that firmware keeps:
g_kernel_gsp_nvoc.c and Linux's nouveau, gsp/rm/r570/rm.c; registers: dev_therm.h, dev_fb.h,
dev_fbhub.h of the chips, all of open-gpu-kernel-modules 570.144.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpu.core.errors import Unsupported
from gpu.core.pci import PciIds
from gpu.sim.nv.chip.chips import Chip, find_chip

_VENDOR: Final = 0x10DE
_KIB: Final = 1 << 10


@dataclass(frozen=True, slots=True)
class Board:
    """A card.

    Attributes:
        chip: what is on it.
        ids: as PCI sees it.
        boot_0, boot_42: what identifies the chip (PMC_BOOT_0, PMC_BOOT_42).
        fsp_status: the register in which FSP tells that it has started.
        flush_page: registers for the page of system memory that is written to flush, low and high.
        cot_version, key_bytes, signature_bytes: of the chain of trust.
        family: what the sections of its firmware are called after.
        non_wpr_heap, pmu_reserved: bytes of video memory before and behind what WPR2 protects.
    """

    chip: Chip
    ids: PciIds
    boot_0: int
    boot_42: int
    fsp_status: int
    flush_page: tuple[int, int]
    cot_version: int
    key_bytes: int
    signature_bytes: int
    family: str
    non_wpr_heap: int
    pmu_reserved: int

    @property
    def name(self) -> str:
        """What the chip is called, in file names too."""
        return self.chip.name


def _ids(chip: Chip, subsystem: int, class_code: int) -> PciIds:
    return PciIds(_VENDOR, chip.device_id, _VENDOR, subsystem, 0xA1, class_code)


_GH100, _GB202 = find_chip("gh100"), find_chip("gb202")
BOARDS: Final = {
    board.name: board
    for board in (
        Board(
            *(_GH100, _ids(_GH100, 0x18BE, 0x030200), 0x180000A1, 0x180A1000),
            fsp_status=0x200BC,
            flush_page=(0x100A34, 0x100A38),
            cot_version=1,
            key_bytes=384,
            signature_bytes=384,
            family="gh100",
            non_wpr_heap=2048 * _KIB,
            pmu_reserved=0,
        ),
        Board(
            *(_GB202, _ids(_GB202, 0x205F, 0x030000), 0x1B2000A1, 0x1B2A1000),
            fsp_status=0xAD00BC,
            flush_page=(0x8A1D58, 0x8A1D5C),
            cot_version=2,
            key_bytes=97,
            signature_bytes=96,
            family="gb20x",
            non_wpr_heap=2176 * _KIB,
            pmu_reserved=0x1820000,
        ),
    )
}


def find_board(name: str) -> Board:
    """The card with a chip. Raises Unsupported."""
    if name not in BOARDS:
        raise Unsupported(f"no model of a card with {name}: there are {', '.join(BOARDS)}")
    return BOARDS[name]

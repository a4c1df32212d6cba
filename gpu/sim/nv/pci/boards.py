"""Cards that can be modelled: their place on PCI, and what differs between chips on the way up.

Numbers of PMC_BOOT_0 are those that retail cards show (R), as are subsystem numbers; class codes
are `lspci`'s (R). What FSP is sent: g_kern_fsp_nvoc.c; sizes of memory that firmware keeps:
g_kernel_gsp_nvoc.c and Linux's nouveau, gsp/rm/r570/rm.c; registers: dev_therm.h, dev_fb.h,
dev_fbhub.h of the chips, all of open-gpu-kernel-modules 570.144. How far DMA reaches is the mask of
the upper half of FLUSH_SYSMEM_ADDR there. What a ROM has before its VBIOS, and in how many images
that is, differs from board to board: here each form is on one (U).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from gpu.core.errors import Unsupported
from gpu.core.pci import PciIds
from gpu.sim.nv.chip.chips import Chip, find_chip

_VENDOR: Final = 0x10DE
_KIB: Final = 1 << 10
_PCFG, _EP_PCFGM = 0x88000, 0x92000  # dev_nv_xve.h, dev_xtl_ep_pri.h


@dataclass(frozen=True, slots=True)
class FspFacts:
    """What FSP wants, on chips that it starts.

    Attributes:
        status: the register in which it tells that it has started.
        cot_version, key_bytes, signature_bytes: of the chain of trust.
    """

    status: int
    cot_version: int
    key_bytes: int
    signature_bytes: int


@dataclass(frozen=True, slots=True)
class FalconFacts:
    """What differs between chips whose falcons are started by the driver.

    Attributes:
        has_scrubber: whether the end of memory may have to be scrubbed before booter runs.
        ifr: version of what lies before the VBIOS in its ROM.
        extensions: how many images behind the first the VBIOS' own parts have.
    """

    has_scrubber: bool
    ifr: int
    extensions: int


class FlushPage(NamedTuple):
    """Registers for the page of system memory that is written to flush.

    Attributes:
        names: what they are called, the lower half first.
        places: where they are.
        shift: bits of the address that the lower one leaves out.
    """

    names: tuple[str, str]
    places: tuple[int, int]
    shift: int


@dataclass(frozen=True, slots=True)
class Board:
    """A card.

    Attributes:
        chip: what is on it.
        ids: as PCI sees it.
        boot_0, boot_42: what identifies the chip (PMC_BOOT_0, PMC_BOOT_42).
        start: who starts its processors.
        flush_page: where the page that flushes is told.
        mirror: where in BAR 0 its configuration space is seen.
        dma_bits: how much of system memory it reaches.
        family: what the sections of its firmware are called after.
        non_wpr_heap, pmu_reserved: bytes of video memory before and behind what WPR2 protects.
    """

    chip: Chip
    ids: PciIds
    boot_0: int
    boot_42: int
    start: FspFacts | FalconFacts
    flush_page: FlushPage
    mirror: int
    dma_bits: int
    family: str
    non_wpr_heap: int
    pmu_reserved: int

    @property
    def name(self) -> str:
        """What the chip is called, in file names too."""
        return self.chip.name


def _ids(chip: Chip, subsystem: int, class_code: int) -> PciIds:
    return PciIds(_VENDOR, chip.device_id, _VENDOR, subsystem, 0xA1, class_code)


_GA102, _AD102, _GH100, _GB202 = (find_chip(name) for name in ("ga102", "ad102", "gh100", "gb202"))
_NISO: Final = ("NV_PFB_NISO_FLUSH_SYSMEM_ADDR", "NV_PFB_NISO_FLUSH_SYSMEM_ADDR_HI")
_FBHUB: Final = (
    "NV_PFB_FBHUB_PCIE_FLUSH_SYSMEM_ADDR_LO",
    "NV_PFB_FBHUB_PCIE_FLUSH_SYSMEM_ADDR_HI",
)
BOARDS: Final = {
    board.name: board
    for board in (
        Board(
            *(_GA102, _ids(_GA102, 0x1454, 0x030000), 0x172000A1, 0x172A1000),
            start=FalconFacts(has_scrubber=False, ifr=2, extensions=1),
            flush_page=FlushPage(_NISO, (0x100C10, 0x100C40), shift=8),
            mirror=_PCFG,
            dma_bits=47,
            family="ga10x",
            non_wpr_heap=1024 * _KIB,
            pmu_reserved=0,
        ),
        Board(
            *(_AD102, _ids(_AD102, 0x16F4, 0x030000), 0x192000A1, 0x192A1000),
            start=FalconFacts(has_scrubber=True, ifr=3, extensions=2),
            flush_page=FlushPage(_NISO, (0x100C10, 0x100C40), shift=8),
            mirror=_PCFG,
            dma_bits=47,
            family="ad10x",
            non_wpr_heap=1024 * _KIB,
            pmu_reserved=0,
        ),
        Board(
            *(_GH100, _ids(_GH100, 0x18BE, 0x030200), 0x180000A1, 0x180A1000),
            start=FspFacts(0x200BC, cot_version=1, key_bytes=384, signature_bytes=384),
            flush_page=FlushPage(_FBHUB, (0x100A34, 0x100A38), shift=0),
            mirror=_EP_PCFGM,
            dma_bits=52,
            family="gh100",
            non_wpr_heap=2048 * _KIB,
            pmu_reserved=0,
        ),
        Board(
            *(_GB202, _ids(_GB202, 0x205F, 0x030000), 0x1B2000A1, 0x1B2A1000),
            start=FspFacts(0xAD00BC, cot_version=2, key_bytes=97, signature_bytes=96),
            flush_page=FlushPage(_FBHUB, (0x8A1D58, 0x8A1D5C), shift=0),
            mirror=_EP_PCFGM,
            dma_bits=52,
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

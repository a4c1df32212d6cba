"""Chips that are booted over PCI: what of the boot differs between them, a row each.

Sources: open-gpu-kernel-modules at tag 570.144: published/nv_ref.h (PMC_BOOT_42), the variants of
generated/{g_kernel_gsp_nvoc.c,g_kern_fsp_nvoc.c,g_kern_pmu_nvoc.c,g_mem_mgr_nvoc.c,
g_kernel_bif_nvoc.c}; kern_pmu.c (what PMU has of video memory), kern_mem_sys_{ga100,gh100,gb10b}.c
(width of addresses), src/common/inc/nv-firmware-chip-family-select.h.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from gpu.autogen.nv import gsp
from gpu.core.bits import align_up
from gpu.core.errors import Unsupported
from gpu.core.firmware import Wanted
from gpu.drivers.nv.firmware import WANTED

_MIB: Final = 1 << 20


class Way(Enum):
    """What brings GSP up."""

    FALCON = "secure code of the VBIOS and booter on Falcons"
    FSP = "FSP's chain of trust"


@dataclass(frozen=True, slots=True)
class Chip:
    """A family of chips.

    Attributes:
        family: as NVIDIA's firmware calls it; also of its signature in GSP's image.
        folder: of its firmware, in linux-firmware.
        way: what brings it up.
        address_bits: of the machine's memory that it reaches.
        ready: the register that says that the card's own firmware has started.
        flush: the pair of registers for the page that it flushes to.
        config_mirror: where BAR 0 has config space, and how many bytes.
        heap_base: of GSP's heap, whatever the card, in bytes.
        non_wpr_heap: bytes of GSP's heap outside of protected memory.
        scrubbed: whether all of video memory can be cleared before GSP starts.
        gmmu: version of its page tables.
        cot_version, key_size, signature_size: of FSP's chain of trust.
        end_reserve: bytes at the end of video memory that FSP leaves to others.
        pmu_reserve: bytes that PMU has of it.
    """

    family: str
    folder: str
    way: Way
    address_bits: int
    ready: str
    flush: str
    config_mirror: tuple[int, int]
    heap_base: int
    non_wpr_heap: int
    scrubbed: bool
    gmmu: int = 3
    cot_version: int = 0
    key_size: int = 0
    signature_size: int = 0
    end_reserve: int = 0
    pmu_reserve: int = 0

    @property
    def signature_section(self) -> str:
        """The section of GSP's image with the signature for this family."""
        return f".fwsignature_{self.family}"

    def firmware(self, part: str) -> Wanted:
        """A file of its firmware. GSP's image is one for all families."""
        name = f"nvidia/{'ga102' if part == 'gsp' else self.folder}/gsp/{part}-{gsp.VERSION}.bin"
        return next(wanted for wanted in WANTED if wanted.name == name)

    @property
    def parts(self) -> tuple[str, ...]:
        """Which files it takes."""
        if self.way is Way.FSP:
            return ("gsp", "bootloader", "fmc")
        scrubber = ("scrubber",) if self.scrubbed else ()
        return ("gsp", "bootloader", "booter_load", "booter_unload", *scrubber)


GA10X: Final = Chip(
    *("ga10x", "ga102", Way.FALCON, 47, "GFW_BOOT", "FLUSH_GA10X", (0x88000, 0x1000)),
    *(gsp.GSP_FW_HEAP_PARAM_BASE_RM_SIZE_TU10X, _MIB, False),
    gmmu=2,
)
AD10X: Final = Chip(
    *("ad10x", "ad102", Way.FALCON, 47, "GFW_BOOT", "FLUSH_GA10X", (0x88000, 0x1000)),
    *(gsp.GSP_FW_HEAP_PARAM_BASE_RM_SIZE_TU10X, _MIB, True),
    gmmu=2,
)
GH100: Final = Chip(
    *("gh100", "gh100", Way.FSP, 52, "FSP_BOOT_GH100", "FLUSH_GH100", (0x92000, 0x1000)),
    *(gsp.GSP_FW_HEAP_PARAM_BASE_RM_SIZE_GH100, 2 * _MIB, False),
    *(3, 1, 384, 384, 0x20_0000, 0),
)
GB20X: Final = Chip(
    *("gb20x", "gb202", Way.FSP, 52, "FSP_BOOT_GB20X", "FLUSH_GB20X", (0x92000, 0x1000)),
    *(gsp.GSP_FW_HEAP_PARAM_BASE_RM_SIZE_GH100, 0x22_0000, False),
    *(3, 2, 97, 96, 0x22_0000, align_up(0x80_0000 + 0x100_0000 + 0x1000, 0x2_0000)),
)
_FIVE: Final = (2, 3, 4, 6, 7)
_KNOWN: Final[Mapping[tuple[int, int], tuple[str, Chip]]] = {
    **{(0x17, number): (f"GA10{number}", GA10X) for number in _FIVE},
    **{(0x19, number): (f"AD10{number}", AD10X) for number in _FIVE},
    (0x18, 0): ("GH100", GH100),
    **{(0x1B, number): (f"GB20{number}", GB20X) for number in (2, 3, 5, 6, 7)},
}
_REFUSED: Final = {
    0x16: "Turing: its loader is another",
    0x17: "GA100 and what came of it: its firmware is loaded without FRTS, by another loader",
    0x1A: "GB10x: its firmware is not in any package that is known here",
}


def find_chip(architecture: int, implementation: int) -> tuple[str, Chip]:
    """A chip's name and family, by PMC_BOOT_42. Raises Unsupported, with the reason."""
    found = _KNOWN.get((architecture, implementation))
    if found is not None:
        return found
    known = ", ".join(name for name, _ in _KNOWN.values())
    why = _REFUSED.get(architecture, "this version does not know it")
    raise Unsupported(
        f"chip of architecture {architecture:#x}, implementation {implementation:#x}: {why};"
        f" over PCI {known} are booted. Use it through its kernel driver (DEV=NVK+NV)"
    )

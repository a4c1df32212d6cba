"""The memory controller's two hubs: where translation begins, for each VMID, and dropping TLBs.

VMID 0 sees video memory in an aperture, untranslated; that is where firmware, rings of the security
processor and descriptors of queues are. What lies outside of it is translated by page tables.

Sources: gfxhub_v3_0.c, gfxhub_v3_0_3.c, gfxhub_v12_0.c, mmhub_v3_0.c, mmhub_v3_0_2.c,
mmhub_v4_1_0.c, gmc_v11_0.c, gmc_v12_0.c, amdgpu_gmc.c of Linux 6.12.117. Context 0 with tables of
all levels, and not the flat one that Linux has there, is tinygrad's (T).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gpu.drivers.am.pci.chip import Chip
from gpu.drivers.am.pci.entries import DEPTH, PAGE
from gpu.drivers.am.pci.registers import Block

_ENGINE: Final = 17  # which Linux has for flushes by registers
_ENGINES: Final = 18
VMIDS: Final = 16
_VALID: Final = 1
_LAST_PAGE: Final = (1 << 48) // PAGE - 1
_FAULTS: Final = ("RANGE", "DUMMY_PAGE", "PDE0", "VALID", "READ", "WRITE", "EXECUTE")
_L2_FAULTS: Final = (*_FAULTS, "PDE1", "PDE2", "TRANSLATE_FURTHER", "NACK")
_CNTL3: Final = {"GC": 0x8012_0007, "MM": 0x8010_0007}  # as after reset, by the *_DEFAULT of Linux
_CNTL4, _CNTL5 = 0xC1, 0x3FE0
_UNCACHED: Final = 3  # MTYPE_UC
_PRIVATE_INVALIDATION: Final = 1 << 25  # of MMVM_L2_BANK_SELECT_RESERVED_CID2


class Context(NamedTuple):
    """What a hub translates of a VMID's addresses.

    Attributes:
        is_on: whether any.
        depth: levels of directories above the tables of pages.
        root: where the topmost table is, as entries of tables have it.
        start, end: addresses that are translated, the last one not among them.
    """

    is_on: bool
    depth: int
    root: int
    start: int
    end: int


class Hub:
    """One hub: ``GC`` for the graphics core and its copy engines, ``MM`` for all else."""

    def __init__(self, chip: Chip, block: Block, prefix: str):
        self.chip = chip
        self.block = block
        self.prefix = prefix

    def _vm(self, name: str) -> str:
        return f"{self.prefix}VM_{name}"

    def _mc(self, name: str) -> str:
        return f"{self.prefix}MC_VM_{name}"

    def start(self, scratch: int, dummy: int, root: int) -> None:
        """Sets the hub up.

        Args:
            scratch: offset in video memory of a page for accesses that lead nowhere.
            dummy: bus address of a page of the machine for those that fault.
            root: what tables of VMID 0 begin with, as entries of tables have it.
        """
        self._apertures(scratch, dummy)
        self._caches()
        self.set_context(0, root)
        self._no_identity()
        for number in range(_ENGINES):
            self.block.set_pair(
                self._vm("INVALIDATE_ENG0_ADDR_RANGE_LO32"),
                self._vm("INVALIDATE_ENG0_ADDR_RANGE_HI32"),
                0x1F_FFFF_FFFF,
                2 * number,
            )
        self.chip.flush_hdp()
        faults = {f"{each}_PROTECTION_FAULT_ENABLE_DEFAULT": 1 for each in _L2_FAULTS}
        self.block.update(self._vm("L2_PROTECTION_FAULT_CNTL"), **faults)
        self.invalidate(0)

    def _apertures(self, scratch: int, dummy: int) -> None:
        chip, block = self.chip, self.block
        block.set(self._mc("AGP_BASE"), 0)
        block.set(self._mc("AGP_BOT"), 0xFF_FFFF)  # begins behind its end: there is none
        block.set(self._mc("AGP_TOP"), 0)
        block.set(self._mc("SYSTEM_APERTURE_LOW_ADDR"), chip.fb_base >> 18)
        block.set(self._mc("SYSTEM_APERTURE_HIGH_ADDR"), chip.fb_end >> 18)
        default = self._mc("SYSTEM_APERTURE_DEFAULT_ADDR")
        block.set_pair(f"{default}_LSB", f"{default}_MSB", (chip.pa_base + scratch) // PAGE)
        faulting = self._vm("L2_PROTECTION_FAULT_DEFAULT_ADDR")
        block.set_pair(f"{faulting}_LO32", f"{faulting}_HI32", dummy // PAGE)
        block.update(self._vm("L2_PROTECTION_FAULT_CNTL2"), ACTIVE_PAGE_MIGRATION_PTE_READ_RETRY=1)

    def _caches(self) -> None:
        block = self.block
        block.update(
            self._mc("MX_L1_TLB_CNTL"),
            ENABLE_L1_TLB=1,
            SYSTEM_ACCESS_MODE=3,
            ENABLE_ADVANCED_DRIVER_MODEL=1,
            SYSTEM_APERTURE_UNMAPPED_ACCESS=0,
            ECO_BITS=0,
            MTYPE=_UNCACHED,
        )
        block.update(
            self._vm("L2_CNTL"),
            ENABLE_L2_CACHE=1,
            ENABLE_L2_FRAGMENT_PROCESSING=0,
            ENABLE_DEFAULT_PAGE_OUT_TO_SYSTEM_MEMORY=1,
            L2_PDE0_CACHE_TAG_GENERATION_MODE=0,
            PDE_FAULT_CLASSIFICATION=0,
            CONTEXT1_IDENTITY_ACCESS_MODE=1,
            IDENTITY_MODE_FRAGMENT_SIZE=0,
        )
        block.update(self._vm("L2_CNTL2"), INVALIDATE_ALL_L1_TLBS=1, INVALIDATE_L2_CACHE=1)
        third = self._vm("L2_CNTL3")
        block.set(
            third,
            block.fields(third, _CNTL3[self.prefix], BANK_SELECT=9, L2_CACHE_BIGK_FRAGMENT_SIZE=6),
        )
        fourth = self._vm("L2_CNTL4")
        block.set(
            fourth,
            block.fields(
                fourth, _CNTL4, VMC_TAP_PDE_REQUEST_PHYSICAL=0, VMC_TAP_PTE_REQUEST_PHYSICAL=0
            ),
        )
        fifth = self._vm("L2_CNTL5")
        block.set(fifth, block.fields(fifth, _CNTL5, L2_CACHE_SMALLK_FRAGMENT_SIZE=0))

    def _no_identity(self) -> None:
        block = self.block
        low = self._vm("L2_CONTEXT1_IDENTITY_APERTURE_LOW_ADDR")
        high = self._vm("L2_CONTEXT1_IDENTITY_APERTURE_HIGH_ADDR")
        offset = self._vm("L2_CONTEXT_IDENTITY_PHYSICAL_OFFSET")
        block.set_pair(f"{low}_LO32", f"{low}_HI32", 0xF_FFFF_FFFF)
        block.set_pair(f"{high}_LO32", f"{high}_HI32", 0)
        block.set_pair(f"{offset}_LO32", f"{offset}_HI32", 0)

    def set_context(self, vmid: int, root: int) -> None:
        """Has a VMID's addresses, all of 48 bits, translated by tables that begin with ``root``."""
        block = self.block
        for what, value in (("START", 0), ("END", _LAST_PAGE), ("BASE", root | _VALID)):
            name = self._vm(f"CONTEXT0_PAGE_TABLE_{what}_ADDR")
            block.set_pair(f"{name}_LO32", f"{name}_HI32", value, 2 * vmid)
        faults = {
            f"{each}_PROTECTION_FAULT_ENABLE_{kind}": 1
            for each in _FAULTS
            for kind in ("DEFAULT", "INTERRUPT")
        }
        block.update(
            self._vm("CONTEXT0_CNTL"),
            vmid,
            ENABLE_CONTEXT=1,
            PAGE_TABLE_DEPTH=DEPTH,
            PAGE_TABLE_BLOCK_SIZE=0,
            RETRY_PERMISSION_OR_INVALID_PAGE_FAULT=0,
            **faults,
        )

    def end_context(self, vmid: int) -> None:
        """Nothing of a VMID is translated any more."""
        self.block.set(self._vm("CONTEXT0_CNTL"), 0, vmid)

    def context(self, vmid: int) -> Context:
        """What is translated of a VMID's addresses, as the registers have it now."""
        block, name = self.block, self._vm("CONTEXT0_CNTL")
        control = block.get(name, vmid)
        names = [self._vm(f"CONTEXT0_PAGE_TABLE_{what}_ADDR") for what in ("START", "END", "BASE")]
        start, end, base = (block.get_pair(f"{n}_LO32", f"{n}_HI32", 2 * vmid) for n in names)
        return Context(
            bool(block.field(name, "ENABLE_CONTEXT", control)),
            block.field(name, "PAGE_TABLE_DEPTH", control),
            *(base & ~_VALID, start * PAGE, (end + 1) * PAGE),
        )

    def invalidate(self, vmid: int) -> None:
        """Drops what TLBs and caches of directories hold of a VMID; raises BootTimeout.

        Tables that the host has stored must have left the bridge before.
        """
        chip, block = self.chip, self.block
        request = self._vm(f"INVALIDATE_ENG{_ENGINE}_REQ")
        semaphore = self._vm(f"INVALIDATE_ENG{_ENGINE}_SEM")
        has_semaphore = self.prefix == "MM"
        if has_semaphore:
            chip.wait(block, semaphore, 1, 1)
        try:
            block.set(
                request,
                block.fields(
                    request,
                    PER_VMID_INVALIDATE_REQ=1 << vmid,
                    INVALIDATE_L2_PTES=1,
                    INVALIDATE_L2_PDE0=1,
                    INVALIDATE_L2_PDE1=1,
                    INVALIDATE_L2_PDE2=1,
                    INVALIDATE_L1_PTES=1,
                ),
            )
            chip.wait(block, self._vm(f"INVALIDATE_ENG{_ENGINE}_ACK"), 1 << vmid, 1 << vmid)
        finally:
            if has_semaphore:
                block.set(semaphore, 0)
        if has_semaphore:
            private = self._vm("L2_BANK_SELECT_RESERVED_CID2")
            block.set(private, block.get(private) | _PRIVATE_INVALIDATION)
            block.get(private)

    @property
    def fault_status(self) -> str:
        """The register that keeps what the first fault was; it has 64 bits since GC 12."""
        name = self._vm("L2_PROTECTION_FAULT_STATUS")
        return name if name in self.block.registers else f"{name}_LO32"

    def fault(self) -> tuple[int, int]:
        """Status and page address of the first fault since `clear_fault`; 0 for none."""
        name = self._vm("L2_PROTECTION_FAULT_ADDR")
        low, high = self.block.get(f"{name}_LO32"), self.block.get(f"{name}_HI32")
        return self.block.get(self.fault_status), (high << 32 | low) * PAGE

    def clear_fault(self) -> None:
        """Lets the next fault be kept."""
        name = self._vm("L2_PROTECTION_FAULT_CNTL")
        self.block.update(name, CLEAR_PROTECTION_FAULT_STATUS_ADDR=1)
        self.block.update(name, CLEAR_PROTECTION_FAULT_STATUS_ADDR=0)


def hubs_of(chip: Chip) -> tuple[Hub, Hub]:
    """The hub of the graphics core, and the other one."""
    return Hub(chip, chip.registers.gc, "GC"), Hub(chip, chip.registers.mmhub, "MM")


def find_memory(chip: Chip) -> None:
    """Where the card's own start has placed video memory for the chip."""
    block = chip.registers.mmhub
    chip.fb_base = (block.get("MMMC_VM_FB_LOCATION_BASE") & 0xFF_FFFF) << 24
    chip.fb_end = (block.get("MMMC_VM_FB_LOCATION_TOP") & 0xFF_FFFF) << 24 | 0xFF_FFFF
    chip.pa_base = block.get("MMMC_VM_FB_OFFSET") << 24


def start_memory(chip: Chip) -> None:
    """The hub that firmware is loaded through; that of the core follows once it has power."""
    block = chip.registers.mmhub
    find_memory(chip)
    if chip.fb_end - chip.fb_base + 1 < chip.vram.size:
        raise chip.fail(
            block,
            "MMMC_VM_FB_LOCATION_TOP",
            f"an aperture of {chip.vram.size:#x} bytes from {chip.fb_base:#x} on",
            "the card's own start has not placed its memory",
        )
    chip.vram.clear(chip.place("root of VMID 0", PAGE), PAGE)
    chip.places["dummy"] = _dummy_page(chip)
    start_hub(hubs_of(chip)[1])


def _dummy_page(chip: Chip) -> int:
    """Where accesses go that found no page; in video memory where none of the machine's is seen."""
    if chip.is_far:
        return chip.pa_base + chip.place("page for faults", PAGE)
    return chip.allocate_dma(PAGE).pieces[0].address


def start_hub(hub: Hub) -> None:
    """A hub with the pages and the tables that both have."""
    chip = hub.chip
    scratch = chip.place("scratch page", PAGE)
    root = chip.pa_base + chip.place("root of VMID 0", PAGE)
    hub.start(scratch, chip.places["dummy"], root)

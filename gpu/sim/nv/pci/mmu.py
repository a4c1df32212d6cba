"""Page tables as the card's MMU walks them: version 2 up to Ada, version 3 from Hopper on.

Fields: dev_mmu.h of pascal/gp100 (VER2) and hopper/gh100 (VER3), levels: kern_gmmu_fmt_{gp10x,
gh10x}.c, invalidation: dev_vm.h of ampere/ga100, kern_gmmu_tu102.c of open-gpu-kernel-modules
570.144. What was walked once, an absence too, is kept until the driver invalidates. A register of
the model tells what is done as nobody publishes the time that it takes (U).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gpu.core.bits import bits
from gpu.sim.nv.pci.registers import Refused
from gpu.sim.nv.pci.silicon import Silicon
from gpu.sim.physical import Region
from gpu.sim.translate import GpuSpace, Mapping, PageFault

INVALIDATE: Final = 0xB830B0  # NV_VIRTUAL_FUNCTION_PRIV_MMU_INVALIDATE in the function's window
PDB: Final = 0xB830A0
_ALL_VA, _ALL_PDB, _TRIGGER = 1 << 0, 1 << 1, 1 << 31
_KNOWN: Final = _ALL_VA | _ALL_PDB | 1 << 6 | 3 << 7 | _TRIGGER  # with SYS_MEMBAR and ACK
_INVALIDATE_NS: Final = 2000
_PAGE: Final = 4096
_BIG, _HUGE = 16, 21
_VIDEO, _PEER, _COHERENT = 0, 1, 2  # apertures of PTEs; those of PDEs are one more, 0 is invalid
_KINDS: Final = (0x0, 0x6)  # pitch, generic memory


class Leaf(NamedTuple):
    """What maps a page: its address and size, whether in the machine, and whether read-only."""

    address: int
    size: int
    system: bool
    writable: bool


class Mmu:
    """The MMU of one card.

    Attributes:
        spaces: those that engines have used.
    """

    def __init__(self, chip: Silicon):
        self.chip = chip
        self.version = 2 if chip.board.chip.qmd_major == 3 else 3
        self.shifts = (47, 38, 29, 21) if self.version == 2 else (56, 47, 38, 29, 21)
        self.spaces: list[WalkedSpace] = []
        regs = chip.regs
        regs.add("NV_VIRTUAL_FUNCTION_PRIV_MMU_INVALIDATE_PDB", PDB)
        regs.add("NV_VIRTUAL_FUNCTION_PRIV_MMU_INVALIDATE_UPPER_PDB", PDB + 4)
        regs.add("NV_VIRTUAL_FUNCTION_PRIV_MMU_INVALIDATE", INVALIDATE, write=self._invalidate)

    def reset(self) -> None:
        """No space is there any more."""
        self.spaces.clear()

    def _invalidate(self, value: int) -> None:
        regs, name = self.chip.regs, "NV_VIRTUAL_FUNCTION_PRIV_MMU_INVALIDATE"
        if regs.value(name) & _TRIGGER:
            raise Refused("the one before is not done")
        if value & ~_KNOWN:
            raise Refused(f"{value & ~_KNOWN:#x} is not modelled")
        if not value & _TRIGGER:
            raise Refused("without TRIGGER it does nothing")
        if not value & _ALL_VA:
            raise Refused("invalidation of some addresses is not modelled")
        regs.set(name, value)
        low, high = regs.value(f"{name}_PDB"), regs.value(f"{name}_UPPER_PDB")
        root = (high << 28 | low >> 4) << 12

        def done() -> None:
            for space in self.spaces:
                if value & _ALL_PDB or space.root == root:
                    space.flush_tlb()
            regs.set(name, value & ~_TRIGGER)

        self.chip.later.after(_INVALIDATE_NS, "invalidate translations", done)

    def region(self, system: bool) -> Region:
        """What memory an entry is of."""
        return self.chip.bus if system else self.chip.vram

    def word(self, address: int, system: bool) -> int:
        """Eight bytes of a table."""
        if system:
            return int.from_bytes(self.chip.bus.load(address, 8), "little")
        if address + 8 > self.chip.vram.size:
            self.chip.violation(f"a page table at {address:#x}, beyond video memory")
            return 0
        return self.chip.vram.read_word(address, 8)


class WalkedSpace(GpuSpace):
    """Addresses that the tables below a page directory give.

    Attributes:
        root: where that is; None while nobody has told.
        system: whether in the machine's memory.
    """

    def __init__(self, mmu: Mmu):
        super().__init__()
        self._mmu = mmu
        self.root: int | None = None
        self.system = False
        self._tlb: dict[int, Mapping] = {}  # by their first 4 KiB
        self._sizes: set[int] = set()
        self._absent: set[int] = set()
        mmu.spaces.append(self)

    def close(self) -> None:
        """No engine uses it any more."""
        if self in self._mmu.spaces:
            self._mmu.spaces.remove(self)

    def flush_tlb(self) -> None:
        """Forgets all that was walked."""
        self.generation += 1
        self._tlb.clear()
        self._sizes.clear()
        self._absent.clear()

    def translate(self, address: int, write: bool) -> Mapping:
        """What one access leads to. Raises PageFault."""
        mapping = self._cached(address)
        if mapping is None:
            if address // _PAGE in self._absent:
                raise PageFault(address, write, present=False)
            leaf, _ = self.walk(address)
            if leaf is None:
                self._absent.add(address // _PAGE)
                raise PageFault(address, write, present=False)
            mapping = self._keep(address, leaf)
        if write and not mapping.writable:
            raise PageFault(address, write, present=True)
        return mapping

    def overlapping(self, start: int, end: int) -> Mapping | None:
        """As `GpuSpace`."""
        at = start
        while at < end:
            leaf, covered = self.walk(at)
            if leaf is not None:
                return self._mapping(at, leaf)
            at = (at // covered + 1) * covered
        return None

    def walk(self, address: int) -> tuple[Leaf | None, int]:
        """What an address leads to by the tables themselves, and how many bytes are as it is."""
        mmu = self._mmu
        if self.root is None or address >> (49 if mmu.version == 2 else 57):
            return None, 1 << 57
        table, system, top = self.root, self.system, 49 if mmu.version == 2 else 57
        for shift in mmu.shifts[:-1]:
            index = bits(address, top - 1, shift)
            raw = mmu.word(table + 8 * index, system)
            if raw & 1:
                mmu.chip.violation(f"a page of {1 << shift:#x} bytes at {address:#x}: not modelled")
                return None, 1 << shift
            aperture = bits(raw, 2, 1)
            if not aperture:
                return None, 1 << shift
            table, system, top = self._below(raw, aperture), aperture != 1, shift
        return self._last(address, table + 16 * bits(address, top - 1, _HUGE), system)

    def _last(self, address: int, entry: int, system: bool) -> tuple[Leaf | None, int]:
        """Behind the directory whose entries lead to a table of large and one of small pages."""
        mmu = self._mmu
        low, high = mmu.word(entry, system), mmu.word(entry + 8, system)
        if low & 1:
            return self._leaf(address, low, 1 << _HUGE), 1 << _HUGE
        found: list[Leaf | None] = []
        if aperture := bits(low, 2, 1):
            if mmu.version == 2:
                table = bits(low, 32 if aperture == 1 else 53, 4) << 8
            else:
                table = bits(low, 51, 8) << 8
            index = bits(address, _HUGE - 1, _BIG)
            found.append(self._entry(address, table + 8 * index, aperture != 1, 1 << _BIG))
        if aperture := bits(high, 2, 1):
            table = self._below(high, aperture)
            index = bits(address, _HUGE - 1, 12)
            found.append(self._entry(address, table + 8 * index, aperture != 1, _PAGE))
        pages = [leaf for leaf in found if leaf is not None]
        if len(pages) == 2:
            mmu.chip.violation(f"{address:#x} is in a large page and in a small one")
        if not found:
            return None, 1 << _HUGE
        return (pages[0] if pages else None), _PAGE

    def _entry(self, address: int, place: int, system: bool, size: int) -> Leaf | None:
        raw = self._mmu.word(place, system)
        return self._leaf(address, raw, size) if raw & 1 else None

    def _below(self, raw: int, aperture: int) -> int:
        if self._mmu.version == 3:
            return bits(raw, 51, 12) << 12
        return bits(raw, 32 if aperture == 1 else 53, 8) << 12

    def _leaf(self, address: int, raw: int, size: int) -> Leaf | None:
        mmu, aperture = self._mmu, bits(raw, 2, 1)
        what = f"the entry {raw:#x} for {address:#x}"
        if aperture == _PEER:
            mmu.chip.violation(f"{what} is of a peer, of which there is none")
            return None
        if mmu.version == 2:
            kind, place = bits(raw, 63, 56), bits(raw, 53 if aperture else 32, 8) << 12
            writable, privileged = not raw >> 6 & 1, raw >> 5 & 1
            unknown = raw & 1 << 4 or bits(raw, 55, 54 if aperture else 33)
        else:
            kind, place = bits(raw, 11, 8), bits(raw, 51, 12) << 12
            writable, privileged = not raw >> 5 & 1, raw >> 4 & 1
            unknown = raw >> 52
        if unknown or kind not in _KINDS:
            mmu.chip.violation(f"{what} has reserved bits, or kind {kind:#x}")
            return None
        if place % size:
            mmu.chip.violation(f"{what}: {place:#x} is not aligned to its {size:#x} bytes")
            return None
        if privileged:
            return None
        if not aperture and place + size > mmu.chip.vram.size:
            mmu.chip.violation(f"{what}: {place:#x} is beyond video memory")
            return None
        if not aperture and (place in mmu.chip.wpr2 or place + size - 1 in mmu.chip.wpr2):
            mmu.chip.violation(f"{what}: {place:#x} is protected by WPR2")
            return None
        return Leaf(place, size, aperture >= _COHERENT, bool(writable))

    def _cached(self, address: int) -> Mapping | None:
        for size in self._sizes:
            mapping = self._tlb.get(address // size * size)
            if mapping is not None and mapping.end > address:
                return mapping
        return None

    def _mapping(self, address: int, leaf: Leaf) -> Mapping:
        start = address // leaf.size * leaf.size
        region = self._mmu.region(leaf.system)
        return Mapping(start, start + leaf.size, region, leaf.address, writable=leaf.writable)

    def _keep(self, address: int, leaf: Leaf) -> Mapping:
        mapping = self._mapping(address, leaf)
        self._tlb[mapping.start] = mapping
        self._sizes.add(leaf.size)
        return mapping

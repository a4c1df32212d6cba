"""The two hubs of virtual memory: address spaces, translations kept, invalidation, faults.

GFXHUB serves packet processors, shaders and copy engines, MMHUB firmware and interrupts.
gfxhub_v3_0.c, gfxhub_v3_0_3.c, gfxhub_v12_0.c, mmhub_v3_0.c, mmhub_v3_0_2.c, mmhub_v4_1_0.c,
gmc_v11_0.c and gmc_v12_0.c of Linux 6.12.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from gpu.sim.amd.pci.registers import Refused
from gpu.sim.amd.pci.silicon import FB_BASE, Silicon
from gpu.sim.amd.pci.tables import (
    EXECUTABLE,
    GFX11,
    GFX12,
    PAGE_BITS,
    READABLE,
    SYSTEM,
    WRITABLE,
    Leaf,
    Walk,
    WalkError,
)
from gpu.sim.physical import Region
from gpu.sim.translate import Mapping, PageFault, Translation

VMIDS: Final = 16
ENGINES: Final = 18
_ACK_NS: Final = 1000
_FLUSH_BITS: Final = ("INVALIDATE_L2_PTES", "INVALIDATE_L1_PTES")
_PRIVATE_INVALIDATION: Final = 1 << 25  # of L2_BANK_SELECT_RESERVED_CID2 (gmc_v11_0.c)
_INTERRUPTS: Final = {
    "range": "RANGE_PROTECTION_FAULT_ENABLE_INTERRUPT",
    "valid": "VALID_PROTECTION_FAULT_ENABLE_INTERRUPT",
    "read": "READ_PROTECTION_FAULT_ENABLE_INTERRUPT",
    "write": "WRITE_PROTECTION_FAULT_ENABLE_INTERRUPT",
    "execute": "EXECUTE_PROTECTION_FAULT_ENABLE_INTERRUPT",
}
_TOLD: Final = {"valid": 0x08, "range": 0x08, "read": 0x10, "write": 0x20}
FaultTeller = Callable[[str, int, int, int], None]
"""Is told of a fault: the hub's name, VMID, address, what kfd_int_process_v11.c reads from the
interrupt's ring (8 not valid, 0x10 not readable, 0x20 not writable), and 1 for a write."""


class HubFault(PageFault):
    """A translation that a hub refused.

    Attributes:
        kind: "range", "valid", "read", "write".
        level: of the tables, where none was valid.
    """

    def __init__(self, address: int, write: bool, kind: str, level: int = 0):
        super().__init__(address, write, present=kind in ("read", "write"))
        self.kind = kind
        self.level = level


class Hub:
    """One hub.

    Attributes:
        spaces: what addresses mean, by VMID.
        tell: is told of faults that interrupts are enabled for.
        protected: video memory that tables must not lead to.
    """

    def __init__(self, chip: Silicon, name: str):
        """`name` is GFXHUB or MMHUB."""
        self.chip = chip
        self.name = name
        self._vm, self._mc = ("GCVM_", "GCMC_VM_") if name == "GFXHUB" else ("MMVM_", "MMMC_VM_")
        self.protected: Callable[[], range] = lambda: range(0)
        self.tell: FaultTeller = lambda hub, vmid, address, kind: None
        self._held: set[int] = set()  # semaphores
        self._private: set[int] = set()  # VMIDs of which MMHUB's private cache has yet to forget
        self._add_contexts()
        self._hook()
        generation = GFX12 if chip.board.is_gfx12 else GFX11
        self.walk = Walk(generation, self._read_table)
        self.spaces = [Vmid(self, number) for number in range(VMIDS)]

    def reset(self) -> None:
        """Nothing is kept, nobody holds a semaphore."""
        self._held.clear()
        self._private.clear()
        for space in self.spaces:
            space.flush()

    def value(self, name: str) -> int:
        """What a register of the hub holds, by its name without the hub's."""
        return self.chip.regs.value(self._vm + name)

    def aperture(self, name: str) -> int:
        """The same of the memory controller's."""
        return self.chip.regs.value(self._mc + name)

    def field(self, name: str, field: str) -> int:
        """A field of a register of the hub."""
        return self.chip.regs.field(self._vm + name, field)

    def why_down(self) -> str:
        """Why it translates nothing yet; empty where it does."""
        if not self.chip.regs.field(f"{self._mc}MX_L1_TLB_CNTL", "ENABLE_L1_TLB"):
            return f"{self._mc}MX_L1_TLB_CNTL.ENABLE_L1_TLB is 0"
        if not self.field("L2_CNTL", "ENABLE_L2_CACHE"):
            return f"{self._vm}L2_CNTL.ENABLE_L2_CACHE is 0"
        return ""

    def region(self, leaf: Leaf) -> Region:
        """What memory an entry is of."""
        return self.chip.bus if leaf.flags & SYSTEM else self.chip.vram

    def report(self, vmid: int, fault: PageFault, client: int = 0) -> None:
        """Notes a fault where software looks: the first one stays until it is cleared."""
        address, write = fault.address, fault.write
        refused = "execute" if fault.execute else "write" if write else "read"
        kind, level = refused if fault.present else "valid", 0
        if isinstance(fault, HubFault):
            kind, level = fault.kind, fault.level
        regs, name = self.chip.regs, f"{self._vm}L2_PROTECTION_FAULT_"
        status = f"{name}STATUS" if f"{name}STATUS" in regs.names() else f"{name}STATUS_LO32"
        if not regs.value(status):
            bits = {"VMID": vmid, "CID": client, "RW": int(write)}
            bits["MAPPING_ERROR"] = int(kind == "range")
            bits["WALKER_ERROR"] = 1 + min(level, 3) if kind == "valid" else 0
            bits["PERMISSION_FAULTS"] = {"read": 1, "write": 2, "execute": 4}.get(kind, 0)
            fields = regs.fields(status)
            regs.set(status, sum(v << fields[field][0] for field, v in bits.items()))
            page = address >> PAGE_BITS
            regs.set(f"{name}ADDR_LO32", page)
            regs.set(f"{name}ADDR_HI32", page >> 32)
        else:
            regs.set(status, regs.value(status) | 1)  # MORE_FAULTS
        if self.field(f"CONTEXT{vmid}_CNTL", _INTERRUPTS[kind]):
            self.tell(self.name, vmid, address, _TOLD.get(kind, 0) | write)

    def _read_table(self, address: int, in_system: bool) -> int:
        chip = self.chip
        if in_system:
            return int.from_bytes(chip.bus.load(address, 8), "little")
        if address + 8 > chip.vram.size:
            raise WalkError(0, f"a table at {address:#x} is beyond video memory")
        return chip.vram.read_word(address, 8)

    def _add_contexts(self) -> None:
        """Those of VMID 1 to 15, which Linux finds by distances too (ctx_distance)."""
        regs = self.chip.regs
        base = f"{self._vm}CONTEXT"
        for vmid in range(1, VMIDS):
            regs.repeat(f"{base}0_CNTL", f"{base}{vmid}_CNTL", vmid)
            for part in ("BASE", "START", "END"):
                for half in ("LO32", "HI32"):
                    name = f"_PAGE_TABLE_{part}_ADDR_{half}"
                    regs.repeat(f"{base}0{name}", f"{base}{vmid}{name}", 2 * vmid)

    def _hook(self) -> None:
        regs = self.chip.regs
        regs.begin(f"{self._mc}FB_LOCATION_BASE", FB_BASE >> 24)
        regs.begin(f"{self._mc}FB_LOCATION_TOP", FB_BASE + self.chip.vram.size - 1 >> 24)
        for name in ("FB_LOCATION_BASE", "FB_LOCATION_TOP"):
            regs.hook(f"{self._mc}{name}", write=self._keep_location)
        for engine in range(ENGINES):
            name = f"{self._vm}INVALIDATE_ENG{engine}_"
            take, leave = partial(self._take, engine), partial(self._leave, engine)
            regs.hook(f"{name}SEM", take, leave)
            regs.hook(f"{name}REQ", write=partial(self._request, engine))
            regs.hook(f"{name}ACK", write=self._keep_location)
        control = f"{self._vm}L2_PROTECTION_FAULT_CNTL"
        regs.hook(control, write=partial(self._fault_control, control))
        if self.name == "MMHUB":
            private = f"{self._vm}L2_BANK_SELECT_RESERVED_CID2"
            regs.hook(private, write=partial(self._invalidate_private, private))

    def _keep_location(self, value: int) -> None:
        raise Refused("it is read-only, firmware has set it")

    def _take(self, engine: int) -> int:
        if engine in self._held:
            return 0
        self._held.add(engine)
        return 1

    def _leave(self, engine: int, value: int) -> None:
        if value:
            raise Refused("a semaphore is released by 0")
        self._held.discard(engine)

    def _request(self, engine: int, value: int) -> None:
        regs, name = self.chip.regs, f"{self._vm}INVALIDATE_ENG{engine}_"
        regs.set(f"{name}REQ", value)
        regs.set(f"{name}ACK", 0)
        if self.name == "MMHUB" and engine not in self._held:
            raise Refused("its semaphore was not taken, so that the acknowledgement may get lost")
        if why := self.why_down():
            self.chip.sim.debug.note(f"{self.name}: no acknowledgement of {value:#x}, as {why}")
            return
        if not regs.pair(f"{name}ADDR_RANGE_LO32", f"{name}ADDR_RANGE_HI32"):
            raise Refused(f"{name}ADDR_RANGE is 0: it invalidates nothing")
        fields = regs.fields(f"{name}REQ")
        complete = all(value >> fields[field][0] & 1 for field in _FLUSH_BITS)
        if value >> fields["CLEAR_PROTECTION_FAULT_STATUS_ADDR"][0] & 1:
            self._clear_fault()

        def done() -> None:
            for vmid in range(VMIDS):
                if value >> vmid & 1 and complete:
                    self._invalidate(vmid)
            regs.set(f"{name}ACK", value & (1 << VMIDS) - 1)

        self.chip.later.after(_ACK_NS, f"invalidate translations of {self.name}", done)

    def _invalidate(self, vmid: int) -> None:
        """MMHUB's private cache keeps what it has until it is told apart (gmc_v11_0.c)."""
        if self.name == "MMHUB":
            self._private.add(vmid)
        else:
            self.spaces[vmid].flush()

    def _invalidate_private(self, name: str, value: int) -> None:
        self.chip.regs.set(name, value)
        if value & _PRIVATE_INVALIDATION:
            for vmid in self._private:
                self.spaces[vmid].flush()
            self._private.clear()

    def _fault_control(self, name: str, value: int) -> None:
        if value & 1:
            self._clear_fault()
        self.chip.regs.set(name, value & ~1)

    def _clear_fault(self) -> None:
        regs = self.chip.regs
        for part in ("STATUS", "STATUS_LO32", "STATUS_HI32", "ADDR_LO32", "ADDR_HI32"):
            name = f"{self._vm}L2_PROTECTION_FAULT_{part}"
            if name in regs.names():
                regs.set(name, 0)


class Vmid(Translation):
    """Addresses of one VMID of a hub: a walk of its page tables at each miss, and a TLB before.

    That a page was not there is kept as well, as entries are fetched some at a time, valid or not.
    VMID 0 sees video memory at its place among the chip's addresses too (FB_LOCATION), where the
    system aperture lets it.
    """

    def __init__(self, hub: Hub, number: int):
        super().__init__()
        self._hub = hub
        self._number = number
        self._tlb: dict[tuple[int, int], tuple[Mapping, int]] = {}
        self._sizes: list[int] = []
        self._absent: dict[int, int] = {}  # level of the entry that was not valid, by page
        self._direct: Mapping | None = None  # all of the aperture

    def flush(self) -> None:
        """Forgets all that was translated."""
        self.generation += 1
        self._tlb.clear()
        self._sizes.clear()
        self._absent.clear()

    def translate(self, address: int, write: bool) -> Mapping:
        """What one access leads to. Raises PageFault; who asked has the hub `report` it."""
        page = address >> PAGE_BITS
        found = next(
            (hit for size in self._sizes if (hit := self._tlb.get((size, page // size)))), None
        )
        mapping, flags = found or self._miss(address, write)
        if write and not mapping.writable:
            raise HubFault(address, write, "write")
        if not write and not flags & READABLE:
            raise HubFault(address, write, "read")
        return mapping

    def load(self, address: int, size: int) -> bytes:
        """Bytes as firmware reads them. Raises PageFault."""
        try:
            spans = list(self.spans(address, size, write=False))
        except PageFault as fault:
            self._hub.report(self._number, fault)
            raise
        return b"".join(mapping.region.load(at, count) for mapping, at, count in spans)

    def store(self, address: int, data: bytes) -> None:
        """Writes bytes as firmware does. Raises PageFault."""
        try:
            spans = list(self.spans(address, len(data), write=True))
        except PageFault as fault:
            self._hub.report(self._number, fault)
            raise
        done = 0
        for mapping, at, count in spans:
            mapping.region.store(at, data[done : done + count])
            done += count

    def _miss(self, address: int, write: bool) -> tuple[Mapping, int]:
        hub = self._hub
        if not self._number and (direct := self._aperture(address)):
            return direct, READABLE
        leaf, start = self._walk(address, write)
        first = start + (leaf.first_page << PAGE_BITS)
        region = hub.region(leaf)
        self._check_protected(address, write, leaf)
        if region is hub.chip.vram and leaf.physical + leaf.pages * 4096 > hub.chip.vram.size:
            hub.chip.violation(f"{address:#x} of VMID {self._number} is beyond video memory")
            raise HubFault(address, write, "range")
        mapping = Mapping(
            *(first, first + (leaf.pages << PAGE_BITS), region, leaf.physical),
            writable=bool(leaf.flags & WRITABLE),
            executable=bool(leaf.flags & EXECUTABLE),
            cached=leaf.cached,
        )
        found = mapping, leaf.flags
        if not first & (leaf.pages << PAGE_BITS) - 1:
            self._tlb[leaf.pages, (first >> PAGE_BITS) // leaf.pages] = found
            if leaf.pages not in self._sizes:
                self._sizes.append(leaf.pages)
        return found

    def _check_protected(self, address: int, write: bool, leaf: Leaf) -> None:
        """What the security processor has taken for itself is nobody's."""
        hub = self._hub
        taken, end = hub.protected(), leaf.physical + (leaf.pages << PAGE_BITS)
        if leaf.flags & SYSTEM or end <= taken.start or leaf.physical >= taken.stop:
            return
        hub.chip.violation(f"{address:#x} of VMID {self._number} is in the TMR")
        raise HubFault(address, write, "write" if write else "read")

    def _aperture(self, address: int) -> Mapping | None:
        """Video memory at its own place."""
        hub = self._hub
        base, top = hub.aperture("FB_LOCATION_BASE") << 24, hub.aperture("FB_LOCATION_TOP") + 1
        low = hub.aperture("SYSTEM_APERTURE_LOW_ADDR") << 18
        high = (hub.aperture("SYSTEM_APERTURE_HIGH_ADDR") + 1) << 18
        if hub.why_down():  # as firmware left it
            low, high = base, top << 24
        first, end = max(base, low), min(top << 24, high)
        if not first <= address < end:
            return None
        found = self._direct
        if found is None or (found.start, found.end) != (first, end):
            self._direct = found = Mapping(first, end, hub.chip.vram, first - base)
        return found

    def _walk(self, address: int, write: bool) -> tuple[Leaf, int]:
        hub, name = self._hub, f"CONTEXT{self._number}_"
        pages = {
            part: hub.value(f"{name}PAGE_TABLE_{part}_ADDR_LO32")
            | hub.value(f"{name}PAGE_TABLE_{part}_ADDR_HI32") << 32
            for part in ("BASE", "START", "END")
        }
        page = address >> PAGE_BITS
        inside = pages["START"] <= page <= pages["END"]
        kind = "valid" if inside else "range"
        level, why = 0, hub.why_down()
        if not why and not hub.field(f"{name}CNTL", "ENABLE_CONTEXT"):
            why = f"{name}CNTL.ENABLE_CONTEXT is 0"
        if why:
            hub.chip.violation(f"{hub.name} VMID {self._number} is used while {why}")
        elif page in self._absent:
            level = self._absent[page]
        elif inside:
            depth = hub.field(f"{name}CNTL", "PAGE_TABLE_DEPTH")
            block = hub.field(f"{name}CNTL", "PAGE_TABLE_BLOCK_SIZE")
            try:
                leaf = hub.walk(pages["BASE"], depth, block, page - pages["START"])
                return leaf, pages["START"] << PAGE_BITS
            except WalkError as error:
                level = error.level
                if error.violation:
                    hub.chip.violation(f"{hub.name} VMID {self._number}: {error.violation}")
                else:
                    self._absent[page] = level
        raise HubFault(address, write, kind, level)

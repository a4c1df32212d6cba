"""A small driver for tests of the card's model: raw register writes, and no more than they need."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from gpu.core.pci import PciAddress
from gpu.core.window import MemoryWindow
from gpu.sim.amd.chip.dispatch import KernelExecutor
from gpu.sim.amd.pci.nbio import HOLE
from gpu.sim.amd.pci.silicon import FB_BASE
from gpu.sim.amd.pci.world import AmPciWorld
from gpu.sim.linecaches import Mode
from gpu.transport.pci.bus import HostPci
from gpu.transport.pci.function import PciFunction

AT = PciAddress(0, 3, 0, 0)
MIB = 1 << 20
MSG, RING, COMMAND, FENCE, TMR = (MIB * n for n in (1, 2, 3, 4, 64))
"""Where things are in video memory."""
READY = 1 << 31
PSP_TYPES = {2: 0x10000, 1: 0x20000, 3: 0x80000, 5: 0x10000000, 7: 0xB0000}
PSP_TYPES |= {8: 0xD0000, 9: 0xC0000, 10: 0xE0000}
MAPPED = 3 << 5 | 1  # READABLE, WRITEABLE, VALID


class Client:
    """A function in the hands of a process, by names of registers."""

    def __init__(
        self,
        chip: str = "gfx1100",
        seed: int = 0,
        coherence: Mode = "check",
        executor: KernelExecutor | None = None,
        bar_size: int | None = None,
        settle_ns: int = 0,
        sound_driver: str = "vfio-pci",
        moved: int = 0,
    ):
        self.world = AmPciWorld(
            *(seed, chip),
            coherence=coherence,
            executor=executor,
            bar_size=bar_size,
            settle_ns=settle_ns,
            sound_driver=sound_driver,
            moved=moved,
        )
        self.card = self.world.gpus[0]
        self.known = self.card.chip.regs
        self.open()
        self.fence = self.wptr = self.next_table = 0

    def open(self) -> None:
        self.function: PciFunction = HostPci(self.world.os).open(AT)
        self.function.set_bus_master(True)
        self.registers = self.function.window(5)
        self.vram: MemoryWindow = self.function.map(0, 0, self.card.bars[0].window.size)
        self.doorbells: MemoryWindow = self.function.map(2, 0, 0x2000)
        self.hole: MemoryWindow = self.function.map(5, HOLE, 4096)

    def close(self) -> None:
        self.function.close()
        self.world.close()

    @property
    def is_gfx12(self) -> bool:
        return self.card.chip.board.is_gfx12

    @property
    def violations(self) -> list[str]:
        return self.world.debug.violations

    def told(self, *parts: str) -> bool:
        """Whether the last violation has all these parts; it is forgotten then."""
        last = self.violations[-1] if self.violations else ""
        assert all(part in last for part in parts), last
        self.world.debug.records.clear()
        return True

    def read(self, name: str) -> int:
        return self._access(self.known.address(name), None)

    def write(self, name: str, value: int) -> None:
        self._access(self.known.address(name), value)

    def _access(self, address: int, value: int | None) -> int:
        if 4 * address >= self.registers.size:
            self.write("BIF_BX0_PCIE_INDEX2", 4 * address)
            address = self.known.address("BIF_BX0_PCIE_DATA2")
        if value is None:
            return self.registers.read(4 * address, 4)
        self.registers.write(4 * address, 4, value)
        return 0

    def pack(self, name: str, **fields: int) -> int:
        places = self.known.fields(name)
        return sum(value << places[field][0] for field, value in fields.items())

    def change(self, name: str, **fields: int) -> None:
        value, places = self.read(name), self.known.fields(name)
        for field, new in fields.items():
            low, width = places[field]
            value = value & ~((1 << width) - 1 << low) | new << low
        self.write(name, value)

    def pair(self, low: str, high: str, value: int) -> None:
        self.write(low, value & 0xFFFFFFFF)
        self.write(high, value >> 32)

    def flush(self) -> None:
        self.hole.write(0, 4, 0)

    def wait(self, name: str, mask: int, value: int, tries: int = 200) -> int:
        for _ in range(tries):
            found = self.read(name)
            if found & mask == value:
                return found
            self.world.waiter.idle(100_000)
        raise AssertionError(f"{name} is {self.read(name):#x}, not {value:#x}: {self.violations}")

    def settle(self, time_ns: int) -> None:
        """Lets time pass."""
        end = self.world.waiter.now_ns() + time_ns
        while self.world.waiter.now_ns() < end:
            self.world.waiter.idle(end - self.world.waiter.now_ns())

    def poll(self, offset: int, value: int, tries: int = 200) -> None:
        for _ in range(tries):
            if self.vram.read(offset, 4) == value:
                return
            self.world.waiter.idle(100_000)
        raise AssertionError(f"{self.vram.read(offset, 4):#x}: {self.violations}")

    # The security processor.

    def psp(self, number: int) -> str:
        return f"{'MPASP' if self.is_gfx12 else 'MP0'}_SMN_C2PMSG_{number}"

    def images(self, ending: str) -> bytes:
        (found,) = [d for n, d in self.world.firmware.items() if n.endswith(f"{ending}.bin")]
        return found

    def components(self) -> Iterator[tuple[int, bytes]]:
        """Commands of the bootloader in their order, with what is loaded."""
        data = self.images("_sos")
        (count,) = struct.unpack_from("<I", data, 32)
        parts = {}
        for i in range(count):
            kind, _, offset, size = struct.unpack_from("<4I", data, 36 + 16 * i)
            parts[kind] = data[256 + offset :][:size]
        for kind in (3, 5, 2, 7, 8, 9, 10, 1):
            yield PSP_TYPES[kind], parts[kind]

    def toc(self) -> bytes:
        data = self.images("_sos")
        for i in range(struct.unpack_from("<I", data, 32)[0]):
            kind, _, offset, size = struct.unpack_from("<4I", data, 36 + 16 * i)
            if kind == 4:
                return data[256 + offset :][:size]
        raise AssertionError

    def load_component(self, command: int, data: bytes, at: int = MSG) -> int:
        self.vram.store(at, data.ljust(MIB, b"\0"))
        self.flush()
        self.write(self.psp(36), FB_BASE + at >> 20)
        self.write(self.psp(35), command)
        if command == 0x20000:
            self.wait(self.psp(81), 0, 0)
        return self.wait(self.psp(35), READY, READY)

    def start_sos(self) -> None:
        for command, data in self.components():
            assert self.load_component(command, data) == READY
        assert self.read(self.psp(81))

    def make_ring(self, address: int = FB_BASE + RING, size: int = 0x10000) -> int:
        self.wait(self.psp(64), READY, READY)
        for number, value in ((69, address & 0xFFFFFFFF), (70, address >> 32), (71, size)):
            self.write(self.psp(number), value)
        self.write(self.psp(64), 2 << 16)
        self.wptr, self.ring_dwords = 0, size // 4
        return self.wait(self.psp(64), READY, READY)

    def submit(self, command: int, *body: int) -> tuple[int, ...]:
        """A command; its status, session, firmware's address (2) and TMR size."""
        words = struct.pack("<7I", 1024, 1, command, 0, 0, 0, 0) + struct.pack(
            f"<{len(body)}I", *body
        )
        self.vram.store(COMMAND, words.ljust(1024, b"\0"))
        self.fence += 1
        frame = struct.pack(
            "<6I", COMMAND, FB_BASE >> 32, 0, FENCE, FB_BASE >> 32, self.fence
        ).ljust(64, b"\0")
        self.vram.store(RING + 4 * self.wptr, frame)
        self.flush()
        self.wptr = (self.wptr + 16) % self.ring_dwords
        self.write(self.psp(67), self.wptr)
        self.poll(FENCE, self.fence)
        return struct.unpack_from("<5I", self.vram.load(COMMAND + 864, 20))

    def load_toc(self) -> int:
        toc = self.toc()
        self.vram.store(MSG, toc)
        status, *_, size = self.submit(0x20, MSG, FB_BASE >> 32, len(toc))
        assert status == 0
        return size

    def setup_tmr(self, size: int, at: int = TMR) -> int:
        return self.submit(5, at, FB_BASE >> 32, size, 2, at, 0)[0]

    def load_ip(self, kind: int, data: bytes) -> int:
        self.vram.store(MSG, data)
        return self.submit(6, MSG, FB_BASE >> 32, len(data), kind)[0]

    def ip_firmware(self) -> Iterator[tuple[int, bytes]]:
        """Types and contents, the power management's first, RLC's last."""
        files = self.world.firmware.items()
        yield 18, next(data for name, data in files if "/smu_" in name)[256:]
        sdma = next(data for name, data in files if "/sdma_" in name)
        if self.is_gfx12:
            yield 71, sdma[256:]
        else:
            _, first, _, _, at, second, *_ = struct.unpack_from("<8I", sdma, 32)
            yield 71, sdma[256:][:first]
            yield 72, sdma[at:][:second]
        for name, code_type, stacks in (
            ("_pfp", 87, (90, 91)),
            ("_me", 88, (92, 93)),
            ("_mec", 89, (94, 95, 96, 97)),
        ):
            data = self.images(name)
            _, size, at, data_size, data_at, *_ = struct.unpack_from("<7I", data, 32)
            yield code_type, data[at:][:size]
            for stack in stacks:
                yield stack, data[data_at:][:data_size]
        imu = self.images("_imu")
        first, _, second, after, *_ = struct.unpack_from("<4I", imu, 32)
        yield 68, imu[256:][:first]
        yield 69, imu[256 + after :][:second]
        rlc = self.images("_rlc")
        numbers = struct.unpack_from("<43I", rlc, 32)
        for kind, at in ((26, 31), (48, 33), (25, 37), (7, 41)):
            yield kind, rlc[numbers[at + 1] :][: numbers[at]]
        (size,) = struct.unpack_from("<I", rlc, 20)
        yield 8, rlc[256:][:size]

    def load_all(self) -> None:
        """From sOS to the graphics core's start."""
        assert self.make_ring() == READY
        size = self.load_toc()
        for kind, data in self.ip_firmware():
            assert self.load_ip(kind, data) == 0, (kind, self.violations)
            if kind == 18 and not self.is_gfx12:
                assert self.setup_tmr(size) == 0, self.violations
        assert self.submit(0x21)[0] == 0, self.violations
        self.wait("RLC_RLCS_BOOTLOAD_STATUS", READY, READY)
        assert self.read("CP_STAT") == 0

    # Power management.

    def message(self, message: int, argument: int = 0) -> tuple[int, int]:
        self.write("MP1_SMN_C2PMSG_90", 0)
        self.write("MP1_SMN_C2PMSG_82", argument)
        self.write("MP1_SMN_C2PMSG_66", message)
        for _ in range(100):
            if status := self.read("MP1_SMN_C2PMSG_90"):
                break
        return status, self.read("MP1_SMN_C2PMSG_82")

    # Memory.

    def start_hub(self, name: str) -> None:
        vm, mc = ("GCVM_", "GCMC_VM_") if name == "GFXHUB" else ("MMVM_", "MMMC_VM_")
        size = self.card.chip.vram.size
        self.write(f"{mc}SYSTEM_APERTURE_LOW_ADDR", FB_BASE >> 18)
        self.write(f"{mc}SYSTEM_APERTURE_HIGH_ADDR", FB_BASE + size - 1 >> 18)
        self.change(f"{mc}MX_L1_TLB_CNTL", ENABLE_L1_TLB=1, SYSTEM_ACCESS_MODE=3)
        self.change(f"{vm}L2_CNTL", ENABLE_L2_CACHE=1)
        for engine in range(18):
            name = f"{vm}INVALIDATE_ENG{engine}_ADDR_RANGE_"
            self.pair(f"{name}LO32", f"{name}HI32", 0x1FFFFFFFFF)

    def context(self, name: str, vmid: int, root: int, depth: int = 3, end: int = 1 << 36) -> None:
        vm = "GCVM_" if name == "GFXHUB" else "MMVM_"
        table = f"{vm}CONTEXT{vmid}_PAGE_TABLE_"
        self.pair(f"{table}BASE_ADDR_LO32", f"{table}BASE_ADDR_HI32", root | 1)
        self.pair(f"{table}START_ADDR_LO32", f"{table}START_ADDR_HI32", 0)
        self.pair(f"{table}END_ADDR_LO32", f"{table}END_ADDR_HI32", end - 1)
        control = f"{vm}CONTEXT{vmid}_CNTL"
        faults = [f for f in self.known.fields(control) if "FAULT_ENABLE" in f]
        enabled = dict.fromkeys(faults, 1)
        self.write(control, self.pack(control, ENABLE_CONTEXT=1, PAGE_TABLE_DEPTH=depth, **enabled))

    def invalidate(self, name: str, vmid: int = 0) -> None:
        vm = "GCVM_" if name == "GFXHUB" else "MMVM_"
        self.flush()
        if name == "MMHUB":
            assert self.read(f"{vm}INVALIDATE_ENG17_SEM") == 1
        self.write(f"{vm}INVALIDATE_ENG17_REQ", 0xF8 << 16 | 1 << vmid)
        self.wait(f"{vm}INVALIDATE_ENG17_ACK", 1 << vmid, 1 << vmid)
        if name == "MMHUB":
            self.write(f"{vm}INVALIDATE_ENG17_SEM", 0)

    def boot(self) -> None:
        """All of it, up to the queues."""
        self.start_hub("MMHUB")
        self.start_sos()
        self.load_all()
        self.start_hub("GFXHUB")

    # Page tables: four levels, of pages.

    def start_memory(self, vmid: int = 0, root: int = 16 * MIB, hub: str = "GFXHUB") -> int:
        """An address space, empty; where its root is. Tables come behind it."""
        self.vram.store(root, bytes(0x1000))
        self.next_table = root
        self.context(hub, vmid, root)
        return root

    def map(self, root: int, address: int, physical: int, flags: int = MAPPED | 1 << 4) -> int:
        """A page; where its entry is."""
        table = root
        for level in (3, 2, 1):
            at = table + 8 * (address >> 12 + 9 * level & 0x1FF)
            entry = self.vram.read(at, 8)
            if not entry & 1:
                self.next_table += 0x1000
                self.vram.store(self.next_table, bytes(0x1000))
                entry = self.next_table | 1
                self.vram.write(at, 8, entry)
            table = entry & ~0xFFF & (1 << 48) - 1
        at = table + 8 * (address >> 12 & 0x1FF)
        self.vram.write(at, 8, physical | flags | (1 << 63 if self.is_gfx12 else 0))
        return at

    # Queues.

    def start_engines(self) -> None:
        """What a driver does between the firmware's start and its first queue."""
        self.write("RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN", 1)
        entry = "GDC_S2A0_S2A_DOORBELL_ENTRY_" if self.is_gfx12 else "S2A_DOORBELL_ENTRY_"
        self.write(f"{entry}0_CTRL", 0x30000007)
        self.write(f"{entry}3_CTRL", 0x3000000D)
        self.write(f"{entry}2_CTRL", 3 << 28 | 40 << 17 | 0x200 << 7 | 0xE << 1 | 1)
        for vmid in range(16):
            self.write("GRBM_GFX_CNTL", vmid << 4)
            self.write("SH_MEM_CONFIG", 3 << 14 | 3 << 2)
            self.write("SH_MEM_BASES", 1 << 16 | 2)
        self.select()
        self.write("CP_MEC_RS64_PRGRM_CNTR_START", 0x3000 >> 2)
        self.write("GRBM_GFX_CNTL", 0)
        self.write("CP_MEC_DOORBELL_RANGE_LOWER", 0)
        self.write("CP_MEC_DOORBELL_RANGE_UPPER", 0xF8)
        self.write("CP_MEC_RS64_CNTL", 1 << 26)
        for engine in (0, 1):
            self.write(f"SDMA{engine}_{'MCU' if self.is_gfx12 else 'F32'}_CNTL", 0)
            self.change(f"SDMA{engine}_CNTL", TRAP_ENABLE=1)

    def select(self, pipe: int = 0, queue: int = 0) -> None:
        self.write("GRBM_GFX_CNTL", 1 << 2 | pipe | queue << 8)

    def make_queue(
        self,
        mqd: int,
        ring: int,
        rptr: int,
        size: int = 0x1000,
        vmid: int = 0,
        doorbell: int = 6,
        slot: tuple[int, int] = (0, 0),
        **changes: int,
    ) -> None:
        """A PM4 queue; addresses but that of the MQD are of its VMID, `mqd` is in video memory."""
        control = self.pack("CP_HQD_PQ_CONTROL", QUEUE_SIZE=(size // 4).bit_length() - 2)
        values = {
            "CP_MQD_BASE_ADDR": FB_BASE + mqd & 0xFFFFFFFF,
            "CP_MQD_BASE_ADDR_HI": FB_BASE + mqd >> 32,
            "CP_HQD_VMID": vmid,
            "CP_HQD_PQ_BASE": ring >> 8 & 0xFFFFFFFF,
            "CP_HQD_PQ_BASE_HI": ring >> 40,
            "CP_HQD_PQ_RPTR_REPORT_ADDR": rptr & 0xFFFFFFFF,
            "CP_HQD_PQ_RPTR_REPORT_ADDR_HI": rptr >> 32,
            "CP_HQD_PQ_DOORBELL_CONTROL": doorbell << 2 | 1 << 30,
            "CP_HQD_PQ_CONTROL": control,
            "CP_HQD_EOP_BASE_ADDR": ring + 0x800 >> 8,
            **changes,
        }
        first, words = self.known.address("CP_MQD_BASE_ADDR"), [0] * 512
        words[0] = 0xC0310800
        for name, value in values.items():
            words[0x80 + self.known.address(name) - first] = value
        self.vram.store(mqd, struct.pack("<512I", *words))
        self.flush()
        self.select(*slot)
        for i in range(0x38):
            self.registers.write(4 * (first + i), 4, words[0x80 + i])
        self.write("CP_HQD_ACTIVE", 1)
        self.write("GRBM_GFX_CNTL", 0)

    def ring_doorbell(self, index: int, value: int) -> None:
        """`index` counts dwords."""
        self.doorbells.write(4 * index, 8, value)

    def make_copy_queue(self, ring: int, rptr: int, vmid: int = 0, engine: int = 0) -> int:
        """The first queue of a copy engine, with a page of ring; its doorbell in dwords."""
        name, doorbell = f"SDMA{engine}_QUEUE0_", 0x200 + 0x14 * engine
        self.write(f"{name}MINOR_PTR_UPDATE", 1)
        self.pair(f"{name}RB_RPTR", f"{name}RB_RPTR_HI", 0)
        self.pair(f"{name}RB_WPTR", f"{name}RB_WPTR_HI", 0)
        self.pair(f"{name}RB_BASE", f"{name}RB_BASE_HI", ring >> 8)
        self.pair(f"{name}RB_RPTR_ADDR_LO", f"{name}RB_RPTR_ADDR_HI", rptr)
        self.write(f"{name}DOORBELL_OFFSET", self.pack(f"{name}DOORBELL_OFFSET", OFFSET=doorbell))
        self.write(f"{name}DOORBELL", self.pack(f"{name}DOORBELL", ENABLE=1))
        self.write(f"{name}MINOR_PTR_UPDATE", 0)
        control = f"{name}RB_CNTL"
        bits = {"RB_SIZE": 10, "RPTR_WRITEBACK_ENABLE": 1, "RB_VMID": vmid}
        self.write(control, self.pack(control, RB_ENABLE=1, **bits))
        return doorbell

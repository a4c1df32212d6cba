"""A small driver for tests of the card's model: raw register writes, and no more than they need."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from gpu.core.pci import PciAddress
from gpu.core.window import MemoryWindow
from gpu.sim.amd.chip.caches import Mode
from gpu.sim.amd.chip.dispatch import KernelExecutor
from gpu.sim.amd.pci.nbio import HOLE
from gpu.sim.amd.pci.silicon import FB_BASE
from gpu.sim.amd.pci.world import AmPciWorld
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
    ):
        self.world = AmPciWorld(
            *(seed, chip),
            coherence=coherence,
            executor=executor,
            bar_size=bar_size,
            settle_ns=settle_ns,
        )
        self.card = self.world.gpus[0]
        self.known = self.card.chip.regs
        self.open()
        self.fence = 0
        self.wptr = 0

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
        self.wptr = 0
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
        self.wptr = (self.wptr + 16) % 0x4000
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
        yield (
            18,
            self.images(f"smu_{'_'.join(map(str, self.card.chip.board.block('MP1').version))}")[
                256:
            ],
        )
        sdma = [d for n, d in self.world.firmware.items() if "/sdma_" in n][0]
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
        self.write(
            control,
            self.pack(
                control, ENABLE_CONTEXT=1, PAGE_TABLE_DEPTH=depth, **dict.fromkeys(faults, 1)
            ),
        )

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

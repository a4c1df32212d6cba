"""A small driver for tests of the card's model, written from NVIDIA's headers.

It boots GSP in the order of kern_fsp_gh100.c and kernel_gsp_gh100.c. A test changes what it makes
on the way: `meta`, `params`, `cot` and so on are what is sent, by the names of the headers.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from gpu.autogen.nv import gsp as h
from gpu.core.pci import PciAddress
from gpu.sim.nv.pci.images import sections
from gpu.sim.nv.pci.world import NvPciWorld
from gpu.transport.pci.bus import HostPci
from gpu.transport.pci.function import DmaMemory, PciFunction

AT: Final = PciAddress(0, 3, 0, 0)
PAGE, MIB = 4096, 1 << 20
EMEMC, EMEMD, QUEUE_HEAD, QUEUE_TAIL = 0x8F2AC0, 0x8F2AC4, 0x8F2C00, 0x8F2C04
MSGQ_HEAD, MSGQ_TAIL, AINCW, AINCR = 0x8F2C80, 0x8F2C84, 1 << 24, 1 << 25
MAILBOX, HWCFG2, CPUCTL, DOORBELL, OS = 0x110040, 0x1100F4, 0x111388, 0x110C00, 0x110080
WPR2_LO, WPR2_HI = 0x1FA824, 0x1FA828
STATUS: Final = {"gh100": 0x200BC, "gb202": 0xAD00BC}
PMU: Final = {"ga102": 0, "ad102": 0, "gh100": 0, "gb202": 0x1820000}
HEAP: Final = {"ga102": MIB, "ad102": MIB, "gh100": 0x200000, "gb202": 0x220000}
FLUSH: Final = {"gh100": 0x100A34, "gb202": 0x8A1D58}  # low half, then high
FAMILY: Final = {"ga102": "ga10x", "ad102": "ad10x", "gh100": "gh100", "gb202": "gb20x"}
SYSTEM_INFO, REGISTRY = 72, 73
LOG_BYTES: Final = 0x10000


class Answer(NamedTuple):
    """FSP's."""

    task: int
    kind: int
    code: int


class Reply(NamedTuple):
    """A message of RM's."""

    function: int
    result: int
    payload: bytes


class Client:
    """A function in the hands of a process.

    Attributes:
        cot, params, meta, rmargs: what a boot sends; made by `prepare`.
        flush: the page that flushes system memory.
        regions: libos' regions, as (name, address, bytes, kind, place).
        mctp, nvdm: headers of the packet.
    """

    mirror = 0x92000

    def __init__(self, chip: str = "gh100", **options: object):
        self.chip = chip
        self.world = NvPciWorld(chip=chip, **options)  # type: ignore[arg-type]
        self.card = self.world.gpus[0]
        self.open()

    def open(self) -> None:
        self.function: PciFunction = HostPci(self.world.os).open(AT)
        self.registers = self.function.window(0)
        self.memory: list[DmaMemory] = []

    def close(self) -> None:
        self.function.close()
        self.world.close()

    @property
    def violations(self) -> list[str]:
        return self.world.debug.violations

    def told(self, *parts: str) -> bool:
        """Whether the last violation has all these parts; all are forgotten then."""
        last = self.violations[-1] if self.violations else ""
        assert all(part in last for part in parts), last or "nothing was refused"
        self.world.debug.records.clear()
        return True

    def read(self, offset: int) -> int:
        return self.registers.read(offset, 4)

    def write(self, offset: int, value: int) -> None:
        self.registers.write(offset, 4, value)

    def pass_ms(self, milliseconds: float) -> None:
        """Time, in which firmware works."""
        self.world.wait(lambda: False, int(milliseconds * 1e6))

    def hold(self, data: bytes) -> int:
        """System memory that the card may reach; where it finds it."""
        memory = self.function.allocate(len(data))
        assert len(memory.pieces) == 1
        memory.window.store(0, data)
        self.memory.append(memory)
        return memory.pieces[0].address

    def held(self, address: int) -> DmaMemory:
        return next(
            each
            for each in self.memory
            if each.pieces[0].address <= address < each.pieces[0].address + each.pieces[0].size
        )

    def peek(self, address: int, size: int) -> bytes:
        memory = self.held(address)
        return memory.window.load(address - memory.pieces[0].address, size)

    def poke(self, address: int, data: bytes) -> None:
        memory = self.held(address)
        memory.window.store(address - memory.pieces[0].address, data)

    # What a boot needs.

    def prepare(self) -> Client:
        """All that lies in memory, as a good driver makes it; messages are queued."""
        self.function.set_bus_master(True)
        self.sent = self.received = self.wptr = self.rptr = self.sequence = 0
        name = f"nvidia/{self.chip}/gsp"
        self.rm = sections(self.world.firmware["nvidia/ga102/gsp/gsp-570.144.bin"])
        boot = self.world.firmware[f"{name}/bootloader-570.144.bin"]
        _, _, _, header, at, size = struct.unpack_from("<6I", boot)
        descriptor = struct.unpack_from("<21I", boot, header)
        self.app_version = descriptor[7]
        self.bootloader = self.hold(boot[at : at + size])
        self.signature = self.hold(self.rm[f".fwsignature_{FAMILY[self.chip]}"])
        self.radix = self.hold_image(self.rm[".fwimage"])
        self.flush = self.hold(bytes(PAGE))
        self.make_queues()
        self.make_meta(size, descriptor)
        self.regions = [
            *((log, *self.hold_log(LOG_BYTES), 1, 1) for log in ("LOGINIT", "LOGINTR", "LOGRM")),
            ("RMARGS", self.hold(bytes(PAGE)), PAGE, 1, 1),
        ]
        self.system_info = self.make_system_info()
        self.registry = make_registry({"RMForcePcieConfigSave": 1, "RMSecBusResetEnable": 1})
        self.prepare_way(f"{name}/fmc-570.144.bin")
        return self

    def prepare_way(self, name: str) -> None:
        """What FSP and the FMC are told; `name` is the FMC's file."""
        self.fmc = sections(self.world.firmware[name])
        self.mctp, self.nvdm = 0xC0000000, 0x7E | 0x10DE << 8 | 0x14 << 24
        self.params = h.GSP_FMC_BOOT_PARAMS()
        self.params.bootGspRmParams.target = 1
        self.params.bootGspRmParams.gspRmDescSize = 256
        self.params.bootGspRmParams.bIsGspRmBoot = 1
        self.params.gspRmParams.target = 1
        self.make_cot()

    def hold_image(self, image: bytes) -> int:
        """Pages of an image below three levels of tables, in an order of its own."""
        count = -(-len(image) // PAGE)
        level2 = -(-count // 512)
        base = self.hold(bytes(PAGE * (2 + level2 + count)))
        pages = [base + PAGE * (2 + level2 + (7 * n + 3) % count) for n in range(count)]
        if count % 7 == 0:
            pages = [base + PAGE * (2 + level2 + n) for n in range(count)]
        self.image_pages = pages
        self.poke(base, struct.pack("<Q", base + PAGE))
        tables = [base + PAGE * (2 + n) for n in range(level2)]
        self.poke(base + PAGE, struct.pack(f"<{level2}Q", *tables))
        for number, table in enumerate(tables):
            part = pages[512 * number : 512 * number + 512]
            self.poke(table, struct.pack(f"<{len(part)}Q", *part))
        for number, page in enumerate(pages):
            self.poke(page, image[PAGE * number : PAGE * number + PAGE])
        return base

    def hold_log(self, size: int) -> tuple[int, int]:
        place = self.hold(bytes(size))
        pages = [place + PAGE * n for n in range(size // PAGE)]
        self.poke(place + 8, struct.pack(f"<{len(pages)}Q", *pages))
        return place, size

    def make_queues(self) -> None:
        size, pages = h.GSP_MSG_QUEUE_SIZE, 1 + 2 * h.GSP_MSG_QUEUE_SIZE // PAGE
        self.shared = self.hold(bytes(PAGE * pages))
        self.poke(
            self.shared, struct.pack(f"<{pages}Q", *(self.shared + PAGE * n for n in range(pages)))
        )
        self.commands, self.statuses = self.shared + PAGE, self.shared + PAGE + size
        self.count = size // PAGE - 1
        head = h.msgqTxHeader(0, size, PAGE, self.count, 0, 1, 0x20, PAGE)
        self.poke(self.commands, bytes(head))
        self.rmargs = h.GSP_ARGUMENTS_CACHED()
        queues = self.rmargs.messageQueueInitArguments
        queues.sharedMemPhysAddr, queues.pageTableEntryCount = self.shared, pages
        queues.cmdQueueOffset, queues.statQueueOffset = PAGE, PAGE + size
        self.rmargs.bDmemStack = 1

    def make_meta(self, size: int, descriptor: Sequence[int]) -> None:
        self.meta = meta = h.GspFwWprMeta()
        meta.magic, meta.revision = h.GSP_FW_WPR_META_MAGIC, h.GSP_FW_WPR_META_REVISION
        meta.sysmemAddrOfRadix3Elf, meta.sizeOfRadix3Elf = self.radix, len(self.rm[".fwimage"])
        meta.sysmemAddrOfBootloader, meta.sizeOfBootloader = self.bootloader, size
        meta.bootloaderCodeOffset, meta.bootloaderDataOffset = descriptor[12], descriptor[10]
        meta.bootloaderManifestOffset = descriptor[8]
        meta.sysmemAddrOfSignature, meta.sizeOfSignature = self.signature, PAGE
        meta.nonWprHeapSize, meta.gspFwHeapSize = HEAP[self.chip], 128 * MIB
        meta.frtsSize, meta.vgaWorkspaceSize = MIB, 128 << 10
        meta.pmuReservedSize = PMU[self.chip]

    def make_cot(self) -> None:
        self.cot = cot = h.NVDM_PAYLOAD_COT()
        cot.version = {"gh100": 1, "gb202": 2}[self.chip]
        cot.size = ctypes.sizeof(cot)
        cot.gspFmcSysmemOffset = self.hold(self.fmc["image"])
        reserved = HEAP[self.chip] + PMU[self.chip]
        cot.frtsVidmemOffset, cot.frtsVidmemSize = -(-reserved // (2 * MIB)) * 2 * MIB, MIB
        for field, part in (("hash384", "hash"), ("publicKey", "publickey")):
            self.set_words(field, self.fmc[part])
        self.set_words("signature", self.fmc["signature"])

    def set_words(self, field: str, data: bytes) -> None:
        """Bytes of the chain of trust, from the beginning of a field on."""
        array = getattr(self.cot, field)
        ctypes.memset(array, 0, ctypes.sizeof(array))
        ctypes.memmove(array, data, len(data))

    def make_system_info(self) -> h.GspSystemInfo:
        config, info = self.function.config, h.GspSystemInfo()
        info.gpuPhysAddr = config.read(0x10, 4) & ~0xF
        info.gpuPhysFbAddr = config.read(0x14, 4) & ~0xF | config.read(0x18, 4) << 32
        info.gpuPhysInstAddr = config.read(0x1C, 4) & ~0xF | config.read(0x20, 4) << 32
        info.nvDomainBusDeviceFunc = AT.bus << 8
        info.maxUserVa, info.hostPageSize = 1 << 47, PAGE
        info.pciConfigMirrorBase, info.pciConfigMirrorSize = self.mirror, 0x1000
        info.PCIDeviceID = config.read(0x00, 4)
        info.PCISubDeviceID = config.read(0x2C, 4)
        info.PCIRevisionID = config.read(0x08, 4) & 0xFF
        return info

    # Messages.

    def element(
        self,
        function: int,
        payload: bytes,
        change: Callable[[h.GSP_MSG_QUEUE_ELEMENT], None] = lambda element: None,
        late: Callable[[h.GSP_MSG_QUEUE_ELEMENT], None] = lambda element: None,
    ) -> bytes:
        """A message; `change` is told of it before its sum is made, `late` after."""
        element = h.GSP_MSG_QUEUE_ELEMENT()
        length = 0x20 + len(payload)
        element.seqNum, element.elemCount = self.sent, -(-(0x30 + length) // PAGE)
        rpc = element.rpc
        rpc.header_version, rpc.signature = 3 << 24, 0x43505256
        rpc.length, rpc.function = length, function
        rpc.rpc_result = rpc.rpc_result_private = 0xFFFFFFFF
        rpc.sequence = self.sequence
        change(element)
        data = bytes(element) + payload
        total = 0
        for (word,) in struct.iter_unpack("<Q", data + bytes(-len(data) % 8)):
            total ^= word
        element.checkSum = (total >> 32 ^ total) & 0xFFFFFFFF
        late(element)
        return bytes(element) + payload

    def put(self, data: bytes, ring: bool = True) -> None:
        """Elements into the command queue, then the write pointer, then the doorbell."""
        data += bytes(-len(data) % PAGE)
        for at in range(0, len(data), PAGE):
            self.poke(self.commands + PAGE * (1 + self.wptr), data[at : at + PAGE])
            self.wptr = (self.wptr + 1) % self.count
        self.poke(self.commands + 0x10, struct.pack("<I", self.wptr))
        self.sent += 1
        if ring:
            self.write(DOORBELL, 0)

    def send(self, function: int, payload: bytes = b"", ring: bool = True) -> None:
        self.sequence += 1
        self.put(self.element(function, payload), ring)

    def queue_first(self) -> None:
        self.send(SYSTEM_INFO, bytes(self.system_info), ring=False)
        self.send(REGISTRY, self.registry, ring=False)

    def receive(self) -> Reply | None:
        """The next message of RM's, checked as a driver does; None where there is none."""
        head = struct.unpack("<8I", self.peek(self.statuses, 32))
        if not any(head):
            return None  # RM has not made its queue yet
        assert head == (0, h.GSP_MSG_QUEUE_SIZE, PAGE, self.count, head[4], 1, 0x20, PAGE)
        if head[4] == self.rptr:
            return None
        first = self.peek(self.statuses + PAGE * (1 + self.rptr), PAGE)
        _, number, elements = struct.unpack_from("<3I", first, 32)
        version, signature, length, function, result, *_ = struct.unpack_from("<8I", first, 0x30)
        data = b""
        for _ in range(elements):
            data += self.peek(self.statuses + PAGE * (1 + self.rptr), PAGE)
            self.rptr = (self.rptr + 1) % self.count
        assert number == self.received and elements == -(-(0x30 + length) // PAGE)
        assert (version, signature) == (3 << 24, 0x43505256)
        total = 0
        for (word,) in struct.iter_unpack("<Q", data[: 0x30 + length + -length % 8]):
            total ^= word
        assert not (total >> 32 ^ total) & 0xFFFFFFFF
        self.received += 1
        self.poke(self.commands + 0x20, struct.pack("<I", self.rptr))
        return Reply(function, result, data[0x50 : 0x30 + length])

    def call(self, function: int, payload: bytes = b"") -> Reply | None:
        """A call and its answer, past events; None where none comes in 100 ms."""
        self.send(function, payload)
        return self.wait_for(function, 100)

    def wait_for(self, function: int, milliseconds: int) -> Reply | None:
        for _ in range(milliseconds):
            while (reply := self.receive()) is not None:
                if reply.function == function:
                    return reply
                assert reply.function >= 0x1000, reply
            self.pass_ms(1)
        return None

    # The boot.

    def packet(self) -> bytes:
        return struct.pack("<II", self.mctp, self.nvdm) + bytes(self.cot)

    def settle(self) -> None:
        """Waits for FSP."""
        for _ in range(1000):
            if self.read(STATUS[self.chip]) == 0xFF:
                return
            self.pass_ms(1)
        raise AssertionError("FSP does not start")

    def load(self, packet: bytes) -> None:
        """A packet into EMEM."""
        self.write(EMEMC, AINCW)
        for (word,) in struct.iter_unpack("<I", packet + bytes(-len(packet) % 4)):
            self.write(EMEMD, word)

    def ask(self, packet: bytes) -> Answer | None:
        """A packet to FSP, and what it answers; None where nothing comes."""
        self.load(packet)
        self.write(QUEUE_TAIL, (len(packet) + 3 & ~3) - 4)
        self.write(QUEUE_HEAD, 0)
        for _ in range(10):
            if self.read(MSGQ_HEAD) != self.read(MSGQ_TAIL):
                return self.take()
            self.pass_ms(1)
        return None

    def take(self) -> Answer:
        size = self.read(MSGQ_TAIL) - self.read(MSGQ_HEAD) + 4
        self.write(EMEMC, AINCR)
        data = b"".join(self.read(EMEMD).to_bytes(4, "little") for _ in range(size // 4))
        self.write(MSGQ_TAIL, 0)
        self.write(MSGQ_HEAD, 0)
        assert data[:8] == struct.pack("<II", 0xC0000000, 0x7E | 0x10DE << 8 | 0x15 << 24)
        assert self.read(QUEUE_HEAD) == self.read(QUEUE_TAIL)
        return Answer(*struct.unpack_from("<III", data, 8))

    def place(self) -> None:
        """Puts what was prepared into memory, where it is not yet, and tells of what flushes."""
        self.write(FLUSH[self.chip], self.flush & 0xFFFFFFFF)
        self.write(FLUSH[self.chip] + 4, self.flush >> 32)
        table = self.place_regions()
        if not self.params.gspRmParams.bootArgsOffset:
            self.params.gspRmParams.bootArgsOffset = self.hold(table)
        if not self.params.bootGspRmParams.gspRmDescOffset:
            self.params.bootGspRmParams.gspRmDescOffset = self.hold(bytes(self.meta))
        if not self.cot.gspBootArgsSysmemOffset:
            self.cot.gspBootArgsSysmemOffset = self.hold(bytes(self.params))

    def place_regions(self) -> bytes:
        """RMARGS is put there; libos' list of regions."""
        rmargs = next((each[1] for each in self.regions if each[0] == "RMARGS"), None)
        if rmargs:
            self.poke(rmargs, bytes(self.rmargs))
        return b"".join(
            bytes(h.LibosMemoryRegionInitArgument(name_id(name), *rest))
            for name, *rest in self.regions
        )

    def start(self) -> int:
        """All up to a released lockdown; the mailbox."""
        self.settle()
        self.place()
        answer = self.ask(self.packet())
        assert answer == Answer(0, 0x14, 0), answer
        for _ in range(100):
            if self.read(HWCFG2) & 0xFFFFFF00 != 0xBADF4100:
                break
            self.pass_ms(1)
        for _ in range(100):
            mailbox = self.read(MAILBOX) | self.read(MAILBOX + 4) << 32
            if mailbox and mailbox != self.cot.gspBootArgsSysmemOffset:
                return mailbox
            if not self.read(HWCFG2) & 1 << 13:
                break
            self.pass_ms(1)
        self.write(OS, self.app_version)
        assert self.read(CPUCTL) & 1 << 7
        return 0

    def boot(self) -> Reply | None:
        """A good boot, up to INIT_DONE; what was changed after `prepare` is in it."""
        self.queue_first()
        assert not self.start()
        self.pass_ms(40)
        return self.wait_for(0x1001, 10) if not self.violations else None

    def hash_of_image(self) -> bytes:
        return hashlib.sha384(self.fmc["image"]).digest()


def name_id(name: str) -> int:
    return int.from_bytes(name.encode(), "big")


def make_registry(words: dict[str, int]) -> bytes:
    """A table of settings that are words."""
    at, names, entries = 8 + 16 * len(words), b"", b""
    for name, value in words.items():
        entries += struct.pack("<IB3xII", at + len(names), 1, value, 4)
        names += name.encode() + b"\0"
    body = entries + names
    return struct.pack("<II", 8 + len(body), len(words)) + body

"""Made-up firmware in true containers, a VBIOS, and a card whose registers are functions."""

from __future__ import annotations

import ctypes
import hashlib
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from random import Random

from gpu.autogen.nv import ucode
from gpu.core.errors import OutOfMemory
from gpu.core.pci import Bar, BusAddr, DmaPiece, PciAddress, PciIds
from gpu.core.window import MemoryWindow, TrappedWindow, Window
from gpu.drivers.nv.pci.boot import BootCard
from gpu.drivers.nv.pci.chips import Chip
from gpu.transport.pci.function import DmaMemory, Interrupt

PAGE = 4096


def elf64(sections: Mapping[str, bytes], kind: int = 1) -> bytes:
    """An ELF64 file with these sections, behind the first, which is empty."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in (*sections, ".shstrtab"))
    body, headers, name_at = b"", [bytes(64)], 1
    for name, content in (*sections.items(), (".shstrtab", names)):
        headers.append(
            struct.pack("<IIQQQQIIQQ", name_at, 1, 0, 0, 64 + len(body), len(content), 0, 0, 1, 0)
        )
        body, name_at = body + content, name_at + len(name) + 1
    head = struct.pack(
        *("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", kind, 243, 1, 0, 0, 64 + len(body)),
        *(0, 64, 56, 0, 64, len(headers), len(headers) - 1),
    )
    return head + body + b"".join(headers)


def elf32(sections: Mapping[str, bytes], crc: bool = True) -> bytes:
    """An ELF32 file as an FMC's is: headers first, then contents, each with its CRC-32."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in (*sections, ".shstrtab"))
    count = len(sections) + 2
    at, headers, body, name_at = 52 + 40 * count, [bytes(40)], b"", 1
    for name, content in (*sections.items(), (".shstrtab", names)):
        checked = zlib.crc32(content) if crc and name != ".shstrtab" else 0
        headers.append(
            struct.pack("<10I", name_at, 1, 0, 0, at + len(body), len(content), 0, checked, 1, 0)
        )
        body, name_at = body + content, name_at + len(name) + 1
    head = struct.pack(
        *("<16sHHIIIIIHHHHHH", b"\x7fELF\x01\x01\x01", 0, 0, 1, 0, 0, 52, 0),
        *(52, 0, 0, 40, count, count - 1),
    )
    return head + b"".join(headers) + body


def gsp_file(rng: Random, family: str, version: bytes = b"570.144\0", size: int = 9000) -> bytes:
    """GSP's image with a signature for a family."""
    return elf64(
        {
            ".fwversion": version,
            ".fwimage": rng.randbytes(size),
            f".fwsignature_{family}": rng.randbytes(PAGE),
        }
    )


def fmc_file(rng: Random, chip: Chip, **changed: bytes) -> bytes:
    """An FMC for a chip, with some sections changed."""
    image = rng.randbytes(5000)
    return elf32(
        {
            "hash": hashlib.sha384(image).digest(),
            "publickey": rng.randbytes(chip.key_size),
            "signature": rng.randbytes(chip.signature_size),
            "image": image,
            **changed,
        }
    )


def bin_file(head: bytes, data: bytes) -> bytes:
    """A file of linux-firmware: its own header, another, and data."""
    at = ctypes.sizeof(ucode.nvfw_bin_hdr)
    start = -(-(at + len(head)) // 256) * 256
    bin_head = ucode.nvfw_bin_hdr(ucode.NVFW_BIN_MAGIC, 1, start + len(data), at, start, len(data))
    return (bytes(bin_head) + head).ljust(start, b"\0") + data


def bootloader_file(rng: Random, **changed: int) -> bytes:
    """A bootloader, with some members of its description changed."""
    desc = {
        "appVersion": 0x1234,
        "manifestOffset": 0x100,
        "manifestSize": 0x80,
        "monitorDataOffset": 0x200,
        "monitorDataSize": 0x100,
        "monitorCodeOffset": 0x300,
        "monitorCodeSize": 0x400,
        **changed,
    }
    return bin_file(bytes(ucode.RM_RISCV_UCODE_DESC(**desc)), rng.randbytes(0x700))


def falcon_file(rng: Random, signatures: int = 2) -> tuple[bytes, list[bytes]]:
    """Code for a Falcon in a file, and its signatures."""
    signed = [rng.randbytes(384) for _ in range(signatures)]
    at = ctypes.sizeof(ucode.nvfw_bin_hdr)
    hs_at, load_at = at, at + 36
    words = load_at + 20 + 8
    signed_at = words + 24
    hs = ucode.nvfw_hs_header_v2(
        *(signed_at, 384 * signatures, words, words + 4, words + 12, 12, words + 8, load_at, 28)
    )
    assert hs_at + ctypes.sizeof(hs) == load_at
    load = struct.pack("<5I2I", 0, 0x100, 0x400, 0x300, 1, 0x100, 0x300)
    meta = struct.pack("<6I", 0x410, 0, signatures, signatures, 1, 3)
    return bin_file(bytes(hs) + load + meta + b"".join(signed), rng.randbytes(0x700)), signed


class FakeWaiter:
    """A clock that runs while one waits."""

    spin_ns = 0

    def __init__(self) -> None:
        self.now = 0

    def now_ns(self) -> int:
        """That of this clock."""
        return self.now

    def idle(self, timeout_ns: int) -> None:
        """Time passes."""
        self.now += max(timeout_ns, 1)


class FakeMemory:
    """Memory for DMA in pieces of one page each, from the top down, so that order shows."""

    def __init__(self, address: int, size: int, in_pages: bool):
        self.window = MemoryWindow.over(bytearray(size))
        count = size // PAGE if in_pages else 1
        each = size // count
        self.pieces: Sequence[DmaPiece] = [
            DmaPiece(BusAddr(address + (count - 1 - index) * each), each) for index in range(count)
        ]
        self.closed = False

    def close(self) -> None:
        """It is gone."""
        self.closed = True


class FakeFunction:
    """A PCI function with registers that tests give.

    Attributes:
        values: what registers hold, by offset; 0 where nothing is told.
        reads, writes: what happens at an offset instead.
        log: all accesses, as (offset, value or None for a read).
    """

    def __init__(self, vendor: int = 0x10DE) -> None:
        self.address = PciAddress(1, 3, 0, 0)
        self.ids = PciIds(vendor, 0x2330, 0x10DE, 0x16C1, 0xA1, 0x030200)
        config = bytearray(256)
        struct.pack_into("<6I", config, 0x10, 0xD0000004, 0x1, 0xC, 0x20, 0x4, 0x30)
        self.config: Window = MemoryWindow.over(config)
        self.bars = {0: Bar(1 << 24), 1: Bar(1 << 30), 3: Bar(1 << 25)}
        self.values: dict[int, int] = {}
        self.reads: dict[int, Callable[[], int]] = {}
        self.writes: dict[int, Callable[[int], None]] = {}
        self.log: list[tuple[int, int | None]] = []
        self.memory: list[FakeMemory] = []
        self.next_address = 0x1_0000_0000
        self.in_pages = False
        self.is_master = False
        self.resets = 0
        self.closed = False

    def window(self, bar: int) -> Window:
        """Registers."""
        return TrappedWindow(self.bars[bar].size, self._read, self._write, 4)

    def _read(self, offset: int, width: int) -> int:
        assert width == 4
        self.log.append((offset, None))
        return self.reads[offset]() if offset in self.reads else self.values.get(offset, 0)

    def _write(self, offset: int, width: int, value: int) -> None:
        assert width == 4
        self.log.append((offset, value))
        if offset in self.writes:
            self.writes[offset](value)
        else:
            self.values[offset] = value

    def map(self, bar: int, offset: int, size: int) -> MemoryWindow:
        """Nothing is mapped."""
        raise NotImplementedError

    def set_bus_master(self, allowed: bool) -> None:
        """Noted."""
        self.is_master = allowed

    def allocate(self, size: int) -> DmaMemory:
        """Whole pages."""
        if size > 1 << 28:
            raise OutOfMemory(f"{size} bytes")
        memory = FakeMemory(self.next_address, size, self.in_pages)
        self.next_address += size + PAGE
        self.memory.append(memory)
        return memory

    def share(self, address: int, size: int) -> DmaMemory:
        """None."""
        raise NotImplementedError

    def interrupts(self, count: int) -> Sequence[Interrupt]:
        """None."""
        raise NotImplementedError

    def check(self) -> None:
        """It is there."""

    def resize(self, bar: int, size: int) -> None:
        """No."""
        raise NotImplementedError

    def reset(self) -> None:
        """Noted."""
        self.resets += 1

    def close(self) -> None:
        """Noted."""
        self.closed = True

    def load(self, address: int, size: int) -> bytes:
        """What is at an address of the bus."""
        for memory in self.memory:
            at = 0
            for piece in memory.pieces:
                if piece.address <= address and address + size <= piece.address + piece.size:
                    return memory.window.load(at + address - piece.address, size)
                at += piece.size
        raise AssertionError(f"nothing at {address:#x}")


def make_card(chip: Chip | None = None, seconds: float = 30.0) -> tuple[BootCard, FakeFunction]:
    """A card of a chip in the midst of a step, and its function."""
    function = FakeFunction()
    card = BootCard(function, FakeWaiter())
    if chip is not None:
        card.chip, card.chip_name = chip, chip.family.upper()
    card.begin("test", round(seconds * 1e9))
    return card, function

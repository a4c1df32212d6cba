"""A tiny user of KGSL for tests: raw calls and hand-packed packets.

Numbers of calls, offsets of structures, opcodes, and offsets and fields of registers are written
down here once more, so that neither a mistake of the model nor one of the tables can hide.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from gpu.core.errors import TransportError
from gpu.core.window import MemoryWindow
from gpu.sim.executor import RunningKernel
from gpu.sim.kgsl.chip.launch import KernelMemory, Launch
from gpu.sim.kgsl.chips import Chip
from gpu.sim.process import SimProcess

NODE = "/dev/kgsl-3d0"
PAGE = 4096
PREAMBLE, NO_GMEM = 0x10, 0x2
NO_FAULT_TOLERANCE = 0x200
FAULT_INFO = 0x4000_0000
USER_TIMESTAMPS = 0x80
WRITE_BACK = 3 << 26
CPU_MAP = 1 << 28
COHERENT = 1 << 31
GUARD = 1 << 33
READ_ONLY = 1 << 24
CLEAN, INVALIDATE, RANGE = 1, 2, 1 << 31
QUEUED, CONSUMED, RETIRED = 3, 1, 2
READ, WRITE, SHARED, FIXED = 1, 2, 1, 0x10

CALLS = {
    "GETPROPERTY": (3, 0x02, 0x18),
    "WAIT": (1, 0x07, 0x0C),
    "CREATE": (3, 0x13, 0x08),
    "DESTROY": (1, 0x14, 0x04),
    "READ": (3, 0x16, 0x0C),
    "FREE_ADDRESS": (1, 0x21, 0x08),
    "SETPROPERTY": (1, 0x32, 0x18),
    "EVENT": (3, 0x33, 0x20),
    "ALLOC_ID": (3, 0x34, 0x30),
    "FREE_ID": (3, 0x35, 0x08),
    "GET_INFO": (3, 0x36, 0x48),
    "COUNTERS": (3, 0x3B, 0x18),
    "ALLOC": (3, 0x45, 0x30),
    "FREE": (1, 0x46, 0x20),
    "INFO": (3, 0x47, 0x30),
    "IMPORT": (3, 0x48, 0x20),
    "SYNC": (1, 0x49, 0x10),
    "COMMAND": (3, 0x4A, 0x40),
    "TIMELINE_CREATE": (3, 0x58, 0x10),
    "TIMELINE_WAIT": (1, 0x59, 0x28),
    "TIMELINE_QUERY": (3, 0x5A, 0x10),
    "TIMELINE_SIGNAL": (1, 0x5B, 0x10),
    "TIMELINE_FENCE": (3, 0x5C, 0x10),
    "TIMELINE_DESTROY": (1, 0x5D, 0x04),
    "FAULTS": (3, 0x5E, 0x18),
}
"""Name -> (direction, number, bytes) of a call."""


def request(name: str) -> int:
    direction, number, size = CALLS[name]
    return direction << 30 | size << 16 | 9 << 8 | number


@contextmanager
def fails(number: int) -> Iterator[None]:
    """The block must fail with this errno."""
    with pytest.raises(TransportError) as caught:
        yield
    assert caught.value.errno == number, f"errno {caught.value.errno}: {caught.value}"


@dataclass
class Object:
    """An object, mapped where `host` is."""

    id: int
    size: int
    flags: int
    address: int
    mapped: int = 0

    @property
    def host(self) -> MemoryWindow:
        assert self.mapped, "not mapped for the CPU"
        return MemoryWindow(self.mapped, self.size)


class RawKgsl:
    """A process that has opened the device, with a context."""

    def __init__(self, process: SimProcess, flags: int = NO_FAULT_TOLERANCE):
        self.process, self.os = process, process.os
        self.world: Any = process.world
        self.fd = self.os.open(NODE, os.O_RDWR)
        self.context = self.new_context(flags) if flags >= 0 else 0

    # Calls.

    def call(self, name: str, data: bytes | bytearray = b"", number: int | None = None) -> bytes:
        _, _, size = CALLS[name]
        argument = ctypes.create_string_buffer(bytes(data).ljust(size, b"\0"), size)
        self.os.ioctl(self.fd, request(name) if number is None else number, argument)
        return argument.raw

    def property(self, kind: int, size: int, given: bytes = b"", claim: int | None = None) -> bytes:
        value = ctypes.create_string_buffer(given.ljust(size, b"\0"), size)
        told = size if claim is None else claim
        self.call("GETPROPERTY", struct.pack("<IIQQ", kind, 0, ctypes.addressof(value), told))
        return value.raw

    def new_context(self, flags: int = NO_FAULT_TOLERANCE) -> int:
        data = self.call("CREATE", struct.pack("<II", flags | PREAMBLE | NO_GMEM, 0))
        return int(struct.unpack_from("<I", data, 4)[0])

    def destroy(self, context: int) -> None:
        self.call("DESTROY", struct.pack("<I", context))

    def alloc(self, size: int, flags: int = 0, mapped: bool = True) -> Object:
        data = self.call("ALLOC", struct.pack("<QQ", size, flags))
        size, flags, _, footprint, number = struct.unpack_from("<QQQQI", data)
        made = Object(number, size, flags, 0)
        if mapped:
            made.mapped = self.map(number, footprint)
        made.address = self.info(number)[0]
        return made

    def map(
        self, number: int, size: int, prot: int = READ | WRITE, flags: int = SHARED, at: int = 0
    ) -> int:
        return self.os.mmap(self.fd, size, prot, flags, number << 12, at)

    def info(self, number: int) -> tuple[int, int, int, int]:
        """Address, flags, size, footprint."""
        data = self.call("INFO", struct.pack("<QQQQQI", 0, 0, 0, 0, 0, number))
        found: tuple[int, int, int, int] = struct.unpack_from("<QQQQ", data)
        return found

    def get_info(self, address: int = 0, number: int = 0) -> tuple[int, int, int, int]:
        """Address, id, flags, size."""
        data = self.call("GET_INFO", struct.pack("<QII", address, number, 0))
        found: tuple[int, int, int, int] = struct.unpack_from("<QIIQ", data)
        return found

    def free(self, item: Object | int, at: tuple[int, int] | None = None) -> None:
        number = item if isinstance(item, int) else item.id
        if at is None:
            self.call("FREE", struct.pack("<QQIII", 0, 0, number, 0, 0))
            return
        event = ctypes.create_string_buffer(struct.pack("<II", *at), 8)
        place = ctypes.addressof(event)
        self.call("FREE", struct.pack("<QQIII", 1, place, number, 1, 8))

    def import_memory(self, address: int, size: int, flags: int = WRITE_BACK, kind: int = 2) -> int:
        where = ctypes.create_string_buffer(struct.pack("<Q", address), 8)
        head = struct.pack("<QQQI", ctypes.addressof(where), size, flags, kind)
        return int(struct.unpack_from("<I", self.call("IMPORT", head), 28)[0])

    def sync(self, number: int, op: int, offset: int = 0, length: int = 0, count: int = 1) -> None:
        one = struct.pack("<QQII", offset, length, number, op)
        given = ctypes.create_string_buffer(one * max(count, 1), 24 * max(count, 1))
        self.call("SYNC", struct.pack("<QII", ctypes.addressof(given), 24, count))

    def submit(
        self,
        buffers: Sequence[tuple[int, int]],
        context: int | None = None,
        *,
        flags: int = 0,
        objects: Sequence[Object] = (),
        syncs: Sequence[tuple[int, bytes]] = (),
        timestamp: int = 0,
        list_flags: int = 1,
        number: int = 0,
    ) -> int:
        """GPU_COMMAND of buffers, each an address and bytes; the timestamp."""
        packed = [struct.pack("<QQQII", 0, at, size, list_flags, number) for at, size in buffers]
        listed = [struct.pack("<QQQII", 0, o.address, o.size, 8, o.id) for o in objects]
        held = [ctypes.create_string_buffer(data, len(data)) for _, data in syncs]
        points = [
            struct.pack("<QQII", ctypes.addressof(data), len(data.raw), kind, 0)
            for (kind, _), data in zip(syncs, held, strict=True)
        ]
        fields: list[int] = [flags]
        kept = []
        for items, size in ((packed, 32), (listed, 32), (points, 24)):
            memory = ctypes.create_string_buffer(b"".join(items), size * max(len(items), 1))
            kept.append(memory)
            at = ctypes.addressof(memory) if items else 0
            fields += [at, size if items else 0, len(items)]
        owner = self.context if context is None else context
        data = self.call("COMMAND", struct.pack("<QQIIQIIQIIII", *fields, owner, timestamp))
        return int(struct.unpack_from("<I", data, 0x3C)[0])

    def wait(self, timestamp: int, timeout_ms: int = 1000, context: int | None = None) -> None:
        owner = self.context if context is None else context
        self.call("WAIT", struct.pack("<III", owner, timestamp, timeout_ms))

    def timestamp(self, kind: int = RETIRED, context: int | None = None) -> int:
        owner = self.context if context is None else context
        data = self.call("READ", struct.pack("<III", owner, kind, 0))
        return int(struct.unpack_from("<I", data, 8)[0])

    # Commands.

    def run(self, words: Sequence[int], wait: bool = True, **options: Any) -> int:
        """Puts dwords into a new buffer, and runs it."""
        buffer = self.alloc(max(4 * len(words), 4))
        buffer.host.store(0, struct.pack(f"<{len(words)}I", *words))
        stamp = self.submit([(buffer.address, 4 * len(words))], **options)
        if wait:
            self.wait(stamp)
        return stamp


def parity(value: int) -> int:
    ones = 0
    while value:
        ones += value & 1
        value >>= 1
    return 1 - ones % 2


OPCODES = {
    "NOP": 0x10, "WAIT_MEM_WRITES": 0x12, "WAIT_FOR_ME": 0x13, "WAIT_MEM_GTE": 0x14,
    "WAIT_FOR_IDLE": 0x26, "EXEC_CS": 0x33, "LOAD_FRAG": 0x34, "LOAD": 0x36, "LOAD_GEOM": 0x32,
    "WAIT_REG_MEM": 0x3C, "MEM_WRITE": 0x3D, "REG_TO_MEM": 0x3E, "IB": 0x3F, "CHAIN": 0x57,
    "EXEC_INDIRECT": 0x41, "COND_EXEC": 0x44, "EVENT": 0x46, "SET_MARKER": 0x65,
    "REG_WRITE": 0x6D, "MEM_TO_MEM": 0x73, "MEMCPY": 0x75, "PROTECT": 0x5F, "DRAW": 0x38,
}  # fmt: skip
FLUSH, CLEAN_EVENT, DROP_UCHE, DONE = 4, 29, 49, 22


def operation(name: str | int, *body: int) -> list[int]:
    """A packet of type 7."""
    code, count = OPCODES[name] if isinstance(name, str) else name, len(body)
    return [7 << 28 | parity(code) << 23 | code << 16 | parity(count) << 15 | count, *body]


def registers(first: int, *values: int) -> list[int]:
    """A packet of type 4."""
    count = len(values)
    return [4 << 28 | parity(first) << 27 | first << 8 | parity(count) << 7 | count, *values]


def halves(address: int) -> tuple[int, int]:
    return address & 0xFFFF_FFFF, address >> 32


def load(kind: int, block: int, address: int, units: int, first: int = 0) -> list[int]:
    """CP_LOAD_STATE6_FRAG of what is in memory."""
    head = first | kind << 14 | 2 << 16 | block << 18 | units << 22
    return operation("LOAD_FRAG", head, *halves(address))


def load_inline(kind: int, block: int, units: int, *data: int) -> list[int]:
    """CP_LOAD_STATE6_FRAG of what stands in the packet."""
    return operation("LOAD_FRAG", kind << 14 | block << 18 | units << 22, 0, 0, *data)


CODE, CONSTANTS, UBO, UAV = 0, 1, 2, 3
CS_TEX, CS_SHADER = 5, 13
INVALIDATE_CMD = 0xBB08
CS_STATE, CS_IBO = 1 << 5, 1 << 6


@dataclass
class Kernel:
    """State of a dispatch, word by word; `leave` names registers that are not written."""

    code: int
    units: int = 1
    groups: tuple[int, int, int] = (2, 1, 1)
    block: tuple[int, int, int] = (64, 1, 1)
    full: int = 4
    wide: int = 0
    shared: int = 1
    constants: int = 4
    config: int = 1 << 8
    private: tuple[int, int, int] = (0, 0, 0)  # units of 512 bytes, address, units of 4096
    leave: tuple[int, ...] = ()
    more: dict[int, int] = field(default_factory=dict)

    def values(self) -> dict[int, int]:
        x, y, z = self.block
        low, high = halves(self.code)
        item, memory, size = self.private
        made = {
            0xA9B0: self.full << 7 | 2 << 14 | self.wide << 20 | 1 << 31,
            0xA9B1: self.shared,
            0xA9B3: 0,
            0xA9B4: low,
            0xA9B5: high,
            0xA9B6: item,
            0xA9B7: halves(memory)[0],
            0xA9B8: halves(memory)[1],
            0xA9B9: size,
            0xA9BB: self.config,
            0xA9BC: self.units,
            0xA9BD: 0,
            0xAB00: 1,
            0xB987: self.constants // 4 | 1 << 8,
            0xB990: 3 | (x - 1) << 2 | (y - 1) << 12 | (z - 1) << 22,
            0xB997: 0x00FC_FCC0,
            0xB998: 0xFC | self.wide << 9,
        }
        for axis in range(3):
            made[0xB991 + 2 * axis] = self.groups[axis] * self.block[axis]
            made[0xB992 + 2 * axis] = 0
            made[0xB999 + axis] = 1
        return made | self.more

    def state(self, *constants: int) -> list[int]:
        """All but the dispatch itself, with constants inline."""
        words = operation("SET_MARKER", 8) + registers(INVALIDATE_CMD, CS_STATE | CS_IBO)
        for offset, value in self.values().items():
            if offset not in self.leave:
                words += registers(offset, value)
        words += load(CODE, CS_SHADER, self.code, self.units)
        units = len(constants) // 4
        return words + (load_inline(CONSTANTS, CS_SHADER, units, *constants) if units else [])

    def words(self) -> list[int]:
        return self.state(1, 2, 3, 4) + operation("EXEC_CS", 0, *self.groups)


class Doubles:
    """An executor that runs no code: it notes launches, and does to memory what a test says.

    Attributes:
        launches: in their order.
        writes, reads: what each kernel does when it runs: (address, data), (address, size).
        seen: what was read.
        steps: how many turns a kernel takes.
    """

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.writes: list[tuple[int, bytes]] = []
        self.reads: list[tuple[int, int]] = []
        self.code_reads: list[tuple[int, int]] = []
        self.seen: list[bytes] = []
        self.steps = 1

    def check(self, chip: Chip) -> None:
        """Any chip will do."""

    def launch(self, what: Launch, memory: KernelMemory) -> RunningKernel:
        self.launches.append(what)
        return _Double(self, memory)


class _Double:
    instructions = 7

    def __init__(self, doubles: Doubles, memory: KernelMemory):
        self._doubles, self._memory = doubles, memory
        self._left = doubles.steps

    def step(self, budget: int) -> bool:
        self._left -= 1
        if self._left > 0:
            return False
        doubles, memory = self._doubles, self._memory
        doubles.seen += [memory.code.read(at, size) for at, size in doubles.code_reads]
        doubles.seen += [memory.data.read(at, size) for at, size in doubles.reads]
        for at, data in doubles.writes:
            memory.data.write(at, data)
        return True

    def why_stuck(self) -> str:
        return ""

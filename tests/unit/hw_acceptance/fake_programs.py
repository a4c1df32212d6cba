"""The ladder's kernels as the fake GPU runs them, thread by thread, and their fake cubins.

The code of a fake cubin is the kernel's name; all else about it is as in a real one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from tools.hw_acceptance.nvrtc import Compiled

MASK = 0xFFFF_FFFF
PARAMETERS: Final = {80: 0x160, 86: 0x160, 89: 0x160, 90: 0x210, 100: 0x380, 120: 0x380}
# Offset and size of each parameter; bytes of static shared memory; bytes of stack; barriers.
KERNELS: Final = {
    "nothing": ((), 0, 0, 0),
    "store": (((0, 8), (8, 4), (16, 8), (24, 2)), 0, 0, 0),
    "shape": (((0, 8),), 0, 0, 0),
    "shared": (((0, 8), (8, 8), (16, 8)), 1024, 0, 1),
    "dynamic": (((0, 8), (8, 8), (16, 4)), 0, 0, 6),
    "local": (((0, 8), (8, 8), (16, 4)), 0, 256, 0),
    "copy": (((0, 8), (8, 8), (16, 8)), 0, 0, 0),
    "add": (((0, 8), (8, 8), (16, 8), (24, 4)), 0, 0, 0),
    "fill": (((0, 8), (8, 4), (12, 4)), 0, 0, 0),
    "spin": (((0, 8), (8, 8), (16, 8), (24, 8)), 0, 0, 0),
    "trap": ((), 0, 0, 0),
}


class Memory(Protocol):
    def load(self, address: int, size: int) -> bytes: ...

    def store(self, address: int, data: bytes) -> None: ...


class Launched:
    """A launch as its descriptor (version 4) and bank 0 of sm_90 tell it."""

    def __init__(self, memory: Memory, address: int):
        self.memory = memory
        self.address = address
        self._qmd = int.from_bytes(memory.load(address, 384), "little")
        self.program = self.field(1272, 1216)
        self.local = self.field(567, 544)
        self.grid = (self.field(1055, 1024), self.field(1071, 1056), self.field(1103, 1088))
        self.block = (self.field(1167, 1152), self.field(1183, 1168), self.field(1199, 1184))
        assert self.field(416, 416), "constant bank 0 is valid"
        size = self.field(1599, 1587) << 4
        self.bank = memory.load(self.field(1586, 1536) << 6, size)
        assert struct.unpack_from("<6I", self.bank) == (*self.block, *self.grid)

    def field(self, high: int, low: int) -> int:
        return self._qmd >> low & ((1 << high - low + 1) - 1)

    def parameters(self, form: str) -> tuple[int, ...]:
        return struct.unpack_from("<" + form, self.bank, PARAMETERS[90])

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    def words(self, address: int, count: int) -> list[int]:
        return list(struct.unpack(f"<{count}I", self.memory.load(address, 4 * count)))

    def put(self, address: int, words: Sequence[int]) -> None:
        self.memory.store(address, struct.pack(f"<{len(words)}I", *words))


def _axes(sizes: tuple[int, int, int]) -> Iterator[tuple[int, int, int]]:
    for z in range(sizes[2]):
        for y in range(sizes[1]):
            for x in range(sizes[0]):
                yield x, y, z


def _nothing(launched: Launched) -> None:
    pass


def _store(launched: Launched) -> None:
    out, value, wide, small = launched.parameters("QI4xQH")
    launched.put(out, [value, wide & MASK, wide >> 32, small])


def _shape(launched: Launched) -> None:
    (out,) = launched.parameters("Q")
    words: list[int] = []
    for bx, by, bz in _axes(launched.grid):
        for tx, ty, tz in _axes(launched.block):
            words += [tx | ty << 10 | tz << 20, bx | by << 10 | bz << 20]
            words += [*launched.block, *launched.grid]
    launched.put(out, words)


def _shared(launched: Launched) -> None:
    source, target, sums = launched.parameters("QQQ")
    assert launched.block == (256, 1, 1) and launched.field(601, 584) >= 2048
    for block in range(launched.blocks):
        numbers = launched.words(source + 1024 * block, 256)
        launched.put(target + 1024 * block, numbers[::-1])
        launched.put(sums + 4 * block, [sum(numbers) & MASK])


def _dynamic(launched: Launched) -> None:
    source, target, count = launched.parameters("QQI")
    assert launched.field(601, 584) >= 1024 + 4 * count and launched.field(1215, 1211) == 6
    for block in range(launched.blocks):
        at = 4 * count * block
        launched.put(target + at, launched.words(source + at, count)[::-1])


def _local(launched: Launched) -> None:
    source, target, rounds = launched.parameters("QQI")
    assert launched.local >= 256
    numbers, results = launched.words(source, 64), []
    for at in range(launched.blocks * launched.block[0]):
        mine = [number + at & MASK for number in numbers]
        for i in range(rounds):
            place = (i * 7 + at) % 64
            mine[place] = mine[place] + mine[i * 3 % 64] & MASK
        total = 0
        for number in mine:
            total = total * 31 + number & MASK
        results.append(total)
    launched.put(target, results)


def _copy(launched: Launched) -> None:
    source, target, count = launched.parameters("QQQ")
    launched.memory.store(target, launched.memory.load(source, 4 * count))


PROGRAMS: Final[dict[str, Callable[[Launched], None]]] = {
    "nothing": _nothing,
    "store": _store,
    "shape": _shape,
    "shared": _shared,
    "dynamic": _dynamic,
    "local": _local,
    "copy": _copy,
}


class FakeCompiler:
    """Stands in for nvrtc."""

    version = "13.0"

    def __init__(self, *architectures: int):
        self._known = architectures or (80, 86, 89, 90, 100, 120)

    def architectures(self) -> list[int]:
        return list(self._known)

    def compile(self, name: str, source: str, sm: int, options: Sequence[str] = ()) -> Compiled:
        assert f"void {name}(" in source
        return Compiled(fake_cubin(name, sm), f".version 9.0\n.target sm_{sm}\n".encode())


def fake_cubin(name: str, sm: int) -> bytes:
    """An ELF file with the sections of a cubin of CUDA 13."""
    parameters, shared, stack, barriers = KERNELS[name]
    size = max((offset + width for offset, width in parameters), default=0)
    base = PARAMETERS[sm]
    symbol = 1
    module = _sized(0x2F, symbol, 32) + _sized(0x12, symbol, stack)
    own = struct.pack("<BBH", 2, 0x4C, barriers)
    if parameters:
        own += _sized(0x0A, symbol, size << 16 | base)
    for number, (offset, width) in reversed(list(enumerate(parameters))):
        own += _sized(0x17, 0, offset << 16 | number, width << 18 | 0x1F000)
    code = name.encode().ljust(128, b"\0")
    symbols = bytes(24) + struct.pack("<IBBHQQ", 1, 0x12, 0x10, 4, 0, len(code))
    alloc, execute, progbits, nobits, info = 2, 4, 1, 8, 0x70000000
    reserved = 1024 if sm >= 90 and shared else 0
    rows = [
        ("", 0, 0, b"", 0, 0, 0),
        (".strtab", 3, 0, b"\0" + name.encode() + b"\0", 0, 0, 0),
        (".shstrtab", 3, 0, b"", 0, 0, 0),
        (".symtab", 2, 0, symbols, 1, 1, 0),
        (f".text.{name}", progbits, alloc | execute, code, 3, symbol, 0),
        (f".nv.constant0.{name}", progbits, alloc, bytes(base + size), 0, 4, 0),
        (".nv.info", info, 0, module, 3, 0, 0),
        (f".nv.info.{name}", info, 0, own, 3, 4, 0),
    ]
    if shared:
        row = (f".nv.shared.{name}", nobits, alloc | 1, b"", 0, 4, shared + reserved)
        rows.append(row)
    return _elf(rows, sm)


def _sized(attribute: int, *words: int) -> bytes:
    payload = struct.pack(f"<{len(words)}I", *words)
    return struct.pack("<BBH", 4, attribute, len(payload)) + payload


def _elf(rows: list[tuple[str, int, int, bytes, int, int, int]], sm: int) -> bytes:
    """``rows`` are name, type, flags, content, link, info, and the size of what has no content."""
    names = b"".join(row[0].encode() + b"\0" for row in rows)
    body, headers = bytearray(), b""
    for name, kind, flags, given, link, info, size in rows:
        content = names if name == ".shstrtab" else given
        body += bytes(-len(body) % 128)
        at = names.index(b"\0" + name.encode() + b"\0") + 1 if name else 0
        headers += struct.pack(
            "<IIQQQQIIQQ",
            *(at, kind, flags, 0, 64 + len(body), size or len(content), link, info),
            *(128 if kind in (1, 8) and flags & 4 else 4, 24 if kind == 2 else 0),
        )
        body += content
    body += bytes(-len(body) % 8)
    ident = b"\x7fELF\x02\x01\x01\x41\x08" + bytes(7)
    flags = 0x6000004 | sm << 8
    head = (2, 190, 1, 0, 0, 64 + len(body), flags, 64, 0, 0, 64, len(rows), 2)
    return ident + struct.pack("<HHIQQQIHHHHHH", *head) + bytes(body) + headers

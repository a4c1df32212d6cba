"""`libcuda.so.1` as a file: a shared object whose functions go on to addresses in a table.

Whoever loads the file in the process of the model finds the model's functions; in any other process
the table is empty, and each function gives NOT_INITIALIZED. Layouts: System V ABI, "Object Files"
and "Dynamic Linking" (ELF-64), and the AMD64 and AArch64 processor supplements.
"""

from __future__ import annotations

import ctypes
import platform
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gpu.core import elf
from gpu.core.bits import align_up
from gpu.core.errors import Unsupported
from gpu.core.files import atomic_write
from gpu.sim.cuda.codes import NOT_INITIALIZED

SONAME: Final = "libcuda.so.1"
TABLE: Final = "gpu_sim_cuda_table"
"""The symbol of the table of addresses: a word of 64 bits for each function, by name."""
_PAGE: Final = 1 << 16  # the largest of any machine
_PT_DYNAMIC, _PT_GNU_STACK = 2, 0x6474E551
_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = 4, 5, 6, 10, 11, 14
_STT_OBJECT, _STB_GLOBAL = 1, 1
_SEGMENTS: Final = 4
_DEFINED: Final = 1  # a section, of which there is none: not SHN_UNDEF
_WORD: Final = 8
_STUB: Final = 24  # bytes of a function at most


def _stub_x86_64(distance: int) -> bytes:
    """mov rax, [rip + distance - 7]; test rax, rax; jz 1f; jmp rax; 1: mov eax, code; ret."""
    load = b"\x48\x8b\x05" + struct.pack("<i", distance - 7)
    return load + b"\x48\x85\xc0\x74\x02\xff\xe0\xb8" + struct.pack("<i", NOT_INITIALIZED) + b"\xc3"


def _stub_aarch64(distance: int) -> bytes:
    """ldr x16, distance; cbz x16, 1f; br x16; 1: mov w0, #code; ret."""
    load = 0x58000010 | (distance >> 2 & (1 << 19) - 1) << 5
    give = 0x52800000 | NOT_INITIALIZED << 5
    return struct.pack("<5I", load, 0xB4000050, 0xD61F0200, give, 0xD65F03C0)


_MACHINES: Final[dict[str, tuple[int, Callable[[int], bytes]]]] = {
    "x86_64": (elf.EM_X86_64, _stub_x86_64),
    "aarch64": (elf.EM_AARCH64, _stub_aarch64),
}


class _Layout:
    """Where the parts of the file are, which are their addresses too.

    Its order: headers, symbols, their names, a hash table, functions; on a page of its own what is
    written: the table, and what the loader is told.
    """

    def __init__(self, names: Sequence[str]):
        self.names = (TABLE, *names)
        self.strings = b"\0" + b"".join(name.encode() + b"\0" for name in (SONAME, *self.names))
        count = 1 + len(self.names)  # symbols; the first is none
        # One bucket, which has all symbols: each leads to the next.
        self.hashes = struct.pack(f"<{3 + count}I", 1, count, 1, 0, *range(2, count), 0)
        self.symbols_at = align_up(elf.HEADER.size + _SEGMENTS * elf.PROGRAM.size, _WORD)
        self.strings_at = self.symbols_at + count * elf.SYMBOL.size
        self.hash_at = align_up(self.strings_at + len(self.strings), _WORD)
        self.text_at = align_up(self.hash_at + len(self.hashes), _WORD)
        self.text_end = self.text_at + _STUB * len(names)
        self.table_at = align_up(self.text_end, _PAGE)
        self.dynamic_at = self.table_at + _WORD * len(names)

    def symbols(self) -> bytes:
        """The table of symbols: the table of addresses, and the functions."""
        functions = range(self.text_at, self.text_end, _STUB)
        places = [(_STT_OBJECT, self.table_at, self.dynamic_at - self.table_at)]
        places += [(elf.STT_FUNC, address, _STUB) for address in functions]
        symbols, name_at = bytes(elf.SYMBOL.size), 1 + len(SONAME) + 1
        for name, (kind, address, size) in zip(self.names, places, strict=True):
            info = _STB_GLOBAL << 4 | kind
            symbols += elf.SYMBOL.pack(name_at, info, 0, _DEFINED, address, size)
            name_at += len(name) + 1
        return symbols

    def dynamic(self) -> bytes:
        """What the loader is told."""
        entries = (
            (_DT_SONAME, 1), (_DT_HASH, self.hash_at), (_DT_SYMTAB, self.symbols_at),
            (_DT_SYMENT, elf.SYMBOL.size), (_DT_STRTAB, self.strings_at),
            (_DT_STRSZ, len(self.strings)), (0, 0),
        )  # fmt: skip
        return b"".join(struct.pack("<qQ", *entry) for entry in entries)

    def headers(self, machine: int, end: int) -> bytes:
        """The file's header, and those of its segments."""
        read, write = elf.PF_R | elf.PF_X, elf.PF_R | elf.PF_W
        segments = (
            (elf.PT_LOAD, read, 0, self.text_end, _PAGE),
            (elf.PT_LOAD, write, self.table_at, end - self.table_at, _PAGE),
            (_PT_DYNAMIC, write, self.dynamic_at, end - self.dynamic_at, _WORD),
            (_PT_GNU_STACK, write, 0, 0, 16),
        )
        header = elf.HEADER.pack(
            *(elf.IDENT + bytes(9), elf.ET_DYN, machine, 1, 0, elf.HEADER.size, 0, 0),
            *(elf.HEADER.size, elf.PROGRAM.size, _SEGMENTS, elf.SECTION.size, 0, 0),
        )
        return header + b"".join(
            elf.PROGRAM.pack(kind, flags, at, at, at, size, size, align)
            for kind, flags, at, size, align in segments
        )


def shared_object(names: Sequence[str], machine: str) -> bytes:
    """The file, with functions of these names. Raises Unsupported for a machine without one."""
    if machine not in _MACHINES:
        known = ", ".join(_MACHINES)
        raise Unsupported(f"there is no simulated {SONAME} for {machine}, but for {known}")
    number, stub = _MACHINES[machine]
    layout = _Layout(names)
    distance = layout.table_at - layout.text_at
    text = b"".join(
        stub(distance + (_WORD - _STUB) * i).ljust(_STUB, b"\0") for i in range(len(names))
    )
    dynamic = layout.dynamic()
    image = bytearray(layout.dynamic_at + len(dynamic))
    for at, content in (
        (0, layout.headers(number, len(image))), (layout.symbols_at, layout.symbols()),
        (layout.strings_at, layout.strings), (layout.hash_at, layout.hashes),
        (layout.text_at, text), (layout.dynamic_at, dynamic),
    ):  # fmt: skip
        image[at : at + len(content)] = content
    return bytes(image)


def load_file(functions: Mapping[str, int], path: str) -> ctypes.CDLL:
    """Writes the file, loads it for all of the process, and lets it lead to `functions`.

    Who loads a library called libcuda.so.1 in this process finds it from now on, whatever the path.
    Raises Unsupported for a machine that is not known, OSError where it cannot be written.
    """
    names = sorted(functions)
    atomic_write(path, shared_object(names, platform.machine()))
    library = ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
    table = (ctypes.c_uint64 * len(names)).in_dll(library, TABLE)
    table[:] = [functions[name] for name in names]
    return library

"""Machine code as text, through the disassembler of LLVM's C library where this machine has one.

llvmlite has no disassembler. The functions are those of LLVM's `llvm-c/Disassembler.h`,
`llvm-c/Target.h` and `llvm-c/Core.h`.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Final

from gpu.compiler.targets.amd import check_chip
from gpu.core import elf
from gpu.core.errors import Unsupported

# How Debian, Fedora and macOS name it, newest first; AMD's gfx11 is known from 16 on.
_VERSIONS: Final = range(23, 15, -1)
_NAMES: Final = tuple(
    name.format(version)
    for version in _VERSIONS
    for name in ("libLLVM.so.{}.1", "libLLVM-{}.so.1", "libLLVM-{}.so", "libLLVM.{}.dylib")
)
_LINE: Final = 256
_TRIPLE: Final = b"amdgcn-amd-amdhsa"


def disassemble_code_object(lib: bytes, chip: str) -> str:
    """The code of a code object. Raises as `disassemble_amdgcn`, FormatError for what is none."""
    found = elf.parse_shared(lib)
    names = {s.value: s.name for s in found.symbols if s.type == elf.STT_FUNC}
    lines = []
    for section in found.sections:
        if section.flags & elf.SHF_EXECINSTR:
            lines += [f"{names.get(section.address, section.name)}:"]
            lines += disassemble_amdgcn(section.content, chip, section.address)
    return "\n".join(lines) + "\n"


def disassemble_amdgcn(code: bytes, chip: str, start: int = 0) -> list[str]:
    """A line for each instruction: its address, counted from `start`, its bytes and its text.

    What is no instruction is shown as a word. Raises Unsupported where there is no LLVM library, or
    one that is too old for the chip, which would end the process.
    """
    library = find_disassembler()
    oldest, version = check_chip(chip).llvm, _version(library)
    if version < oldest:
        raise Unsupported(
            f"this machine's LLVM library has version {version}, and {chip} is known to LLVM"
            f" {oldest} and newer: install one (Debian: the package libllvm22)"
        )
    context = library.LLVMCreateDisasmCPU(_TRIPLE, chip.encode(), None, 0, None, None)
    assert context, "LLVM was built with what it was told to prepare"
    try:
        return list(_lines(library, context, code, start))
    finally:
        library.LLVMDisasmDispose(context)


def _lines(library: ctypes.CDLL, context: int, code: bytes, start: int) -> list[str]:
    data = ctypes.create_string_buffer(code, len(code))
    text = ctypes.create_string_buffer(_LINE)
    lines, at = [], 0
    while at < len(code):
        place = ctypes.byref(data, at)
        left = len(code) - at
        size = library.LLVMDisasmInstruction(context, place, left, start + at, text, _LINE)
        shown = text.value.decode().strip() if size else ""
        size = size or min(4, left)
        words = code[at : at + size].hex(" ", -4)
        lines.append(f"{start + at:08x}:  {words:26} {shown or '.long ?'}".rstrip())
        at += size
    return lines


def _version(library: ctypes.CDLL) -> int:
    major = ctypes.c_uint()
    library.LLVMGetVersion(ctypes.byref(major), None, None)
    return major.value


@cache
def find_disassembler() -> ctypes.CDLL:
    """LLVM's C library with AMD's target. Raises Unsupported where none is found."""
    for name in _NAMES:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        return _prepared(library)
    raise Unsupported(
        "disassembling code for AMD GPUs needs LLVM's library; install it (Debian: the package"
        " libllvm19 or libllvm22)"
    )


def _prepared(library: ctypes.CDLL) -> ctypes.CDLL:
    text, pointer, size = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t
    library.LLVMCreateDisasmCPU.restype = pointer
    library.LLVMCreateDisasmCPU.argtypes = [text, text, pointer, ctypes.c_int, pointer, pointer]
    library.LLVMDisasmInstruction.restype = size
    library.LLVMDisasmInstruction.argtypes = [
        *(pointer, pointer, ctypes.c_uint64, ctypes.c_uint64, text, size)
    ]
    library.LLVMDisasmDispose.argtypes = [pointer]
    for part in ("TargetInfo", "TargetMC", "Disassembler"):
        getattr(library, f"LLVMInitializeAMDGPU{part}")()
    return library

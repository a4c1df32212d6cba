"""libLLVM's disassembler and assembler through ctypes: the stable C API of llvm-c."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from gpu.core.elf import parse_object

_FOLDERS: Final = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")
_VERSIONS: Final = ("22.1", "21.1", "20.1", "19.1")
_POINTERS: Final = (
    *("LLVMContextCreate", "LLVMModuleCreateWithNameInContext", "LLVMCreateTargetMachine"),
    *("LLVMGetBufferStart", "LLVMGetDiagInfoDescription"),
)
_PARTS: Final = ("TargetInfo", "Target", "TargetMC", "AsmPrinter", "AsmParser", "Disassembler")
_TRIPLE: Final = b"amdgcn-amd-amdhsa"
_HALVES: Final = {"gfx11": b"+real-true16", "gfx12": b"+real-true16"}
"""What makes LLVM tell which half of a register a 16-bit operand is, on chips that have halves."""
_TEXT_SIZE: Final = 512
_HANDLER: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
_PIC: Final = 2  # LLVMRelocPIC
_OBJECT: Final = 1  # LLVMObjectFile
_SLOT: Final = 32  # bytes; no instruction is longer


def find_llvm() -> str | None:
    """A libLLVM: what LLVM_LIBRARY names, else the newest of Debian's that is installed."""
    named = os.environ.get("LLVM_LIBRARY")
    if named:
        return named
    paths = [f"{folder}/libLLVM.so.{v}" for v in _VERSIONS for folder in _FOLDERS]
    return next((path for path in paths if Path(path).exists()), None)


@cache
def _load(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    for part in _PARTS:
        getattr(library, f"LLVMInitializeAMDGPU{part}")()
    library.LLVMCreateDisasmCPUFeatures.restype = ctypes.c_void_p
    library.LLVMDisasmInstruction.restype = ctypes.c_size_t
    library.LLVMGetBufferSize.restype = ctypes.c_size_t
    for name in _POINTERS:
        getattr(library, name).restype = ctypes.c_void_p
    return library


@cache
def llvm_version(path: str) -> str:
    """Its version, such as ``22.1.8``."""
    numbers = [ctypes.c_uint() for _ in range(3)]
    _load(path).LLVMGetVersion(*(ctypes.byref(number) for number in numbers))
    return ".".join(str(number.value) for number in numbers)


class Disassembler:
    """Text of single instructions of one AMD chip, such as gfx1100.

    16-bit operands are written as halves of registers (``v1.l``) by LLVM 20 and later.

    Attributes:
        chip: its name.
    """

    def __init__(self, path: str, chip: str):
        """Raises ValueError for a chip that this LLVM does not know."""
        self.chip = chip
        self._library = _load(path)
        context = self._library.LLVMCreateDisasmCPUFeatures(
            _TRIPLE, chip.encode(), _HALVES.get(chip[:5], b""), None, 0, None, None
        )
        if not context:
            raise ValueError(f"{path} knows no chip {chip!r}")
        self._context = ctypes.c_void_p(context)
        self._text = ctypes.create_string_buffer(_TEXT_SIZE)

    def __call__(self, code: bytes) -> tuple[int, str] | None:
        """(size in bytes, text) of the first instruction of `code`; None where there is none."""
        data = (ctypes.c_uint8 * len(code)).from_buffer_copy(code)
        size = self._library.LLVMDisasmInstruction(
            *(self._context, data, ctypes.c_uint64(len(code)), ctypes.c_uint64(0)),
            *(self._text, ctypes.c_size_t(_TEXT_SIZE)),
        )
        text = re.sub(r"\s+", " ", self._text.value.decode().strip())
        return (size, text) if size and "Invalid" not in text else None


class Assembler:
    """Code of instructions that are given as text, for one AMD chip."""

    def __init__(self, path: str, chip: str):
        """Raises ValueError where this LLVM has no code generator for AMD's GPUs."""
        self._library = _load(path)
        self._problems: list[str] = []
        self._handler = _HANDLER(self._note)
        target, why = ctypes.c_void_p(), ctypes.c_char_p()
        if self._library.LLVMGetTargetFromTriple(_TRIPLE, ctypes.byref(target), ctypes.byref(why)):
            raise ValueError(f"{path} has no target {_TRIPLE.decode()}: {why.value!r}")
        self._machine = ctypes.c_void_p(
            self._library.LLVMCreateTargetMachine(
                target, _TRIPLE, chip.encode(), _HALVES.get(chip[:5], b""), 0, _PIC, 0
            )
        )

    def __call__(self, lines: Sequence[str]) -> list[bytes | None]:
        """For each line bytes that begin with its code, or None for what LLVM does not take."""
        _, wrong = self._assemble(lines)
        taken = [place for place in range(len(lines)) if place not in wrong]
        code, _ = self._assemble([lines[place] for place in taken])
        found: list[bytes | None] = [None] * len(lines)
        for number, place in enumerate(taken):
            found[place] = code[_SLOT * number : _SLOT * (number + 1)]
        return found

    def _assemble(self, lines: Sequence[str]) -> tuple[bytes, set[int]]:
        """(the code, `_SLOT` bytes for each line that is right; places of those that are wrong)."""
        library = self._library
        self._problems = []
        context = ctypes.c_void_p(library.LLVMContextCreate())
        library.LLVMContextSetDiagnosticHandler(context, self._handler, None)
        module = ctypes.c_void_p(library.LLVMModuleCreateWithNameInContext(b"", context))
        text = "".join(f"{line}\n.balign {_SLOT}, 0\n" for line in lines).encode()
        library.LLVMSetModuleInlineAsm2(module, text, ctypes.c_size_t(len(text)))
        library.LLVMSetTarget(module, _TRIPLE)
        buffer, why = ctypes.c_void_p(), ctypes.c_char_p()
        if library.LLVMTargetMachineEmitToMemoryBuffer(
            self._machine, module, _OBJECT, ctypes.byref(why), ctypes.byref(buffer)
        ):
            raise ValueError(f"LLVM makes no object: {why.value!r}")
        size = library.LLVMGetBufferSize(buffer)
        data = ctypes.string_at(library.LLVMGetBufferStart(buffer), size)
        library.LLVMDisposeMemoryBuffer(buffer)
        library.LLVMDisposeModule(module)
        library.LLVMContextDispose(context)
        sections = parse_object(data).sections
        code = next((bytes(s.content) for s in sections if s.name == ".text"), b"")
        found = [re.search(r"<inline asm>:(\d+):", problem) for problem in self._problems]
        return code, {(int(match[1]) - 1) // 2 for match in found if match}

    def _note(self, info: int, _: int | None) -> None:
        text = self._library.LLVMGetDiagInfoDescription(ctypes.c_void_p(info))
        self._problems.append(ctypes.string_at(text).decode())

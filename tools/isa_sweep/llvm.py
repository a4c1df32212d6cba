"""libLLVM's disassembler through ctypes: the stable C API of llvm-c/Disassembler.h."""

from __future__ import annotations

import ctypes
import os
import re
from functools import cache
from pathlib import Path
from typing import Final

_FOLDERS: Final = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")
_VERSIONS: Final = ("22.1", "21.1", "20.1", "19.1")
_PARTS: Final = ("TargetInfo", "Target", "TargetMC", "AsmPrinter", "AsmParser", "Disassembler")
_TRIPLE: Final = b"amdgcn-amd-amdhsa"
_TEXT_SIZE: Final = 512


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
    """

    def __init__(self, path: str, chip: str):
        """Raises ValueError for a chip that this LLVM does not know."""
        self._library = _load(path)
        context = self._library.LLVMCreateDisasmCPUFeatures(
            _TRIPLE, chip.encode(), b"", None, 0, None, None
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

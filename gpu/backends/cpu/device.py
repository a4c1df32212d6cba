"""The CPU device: host memory, LLVM or clang, machine code in executable memory."""

from __future__ import annotations

import ctypes
from typing import Final

import numpy as np
import numpy.typing as npt

from gpu.backends.cpu.graph import CPUGraph
from gpu.backends.cpu.native import read_memory, write_memory
from gpu.backends.cpu.program import CPUProgram
from gpu.compiler.render.llvm.cpu import LLVMRenderer
from gpu.compiler.targets import Target
from gpu.compiler.targets.cpu import host_target, missing_here
from gpu.compiler.toolchain.llvm import LLVMCompiler
from gpu.core.arguments import count_of, host_bytes
from gpu.core.available import check_memory
from gpu.core.config import config
from gpu.core.devspec import DeviceSpec
from gpu.core.errors import OutOfMemory, Unsupported
from gpu.core.log import get_logger
from gpu.runtime.allocator import LRUAllocator
from gpu.runtime.device import Compiled, LaunchData, Toolchain

log = get_logger(__name__)

ALIGNMENT: Final = 64  # bytes: a cache line, and the widest vector register


class CPUAllocator(LRUAllocator[int]):
    """Host memory by address, aligned to a cache line."""

    def __init__(self) -> None:
        super().__init__()
        self._owners: dict[int, npt.NDArray[np.uint8]] = {}

    def _alloc(self, nbytes: int) -> int:
        check_memory(nbytes)
        try:
            owner = np.empty(nbytes + ALIGNMENT, np.uint8)
        except (MemoryError, ValueError) as error:  # ValueError: more than numpy can address
            raise OutOfMemory(
                f"cannot allocate {nbytes:,} bytes of host memory ({self.live:,} are in use); "
                "free tensors or use smaller ones"
            ) from error
        address = -(-owner.ctypes.data // ALIGNMENT) * ALIGNMENT
        self._owners[address] = owner
        return address

    def _free(self, memory: int, nbytes: int) -> None:
        del self._owners[memory]

    def host_address(self, memory: int) -> int:
        """The memory itself."""
        return memory

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copies bytes from one address to another."""
        ctypes.memmove(target, source, count_of(nbytes, "the number of bytes to copy"))

    def borrow(self, address: int, nbytes: int, owner: object) -> int:
        """The address itself: nothing runs any more when a launch returns."""
        return address

    def copy_in(self, memory: int, data: memoryview) -> None:
        """Copies bytes to an address."""
        write_memory(memory, host_bytes(data, "data"))

    def copy_out(self, data: memoryview, memory: int) -> None:
        """Copies bytes from an address."""
        read_memory(host_bytes(data, "data", writable=True), memory)


class CPU(Compiled):
    """An open CPU device."""

    may_alias = True  # nothing is promised about pointers in the code that renderers print


def _load(name: str, lib: bytes, data: LaunchData) -> CPUProgram:
    return CPUProgram(name, lib, data["scratch"], bool(data["parallel"]))


def open_device(name: str, spec: DeviceSpec) -> Compiled:
    """The CPU device `name`, compiling as `spec` says: with LLVM or CLANG.

    Where it does not say, with LLVM if llvmlite is installed, else with clang and a warning. Raises
    Unsupported for a renderer or architecture that is not available.
    """
    made = toolchain(spec)
    if missing := missing_here(made.renderer.target):
        raise Unsupported(
            f"DEV=CPU with {spec.arch} needs {', '.join(missing)}, which this machine lacks"
        )
    return CPU(name, CPUAllocator(), *made, _load, CPUGraph)


def toolchain(spec: DeviceSpec) -> Toolchain:
    """What makes code for the CPU that `spec` names, which need not be this machine's.

    Raises Unsupported for a renderer or architecture that is not available.
    """
    if spec.renderer not in (None, *_TOOLCHAINS):
        raise Unsupported(
            f"CPU:{spec.renderer} is not part of this version; use CPU:LLVM or CPU:CLANG"
        )
    return _toolchain(spec.renderer, host_target(spec.arch, config.CPU_THREADS))


def _llvm(target: Target) -> Toolchain:
    return Toolchain(LLVMRenderer(target), LLVMCompiler(target.name, target.features))


def _clang(target: Target) -> Toolchain:
    # Only here: the other compiler starts without these.
    from gpu.compiler.render.cstyle.c import CRenderer
    from gpu.compiler.toolchain.clang import ClangCompiler

    return Toolchain(CRenderer(target), ClangCompiler(target.name, target.features))


_TOOLCHAINS: Final = {"LLVM": _llvm, "CLANG": _clang}


def _toolchain(name: str | None, target: Target) -> Toolchain:
    """The renderer and compiler called `name`; the best that is installed for None."""
    if name is not None:
        return _TOOLCHAINS[name](target)
    try:
        return _llvm(target)
    except Unsupported as no_llvm:
        try:
            found = _clang(target)
        except Unsupported as no_clang:
            reasons = f"{no_llvm.message}; {no_clang.message}"
            raise Unsupported(f"DEV=CPU has no compiler: {reasons}") from no_clang
        log.warning("%s; kernels are compiled with clang", no_llvm.message)
        return found

"""LLVM IR to PTX through LLVM, and PTX to machine code through NVIDIA's libraries.

Functions and their codes: nvJitLink.h and nvPTXCompiler.h of CUDA 13. Libraries are loaded by the
first `compile`.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint32, c_void_p
from typing import Any, Final

from gpu.compiler.targets.nvidia import number_of
from gpu.compiler.toolchain.base import Compiler
from gpu.compiler.toolchain.llvm import emit_assembly, llvmlite_version, prepare_llvm
from gpu.compiler.toolchain.llvm_emit import Machine
from gpu.compiler.toolchain.nvbinary import NvBinary, with_lines
from gpu.compiler.toolchain.nvlibs import NvLibrary, find_library
from gpu.core.errors import CompileError, Unsupported

_TRIPLE: Final = "nvptx64-nvidia-cuda"
# PTX for an architecture runs on all later ones, and the first is the oldest that our targets have,
# the second the oldest with all that is printed. PTX ISA 7.4 is the first with copies that prefetch
# ("cp.async", "PTX ISA Notes").
_CPUS: Final = ("sm_70", "sm_80")
_FEATURES: Final = "+ptx74"
_OPT_LEVEL: Final = 3
_PTX_INPUT: Final = 2  # NVJITLINK_INPUT_PTX
_LINKER: Final[dict[str, tuple[Any, ...]]] = {
    "nvJitLinkCreate": (POINTER(c_void_p), c_uint32, POINTER(c_char_p)),
    "nvJitLinkAddData": (c_void_p, c_int, c_char_p, c_size_t, c_char_p),
    "nvJitLinkComplete": (c_void_p,),
    "nvJitLinkDestroy": (POINTER(c_void_p),),
    "nvJitLinkGetErrorLogSize": (c_void_p, POINTER(c_size_t)),
    "nvJitLinkGetErrorLog": (c_void_p, c_char_p),
    "nvJitLinkGetLinkedCubinSize": (c_void_p, POINTER(c_size_t)),
    "nvJitLinkGetLinkedCubin": (c_void_p, c_char_p),
}
_PTX_COMPILER: Final[dict[str, tuple[Any, ...]]] = {
    "nvPTXCompilerCreate": (POINTER(c_void_p), c_size_t, c_char_p),
    "nvPTXCompilerCompile": (c_void_p, c_int, POINTER(c_char_p)),
    "nvPTXCompilerDestroy": (POINTER(c_void_p),),
    "nvPTXCompilerGetErrorLogSize": (c_void_p, POINTER(c_size_t)),
    "nvPTXCompilerGetErrorLog": (c_void_p, c_char_p),
    "nvPTXCompilerGetCompiledProgramSize": (c_void_p, POINTER(c_size_t)),
    "nvPTXCompilerGetCompiledProgram": (c_void_p, c_char_p),
}


class PtxCompiler(Compiler):
    """Compiles LLVM IR for one architecture to an `NvBinary`."""

    def __init__(self, arch: str):
        """`arch` as NVIDIA's compilers call it: `sm_90`.

        Raises Unsupported where llvmlite is not installed, or no library that assembles PTX.
        """
        self._arch, self._library = arch, _find_assembler()
        super().__init__(f"{_key(arch)}|{self._library.identity}|{arch}", "ptx")

    def prepare(self) -> None:
        """Starts the process that LLVM runs in."""
        prepare_llvm()

    def compile(self, source: str) -> bytes:
        """An `NvBinary`, packed.

        Raises CompileError with the message of LLVM or of the assembler and the lines it is about,
        Unsupported where the library cannot be loaded.
        """
        ptx = generate_ptx(source, self._arch)
        return NvBinary(assemble(self._library, ptx, self._arch), ptx).pack()

    def disassemble(self, lib: bytes) -> str:
        """The PTX, and the machine code where nvdisasm is installed."""
        return NvBinary.unpack(lib).disassemble()


class DriverPtxCompiler(Compiler):
    """Compiles LLVM IR to PTX alone, for the compiler that is part of NVIDIA's driver."""

    def __init__(self, arch: str):
        """`arch` as NVIDIA's compilers call it: `sm_90`. Raises Unsupported without llvmlite."""
        self._arch = arch
        super().__init__(_key(arch), "ptx")

    def prepare(self) -> None:
        """Starts the process that LLVM runs in."""
        prepare_llvm()

    def compile(self, source: str) -> bytes:
        """An `NvBinary` without a cubin, packed. Raises CompileError with the message of LLVM."""
        return NvBinary(b"", generate_ptx(source, self._arch)).pack()

    def disassemble(self, lib: bytes) -> str:
        """The PTX."""
        return NvBinary.unpack(lib).disassemble()


def _key(arch: str) -> str:
    """What PTX for an architecture depends on besides the source."""
    machine = f"{_TRIPLE}|{_cpu(arch)}|{_FEATURES}|O{_OPT_LEVEL}"
    return f"llvmlite {llvmlite_version()}|{machine}"


def _cpu(arch: str) -> str:
    return max((cpu for cpu in _CPUS if number_of(cpu) <= number_of(arch)), key=number_of)


def generate_ptx(source: str, arch: str = _CPUS[-1]) -> str:
    """The PTX of LLVM IR, which `arch` and all later ones run.

    Raises CompileError with LLVM's message and the line it is about.
    """
    return emit_assembly(source, Machine(_TRIPLE, _cpu(arch), _FEATURES, _OPT_LEVEL))


def assemble(library: NvLibrary, ptx: str, arch: str) -> bytes:
    """The cubin that nvJitLink or nvptxcompiler makes of PTX for `arch`.

    Raises CompileError with the assembler's messages and the lines they are about.
    """
    if library.name == "nvJitLink":
        return _Assembler(library, _LINKER).link(ptx, arch)
    return _Assembler(library, _PTX_COMPILER).compile(ptx, arch)


def _find_assembler() -> NvLibrary:
    try:
        return find_library("nvJitLink")
    except Unsupported as no_linker:
        try:
            return find_library("nvptxcompiler")
        except Unsupported:
            raise no_linker from None


class _Assembler:
    """The functions of a loaded library."""

    def __init__(self, library: NvLibrary, signatures: dict[str, tuple[Any, ...]]):
        loaded = library.load()
        self._path = library.path
        self._functions = {name: loaded[library.function(name)] for name in signatures}
        for name, arguments in signatures.items():
            self._functions[name].argtypes = arguments

    def link(self, ptx: str, arch: str) -> bytes:
        """A cubin, through nvJitLink."""
        handle, text = c_void_p(), ptx.encode()
        options = (c_char_p * 1)(f"-arch={arch}".encode())
        self._check("nvJitLinkCreate", byref(handle), 1, options)
        try:
            code = self._call(
                *("nvJitLinkAddData", handle, _PTX_INPUT, text, len(text), b"kernel.ptx")
            ) or self._call("nvJitLinkComplete", handle)
            if code:
                log = self._bytes("nvJitLinkGetErrorLog", handle)
                raise CompileError(_refusal(self._path, arch, code, log, ptx))
            return self._bytes("nvJitLinkGetLinkedCubin", handle)
        finally:
            self._check("nvJitLinkDestroy", byref(handle))

    def compile(self, ptx: str, arch: str) -> bytes:
        """A cubin, through nvptxcompiler."""
        handle, text = c_void_p(), ptx.encode()
        options = (c_char_p * 1)(f"--gpu-name={arch}".encode())
        self._check("nvPTXCompilerCreate", byref(handle), len(text), text)
        try:
            if code := self._call("nvPTXCompilerCompile", handle, 1, options):
                log = self._bytes("nvPTXCompilerGetErrorLog", handle)
                raise CompileError(_refusal(self._path, arch, code, log, ptx))
            return self._bytes("nvPTXCompilerGetCompiledProgram", handle)
        finally:
            self._check("nvPTXCompilerDestroy", byref(handle))

    def _bytes(self, function: str, handle: c_void_p) -> bytes:
        """What a function gives whose name with `Size` behind it gives the number of bytes."""
        size = c_size_t()
        self._check(f"{function}Size", handle, byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._check(function, handle, buffer)
        return buffer.raw

    def _check(self, function: str, *arguments: Any) -> None:
        if code := self._call(function, *arguments):
            raise CompileError(f"{function} of {self._path} gives error {code}")

    def _call(self, function: str, *arguments: Any) -> int:
        code: int = self._functions[function](*arguments)
        return code


def _refusal(path: str, arch: str, code: int, log: bytes, ptx: str) -> str:
    messages = with_lines(log.rstrip(b"\0").decode(errors="replace").strip(), ptx)
    return f"{path} cannot assemble PTX for {arch} (error {code}):\n{messages}"

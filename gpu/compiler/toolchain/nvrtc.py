"""CUDA C to PTX and machine code for NVIDIA GPUs, through nvrtc in the process.

Functions and their codes: nvrtc.h of CUDA 12.9. The library is loaded by the first `compile`.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_void_p
from typing import Any, Final

from gpu.compiler.toolchain.base import Compiler
from gpu.compiler.toolchain.nvbinary import NvBinary
from gpu.compiler.toolchain.nvlibs import NvLibrary, find_library
from gpu.core.errors import CompileError, Unsupported

__all__ = ["NvBinary", "NvrtcCompiler"]

# Products are fused with sums by `fma` alone, and the other flags of --use_fast_math stay off.
_OPTIONS: Final = ("--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true",
                   "--std=c++20", "--disable-warnings")  # fmt: skip
_SOURCE_NAME: Final = b"kernel.cu"
_SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {
    "nvrtcCreateProgram": (
        *(POINTER(c_void_p), c_char_p, c_char_p, c_int),
        *(POINTER(c_char_p), POINTER(c_char_p)),
    ),
    "nvrtcCompileProgram": (c_void_p, c_int, POINTER(c_char_p)),
    "nvrtcDestroyProgram": (POINTER(c_void_p),),
    "nvrtcGetProgramLogSize": (c_void_p, POINTER(c_size_t)),
    "nvrtcGetProgramLog": (c_void_p, c_char_p),
    "nvrtcGetPTXSize": (c_void_p, POINTER(c_size_t)),
    "nvrtcGetPTX": (c_void_p, c_char_p),
    "nvrtcGetCUBINSize": (c_void_p, POINTER(c_size_t)),
    "nvrtcGetCUBIN": (c_void_p, c_char_p),
    "nvrtcGetNumSupportedArchs": (POINTER(c_int),),
    "nvrtcGetSupportedArchs": (POINTER(c_int),),
}


class NvrtcCompiler(Compiler):
    """Compiles CUDA C for one architecture to an `NvBinary`."""

    def __init__(self, arch: str):
        """`arch` as nvrtc calls it: `sm_90`. Raises Unsupported where nvrtc is not installed."""
        library = find_library("nvrtc")
        self._arch, self._library = arch, library
        super().__init__(f"{library.identity}|{arch}|{' '.join(_OPTIONS)}", "nvrtc")

    def compile(self, source: str) -> bytes:
        """An `NvBinary`, packed. Raises CompileError with nvrtc's messages and the lines of source.

        Raises Unsupported where this nvrtc cannot be loaded or does not know the architecture.
        """
        return _Nvrtc(self._library).compile(source, self._arch).pack()

    def disassemble(self, lib: bytes) -> str:
        """The PTX, and the machine code where nvdisasm is installed."""
        return NvBinary.unpack(lib).disassemble()


class _Nvrtc:
    """The functions of a loaded nvrtc."""

    def __init__(self, library: NvLibrary):
        self._path = library.path
        self._functions = library.load()
        for name, arguments in _SIGNATURES.items():
            function = getattr(self._functions, name, None)
            if function is None:
                raise Unsupported(f"{library.path} has no {name}; nvrtc 11.3 and later have")
            function.argtypes = arguments

    def compile(self, source: str, arch: str) -> NvBinary:
        """PTX and cubin of one run."""
        program = c_void_p()
        text = source.encode()
        self._call("nvrtcCreateProgram", byref(program), text, _SOURCE_NAME, 0, None, None)
        try:
            given = [f"--gpu-architecture={arch}".encode(), *(o.encode() for o in _OPTIONS)]
            array = (c_char_p * len(given))(*given)
            code = self._functions.nvrtcCompileProgram(program, len(given), array)
            if code:
                self._refuse(arch)
                log = self._log(program)
                raise CompileError(f"nvrtc cannot compile a kernel for {arch}:\n{log}")
            ptx = self._bytes("nvrtcGetPTXSize", "nvrtcGetPTX", program)
            cubin = self._bytes("nvrtcGetCUBINSize", "nvrtcGetCUBIN", program)
            return NvBinary(cubin, ptx.rstrip(b"\0").decode())
        finally:
            self._call("nvrtcDestroyProgram", byref(program))

    def _refuse(self, arch: str) -> None:
        """Raises Unsupported for an architecture that this version does not compile for."""
        count = c_int()
        self._call("nvrtcGetNumSupportedArchs", byref(count))
        numbers = (c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", numbers)
        known = [f"sm_{number}" for number in numbers]
        if arch not in known:
            raise Unsupported(
                f"{self._path} does not compile for {arch}, but for {', '.join(known)}; install"
                " another version of nvrtc"
            )

    def _log(self, program: c_void_p) -> str:
        log = self._bytes("nvrtcGetProgramLogSize", "nvrtcGetProgramLog", program)
        return log.rstrip(b"\0").decode(errors="replace").strip()

    def _bytes(self, size_function: str, function: str, program: c_void_p) -> bytes:
        size = c_size_t()
        self._call(size_function, program, byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(function, program, buffer)
        return buffer.raw

    def _call(self, function: str, *arguments: Any) -> None:
        code = getattr(self._functions, function)(*arguments)
        if code:
            raise CompileError(f"{function} of {self._path} gives error {code}")

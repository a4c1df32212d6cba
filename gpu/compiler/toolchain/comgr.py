"""HIP C++ to code objects through comgr, AMD's library of compilers.

It comes with ROCm, and with Linux distributions (Debian: libamd-comgr2), whose releases know fewer
chips. LLVM, which is in it, ends its process where it cannot go on, so that it runs in a process of
its own, which the first `compile` starts. Functions and numbers: `amd_comgr.h`, release 2.4; those
used here are the same in release 3.
"""

from __future__ import annotations

import ctypes
import glob
import os
import re
from ctypes import POINTER, byref, c_bool, c_char_p, c_int, c_size_t, c_uint64
from functools import cache
from typing import Any, Final

from gpu.compiler.toolchain.base import Compiler
from gpu.compiler.toolchain.helper import Helper, Kernel
from gpu.compiler.toolchain.sharedlib import release
from gpu.core.config import config
from gpu.core.errors import CompileError, Unsupported

# Where it may be: ROCm's first, which knows more chips, and of several the newest.
_PLACES: Final = ("/opt/rocm*/lib", "/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/lib")
_NAME: Final = "libamd_comgr.so.[23]"
_INSTALL: Final = (
    "install it (Debian: apt install libamd-comgr2; ROCm has it for all chips), set COMGR_LIBRARY"
    " to libamd_comgr.so, or use DEV=AMD"
)
# What the text from gpu/compiler/render/cstyle/hip.py relies on: nothing is included or linked, and
# no product fused with a sum. Private arrays stay where they are: see `amdgcn.py`.
_OPTIONS: Final = (
    "-O3", "-std=c++20", "-w", "-nogpuinc", "-nogpulib", "-nostdinc", "-ffp-contract=off",
    "-fno-math-errno", "-fwrapv", "-fno-strict-aliasing", "-mcumode",
    "-Xclang", "-target-feature", "-Xclang", "-promote-alloca",
)  # fmt: skip
_KERNEL: Final = re.compile(r'^extern "C" .*?(\w+)\([^()]*\) \{', re.MULTILINE)
_TRIPLE: Final = "amdgcn-amd-amdhsa--"
# amd_comgr_language_t, amd_comgr_data_kind_t and amd_comgr_action_kind_t.
_NO_LANGUAGE, _HIP = 0, 4
_SOURCE, _LOG, _EXECUTABLE = 1, 5, 8
_ACTIONS: Final = ((2, _HIP, _OPTIONS), (6, _NO_LANGUAGE, ("-O3",)), (9, _NO_LANGUAGE, ()))
"""COMPILE_SOURCE_TO_BC, CODEGEN_BC_TO_RELOCATABLE and LINK_RELOCATABLE_TO_EXECUTABLE."""


class _Handle(ctypes.Structure):
    """What names an object of comgr's: each kind is a structure of this one member."""

    _fields_ = (("handle", c_uint64),)


_Out: Final = POINTER(_Handle)
_SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {
    "amd_comgr_get_isa_count": (POINTER(c_size_t),),
    "amd_comgr_get_isa_name": (c_size_t, POINTER(c_char_p)),
    "amd_comgr_create_data": (c_int, _Out),
    "amd_comgr_release_data": (_Handle,),
    "amd_comgr_set_data": (_Handle, c_size_t, c_char_p),
    "amd_comgr_set_data_name": (_Handle, c_char_p),
    "amd_comgr_get_data": (_Handle, POINTER(c_size_t), c_char_p),
    "amd_comgr_create_data_set": (_Out,),
    "amd_comgr_destroy_data_set": (_Handle,),
    "amd_comgr_data_set_add": (_Handle, _Handle),
    "amd_comgr_action_data_count": (_Handle, c_int, POINTER(c_size_t)),
    "amd_comgr_action_data_get_data": (_Handle, c_int, c_size_t, _Out),
    "amd_comgr_create_action_info": (_Out,),
    "amd_comgr_destroy_action_info": (_Handle,),
    "amd_comgr_action_info_set_isa_name": (_Handle, c_char_p),
    "amd_comgr_action_info_set_language": (_Handle, c_int),
    "amd_comgr_action_info_set_option_list": (_Handle, POINTER(c_char_p), c_size_t),
    "amd_comgr_action_info_set_logging": (_Handle, c_bool),
    "amd_comgr_do_action": (c_int, _Handle, _Handle, _Handle),
}


class ComgrCompiler(Compiler):
    """Compiles HIP C++ for one chip to a code object."""

    def __init__(self, chip: str):
        """`chip` as LLVM calls it: `gfx1030`. Raises Unsupported where comgr is not installed."""
        self._chip, self._path = chip, find_comgr()
        identity = release("comgr", os.path.realpath(self._path), "")
        super().__init__(f"{identity}|{chip}|{' '.join(_OPTIONS)}", "comgr")

    def prepare(self) -> None:
        """Starts the process that comgr runs in."""
        _helper().start()

    def compile(self, source: str) -> bytes:
        """A code object.

        Raises CompileError with the compiler's messages and the lines of source, or where it ends
        its process, Unsupported where the library cannot be loaded or does not know the chip.
        """
        found = _KERNEL.search(source)
        name = found[1] if found else "a source without kernels"
        kernel = Kernel("AMD's comgr", name, self._chip, source, ".hip")
        return _helper().compile("\0".join((self._path, self._chip, source)).encode(), kernel)

    def disassemble(self, lib: bytes) -> str:
        """The code of a code object as text, through LLVM's library where there is one.

        Raises Unsupported, saying what to install, where there is none.
        """
        from gpu.compiler.toolchain.llvm_disassembler import disassemble_code_object

        return disassemble_code_object(lib, self._chip)


def find_comgr() -> str:
    """Path of the library: that of COMGR_LIBRARY, of ROCm, or of the system.

    It is not loaded. Raises Unsupported, saying how to get it, where there is none.
    """
    if config.COMGR_LIBRARY:
        return config.COMGR_LIBRARY
    for place in _PLACES:
        if found := glob.glob(f"{place}/{_NAME}"):
            return max(found, key=_version)
    raise Unsupported(f"AMD's compilers are missing, {_NAME} in {', '.join(_PLACES)}: {_INSTALL}")


def _version(path: str) -> list[int]:
    """The numbers in the name of a file, with those of the folder that it is in."""
    return [int(number) for number in re.findall(r"\d+", os.path.realpath(path))]


@cache
def _helper() -> Helper:
    """The process that comgr runs in."""
    return Helper(_answer)


def _answer(request: bytes) -> bytes:
    path, chip, source = request.decode().split("\0", 2)
    return _Comgr.of(path).compile(source, chip)


class _Comgr:
    """The functions of a loaded library."""

    def __init__(self, path: str):
        self._path = path
        try:
            self._functions = ctypes.CDLL(path)
        except OSError as error:
            raise Unsupported(f"{path} cannot be loaded: {error}") from error
        for name, arguments in _SIGNATURES.items():
            function = getattr(self._functions, name, None)
            if function is None:
                raise Unsupported(f"{path} has no {name}; comgr 2 and 3 have: {_INSTALL}")
            function.argtypes = arguments
        self._chips = self._known_chips()

    @staticmethod
    @cache
    def of(path: str) -> _Comgr:
        """The one of a path."""
        return _Comgr(path)

    def compile(self, source: str, chip: str) -> bytes:
        """A code object.

        Raises CompileError with the log of the action that failed, Unsupported for a chip that this
        release does not know.
        """
        if chip not in self._chips:
            raise Unsupported(
                f"{self._path} does not compile for {chip}, but for {', '.join(self._chips)}; use"
                " DEV=AMD, or set COMGR_LIBRARY to a newer release"
            )
        given = self._made("amd_comgr_create_data_set")
        sets = [given]
        try:
            data = self._made("amd_comgr_create_data", _SOURCE)
            try:
                text = source.encode()
                self._call("amd_comgr_set_data", data, len(text), text)
                self._call("amd_comgr_set_data_name", data, b"kernel.hip")
                self._call("amd_comgr_data_set_add", given, data)
            finally:
                self._call("amd_comgr_release_data", data)
            for action, language, options in _ACTIONS:
                sets.append(self._made("amd_comgr_create_data_set"))
                if self._acted(action, language, options, chip, sets[-2:]):
                    log = (self._content(sets[-1], _LOG) or b"").decode(errors="replace").strip()
                    raise CompileError(f"{self._path} cannot compile a kernel for {chip}:\n{log}")
            code = self._content(sets[-1], _EXECUTABLE)
            if code is None:
                raise CompileError(f"{self._path} made no code object for {chip}")
            return code
        finally:
            for one in sets:
                self._call("amd_comgr_destroy_data_set", one)

    def _acted(
        self, action: int, language: int, options: tuple[str, ...], chip: str, sets: list[_Handle]
    ) -> int:
        """The status of an action from one set of data to another."""
        info = self._made("amd_comgr_create_action_info")
        try:
            listed = (c_char_p * len(options))(*(option.encode() for option in options))
            self._call("amd_comgr_action_info_set_isa_name", info, f"{_TRIPLE}{chip}".encode())
            self._call("amd_comgr_action_info_set_language", info, language)
            self._call("amd_comgr_action_info_set_option_list", info, listed, len(options))
            self._call("amd_comgr_action_info_set_logging", info, True)
            status: int = self._functions.amd_comgr_do_action(action, info, *sets)
            return status
        finally:
            self._call("amd_comgr_destroy_action_info", info)

    def _known_chips(self) -> list[str]:
        """The chips that this release compiles for."""
        count = c_size_t()
        self._call("amd_comgr_get_isa_count", byref(count))
        names = [c_char_p() for _ in range(count.value)]
        for number, name in enumerate(names):
            self._call("amd_comgr_get_isa_name", number, byref(name))
        return [(name.value or b"").decode().rpartition("--")[2] for name in names]

    def _content(self, data_set: _Handle, kind: int) -> bytes | None:
        """The first object of a kind in a set, or None."""
        count, size = c_size_t(), c_size_t()
        self._call("amd_comgr_action_data_count", data_set, kind, byref(count))
        if not count.value:
            return None
        data = self._made("amd_comgr_action_data_get_data", data_set, kind, 0)
        try:
            self._call("amd_comgr_get_data", data, byref(size), None)
            content = ctypes.create_string_buffer(size.value)
            self._call("amd_comgr_get_data", data, byref(size), content)
            return content.raw
        finally:
            self._call("amd_comgr_release_data", data)

    def _made(self, function: str, *arguments: Any) -> _Handle:
        """The object that a function makes."""
        made = _Handle()
        self._call(function, *arguments, byref(made))
        return made

    def _call(self, function: str, *arguments: Any) -> None:
        if status := getattr(self._functions, function)(*arguments):
            raise CompileError(f"{function} of {self._path} gives status {status}")

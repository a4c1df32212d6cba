"""NVIDIA's run-time compiler, which needs no GPU: CUDA C to PTX and cubin.

Functions and their codes: nvrtc.h of CUDA 13.0.
"""

from __future__ import annotations

import ctypes
import glob
import site
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpu.core.errors import CompileError, Unsupported

_WHEEL_FOLDERS: Final = ("nvidia/*/lib", "nvidia/*/lib64", "nvidia/*/bin")
_SYSTEM_FOLDERS: Final = ("/usr/local/cuda*/lib64", "/usr/local/cuda*/targets/*/lib")
_SONAMES: Final = ("libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12")
_ADVICE: Final = (
    "install it with `pip install nvidia-cuda-nvrtc`, or name its file with --nvrtc PATH"
)


@dataclass(frozen=True)
class Compiled:
    """One source for one architecture."""

    cubin: bytes
    ptx: bytes


class Nvrtc:
    """A loaded compiler; ``version`` is such as ``13.0``."""

    def __init__(self, library: ctypes.CDLL, path: str):
        self._library = library
        self.path = path
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = f"{major.value}.{minor.value}"

    def architectures(self) -> list[int]:
        """The numbers that it compiles for, 90 for sm_90."""
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", numbers)
        return list(numbers)

    def compile(self, name: str, source: str, sm: int, options: Sequence[str] = ()) -> Compiled:
        """Compiles a source. Raises CompileError with the compiler's own words."""
        program = ctypes.c_void_p()
        text, label = source.encode(), f"{name}.cu".encode()
        self._call("nvrtcCreateProgram", ctypes.byref(program), text, label, 0, None, None)
        try:
            given = [f"--gpu-architecture=sm_{sm}".encode(), *(each.encode() for each in options)]
            array = (ctypes.c_char_p * len(given))(*given)
            code = self._library.nvrtcCompileProgram(program, len(given), array)
            if code:
                log = self._bytes("nvrtcGetProgramLogSize", "nvrtcGetProgramLog", program)
                words = log.rstrip(b"\0").decode("utf-8", "replace").strip()
                raise CompileError(f"{name}.cu for sm_{sm}: {self._name(code)}\n{words}")
            cubin = self._bytes("nvrtcGetCUBINSize", "nvrtcGetCUBIN", program)
            ptx = self._bytes("nvrtcGetPTXSize", "nvrtcGetPTX", program)
            return Compiled(cubin, ptx.rstrip(b"\0"))
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))

    def _bytes(self, size_function: str, function: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(size_function, program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(function, program, buffer)
        return buffer.raw

    def _call(self, function: str, *arguments: Any) -> None:
        code = getattr(self._library, function)(*arguments)
        if code:
            raise CompileError(f"{function} of {self.path}: {self._name(code)}")

    def _name(self, code: int) -> str:
        name = self._library.nvrtcGetErrorString
        name.restype = ctypes.c_char_p
        found: bytes = name(code)
        return found.decode()


def load_nvrtc(
    configured: Path | None = None,
    load: Callable[[str], ctypes.CDLL] = ctypes.CDLL,
    folders: Sequence[str] | None = None,
) -> Nvrtc:
    """Finds the compiler: the path given, installed wheels, /usr/local/cuda*, the loader's path.

    Args:
        configured: a file; no other place is looked at then.
        load: loads a shared library.
        folders: where wheels are unpacked; by default those of this Python.

    Raises Unsupported, with how to get it, where there is none that loads.
    """
    tried = []
    paths = [str(configured)] if configured is not None else list(_candidates(folders))
    for path in paths:
        try:
            for needed in _beside(path):  # nvrtc asks for it by its bare name
                load(needed)
            library = load(path)
        except OSError as error:
            tried.append(f"{path}: {error}")
            continue
        return Nvrtc(library, path)
    seen = "; ".join(tried) or "no file of its name was found"
    raise Unsupported(f"nvrtc compiles the kernels and cannot be loaded ({seen}): {_ADVICE}")


def _candidates(folders: Sequence[str] | None) -> Iterator[str]:
    roots = folders if folders is not None else [*site.getsitepackages(), *sys.path]
    for root in dict.fromkeys(roots):
        for pattern in _WHEEL_FOLDERS:
            yield from _libraries(str(Path(root) / pattern))
    for pattern in _SYSTEM_FOLDERS:
        yield from _libraries(pattern)
    yield from _SONAMES


def _beside(path: str) -> list[str]:
    """The builtins of a compiler that is no bare name, else nothing."""
    folder = Path(path).parent
    return sorted(glob.glob(f"{folder}/libnvrtc-builtins.so*")) if Path(path).is_absolute() else []


def _libraries(pattern: str) -> list[str]:
    found = sorted(glob.glob(f"{pattern}/libnvrtc.so*"), reverse=True)
    return found[:1]

"""Compiles modules of operations once and keeps them as objects on disk.

llvmlite is imported only where an object is not in the cache. The key of an object is the text of
its module, llvmlite's version and this file, so that a change of the semantics is a miss by itself.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from threading import Lock
from typing import Final

from gpu.core.distributions import installed_version
from gpu.core.errors import CompileError, Unsupported
from gpu.core.files import DiskCache, content_signature, object_cache_dir, read_bytes
from gpu.core.objload import LoadedObject, load_object

Make = Callable[[], str]
_TRIPLE: Final = "x86_64-unknown-linux-gnu"
_CPUINFO: Final = "/proc/cpuinfo"
# Feature levels of the x86-64 ABI, and the flags that tell them, best first.
_LEVELS: Final = (
    ("x86-64-v4", {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
    ("x86-64-v3", {"avx2", "fma", "f16c", "bmi1", "bmi2"}),
)
_MATH: Final = ("exp2", "log2", "sin", "cos", "ldexp", "floor", "fmod")
_MATH_FLOAT: Final = ("exp2f", "log2f")
_BYTES: Final = ("memcpy", "memset")


@cache
def host_level() -> str:
    """The feature level to compile for. Raises Unsupported below x86-64-v3 or elsewhere."""
    if platform.machine() != "x86_64":
        raise Unsupported(
            f"the lane engine is written for x86-64, this machine is {platform.machine()}"
        )
    line = next(text for text in read_bytes(_CPUINFO).splitlines() if text.startswith(b"flags"))
    flags = set(line.decode().split(":")[1].split())
    for level, needed in _LEVELS:
        if needed <= flags:
            return level
    raise Unsupported("the lane engine needs a processor with AVX2, FMA and F16C (x86-64-v3)")


@cache
def _library_functions() -> Mapping[str, int]:
    """Addresses of the C library's functions that operations call."""
    library = ctypes.CDLL("libm.so.6" if sys.platform == "linux" else None)
    addresses = {}
    for name in (*_MATH, *_MATH_FLOAT, *_BYTES):
        pointer = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        assert pointer is not None
        addresses[name] = pointer
    return addresses


def compile_module(text: str) -> bytes:
    """An object for this machine. Raises CompileError with LLVM's words."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    machine = llvm.Target.from_triple(_TRIPLE).create_target_machine(
        cpu=host_level(), features="-vzeroupper", opt=1, reloc="pic", codemodel="small"
    )
    try:
        with llvm.create_context() as context, llvm.parse_assembly(text, context) as module:
            module.triple = _TRIPLE
            module.data_layout = str(machine.target_data)
            module.verify()
            emitted: bytes = machine.emit_object(module)
            return emitted
    except RuntimeError as error:
        raise CompileError(f"the lane engine's own code does not compile: {error}") from error


class Library:
    """Native functions by name; the module of one is compiled when it is first needed."""

    def __init__(
        self, name: str, modules: Mapping[str, Make], together: Mapping[str, Iterable[str]]
    ):
        """`modules` gives what makes the text of each.

        A module has one function, of its own name; those in `together` have those named there.
        """
        self._modules = dict(modules)
        self._module_of = {function: function for function in modules}
        for module, functions in together.items():
            self._module_of |= dict.fromkeys(functions, module)
        self._cache = DiskCache(f"sim-{name}", parent=object_cache_dir)
        self._loaded: dict[str, LoadedObject] = {}
        self._addresses: dict[str, int] = {}
        self._loading = Lock()

    def __contains__(self, function: str) -> bool:
        return function in self._module_of

    def address(self, function: str, make: Make | None = None) -> int:
        """The address of a function, whose module `make` writes where the library has none.

        Raises what compiling and loading do, KeyError for a name that is none.
        """
        found = self._addresses.get(function)
        if found is None:
            with self._loading:  # another thread may need it too
                found = self._addresses.get(function)
                if found is None:
                    found = self._addresses[function] = self._find(function, make)
        return found

    def _find(self, function: str, make: Make | None) -> int:
        module = self._module_of.get(function, function)
        if module not in self._loaded:
            known = self._modules.get(module, make)
            if known is None:
                raise KeyError(function)
            self._loaded[module] = self._load(known())
        return self._loaded[module].address(function)

    def _load(self, text: str) -> LoadedObject:
        return load_object(_compiled(self._cache, text), _library_functions())


def load_code(name: str, text: str, symbols: Mapping[str, int]) -> LoadedObject:
    """A module of its own, kept in the cache of a name; `symbols` are what it uses from outside.

    Raises what compiling and loading do.
    """
    return load_object(_compiled(DiskCache(f"sim-{name}", parent=object_cache_dir), text), symbols)


def _compiled(cache: DiskCache, text: str) -> bytes:
    """The object of a module, from the cache where it is there."""
    made_by = f"llvmlite {installed_version('llvmlite')} {content_signature(__file__)}"
    key = f"{made_by} {host_level()}\n{text}"
    data = cache.get(key)
    if data is None:
        data = compile_module(text)
        cache.put(key, data)
    return data

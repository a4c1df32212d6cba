"""Executable memory that is never writable and executable at once (W^X).

Pages are mapped writable, filled, and then given their final protection once. On macOS on arm64 the
system wants code pages to come from a MAP_JIT mapping, whose writability is switched per thread
(Apple, "Porting just-in-time compilers to Apple silicon"); data pages are a mapping of their own
there.
"""

from __future__ import annotations

import ctypes
import enum
import mmap
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from gpu.core.errors import InvalidValue, OutOfMemory, Unsupported

PAGE_SIZE: Final = mmap.PAGESIZE
# sys/mman.h; the protections are the same on Linux and macOS.
_PROT_READ: Final = 1
_PROT_WRITE: Final = 2
_PROT_EXEC: Final = 4
_MAP_JIT: Final = 0x0800


class Protection(enum.Enum):
    """What may be done with a segment once it is sealed; the value is mprotect's."""

    READ = _PROT_READ
    WRITE = _PROT_READ | _PROT_WRITE
    EXECUTE = _PROT_READ | _PROT_EXEC


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of pages: `size` bytes, rounded up to whole pages, of one final protection."""

    size: int
    protection: Protection


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a segment lies: `offset` into a mapping that starts at `address - offset`."""

    mapping: mmap.mmap
    offset: int
    address: int
    segment: Segment
    jit: bool


class ExecutableMemory:
    """Segments of code and data near each other, written once and then sealed.

    All lie in one reservation of the address space, in the order given (on macOS on arm64 in two,
    code and data). The memory is freed by `close()` or when the object is collected: keep it alive
    for as long as anything may run in it.
    """

    def __init__(self, segments: Sequence[Segment]):
        """Maps zeroed memory that `write` can fill.

        Raises InvalidValue for a size below 1, OutOfMemory where it cannot be mapped, and
        Unsupported on a system this does not know.
        """
        for segment in segments:
            if segment.size < 1:
                raise InvalidValue(f"a segment of {segment.size} bytes; it must have at least 1")
        apple = _is_apple_silicon()
        jit = [apple and segment.protection is Protection.EXECUTE for segment in segments]
        places: dict[int, _Place] = {}
        for wanted in sorted(set(jit)):
            chosen = [index for index, is_jit in enumerate(jit) if is_jit == wanted]
            mapped = _map([segments[index] for index in chosen], wanted)
            places.update(zip(chosen, mapped, strict=True))
        self._places = [places[index] for index in range(len(segments))]
        self._sealed = False
        self._closed = False

    def address(self, index: int) -> int:
        """The address of segment `index`, a multiple of the page size."""
        self._check_open()
        return self._places[index].address

    def write(self, index: int, data: bytes | bytearray, offset: int = 0) -> None:
        """Copies `data` into segment `index`. Raises InvalidValue past its end or once sealed."""
        self._check_open()
        place = self._places[index]
        if self._sealed:
            raise InvalidValue("executable memory cannot be written once it is sealed")
        if offset < 0 or offset + len(data) > place.segment.size:
            raise InvalidValue(
                f"{len(data)} bytes at {offset} do not fit a segment of {place.segment.size} bytes"
            )
        start = place.offset + offset
        if place.jit:
            _system().pthread_jit_write_protect_np(0)
        place.mapping[start : start + len(data)] = data
        if place.jit:
            _system().pthread_jit_write_protect_np(1)

    def seal(self) -> None:
        """Gives every segment its final protection; code can run from here on.

        Raises Unsupported where the system forbids it.
        """
        self._check_open()
        self._sealed = True
        for place in self._places:
            if not place.jit:
                _protect(place.address, place.segment)
            if place.segment.protection is Protection.EXECUTE:
                _make_fetchable(place.address, place.segment.size)

    def close(self) -> None:
        """Frees the memory; its addresses are invalid from here on. May be called again."""
        self._closed = True
        for place in self._places:
            place.mapping.close()

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidValue("this executable memory has been closed")


class CodeBuffer:
    """Machine code that is ready to run at `address`, until `close()` or collection."""

    def __init__(self, code: bytes | bytearray):
        """Copies position-independent `code`. Raises as `ExecutableMemory` does."""
        self.size = len(code)
        self._memory = ExecutableMemory([Segment(len(code), Protection.EXECUTE)])
        self._memory.write(0, code)
        self._memory.seal()

    @property
    def address(self) -> int:
        """The address of the first byte. Raises InvalidValue once closed."""
        return self._memory.address(0)

    def close(self) -> None:
        """Frees the memory."""
        self._memory.close()


def round_to_pages(size: int) -> int:
    """`size` rounded up to whole pages, in bytes."""
    return (size + PAGE_SIZE - 1) // PAGE_SIZE * PAGE_SIZE


def _map(segments: Sequence[Segment], jit: bool) -> list[_Place]:
    """Maps the segments one after the other, writable."""
    size = sum(round_to_pages(segment.size) for segment in segments)
    protection = _PROT_READ | _PROT_WRITE | (_PROT_EXEC if jit else 0)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (_MAP_JIT if jit else 0)
    try:
        mapping = mmap.mmap(-1, size, flags=flags, prot=protection)
    except (OSError, OverflowError) as error:
        raise OutOfMemory(f"{size} bytes for machine code cannot be mapped: {error}") from error
    base = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    places, offset = [], 0
    for segment in segments:
        places.append(_Place(mapping, offset, base + offset, segment, jit))
        offset += round_to_pages(segment.size)
    return places


def _protect(address: int, segment: Segment) -> None:
    if _system().mprotect(address, round_to_pages(segment.size), segment.protection.value):
        reason = os.strerror(ctypes.get_errno())
        raise Unsupported(
            f"this system refuses {segment.protection.name} protection for machine code: {reason};"
            " a security policy (such as SELinux's execmem) may forbid it"
        )


def _make_fetchable(address: int, size: int) -> None:
    """Makes code that was written as data visible to instruction fetch; x86 does so by itself."""
    if platform.machine() not in ("aarch64", "arm64"):
        return
    if sys.platform == "darwin":
        _system().sys_icache_invalidate(address, size)
    else:
        _gcc_runtime()(address, address + size)


def _is_apple_silicon() -> bool:
    """Whether code must come from MAP_JIT. Raises Unsupported on systems this does not know."""
    machine = platform.machine()
    if sys.platform not in ("linux", "darwin") or machine not in ("x86_64", "aarch64", "arm64"):
        raise Unsupported(
            f"running machine code on {sys.platform} {machine} is not supported; Linux and macOS"
            " on x86-64 and arm64 are"
        )
    return sys.platform == "darwin" and machine == "arm64"


@cache
def _system() -> ctypes.CDLL:
    """The C library, with the prototypes of what is called of it."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if _is_apple_silicon():
        library.pthread_jit_write_protect_np.argtypes = [ctypes.c_int]
        library.pthread_jit_write_protect_np.restype = None
        library.sys_icache_invalidate.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        library.sys_icache_invalidate.restype = None
    return library


@cache
def _gcc_runtime() -> Any:
    """`__clear_cache(begin, end)` of the GCC runtime. Raises Unsupported where it is missing."""
    try:
        function = ctypes.CDLL("libgcc_s.so.1").__clear_cache
    except (OSError, AttributeError) as error:
        raise Unsupported(
            f"__clear_cache of libgcc_s.so.1 is needed to run code on arm64: {error}"
        ) from error
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    function.restype = None
    return function

"""Buffers, and the memory that they lie in.

MTLResource and MTLBuffer (Apple, "Metal"), with "Setting resource storage modes". Memory of each
buffer lies alone: around it there is none, so that a kernel which leaves it is noticed.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Final

from gpu.core import hostmem
from gpu.core.bits import align_up
from gpu.core.errors import OutOfMemory
from gpu.core.files import read_bytes
from gpu.sim.metal.base import Gpu, Owned
from gpu.sim.metal.methods import Misuse, Range, method

SHARED: Final = 0
MANAGED: Final = 1
PRIVATE: Final = 2
MEMORYLESS: Final = 3
MODES: Final = ("shared", "managed", "private", "memoryless")
_PAGE: Final = 16 << 10  # of Apple silicon, whole ones of which a buffer has
_GUARD: Final = 64 << 10
_KNOWN_OPTIONS: Final = 0b11_0011_0001
_WATCHED: Final = 64 << 20
"""Bytes of the largest buffer whose accesses are written down."""
CELL: Final = 16
"""Bytes that are written down of four of a buffer (`gpu/sim/metal/threads.py`)."""


class Memory:
    """Zeroed bytes with nothing around them.

    Attributes:
        start: their address.
        size: how many there are.
    """

    def __init__(self, size: int):
        """Raises OutOfMemory."""
        self.size = size
        self._whole = align_up(size, _PAGE)
        self._reserved = hostmem.reserve(self._whole + 2 * _GUARD, align=_PAGE)
        self.start = self._reserved + _GUARD
        hostmem.map_anonymous(self._whole, self.start, fixed=True)

    def free(self) -> None:
        """Gives them back."""
        hostmem.release(self._reserved, self._whole + 2 * _GUARD)


class Shadow:
    """What is written down of accesses to some bytes, a cell for four of them.

    Attributes:
        size: how many bytes.
    """

    def __init__(self, start: int, size: int):
        self.size = size
        self.origin = start & ~3
        self._size = align_up((start + size - self.origin + 3) // 4 * CELL, hostmem.page_size)
        self.cells = hostmem.map_anonymous(self._size)

    def free(self) -> None:
        """Forgets it."""
        hostmem.unmap(self.cells, self._size)


@dataclass
class Managed:
    """The two copies that a managed resource has, and which parts the GPU has not been told of."""

    cpu: Memory
    modified: list[tuple[int, int]] = field(default_factory=list)


class Resource(Owned):
    """What kernels may be given."""

    def __init__(self, device: Gpu, options: int):
        super().__init__(device, device)
        self.options = options

    @property
    def mode(self) -> int:
        """Where it lies: SHARED, MANAGED or PRIVATE."""
        return self.options >> 4 & 0xF

    @method("resourceOptions", "Q")
    def get_options(self) -> int:
        """As it was made."""
        return self.options

    @method("storageMode", "Q")
    def storage_mode(self) -> int:
        """Where it lies."""
        return self.mode

    @method("cpuCacheMode", "Q")
    def cache_mode(self) -> int:
        """How the CPU caches it."""
        return self.options & 0xF

    @method("hazardTrackingMode", "Q")
    def hazard_tracking_mode(self) -> int:
        """1 where passes that use it are in no order by themselves, 2 where they are."""
        return 1 if self.is_untracked else 2

    @property
    def is_untracked(self) -> bool:
        """Whether the program orders its uses itself."""
        return bool(self.options >> 8 & 1)


class Buffer(Resource):
    """Bytes.

    Attributes:
        length: how many.
        gpu: the address where kernels find them.
        base: accesses before this stamp are ordered with all that comes.
    """

    def __init__(self, device: Gpu, length: int, options: int, borrowed: int = 0):
        """`borrowed`: memory of the program, which stays its own. Raises OutOfMemory."""
        self.length = length
        self._memory = None if borrowed else Memory(length)
        self.gpu = borrowed or (self._memory.start if self._memory else 0)
        super().__init__(device, options)
        self.managed = Managed(Memory(length)) if self.mode == MANAGED else None
        self.base = 0
        self._shadow: Shadow | None = None
        device.allocated += length

    @property
    def shadow(self) -> Shadow | None:
        """What is written down of its accesses; None where it is too large for that."""
        if self._shadow is None and self.length <= _WATCHED:
            self._shadow = Shadow(self.gpu, self.length)
        return self._shadow

    def ending(self) -> None:
        """Its memory goes, but for what it had borrowed."""
        self.device.allocated -= self.length
        for each in (self._memory, self._shadow, self.managed.cpu if self.managed else None):
            if each is not None:
                each.free()
        super().ending()

    def check(self, start: int, size: int, what: str) -> None:
        """Raises Misuse for bytes that it does not have."""
        if start + size > self.length:
            raise Misuse(
                "out-of-range", f"{what}: {size} bytes at {start} of a buffer of {self.length}"
            )

    def bring(self) -> None:
        """The GPU sees what the CPU has said it modified."""
        if self.managed is not None:
            for start, size in self.managed.modified:
                ctypes.memmove(self.gpu + start, self.managed.cpu.start + start, size)
            self.managed.modified.clear()

    def synchronize(self) -> None:
        """The CPU sees what the GPU wrote."""
        if self.managed is not None:
            ctypes.memmove(self.managed.cpu.start, self.gpu, self.length)

    @method("length", "Q")
    def get_length(self) -> int:
        """How many bytes there are."""
        return self.length

    @method("allocatedSize", "Q")
    def allocated_size(self) -> int:
        """How many it takes, whole pages."""
        return align_up(self.length, self.device.chip.page)

    @method("contents", "^")
    def contents(self) -> int:
        """Where the CPU finds them."""
        if self.mode == PRIVATE:
            raise Misuse("private-contents", "contents of a buffer that is private to the GPU")
        return self.managed.cpu.start if self.managed else self.gpu

    @method("gpuAddress", "Q")
    def gpu_address(self) -> int:
        """Where kernels find them."""
        return self.gpu

    @method("didModifyRange:", "v", "Range")
    def did_modify(self, modified: Range) -> None:
        """The CPU has written bytes of a managed buffer."""
        if self.managed is None:
            raise Misuse(
                "not-managed", f"didModifyRange: of a buffer whose storage is {MODES[self.mode]}"
            )
        self.check(modified.location, modified.length, "didModifyRange:")
        self.managed.modified.append((modified.location, modified.length))


def new_buffer(device: Gpu, length: int, options: int, data: int = 0) -> Buffer | None:
    """A zeroed buffer, or one with a copy of `data`; None where there is not so much memory.

    Raises Misuse for a length and options that there are not.
    """
    if not _is_possible(device, length, options):
        return None
    try:
        made = Buffer(device, length, options)
    except OutOfMemory:
        return None
    if data:
        if made.mode == PRIVATE:
            raise Misuse("private-contents", "a buffer with contents cannot be private to the GPU")
        ctypes.memmove(made.contents(), data, length)
        if made.managed:
            made.managed.modified.append((0, length))
    return made


def borrow(device: Gpu, pointer: int, length: int, options: int) -> Buffer | None:
    """A buffer over memory of the program; None where that is not mapped.

    Raises Misuse where it is not of whole pages.
    """
    page = device.chip.page
    if not pointer or pointer % page or length % page:
        raise Misuse(
            "no-copy-pages",
            f"{length} bytes at {pointer:#x} are not whole pages of {page} bytes",
        )
    if not _is_possible(device, length, options):
        return None
    if mode := options >> 4 & 0xF:
        raise Misuse("no-copy-mode", f"memory of the program as {MODES[mode]}: it must be shared")
    return Buffer(device, length, options, pointer) if _is_mapped(pointer, length) else None


def _is_mapped(start: int, size: int) -> bool:
    """Whether the program may read and write all of some bytes."""
    end = start + size
    for line in read_bytes("/proc/self/maps").decode().splitlines():
        place, rights, *_ = line.split()
        first, last = (int(each, 16) for each in place.split("-"))
        if first <= start < last and rights.startswith("rw"):
            start = last
    return start >= end


def _is_possible(device: Gpu, length: int, options: int) -> bool:
    if options & ~_KNOWN_OPTIONS or options >> 4 & 0xF == MEMORYLESS or options & 0x300 == 0x300:
        raise Misuse("buffer-options", f"{options:#x} are no options of a buffer")
    if not length:
        raise Misuse("empty-buffer", "a buffer of 0 bytes")
    if length > device.chip.largest:
        raise Misuse("buffer-too-long", f"{length} bytes: maxBufferLength is {device.chip.largest}")
    return device.allocated + length <= 2 * device.chip.memory

"""Memory of an Adreno GPU: objects of KGSL, which all lie in system memory.

What only the GPU touches is write-combined and not mapped here. What the host polls or only writes,
as signals, rings and code, is write-combined too. What the host reads in bulk is cached: coherent
where the kernel grants that, else cleaned after each store and invalidated before each load, by
range (GPUOBJ_SYNC). Objects belong to the process: they outlive contexts.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from gpu.autogen import kgsl
from gpu.core import hostmem
from gpu.core.bits import align_down, align_up
from gpu.core.errors import InvalidValue, OutOfMemory, TransportError, Unsupported
from gpu.core.window import MemoryWindow, Window
from gpu.drivers.cleanup import Undo
from gpu.drivers.kgsl.calls import Kgsl, Object
from gpu.hcq.ports import Memory, MemoryKind, MemoryPort
from gpu.hcq.symbol import GpuVA

PAGE: Final = 4096
_ID_SHIFT: Final = 12  # mmap of a number in pages means the object of that number
_LINE: Final = 256  # bytes that no cache line goes over, of any of these processors
_REMEMBERED: Final = 16
_COMBINED: Final = kgsl.KGSL_CACHEMODE_WRITECOMBINE << kgsl.KGSL_CACHEMODE_SHIFT
_CACHED: Final = (
    kgsl.KGSL_CACHEMODE_WRITEBACK << kgsl.KGSL_CACHEMODE_SHIFT | kgsl.KGSL_MEMFLAGS_IOCOHERENT
)


class Use(Enum):
    """What an object is for: its name in messages, its flags, and whether the host maps it."""

    DATA = ("device memory", _COMBINED, False)
    VISIBLE = ("device memory that the host sees", _COMBINED, True)
    SYSTEM = ("system memory", _CACHED, True)
    RING = ("the ring", _COMBINED | kgsl.KGSL_MEMFLAGS_GPUREADONLY, True)
    CODE = ("code", _COMBINED | kgsl.KGSL_MEMFLAGS_GPUREADONLY, True)
    HOST = ("memory of this process", _CACHED, False)
    FOREIGN = ("memory of another user of the GPU", 0, False)

    def __init__(self, label: str, flags: int, mapped: bool):
        self.label = label
        self.flags = flags
        self.mapped = mapped


_USES: Final = {
    MemoryKind.VRAM: Use.DATA,
    MemoryKind.VISIBLE: Use.VISIBLE,
    MemoryKind.SYSTEM: Use.SYSTEM,
}


class SyncedWindow:
    """A `Window` on cached memory that the GPU does not see the caches of.

    Each store is cleaned and each load is of memory as it is, in the lines that it is in: the GPU
    must not write to a line while the host stores to another part of it.
    """

    def __init__(self, inner: MemoryWindow, sync: Callable[[int, int, int], None], base: int = 0):
        """``sync`` takes offset and size within the object, and what to do there."""
        self._inner, self._sync, self._base = inner, sync, base

    @property
    def size(self) -> int:
        """How many bytes the window spans."""
        return self._inner.size

    def read(self, offset: int, width: int) -> int:
        """One load of what is in memory."""
        self._do(offset, width, kgsl.KGSL_GPUMEM_CACHE_FROM_GPU)
        return self._inner.read(offset, width)

    def write(self, offset: int, width: int, value: int) -> None:
        """One store that reaches memory."""
        self._do(offset, width, kgsl.KGSL_GPUMEM_CACHE_FROM_GPU)
        self._inner.write(offset, width, value)
        self._do(offset, width, kgsl.KGSL_GPUMEM_CACHE_TO_GPU)

    def load(self, offset: int, size: int) -> bytes:
        """Copies out what is in memory."""
        self._do(offset, size, kgsl.KGSL_GPUMEM_CACHE_FROM_GPU)
        return self._inner.load(offset, size)

    def store(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Copies in, to memory."""
        size = memoryview(data).nbytes
        # Lines at the ends have a part that the GPU may have written since they were cached.
        self._do(offset, size, kgsl.KGSL_GPUMEM_CACHE_FROM_GPU)
        self._inner.store(offset, data)
        self._do(offset, size, kgsl.KGSL_GPUMEM_CACHE_TO_GPU)

    def sub(self, offset: int, size: int) -> SyncedWindow:
        """A part of it."""
        return SyncedWindow(self._inner.sub(offset, size), self._sync, self._base + offset)

    def _do(self, offset: int, size: int, operation: int) -> None:
        start = align_down(self._base + offset, _LINE)
        self._sync(start, align_up(self._base + offset + size, _LINE) - start, operation)


@dataclass(eq=False)
class GpuObject:
    """An object of KGSL, where the GPU has it and where the host, or 0; ``undo`` frees it."""

    made: Object
    size: int
    use: Use
    host: int
    undo: Undo

    def __contains__(self, address: int) -> bool:
        return self.address <= address < self.address + self.size

    @property
    def address(self) -> int:
        """Where the GPU has it."""
        return self.made.address

    @property
    def label(self) -> str:
        """What it is for."""
        return self.use.label

    @property
    def is_coherent(self) -> bool:
        """Whether what the host stores and the GPU writes is seen by the other as it is."""
        mode = (self.made.flags & kgsl.KGSL_CACHEMODE_MASK) >> kgsl.KGSL_CACHEMODE_SHIFT
        cached = mode in (kgsl.KGSL_CACHEMODE_WRITEBACK, kgsl.KGSL_CACHEMODE_WRITETHROUGH)
        return not cached or bool(self.made.flags & kgsl.KGSL_MEMFLAGS_IOCOHERENT)

    @property
    def memory(self) -> MemoryWindow:
        """All of it, as the host has it mapped."""
        assert self.host, f"{self.label} is not mapped for the host"
        return MemoryWindow(self.host, self.size)


class KgslMemory:
    """Objects of one device; the `gpu.hcq.ports.MemoryPort` of KGSL."""

    def __init__(self, kgsl_file: Kgsl, name: str):
        self._kgsl = kgsl_file
        self._name = name
        self._live: dict[GpuObject, None] = {}  # in the order that they came in
        self._of: dict[Memory, GpuObject] = {}
        self._freed: deque[GpuObject] = deque(maxlen=_REMEMBERED)

    def allocate(self, size: int, kind: MemoryKind) -> Memory:
        """As `MemoryPort.allocate`: whole pages."""
        return self._give_out(self.hold(size, _USES[kind]), size, kind)

    def allocate_code(self, size: int) -> Memory:
        """Memory for code, which the GPU cannot change, with a window to store it."""
        return self._give_out(self.hold(size, Use.CODE), size, MemoryKind.VISIBLE)

    def _give_out(self, held: GpuObject, size: int, kind: MemoryKind) -> Memory:
        memory = Memory(GpuVA(held.address), size, kind, self._window(held))
        self._of[memory] = held
        return memory

    def _window(self, held: GpuObject) -> Window | None:
        if not held.use.mapped:
            return None
        if held.is_coherent:
            return held.memory
        number, sync = held.made.id, self._kgsl.sync
        return SyncedWindow(held.memory, lambda at, size, what: sync(number, at, size, what))

    def free(self, memory: Memory) -> None:
        """As `MemoryPort.free`. Raises InvalidValue for what is not of here, or freed before."""
        held = self._of.pop(memory, None)
        if held is None:
            raise InvalidValue(
                f"memory at {memory.address:#x} is not of this device of {self._name}, or was freed"
            )
        self.drop(held)

    def map_host(self, address: int, size: int) -> Memory:
        """As `MemoryPort.map_host`, where the kernel grants that the GPU sees caches."""
        with Undo() as undo:
            held = self._import(address, size, undo)
            if not held.is_coherent:
                raise Unsupported(
                    f"{self._name} does not see the processor's caches (KGSL grants no"
                    " IOCOHERENT): copy the array to the GPU"
                )
            held.undo = undo.take()
        self._live[held] = None
        place = GpuVA(held.address + address % PAGE)
        memory = Memory(place, size, MemoryKind.SYSTEM, MemoryWindow(address, size))
        self._of[memory] = held
        return memory

    def adopt(self, address: int, size: int) -> Memory:
        """Memory that another user has, in place, for as long as that one keeps it.

        An address of the GPU in an object of this process, made by whomever; any other is one of
        the process's own, whose pages are imported. What the processor's caches have of it is
        written back: nobody but the GPU may store to it from here on. The host reads it through
        the GPU. Raises InvalidValue for an object that ends before it does, and an address of
        neither.
        """
        with Undo() as undo:
            made = self._kgsl.object_at(address)
            if made is None:
                held = self._import(address, size, undo)
                place = held.address + address % PAGE
            else:
                held, place = GpuObject(made, made.size, Use.FOREIGN, 0, undo), address
                if (left := made.address + made.size - address) < size:
                    raise InvalidValue(
                        f"the object of KGSL at {made.address:#x} has {made.size:,} bytes, of which"
                        f" {left:,} are from {address:#x} on, and the tensor needs {size:,}"
                    )
            if not held.is_coherent:
                clean = kgsl.KGSL_GPUMEM_CACHE_TO_GPU
                start = align_down(place - held.address, _LINE)
                end = min(align_up(place - held.address + size, _LINE), held.size)
                self._kgsl.sync(held.made.id, start, end - start, clean)
            held.undo = undo.take()
        self._live[held] = None
        memory = Memory(GpuVA(place), size, MemoryKind.VRAM, None)
        self._of[memory] = held
        return memory

    def _import(self, address: int, size: int, undo: Undo) -> GpuObject:
        """Pages of the process; ``undo`` frees them. Raises InvalidValue where there are none."""
        start = align_down(address, PAGE)
        whole = align_up(address + size, PAGE) - start
        try:
            made = self._kgsl.import_host(start, whole, Use.HOST.flags)
        except TransportError as error:
            if error.errno not in (errno.EFAULT, errno.EINVAL):
                raise
            raise InvalidValue(
                f"{size:,} bytes at {address:#x} are in no object of KGSL, and are no memory of"
                " this process that it takes: an address of the GPU is that of an object that this"
                " process has, one of the host that of memory that it can write"
            ) from error
        undo.add(self._kgsl.free, made.id)
        return GpuObject(made, whole, Use.HOST, 0, undo)

    def map_peer(self, memory: Memory, owner: MemoryPort) -> None:
        """As `MemoryPort.map_peer`: always Unsupported.

        Devices of one GPU would wait for each other on the one ring that they share, where the one
        that waits may be in front.
        """
        raise Unsupported(f"{self._name} has no peers: copy through the host")

    def unmap_peer(self, memory: Memory) -> None:
        """As `MemoryPort.unmap_peer`: nothing was mapped."""
        raise InvalidValue(f"memory at {memory.address:#x} is not mapped into {self._name}")

    def hold(self, size: int, use: Use) -> GpuObject:
        """An object of at least ``size`` bytes. Raises OutOfMemory, InvalidValue for less than 1.

        The kernel grants what caching it can: ask the object.
        """
        if size < 1:
            raise InvalidValue(f"{size} bytes of {use.label}: at least 1 is needed")
        whole = align_up(size, PAGE)
        with Undo() as undo:
            made = self._allocate(whole, use)
            undo.add(self._kgsl.free, made.id)
            host = self._map(made, whole, undo) if use.mapped else 0
            held = GpuObject(made, whole, use, host, undo.take())
        self._live[held] = None
        return held

    def _allocate(self, size: int, use: Use) -> Object:
        try:
            return self._kgsl.allocate(size, use.flags)
        except OutOfMemory as error:
            error.add(f"{size} bytes of {use.label} were asked for, {self.in_use} are in use")
            raise

    def _map(self, made: Object, size: int, undo: Undo) -> int:
        protection = hostmem.PROT_READ | hostmem.PROT_WRITE
        system = self._kgsl.os
        host = system.mmap(
            *(self._kgsl.fd, size, protection, hostmem.MAP_SHARED, made.id << _ID_SHIFT)
        )
        undo.add(system.munmap, host, size)
        hostmem.dontfork(host, size)
        return host

    def drop(self, held: GpuObject) -> None:
        """Frees an object; nothing on the GPU uses it any more."""
        del self._live[held]
        self._freed.append(held)
        held.undo.close()

    def close(self) -> None:
        """Frees all that is left. All is tried before an error is raised."""
        self._of.clear()
        with Undo() as undo:
            for held in list(self._live):
                undo.add(self.drop, held)

    @property
    def in_use(self) -> int:
        """Bytes of all objects."""
        return sum(held.size for held in self._live)

    # For reports

    def extents(self) -> list[GpuObject]:
        """All objects."""
        return list(self._live)

    def nearest(self, address: int) -> GpuObject | None:
        """The object that an address is in, was in before it was freed, or is behind."""
        for held in (*self._live, *reversed(self._freed)):
            if address in held:
                return held
        before = [each for each in self._live if each.address <= address]
        return max(before, key=lambda each: each.address, default=None)

    def describe(self, address: int) -> str:
        """Which object an address is in or next to, for messages about faults."""
        near = self.nearest(address)
        if near is None:
            return "before all buffers"
        name = f"{near.size:#x} bytes of {near.label} at {near.address:#x}"
        if address not in near:
            return f"{address - near.address - near.size:#x} bytes behind {name}"
        freed = "" if near in self._live else ", which was freed"
        return f"{address - near.address:#x} into {name}{freed}"

    def read(self, address: int, size: int) -> bytes | None:
        """Bytes at an address of the GPU, None where the host does not see them."""
        near = self.nearest(address)
        if near is None or not near.host or near not in self._live:
            return None
        start = address - near.address
        window = self._window(near)
        if window is None or not 0 <= start <= near.size - size:
            return None
        try:
            return window.load(start, size)
        except TransportError:
            return None

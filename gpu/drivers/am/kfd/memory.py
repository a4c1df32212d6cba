"""Memory of a GPU through KFD: buffers at one address for host and GPU, by what they are for.

Life of a buffer: reserve addresses, allocate, map for the host, map for the GPU; undone in reverse.

What the flags mean: get_pte_flags of amdgpu_amdkfd_gpuvm.c, gmc_v9_0.c to gmc_v12_0.c of Linux
6.12. On every chip from GFX9 on, COHERENT and UNCACHED system memory is mapped uncached (MTYPE_UC):
what either side writes the other reads. Buffers without them may be in caches of the GPU, and
packets say when those are written back and invalidated.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakSet

from gpu.autogen import kfd as ids
from gpu.core import hostmem
from gpu.core.bits import align_up
from gpu.core.errors import GpuError, InvalidValue, OutOfMemory, TransportError, Unsupported
from gpu.core.window import MemoryWindow
from gpu.drivers.am.kfd.ioctls import Kfd
from gpu.drivers.am.kfd.topology import GpuNode
from gpu.drivers.cleanup import Undo
from gpu.hcq.ports import Memory, MemoryKind, MemoryPort
from gpu.hcq.symbol import GpuVA

PAGE: Final = 4096
"""Of the GPU, and of the hosts that have one; the kernel wants whole ones."""
_HUGE_PAGE: Final = 2 << 20
_REMEMBERED: Final = 64

_RESERVED: Final = hostmem.MAP_PRIVATE | hostmem.MAP_ANONYMOUS | hostmem.MAP_NORESERVE
_SHARED: Final = hostmem.MAP_SHARED | hostmem.MAP_FIXED
_READ_WRITE: Final = hostmem.PROT_READ | hostmem.PROT_WRITE

_VRAM: Final = ids.KFD_IOC_ALLOC_MEM_FLAGS_VRAM | ids.KFD_IOC_ALLOC_MEM_FLAGS_NO_SUBSTITUTE
_PUBLIC: Final = ids.KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC
_GTT: Final = ids.KFD_IOC_ALLOC_MEM_FLAGS_GTT
_USERPTR: Final = ids.KFD_IOC_ALLOC_MEM_FLAGS_USERPTR
_WRITABLE: Final = ids.KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE
_EXECUTABLE: Final = ids.KFD_IOC_ALLOC_MEM_FLAGS_EXECUTABLE
_UNCACHED: Final = ids.KFD_IOC_ALLOC_MEM_FLAGS_COHERENT | ids.KFD_IOC_ALLOC_MEM_FLAGS_UNCACHED


class Use(enum.Enum):
    """What a buffer is for: its name in messages, its flags, and whether the host maps it."""

    DATA = ("device memory", _VRAM | _WRITABLE, False)
    VISIBLE = ("device memory that the host sees", _VRAM | _PUBLIC | _WRITABLE, True)
    # Queues fetch packets from it; shaders write results for the host to it.
    SYSTEM = ("system memory", _GTT | _WRITABLE | _EXECUTABLE | _UNCACHED, True)
    # Kernels cannot change code: the host writes it, through the BAR, or to system memory.
    CODE = ("code", _VRAM | _PUBLIC | _EXECUTABLE, True)
    CODE_IN_SYSTEM = ("code in system memory", _GTT | _EXECUTABLE, True)
    QUEUE = ("a queue's memory", _GTT | _WRITABLE | _EXECUTABLE | _UNCACHED, True)
    # What the trap handler saves waves to, and the packet processor notes ends in.
    PRIVATE = ("a queue's private memory", _VRAM | _WRITABLE | _EXECUTABLE, False)
    EVENTS = ("the page of events", _GTT | _WRITABLE | _UNCACHED, True)
    # Uncached, as its pages may hold more than the array, which the host writes at any time.
    HOST = ("memory of this process", _USERPTR | _WRITABLE | _UNCACHED, False)

    def __init__(self, label: str, flags: int, mapped: bool):
        self.label = label
        self.flags = flags
        self.mapped = mapped


_USES: Final = {
    MemoryKind.VRAM: Use.DATA,
    MemoryKind.VISIBLE: Use.VISIBLE,
    MemoryKind.SYSTEM: Use.SYSTEM,
}


@dataclass(eq=False)
class BufferObject:
    """A buffer: where it is, how much, and what for; ``undo`` frees it.

    ``gpus`` counts, by gpu_id, the devices that have it mapped: those of one GPU share page tables.
    """

    address: int
    size: int
    handle: int
    use: Use
    gpus: dict[int, int] = field(default_factory=dict)
    undo: Undo = field(default_factory=Undo)

    def __contains__(self, address: int) -> bool:
        return self.address <= address < self.address + self.size

    @property
    def label(self) -> str:
        """What it is for."""
        return self.use.label

    @property
    def window(self) -> MemoryWindow:
        """All of it, as the host sees it."""
        assert self.use.mapped, f"{self.use.label} is not mapped for the host"
        return MemoryWindow(self.address, self.size)


class KfdMemory:
    """Allocates memory of one GPU for one device; the `gpu.hcq.ports.MemoryPort` of KFD devices.

    All methods raise TransportError where the kernel refuses. ``aligns_large`` says whether large
    buffers are aligned for large pages.
    """

    def __init__(self, kfd: Kfd, gpu: GpuNode, render_fd: int, aperture: tuple[int, int]):
        """``render_fd`` is the GPU's render node, through which buffers are mapped."""
        self.kfd = kfd
        self.gpu = gpu
        self._render_fd = render_fd
        self._aperture = aperture
        self._live: dict[int, BufferObject] = {}
        self._of: dict[Memory, BufferObject] = {}  # what was given out, and not what queues hold
        self._guests: dict[Memory, BufferObject] = {}  # of other devices, and mapped here now
        self._freed: deque[BufferObject] = deque(maxlen=_REMEMBERED)
        self._visible = 0
        self.aligns_large = True
        self._foreign: WeakSet[BufferObject] = WeakSet()  # of other GPUs, and mapped here once

    @property
    def is_visible(self) -> bool:
        """Whether the host has data of the device mapped, which it may write at any time."""
        return self._visible > 0

    def allocate(self, size: int, kind: MemoryKind) -> Memory:
        """As `MemoryPort.allocate`: whole pages, from 2 MiB on aligned to as much."""
        bo = self.hold(size, _USES[kind])
        window = MemoryWindow(bo.address, size) if bo.use.mapped else None
        return self._give_out(bo, Memory(GpuVA(bo.address), size, kind, window))

    def allocate_code(self, size: int) -> Memory:
        """Memory for code, which kernels can run and not write, with a window to store it."""
        bo = self.hold(size, Use.CODE if self.gpu.is_visible else Use.CODE_IN_SYSTEM)
        window = MemoryWindow(bo.address, size)
        return self._give_out(bo, Memory(GpuVA(bo.address), size, MemoryKind.VISIBLE, window))

    def free(self, memory: Memory) -> None:
        """As `MemoryPort.free`. Raises InvalidValue for what is not of here, or freed before."""
        self.drop(self._bo(memory))
        del self._of[memory]

    def _give_out(self, bo: BufferObject, memory: Memory) -> Memory:
        self._of[memory] = bo
        return memory

    def _bo(self, memory: Memory) -> BufferObject:
        bo = self._of.get(memory)
        if bo is None:
            raise InvalidValue(
                f"memory at {memory.address:#x} is not of this device of {self.gpu}, or was freed"
            )
        return bo

    def map_host(self, address: int, size: int) -> Memory:
        """As `MemoryPort.map_host`; the GPU has the pages at an address of its own.

        So two arrays may share a page. Nothing is kept out of forked children, who may need the
        rest of the pages: where a fork moves them, the kernel moves the GPU's mapping too.
        """
        start = address & ~(PAGE - 1)
        bo = self.hold(address + size - start, Use.HOST, start)
        window = MemoryWindow(address, size)
        place = GpuVA(bo.address + address - start)
        return self._give_out(bo, Memory(place, size, MemoryKind.SYSTEM, window))

    def map_peer(self, memory: Memory, owner: MemoryPort) -> None:
        """As `MemoryPort.map_peer`. Raises Unsupported with the reason."""
        if not isinstance(owner, KfdMemory):
            raise Unsupported(f"{self.gpu} maps memory of GPUs in the same KFD only")
        if owner.kfd is not self.kfd:
            raise Unsupported(
                f"{self.gpu} and {owner.gpu} are in different contexts of the kernel's: opened"
                " through different systems, or one of them recovered from a fault"
            )
        bo = owner._bo(memory)
        if not bo.gpus.get(self.gpu.gpu_id):
            self._map_peer(bo, owner.gpu)
        bo.gpus[self.gpu.gpu_id] = bo.gpus.get(self.gpu.gpu_id, 0) + 1
        if owner.gpu.gpu_id != self.gpu.gpu_id:
            self._foreign.add(bo)
        self._guests[memory] = bo

    def _map_peer(self, bo: BufferObject, owner: GpuNode) -> None:
        try:
            self.kfd.map_memory(bo.handle, [self.gpu.gpu_id])
        except (TransportError, OutOfMemory) as error:
            linked = self.gpu.node in owner.links
            reason = "the kernel refused" if linked else "there is no link between them"
            raise Unsupported(
                f"{self.gpu} cannot reach {bo.use.label} of {owner}: {reason}"
                f" ({error.message}). Copy through system memory"
            ) from error

    def unmap_peer(self, memory: Memory) -> None:
        """As `MemoryPort.unmap_peer`."""
        bo = self._guests.pop(memory, None)
        count = bo.gpus.get(self.gpu.gpu_id, 0) if bo is not None else 0
        if bo is None or not count:
            raise InvalidValue(f"memory at {memory.address:#x} is not mapped into {self.gpu}")
        if count == 1:
            self.kfd.unmap_memory(bo.handle, [self.gpu.gpu_id])
        bo.gpus[self.gpu.gpu_id] = count - 1

    def hold(self, size: int, use: Use, user_address: int = 0) -> BufferObject:
        """A buffer of at least ``size`` bytes, whole pages, mapped for the GPU.

        ``user_address`` is that of the process's own pages for `Use.HOST`. Raises OutOfMemory,
        InvalidValue for a size below 1, Unsupported for visible memory where the BAR is small.
        """
        if size < 1:
            raise InvalidValue(f"{size} bytes of {use.label}: at least 1 is needed")
        if use.flags & _PUBLIC and not self.gpu.is_visible:
            raise Unsupported(
                f"{self.gpu} shows the host only a part of its memory: enable Resizable BAR in the"
                " machine's firmware"
            )
        size = align_up(size, PAGE)
        with Undo() as undo:
            address = self.reserve(size, undo)
            made = self.kfd.alloc_memory(self.gpu.gpu_id, address, size, use.flags, user_address)
            bo = BufferObject(address, size, made.handle, use)
            undo.add(self._free, bo)
            if use.mapped:
                self._map_for_host(address, size, made.mmap_offset)
            # Before it is mapped: an interrupt that comes then must not leave a mapping of
            # addresses that are given back.
            bo.gpus[self.gpu.gpu_id] = 1
            undo.add(self._unmap, bo)
            self._map(bo)
            bo.undo = undo.take()
        self._live[address] = bo
        self._visible += use is Use.VISIBLE
        return bo

    def _map(self, bo: BufferObject) -> None:
        try:
            self.kfd.map_memory(bo.handle, [self.gpu.gpu_id])
        except GpuError:
            bo.gpus.clear()
            raise

    def _free(self, bo: BufferObject) -> None:
        """Gives the buffer back, in the context that it is in now."""
        self.kfd.free_memory(bo.handle)

    def _unmap(self, bo: BufferObject) -> None:
        """Takes a buffer from all GPUs, peers too: the kernel frees no buffer that one has."""
        mapped = [gpu_id for gpu_id, count in bo.gpus.items() if count]
        if mapped:
            self.kfd.unmap_memory(bo.handle, mapped)
        bo.gpus.clear()

    def drop(self, bo: BufferObject) -> None:
        """Frees a buffer; nothing on a GPU uses it any more."""
        del self._live[bo.address]
        self._visible -= bo.use is Use.VISIBLE
        self._freed.append(bo)
        bo.undo.close()

    def close(self) -> None:
        """Frees all that is left. All is tried before an error is raised."""
        with Undo() as undo:
            for bo in list(self._live.values()):
                undo.add(self.drop, bo)

    def move(self, kfd: Kfd, render_fd: int) -> None:
        """Has all buffers in another context of the process, at the addresses that they have.

        Queues have been given back. Raises Unsupported for arrays of the process and for what
        other GPUs have mapped, TransportError; then all is as it was.
        """
        self._check_movable()
        with Undo() as undo:
            made = [
                (each, take_over(each, self.kfd, kfd, self.gpu, undo))
                for each in self._live.values()
            ]
            undo.take()
        before, self.kfd, self._render_fd = self.kfd, kfd, render_fd
        with Undo() as old:
            for bo, handle in made:
                old.add(before.free_memory, bo.handle)
                old.add(before.unmap_memory, bo.handle, [self.gpu.gpu_id])
                bo.handle = handle

    def _check_movable(self) -> None:
        arrays = [each for each in self._live.values() if each.use is Use.HOST]
        if arrays:
            raise Unsupported(
                f"{len(arrays)} arrays of this process are mapped, the first at"
                f" {arrays[0].address:#x}, which the kernel lets its first context alone do: free"
                " them before"
            )
        mine = self.gpu.gpu_id
        ours = [
            each
            for each in self._live.values()
            if any(each.gpus[g] for g in each.gpus if g != mine)
        ]
        theirs = [each for each in self._foreign if each.gpus.get(mine)]
        if ours or theirs:
            raise Unsupported(
                f"{_name((ours + theirs)[0])} is mapped between this GPU and another: free it"
                " before"
            )

    @property
    def in_use(self) -> int:
        """Bytes of all buffers."""
        return sum(bo.size for bo in self._live.values())

    def nearest(self, address: int) -> BufferObject | None:
        """The buffer that an address is in, was in before it was freed, or is behind."""
        for bo in (*self._live.values(), *reversed(self._freed)):
            if address in bo:
                return bo
        before = [each for each in self._live.values() if each.address <= address]
        return max(before, key=lambda each: each.address, default=None)

    def translation(self, address: int) -> tuple[str, ...]:
        """As `AmMemory.translation`: page tables are the kernel's."""
        return ()

    def extents(self) -> list[BufferObject]:
        """All allocations."""
        return list(self._live.values())

    def describe(self, address: int) -> str:
        """Which buffer an address is in or next to, for messages about faults."""
        near = self.nearest(address)
        if near is None:
            return "before all buffers"
        if address not in near:
            return f"{address - near.address - near.size:#x} bytes behind {_name(near)}"
        freed = "" if self._live.get(near.address) is near else ", which was freed"
        return f"{address - near.address:#x} into {_name(near)}{freed}"

    def read(self, address: int, size: int) -> bytes | None:
        """Bytes at an address of the GPU, None where the host does not see them."""
        near = self.nearest(address)
        if near is None or self._live.get(near.address) is not near or not near.use.mapped:
            return None
        start = address - near.address
        return near.window.load(start, size) if start + size <= near.size else None

    def reserve(self, size: int, undo: Undo) -> int:
        """Addresses that nothing else gets; large sizes are aligned for large pages."""
        align = _HUGE_PAGE if size >= _HUGE_PAGE and self.aligns_large else PAGE
        whole = size + align - PAGE  # so that an aligned part is inside; the rest stays unused
        start = self.kfd.os.mmap(-1, whole, hostmem.PROT_NONE, _RESERVED)
        undo.add(self.kfd.os.munmap, start, whole)
        address = align_up(start, align)
        low, high = self._aperture
        if not low <= address <= address + size - 1 <= high:
            raise OutOfMemory(
                f"addresses {address:#x} to {address + size:#x} are not those of {self.gpu}, which"
                f" has {low:#x} to {high:#x}"
            )
        return address

    def _map_for_host(self, address: int, size: int, offset: int) -> None:
        # Where the reservation was, so that undoing the reservation ends this too.
        self.kfd.os.mmap(self._render_fd, size, _READ_WRITE, _SHARED, offset, address)
        hostmem.dontfork(address, size)


def take_over(bo: BufferObject, old: Kfd, new: Kfd, gpu: GpuNode, undo: Undo) -> int:
    """A buffer's handle in another context, mapped where it is. Raises TransportError.

    A kernel could write to code from now on: what is imported it may write and run.
    """
    descriptor = old.export_memory(bo.handle)
    try:
        handle = new.import_memory(gpu.gpu_id, bo.address, descriptor)
    finally:
        old.os.close(descriptor)
    undo.add(new.free_memory, handle)
    new.map_memory(handle, [gpu.gpu_id])
    undo.add(new.unmap_memory, handle, [gpu.gpu_id])
    return handle


def _name(bo: BufferObject) -> str:
    return f"{bo.size:#x} bytes of {bo.use.label} at {bo.address:#x}"

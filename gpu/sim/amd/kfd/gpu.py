"""One GPU as the kernel keeps it: its buffers, its queues, and what a hang costs."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Final, Protocol

from gpu.autogen import kfd
from gpu.core.bits import align_up
from gpu.sim.amd.chip.asic import Asic
from gpu.sim.amd.chip.caches import CacheControl
from gpu.sim.amd.chip.hwqueue import HwQueue
from gpu.sim.amd.chips import Chip
from gpu.sim.amd.kfd.topology import HOST_MEMORY, Board
from gpu.sim.kernel import SysError
from gpu.sim.physical import Extent, Pool, Region
from gpu.sim.translate import PAGE_SIZE

_VRAM_GRANULE: Final = 2 << 20  # amdgpu_amdkfd_gpuvm.c VRAM_AVAILABILITY_ALIGN
_PAGE_TABLES: Final = 8 << 20  # amdgpu_vm.h AMDGPU_VM_RESERVED_VRAM
_FIRST_MMAP_OFFSET: Final = 1 << 32  # drm_vma_manager.h DRM_FILE_PAGE_OFFSET_START
_REMAP_UNWRITTEN: Final = 0xB1A5_B1A5
_VRAM: Final = kfd.KFD_IOC_ALLOC_MEM_FLAGS_VRAM
_GTT: Final = kfd.KFD_IOC_ALLOC_MEM_FLAGS_GTT
_FLUSH: Final = CacheControl(*[True] * len(CacheControl._fields))


class GpuUser(Protocol):
    """A process that has opened the GPU."""

    def gpu_reset(self) -> None:
        """All that it had on the GPU is lost."""
        ...

    def gpu_poisoned(self) -> None:
        """It read memory whose contents are lost."""
        ...

    def may_lose(self, bo: Bo, by: object) -> bool:
        """Whether a buffer may leave VRAM for one that the process `by` wants there."""
        ...

    def evict(self, bo: Bo) -> None:
        """A buffer is about to leave VRAM: whatever uses it stops."""
        ...


@dataclass(eq=False)
class Bo:
    """A buffer object: where bytes are, and who holds it.

    Attributes:
        extents: its pieces of `region`; None for memory that no pool owns.
        start: offset in `region` where there are no extents.
        mmap_offset: what a process passes to mmap of the render node.
        users: allocations and exported descriptors.
        cpu_mapped: whether a process has mapped it; such a buffer is not moved.
    """

    region: Region
    size: int
    flags: int
    gpu: KfdGpu
    extents: tuple[Extent, ...] | None = None
    start: int = 0
    mmap_offset: int = 0
    users: int = 1
    cpu_mapped: bool = False

    @property
    def is_evicted(self) -> bool:
        """Whether it waits in system memory for its place in VRAM."""
        return self.flags & _VRAM != 0 and self.region is self.gpu.host and not self.cpu_mapped

    @property
    def domain(self) -> int:
        """The one domain flag among its flags, the first that the kernel looks at."""
        for bit in (
            kfd.KFD_IOC_ALLOC_MEM_FLAGS_VRAM,
            kfd.KFD_IOC_ALLOC_MEM_FLAGS_GTT,
            kfd.KFD_IOC_ALLOC_MEM_FLAGS_USERPTR,
            kfd.KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL,
        ):
            if self.flags & bit:
                return bit
        return kfd.KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP

    @property
    def pool(self) -> Pool:
        """The pool that owns its pages."""
        assert isinstance(self.region, Pool), f"{self.region.name} is no pool"
        return self.region

    def pieces(self) -> tuple[Extent, ...]:
        """Where its bytes are, in order."""
        return self.extents if self.extents is not None else (Extent(self.start, self.size),)

    def move(self, pool: Pool) -> None:
        """Takes its contents to another pool. Raises SysError(ENOMEM)."""
        old, extents, there = self.pool, self.pieces(), pool.allocate(self.size)
        self.gpu.asic.caches.control(_FLUSH)
        self.region, self.extents = pool, there
        for at, data in old.contents(extents):
            self.store(at, data)
        self.gpu.give_back(old, extents)

    def return_to_vram(self, by: object) -> None:
        """Ends that it is evicted; other buffers may have to leave. Raises SysError(ENOMEM)."""
        self.move(self.gpu.make_room(self.size, by))
        buffers = self.gpu.mmap_offsets
        buffers[self.mmap_offset] = buffers.pop(self.mmap_offset)

    def load(self, offset: int, size: int) -> bytes:
        """Reads bytes as the kernel does, past all caches."""
        found = []
        for piece in self.pieces():
            if offset < piece.size and size:
                count = min(size, piece.size - offset)
                found.append(self.region.load(piece.offset + offset, count))
                size, offset = size - count, 0
            else:
                offset -= piece.size
        return b"".join(found)

    def store(self, offset: int, data: bytes) -> None:
        """Writes bytes as the kernel does, past all caches."""
        for piece in self.pieces():
            if offset < piece.size and data:
                part = data[: piece.size - offset]
                self.region.store(piece.offset + offset, part)
                data, offset = data[len(part) :], 0
            else:
                offset -= piece.size


class KfdGpu:
    """A GPU of a machine: the chip, and what the kernel keeps of it.

    Attributes:
        host: the machine's memory.
        queues: all queues of all processes, mapped to hardware or not.
        engine_slots: queues of the copy engines that are taken.
        users: processes that have opened KFD.
        stuck_wait_resets: whether taking a queue off an unmet wait is the end of all.
        mmap_offsets: buffers by the offset under which the render node maps them, those first that
            have been in VRAM for longest.
        remap: the page of registers that processes may map: HDP flush at 0 and 4.
    """

    def __init__(self, board: Board, asic: Asic, host: Pool, stuck_wait_resets: bool):
        self.board = board
        self.asic = asic
        self.sim = asic.sim
        self.host = host
        self.queues: list[HwQueue] = []
        self.engine_slots: set[int] = set()
        self.users: list[GpuUser] = []
        self.mmap_offsets: dict[int, Bo] = {}
        self.plugged = True
        self.stuck_wait_resets = stuck_wait_resets
        self.remap = Pool("remapped registers", PAGE_SIZE)
        self._reset_remap()
        self._next_offset = _FIRST_MMAP_OFFSET
        self._vram_used = 0
        self._vram_granules = 0
        self._host_used = 0

    @property
    def chip(self) -> Chip:
        """Which kind it is."""
        return self.asic.chip

    @property
    def gpu_id(self) -> int:
        """What KFD calls it."""
        return self.board.gpu_id

    @property
    def vram_used(self) -> int:
        """Bytes of its memory that are taken."""
        return self.asic.vram.size - self.asic.vram.free_bytes

    @property
    def available(self) -> int:
        """What AVAILABLE_MEMORY tells: whole pieces of 2 MiB, less what page tables may need."""
        free = self.asic.vram.size - self._vram_granules - self._page_tables()
        return max(free // _VRAM_GRANULE * _VRAM_GRANULE, 0)

    def unplug(self) -> None:
        """It is gone: calls fail from now on, queues stand still."""
        self.plugged = False

    def check_plugged(self) -> None:
        """Raises SysError(ENODEV) when the device is gone."""
        if not self.plugged:
            raise SysError(errno.ENODEV, "the device was unplugged")

    def allocate(self, size: int, flags: int, by: object) -> Bo:
        """A new buffer of process `by` in VRAM or system memory. Raises SysError(ENOMEM)."""
        size = align_up(size, PAGE_SIZE)
        self._reserve(size, flags)
        try:
            pool = self.make_room(size, by) if flags & _VRAM else self.host
            bo = Bo(pool, size, flags, self, pool.allocate(size))
        except SysError:
            self._reserve(-size, flags)
            raise
        return self.publish(bo)

    def allocate_graphics(self, size: int, by: object) -> Bo:
        """A buffer of the render node's own, in VRAM where there is room. Raises SysError(ENOMEM).

        It is not counted against what compute may use. Linux 6.12 amdgpu_gem.c
        `amdgpu_gem_create_ioctl`: where VRAM cannot be had, system memory serves.
        """
        size = align_up(size, PAGE_SIZE)
        pool = self.make_room(size, by)
        if pool.free_bytes < size:
            pool = self.host
        return self.publish(Bo(pool, size, 0, self, pool.allocate(size)))

    def make_room(self, size: int, by: object) -> Pool:
        """VRAM, from which buffers move out for one that a process wants, first those that
        came there first.

        Linux 6.12 amdgpu_ttm.c `amdgpu_ttm_bo_eviction_valuable`: no process evicts buffers of its
        own that its queues need. What can be moved is moved, whether that is enough or not.
        Raises SysError(ENOMEM) where system memory has no room for them.
        """
        vram = self.asic.vram
        for bo in list(self.mmap_offsets.values()):
            if vram.free_bytes >= size:
                break
            may_move = bo.region is vram and not bo.cpu_mapped
            if may_move and all(user.may_lose(bo, by) for user in self.users):
                for user in self.users:
                    user.evict(bo)
                bo.move(self.host)
        return vram

    def wrap(self, region: Region, start: int, size: int, flags: int) -> Bo:
        """A buffer over memory that is already there. Raises SysError(ENOMEM)."""
        size = align_up(size, PAGE_SIZE)
        self._reserve(size, flags)
        return self.publish(Bo(region, size, flags, self, start=start))

    def publish(self, bo: Bo) -> Bo:
        """Gives a buffer its mmap offset."""
        bo.mmap_offset = self._next_offset
        self._next_offset += align_up(bo.size, PAGE_SIZE)
        self.mmap_offsets[bo.mmap_offset] = bo
        return bo

    def drop(self, bo: Bo) -> None:
        """One holder less; the last one frees the buffer."""
        bo.users -= 1
        if bo.users:
            return
        self._reserve(-bo.size, bo.flags)
        del self.mmap_offsets[bo.mmap_offset]
        if bo.extents is not None:
            self.give_back(bo.pool, bo.extents)

    def give_back(self, pool: Pool, extents: tuple[Extent, ...]) -> None:
        """Frees pages, of which no cache holds anything any more."""
        for extent in extents:
            self.asic.caches.drop(pool, *extent)
        pool.release(extents)

    def sample(self) -> None:
        """Looks at what processes wrote without a call: doorbells and remapped registers."""
        if any(self.remap.read_word(at, 4) != _REMAP_UNWRITTEN for at in (0, 4)):
            self.asic.vram.flush()
            self._reset_remap()
        for queue in self.queues:
            queue.sample()
        if self.oversubscribed:
            for queue in self.queues:
                if queue.active and queue.kind != "sdma":
                    queue.remap()

    def runnable(self) -> list[HwQueue]:
        """Queues that could do something now."""
        return [queue for queue in self.queues if queue.runnable()] if self.plugged else []

    @property
    def oversubscribed(self) -> bool:
        """Whether the scheduler must take turns, for want of hardware queues."""
        compute = sum(queue.active and queue.kind != "sdma" for queue in self.queues)
        return compute > self.chip.cp_queues

    def reset(self, why: str) -> None:
        """A GPU reset: all queues and what VRAM held are gone, and the processes' events tell.

        Linux 6.12 kfd_device.c `kgd2kfd_pre_reset`: processes stay evicted; kfd_events.c
        `kfd_signal_reset_event`: HW_EXCEPTION with memory_lost and the cause GPU_HANG.
        """
        self.sim.debug.fault(f"GPU reset: {why}")
        for bo in self.mmap_offsets.values():
            if bo.region is self.asic.vram:
                self.asic.vram.forget(bo.pieces())
        for queue in self.queues:
            queue.stop("GPU reset")
        for user in self.users:
            user.gpu_reset()

    def poison(self, user: GpuUser) -> None:
        """A queue of a process read memory whose contents are lost.

        Linux 6.12 kfd_int_process_v11.c `event_interrupt_poison_consumption_v11`: the process is
        evicted and its events tell; a SIGBUS comes beside them, which no model sends.
        """
        self.sim.debug.fault("poison was consumed")
        user.gpu_poisoned()

    def close(self) -> None:
        """Gives its memory back."""
        self.asic.vram.close()
        self.remap.close()

    def _reset_remap(self) -> None:
        for at in (0, 4):
            self.remap.write_word(at, 4, _REMAP_UNWRITTEN)

    def _page_tables(self) -> int:
        return max((self.asic.vram.size + HOST_MEMORY) >> 14, _PAGE_TABLES)

    def _reserve(self, size: int, flags: int) -> None:
        """amdgpu_amdkfd_reserve_mem_limit; a negative size gives back. Raises SysError(ENOMEM)."""
        if flags & _GTT:
            what, limit, used = "gtt", HOST_MEMORY // 2, self._host_used
        elif flags & _VRAM:
            what, limit = "vram", self.asic.vram.size - self._page_tables()
            used = self._vram_used
        else:
            return
        is_refused = size > 0 and self.sim.faults.due("no-memory", about=what)
        if used + size > limit or is_refused:
            raise SysError(errno.ENOMEM, f"{size:#x} bytes; {used:#x} of {limit:#x} are in use")
        if flags & _GTT:
            self._host_used += size
        else:
            self._vram_used += size
            granules = align_up(abs(size), _VRAM_GRANULE)
            self._vram_granules += granules if size > 0 else -granules

"""One GPU: its memory, its queues, and what happens when they fault or hang."""

from __future__ import annotations

import errno
import random
from typing import TYPE_CHECKING, Final

from gpu.autogen import kfd
from gpu.core.bits import align_up
from gpu.sim.amd.chip.caches import Caches, Mode
from gpu.sim.amd.chip.dispatch import KernelExecutor
from gpu.sim.amd.chips import Chip
from gpu.sim.amd.kfd.process import Bo, KfdProcess
from gpu.sim.amd.kfd.topology import HOST_MEMORY, Board
from gpu.sim.clock import VirtualClock
from gpu.sim.counts import Counts
from gpu.sim.faults import FaultPlan
from gpu.sim.kernel import SysError
from gpu.sim.physical import Pool, Region
from gpu.sim.record import DebugChannel
from gpu.sim.translate import PAGE_SIZE, PageFault

if TYPE_CHECKING:
    from gpu.sim.amd.chip.hwqueue import HwQueue

_VRAM_GRANULE: Final = 2 << 20  # amdgpu_amdkfd_gpuvm.c VRAM_AVAILABILITY_ALIGN
_PAGE_TABLES: Final = 8 << 20  # amdgpu_vm.h AMDGPU_VM_RESERVED_VRAM
_FIRST_MMAP_OFFSET: Final = 1 << 32  # drm_vma_manager.h DRM_FILE_PAGE_OFFSET_START
_REMAP_UNWRITTEN: Final = 0xB1A5_B1A5
_VRAM: Final = kfd.KFD_IOC_ALLOC_MEM_FLAGS_VRAM
_GTT: Final = kfd.KFD_IOC_ALLOC_MEM_FLAGS_GTT


class SimGpu:
    """A GPU of a world.

    Attributes:
        queues: all queues of all processes, mapped to hardware or not.
        mmap_offsets: buffers by the offset under which the render node maps them.
        remap: the page of registers that processes may map: HDP flush at 0 and 4.
        executor: runs kernels; see `gpu.sim.amd.chip.dispatch`.
    """

    def __init__(
        self,
        board: Board,
        host: Pool,
        clock: VirtualClock,
        debug: DebugChannel,
        rng: random.Random,
        plan: FaultPlan,
        counts: Counts,
        mode: Mode,
        executor: KernelExecutor,
    ):
        self.board = board
        self.host = host
        self.clock = clock
        self.debug = debug
        self.rng = rng
        self.plan = plan
        self.counts = counts
        self.executor = executor
        self.vram = Pool("VRAM", board.chip.vram_size, local=True, behind_hdp=mode == "oldest")
        self.caches = Caches(mode, board.chip.sdma_through_l2, debug)
        self.queues: list[HwQueue] = []
        self.processes: list[KfdProcess] = []
        self.mmap_offsets: dict[int, Bo] = {}
        self.plugged = True
        self.remap = Pool("remapped registers", PAGE_SIZE)
        self._reset_remap()
        self._next_offset = _FIRST_MMAP_OFFSET
        self._vram_used = 0
        self._vram_granules = 0
        self._host_used = 0
        self._cpu_mapped: set[Bo] = set()

    @property
    def chip(self) -> Chip:
        """Which kind it is."""
        return self.board.chip

    @property
    def gpu_id(self) -> int:
        """What KFD calls it."""
        return self.board.gpu_id

    @property
    def vram_used(self) -> int:
        """Bytes of its memory that are allocated."""
        return self._vram_used

    @property
    def available(self) -> int:
        """What AVAILABLE_MEMORY tells: whole pieces of 2 MiB, less what page tables may need."""
        free = self.vram.size - self._vram_granules - self._page_tables()
        return max(free // _VRAM_GRANULE * _VRAM_GRANULE, 0)

    def check_plugged(self) -> None:
        """Raises SysError(ENODEV) when the device is gone."""
        if not self.plugged:
            raise SysError(errno.ENODEV, "the device was unplugged")

    def allocate(self, size: int, flags: int) -> Bo:
        """A new buffer in VRAM or system memory. Raises SysError(ENOMEM)."""
        size = align_up(size, PAGE_SIZE)
        self._reserve(size, flags)
        pool = self.vram if flags & _VRAM else self.host
        bo = Bo(pool, size, flags, self, pool.allocate(size))
        return self.publish(bo)

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
        self._cpu_mapped.discard(bo)
        if bo.extents is not None:
            for extent in bo.extents:
                self.caches.drop(bo.region, *extent)
            bo.pool.release(bo.extents)

    def cpu_mapped(self, bo: Bo) -> None:
        """The process may write to a buffer from now on."""
        self._cpu_mapped.add(bo)

    def flush_hdp(self) -> None:
        """Brings what the CPU wrote over the PCI window into VRAM."""
        for bo in self._cpu_mapped:
            if bo.region is self.vram:
                self.vram.flush(bo.pieces())

    def sample(self) -> None:
        """Looks at what processes wrote without a call: doorbells and remapped registers."""
        if any(self.remap.read_word(at, 4) != _REMAP_UNWRITTEN for at in (0, 4)):
            self.flush_hdp()
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

    def run(self, queue: HwQueue, budget: int) -> None:
        """Lets one queue handle at most so many packets."""
        queue.run(budget)

    def page_fault(self, queue: HwQueue, fault: PageFault) -> None:
        """A memory violation: the process loses this GPU for good, and its events tell.

        Linux 6.12 kfd_debug.c `kfd_set_dbg_ev_from_interrupt`: evict, then signal with the page's
        address; there is neither a program counter nor a queue in it.
        """
        device = queue.device
        self.debug.fault(f"{queue}: {fault}")
        queue.stop(f"page fault: {fault}")
        device.evicted += 1
        device.process.events.memory_violation(self.gpu_id, fault)

    def reset(self, why: str) -> None:
        """A GPU reset: all queues and what VRAM held are gone, and the processes' events tell.

        Linux 6.12 kfd_device.c `kgd2kfd_pre_reset`: processes stay evicted; kfd_events.c
        `kfd_signal_reset_event`: HW_EXCEPTION with memory_lost and the cause GPU_HANG.
        """
        self.debug.fault(f"GPU reset: {why}")
        for bo in self.mmap_offsets.values():
            if bo.region is self.vram:
                self.vram.forget(bo.pieces())
        for queue in self.queues:
            queue.stop("GPU reset")
        for process in self.processes:
            device = process.device(self.gpu_id)
            device.evicted += 1
            device.was_reset = True
            process.events.gpu_reset(self.gpu_id)

    def close(self) -> None:
        """Gives its memory back."""
        self.vram.close()
        self.remap.close()

    def _reset_remap(self) -> None:
        for at in (0, 4):
            self.remap.write_word(at, 4, _REMAP_UNWRITTEN)

    def _page_tables(self) -> int:
        return max((self.vram.size + HOST_MEMORY) >> 14, _PAGE_TABLES)

    def _reserve(self, size: int, flags: int) -> None:
        """amdgpu_amdkfd_reserve_mem_limit; a negative size gives back. Raises SysError(ENOMEM)."""
        if flags & _GTT:
            limit, used = HOST_MEMORY // 2, self._host_used
        elif flags & _VRAM:
            limit, used = self.vram.size - self._page_tables(), self._vram_used
        else:
            return
        if used + size > limit:
            raise SysError(errno.ENOMEM, f"{size:#x} bytes; {used:#x} of {limit:#x} are in use")
        if flags & _GTT:
            self._host_used += size
        else:
            self._vram_used += size
            granules = align_up(abs(size), _VRAM_GRANULE)
            self._vram_granules += granules if size > 0 else -granules

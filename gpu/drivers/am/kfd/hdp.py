"""Pushing what the host wrote through the BAR out of the bridge, so that the GPU reads it.

The host data path (HDP) gathers writes to device memory. KFD maps the register that empties it
into a page of its own (``KFD_MMIO_REMAP_``, kfd_ioctl.h); hdp_v5_0.c of Linux 6.12 writes any value
and reads the register back, so that the write has reached the device.
"""

from __future__ import annotations

from gpu.autogen import kfd as ids
from gpu.core import hostmem
from gpu.core.window import MemoryWindow
from gpu.drivers.am.kfd.memory import PAGE, KfdMemory
from gpu.drivers.cleanup import Undo


class HdpPage:
    """The page of one device, mapped when it is first needed.

    ``when`` is a variant of `gpu.drivers.am.kfd.questions.HDP_FLUSH`.
    """

    def __init__(self, memory: KfdMemory, when: str = "when needed"):
        self._memory = memory
        self._when = when
        self._window: MemoryWindow | None = None
        self._undo = Undo()

    @property
    def is_needed(self) -> bool:
        """Whether the host can have written to device memory that queues read."""
        return self._when == "always" or self._memory.is_visible

    def flush(self) -> None:
        """Empties it. Raises TransportError where the kernel does not give the page."""
        if self._when == "never":
            return
        if self._window is None:
            self._window = self._map()
        self._window.write(ids.KFD_MMIO_REMAP_HDP_MEM_FLUSH_CNTL, 4, 0)
        self._window.read(ids.KFD_MMIO_REMAP_HDP_MEM_FLUSH_CNTL, 4)

    def close(self) -> None:
        """Unmaps it."""
        self._window = None
        self._undo.close()

    def _map(self) -> MemoryWindow:
        memory = self._memory
        flags = ids.KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP | ids.KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE
        with Undo() as undo:
            reserved = memory.reserve(PAGE, undo)
            made = memory.kfd.alloc_memory(memory.gpu.gpu_id, reserved, PAGE, flags)
            undo.add(memory.kfd.free_memory, made.handle)
            access = hostmem.PROT_READ | hostmem.PROT_WRITE
            shared = hostmem.MAP_SHARED | hostmem.MAP_FIXED
            memory.kfd.os.mmap(memory.kfd.fd, PAGE, access, shared, made.mmap_offset, reserved)
            hostmem.dontfork(reserved, PAGE)
            self._undo = undo.take()
        return MemoryWindow(reserved, PAGE)

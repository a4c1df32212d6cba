"""What the kernel keeps: memory objects, and a process's half of each GPU.

Names follow Linux 6.12: `ProcessDevice` is `kfd_process_device`, `Allocation` is `kgd_mem`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from gpu.autogen import kfd
from gpu.sim.kernel import SysError
from gpu.sim.physical import Extent, Pool, Region
from gpu.sim.translate import AddressSpace, Mapping

if TYPE_CHECKING:
    from gpu.sim.amd.chip.hwqueue import HwQueue
    from gpu.sim.amd.kfd.drm import DrmFile
    from gpu.sim.amd.kfd.events import Events
    from gpu.sim.amd.kfd.gpu import SimGpu
    from gpu.sim.process import SimProcess

DOORBELL_SLICE: Final = 0x2000
"""Bytes of doorbells a process has on a GPU: 8 for each of 1024 queues (kfd_doorbell.c)."""
MAX_QUEUES: Final = 1024
UNRUNG: Final = (1 << 64) - 1
"""What the model puts into a doorbell that nobody has rung; a 32-bit ring shows against it."""

ItemT = TypeVar("ItemT")


class IdTable(Generic[ItemT]):
    """Numbers for things, the lowest free one first, as the kernel's idr gives them."""

    def __init__(self) -> None:
        self._items: dict[int, ItemT] = {}
        self._lowest: dict[int, int] = {}  # by where a range begins, what may be free there

    def add(self, item: ItemT, first: int = 0, limit: int = 1 << 31) -> int:
        """Gives a thing a number. Raises SysError(ENOSPC) when all up to `limit` are taken."""
        number = self._lowest.get(first, first)
        while number in self._items:
            number += 1
        self._lowest[first] = number
        if number >= limit:
            raise SysError(errno.ENOSPC, f"no free number from {first:#x} to {limit:#x}")
        self._items[number] = item
        return number

    def get(self, number: int) -> ItemT | None:
        """The thing of a number."""
        return self._items.get(number)

    def remove(self, number: int) -> None:
        """Frees a number."""
        del self._items[number]
        for first, lowest in self._lowest.items():
            if first <= number < lowest:
                self._lowest[first] = number

    def __iter__(self) -> Iterator[tuple[int, ItemT]]:
        return iter(sorted(self._items.items()))

    def __len__(self) -> int:
        return len(self._items)


@dataclass(eq=False)
class Bo:
    """A buffer object: where bytes are, and who holds it.

    Attributes:
        extents: its pieces of `region`; None for memory that no pool owns.
        start: offset in `region` where there are no extents.
        mmap_offset: what a process passes to mmap of the render node.
        users: allocations and exported descriptors.
    """

    region: Region
    size: int
    flags: int
    gpu: SimGpu
    extents: tuple[Extent, ...] | None = None
    start: int = 0
    mmap_offset: int = 0
    users: int = 1

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


@dataclass(eq=False)
class Allocation:
    """A handle's object: a buffer with an address, and where it is mapped.

    Attributes:
        double: mapped twice in a row, for AQL rings.
        mapped: per GPU of the process, the mappings of it there.
    """

    bo: Bo
    va: int
    flags: int
    double: bool = False
    mapped: dict[ProcessDevice, list[Mapping]] = field(default_factory=dict)


class ProcessDevice:
    """What a process has on one GPU.

    Attributes:
        drm: the render node that was given to ACQUIRE_VM; None before.
        evicted: how often the kernel took the GPU away; it comes back only at 0.
        was_reset: a GPU reset ended its queues.
    """

    def __init__(self, gpu: SimGpu, process: KfdProcess):
        self.gpu = gpu
        self.process = process
        self.drm: DrmFile | None = None
        self.space = AddressSpace()
        self.allocations: IdTable[Allocation] = IdTable()
        self.doorbells: Pool | None = None
        self.doorbell_slots: set[int] = set()
        self.evicted = 0
        self.was_reset = False
        self._queue_users: dict[Allocation, int] = {}

    def bind(self) -> None:
        """What most calls need first. Raises SysError(ENODEV) before ACQUIRE_VM."""
        if self.drm is None:
            raise SysError(errno.ENODEV, "ACQUIRE_VM must come first")

    def hold(self, allocation: Allocation) -> None:
        """A queue uses an allocation: it cannot be unmapped."""
        self._queue_users[allocation] = self._queue_users.get(allocation, 0) + 1

    def let_go(self, allocation: Allocation) -> None:
        """One queue less uses it."""
        self._queue_users[allocation] -= 1
        if not self._queue_users[allocation]:
            del self._queue_users[allocation]

    def is_held(self, allocation: Allocation) -> bool:
        """Whether a queue uses it."""
        return allocation in self._queue_users

    def gpu_handle(self, number: int) -> int:
        """How the process names one of its allocations."""
        return self.gpu.gpu_id << 32 | number

    def close(self) -> None:
        """Gives the doorbells back."""
        if self.doorbells is not None:
            self.doorbells.close()

    def need_doorbells(self) -> Pool:
        """The process's doorbell pages, made when first needed."""
        if self.doorbells is None:
            self.doorbells = Pool("doorbells", DOORBELL_SLICE)
            chip = self.gpu.chip
            last = 0x1E8 if chip.pm4 == "gfx9" else 0x190  # LAST_NON_CP of amdgpu_doorbell.h
            reserved = range(chip.sdma_doorbells[0], last + 1)
            self.doorbell_slots = {*reserved, *(slot + 512 for slot in reserved)}
        return self.doorbells


class KfdProcess:
    """What KFD keeps of a process from its first open of /dev/kfd until it ends.

    A process may have more of them, each with one descriptor (CREATE_PROCESS): contexts with page
    tables, queues and events of their own. They end with their descriptor.

    Attributes:
        interface: minor version of the calls.
        is_primary: the first of the process. Only it may use the process's own memory.
    """

    def __init__(
        self,
        process: SimProcess,
        gpus: list[SimGpu],
        events: Events,
        interface: int,
        is_primary: bool,
    ):
        self.process = process
        self.interface = interface
        self.is_primary = is_primary
        self.devices = {gpu.gpu_id: ProcessDevice(gpu, self) for gpu in gpus}
        self.queues: IdTable[HwQueue] = IdTable()
        self.events = events
        self.runtime_enabled = False

    def device(self, gpu_id: int) -> ProcessDevice:
        """Its half of a GPU. Raises SysError(EINVAL) for an unknown id."""
        found = self.devices.get(gpu_id)
        if found is None:
            raise SysError(errno.EINVAL, f"there is no GPU with id {gpu_id:#x}")
        return found

    def allocation(self, handle: int, missing: int) -> tuple[ProcessDevice, Allocation]:
        """A handle's device and object. Raises SysError: EINVAL, or `missing` for the object."""
        device = self.device(handle >> 32)
        found = device.allocations.get(handle & 0xFFFFFFFF)
        if found is None:
            raise SysError(missing, f"handle {handle:#x} is not allocated")
        return device, found

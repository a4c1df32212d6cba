"""What the kernel keeps of a process: its half of each GPU, its memory and its queues.

Names follow Linux 6.12: `ProcessDevice` is `kfd_process_device`, `Allocation` is `kgd_mem`.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from typing import Final

from gpu.sim.amd.chip.hwqueue import HwQueue, RingSettings
from gpu.sim.amd.kfd.drm import DrmFile
from gpu.sim.amd.kfd.events import Events
from gpu.sim.amd.kfd.gpu import Bo, KfdGpu
from gpu.sim.ids import IdTable
from gpu.sim.kernel import SysError
from gpu.sim.physical import Pool
from gpu.sim.process import SimProcess
from gpu.sim.translate import AddressSpace, Mapping, PageFault

DOORBELL_SLICE: Final = 0x2000
"""Bytes of doorbells a process has on a GPU: 8 for each of 1024 queues (kfd_doorbell.c)."""
MAX_QUEUES: Final = 1024
RESTORE_NS: Final = 100_000_000
"""Until evicted memory comes back: PROCESS_RESTORE_TIME_MS and _BACK_OFF_TIME_MS of kfd_priv.h."""
_UNRUNG: Final = (1 << 64) - 1
"""What the model puts into a doorbell that nobody has rung; a 32-bit ring shows against it."""


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

    def __init__(self, gpu: KfdGpu, process: KfdProcess):
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
        gpu.users.append(self)

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

    def gpu_reset(self) -> None:
        """The GPU was reset; see `KfdGpu.reset`."""
        self.evicted += 1
        self.was_reset = True
        self.process.events.gpu_reset(self.gpu.gpu_id)

    def gpu_poisoned(self) -> None:
        """See `KfdGpu.poison`."""
        self.evicted += 1
        self.process.events.poison_consumed(self.gpu.gpu_id)

    def may_lose(self, bo: Bo, by: object) -> bool:
        """See `KfdGpu.make_room`."""
        return self.process.process is not by or not self._uses(bo)

    def evict(self, bo: Bo) -> None:
        """See `KfdGpu.make_room`."""
        if self._uses(bo):
            self.process.evict()

    def _uses(self, bo: Bo) -> bool:
        return any(found.bo is bo and found.mapped for _, found in self.allocations)

    def close(self) -> None:
        """Gives the doorbells back."""
        if self.doorbells is not None:
            self.doorbells.close()
        self.gpu.users.remove(self)

    def need_doorbells(self) -> Pool:
        """The process's doorbell pages, made when first needed."""
        if self.doorbells is None:
            self.doorbells = Pool("doorbells", DOORBELL_SLICE)
            chip = self.gpu.chip
            last = 0x1E8 if chip.pm4 == "gfx9" else 0x190  # LAST_NON_CP of amdgpu_doorbell.h
            reserved = range(chip.sdma_doorbells[0], last + 1)
            self.doorbell_slots = {*reserved, *(slot + 512 for slot in reserved)}
        return self.doorbells


class KfdQueue:
    """A queue that a process has made: the `QueueHost` of one on the hardware.

    Attributes:
        number: what the process calls it.
        doorbell_at: offset in the process's doorbells, in bytes.
        engine_slot: of a queue of the copy engines, which of their queues it is.
        holds: allocations that may not be unmapped while it exists.
    """

    def __init__(
        self,
        device: ProcessDevice,
        kind: type[HwQueue],
        settings: RingSettings,
        doorbell_at: int,
        engine_slot: int | None,
    ):
        self.device = device
        self.number = -1
        self.doorbell_at = doorbell_at
        self.engine_slot = engine_slot
        self.holds: list[Allocation] = []
        self._seen = _UNRUNG
        self._doorbells = device.need_doorbells()
        self._doorbells.write_word(doorbell_at, 8, _UNRUNG)
        self.hardware = kind(self, device.gpu.asic, settings)

    def __str__(self) -> str:
        return str(self.hardware)

    @property
    def name(self) -> str:
        """See `QueueHost`."""
        return f"{self.number} of process {self.device.process.process.pid}"

    @property
    def space(self) -> AddressSpace:
        """The process's addresses."""
        return self.device.space

    def why_off(self) -> str:
        """Linux 6.12 kfd_priv.h QUEUE_IS_ACTIVE: not of a process that is evicted."""
        for_memory = self.device.process.due_ns is not None
        if self.device.evicted > for_memory:
            return "evicted: its process lost the GPU"
        return "evicted: its process waits for VRAM" if for_memory else ""

    def doorbell(self) -> int | None:
        """Whether the doorbell holds another value than before."""
        value = self._doorbells.read_word(self.doorbell_at, 8)
        if value == self._seen:
            return None
        self._seen = value
        return value

    def page_fault(self, fault: PageFault) -> None:
        """A memory violation: the process loses this GPU for good, and its events tell.

        Linux 6.12 kfd_debug.c `kfd_set_dbg_ev_from_interrupt`: evict, then signal with the page's
        address; there is neither a program counter nor a queue in it.
        """
        self.device.evicted += 1
        self.device.process.events.memory_violation(self.device.gpu.gpu_id, fault)

    def reset_gpu(self, why: str) -> None:
        """The kernel finds that the GPU needs a reset."""
        self.device.gpu.reset(why)

    def read_poison(self) -> None:
        """Memory that it read had lost its contents."""
        self.device.gpu.poison(self.device)

    def interrupt(self, number: int, bits: int) -> None:
        """An interrupt that names an event."""
        self.device.process.events.interrupt(number, bits)


class KfdProcess:
    """What KFD keeps of a process from its first open of /dev/kfd until it ends.

    A process may have more of them, each with one descriptor (CREATE_PROCESS): contexts with page
    tables, queues and events of their own. They end with their descriptor.

    Attributes:
        interface: minor version of the calls.
        is_primary: the first of the process. Only it may use the process's own memory.
        due_ns: when its buffers come back that left VRAM; None while all are where they belong.
        ended: whether all that it had was freed.
    """

    def __init__(
        self,
        process: SimProcess,
        gpus: list[KfdGpu],
        events: Events,
        interface: int,
        is_primary: bool,
    ):
        self.process = process
        self.interface = interface
        self.is_primary = is_primary
        self.devices = {gpu.gpu_id: ProcessDevice(gpu, self) for gpu in gpus}
        self.queues: IdTable[KfdQueue] = IdTable()
        self.events = events
        self.runtime_enabled = False
        self.due_ns: int | None = None
        self.ended = False

    def why_idle(self) -> str:
        """What it waits for; see `gpu.sim.machine.Engine`. Its queues tell."""
        return ""

    def evict(self) -> None:
        """Memory that it uses leaves VRAM: its queues on all GPUs stop for a while.

        Linux 6.12 kfd_process.c `evict_process_worker`: all queues are taken off, and they are to
        be restored after PROCESS_RESTORE_TIME_MS.
        """
        if self.due_ns is not None:
            return
        for _, queue in self.queues:
            if queue.hardware.is_unsaved:
                queue.reset_gpu(queue.hardware.why_idle())
        for device in self.devices.values():
            device.evicted += 1
        self.delay_restore()

    def delay_restore(self) -> None:
        """The restore is tried after a while."""
        self.due_ns = self.process.world.clock.now_ns + RESTORE_NS

    def resume(self) -> None:
        """Its memory is back: its queues go on, if nothing else keeps them off.

        What was rung in between is lost; hardware that is given a queue reads the write pointer
        in memory.
        """
        self.due_ns = None
        for device in self.devices.values():
            device.evicted -= 1
        for _, queue in self.queues:
            queue.doorbell()
            if queue.hardware.active:
                queue.hardware.remap()

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

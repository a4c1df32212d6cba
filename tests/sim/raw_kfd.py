"""A tiny user of KFD for tests: raw calls and hand-written packets, and nothing of our drivers.

Packets are put together from the field layouts of the public headers by plain shifts, so that no
encoder's mistake can hide one of the model.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from gpu.autogen import kfd
from gpu.core import hostmem
from gpu.core.errors import DeviceError
from gpu.core.window import MemoryWindow
from gpu.sim.amd.kfd.world import KfdWorld
from gpu.sim.process import SimProcess

PAGE = 4096
VRAM = kfd.KFD_IOC_ALLOC_MEM_FLAGS_VRAM | kfd.KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC
GTT = kfd.KFD_IOC_ALLOC_MEM_FLAGS_GTT
WRITABLE = kfd.KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE
EXECUTABLE = kfd.KFD_IOC_ALLOC_MEM_FLAGS_EXECUTABLE
UNCACHED = kfd.KFD_IOC_ALLOC_MEM_FLAGS_UNCACHED | kfd.KFD_IOC_ALLOC_MEM_FLAGS_COHERENT
ACCESS = WRITABLE | EXECUTABLE
SIGNAL = GTT | ACCESS | UNCACHED
PM4, SDMA, AQL = 0, 1, 2
READ_WRITE = hostmem.PROT_READ | hostmem.PROT_WRITE


@dataclass
class Buffer:
    """An allocation that both sides see at one address."""

    va: int
    size: int
    handle: int
    window: MemoryWindow | None = None

    @property
    def host(self) -> MemoryWindow:
        assert self.window is not None, "the buffer is not mapped for the CPU"
        return self.window


@contextmanager
def fails(number: int) -> Iterator[None]:
    """The block must fail with this errno."""
    with pytest.raises((DeviceError, MemoryError)) as caught:
        yield
    found = getattr(caught.value, "errno", None)
    assert found == number, f"errno {found}, not {number}: {caught.value}"


@dataclass
class RawKfd:
    """One process that has opened KFD and, unless told otherwise, the GPU's render node."""

    process: SimProcess
    index: int = 0
    acquire: bool = True
    kfd_fd: int = -1
    drm_fd: int = -1
    doorbells: MemoryWindow | None = None
    queues: list[RawQueue] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.os = self.process.os
        self.world: KfdWorld = self.process.world
        self.gpu = self.world.gpus[self.index]
        self.gpu_id = self.gpu.gpu_id
        self.kfd_fd = self.os.open("/dev/kfd", os.O_RDWR)
        self.drm_fd = self.os.open(f"/dev/dri/renderD{self.gpu.board.minor}", os.O_RDWR)
        if self.acquire:
            self.call("acquire_vm", drm_fd=self.drm_fd, gpu_id=self.gpu_id)

    def call(self, name: str, **fields: int) -> Any:
        """A KFD call by name; returns its argument structure."""
        args = getattr(kfd, f"kfd_ioctl_{_ARGS.get(name, name)}_args")(**fields)
        self.os.ioctl(self.kfd_fd, getattr(kfd, f"AMDKFD_IOC_{name.upper()}"), args)
        return args

    def alloc(self, size: int, flags: int, *, map_gpu: bool = True, map_cpu: bool = True) -> Buffer:
        """Memory at one address for both sides."""
        double = bool(flags & kfd.KFD_IOC_ALLOC_MEM_FLAGS_AQL_QUEUE_MEM)
        va = hostmem.reserve(size)
        args = self.call(
            "alloc_memory_of_gpu", va_addr=va, size=size, gpu_id=self.gpu_id, flags=flags
        )
        buffer = Buffer(va, size, args.handle)
        if map_cpu:
            bytes_ = size // 2 if double else size
            shared = hostmem.MAP_SHARED | hostmem.MAP_FIXED
            self.os.mmap(self.drm_fd, bytes_, READ_WRITE, shared, args.mmap_offset, va)
            buffer.window = MemoryWindow(va, bytes_)
        if map_gpu:
            self.map(buffer)
        return buffer

    def map(self, buffer: Buffer, gpu_ids: Iterable[int] = (), done: int = 0) -> Any:
        return self._map("map_memory_to_gpu", buffer, gpu_ids, done)

    def unmap(self, buffer: Buffer, gpu_ids: Iterable[int] = (), done: int = 0) -> Any:
        return self._map("unmap_memory_from_gpu", buffer, gpu_ids, done)

    def _map(self, name: str, buffer: Buffer, gpu_ids: Iterable[int], done: int) -> Any:
        ids = list(gpu_ids) or [self.gpu_id]
        array = (ctypes.c_uint32 * len(ids))(*ids)
        at = ctypes.addressof(array)
        fields = {"device_ids_array_ptr": at, "n_devices": len(ids), "n_success": done}
        return self.call(name, handle=buffer.handle, **fields)

    def free(self, buffer: Buffer) -> None:
        self.call("free_memory_of_gpu", handle=buffer.handle)

    def event_page(self) -> Buffer:
        """The page with the events' slots; hand its handle to the first event."""
        return self.alloc(8 * kfd.KFD_SIGNAL_EVENT_LIMIT, SIGNAL)

    def event(self, kind: int = kfd.KFD_IOC_EVENT_SIGNAL, auto: int = 1, page: int = 0) -> Any:
        fields = {"event_type": kind, "auto_reset": auto, "event_page_offset": page}
        return self.call("create_event", **fields)

    def wait(
        self, events: list[int], *, every: bool = False, timeout: int = 1000, ages: Any = ()
    ) -> tuple[int, Any]:
        """Waits for events; returns the result and the array of their data."""
        data = (kfd.kfd_event_data * max(len(events), 1))()
        for i, number in enumerate(events):
            data[i].event_id = number
        for i, age in enumerate(ages):
            data[i].signal_event_data.last_event_age = age
        at = ctypes.addressof(data)
        fields = {"num_events": len(events), "wait_for_all": int(every), "timeout": timeout}
        args = self.call("wait_events", events_ptr=at, **fields)
        return args.wait_result, data

    def queue(self, kind: int, size: int = PAGE, **changes: int) -> RawQueue:
        """A queue with all it needs."""
        queue = RawQueue(self, kind, size, changes)
        self.queues.append(queue)
        return queue

    def doorbell_page(self, offset: int) -> MemoryWindow:
        if self.doorbells is None:
            size = 0x2000
            at = self.os.mmap(
                self.kfd_fd, size, READ_WRITE, hostmem.MAP_SHARED, offset & ~(size - 1)
            )
            self.doorbells = MemoryWindow(at, size)
        return self.doorbells


_ARGS = {"available_memory": "get_available_memory"}


class RawQueue:
    """A user queue: ring, pointers, doorbell."""

    def __init__(self, user: RawKfd, kind: int, size: int, changes: dict[str, int]):
        self.user = user
        self.kind = kind
        self.size = size
        double = kfd.KFD_IOC_ALLOC_MEM_FLAGS_AQL_QUEUE_MEM if kind == AQL else 0
        self.ring = user.alloc(2 * size if double else size, SIGNAL | double)
        self.pointers = user.alloc(PAGE, SIGNAL)
        self.put = 0
        self.fields = {
            "ring_base_address": self.ring.va,
            "ring_size": size,
            "read_pointer_address": self.pointers.va + 0x80,
            "write_pointer_address": self.pointers.va + 0x38,
            "gpu_id": user.gpu_id,
            "queue_type": kind,
            "queue_percentage": 100,
            "queue_priority": 7,
        }
        if kind in (PM4, AQL):
            context = user.gpu.board.context
            self.eop = user.alloc(PAGE, VRAM | ACCESS)
            self.cwsr = user.alloc(context.area, GTT | ACCESS, map_cpu=False)
            self.fields |= {
                "eop_buffer_address": self.eop.va,
                "eop_buffer_size": PAGE,
                "ctx_save_restore_address": self.cwsr.va,
                "ctx_save_restore_size": context.save_area,
                "ctl_stack_size": context.control_stack,
            }
        self.fields |= changes
        if kind == AQL:
            for i in range(size // 64):
                self.ring.host.write(64 * i, 2, 1)  # INVALID
        args = user.call("create_queue", **self.fields)
        self.id = args.queue_id
        self.doorbell_offset = args.doorbell_offset
        self.slot = args.doorbell_offset & 0x1FFF

    @property
    def wptr(self) -> int:
        return self.pointers.host.read(0x38, 8)

    @property
    def rptr(self) -> int:
        return self.pointers.host.read(0x80, 4 if self.kind == PM4 else 8)

    def place(self, dwords: Iterable[int]) -> None:
        """Puts dwords behind those before, wrapping at the end; `put` counts dwords."""
        for dword in dwords:
            self.ring.host.write(4 * (self.put % (self.size // 4)), 4, dword & 0xFFFFFFFF)
            self.put += 1

    def submit(self, dwords: Iterable[int] = ()) -> None:
        """Places dwords, stores the write pointer and rings."""
        self.place(dwords)
        value = 4 * self.put if self.kind == SDMA else self.put
        self.pointers.host.write(0x38, 8, value)
        self.ring_doorbell(value)

    def ring_doorbell(self, value: int, width: int = 8) -> None:
        self.user.doorbell_page(self.doorbell_offset).write(self.slot, width, value)

    def submit_aql(self, packet: bytes) -> None:
        """Puts a packet of 64 bytes, header last, and rings with its index."""
        at = 64 * (self.put % (self.size // 64))
        self.ring.host.store(at + 4, packet[4:])
        self.ring.host.write(at, 4, int.from_bytes(packet[:4], "little"))
        self.put += 1
        self.pointers.host.write(0x38, 8, self.put)
        self.ring_doorbell(self.put - 1)

    def run(self) -> None:
        """Lets the model work until nothing is left to do."""
        self.user.world.run_until_idle()

    def update(self, **changes: int) -> None:
        fields = {
            name: self.fields[name]
            for name in ("ring_base_address", "ring_size", "queue_percentage", "queue_priority")
        }
        self.user.call("update_queue", queue_id=self.id, **(fields | changes))

    def destroy(self) -> None:
        self.user.call("destroy_queue", queue_id=self.id)


def packet3(opcode: int, *body: int) -> list[int]:
    """A PM4 packet of type 3."""
    return [3 << 30 | (len(body) - 1) << 16 | opcode << 8, *body]


def halves(address: int) -> tuple[int, int]:
    return address & 0xFFFFFFFF, address >> 32


def nop(dwords: int = 1) -> list[int]:
    return (
        [3 << 30 | 0x3FFF << 16 | 0x10 << 8] if dwords == 1 else packet3(0x10, *[0] * (dwords - 1))
    )


def write_data(address: int, *values: int, target: int = 5) -> list[int]:
    return packet3(0x37, target << 8 | 1 << 20, *halves(address), *values)


def wait_mem(address: int, reference: int, function: int = 3, mask: int = 0xFFFFFFFF) -> list[int]:
    return packet3(0x3C, function | 1 << 4, *halves(address), reference, mask, 4)


def release_mem(
    address: int, value: int, *, data: int = 2, interrupt: int = 0, context: int = 0, gcr: int = 0
) -> list[int]:
    control = 0x14 | 5 << 8 | gcr
    select = interrupt << 24 | data << 29
    return packet3(0x49, control, select, *halves(address), *halves(value), context)


L2_WRITE_BACK = 1 << 21


def acquire_mem(gcr: int) -> list[int]:
    return packet3(0x58, 0, 0xFFFFFFFF, 0xFFFFFF, 0, 0, 0xA, gcr)


def sdma_copy(source: int, target: int, size: int) -> list[int]:
    return [1, size - 1, 0, *halves(source), *halves(target)]


def sdma_fence(address: int, value: int) -> list[int]:
    return [5, *halves(address), value]


def sdma_trap(context: int) -> list[int]:
    return [6, context]


def sdma_write(address: int, *values: int) -> list[int]:
    return [2, *halves(address), len(values) - 1, *values]


def sdma_fill(address: int, value: int, size: int) -> list[int]:
    return [11 | 2 << 30, *halves(address), value, size - 1]


def sdma_poll(address: int, reference: int, function: int = 3) -> list[int]:
    header = 8 | function << 28 | 1 << 31
    return [header, *halves(address), reference, 0xFFFFFFFF, 0xFFF << 16 | 4]

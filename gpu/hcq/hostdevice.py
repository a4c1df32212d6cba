"""A device that runs its commands on host memory: the first one to pass the conformance suite.

Rings, put pointers, doorbells and signals are real memory, and published natively. Nothing runs
until a wait idles; then queues go on a few records at a time, in an order, and reading ahead as far
as a seed says. Time is virtual. Every address is checked against what is allocated.
"""

from __future__ import annotations

import ctypes
import random
import struct
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from gpu.core import hostmem
from gpu.core.bits import align_up
from gpu.core.errors import GpuFault, HwTimeout, InvalidValue, OutOfMemory, Unsupported
from gpu.core.window import MemoryWindow
from gpu.hcq.args import ArgumentLayout
from gpu.hcq.commands import TIMESTAMP
from gpu.hcq.hostcode import HostEncoder, HostKernel, Op, Record, compares, decode
from gpu.hcq.hostring import HostRing
from gpu.hcq.ports import Memory, MemoryKind, MemoryPort
from gpu.hcq.symbol import GpuVA

_STEP_NS: Final = 1_000
_STALE: Final = 0xA5
_TICK_NS: Final = 10
_CLOCK_START: Final = 12_345


class HostMemory:
    """A `MemoryPort` over pages of this process; ``capacity`` bounds its bytes."""

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.machine: list[HostPort] = []
        """Devices that run together, as they may wait for each other."""
        self.used = 0
        self._sizes: dict[Memory, int] = {}  # of the pages of what was allocated
        # By address; replaced as a whole, as queues may run in another thread meanwhile.
        self._ranges: tuple[list[int], list[Memory]] = ([], [])

    def allocate(self, size: int, kind: MemoryKind) -> Memory:
        """As `MemoryPort.allocate`; the contents are stale, and VRAM has no window."""
        whole = align_up(size, hostmem.page_size)
        if self.used + whole > self.capacity:
            raise OutOfMemory(
                f"{size} bytes of {kind.value}: {self.used} of {self.capacity} are in use"
            )
        address = hostmem.map_anonymous(whole)
        hostmem.dontfork(address, whole)
        self.used += whole
        ctypes.memset(address, _STALE, whole)
        window = None if kind is MemoryKind.VRAM else MemoryWindow(address, size)
        memory = Memory(GpuVA(address), size, kind, window)
        self._sizes[memory] = whole
        self._insert(memory)
        return memory

    def free(self, memory: Memory) -> None:
        """As `MemoryPort.free`."""
        self._remove(memory)
        whole = self._sizes.pop(memory, 0)
        if whole:
            self.used -= whole
            hostmem.unmap(memory.address, whole)

    def map_host(self, address: int, size: int) -> Memory:
        """As `MemoryPort.map_host`."""
        window = MemoryWindow(address, size)
        memory = Memory(GpuVA(address), size, MemoryKind.SYSTEM, window)
        self._insert(memory)
        return memory

    def map_peer(self, memory: Memory, owner: MemoryPort) -> None:
        """As `MemoryPort.map_peer`."""
        if not isinstance(owner, HostMemory):
            raise Unsupported("a host device maps memory of host devices only")
        self._insert(memory)
        if owner.machine is not self.machine:
            owner.machine += self.machine
            for port in self.machine:
                port.memory.machine = owner.machine

    def unmap_peer(self, memory: Memory) -> None:
        """As `MemoryPort.unmap_peer`."""
        self._remove(memory)

    def _insert(self, memory: Memory) -> None:
        self._set([*self._ranges[1], memory])

    def _remove(self, memory: Memory) -> None:
        self._set([other for other in self._ranges[1] if other is not memory])

    def _set(self, memories: list[Memory]) -> None:
        memories.sort(key=lambda memory: memory.address)
        self._ranges = ([memory.address for memory in memories], memories)

    def view(self, address: int, size: int) -> memoryview:
        """Bytes at an address. Raises `GpuFault` unless all are of one allocation."""
        starts, memories = self._ranges
        index = bisect_right(starts, address) - 1
        if index >= 0:
            memory = memories[index]
            if address + size <= memory.address + memory.size:
                return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")
        raise GpuFault(f"{size} bytes at {address:#x} are not mapped", address)

    def word(self, address: int, width: int) -> int:
        """One aligned load, as of a polled word."""
        self.view(address, width)
        return MemoryWindow(address, width).read(0, width)

    def store(self, address: int, width: int, value: int) -> None:
        """One aligned store of the low bytes of a value."""
        self.view(address, width)
        MemoryWindow(address, width).write(0, width, value & ((1 << 8 * width) - 1))


class HostQueue:
    """A `QueuePort`, and what runs behind it."""

    def __init__(self, port: HostPort, ring_size: int):
        self.encoder = HostEncoder()
        self.ring_size = ring_size
        self.ring_align = 8
        self.command_memory = MemoryKind.SYSTEM
        self._port = port
        self._ring = port.memory.allocate(ring_size, MemoryKind.SYSTEM)
        self._words = port.memory.allocate(16, MemoryKind.SYSTEM)  # put pointer, doorbell
        for offset in (0, 8):
            port.memory.store(self._words.address + offset, 8, 0)
        put, doorbell = self._words.address, self._words.address + 8
        self.publish = HostRing(self._ring.address, ring_size, put, 8, 8, doorbell, 8).publisher()
        self._get = 0  # bytes fetched
        self._todo: deque[Record] = deque()

    def close(self) -> None:
        """Free the ring."""
        self._port.memory.free(self._ring)
        self._port.memory.free(self._words)

    def step(self, rng: random.Random) -> bool:
        """Run the next record. False when there is none, or it waits."""
        put = self._port.memory.word(self._words.address + 8, 8) * 8
        if self._get != put and (not self._todo or rng.random() < 0.5):
            self._fetch(put, ahead=rng.random() < 0.5)
        if not self._todo:
            return False
        record = self._todo[0]
        if record.op is Op.CALL:
            self._todo.popleft()
            self._todo.extendleft(reversed(self._called(record)))
            return True
        if not self._port.execute(record):
            return False
        self._todo.popleft()
        return True

    def _fetch(self, put: int, ahead: bool) -> None:
        """Read all that is published; what it calls too when reading ``ahead``."""
        start, size = self._get % self.ring_size, put - self._get
        first = min(size, self.ring_size - start)
        ring = self._ring.address
        data = bytes(self._port.memory.view(ring + start, first))
        data += bytes(self._port.memory.view(ring, size - first)) if size > first else b""
        for record in decode(data):
            self._todo.extend(self._called(record) if ahead and record.op is Op.CALL else [record])
        self._get = put

    def _called(self, record: Record) -> list[Record]:
        target, size = record.operands
        return decode(bytes(self._port.memory.view(target, size)))


class HostPort:
    """The `DevicePort` of host devices, which is its own `Waiter`."""

    spin_ns: int = 0
    _lock = threading.RLock()  # of all: those that share memory run together
    _ran = 0  # records, and how many of them each thread has seen

    def __init__(
        self,
        seed: int = 0,
        *,
        signal_bits: int = 64,
        compute: int = 2,
        copy: int = 2,
        ring_size: int = 1 << 16,
        capacity: int = 1 << 30,
    ):
        self.name = "HOST"
        self.memory = HostMemory(capacity)
        self.memory.machine.append(self)
        self.signal_bits = signal_bits
        self.clock_hz = 1e9 / _TICK_NS
        self.waiter = self
        self._rng = random.Random(seed)
        self._now = 0
        self._seen = threading.local()
        self._fault: GpuFault | None = None
        self._kernels: list[HostKernel] = []
        counts = {"compute": compute, "copy": copy}
        self.queue_counts: Mapping[str, int] = {kind: n for kind, n in counts.items() if n}
        self._ring_size = ring_size
        self._queues: list[HostQueue] = []

    def open_queue(self, kind: str, index: int) -> HostQueue:
        """As `DevicePort.open_queue`; all kinds are alike."""
        self._queues.append(HostQueue(self, self._ring_size))
        return self._queues[-1]

    def kernel(self, run: Callable[..., None], layout: ArgumentLayout) -> HostKernel:
        """A program: the ``info`` of an `HCQProgram` with the same layout; see `HostKernel`."""
        self._kernels.append(HostKernel(len(self._kernels), run, layout))
        return self._kernels[-1]

    def now_ns(self) -> int:
        """Virtual time."""
        return self._now

    def idle(self, timeout_ns: int) -> None:
        """Run a few records; `HwTimeout` when all queues are empty, waiting or stopped.

        Not if anything ran since this thread idled last: then it may see what it waits for.
        """
        with self._lock:
            for _ in range(self._rng.randint(1, 8)):
                if not self._step_any():
                    break
                HostPort._ran += 1
            if HostPort._ran == getattr(self._seen, "ran", None):
                raise HwTimeout("host device", None, "anything to run", 0)
            self._seen.ran = HostPort._ran

    def skip(self, time_ns: int) -> None:
        """Let time pass without running anything."""
        self._now += time_ns

    def _step_any(self) -> bool:
        """Run one record of any device that this one may wait for. False when none can."""
        machine = self.memory.machine
        first = self._rng.randrange(len(machine)) if len(machine) > 1 else 0
        return any(port.step() for port in (*machine[first:], *machine[:first]))

    def step(self) -> bool:
        """Run one record of a queue that can go on. False when none can."""
        queues = list(self._queues)
        self._rng.shuffle(queues)
        self._now += _STEP_NS
        try:
            return self._fault is None and any(queue.step(self._rng) for queue in queues)
        except (GpuFault, InvalidValue) as error:  # an address, or words that are no record
            self._fault = error if isinstance(error, GpuFault) else GpuFault(str(error))
            HostPort._ran += 1
            return False

    def clock(self) -> int:
        """Ticks of `clock_hz`, which do not begin at 0."""
        return _CLOCK_START + self._now // _TICK_NS

    def check(self) -> None:
        """Raise the fault that stopped the device."""
        if self._fault is not None:
            raise self._fault

    def close(self) -> None:
        """Free the rings; all other memory has been freed."""
        self.memory.machine.remove(self)
        for queue in self._queues:
            queue.close()

    def execute(self, record: Record) -> bool:
        """Do what a record asks. False while it has to wait."""
        memory, operands = self.memory, record.operands
        match record.op:
            case Op.LAUNCH:
                self._launch(*operands)
            case Op.COPY:
                dst, src, size = operands
                memory.view(dst, size)[:] = memory.view(src, size)
            case Op.SIGNAL:
                memory.store(operands[0], self.signal_bits // 8, operands[1])
            case Op.WAIT:
                return memory.word(operands[0], self.signal_bits // 8) >= operands[1]
            case Op.TIMESTAMP:
                memory.store(operands[0] + TIMESTAMP, 8, self.clock())
            case Op.WRITE:
                address, size, *words = operands
                data = struct.pack(f"<{len(words)}Q", *words)
                memory.view(address, size)[:] = data[:size]
            case Op.POLL:
                address, value, mask, op = operands
                return compares(op, memory.word(address, 4) & mask, value)
            case _:  # NOP and BARRIER; a call is the queue's matter
                pass
        return True

    def _launch(self, number: int, arguments: int, *sizes: int) -> None:
        kernel = self._kernels[number]
        layout = kernel.layout
        data = self.memory.view(arguments, layout.size) if layout.size else b""
        kernel.run(self.memory, sizes[:3], sizes[3:], *layout.unpack(data))

"""A GPU behind the stand-in for the nvidia kernel modules: it executes what channels are given.

It runs when the host idles: the doorbell names a channel, whose ring entries are fetched and their
methods executed, with semaphores, copies and launches. Offsets and bits are those of clc86f.h,
clcbc0.h, clcbc0qmd.h and clc8b5.h, written down here once more. What is not right is a fault: the
channel's notifier gets a number, and the channel does no more.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Sequence

from gpu.core.ref import Argument, Block, Ref
from unit.hw_acceptance.fake_programs import PROGRAMS, Launched
from unit.nv.fake_kernel import FakeKernel
from unit.nv.fake_uvm import Object

GR_EXCEPTION, MMU_FAULT, PBDMA_ERROR, CLASS_ERROR = 13, 31, 32, 69
RELEASE, ACQUIRES = 1, (0, 2, 3, 4, 5)


class Fault(Exception):
    """Ends a channel; the number is what its notifier gets."""

    def __init__(self, number: int, why: str):
        super().__init__(why)
        self.number = number


class FakeGpu(FakeKernel):
    """The kernel driver with an H200 of a single GPC behind it.

    ``deaf`` leaves doorbells unanswered; ``refused_actions`` are launches that do nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gpc_tpcs = {0: 0x1}
        self.time = 1_000_000_000
        self.deaf = False
        self.refused_actions: set[int] = set()
        self.faults: list[str] = []
        self.launches: list[Launched] = []
        self._page = 0
        self._host: dict[int, int] = {}
        self._device: dict[int, bytearray] = {}
        self._asked: dict[int, int] = {}
        self._engines: dict[int, Engine] = {}
        self._addresses: dict[int, int] = {}
        self._lock = threading.RLock()

    # What the kernel's half tells.

    def _map(self, memory: ctypes.Array[ctypes.c_char], blocks: Sequence[Block]) -> int:
        (self._asked[struct.unpack_from("<i", memory, 48)[0]],) = struct.unpack_from("<8xI", memory)
        return super()._map(memory, blocks)

    def mmap(
        self, fd: int, size: int, prot: int, flags: int, offset: int = 0, address: int = 0
    ) -> int:
        with self._lock:
            found = super().mmap(fd, size, prot, flags, offset, address)
            if fd != -1:
                handle = self._asked.pop(fd)
                self._host[found] = size
                if self.objects[handle].class_id == 0xC661:
                    self._page = found
                    ctypes.memset(found, 0, size)
                    self._show_time()
            return found

    def ioctl(self, fd: int, request: int, argument: Argument, refs: Sequence[Ref] = ()) -> int:
        with self._lock:
            return super().ioctl(fd, request, argument, refs)

    def munmap(self, address: int, size: int) -> None:
        with self._lock:
            super().munmap(address, size)
            self._host.pop(address, None)
            if address == self._page:
                self._page = 0

    # Memory, by the GPU's addresses, which are the host's.

    def _place(self, address: int, size: int) -> Callable[[], memoryview]:
        if not self.is_mapped(address, size):
            raise Fault(MMU_FAULT, f"{size} bytes at {address:#x} are not mapped")
        for base, length in self._host.items():
            if base <= address and address + size <= base + length:
                return lambda: memoryview((ctypes.c_char * size).from_address(address)).cast("B")
        for base, length in self.mapped.items():
            if base <= address and address + size <= base + length:
                kept = self._device.setdefault(base, bytearray(length))
                return lambda: memoryview(kept)[address - base : address - base + size]
        raise Fault(MMU_FAULT, f"{size} bytes at {address:#x}")

    def load(self, address: int, size: int) -> bytes:
        return bytes(self._place(address, size)())

    def store(self, address: int, data: bytes) -> None:
        self._place(address, len(data))()[:] = data

    # Running.

    def _show_time(self) -> None:
        struct.pack_into("<II", self._view(0x80, 8), 0, self.time & 0xFFFF_FFFF, self.time >> 32)

    def _view(self, offset: int, size: int) -> memoryview:
        return memoryview((ctypes.c_char * size).from_address(self._page + offset)).cast("B")

    def run(self) -> None:
        """Answers the doorbell; a thread may call it while the driver works."""
        with self._lock:
            if self._page:
                self._show_time()
                self._look()
                self._show_time()

    def _look(self) -> None:
        token = struct.unpack("<I", self._view(0x90, 4))[0]
        if not token or self.deaf:
            return
        self._view(0x90, 4)[:] = bytes(4)
        for handle, channel in self.objects.items():
            if channel.class_id == 0xC86F and 0x10000 | handle & 0xFFF == token:
                assert channel.parent in self.scheduled, "the doorbell of a channel not scheduled"
                self._fetch(handle, channel)
                return
        raise AssertionError(f"no channel has the token {token:#x}")

    def _fetch(self, handle: int, channel: Object) -> None:
        engine = self._engines.setdefault(handle, Engine(self))
        if engine.dead:
            return
        ring, entries = struct.unpack_from("<QI", channel.params, 8)
        userd = ring + struct.unpack_from("<Q", channel.params, 64)[0]
        get, put = struct.unpack("<II", self.load(userd + 0x88, 8))
        assert put < entries
        try:
            while get != put:
                entry = struct.unpack("<Q", self.load(ring + 8 * get, 8))[0]
                address, words = entry & 0xFF_FFFF_FFFC, entry >> 42 & 0x1F_FFFF
                engine.execute(struct.unpack(f"<{words}I", self.load(address, 4 * words)))
                get = (get + 1) % entries
                self.store(userd + 0x88, struct.pack("<I", get))
        except Fault as fault:
            engine.dead = True
            self.faults.append(str(fault))
            error = struct.unpack_from("<I", channel.params)[0]
            self._notify(error, fault.number)

    def _notify(self, memory: int, number: int) -> None:
        """Writes the notifier: the object's address is that at which UVM last mapped it."""
        self.store(self._addresses[memory], struct.pack("<QIHH", self.time, number, 0, 0xFFFF))

    def _uvm_range(self, request: int, memory: ctypes.Array[ctypes.c_char]) -> int:
        status = super()._uvm_range(request, memory)
        base = struct.unpack_from("<Q", memory)[0]
        if request == 33:
            handle = struct.unpack_from("<I", memory, 9256)[0]
            self._addresses[handle] = base
        elif request == 34:
            self._device.pop(base, None)
        return status


class Engine:
    """The state of one channel."""

    def __init__(self, gpu: FakeGpu):
        self.gpu = gpu
        self.dead = False
        self.classes: dict[int, int] = {}
        self.registers: dict[tuple[int, int], int] = {}

    def execute(self, words: Sequence[int]) -> None:
        at = 0
        while at < len(words):
            header = words[at]
            opcode, count, subchannel = header >> 29, header >> 16 & 0x1FFF, header >> 13 & 7
            address = (header & 0xFFF) << 2
            if opcode == 4:
                self._method(subchannel, address, count)
                at += 1
                continue
            if opcode not in (1, 3, 5):
                raise Fault(PBDMA_ERROR, f"header {header:#x}")
            for index in range(count):
                step = {1: index, 3: 0, 5: min(index, 1)}[opcode]
                self._method(subchannel, address + 4 * step, words[at + 1 + index])
            at += 1 + count

    def _method(self, subchannel: int, address: int, data: int) -> None:
        self.gpu.time += 100
        if address == 0:
            if data not in self.gpu.classes:
                raise Fault(CLASS_ERROR, f"SET_OBJECT of {data:#x}")
            self.classes[subchannel] = data
            return
        if address < 0x100:
            self.registers[-1, address] = data
            if address == 0x6C:
                self._semaphore(data)
            return
        class_id = self.classes.get(subchannel)
        if class_id is None:
            raise Fault(CLASS_ERROR, f"method {address:#x} of subchannel {subchannel}")
        self.registers[class_id, address] = data
        if (class_id, address) == (0xCBC0, 0x2C0):
            self._launch(data & 0xF)
        elif (class_id, address) == (0xC8B5, 0x300):
            self._copy(data)

    def _pair(self, class_id: int, high: int, low: int) -> int:
        return self.registers.get((class_id, high), 0) << 32 | self.registers.get(
            (class_id, low), 0
        )

    def _semaphore(self, execute: int) -> None:
        address, operation = self._pair(-1, 0x60, 0x5C), execute & 7
        size = 8 if execute >> 24 & 1 else 4
        payload = self._pair(-1, 0x68, 0x64) & ((1 << 8 * size) - 1)
        if operation == RELEASE:
            self.release(address, payload, size, bool(execute >> 25 & 1))
            return
        held = int.from_bytes(self.gpu.load(address, size), "little")
        passes = {0: held == payload, 2: held >= payload, 3: held >= payload, 4: held & payload}
        if operation not in ACQUIRES or not passes.get(operation, ~(held | payload)):
            raise Fault(PBDMA_ERROR, f"acquire {operation} of {held:#x} by {payload:#x} is stuck")

    def release(self, address: int, payload: int, size: int, timestamp: bool) -> None:
        if address % (16 if timestamp else size):
            raise Fault(PBDMA_ERROR, f"semaphore at {address:#x}")
        if timestamp:
            self.gpu.store(address + 8, struct.pack("<Q", self.gpu.time))
        self.gpu.store(address, payload.to_bytes(size, "little"))

    def _copy(self, launch: int) -> None:
        if launch & 3:
            source, target = self._pair(0xC8B5, 0x400, 0x404), self._pair(0xC8B5, 0x408, 0x40C)
            length, lines = self.registers[0xC8B5, 0x418], self.registers[0xC8B5, 0x41C]
            assert lines == 1 and launch >> 7 & 3 == 3 and length
            if launch >> 10 & 1:
                width = (self.registers[0xC8B5, 0x708] >> 16 & 3) + 1
                pixel = self.registers[0xC8B5, 0x700].to_bytes(4, "little")[:width]
                self.gpu.store(target, pixel * length)
            else:
                self.gpu.store(target, self.gpu.load(source, length))
        if kind := launch >> 3 & 3:
            size = 8 if launch >> 27 & 1 else 4
            payload = self._pair(0xC8B5, 0x24C, 0x248) & ((1 << 8 * size) - 1)
            assert launch >> 2 & 1, "the semaphore is written before what was copied is visible"
            self.release(self._pair(0xC8B5, 0x240, 0x244), payload, size, kind == 2)

    def _launch(self, action: int) -> None:
        if action in self.gpu.refused_actions:
            return
        for window in (0x2A0, 0x7B0):
            if not self._pair(0xCBC0, window, window + 4):
                raise Fault(GR_EXCEPTION, f"no window at {window:#x}")
        launched = Launched(self.gpu, self.registers[0xCBC0, 0x2B4] << 8)
        if launched.field(583, 580) != 4 or not launched.program % 128 == 0:
            raise Fault(GR_EXCEPTION, "this is no launch descriptor of version 4")
        if launched.local and not self._pair(0xCBC0, 0x790, 0x794):
            raise Fault(GR_EXCEPTION, "no local memory")
        name = self.gpu.load(launched.program, 16).rstrip(b"\0").decode()
        self.gpu.launches.append(launched)
        PROGRAMS[name](launched)
        for index in range(3):
            if launched.field(320 + 16 * index, 320 + 16 * index):
                low, high = 640 + 128 * index, 696 + 128 * index
                address = launched.field(high, low)
                payload = launched.field(low + 127, low + 64)
                words = launched.field(322 + 16 * index, 321 + 16 * index)
                self.release(address, payload, 4 if words == 1 else 8, not words)


class FakeTime:
    """The waiter of its world: time goes when the host idles, and then the GPU works."""

    spin_ns = 0

    def __init__(self, gpu: FakeGpu):
        self.gpu = gpu

    def now_ns(self) -> int:
        return self.gpu.time

    def idle(self, timeout_ns: int) -> None:
        self.gpu.time += timeout_ns
        self.gpu.run()

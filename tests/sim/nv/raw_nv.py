"""A tiny user of the NVIDIA kernel driver for tests: raw calls and hand-packed methods.

Offsets and bit positions are written down here a third time, from the appendices of the public
headers' dossier, so that neither a mistake of the model nor one of a driver can hide behind them.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

import pytest

from gpu.core import hostmem
from gpu.core.errors import TransportError
from gpu.core.ref import Ref
from gpu.core.window import MemoryWindow
from gpu.sim.nv.world import NvSimWorld
from gpu.sim.process import SimProcess
from gpu.transport.os import Os
from sim.nv.numbers import (
    ALLOC,
    CHANNEL,
    COMPUTE,
    CONTROL,
    COPY,
    DEVICE,
    FREE,
    GRAPHICS,
    GROUP,
    MAP,
    OK,
    SHARE,
    SUBDEVICE,
    SYSMEM,
    UNMAP,
    USERMODE,
    VASPACE,
    VIDMEM,
)

PAGE = 4096
MIB = 1 << 20
FIRST_VA = 0x2_0000_0000  # of what the CPU does not see
# Of what both see: below 1 << 40, never used twice, beyond what a dozen open drivers take.
_HOST_VAS = count(12 << 36, 64 * MIB)
READ_WRITE = hostmem.PROT_READ | hostmem.PROT_WRITE
FIXED = hostmem.MAP_SHARED | hostmem.MAP_FIXED_NOREPLACE


def pack(size: int, *fields: tuple[str, int, object]) -> bytearray:
    """A structure of a size, with (format, offset, value) for each field."""
    data = bytearray(size)
    for form, offset, value in fields:
        struct.pack_into("<" + form, data, offset, value)
    return data


@contextmanager
def fails(number: int) -> Iterator[None]:
    """The block must fail with this errno."""
    with pytest.raises(TransportError) as caught:
        yield
    assert caught.value.errno == number, f"errno {caught.value.errno}: {caught.value}"


@dataclass
class Buffer:
    """Memory, with its handle; `va` is where the GPU and, if mapped, the CPU see it."""

    handle: int
    size: int
    va: int = 0
    host_window: MemoryWindow | None = None

    @property
    def host(self) -> MemoryWindow:
        assert self.host_window, "not mapped for the CPU"
        return self.host_window


@dataclass
class Ring:
    """A channel as a user sees it."""

    user: RawNv
    handle: int
    memory: Buffer
    entries: int
    token: int = 0
    put: int = 0
    at: int = 0

    PUSH = 64 << 10  # pushbuffers begin here in `memory`, after ring, USERD and notifiers
    USERD = 32 << 10
    NOTIFIER = 48 << 10

    def write_entry(self, entry: int) -> None:
        self.memory.host.write(8 * self.put, 8, entry)
        self.put = (self.put + 1) % self.entries

    def publish(self, put: int | None = None) -> None:
        self.memory.host.write(self.USERD + 0x8C, 4, self.put if put is None else put)

    def kick(self) -> None:
        self.publish()
        self.user.doorbell(self.token)

    def entry(self, words: Sequence[int]) -> int:
        offset = self.PUSH + self.at
        self.memory.host.store(offset, struct.pack(f"<{len(words)}I", *words))
        self.at += 4 * len(words)
        return self.memory.va + offset | len(words) << 42

    def submit(self, *words: int) -> None:
        self.write_entry(self.entry(words))
        self.kick()

    def error(self) -> tuple[int, int, int]:
        """(number, engine, status) of the error notifier."""
        info32, info16, status = struct.unpack("<IHH", self.memory.host.load(self.NOTIFIER + 8, 8))
        return info32, info16, status

    @property
    def get(self) -> int:
        return self.memory.host.read(self.USERD + 0x88, 4)


@dataclass
class RawNv:
    """One process with the driver open, up to a step: "client", "objects", "memory", "channel"."""

    process: SimProcess
    upto: str = "channel"
    gpu_index: int = 0
    rings: list[Ring] = field(default_factory=list)
    through: Os | None = None  # in place of the process's own
    shared: RawNv | None = None  # whose file of UVM it uses, too

    def __post_init__(self) -> None:
        self.os: Os = self.through or self.process.os
        self.world: NvSimWorld = self.process.world  # type: ignore[assignment]
        self.gpu = self.world.gpus[self.gpu_index]
        self.chip = self.gpu.chip.name
        self.open_driver()

    def open_driver(self) -> None:
        """Everything up to the step."""
        self.next_va = FIRST_VA + (self.gpu_index << 35)
        self.ctl = self.os.open("/dev/nvidiactl", os.O_RDWR)
        self.client = self.alloc(0x41, root=0, parent=0)
        if self.upto != "client":
            self._open_objects()
        if self.upto in ("memory", "channel"):
            self._open_memory()
        if self.upto == "channel":
            self.ring = self.open_ring()

    def _open_objects(self) -> None:
        self.dev = self.open_card()
        self.device = self.alloc(
            DEVICE, pack(56, ("I", 0, self.gpu_index), ("I", 4, self.client)), parent=self.client
        )
        self.subdevice = self.alloc(SUBDEVICE, bytearray(4), parent=self.device)
        self.usermode = self.alloc(USERMODE[self.chip], parent=self.subdevice)
        fd = self.open_card()
        assert self.map_raw(self.usermode, 0x10000, fd) == OK
        address = self.os.mmap(fd, 0x10000, READ_WRITE, hostmem.MAP_SHARED)
        self.doorbell_page = MemoryWindow(address, 0x10000)

    def _open_memory(self) -> None:
        self.vaspace = self.alloc(VASPACE, pack(56, ("I", 4, 1 << 3 | 1 << 6)), parent=self.device)
        if self.shared:
            self.uvm, self.uvm_mm = self.shared.uvm, self.shared.uvm_mm
        else:
            self.uvm = self.os.open("/dev/nvidia-uvm", os.O_RDWR)
            self.uvm_mm = self.os.open("/dev/nvidia-uvm", os.O_RDWR)
            assert self.uvm_call(0x30000001, bytearray(16), 8) == OK
            assert self.uvm_call(75, pack(8, ("i", 0, self.uvm)), 4, self.uvm_mm) == OK
        self.uuid = self.get_uuid()
        assert self.register_gpu(self.uuid) == OK
        assert self.register_vaspace(self.vaspace) == OK

    # Escapes.

    def escape(
        self, number: int, data: bytearray, fd: int | None = None, refs: Sequence[Ref] = ()
    ) -> None:
        request = 3 << 30 | len(data) << 16 | 0x46 << 8 | number
        self.os.ioctl(self.ctl if fd is None else fd, request, data, refs)

    def open_card(self, register: bool = True) -> int:
        fd = self.os.open(f"/dev/nvidia{self.gpu_index}", os.O_RDWR)
        if register:
            self.escape(201, pack(4, ("i", 0, self.ctl)), fd)
        return fd

    def try_alloc(
        self,
        number: int,
        params: bytearray | None = None,
        *,
        parent: int,
        root: int | None = None,
        handle: int = 0,
        short: bool = False,
        fd: int | None = None,
    ) -> tuple[int, int]:
        """(status, handle) of RM_ALLOC; `short` takes NVOS21."""
        place = (ctypes.c_char * len(params)).from_buffer(params) if params is not None else None
        address = ctypes.addressof(place) if place is not None else 0
        owner = self.client if root is None else root
        data = pack(32 if short else 48, ("I", 0, owner), ("I", 4, parent), ("I", 8, handle))
        struct.pack_into("<IQ", data, 12, number, 0)
        struct.pack_into("<Q", data, 16, address)
        self.escape(ALLOC, data, fd, [Ref(16, len(params))] if params else [])
        status = struct.unpack_from("<I", data, 28 if short else 40)[0]
        return status, struct.unpack_from("<I", data, 8)[0]

    def alloc(self, number: int, params: bytearray | None = None, **how: int) -> int:
        status, handle = self.try_alloc(number, params, **how)  # type: ignore[arg-type]
        assert status == OK, f"class {number:#x}: status {status:#x}"
        return handle

    def free(self, handle: int, client: int | None = None) -> int:
        owner = self.client if client is None else client
        data = pack(16, ("I", 0, owner), ("I", 8, handle))
        self.escape(FREE, data)
        return struct.unpack_from("<I", data, 12)[0]

    def control(self, target: int, command: int, params: bytearray, size: int | None = None) -> int:
        place = (ctypes.c_char * max(len(params), 1)).from_buffer(params or bytearray(1))
        data = pack(
            32,
            *(("I", 0, self.client), ("I", 4, target), ("I", 8, command)),
            *(("Q", 16, ctypes.addressof(place) if params else 0),),
            ("I", 24, len(params) if size is None else size),
        )
        self.escape(CONTROL, data, refs=[Ref(16, len(params))] if params else [])
        return struct.unpack_from("<I", data, 28)[0]

    def map_raw(self, handle: int, length: int, fd: int, *, offset: int = 0, flags: int = 0) -> int:
        data = pack(
            56,
            *(("I", 0, self.client), ("I", 4, self.device), ("I", 8, handle)),
            *(("Q", 16, offset), ("Q", 24, length), ("I", 44, flags), ("i", 48, fd)),
        )
        self.escape(MAP, data)
        self.linear = struct.unpack_from("<Q", data, 32)[0]
        return struct.unpack_from("<I", data, 40)[0]

    def unmap_raw(self, handle: int, linear: int) -> int:
        data = pack(
            32,
            *(("I", 0, self.client), ("I", 4, self.device), ("I", 8, handle)),
            ("Q", 16, linear),
        )
        self.escape(UNMAP, data)
        return struct.unpack_from("<I", data, 24)[0]

    def get_uuid(self) -> bytes:
        params = pack(268, ("I", 4, 2), ("I", 8, 16))
        assert self.control(self.subdevice, 0x2080014A, params) == OK
        return bytes(params[12:28])

    # UVM.

    def uvm_call(self, number: int, data: bytearray, status_at: int, fd: int | None = None) -> int:
        self.os.ioctl(self.uvm if fd is None else fd, number, data)
        return struct.unpack_from("<I", data, status_at)[0]

    def register_gpu(self, uuid: bytes) -> int:
        return self.uvm_call(37, bytearray(uuid) + bytearray(24), 36)

    def unregister_gpu(self, uuid: bytes) -> int:
        return self.uvm_call(38, bytearray(uuid) + bytearray(4), 16)

    def enable_peers(self, first: bytes, second: bytes) -> int:
        return self.uvm_call(29, bytearray(first + second) + bytearray(4), 32)

    def disable_peers(self, first: bytes, second: bytes) -> int:
        return self.uvm_call(30, bytearray(first + second) + bytearray(4), 32)

    def register_vaspace(self, vaspace: int) -> int:
        data = bytearray(self.uuid) + pack(16, ("i", 0, self.ctl), ("I", 4, self.client))
        struct.pack_into("<I", data, 24, vaspace)
        return self.uvm_call(25, data, 28)

    def register_channel(self, channel: int, base: int, length: int) -> int:
        data = bytearray(self.uuid) + pack(40, ("i", 0, self.ctl), ("I", 4, self.client))
        struct.pack_into("<IIQQ", data, 24, channel, 0, base, length)
        return self.uvm_call(27, data, 48)

    def create_range(self, base: int, length: int) -> int:
        return self.uvm_call(73, pack(24, ("Q", 0, base), ("Q", 8, length)), 16)

    def free_range(self, base: int, length: int) -> int:
        return self.uvm_call(34, pack(24, ("Q", 0, base), ("Q", 8, length)), 16)

    def map_range(
        self,
        base: int,
        length: int,
        memory: int,
        *,
        offset: int = 0,
        kind: int = 1,
        count: int | None = None,
        uuids: Sequence[bytes] = (),
    ) -> int:
        """Maps on this GPU, or on those of `uuids`; `count` is what the call says instead."""
        data = pack(9264, ("Q", 0, base), ("Q", 8, length), ("Q", 16, offset))
        named = uuids or [self.uuid]
        for i, uuid in enumerate(named):
            data[24 + 36 * i : 40 + 36 * i] = uuid
            struct.pack_into("<I", data, 40 + 36 * i, kind)
        many = len(named) if count is None else count
        struct.pack_into("<QiII", data, 9240, many, self.ctl, self.client, memory)
        return self.uvm_call(33, data, 9260)

    # Memory that both sides see.

    def memory_params(self, size: int, local: bool, attr: int = 0) -> bytearray:
        location = 0 if local else 1 << 25
        return pack(
            128,
            *(("I", 0, self.client), ("I", 24, attr | location | 1 << 29), ("Q", 64, size)),
        )

    def buffer(self, size: int = PAGE, *, local: bool = False, cpu: bool = True) -> Buffer:
        """Memory at an address of its own, for the GPU and the CPU."""
        number = VIDMEM if local else SYSMEM
        handle = self.alloc(number, self.memory_params(size, local), parent=self.device)
        buffer = Buffer(handle, size)
        buffer.va = next(_HOST_VAS) if cpu else self.new_va(size)
        if cpu:
            fd = self.open_card() if local else self.os.open("/dev/nvidiactl", os.O_RDWR)
            assert self.map_raw(handle, size, fd) == OK
            address = self.os.mmap(fd, size, READ_WRITE, FIXED, 0, buffer.va)
            buffer.host_window = MemoryWindow(address, size)
        assert self.create_range(buffer.va, size) == OK
        assert self.map_range(buffer.va, size, handle) == OK
        return buffer

    def new_va(self, size: int) -> int:
        va, self.next_va = self.next_va, self.next_va + (size + 4 * MIB & ~(2 * MIB - 1))
        return va

    # Channels.

    def group(self, engine: int = GRAPHICS) -> int:
        return self.alloc(GROUP, pack(20, ("I", 12, engine)), parent=self.device)

    def share(self, group: int) -> int:
        return self.alloc(SHARE, pack(12, ("I", 0, self.vaspace), ("I", 4, 1)), parent=group)

    def channel_params(self, share: int, memory: Buffer, entries: int = 64) -> bytearray:
        return pack(
            368,
            *(("I", 0, memory.handle), ("I", 4, 0), ("Q", 8, memory.va), ("I", 16, entries)),
            *(("I", 24, share), ("I", 32, memory.handle), ("Q", 64, Ring.USERD)),
        )

    def open_ring(
        self,
        *,
        engine: int = GRAPHICS,
        objects: Sequence[str] = ("compute", "copy"),
        register: bool = True,
        schedule: bool = True,
        entries: int = 64,
    ) -> Ring:
        """A channel in a group of its own, ready to run."""
        group = self.group(engine)
        share = self.share(group)
        memory = self.buffer(256 << 10, local=True)
        error = self.buffer(PAGE)
        params = self.channel_params(share, memory, entries)
        struct.pack_into("<I", params, 0, error.handle)
        number = CHANNEL[self.chip]
        ring = Ring(self, self.alloc(number, params, parent=group), memory, entries)
        ring.error = lambda: struct.unpack("<IHH", error.host.load(8, 8))  # type: ignore[method-assign]
        self.objects = {}
        for name in objects:
            number = {"compute": COMPUTE, "copy": COPY}[name][self.chip]
            params = bytearray(16) if name == "compute" else bytearray(8)
            self.objects[name] = self.alloc(number, params, parent=ring.handle)
        token = bytearray(4)
        assert self.control(ring.handle, 0xC36F0108, token) == OK
        ring.token = struct.unpack("<I", token)[0]
        if register:
            assert self.register_channel(ring.handle, self.new_va(256 * MIB), 256 * MIB) == OK
        if schedule:
            assert self.control(group, 0xA06C0101, bytearray(b"\1\0\0")) == OK
        self.last_group, self.last_share = group, share
        self.rings.append(ring)
        return ring

    def doorbell(self, token: int) -> None:
        self.doorbell_page.write(0x90, 4, token)

    def run(self) -> None:
        self.world.run_until_idle()

    @property
    def violations(self) -> list[str]:
        return self.world.debug.violations

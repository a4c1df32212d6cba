"""A small stand-in for the nvidia kernel modules: an `Os` that keeps their books.

It reads arguments by the offsets of driver 580.142 as written down here once more, checks what the
open sequence depends on, and counts what is still held. `fail` makes one call go wrong.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Sequence

from gpu.core import hostmem
from gpu.core.errors import TransportError
from gpu.core.ref import Argument, Block, Ref, argument_memory, follow
from unit.nv.fake_uvm import (
    BAD_STATE,
    CTL,
    INVALID_ADDRESS,
    INVALID_ARGUMENT,
    NO_OBJECT,
    OK,
    UVM,
    FakeUvm,
    Object,
)

CARD = "/dev/nvidia3"
VERSION = "/proc/driver/nvidia/version"
VERSION_TEXT = (
    b"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  %s  Release Build  (root)\n"
)
UUID = bytes(range(0xA0, 0xB0))
GPU_ID = 0x0F00
HOPPER_CLASSES = (0x41, 0x80, 0x2080, 0xC661, 0xC561, 0xC86F, 0xC56F, 0xCB97, 0xCBC0, 0xC8B5)

INVALID_CLASS, BAD_HANDLE, BAD_PARENT, NOT_SUPPORTED = 0x22, 0x33, 0x36, 0x56

PARENTS = {
    0x80: {0x41},
    0x2080: {0x80},
    0xC661: {0x2080},
    0xC561: {0x2080},
    0x90F1: {0x80, 0x2080},
    0xA06C: {0x80},
    0x9067: {0xA06C},
    0xC86F: {0x80, 0xA06C},
    0xC56F: {0x80, 0xA06C},
    0xCBC0: {0xC86F},
    0xC7C0: {0xC56F},
    0xC8B5: {0xC86F},
    0xC7B5: {0xC56F},
    0x3E: {0x80},
    0x40: {0x80, 0x2080},
    0x71: {0x80},
    0x83DE: {0x80},
}
CONTROL_SIZES = {
    0x101: 40,
    0x205: 32,
    0x800201: 16,
    0x2080014A: 268,
    0x20801201: 32,
    0x2080122A: 24,
    0x2080122B: 24,
    0x20802A02: 8,
    0x83DE030C: 4824,
    0x83DE0328: 72,
    0x20802A03: 8,
    0xA06C0101: 3,
    0xC36F0108: 4,
}


class FakeKernel(FakeUvm):
    """One H200-like GPU at minor 3; see the module."""

    def __init__(self, version: bytes = b"580.142", classes: Sequence[int] = HOPPER_CLASSES):
        super().__init__()
        self.version, self.classes = version, tuple(classes)
        self.registered_fds: set[int] = set()
        self.pending: dict[int, int] = {}
        self.mappings: dict[int, int] = {}
        self.cpu_maps: dict[int, int] = {}
        self.scheduled: list[int] = []
        self.calls: list[str] = []
        self.has_version_file = True
        self.nodes = {CTL, CARD, UVM}
        self.unknown_commands: set[int] = set()
        self.elsewhere: list[tuple[int, int]] = []  # GPUs that are listed without a node
        self.copy_engines = {9: (0x61, 0x3), 10: (0x61, 0xC), 13: (0x60, 0xF0), 15: (0x60, 0x7F00)}
        self.refuse: dict[int, int] = {}
        self.copy_in_graphics_group = True
        self.schedule_size = CONTROL_SIZES[0xA06C0101]
        self.gpc_tpcs = {0: 0x1FF, 1: 0xFF, 3: 0x1F}
        self.sm_errors: dict[int, tuple[int, int]] = {}
        self.mmu_faults: list[tuple[int, int, int]] = []
        self.fail_at: int | None = None
        self.fail_status: int | None = None
        self._next_fd = 100

    # What tests ask.

    def held(self) -> dict[str, object]:
        """Everything that is still open, mapped, allocated or registered."""
        all_ = {
            "fds": self.fds,
            "mappings": self.mappings,
            "cpu maps": self.cpu_maps,
            "objects": self.objects,
            "ranges": self.ranges,
            "windows": self.windows,
            "gpus": self.gpus,
        }
        found: dict[str, object] = {name: what for name, what in all_.items() if what}
        return found | ({"vaspace": self.vaspace} if self.vaspace is not None else {})

    def of_class(self, class_id: int) -> list[Object]:
        return [each for each in self.objects.values() if each.class_id == class_id]

    # The Os protocol.

    def _called(self, name: str) -> int | None:
        """Notes a call; the status that it must fail with, or a TransportError."""
        self.calls.append(name)
        if self.fail_at is None or len(self.calls) - 1 != self.fail_at:
            return None
        if self.fail_status is None or not name.startswith(("rm", "uvm")):
            raise TransportError(f"injected into {name}", errno.EIO)
        return self.fail_status

    def open(self, path: str, flags: int) -> int:
        self._called(f"open {path}")
        if path not in self.nodes:
            raise TransportError(f"{path}: no such file", errno.ENOENT)
        self._next_fd += 1
        self.fds[self._next_fd] = path
        return self._next_fd

    def close(self, fd: int) -> None:
        del self.fds[fd]
        self.registered_fds.discard(fd)
        self.pending.pop(fd, None)

    def mmap(
        self, fd: int, size: int, prot: int, flags: int, offset: int = 0, address: int = 0
    ) -> int:
        self._called(f"mmap {self.fds.get(fd, 'anonymous')}")
        if fd != -1:
            assert offset == 0 and self.pending.pop(fd) == size, "mmap without its RM_MAP_MEMORY"
            flags = flags & ~hostmem.MAP_SHARED | hostmem.MAP_PRIVATE | hostmem.MAP_ANONYMOUS
        found = hostmem.map_file(-1, 0, size, prot, flags, address)
        if fd != -1:
            ctypes.memset(found, 0xA5, min(size, 1 << 20))  # what others left in memory
        if not any(base <= found < base + length for base, length in self.mappings.items()):
            self.mappings[found] = size
        return found

    def munmap(self, address: int, size: int) -> None:
        hostmem.unmap(address, size)
        if self.mappings.get(address) == size:
            del self.mappings[address]

    def read_file(self, path: str) -> bytes:
        assert path == VERSION
        return VERSION_TEXT % self.version

    def write_file(self, path: str, data: bytes) -> None:
        raise AssertionError(path)

    def list_dir(self, path: str) -> list[str]:
        raise AssertionError(path)

    def exists(self, path: str) -> bool:
        return path in self.nodes or (path == VERSION and self.has_version_file)

    def ioctl(self, fd: int, request: int, argument: Argument, refs: Sequence[Ref] = ()) -> int:
        memory, path = argument_memory(argument), self.fds[fd]
        blocks = follow(memory, refs)
        if path == UVM:
            injected = self._called(f"uvm {request:#x}")
            status, at = self.uvm(fd, request, memory, injected)
            struct.pack_into("<I", memory, at, status)
            return 0
        number, size = request & 0xFF, request >> 16 & 0x3FFF
        assert request >> 30 == 3 and request >> 8 & 0xFF == 0x46 and size == len(memory)
        escapes = {
            0x27: (CARD, 56, 40, self._describe),
            0x29: (CTL, 16, 12, self._free),
            0x2A: (CTL, 32, 28, self._control),
            0x2B: (CTL, None, 40 if size == 48 else 28, self._alloc),
            0x4E: (CTL, 56, 40, self._map),
            0x4F: (CTL, 32, 24, self._unmap),
        }
        if number in (200, 201):
            self._called(f"escape {number}")
            assert (path, size) == ((CTL, 72 * 32) if number == 200 else (CARD, 4))
            (self._cards if number == 200 else self._register)(fd, memory)
            return 0
        node, wanted, at, handler = escapes[number]
        assert path == node and wanted in (None, size), (path, number, size)
        injected = self._called(f"rm {number:#x}")
        status = handler(memory, blocks) if injected is None else injected
        struct.pack_into("<I", memory, at, status)
        return 0

    # Escapes.

    def _cards(self, fd: int, memory: ctypes.Array[ctypes.c_char]) -> None:
        for at, (gpu_id, minor) in enumerate((*self.elsewhere, (GPU_ID, 3))):
            struct.pack_into("<B3xIBBBxHH", memory, 72 * at, 1, 0, 0x0F, 0, 0, 0x10DE, 0x2335)
            struct.pack_into("<I", memory, 72 * at + 16, gpu_id)
            struct.pack_into("<I", memory, 72 * at + 56, minor)

    def _register(self, fd: int, memory: ctypes.Array[ctypes.c_char]) -> None:
        assert (
            fd not in self.registered_fds and self.fds[struct.unpack_from("<i", memory)[0]] == CTL
        )
        self.registered_fds.add(fd)

    def _alloc(self, memory: ctypes.Array[ctypes.c_char], blocks: Sequence[Block]) -> int:
        client, parent, handle, class_id, pointer = struct.unpack_from("<4IQ", memory)
        size = struct.unpack_from("<I", memory, 32 if len(memory) == 48 else 24)[0]
        if class_id == 0x41:
            assert (client, parent, handle) == (0, 0, 0)
            self.objects[0xC1D00001] = Object(0x41, 0, b"")
            struct.pack_into("<I", memory, 8, 0xC1D00001)
            return OK
        if class_id in self.refuse:
            return self.refuse[class_id]
        if handle in self.objects or not handle:
            return 0x19
        if client not in self.objects or parent not in self.objects:
            return NO_OBJECT
        if class_id not in PARENTS:
            return INVALID_CLASS
        if self.objects[parent].class_id not in PARENTS[class_id]:
            return BAD_PARENT
        params = b""
        if pointer:
            block = next(block for block in blocks if block.address == pointer)
            assert block.size >= 512, "a short buffer lets the kernel read our neighbours"
            params = block.read()
            assert not size, "releases of gVisor refuse a size that is another branch's"
        status = self._check_alloc(class_id, params, len(memory))
        if status == OK:
            self.objects[handle] = Object(class_id, parent, params)
        return status

    def _check_alloc(self, class_id: int, params: bytes, form: int) -> int:
        if class_id == 0x90F1:
            flags, size, base = *struct.unpack_from("<IQ", params, 4), params[40:48]
            assert (
                flags == 0x48 and size == 0x1FFFFFB000000 and base == (0x1000).to_bytes(8, "little")
            )
        if class_id in (0x3E, 0x40):
            size, alignment = struct.unpack_from("<QQ", params, 64)
            return OK if size % alignment == 0 and params[0:4] != bytes(4) else INVALID_ARGUMENT
        if class_id == 0xC8B5 and not params and not self.copy_in_graphics_group:
            return NO_OBJECT
        if class_id == 0xC86F:
            error, buffer, ring, entries, _, share, vaspace = struct.unpack_from("<IIQIIII", params)
            userd, offset = struct.unpack_from("<I", params, 32)[0], params[64:72]
            good = error in self.objects and buffer == userd in self.objects and vaspace == 0
            good = good and entries & (entries - 1) == 0 and self.is_mapped(ring, 8 * entries)
            good = good and int.from_bytes(offset, "little") >= 8 * entries
            return OK if good and (not share or share in self.objects) else INVALID_ARGUMENT
        return OK

    def _free(self, memory: ctypes.Array[ctypes.c_char], blocks: Sequence[Block]) -> int:
        _, parent, handle = struct.unpack_from("<3I", memory)
        if handle not in self.objects or self.objects[handle].parent != parent:
            return NO_OBJECT
        below = [each for each, object_ in self.objects.items() if object_.parent == handle]
        assert not below, f"{handle:#x} is freed before its children"
        users = [o for o in self.of_class(0x83DE) if handle in struct.unpack_from("<3I", o.params)]
        assert not users or handle == 0xC1D00001, f"{handle:#x} is freed before its debugger"
        assert handle not in self.windows, "a channel is freed before UVM knows"
        del self.objects[handle]
        return OK

    def _map(self, memory: ctypes.Array[ctypes.c_char], blocks: Sequence[Block]) -> int:
        _, device, handle, offset, length = struct.unpack_from("<3I4xQQ", memory)
        fd = struct.unpack_from("<i", memory, 48)[0]
        if handle not in self.objects or device not in self.objects:
            return NO_OBJECT
        on_card = self.objects[handle].class_id != 0x3E
        assert self.fds[fd] == (CARD if on_card else CTL) and fd not in self.pending
        assert not on_card or fd in self.registered_fds
        self.pending[fd] = length
        linear = 0x7000_0000_0000 + (handle << 12)
        self.cpu_maps[linear] = handle
        struct.pack_into("<Q", memory, 32, linear)
        return OK if offset == 0 else INVALID_ARGUMENT

    def _unmap(self, memory: ctypes.Array[ctypes.c_char], blocks: Sequence[Block]) -> int:
        handle, linear = struct.unpack_from("<8xI4xQ", memory)
        if self.cpu_maps.get(linear) != handle:
            return INVALID_ADDRESS
        del self.cpu_maps[linear]
        return OK

    def _describe(self, memory: ctypes.Array[ctypes.c_char], blocks: Sequence[Block]) -> int:
        _, parent, handle, class_id, flags, address, limit = struct.unpack_from("<5I4xQQ", memory)
        assert (class_id, flags) == (0x71, 0x40001010) and address % 4096 == (limit + 1) % 4096 == 0
        self.objects[handle] = Object(class_id, parent, b"")
        return OK

    def _control(self, memory: ctypes.Array[ctypes.c_char], blocks: Sequence[Block]) -> int:
        _, handle, command, flags, pointer, size = struct.unpack_from("<4IQI", memory)
        if command in self.unknown_commands:
            return NOT_SUPPORTED
        block = next(block for block in blocks if block.address == pointer)
        wanted = self.schedule_size if command == 0xA06C0101 else CONTROL_SIZES[command]
        if size != wanted or block.size != size or flags:
            return INVALID_ARGUMENT
        if handle not in self.objects:
            return BAD_HANDLE
        params = (ctypes.c_char * size).from_address(pointer)
        return self._answer(command, handle, params, blocks)

    def _answer(
        self,
        command: int,
        handle: int,
        params: ctypes.Array[ctypes.c_char],
        blocks: Sequence[Block],
    ) -> int:
        if command == 0x101:
            size, *pointers = struct.unpack_from("<I4x3Q", params)
            texts = [block for block in blocks if block.address in pointers]
            assert [block.size for block in texts] == [size] * 3 and size >= 256
            texts[0].write(self.version.ljust(size, b"\0"))
        elif command == 0x205:
            assert struct.unpack_from("<I", params)[0] == GPU_ID
            struct.pack_into("<II", params, 8, 5, 0)
        elif command == 0x800201:
            count, pointer = struct.unpack_from("<I4xQ", params)
            struct.pack_into("<I", params, 0, len(self.classes))
            if pointer:
                assert count == len(self.classes) and blocks[-1].address == pointer
                blocks[-1].write(struct.pack(f"<{count}I", *self.classes))
        elif command == 0x2080014A:
            assert struct.unpack_from("<II", params, 4) == (2, 16)
            struct.pack_into("16s", params, 12, UUID)
        elif command == 0x20801201:
            facts = {0x0C: 0x900, 0x0D: 64, 0x14: 8, 0x17: 9, 0x20: 2, 0x2C: 64}
            count, pointer = struct.unpack_from("<I4xQ", params)
            assert blocks[-1].address == pointer and blocks[-1].size == 8 * count
            indexes = struct.unpack(f"<{2 * count}I", blocks[-1].read())[::2]
            blocks[-1].write(b"".join(struct.pack("<II", i, facts[i]) for i in indexes))
        elif command == 0x2080122A:
            struct.pack_into("<I", params, 16, sum(1 << gpc for gpc in self.gpc_tpcs))
        elif command == 0x2080122B:
            gpc = struct.unpack_from("<I", params, 16)[0]
            struct.pack_into("<I", params, 20, self.gpc_tpcs[gpc])
        elif command in (0x20802A02, 0x20802A03):
            engine = struct.unpack_from("<I", params)[0]
            if engine not in self.copy_engines:
                return NOT_SUPPORTED
            caps, units = self.copy_engines[engine]
            struct.pack_into("<I", params, 4, units if command == 0x20802A02 else caps)
        elif command == 0x83DE030C:
            channel, count = struct.unpack_from("<II", params)
            start = struct.unpack_from("<I", params, 4820)[0]
            assert channel in self.objects and count <= 100
            for sm, (esr, pc) in self.sm_errors.items():
                if start <= sm < start + count:
                    struct.pack_into("<4xI24xQ", params, 8 + 48 * (sm - start), esr, pc)
            struct.pack_into("<B", params, 4812, bool(self.mmu_faults))
        elif command == 0x83DE0328:
            for index, fault in enumerate(self.mmu_faults):
                struct.pack_into("<QII", params, 16 * index, *fault)
            struct.pack_into("<I", params, 64, len(self.mmu_faults))
        elif command == 0xC36F0108:
            struct.pack_into("<I", params, 0, 0x10000 | handle & 0xFFF)
        else:
            return self._schedule(handle)
        return OK

    def _schedule(self, group: int) -> int:
        channels = [
            h for h, o in self.objects.items() if o.parent == group and o.class_id & 0xFF == 0x6F
        ]
        if not channels or any(channel not in self.windows for channel in channels):
            return BAD_STATE
        self.scheduled.append(group)
        return OK

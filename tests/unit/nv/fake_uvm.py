"""The UVM half of the stand-in for the nvidia kernel modules; see fake_kernel.py."""

from __future__ import annotations

import ctypes
import struct

CTL, UVM = "/dev/nvidiactl", "/dev/nvidia-uvm"
OK, IN_USE_ADDRESS, INVALID_ADDRESS, INVALID_ARGUMENT = 0, 0x68, 0x1E, 0x1F
NO_OBJECT, BAD_STATE, OUT_OF_RANGE = 0x31, 0x40, 0x5B

# Size of the argument, and where its status is; driver 580.142.
LAYOUTS = {
    0x30000001: (16, 8),
    75: (8, 4),
    37: (40, 36),
    38: (20, 16),
    25: (32, 28),
    26: (20, 16),
    27: (56, 48),
    28: (28, 24),
    73: (24, 16),
    33: (9264, 9260),
    34: (24, 16),
}


class Object:
    """An object: its class, its parent, and the parameters it was made with."""

    def __init__(self, class_id: int, parent: int, params: bytes):
        self.class_id, self.parent, self.params = class_id, parent, params
        self.registered = False


class FakeUvm:
    """Address ranges, registrations, and the objects and files that RM's half fills in."""

    def __init__(self) -> None:
        self.fds: dict[int, str] = {}
        self.objects: dict[int, Object] = {}
        self.ranges: dict[int, int] = {}
        self.mapped: dict[int, int] = {}
        self.windows: dict[int, tuple[int, int]] = {}
        self.uvm_ready = False
        self.gpus: set[bytes] = set()
        self.vaspace: int | None = None
        self.window_needed = 1 << 20

    def uvm(
        self, fd: int, request: int, memory: ctypes.Array[ctypes.c_char], injected: int | None
    ) -> tuple[int, int]:
        """The status of a call, and where in the argument it goes."""
        size, at = LAYOUTS[request]
        assert len(memory) == size, f"size of UVM {request:#x}"
        return self._uvm(fd, request, memory) if injected is None else injected, at

    def is_mapped(self, address: int, size: int) -> bool:
        return any(a <= address and address + size <= a + n for a, n in self.mapped.items())

    def _uvm(self, fd: int, request: int, memory: ctypes.Array[ctypes.c_char]) -> int:
        if request == 0x30000001:
            self.uvm_ready = True
            return OK
        if not self.uvm_ready:
            return BAD_STATE
        if request == 75:
            other = struct.unpack_from("<i", memory)[0]
            assert other != fd and self.fds[other] == UVM
            return 0x10006
        if request in (37, 38, 25, 26):
            return self._uvm_gpu(request, memory)
        if request == 27:
            channel, base, length = struct.unpack_from("<I4xQQ", memory, 24)
            if length < self.window_needed:
                return INVALID_ADDRESS
            if base + length > 1 << 40:  # max_channel_va of uvm_ampere.c
                return OUT_OF_RANGE
            if not self._is_free(base, length):
                return IN_USE_ADDRESS
            self.windows[channel] = (base, length)
            return OK if channel in self.objects else NO_OBJECT
        if request == 28:
            del self.windows[struct.unpack_from("<I", memory, 20)[0]]
            return OK
        return self._uvm_range(request, memory)

    def _uvm_gpu(self, request: int, memory: ctypes.Array[ctypes.c_char]) -> int:
        uuid = memory.raw[:16]
        if request == 37:
            assert struct.unpack_from("<i", memory, 24)[0] == -1
            self.gpus.add(uuid)
        elif request == 38:
            self.gpus.remove(uuid)
        elif uuid not in self.gpus:
            return 0x12
        elif request == 25:
            control, client, self.vaspace = struct.unpack_from("<iII", memory, 16)
            assert self.fds[control] == CTL and client in self.objects
            assert self.vaspace in self.objects
        else:
            self.vaspace = None
        return OK

    def _is_free(self, base: int, length: int) -> bool:
        taken = [*self.ranges.items(), *self.windows.values()]
        return all(base + length <= start or start + size <= base for start, size in taken)

    def _uvm_range(self, request: int, memory: ctypes.Array[ctypes.c_char]) -> int:
        base, length = struct.unpack_from("<QQ", memory)
        if request == 73:
            if base % 4096 or length % 4096:
                return INVALID_ADDRESS
            if not self._is_free(base, length):
                return IN_USE_ADDRESS
            self.ranges[base] = length
        elif request == 33:
            count, control, client, object_ = struct.unpack_from("<QiII", memory, 9240)
            uuid, kind = struct.unpack_from("<16sI", memory, 24)
            assert (count, kind) == (1, 1) and uuid in self.gpus and self.vaspace is not None
            assert self.fds[control] == CTL and client in self.objects and object_ in self.objects
            if self.ranges.get(base) != length:
                return INVALID_ADDRESS
            self.mapped[base] = length
        else:
            assert self.ranges.pop(base) == length
            self.mapped.pop(base, None)
        return OK

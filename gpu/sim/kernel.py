"""What a kernel answers with, and how it reads the memory of the process that calls it."""

from __future__ import annotations

import ctypes
import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cache
from typing import Final, TypeVar

from gpu.core import hostmem
from gpu.core.window import MemoryWindow

ENOTSUPP: Final = 524
"""The kernel's internal "not supported" (include/linux/errno.h), which KFD lets out to callers."""

_BOUNCE: Final = 1 << 20
_USER_END: Final = 1 << 47  # of x86-64 and arm64 user space as access_ok sees it

StructT = TypeVar("StructT", bound=ctypes.Structure)


class SysError(Exception):
    """A call fails with an errno; `SimOs` turns it into the typed error that drivers see."""

    def __init__(self, number: int, reason: str = ""):
        self.number = number
        self.reason = reason
        name = errno.errorcode.get(number, "ENOTSUPP" if number == ENOTSUPP else str(number))
        super().__init__(f"{name}: {reason}" if reason else name)


class CallerMemory(ABC):
    """The memory of the process that makes a call. All of it raises SysError(EFAULT)."""

    @abstractmethod
    def read(self, address: int, size: int) -> bytes:
        """`size` bytes at an address."""

    @abstractmethod
    def write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """Writes bytes at an address."""

    def read_struct(self, address: int, kind: type[StructT]) -> StructT:
        """A C structure at an address."""
        return kind.from_buffer_copy(self.read(address, ctypes.sizeof(kind)))


class UserMemory(CallerMemory):
    """The memory of this process, read and written as `copy_from_user` and `copy_to_user` do.

    Every byte goes through a file in memory with `pwrite` and `pread`: the real kernel then tells
    which addresses are bad, where a plain access would end the process.
    """

    def __init__(self) -> None:
        self._fd = hostmem.memfd("sim-bounce", _BOUNCE)
        flags = hostmem.MAP_SHARED
        protection = hostmem.PROT_READ | hostmem.PROT_WRITE
        address = hostmem.map_file(self._fd, 0, _BOUNCE, protection, flags)
        self._memory = MemoryWindow(address, _BOUNCE)
        self._address = address

    def read(self, address: int, size: int) -> bytes:
        """`size` bytes at an address. Raises SysError(EFAULT)."""
        parts = []
        for start in range(address, address + size, _BOUNCE):
            count = min(_BOUNCE, address + size - start)
            check_access(start, count)
            if _libc().pwrite(self._fd, start, count, 0) != count:
                raise SysError(errno.EFAULT, f"{count} bytes at {start:#x} cannot be read")
            parts.append(self._memory.load(0, count))
        return b"".join(parts)

    def write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """Writes bytes at an address. Raises SysError(EFAULT)."""
        for done in range(0, len(data), _BOUNCE):
            part = data[done : done + _BOUNCE]
            check_access(address + done, len(part))
            self._memory.store(0, part)
            if _libc().pread(self._fd, address + done, len(part), 0) != len(part):
                where = f"{len(part)} bytes at {address + done:#x}"
                raise SysError(errno.EFAULT, f"{where} cannot be written")

    def close(self) -> None:
        """Gives the bounce memory back."""
        hostmem.unmap(self._address, _BOUNCE)
        os.close(self._fd)


def check_access(address: int, size: int) -> None:
    """The kernel's `access_ok`: user addresses only. Raises SysError(EFAULT)."""
    if address < 0 or address + size > _USER_END:
        raise SysError(errno.EFAULT, f"{address:#x} is no address of a process")


@cache
def _libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    for function in (library.pread, library.pwrite):
        function.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64]
        function.restype = ctypes.c_ssize_t
    library.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return library


def data_pieces(fd: int, offset: int, size: int) -> Iterator[tuple[int, int]]:
    """Those parts of a range of a file in memory that were ever touched, as (offset, size)."""
    at, end = offset, offset + size
    while at < end:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # nothing but a hole up to the end
                raise
            return
        at = os.lseek(fd, start, os.SEEK_HOLE)
        if start < end:
            yield start, min(at, end) - start


def punch_hole(fd: int, offset: int, size: int) -> None:
    """Gives the pages of a file in memory back, so that they read as zeros."""
    keep_size, punch = 1, 2  # FALLOC_FL_* of include/uapi/linux/falloc.h
    if _libc().fallocate(fd, keep_size | punch, offset, size):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

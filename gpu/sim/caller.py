"""The memory of another real process, as a kernel reads and writes that of its caller."""

from __future__ import annotations

import ctypes
import errno
from functools import cache
from typing import Final

from gpu.sim.kernel import CallerMemory, SysError, check_access

_PR_SET_PTRACER: Final = 0x59616D61  # include/uapi/linux/prctl.h


class _Span(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class ProcessMemory(CallerMemory):
    """The memory of a process of the same user, which has called `admit`. See `CallerMemory`."""

    def __init__(self, pid: int):
        self._pid = pid

    def read(self, address: int, size: int) -> bytes:
        """`size` bytes at an address. Raises SysError(EFAULT)."""
        buffer = ctypes.create_string_buffer(size)
        self._move(_libc().process_vm_readv, "read", buffer, address, size)
        return buffer.raw

    def write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """Writes bytes at an address. Raises SysError(EFAULT)."""
        buffer = ctypes.create_string_buffer(bytes(data), len(data))
        self._move(_libc().process_vm_writev, "written", buffer, address, len(data))

    def _move(
        self,
        function: ctypes._NamedFuncPointer,
        what: str,
        buffer: ctypes.Array[ctypes.c_char],
        address: int,
        size: int,
    ) -> None:
        check_access(address, size)
        here, there = _Span(ctypes.addressof(buffer), size), _Span(address, size)
        moved = function(self._pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        if moved != size:
            number = ctypes.get_errno() if moved < 0 else errno.EFAULT
            raise SysError(
                errno.EFAULT,
                f"{size} bytes at {address:#x} of process {self._pid} cannot be {what}:"
                f" {errno.errorcode.get(number, number)}",
            )


def admit(pid: int) -> None:
    """Lets a process reach the memory of this one, where the system asks for that (Yama).

    Elsewhere the request is not known, and not needed: what it answers is of no interest.
    """
    _libc().prctl(_PR_SET_PTRACER, pid, 0, 0, 0)


@cache
def _libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    span, count = ctypes.POINTER(_Span), ctypes.c_ulong
    for function in (library.process_vm_readv, library.process_vm_writev):
        function.argtypes = [ctypes.c_int, span, count, span, count, count]
        function.restype = ctypes.c_ssize_t
    library.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    return library

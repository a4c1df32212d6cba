"""The operating system as drivers see it: files, ioctls and mappings of devices.

`Os` is what drivers are written against; `RealOs` is this machine. A recorder
(`gpu/transport/traced.py`), a replay (`gpu/transport/replay.py`) and models of kernels implement
the same protocol. All errors are typed: `AccessDenied` with the command that fixes it,
`TransportError` with the errno, `OutOfMemory`.

Descriptors are opaque numbers. Give them to this protocol only: a replay hands out numbers that the
process does not have.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence
from typing import Any, Protocol

from gpu.core import hostmem
from gpu.core.errors import OutOfMemory, TransportError
from gpu.core.ref import Argument, Ref, argument_memory
from gpu.transport.files import Files, RealFiles, fail
from gpu.transport.ioctl import check_request, describe

__all__ = ["Argument", "Os", "RealOs", "Ref"]


class Os(Files, Protocol):
    """Device files of one machine, real or not. Sizes, offsets and addresses are in bytes."""

    def open(self, path: str, flags: int) -> int:
        """Opens a device file; `flags` are those of `os.open`, O_CLOEXEC is always added.

        Raises AccessDenied, and TransportError, also for a file that does not exist.
        """
        ...

    def close(self, fd: int) -> None:
        """Closes a descriptor, also one that an ioctl gave. Raises TransportError."""
        ...

    def ioctl(self, fd: int, request: int, argument: Argument, refs: Sequence[Ref] = ()) -> int:
        """Makes a request; `argument` is changed in place. Returns what the kernel did, from 0 up.

        `refs` tell of the argument's pointer fields, so that others than a kernel can follow them.
        A call that a signal interrupts is made again, after Python's own signal handlers ran. So a
        relative timeout within the argument starts anew: keep it short and compute the next one in
        a loop of your own. Raises TransportError for every other errno.
        """
        ...

    def mmap(
        self, fd: int, size: int, prot: int, flags: int, offset: int = 0, address: int = 0
    ) -> int:
        """Maps a device, or with fd -1 anonymous memory; returns the address.

        The numbers are those of `gpu.core.hostmem`. Reserve address space that a device is told of
        through this too, so that a replay can put it where it was. Raises TransportError,
        OutOfMemory.
        """
        ...

    def munmap(self, address: int, size: int) -> None:
        """Unmaps whole pages. Raises TransportError."""
        ...

    def write_file(self, path: str, data: bytes) -> None:
        """Writes an existing file by one call, as attributes in sysfs need.

        Raises AccessDenied, and TransportError, also where not all of it was taken.
        """
        ...


class RealOs(RealFiles):
    """This machine's operating system; reading is that of `RealFiles`."""

    def __init__(self) -> None:
        self._paths: dict[int, str] = {}  # of open descriptors, for messages
        self._ioctl = _ioctl_function()

    def open(self, path: str, flags: int) -> int:
        """Opens a file; see `Os.open`."""
        try:
            fd = os.open(path, flags | os.O_CLOEXEC)
        except OSError as error:
            fail("opening", path, error, flags)
        self._paths[fd] = path
        return fd

    def close(self, fd: int) -> None:
        """Closes a descriptor; see `Os.close`."""
        path = self._paths.pop(fd, f"fd {fd}")
        try:
            os.close(fd)
        except OSError as error:
            fail("closing", path, error)

    def ioctl(self, fd: int, request: int, argument: Argument, refs: Sequence[Ref] = ()) -> int:
        """Makes a request; see `Os.ioctl`. The kernel follows pointers by itself."""
        check_request(request)
        memory = argument_memory(argument)
        while (result := int(self._ioctl(fd, request, memory))) < 0:
            number = ctypes.get_errno()
            if number != errno.EINTR:
                path = self._paths.get(fd, f"fd {fd}")
                reason = f"{os.strerror(number)} ({errno.errorcode.get(number, number)})"
                raise TransportError(f"ioctl {describe(request)} on {path}: {reason}", number)
        return result

    def mmap(
        self, fd: int, size: int, prot: int, flags: int, offset: int = 0, address: int = 0
    ) -> int:
        """Maps a device or memory; see `Os.mmap`."""
        try:
            return hostmem.map_file(fd, offset, size, prot, flags, address)
        except OutOfMemory as error:
            raise OutOfMemory(f"{self._paths.get(fd, 'memory')}: {error}") from error
        except TransportError as error:
            message = f"{self._paths.get(fd, 'memory')}: {error}"
            raise TransportError(message, error.errno) from error

    def munmap(self, address: int, size: int) -> None:
        """Unmaps whole pages; see `Os.munmap`."""
        hostmem.unmap(address, size)

    def write_file(self, path: str, data: bytes) -> None:
        """Writes an existing file; see `Os.write_file`."""
        fd = self.open(path, os.O_WRONLY)
        try:
            written = os.write(fd, data)
        except OSError as error:
            fail("writing", path, error)
        finally:
            self.close(fd)
        if written != len(data):
            raise TransportError(f"{path} took {written} of {len(data)} bytes", errno.EIO)


def _ioctl_function() -> Any:
    """The C library's ioctl.

    Python's own `fcntl.ioctl` copies arguments of up to 1024 bytes and takes buffers only.
    """
    function = ctypes.CDLL(None, use_errno=True).ioctl
    function.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p]
    function.restype = ctypes.c_int
    return function

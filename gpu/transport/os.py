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
import fcntl
import os
import select
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

from gpu.core import hostmem
from gpu.core.bits import align_up
from gpu.core.errors import InvalidValue, OutOfMemory, TransportError
from gpu.core.ref import Argument, Ref, argument_memory
from gpu.core.window import MemoryWindow, Window
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

    def ioctl_value(self, fd: int, request: int, value: int = 0) -> int:
        """Makes a request whose argument is a number, or none; the rest is as of `ioctl`."""
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

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """Bytes of an open file, by one call; fewer at its end. Raises TransportError."""
        ...

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        """Writes to an open file by one call.

        Raises TransportError, also where not all of it was taken.
        """
        ...

    def window(self, fd: int, size: int, offset: int) -> Window:
        """Registers behind an open file, until `close_window`; any offset will do.

        Traces, replays and models see each access; `mmap` is for memory that native code writes.
        Raises TransportError, OutOfMemory, and InvalidValue for a size below 1.
        """
        ...

    def close_window(self, window: Window) -> None:
        """Ends what `window` gave; it and its parts must not be used any more."""
        ...

    def eventfd(self) -> int:
        """A descriptor that others signal, such as a kernel at an interrupt."""
        ...

    def take_events(self, fd: int) -> int:
        """How often an eventfd was signalled since the last call; does not wait."""
        ...

    def wait(self, fds: Sequence[int], timeout_ns: int) -> list[int]:
        """Those of some descriptors that can be read; sleeps until one can, at most so long.

        A signal that Python handles does not end it early. Raises TransportError.
        """
        ...

    def lock(self, fd: int) -> None:
        """Takes the exclusive lock of an open file, as flock does; `close` gives it back.

        Raises TransportError(EWOULDBLOCK) while another has it.
        """
        ...


class RealOs(RealFiles):
    """This machine's operating system; reading is that of `RealFiles`."""

    def __init__(self) -> None:
        self._paths: dict[int, str] = {}  # of open descriptors, for messages
        self._ioctl = _ioctl_function()
        self._windows: dict[int, tuple[MemoryWindow, int, int]] = {}  # by id: address, size

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
        return self._request(fd, request, argument_memory(argument))

    def ioctl_value(self, fd: int, request: int, value: int = 0) -> int:
        """Makes a request with a number; see `Os.ioctl_value`."""
        return self._request(fd, request, ctypes.c_void_p(value))

    def _request(self, fd: int, request: int, argument: object) -> int:
        check_request(request)
        while (result := int(self._ioctl(fd, request, argument))) < 0:
            number = ctypes.get_errno()
            if number != errno.EINTR:
                path = self._path(fd)
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

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """Bytes of an open file; see `Os.pread`."""
        try:
            return os.pread(fd, size, offset)
        except OSError as error:
            self._fail(f"reading {size} bytes at {offset:#x} of", fd, error)

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        """Writes to an open file; see `Os.pwrite`."""
        action = f"writing {len(data)} bytes at {offset:#x} of"
        try:
            written = os.pwrite(fd, data, offset)
        except OSError as error:
            self._fail(action, fd, error)
        if written != len(data):
            path = self._path(fd)
            raise TransportError(f"{action} {path}: it took {written}", errno.EIO)

    def window(self, fd: int, size: int, offset: int) -> Window:
        """A mapping of an open file; see `Os.window`."""
        if size < 1:
            raise InvalidValue(f"a window of {size} bytes of {self._path(fd)}: at least 1")
        skew = offset % hostmem.page_size
        whole = align_up(skew + size, hostmem.page_size)
        protection = hostmem.PROT_READ | hostmem.PROT_WRITE
        address = self.mmap(fd, whole, protection, hostmem.MAP_SHARED, offset - skew)
        window = MemoryWindow(address + skew, size)
        self._windows[id(window)] = window, address, whole
        return window

    def close_window(self, window: Window) -> None:
        """Unmaps it; see `Os.close_window`."""
        _, address, size = self._windows.pop(id(window))
        self.munmap(address, size)

    def eventfd(self) -> int:
        """A counter of events; see `Os.eventfd`."""
        fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._paths[fd] = "an eventfd"
        return fd

    def take_events(self, fd: int) -> int:
        """Takes the counter of an eventfd; see `Os.take_events`."""
        try:
            return os.eventfd_read(fd)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._fail("reading", fd, error)

    def wait(self, fds: Sequence[int], timeout_ns: int) -> list[int]:
        """Polls descriptors; see `Os.wait`."""
        poll = select.poll()
        for fd in fds:
            poll.register(fd, select.POLLIN)
        found = dict(poll.poll(max(timeout_ns, 0) / 1e6))
        for fd, events in found.items():
            if events & select.POLLNVAL:
                raise TransportError(f"waiting for {self._path(fd)}: it is not open", errno.EBADF)
        return [fd for fd in fds if fd in found]

    def lock(self, fd: int) -> None:
        """Locks an open file; see `Os.lock`."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._fail("locking", fd, error)

    def _path(self, fd: int) -> str:
        return self._paths.get(fd, f"fd {fd}")

    def _fail(self, action: str, fd: int, error: OSError) -> NoReturn:
        message = f"{action} {self._path(fd)}: {error.strerror}"
        raise TransportError(message, error.errno) from error


def _ioctl_function() -> Any:
    """The C library's ioctl.

    Python's own `fcntl.ioctl` copies arguments of up to 1024 bytes and takes buffers only.
    """
    function = ctypes.CDLL(None, use_errno=True).ioctl
    function.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p]
    function.restype = ctypes.c_int
    return function

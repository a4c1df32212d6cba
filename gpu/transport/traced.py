"""Recording what a driver asks of an operating system, real or not, while it goes on as ever."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from itertools import count
from typing import TypeAlias

from gpu.core.errors import AccessDenied, OutOfMemory, TransportError
from gpu.core.ref import Argument, Ref, argument_memory, follow
from gpu.core.trace import Recorder
from gpu.core.traceevent import (
    Access,
    Close,
    CloseWindow,
    Event,
    EventFd,
    Exists,
    Failure,
    Ioctl,
    IoctlValue,
    ListDir,
    Lock,
    Map,
    Memory,
    Open,
    OpenWindow,
    PRead,
    PWrite,
    ReadFile,
    TakeEvents,
    Unmap,
    Wait,
    WriteFile,
    shown_path,
)
from gpu.core.window import RecordingWindow, Window, WindowAccess
from gpu.transport.os import Os

_Error: TypeAlias = AccessDenied | TransportError | OutOfMemory
_ERRORS = (AccessDenied, TransportError, OutOfMemory)


class TracedOs:
    """An `Os` that passes every call on to another and records it, failures included."""

    def __init__(self, inner: Os, recorder: Recorder):
        self._inner = inner
        self._recorder = recorder
        self._paths: dict[int, str] = {}
        self._windows: dict[int, tuple[RecordingWindow, Window, int]] = {}  # by id
        self._numbers = count()

    def open(self, path: str, flags: int) -> int:
        """Opens a file; see `Os.open`."""
        shown = shown_path(path)
        try:
            fd = self._inner.open(path, flags)
        except _ERRORS as error:
            self._record(Open(shown, flags, -1, _failure(error)))
            raise
        self._paths[fd] = shown
        self._record(Open(shown, flags, fd))
        return fd

    def close(self, fd: int) -> None:
        """Closes a descriptor; see `Os.close`."""
        path = self._paths.pop(fd, "")
        try:
            self._inner.close(fd)
        except _ERRORS as error:
            self._record(Close(fd, path, _failure(error)))
            raise
        self._record(Close(fd, path))

    def ioctl(self, fd: int, request: int, argument: Argument, refs: Sequence[Ref] = ()) -> int:
        """Makes a request; see `Os.ioctl`. All that `refs` lead to is recorded before and after."""
        memory = argument_memory(argument)
        blocks = follow(memory, refs)
        before = [block.read() for block in blocks]
        result, failure = -1, None
        try:
            result = self._inner.ioctl(fd, request, argument, refs)
        except _ERRORS as error:
            failure = _failure(error)
            raise
        else:
            return result
        finally:
            pairs = zip(blocks, before, strict=True)
            seen = tuple(Memory(block.at, data, block.read()) for block, data in pairs)
            self._record(Ioctl(fd, self._paths.get(fd, ""), request, seen, result, failure))

    def ioctl_value(self, fd: int, request: int, value: int = 0) -> int:
        """Makes a request with a number; see `Os.ioctl_value`."""
        path = self._paths.get(fd, "")
        try:
            result = self._inner.ioctl_value(fd, request, value)
        except _ERRORS as error:
            self._record(IoctlValue(fd, path, request, value, -1, _failure(error)))
            raise
        self._record(IoctlValue(fd, path, request, value, result))
        return result

    def mmap(
        self, fd: int, size: int, prot: int, flags: int, offset: int = 0, address: int = 0
    ) -> int:
        """Maps a device or memory; see `Os.mmap`. What is done to the memory is not recorded."""
        path = self._paths.get(fd, "")
        try:
            result = self._inner.mmap(fd, size, prot, flags, offset, address)
        except _ERRORS as error:
            self._record(Map(fd, path, size, prot, flags, offset, address, 0, _failure(error)))
            raise
        self._record(Map(fd, path, size, prot, flags, offset, address, result))
        return result

    def munmap(self, address: int, size: int) -> None:
        """Unmaps whole pages; see `Os.munmap`."""
        try:
            self._inner.munmap(address, size)
        except _ERRORS as error:
            self._record(Unmap(address, size, _failure(error)))
            raise
        self._record(Unmap(address, size))

    def read_file(self, path: str) -> bytes:
        """All that a file holds; see `Os.read_file`."""
        try:
            data = self._inner.read_file(path)
        except _ERRORS as error:
            self._record(ReadFile(shown_path(path), b"", _failure(error)))
            raise
        self._record(ReadFile(shown_path(path), data))
        return data

    def write_file(self, path: str, data: bytes) -> None:
        """Writes an existing file; see `Os.write_file`."""
        try:
            self._inner.write_file(path, data)
        except _ERRORS as error:
            self._record(WriteFile(shown_path(path), data, _failure(error)))
            raise
        self._record(WriteFile(shown_path(path), data))

    def list_dir(self, path: str) -> list[str]:
        """The names in a folder; see `Os.list_dir`."""
        try:
            names = self._inner.list_dir(path)
        except _ERRORS as error:
            self._record(ListDir(shown_path(path), (), _failure(error)))
            raise
        self._record(ListDir(shown_path(path), tuple(names)))
        return names

    def exists(self, path: str) -> bool:
        """Whether something has this path; see `Os.exists`."""
        found = self._inner.exists(path)
        self._record(Exists(shown_path(path), found))
        return found

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """Bytes of an open file; see `Os.pread`."""
        path = self._paths.get(fd, "")
        try:
            data = self._inner.pread(fd, size, offset)
        except _ERRORS as error:
            self._record(PRead(fd, path, size, offset, b"", _failure(error)))
            raise
        self._record(PRead(fd, path, size, offset, data))
        return data

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        """Writes to an open file; see `Os.pwrite`."""
        path = self._paths.get(fd, "")
        try:
            self._inner.pwrite(fd, data, offset)
        except _ERRORS as error:
            self._record(PWrite(fd, path, data, offset, _failure(error)))
            raise
        self._record(PWrite(fd, path, data, offset))

    def window(self, fd: int, size: int, offset: int) -> Window:
        """Registers of which each access is recorded; see `Os.window`."""
        path, number = self._paths.get(fd, ""), next(self._numbers)
        try:
            inner = self._inner.window(fd, size, offset)
        except _ERRORS as error:
            self._record(OpenWindow(fd, path, size, offset, number, _failure(error)))
            raise
        self._record(OpenWindow(fd, path, size, offset, number))

        def record(access: WindowAccess) -> None:
            kind, at, width, value = access
            data = value if isinstance(value, bytes) else value.to_bytes(width, "little")
            self._record(Access(number, kind, at, data))

        window = RecordingWindow(inner, record)
        self._windows[id(window)] = window, inner, number
        return window

    def close_window(self, window: Window) -> None:
        """Ends a window; see `Os.close_window`."""
        _, inner, number = self._windows.pop(id(window))
        self._inner.close_window(inner)
        self._record(CloseWindow(number))

    def eventfd(self) -> int:
        """A descriptor that others signal; see `Os.eventfd`."""
        fd = self._inner.eventfd()
        self._record(EventFd(fd))
        return fd

    def take_events(self, fd: int) -> int:
        """How often an eventfd was signalled; see `Os.take_events`."""
        taken = self._inner.take_events(fd)
        self._record(TakeEvents(fd, taken))
        return taken

    def wait(self, fds: Sequence[int], timeout_ns: int) -> list[int]:
        """Those of some descriptors that can be read; see `Os.wait`."""
        ready = self._inner.wait(fds, timeout_ns)
        self._record(Wait(tuple(fds), tuple(ready)))
        return ready

    def lock(self, fd: int) -> None:
        """Takes the lock of an open file; see `Os.lock`."""
        path = self._paths.get(fd, "")
        try:
            self._inner.lock(fd)
        except _ERRORS as error:
            self._record(Lock(fd, path, _failure(error)))
            raise
        self._record(Lock(fd, path))

    def _record(self, event: Event) -> None:
        self._recorder.record(event)


def _failure(error: _Error) -> Failure:
    if isinstance(error, AccessDenied):
        return Failure(errno.EACCES, error.hint)
    if isinstance(error, OutOfMemory):
        return Failure(errno.ENOMEM)
    return Failure(error.errno or 0)

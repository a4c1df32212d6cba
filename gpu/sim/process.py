"""Processes of a model: descriptors, what `fork` passes on, what is left at the end, and calls.

`SimOs` is the operating system as one process sees it: `gpu.transport.os.Os` without a kernel.
Descriptors are real ones, of empty files in memory, because their numbers travel inside ioctls and
because a driver may compare them with others that it has. Addresses are real too: a process maps
the very pages that the device uses, so an address of the GPU can equal that of the CPU.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from gpu.core import hostmem
from gpu.core.errors import AccessDenied, OutOfMemory, TransportError
from gpu.core.ref import Argument, Ref, argument_memory
from gpu.core.window import Window
from gpu.sim.faults import Given
from gpu.sim.kernel import CallerMemory, SysError, UserMemory
from gpu.sim.mapping import Mapper, map_pieces
from gpu.sim.simulation import Simulation
from gpu.sim.tree import FileTree
from gpu.sim.undisturbed import Undisturbed

ArgumentBytes = ctypes.Array[ctypes.c_char]


class System(Simulation, ABC):
    """What processes share: `gpu.sim.machine.Machine` without what works by itself.

    Attributes: those of `Simulation`, and
        lock: threads of a driver come one after another.
        undisturbed: keeps Ctrl-C out of calls and engines.
        user: the memory of this real process.
        tree: files that are only read.
        devices: what opens each device file.
        written: what takes the bytes of each file that may be written.
        locks: who has the lock of a path.
    """

    def __init__(self, seed: int, faults: Given = ()):
        super().__init__(seed, faults)
        self.lock = threading.RLock()
        self.undisturbed = Undisturbed()
        self.user = UserMemory()
        self.tree = FileTree()
        self.devices: dict[str, Callable[[SimProcess], SimFile]] = {}
        self.written: dict[str, Callable[[bytes], None]] = {}
        self.locks: dict[str, OpenFile] = {}

    @abstractmethod
    def wait(self, is_over: Callable[[], bool], timeout_ns: int) -> None:
        """Lets time go on until something is so, at most so long."""

    @abstractmethod
    def work_a_little(self) -> None:
        """What goes on while a process makes a call."""

    @abstractmethod
    def new_process(self) -> SimProcess:
        """Another process on this machine."""

    @abstractmethod
    def end_process(self, process: SimProcess) -> list[str]:
        """Frees all that a process has; returns what it should have freed itself."""

    def unmapped(self, process: SimProcess, address: int, size: int) -> None:
        """A process has unmapped memory of its own; for machines that care."""


class SimFile:
    """An open device. What a kind of device cannot do fails as the kernel's defaults do."""

    def ioctl(self, process: SimProcess, request: int, argument: ArgumentBytes) -> int:
        """Makes a request. Raises SysError."""
        raise SysError(errno.ENOTTY)

    def ioctl_value(self, process: SimProcess, request: int, value: int) -> int:
        """Makes a request whose argument is a number. Raises SysError."""
        raise SysError(errno.ENOTTY)

    def call_name(self, request: int) -> str:
        """What faults call a request; empty where they have no name for it."""
        return ""

    def refuse(self, request: int, argument: ArgumentBytes, answer: str) -> int:
        """Answers a request without doing it. Raises SysError for an errno."""
        raise SysError(getattr(errno, answer), "a fault that was injected")

    def mmap(
        self, process: SimProcess, size: int, prot: int, flags: int, offset: int, address: int
    ) -> int:
        """Maps a part; returns the address. Raises SysError."""
        raise SysError(errno.ENODEV)

    def pread(self, process: SimProcess, size: int, offset: int) -> bytes:
        """Bytes at an offset. Raises SysError."""
        raise SysError(errno.ESPIPE)

    def pwrite(self, process: SimProcess, data: bytes, offset: int) -> int:
        """Writes at an offset; returns how much was taken. Raises SysError."""
        raise SysError(errno.ESPIPE)

    def window(self, process: SimProcess, size: int, offset: int) -> Window:
        """Registers, as a mapping of them would be. Raises SysError."""
        raise SysError(errno.ENODEV)

    def close_window(self, window: Window) -> None:
        """Such a mapping has ended."""

    def can_be_read(self) -> bool:
        """Whether reading would not wait. Raises SysError(EPERM) for what cannot be polled."""
        raise SysError(errno.EPERM)

    def released(self) -> None:
        """The last descriptor was closed."""


class EventCounter(SimFile):
    """An eventfd: a device signals it, a process takes what it counted."""

    def __init__(self) -> None:
        self.count = 0

    def signal(self) -> None:
        """One event more."""
        self.count += 1

    def take(self) -> int:
        """How many there were, which are none from now on."""
        taken, self.count = self.count, 0
        return taken

    def can_be_read(self) -> bool:
        """Whether there were any."""
        return self.count > 0


@dataclass(eq=False)
class OpenFile:
    """An entry of the system's table of open files; forked processes share it."""

    file: SimFile
    path: str
    users: int = 1


class SimProcess:
    """One process of a machine.

    Attributes:
        os: what this process's drivers are given.
        user, mapper: its memory, and what maps into it.
        state: what device models keep for the process, by their own keys.
    """

    user: CallerMemory
    mapper: Mapper

    def __init__(self, world: System, pid: int):
        self.world = world
        self.pid = pid
        self.os = SimOs(self)
        self.user, self.mapper = world.user, map_pieces
        self.state: dict[object, Any] = {}
        self.alive = True
        self._real_pid = os.getpid()
        self._files: dict[int, OpenFile] = {}

    def check_alive(self) -> None:
        """Raises SysError(EBADF) after `exit` and in a process that was really forked."""
        if not self.alive or os.getpid() != self._real_pid:
            raise SysError(errno.EBADF, "this is another process than the one that opened it")

    @property
    def open_files(self) -> int:
        """How many descriptors of the model are open."""
        return len(self._files)

    def add_file(self, file: SimFile, path: str) -> int:
        """Makes a descriptor of an open device."""
        fd = hostmem.memfd("sim-fd", 1)
        self._files[fd] = OpenFile(file, path)
        return fd

    def file(self, fd: int) -> OpenFile:
        """What a descriptor is of. Raises SysError(EBADF)."""
        found = self._files.get(fd)
        if found is None:
            raise SysError(errno.EBADF, f"fd {fd} is not open in process {self.pid}")
        self.check_alive()
        return found

    def close_file(self, fd: int) -> None:
        """Closes a descriptor. Raises SysError(EBADF)."""
        found = self._files.pop(fd, None)
        if found is None:
            raise SysError(errno.EBADF, f"fd {fd} is not open in process {self.pid}")
        found.users -= 1
        if not found.users:
            os.close(fd)
            if self.world.locks.get(found.path) is found:
                del self.world.locks[found.path]
            found.file.released()

    def fork(self) -> SimProcess:
        """A child with the same descriptors, and nothing else of what devices keep."""
        child = self.world.new_process()
        for fd, entry in self._files.items():
            entry.users += 1
            child._files[fd] = entry
        return child

    def exit(self) -> list[str]:
        """Ends the process; says what it had not given back."""
        left = [f"fd {fd} of {entry.path}" for fd, entry in self._files.items()]
        for fd in list(self._files):
            self.close_file(fd)
        left += self.world.end_process(self)
        self.alive = False
        return left


class SimOs:
    """Files, ioctls and mappings of a `SimProcess`; each call lets engines work for a moment."""

    def __init__(self, process: SimProcess):
        self._process = process
        self._windows: dict[int, tuple[Window, SimFile]] = {}  # by id

    def open(self, path: str, flags: int) -> int:
        """Opens a device of the model; plain files are only read, by `read_file`."""
        world = self._process.world
        try:
            self._process.check_alive()
            opener = world.devices.get(path)
            if opener is None:
                raise SysError(errno.EACCES if world.tree.has(path) else errno.ENOENT)
            with world.lock, world.undisturbed:
                return self._process.add_file(opener(self._process), path)
        except SysError as error:
            _fail("opening", path, error)

    def close(self, fd: int) -> None:
        """Closes a descriptor that `open` or an ioctl gave."""
        try:
            with self._process.world.lock, self._process.world.undisturbed:
                self._process.close_file(fd)
        except SysError as error:
            _fail("closing", f"fd {fd}", error)

    def ioctl(self, fd: int, request: int, argument: Argument, refs: Sequence[Ref] = ()) -> int:
        """Makes a request of a device; `refs` are not needed, as the pointers lead to memory."""
        process = self._process
        found: OpenFile | None = None
        try:
            found = process.file(fd)
            with process.world.lock, process.world.undisturbed:
                process.world.work_a_little()
                return _ioctl(process, found.file, request, argument_memory(argument))
        except SysError as error:
            name = found.path if found else f"fd {fd}"
            process.world.debug.note(f"ioctl {request:#010x} on {name} fails with {error}")
            _fail(f"ioctl {request:#010x} on", name, error)

    def ioctl_value(self, fd: int, request: int, value: int = 0) -> int:
        """Makes a request of a device with a number."""
        process = self._process
        with self._calling(f"ioctl {request:#010x} on", fd) as found:
            process.world.work_a_little()
            return found.file.ioctl_value(process, request, value)

    def mmap(
        self, fd: int, size: int, prot: int, flags: int, offset: int = 0, address: int = 0
    ) -> int:
        """Maps a device of the model, or with fd -1 anonymous memory."""
        if fd == -1:
            return hostmem.map_file(-1, 0, size, prot, flags, address)
        try:
            file = self._process.file(fd).file
            with self._process.world.lock, self._process.world.undisturbed:
                return file.mmap(self._process, size, prot, flags, offset, address)
        except SysError as error:
            if error.number == errno.ENOMEM:
                raise OutOfMemory(f"mapping {size:#x} bytes of fd {fd}: {error}") from error
            _fail(f"mapping {size:#x} bytes, offset {offset:#x}, of", f"fd {fd}", error)

    def munmap(self, address: int, size: int) -> None:
        """Unmaps whole pages."""
        hostmem.unmap(address, size)
        self._process.world.unmapped(self._process, address, size)

    def read_file(self, path: str) -> bytes:
        """All that a file of the model's tree holds."""
        try:
            data = self._process.world.tree.read(path)
        except SysError as error:
            _fail("reading", path, error)
        short = self._process.world.faults.due("short-read", about=path)
        return data[: len(data) // 2] if short else data

    def write_file(self, path: str, data: bytes) -> None:
        """Writes a file that something in the model takes."""
        world = self._process.world
        try:
            if path not in world.written:
                raise SysError(errno.EACCES if world.tree.has(path) else errno.ENOENT)
            with world.lock, world.undisturbed:
                world.written[path](data)
        except SysError as error:
            _fail("writing", path, error)

    def list_dir(self, path: str) -> list[str]:
        """The names in a folder of the model's tree."""
        try:
            return self._process.world.tree.names(path)
        except SysError as error:
            _fail("listing", path, error)

    def exists(self, path: str) -> bool:
        """Whether the model has a file, folder or device of this path."""
        world = self._process.world
        return path in world.devices or path in world.written or world.tree.has(path)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """Bytes of an open device."""
        with self._calling(f"reading {size} bytes at {offset:#x} of", fd) as found:
            return found.file.pread(self._process, size, offset)

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        """Writes to an open device."""
        with self._calling(f"writing {len(data)} bytes at {offset:#x} of", fd) as found:
            written = found.file.pwrite(self._process, data, offset)
            if written != len(data):
                raise SysError(errno.EIO, f"it took {written}")

    def window(self, fd: int, size: int, offset: int) -> Window:
        """Registers of an open device."""
        with self._calling(f"mapping {size:#x} bytes, offset {offset:#x}, of", fd) as found:
            window = found.file.window(self._process, size, offset)
            self._windows[id(window)] = window, found.file
            return window

    def close_window(self, window: Window) -> None:
        """Ends what `window` gave."""
        _, file = self._windows.pop(id(window))
        with self._process.world.lock:
            file.close_window(window)

    def eventfd(self) -> int:
        """A counter of events."""
        return self._process.add_file(EventCounter(), "an eventfd")

    def take_events(self, fd: int) -> int:
        """What a counter of events has counted."""
        with self._calling("reading", fd) as found:
            if not isinstance(found.file, EventCounter):
                raise SysError(errno.EINVAL, "it is no eventfd")
            return found.file.take()

    def wait(self, fds: Sequence[int], timeout_ns: int) -> list[int]:
        """Those of some descriptors that can be read; time goes on until one can."""

        def ready() -> list[int]:
            return [fd for fd in fds if self._can_be_read(fd)]

        if not ready() and timeout_ns > 0:
            self._process.world.wait(lambda: bool(ready()), timeout_ns)
        return ready()

    def lock(self, fd: int) -> None:
        """Takes the lock of an open file."""
        with self._calling("locking", fd) as found:
            if self._process.world.locks.setdefault(found.path, found) is not found:
                raise SysError(errno.EWOULDBLOCK, "another has it")

    def _can_be_read(self, fd: int) -> bool:
        with self._calling("waiting for", fd) as found:
            return found.file.can_be_read()

    @contextmanager
    def _calling(self, action: str, fd: int) -> Iterator[OpenFile]:
        """A call of an open file, whose errors are told as of `action`."""
        process = self._process
        path = f"fd {fd}"
        try:
            found = process.file(fd)
            path = found.path
            with process.world.lock, process.world.undisturbed:
                yield found
        except SysError as error:
            _fail(action, path, error)


def _ioctl(process: SimProcess, file: SimFile, request: int, argument: ArgumentBytes) -> int:
    fault = process.world.faults.due("ioctl", about=file.call_name(request))
    if fault is None:
        return file.ioctl(process, request, argument)
    return file.refuse(request, argument, fault.detail.partition(":")[2])


def _fail(action: str, path: str, error: SysError) -> NoReturn:
    """Raises the typed error that the real operating system's wrapper would raise."""
    if error.number == errno.EACCES and action in ("opening", "reading", "writing", "listing"):
        raise AccessDenied(path, "the model does not let anyone do that") from error
    known = error.number in errno.errorcode
    reason = os.strerror(error.number) if known else f"errno {error.number}"
    detail = f" ({error.reason})" if error.reason else ""
    raise TransportError(f"{action} {path}: {reason}{detail}", error.number) from error

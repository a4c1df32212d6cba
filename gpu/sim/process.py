"""Processes of a model: descriptors, what `fork` passes on, and what is left at the end."""

from __future__ import annotations

import ctypes
import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpu.core import hostmem
from gpu.sim.kernel import CallerMemory, SysError
from gpu.sim.mapping import Mapper, map_pieces
from gpu.sim.os import SimOs

if TYPE_CHECKING:
    from gpu.sim.machine import Machine

ArgumentBytes = ctypes.Array[ctypes.c_char]


class SimFile:
    """An open device. What a kind of device cannot do fails as the kernel's defaults do."""

    def ioctl(self, process: SimProcess, request: int, argument: ArgumentBytes) -> int:
        """Makes a request. Raises SysError."""
        raise SysError(errno.ENOTTY)

    def mmap(
        self, process: SimProcess, size: int, prot: int, flags: int, offset: int, address: int
    ) -> int:
        """Maps a part; returns the address. Raises SysError."""
        raise SysError(errno.ENODEV)

    def released(self) -> None:
        """The last descriptor was closed."""


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

    def __init__(self, world: Machine, pid: int):
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

"""The operating system as one process of a model sees it: `gpu.transport.os.Os` without a kernel.

Descriptors are real ones, of empty files in memory, because their numbers travel inside ioctls and
because a driver may compare them with others that it has. Addresses are real too: a process maps
the very pages that the device uses, so an address of the GPU can equal that of the CPU.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from gpu.core import hostmem
from gpu.core.errors import AccessDenied, OutOfMemory, TransportError
from gpu.core.ref import Argument, Ref, argument_memory
from gpu.sim.kernel import SysError

if TYPE_CHECKING:
    from gpu.sim.process import OpenFile, SimProcess


class SimOs:
    """Files, ioctls and mappings of a `SimProcess`; each call lets engines work for a moment."""

    def __init__(self, process: SimProcess):
        self._process = process

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
                return found.file.ioctl(process, request, argument_memory(argument))
        except SysError as error:
            name = found.path if found else f"fd {fd}"
            process.world.debug.note(f"ioctl {request:#010x} on {name} fails with {error}")
            _fail(f"ioctl {request:#010x} on", name, error)

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

    def read_file(self, path: str) -> bytes:
        """All that a file of the model's tree holds."""
        try:
            return self._process.world.tree.read(path)
        except SysError as error:
            _fail("reading", path, error)

    def write_file(self, path: str, data: bytes) -> None:
        """No file of the model takes anything."""
        known = self._process.world.tree.has(path)
        _fail("writing", path, SysError(errno.EACCES if known else errno.ENOENT))

    def list_dir(self, path: str) -> list[str]:
        """The names in a folder of the model's tree."""
        try:
            return self._process.world.tree.names(path)
        except SysError as error:
            _fail("listing", path, error)

    def exists(self, path: str) -> bool:
        """Whether the model has a file, folder or device of this path."""
        return path in self._process.world.devices or self._process.world.tree.has(path)


def _fail(action: str, path: str, error: SysError) -> NoReturn:
    """Raises the typed error that the real operating system's wrapper would raise."""
    if error.number == errno.EACCES and action in ("opening", "reading", "writing", "listing"):
        raise AccessDenied(path, "the model does not let anyone do that") from error
    known = error.number in errno.errorcode
    reason = os.strerror(error.number) if known else f"errno {error.number}"
    detail = f" ({error.reason})" if error.reason else ""
    raise TransportError(f"{action} {path}: {reason}{detail}", error.number) from error

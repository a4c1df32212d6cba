"""Systems between driver and model that fail, interrupt or count calls."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

from gpu.core.errors import TransportError
from gpu.transport.os import Argument, Os, Ref

WAIT_EVENTS = 0x0C
CREATE_QUEUE, FREE_MEMORY = 0x02, 0x17


class SteppedOs:
    """Passes calls on; before each open, ioctl and mmap it asks ``before``, which may raise."""

    def __init__(self, inner: Os, before: Callable[[str], None]):
        self.inner = inner
        self.before = before

    def open(self, path: str, flags: int) -> int:
        self.before(f"open {path}")
        return self.inner.open(path, flags)

    def close(self, fd: int) -> None:
        self.inner.close(fd)

    def ioctl(self, fd: int, request: int, argument: Argument, refs: Sequence[Ref] = ()) -> int:
        self.before(f"ioctl {request & 0xFF:#x}")
        return self.inner.ioctl(fd, request, argument, refs)

    def mmap(
        self, fd: int, size: int, prot: int, flags: int, offset: int = 0, address: int = 0
    ) -> int:
        self.before("mmap")
        return self.inner.mmap(fd, size, prot, flags, offset, address)

    def munmap(self, address: int, size: int) -> None:
        self.inner.munmap(address, size)

    def read_file(self, path: str) -> bytes:
        return self.inner.read_file(path)

    def write_file(self, path: str, data: bytes) -> None:
        self.inner.write_file(path, data)

    def list_dir(self, path: str) -> list[str]:
        return self.inner.list_dir(path)

    def exists(self, path: str) -> bool:
        return self.inner.exists(path)


class Failure:
    """A ``before`` that fails call number ``at``, counted from 0, with an errno."""

    def __init__(self, at: int, number: int = errno.EIO):
        self.left = at
        self.number = number
        self.failed = ""

    def __call__(self, call: str) -> None:
        self.left -= 1
        if self.left == -1:
            self.failed = call
            raise TransportError(f"{call} fails on purpose", self.number)

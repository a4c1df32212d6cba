"""Memory whose physical addresses stay what they are, for functions without an IOMMU.

Pages of hugetlb are never moved. Locked pages are moved when memory is compacted, unless
``vm.compact_unevictable_allowed`` is 0: so they are used only where it is. Physical addresses come
from ``/proc/self/pagemap``, which tells them to root alone (CAP_SYS_ADMIN). A `Guard` holds all
pages too, and the function's lock, until bus mastering is off: a driver that is killed leaves no
card writing into memory that others have by then.

Sources: Linux 6.12 Documentation/admin-guide/mm/{hugetlbpage,pagemap}.rst, sysctl/vm.rst.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from gpu.core import hostmem
from gpu.core.bits import align_up
from gpu.core.errors import AccessDenied, OutOfMemory, TransportError, Unsupported
from gpu.core.pci import BusAddr, DmaPiece
from gpu.transport.machine import number_in
from gpu.transport.os import Os

_PAGEMAP: Final = "/proc/self/pagemap"
_COMPACT: Final = "/proc/sys/vm/compact_unevictable_allowed"
_HUGE: Final = 2 << 20
_PRESENT: Final = 1 << 63
_FRAME: Final = (1 << 55) - 1
_GUARD_S: Final = 10.0
_GUARD: Final = Path(__file__).with_name("guard.py")


class Guard(Protocol):
    """Who holds memory until the card has stopped."""

    def hold(self, fd: int) -> None:
        """Holds the pages of a file in memory as well. Raises TransportError."""
        ...

    def close(self) -> None:
        """Ends bus mastering, and returns when that is done; then the guard holds nothing."""
        ...


class ProcessGuard:
    """The guard process, `gpu.transport.pci.guard`, in a session of its own."""

    def __init__(self, config: int, lock: int):
        """Given copies of the descriptors of config space and of what is locked."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(_GUARD_S)
        with theirs:
            fd = theirs.fileno()
            command = [sys.executable, "-I", "-S", str(_GUARD), str(fd)]
            self._process = subprocess.Popen(
                command, pass_fds=(fd,), start_new_session=True, stdin=subprocess.DEVNULL
            )
        self._send(config, lock)

    def hold(self, fd: int) -> None:
        """Sends a file in memory; see `Guard.hold`."""
        self._send(fd)

    def close(self) -> None:
        """Waits for the guard's end; see `Guard.close`. Raises TransportError."""
        self._socket.close()
        try:
            code = self._process.wait(_GUARD_S)
        except subprocess.TimeoutExpired as error:
            raise TransportError(
                f"the guard process {self._process.pid} did not end bus mastering within"
                f" {_GUARD_S:g} s; it holds the memory until it does"
            ) from error
        if code:
            raise TransportError(f"the guard process ended with {code}: is the card gone?")

    def _send(self, *fds: int) -> None:
        try:
            socket.send_fds(self._socket, [b"+"], fds)
            answer = self._socket.recv(1)
        except OSError as error:
            raise TransportError(f"the guard process does not answer: {error}") from error
        if not answer:
            raise TransportError("the guard process ended: could it lock the memory (`ulimit -l`)?")


class PinnedMemory:
    """Pages that stay where they are. See `gpu.transport.pci.function.DmaMemory`."""

    def __init__(self, system: Os, guard: Guard, size: int):
        """Raises OutOfMemory, Unsupported, AccessDenied, with what to do."""
        self._fd, self._size, is_huge = _make_file(system, size)
        self._address = 0
        try:
            flags = hostmem.MAP_SHARED | hostmem.MAP_POPULATE
            flags |= 0 if is_huge else hostmem.MAP_LOCKED
            protection = hostmem.PROT_READ | hostmem.PROT_WRITE
            self._address = _map(self._fd, self._size, protection, flags)
            hostmem.dontfork(self._address, self._size)
            guard.hold(self._fd)
            self.pieces: Sequence[DmaPiece] = list(_pieces(system, self._address, self._size))
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> int:
        """Where the pages are in this process."""
        return self._address

    @property
    def size(self) -> int:
        """Bytes, whole pages."""
        return self._size

    def close(self) -> None:
        """Gives the pages back, as far as this process has them; again does nothing."""
        if self._address:
            hostmem.unmap(self._address, self._size)
            self._address = 0
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _make_file(system: Os, size: int) -> tuple[int, int, bool]:
    """A file in memory for so many bytes: its descriptor, its size, whether of huge pages."""
    locked_stay = number_in(system, _COMPACT) == 0
    if not locked_stay or size >= _HUGE:
        try:
            whole = align_up(size, _HUGE)
            return hostmem.memfd("gpu-dma", whole, hostmem.MFD_HUGETLB), whole, True
        except (OutOfMemory, TransportError) as error:
            if not locked_stay:
                raise _no_huge_pages(size) from error
    whole = align_up(size, hostmem.page_size)
    return hostmem.memfd("gpu-dma", whole), whole, False


def _map(fd: int, size: int, protection: int, flags: int) -> int:
    try:
        return hostmem.map_file(fd, 0, size, protection, flags)
    except (OutOfMemory, TransportError) as error:
        if flags & hostmem.MAP_LOCKED:
            error.add("this user may lock fewer pages: look with `ulimit -l`")
            raise
        raise _no_huge_pages(size) from error


def _no_huge_pages(size: int) -> OutOfMemory:
    count = align_up(size, _HUGE) // _HUGE
    return OutOfMemory(
        f"{size:#x} bytes for DMA without an IOMMU: the system has no {count} free huge pages of"
        " 2 MiB. `echo 64 | sudo tee /proc/sys/vm/nr_hugepages` sets 128 MiB apart; or `echo 0 |"
        f" sudo tee {_COMPACT}` keeps locked pages where they are"
    )


def _pieces(system: Os, address: int, size: int) -> Iterator[DmaPiece]:
    """Where pages are in physical memory, those in a row together."""
    count = size // hostmem.page_size
    fd = system.open(_PAGEMAP, os.O_RDONLY)
    try:
        data = system.pread(fd, 8 * count, address // hostmem.page_size * 8)
    finally:
        system.close(fd)
    if len(data) != 8 * count:
        raise TransportError(f"{_PAGEMAP} told {len(data)} of {8 * count} bytes")
    start = length = 0
    for (entry,) in struct.iter_unpack("<Q", data):
        if not entry & _PRESENT:
            raise Unsupported(f"memory for DMA at {address:#x} is not there, though it was locked")
        if not entry & _FRAME:
            raise AccessDenied(
                _PAGEMAP,
                "it hides physical addresses from this user: without an IOMMU a driver runs as"
                " root, which VFIO does not need",
            )
        place = (entry & _FRAME) * hostmem.page_size
        if length and place == start + length:
            length += hostmem.page_size
            continue
        if length:
            yield DmaPiece(BusAddr(start), length)
        start, length = place, hostmem.page_size
    yield DmaPiece(BusAddr(start), length)

"""Memory of this process at addresses we choose: reservations, fixed mappings, shared memory.

Everything goes through the C library, since Python's `mmap` cannot place a mapping. Addresses and
sizes are in bytes and whole pages unless said otherwise. A wrong address here unmaps what
the process stands on: these calls are for allocators, not for users.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from functools import cache
from typing import Final

from gpu.core.errors import InvalidValue, OutOfMemory, TransportError, Unsupported
from gpu.core.execmem import PAGE_SIZE

# Numbers of <sys/mman.h> as Linux has them on x86-64 and arm64 (asm-generic/mman-common.h).
PROT_NONE: Final = 0
PROT_READ: Final = 1
PROT_WRITE: Final = 2
PROT_EXEC: Final = 4
MAP_SHARED: Final = 0x01
MAP_PRIVATE: Final = 0x02
MAP_FIXED: Final = 0x10
MAP_ANONYMOUS: Final = 0x20
MAP_LOCKED: Final = 0x2000
MAP_NORESERVE: Final = 0x4000
MAP_POPULATE: Final = 0x8000
MAP_FIXED_NOREPLACE: Final = 0x100000
_MADV_DONTFORK: Final = 10
_MADV_HUGEPAGE: Final = 14
MFD_HUGETLB: Final = 4
_MFD_CLOEXEC: Final = 1
_MAP_FAILED: Final = ctypes.c_void_p(-1).value

page_size: Final = PAGE_SIZE
"""Bytes of a page of this process."""


def reserve(size: int, align: int = 0, beyond: int = 0) -> int:
    """Takes `size` bytes of address space that nothing may touch yet; returns the address.

    Args:
        size: in bytes, rounded up to whole pages.
        align: the address is a multiple of it; a power of two, by default the page size.
        beyond: how far beyond such a multiple the address is instead, whole pages.

    Raises InvalidValue, and OutOfMemory where there is no such room.
    """
    align = max(align, page_size)
    if align & (align - 1):
        raise InvalidValue(f"alignment {align:#x} of a reservation: it must be a power of two")
    size = _whole_pages(size)
    flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE
    # More than needed, so that an aligned part is inside; the rest is given back.
    slack = align - page_size
    start = map_file(-1, 0, size + slack, PROT_NONE, flags)
    address = start + (beyond - start) % align
    if address > start:
        unmap(start, address - start)
    if start + slack > address:
        unmap(address + size, start + slack - address)
    return address


def release(address: int, size: int) -> None:
    """Gives back a reservation, with all that was mapped in it. Raises as `unmap` does."""
    unmap(address, size)


def map_anonymous(
    size: int,
    address: int = 0,
    fixed: bool = False,
    populate: bool = False,
    sparse: bool = False,
) -> int:
    """Maps zeroed, readable and writable memory of this process alone; returns its address.

    Args:
        size: in bytes, rounded up to whole pages.
        address: where to put it; a mere wish unless `fixed`.
        fixed: take the place of whatever is at `address`.
        populate: touch every page now rather than on first use.
        sparse: few of its pages will be used: the others do not count as memory that this process
            may need, of which Linux refuses to fork more than the machine has.

    Raises InvalidValue for a size or address that cannot be, OutOfMemory, TransportError.
    """
    flags = MAP_PRIVATE | MAP_ANONYMOUS
    flags |= (MAP_FIXED if fixed else 0) | (MAP_POPULATE if populate else 0)
    flags |= MAP_NORESERVE if sparse else 0
    return map_file(-1, 0, size, PROT_READ | PROT_WRITE, flags, address)


def map_fixed(fd: int, offset: int, size: int, address: int, prot: int, flags: int) -> int:
    """Maps a file at exactly `address`, in the place of what is there; returns the address.

    `flags` are MAP_SHARED or MAP_PRIVATE and others; MAP_FIXED is added. Reserve the range first:
    a mapping that is not the caller's would be lost. Raises as `map_file` does.
    """
    if address <= 0:
        raise InvalidValue(f"address {address:#x} for a fixed mapping: reserve one first")
    return map_file(fd, offset, size, prot, flags | MAP_FIXED, address)


def map_file(fd: int, offset: int, size: int, prot: int, flags: int, address: int = 0) -> int:
    """The C library's mmap; returns the address. `size` is rounded up to whole pages.

    Offsets have 64 bits: device files give meanings to the highest ones (amdgpu's KFD puts the
    kind of a mapping into bits 62 and 63, drivers/gpu/drm/amd/amdkfd/kfd_priv.h).

    Raises InvalidValue for a size below 1 and for addresses or offsets that are no multiples of
    the page size, OutOfMemory where there is no room, TransportError otherwise.
    """
    _check_pages("address", address)
    _check_pages("offset", offset, bits=64)
    size = _whole_pages(size)
    # ctypes takes the low 64 bits: an offset from 2**63 on reaches the kernel as it was given.
    found = _libc().mmap(address, size, prot, flags, fd, offset)
    if found is None or found == _MAP_FAILED:
        raise _failure(f"mapping {size:#x} bytes of fd {fd} at {address:#x}, offset {offset:#x}")
    return int(found)


def unmap(address: int, size: int) -> None:
    """Unmaps whole pages; what is not mapped is no error. Raises InvalidValue, TransportError."""
    _check_pages("address", address)
    if _libc().munmap(address, _whole_pages(size)):
        raise _failure(f"unmapping {size:#x} bytes at {address:#x}")


def memfd(name: str, size: int, flags: int = 0) -> int:
    """A file in memory of `size` zeroed bytes; returns its descriptor, which exec closes.

    `name` is only shown in /proc; with `MFD_HUGETLB` in `flags` it is of the system's default huge
    pages, which `size` is then a multiple of, and which mapping it takes. Raises Unsupported where
    the system has no such files, InvalidValue for a size below 1, OutOfMemory and TransportError.
    """
    if size < 1:
        raise InvalidValue(f"a memory file of {size} bytes: it must have at least 1")
    if sys.platform != "linux":
        raise Unsupported(f"files in memory (memfd) need Linux; this is {sys.platform}")
    try:
        fd = os.memfd_create(name, _MFD_CLOEXEC | flags)
    except OSError as error:
        raise _from_errno(f"making the memory file {name!r}", error.errno or 0) from error
    try:
        os.ftruncate(fd, size)
    except (OSError, OverflowError) as error:
        os.close(fd)
        number = error.errno if isinstance(error, OSError) and error.errno else errno.EFBIG
        raise _from_errno(f"sizing the memory file {name!r} to {size} bytes", number) from error
    return fd


def dontfork(address: int, size: int) -> None:
    """Keeps whole pages out of forked children: rings, doorbells, memory that a device reads.

    Without it a fork makes pages copy-on-write, and the parent's next write moves its data away
    from the pages that the device knows. Raises InvalidValue, TransportError.
    """
    _advise(address, size, _MADV_DONTFORK, "keeping out of forked children")


def huge_pages(address: int, size: int) -> bool:
    """Asks for huge pages where the kernel can; False where it has none."""
    try:
        _advise(address, size, _MADV_HUGEPAGE, "huge pages")
    except TransportError as error:
        if error.errno != errno.EINVAL:  # a kernel without CONFIG_TRANSPARENT_HUGEPAGE
            raise
        return False
    return True


def _advise(address: int, size: int, advice: int, what: str) -> None:
    _check_pages("address", address)
    if _libc().madvise(address, _whole_pages(size), advice):
        raise _failure(f"{what}: {size:#x} bytes at {address:#x}")


def _whole_pages(size: int) -> int:
    if size < 1:
        raise InvalidValue(f"{size} bytes of memory: at least 1 is needed")
    rounded = (size + page_size - 1) // page_size * page_size
    if rounded >> 63:
        raise OutOfMemory(f"{size:#x} bytes are more than the address space has")
    return rounded


def _check_pages(what: str, value: int, bits: int = 63) -> None:
    if value < 0 or value % page_size or value >> bits:
        raise InvalidValue(
            f"{what} {value:#x} of a mapping: it must be a multiple of {page_size:#x} "
            f"below 2**{bits}"
        )


def _failure(what: str) -> TransportError | OutOfMemory:
    return _from_errno(what, ctypes.get_errno())


def _from_errno(what: str, number: int) -> TransportError | OutOfMemory:
    message = f"{what}: {os.strerror(number)}"
    if number in (errno.ENOMEM, errno.ENOSPC):
        return OutOfMemory(message)
    return TransportError(message, number)


@cache
def _libc() -> ctypes.CDLL:
    """The C library with prototypes. Raises Unsupported where the numbers above do not hold."""
    if sys.platform != "linux":
        raise Unsupported(f"placing memory is only known for Linux; this is {sys.platform}")
    library = ctypes.CDLL(None, use_errno=True)
    size, pointer = ctypes.c_size_t, ctypes.c_void_p
    library.mmap.argtypes = [
        *(pointer, size, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64),
    ]
    library.mmap.restype = pointer
    library.munmap.argtypes = [pointer, size]
    library.madvise.argtypes = [pointer, size, ctypes.c_int]
    return library

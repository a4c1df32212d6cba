"""How a process maps what the model shows it: pieces of a file in memory, one behind the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gpu.core import hostmem

Pieces = Sequence[tuple[int, int]]
"""Offset and size of each."""


class Mapper(Protocol):
    """Maps for a process; `map_pieces` does it for this one."""

    def __call__(
        self, fd: int, pieces: Pieces, size: int, prot: int, flags: int, address: int
    ) -> int:
        """The address of `size` bytes, the pieces of a file."""
        ...


def map_pieces(fd: int, pieces: Pieces, size: int, prot: int, flags: int, address: int) -> int:
    """Maps `size` bytes of a file's pieces into this process; returns the address.

    `flags` and `address` are those of mmap; errors as of `gpu.core.hostmem.map_file`.
    """
    if len(pieces) == 1:
        return hostmem.map_file(fd, pieces[0][0], size, prot, flags, address)
    keep = flags & ~(hostmem.MAP_SHARED | hostmem.MAP_POPULATE)
    keep |= hostmem.MAP_PRIVATE | hostmem.MAP_ANONYMOUS
    start = hostmem.map_file(-1, 0, size, hostmem.PROT_NONE, keep, address)
    at = start
    for offset, length in pieces:
        part = min(length, start + size - at)
        if part > 0:
            hostmem.map_fixed(fd, offset, part, at, prot, hostmem.MAP_SHARED)
        at += length
    return start

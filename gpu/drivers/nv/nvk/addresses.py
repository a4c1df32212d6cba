"""Addresses that mean the same memory to the host and to the GPU.

UVM reserves addresses a process, not a GPU, and keeping them equal on both sides is what public
drivers do (one saw launches fail with unequal ones), so addresses come from ranges of this process
that nothing else can take. The shader windows near 0x7293_0000_0000 lie outside of both ranges.
"""

from __future__ import annotations

import errno
from typing import Final

from gpu.core import hostmem
from gpu.core.errors import OutOfMemory, TransportError
from gpu.core.tlsf import Tlsf
from gpu.drivers.cleanup import Undo
from gpu.transport.os import Os

GRANULE: Final = 64 << 10
LOW_SIZE: Final = 64 << 30
HIGH_SIZE: Final = 1 << 40
# Entries of a ring and launches hold 40 bits of an address.
_LOW_BASES: Final = range(LOW_SIZE, 1 << 40, LOW_SIZE)
_HIGH_BASES: Final = range(1 << 40, 16 << 40, HIGH_SIZE)

_RESERVED: Final = hostmem.MAP_PRIVATE | hostmem.MAP_ANONYMOUS | hostmem.MAP_NORESERVE


class AddressSpace:
    """Two reserved ranges: 64 GiB below 1 << 40 for what hosts map or channels reach, and 1 TiB.

    All methods raise TransportError where the system refuses. Raises OutOfMemory where no such
    range is free.
    """

    def __init__(self, os: Os):
        self._os = os
        with Undo() as undo:
            self._low = Tlsf(self._reserve(_LOW_BASES, LOW_SIZE, undo), LOW_SIZE, GRANULE)
            self._high = Tlsf(self._reserve(_HIGH_BASES, HIGH_SIZE, undo), HIGH_SIZE, GRANULE)
            self._undo = undo.take()

    def take(self, size: int, align: int = GRANULE, *, low: bool) -> int:
        """``size`` bytes of addresses. Raises OutOfMemory."""
        return (self._low if low else self._high).alloc(size, max(align, GRANULE))

    def give(self, address: int) -> None:
        """Gives back what `take` gave."""
        (self._low if address < 1 << 40 else self._high).free(address)

    @property
    def in_use(self) -> int:
        """Bytes of addresses that are taken."""
        return self._low.in_use + self._high.in_use

    def reserve_again(self, address: int, size: int) -> None:
        """Keeps addresses from others after what was mapped there is gone."""
        flags = _RESERVED | hostmem.MAP_FIXED_NOREPLACE
        self._os.mmap(-1, size, hostmem.PROT_NONE, flags, 0, address)

    def close(self) -> None:
        """Gives the ranges back to the system."""
        self._undo.close()

    def _reserve(self, bases: range, size: int, undo: Undo) -> int:
        flags = _RESERVED | hostmem.MAP_FIXED_NOREPLACE
        for base in bases:
            try:
                self._os.mmap(-1, size, hostmem.PROT_NONE, flags, 0, base)
            except TransportError as error:
                if error.errno != errno.EEXIST:
                    raise
                continue
            undo.add(self._os.munmap, base, size)
            return base
        raise OutOfMemory(
            f"no {size:#x} bytes of addresses are free from {bases.start:#x} to {bases.stop:#x}:"
            " close other NVIDIA devices of this process"
        )

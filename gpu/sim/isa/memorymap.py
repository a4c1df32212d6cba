"""What GPU addresses mean: ranges of host memory, given by whoever owns them."""

from __future__ import annotations

import bisect
import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpu.core.errors import InvalidValue
from gpu.sim.isa import layout


class MemoryMap:
    """Sorted ranges of GPU addresses backed by host memory, which must outlive it.

    An access must lie in one range: the owner joins neighbours whose host memory is adjacent too.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ranges: list[tuple[int, int, int, int]] = []
        self._table: npt.NDArray[np.uint64] | None = None

    def add(
        self, address: int, size: int, host_address: int, flags: int, scalar: bool = True
    ) -> None:
        """Maps `size` bytes; `flags` are of `layout.READ`, `WRITE`, `ATOMIC`.

        What may be read may be read by scalar loads, too, unless it is not `scalar`. Raises
        InvalidValue for a range that is empty or overlaps another.
        """
        if size < 1:
            raise InvalidValue(f"a range of {size} bytes at {address:#x}; it must have some")
        if scalar and flags & layout.READ:
            flags |= layout.SCALAR
        index = bisect.bisect(self._starts, address)
        after = self._starts[index] if index < len(self._starts) else None
        before = self._ranges[index - 1] if index else None
        if (after is not None and address + size > after) or (
            before is not None and before[0] + before[1] > address
        ):
            raise InvalidValue(f"{size:#x} bytes at {address:#x} overlap another range")
        self._starts.insert(index, address)
        self._ranges.insert(index, (address, size, host_address, flags))
        self._table = None

    def remove(self, address: int) -> None:
        """Unmaps the range that begins at an address. Raises InvalidValue where none does."""
        index = bisect.bisect_left(self._starts, address)
        if index == len(self._starts) or self._starts[index] != address:
            raise InvalidValue(f"no range begins at {address:#x}")
        del self._starts[index], self._ranges[index]
        self._table = None

    def replace(self, ranges: Sequence[tuple[int, int, int, int]]) -> None:
        """Maps these and nothing else: (address, size, host address, flags), sorted, apart."""
        self._starts = [start for start, *_ in ranges]
        self._ranges = list(ranges)
        self._table = None

    def table(self) -> npt.NDArray[np.uint64]:
        """The ranges as native code reads them; valid until the map changes."""
        if self._table is None:
            rows = [
                (start, size, (host - start) % (1 << 64), flags)
                for start, size, host, flags in self._ranges
            ]
            self._table = np.array(rows, np.uint64).reshape(len(rows), 4)
        return self._table

    def allows(self, address: int, size: int, access: int) -> bool:
        """Whether an access lies in one range that allows it."""
        index = bisect.bisect(self._starts, address) - 1
        if index < 0:
            return False
        start, length, _, flags = self._ranges[index]
        return address - start + size <= length and flags & access == access

    def host_address(self, address: int, size: int) -> int | None:
        """Where `size` bytes lie in the host's memory; None where they are not mapped."""
        index = bisect.bisect(self._starts, address) - 1
        if index < 0:
            return None
        start, length, host, _ = self._ranges[index]
        return host + address - start if address - start + size <= length else None

    def read(self, address: int, size: int) -> bytes:
        """Up to `size` bytes, fewer where the range ends, none where there is none."""
        index = bisect.bisect(self._starts, address) - 1
        if index < 0:
            return b""
        start, length, host, _ = self._ranges[index]
        count = max(0, min(size, start + length - address))
        return ctypes.string_at(host + address - start, count)

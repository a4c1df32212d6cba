"""What GPU addresses mean: ranges of host memory, given by whoever owns them."""

from __future__ import annotations

import bisect
import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpu.core.errors import InvalidValue
from gpu.sim.isa import layout


class Offer(NamedTuple):
    """What native code may add to the flags of a range by itself when a wave misses it.

    Attributes:
        flags: bits of `layout`.
        data: where it copies the range before it is first read as data; 0 for nowhere.
        scalar: the same for scalar loads.
    """

    flags: int = 0
    data: int = 0
    scalar: int = 0


class Table:
    """Ranges as native code reads them, which adds flags as they are offered.

    Attributes:
        rows: `layout.RANGE` of each.
        offered: `Offer` of each, none where nothing is offered.
        address, offers: where those are; 0 for no offers.
        count: of ranges.
    """

    __slots__ = ("address", "count", "offered", "offers", "rows")

    def __init__(self, ranges: Sequence[tuple[int, int, int, int]], offers: Sequence[Offer]):
        rows = [
            (start, size, (host - start) % (1 << 64), flags) for start, size, host, flags in ranges
        ]
        self.rows = np.array(rows, np.uint64).reshape(len(rows), 4)
        self.address = self.rows.ctypes.data
        self.count = len(rows)
        self.offered = np.array(offers, np.uint64).reshape(len(offers), 3)
        self.offers = self.offered.ctypes.data if offers else 0


class MemoryMap:
    """Sorted ranges of GPU addresses backed by host memory, which must outlive it.

    An access must lie in one range: the owner joins neighbours whose host memory is adjacent too.

    Attributes:
        current: what `table` gave last; None where that has changed.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ranges: list[tuple[int, int, int, int]] = []
        self._offers: Sequence[Offer] = ()
        self.current: Table | None = None

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
        self._offers, self.current = (), None

    def remove(self, address: int) -> None:
        """Unmaps the range that begins at an address. Raises InvalidValue where none does."""
        index = bisect.bisect_left(self._starts, address)
        if index == len(self._starts) or self._starts[index] != address:
            raise InvalidValue(f"no range begins at {address:#x}")
        del self._starts[index], self._ranges[index]
        self._offers, self.current = (), None

    def replace(
        self, ranges: Sequence[tuple[int, int, int, int]], offers: Sequence[Offer] = ()
    ) -> None:
        """Maps these and nothing else: (address, size, host address, flags), sorted, apart.

        What is offered of each is seen in `table` once it was taken.
        """
        self._starts = [start for start, *_ in ranges]
        self._ranges, self._offers = list(ranges), offers
        self.current = None

    def table(self) -> Table:
        """The ranges as native code reads them; valid until the map changes."""
        if self.current is None:
            self.current = Table(self._ranges, self._offers)
        return self.current

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

"""Two-level segregated fit: an allocator of address ranges with O(1) alloc and free.

After Masmano, Ripoll, Crespo and Real, "TLSF: a new dynamic memory allocator for real-time
systems" (ECRTS 2004). Holes are kept in lists by size class: the first level is the power of two
below the size, the second splits it into 32 equal steps. One bitmap per level finds the first list
that surely fits. What is managed is device memory, so the bookkeeping lives beside it, not in it.
The same calls always give the same addresses.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gpu.core.bits import align_up, is_power_of_two
from gpu.core.errors import InvalidValue, OutOfMemory

_STEP_BITS = 5
_STEPS = 1 << _STEP_BITS  # lists for each power of two


class Span(NamedTuple):
    """A stretch of the managed range, allocated or a hole, as memory maps show it."""

    address: int
    size: int
    allocated: bool


class _Block:
    """A stretch of memory in address order, and while it is a hole also in its class's list."""

    __slots__ = ("address", "after", "allocated", "before", "next", "previous", "size")

    def __init__(self, address: int, size: int, before: _Block | None, after: _Block | None):
        self.address = address
        self.size = size
        self.allocated = False
        self.before = before  # neighbours by address
        self.after = after
        self.previous: _Block | None = None  # neighbours in the list of holes of one class
        self.next: _Block | None = None

    @property
    def end(self) -> int:
        return self.address + self.size


class Tlsf:
    """Allocates from ``size`` bytes at ``base``, in multiples of ``granule`` (a power of two).

    Addresses are numbers; the memory is never touched. Holes that meet are merged at once.
    """

    def __init__(self, base: int, size: int, granule: int):
        if not is_power_of_two(granule):
            raise InvalidValue(f"granule of {granule} bytes: give a power of two")
        if base < 0 or size <= 0 or base % granule or size % granule:
            raise InvalidValue(
                f"range of {size:#x} bytes at {base:#x}: both must be multiples of the granule "
                f"{granule:#x}, and the size positive"
            )
        self.base = base
        self.size = size
        self.granule = granule
        self.in_use = 0  # bytes allocated, rounded up to granules
        self._allocated: dict[int, _Block] = {}
        self._holes: dict[int, _Block] = {}  # class -> head of its list
        self._levels = 0  # bit i: some list of first level i is not empty
        self._steps: dict[int, int] = {}  # first level -> bit j: its list j is not empty
        self._first = _Block(base, size, None, None)
        self._add_hole(self._first)

    def alloc(self, size: int, align: int | None = None) -> int:
        """The address of ``size`` bytes (rounded up to granules), a multiple of ``align``.

        Raises `OutOfMemory` exactly when no hole can hold it, and `InvalidValue` for a size that is
        not positive or an alignment that is no power of two.
        """
        align = self.granule if align is None else align
        if size <= 0 or not is_power_of_two(align):
            raise InvalidValue(
                f"allocating {size} bytes aligned to {align}: the size must be positive and the "
                "alignment a power of two"
            )
        needed = align_up(size, self.granule)
        align = max(align, self.granule)
        # A hole of this size fits wherever it begins.
        hole = self._hole_of_at_least(needed + align - self.granule)
        if hole is None:
            hole = self._search(needed, align)
        if hole is None:
            raise OutOfMemory(
                f"no room for {size} bytes aligned to {align}: {self.in_use} of {self.size} bytes "
                f"are in use, the largest hole has {self.largest_hole}"
            )
        return self._take(hole, align_up(hole.address, align), needed)

    def free(self, address: int) -> None:
        """Give back what `alloc` returned; `InvalidValue` for any other address."""
        block = self._allocated.pop(address, None)
        if block is None:
            raise InvalidValue(f"freeing {address:#x}: {self._what_is_at(address)}")
        self.in_use -= block.size
        block.allocated = False
        if block.before is not None and not block.before.allocated:
            self._remove_hole(block.before)
            block = self._merge(block.before, block)
        if block.after is not None and not block.after.allocated:
            self._remove_hole(block.after)
            block = self._merge(block, block.after)
        self._add_hole(block)

    def size_of(self, address: int) -> int:
        """How many bytes an allocation really has; `InvalidValue` when it is none."""
        if address not in self._allocated:
            raise InvalidValue(f"size of {address:#x}: {self._what_is_at(address)}")
        return self._allocated[address].size

    @property
    def largest_hole(self) -> int:
        """The size of the largest hole in bytes."""
        if not self._levels:
            return 0
        level = self._levels.bit_length() - 1
        step = self._steps[level].bit_length() - 1
        return max(hole.size for hole in self._list(level * _STEPS + step))

    def spans(self) -> Iterator[Span]:
        """All memory in address order, allocations and holes."""
        block: _Block | None = self._first
        while block is not None:
            yield Span(block.address, block.size, block.allocated)
            block = block.after

    def _class_of(self, size: int) -> int:
        """The number of the list for holes of this size; it grows with the size."""
        granules = size // self.granule
        level = max(granules.bit_length() - 1 - _STEP_BITS, 0)
        # Up to 2 * _STEPS granules each size has a list of its own.
        return level * _STEPS + (granules >> level)

    def _hole_of_at_least(self, size: int) -> _Block | None:
        """A hole from the first list whose holes are all large enough, in constant time."""
        granules = size // self.granule
        round_up = (1 << max(granules.bit_length() - 1 - _STEP_BITS, 0)) - 1
        number = self._class_of((granules + round_up) * self.granule)
        level, step = divmod(number, _STEPS)
        steps = self._steps.get(level, 0) >> step << step
        if not steps:
            above = self._levels >> (level + 1) << (level + 1)
            if not above:
                return None
            level = _lowest_bit(above)
            steps = self._steps[level]
        return self._holes[level * _STEPS + _lowest_bit(steps)]

    def _search(self, size: int, align: int) -> _Block | None:
        """The first hole that holds an aligned range, among all that may; only when nearly full."""
        first = self._class_of(size)
        for number in sorted(number for number in self._holes if number >= first):
            for hole in self._list(number):
                if align_up(hole.address, align) + size <= hole.end:
                    return hole
        return None

    def _take(self, hole: _Block, address: int, size: int) -> int:
        """Allocate a part of a hole; what is left at either end stays a hole."""
        self._remove_hole(hole)
        if address > hole.address:
            front, hole = hole, self._split(hole, address)
            self._add_hole(front)
        if hole.size > size:
            self._add_hole(self._split(hole, address + size))
        hole.allocated = True
        self._allocated[address] = hole
        self.in_use += size
        return address

    def _split(self, block: _Block, address: int) -> _Block:
        """Cut a block in two; the second part."""
        rest = _Block(address, block.end - address, block, block.after)
        if block.after is not None:
            block.after.before = rest
        block.after = rest
        block.size = address - block.address
        return rest

    def _merge(self, low: _Block, high: _Block) -> _Block:
        """Make one block of two neighbours."""
        low.size += high.size
        low.after = high.after
        if high.after is not None:
            high.after.before = low
        return low

    def _add_hole(self, block: _Block) -> None:
        number = self._class_of(block.size)
        level, step = divmod(number, _STEPS)
        block.previous, block.next = None, self._holes.get(number)
        if block.next is not None:
            block.next.previous = block
        self._holes[number] = block
        self._levels |= 1 << level
        self._steps[level] = self._steps.get(level, 0) | 1 << step

    def _remove_hole(self, block: _Block) -> None:
        if block.next is not None:
            block.next.previous = block.previous
        if block.previous is not None:
            block.previous.next = block.next
            return
        number = self._class_of(block.size)
        if block.next is not None:
            self._holes[number] = block.next
            return
        del self._holes[number]
        level, step = divmod(number, _STEPS)
        self._steps[level] &= ~(1 << step)
        if not self._steps[level]:
            self._levels &= ~(1 << level)

    def _list(self, number: int) -> Iterator[_Block]:
        hole = self._holes.get(number)
        while hole is not None:
            yield hole
            hole = hole.next

    def _what_is_at(self, address: int) -> str:
        """Why an address is no allocation, in words."""
        for span in self.spans():
            if span.address <= address < span.address + span.size:
                where = f"{span.size:#x} bytes at {span.address:#x}"
                if span.allocated:
                    return f"it is inside the allocation of {where}"
                return f"it is in the hole of {where}: freed twice, or never allocated"
        return f"it is outside the {self.size:#x} bytes at {self.base:#x}"


def _lowest_bit(value: int) -> int:
    """The index of the lowest one of a positive number."""
    return (value & -value).bit_length() - 1

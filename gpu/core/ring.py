"""Rings whose bytes are handed out again only after their fence has passed.

Command rings, argument arenas and staging buffers are all this: the host appends, a device consumes
in order and tells how far it is by a timeline value.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from gpu.core.bits import align_up
from gpu.core.errors import InvalidValue, OutOfMemory


class FencedRing:
    """Hands out contiguous ranges of ``size`` bytes in turn, each until its fence has passed.

    Reserve what a submission needs, submit it, then stamp it with the timeline value that the
    device will reach after it::

        offset = ring.reserve(256)
        ...                            # fill it, tell the device
        ring.fence(value)

    ``wait_for(value)`` returns when a value has passed; a full ring calls it with the oldest value
    that frees enough. Values are only handed back, never compared, so that they may wrap around;
    fences must pass in the order in which they were given. When ``wait_for`` raises, the ring is
    as it was before.
    """

    def __init__(self, size: int, wait_for: Callable[[int], None], align: int = 1):
        if size <= 0 or not 0 < align <= size:
            raise InvalidValue(f"a ring of {size} bytes aligned to {align}: give 0 < align <= size")
        self.size = size
        self.align = align
        self._wait_for = wait_for
        # Positions count bytes since the ring was made and never wrap: the offset of a position is
        # position % size, and the live bytes are those from _tail to _head.
        self._head = 0
        self._tail = 0
        self._fences: deque[tuple[int, int]] = deque()  # (value, position where its bytes end)

    @property
    def in_use(self) -> int:
        """Bytes not known to be free, with what was skipped for alignment and at the end."""
        return self._head - self._tail

    @property
    def free(self) -> int:
        """Bytes that can be reserved without waiting, if they need not be contiguous."""
        return self.size - self.in_use

    def reserve(self, size: int, align: int | None = None) -> int:
        """The offset of ``size`` contiguous bytes, aligned from the ring's start.

        Waits for the oldest fences when the ring is full. Raises `InvalidValue` for more than the
        ring's size, and `OutOfMemory` when bytes without a fence are in the way: no wait would
        ever free those.
        """
        align = self.align if align is None else align
        if not 0 < size <= self.size or not 0 < align <= self.size:
            raise InvalidValue(
                f"reserving {size} bytes aligned to {align} in a ring of {self.size}: "
                f"both must be 1 to {self.size}"
            )
        start = self._next_start(size, align)
        if start + size - self._tail > self.size:
            start = self._make_room(start, size)
        self._head = start + size
        return start % self.size

    def fence(self, value: int) -> None:
        """Stamp all that was reserved since the last fence: free again once ``value`` passed."""
        if self._head != self._last_fenced():
            self._fences.append((value, self._head))

    def _next_start(self, size: int, align: int) -> int:
        """The first position from the head on where an aligned range fits before the end."""
        turn = self._head - self._head % self.size
        offset = align_up(self._head - turn, align)
        return turn + offset if offset + size <= self.size else turn + self.size

    def _make_room(self, start: int, size: int) -> int:
        """Wait until a range at ``start`` is free; the position where it can begin.

        A ring that has run empty starts again at its beginning, where everything fits.
        """
        for value, end in self._fences:
            if start + size - end <= self.size:
                self._retire(value, end)
                return start
        unfenced = self._head - self._last_fenced()
        if unfenced:
            raise OutOfMemory(
                f"reserving {size} bytes in a ring of {self.size}: {unfenced} bytes have no fence "
                "yet and are in the way; submit and fence them first, or make the ring larger"
            )
        if self._fences:
            self._retire(*self._fences[-1])
        self._head = self._tail = align_up(self._head, self.size)
        return self._head

    def _retire(self, value: int, end: int) -> None:
        """Wait for a fence; all bytes up to its end are free then."""
        self._wait_for(value)
        self._tail = end
        while self._fences and self._fences[0][1] <= end:
            self._fences.popleft()

    def _last_fenced(self) -> int:
        """Where the bytes with a fence end."""
        return self._fences[-1][1] if self._fences else self._tail

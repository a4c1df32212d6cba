"""Who touched which bytes, and what nothing orders among them.

Two pieces of work that touch the same bytes, one of them writing, must be ordered: by their stream,
by an event, by the default stream, or by a wait of the host between them. Hardware gives no answer
else, only one that varies.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Literal, NamedTuple

How = Literal["read", "write", "atomic"]
_MOST: Final = 4096  # accesses that are kept


class Access(NamedTuple):
    """Bytes that work touches: from `start`, before `end`."""

    start: int
    end: int
    how: How


class Spans:
    """A set of bytes, as pairs of a start and the end behind it, sorted and apart."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int]] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._spans)

    def add(self, start: int, end: int) -> None:
        """Takes bytes in; what lies side by side becomes one."""
        first = bisect.bisect_left(self._spans, start, key=lambda span: span[1])
        last = bisect.bisect(self._spans, end, first, key=lambda span: span[0])
        if first < last:
            start = min(start, self._spans[first][0])
            end = max(end, self._spans[last - 1][1])
        self._spans[first:last] = [(start, end)]


class Knowledge:
    """What has certainly happened: for each stream the number of its last such work."""

    __slots__ = ("_last",)

    def __init__(self, *others: Knowledge):
        self._last: dict[int, int] = {}
        for other in others:
            self.add(other)

    def add(self, other: Knowledge) -> None:
        """All that another knows too."""
        for stream, number in other._last.items():
            self.note(stream, number)

    def note(self, stream: int, number: int) -> None:
        """Work of a stream has happened, and all before it."""
        if self._last.get(stream, 0) < number:
            self._last[stream] = number

    def last(self, stream: int) -> int:
        """The number of a stream's last work that has happened, 0 for none."""
        return self._last.get(stream, 0)

    def covers(self, stream: int, number: int) -> bool:
        """Whether work of a stream, numbered from 1, has happened."""
        return self._last.get(stream, 0) >= number


class Touched(NamedTuple):
    """An access, and whose it was."""

    access: Access
    stream: int
    number: int
    knows: Knowledge
    what: str


class Races:
    """The accesses of work that has run, as far as later work may be unordered with it."""

    def __init__(self, tell: Callable[[str], None]):
        """`tell` takes what was found."""
        self._tell = tell
        self._kept: list[Touched] = []

    def add(self, accesses: Iterable[Touched]) -> None:
        """Looks for accesses that nothing orders with these, and keeps them."""
        for touched in accesses:
            for other in self._kept:
                if _collide(touched, other):
                    self._tell(_told(touched, other))
                    break
            self._kept.append(touched)
        del self._kept[:-_MOST]

    def forget(self, happened: Iterable[Knowledge]) -> None:
        """Drops what all of these know to have happened."""
        known = list(happened)
        self._kept = [t for t in self._kept if not all(k.covers(t.stream, t.number) for k in known)]


def _collide(a: Touched, b: Touched) -> bool:
    if a.stream == b.stream and a.number == b.number:
        return False
    if a.access.end <= b.access.start or b.access.end <= a.access.start:
        return False
    if a.access.how == b.access.how != "write":
        return False
    return not (a.knows.covers(b.stream, b.number) or b.knows.covers(a.stream, a.number))


def _told(a: Touched, b: Touched) -> str:
    start, end = max(a.access.start, b.access.start), min(a.access.end, b.access.end)
    return (
        f"bytes {start:#x} to {end:#x}: {a.access.how} by {a.what}, {b.access.how} by {b.what},"
        " and nothing orders the two"
    )

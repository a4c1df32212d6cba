"""Which earlier accesses of memory a new one has to wait for, byte by byte."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Range = tuple[int, int]
"""Bytes from the first address up to, and without, the second."""
Q = TypeVar("Q")


@dataclass(slots=True)
class _Span(Generic[Q]):
    """What happened last to some bytes: who wrote them, and who read them since."""

    start: int
    end: int
    writer: tuple[Q, int] | None = None
    readers: dict[Q, int] = field(default_factory=dict)

    def cut(self, at: int) -> _Span[Q]:
        """Split in two; this one keeps the bytes before ``at``."""
        rest = _Span(at, self.end, self.writer, dict(self.readers))
        self.end = at
        return rest


class DependencyTracker(Generic[Q]):
    """Turns reads and writes of byte ranges into waits: a queue, and a value of its timeline.

    A read waits for the last writers of its bytes; a write also for all who read them since.
    Values of one queue must grow, as its commands run in order: only the largest is kept.
    """

    def __init__(self) -> None:
        self._spans: list[_Span[Q]] = []  # disjoint, by address

    def access(
        self, queue: Q, value: int, reads: Iterable[Range], writes: Iterable[Range]
    ) -> dict[Q, int]:
        """Note what submission ``value`` of ``queue`` touches; what it must wait for.

        Waits for the queue itself are left out: its commands run in order.
        """
        waits: dict[Q, int] = {}
        read, written = list(reads), list(writes)
        for start, end in read:
            for span in self._cut_out(start, end):
                _note(waits, span.writer)
        for start, end in written:
            for span in self._cut_out(start, end):
                _note(waits, span.writer)
                for reader in span.readers.items():
                    _note(waits, reader)
        for start, end in read:
            for span in self._cut_out(start, end):
                span.readers[queue] = value
        for start, end in written:
            self._overwrite(_Span(start, end, (queue, value)))
        waits.pop(queue, None)
        return waits

    def _cut_out(self, start: int, end: int) -> list[_Span[Q]]:
        """The spans that cover exactly a range; made where there are none."""
        if start >= end:
            return []
        self._split(start)
        self._split(end)
        first = bisect_left(self._spans, start, key=_start)
        last = bisect_left(self._spans, end, key=_start)
        covering: list[_Span[Q]] = []
        for span in self._spans[first:last]:
            if span.start > start:
                covering.append(_Span(start, span.start))
            covering.append(span)
            start = span.end
        if start < end:
            covering.append(_Span(start, end))
        self._spans[first:last] = covering
        return covering

    def _split(self, at: int) -> None:
        index = bisect_right(self._spans, at, key=_start) - 1
        if index >= 0 and self._spans[index].start < at < self._spans[index].end:
            self._spans.insert(index + 1, self._spans[index].cut(at))

    def _overwrite(self, span: _Span[Q]) -> None:
        if span.start < span.end:
            self._cut_out(span.start, span.end)
            first = bisect_left(self._spans, span.start, key=_start)
            last = bisect_left(self._spans, span.end, key=_start)
            self._spans[first:last] = [span]


def _start(span: _Span[Q]) -> int:
    return span.start


def _note(waits: dict[Q, int], point: tuple[Q, int] | None) -> None:
    if point is not None:
        waits[point[0]] = max(waits.get(point[0], 0), point[1])

"""Spans of memory that were used and are to be cleared, in as few pieces as can be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_LEAST: Final = 64  # how many are kept as they came


class Spans:
    """Bytes of a memory, of which some are named more than once."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []
        self._merged = _LEAST  # how many there were at least when they last were merged

    def add(self, start: int, size: int) -> None:
        """Some more bytes."""
        self._ranges.append((start, start + size))
        if len(self._ranges) > 2 * self._merged:
            self._ranges = _merge(self._ranges)
            self._merged = max(len(self._ranges), _LEAST)

    def take(self) -> Iterator[tuple[int, int]]:
        """Where each piece begins, and how many bytes it has, in order; none are left."""
        ranges, self._ranges = _merge(self._ranges), []
        for start, end in ranges:
            yield start, end - start


def _merge(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same bytes in as few ranges as can be, in order."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged

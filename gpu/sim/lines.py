"""Copies of lines of memory, as caches hold them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

R = TypeVar("R")
LINE: Final = 128
"""Bytes of a line."""
_LINES: Final = 128
_BLOCK: Final = _LINES * LINE
_MANY: Final = 256


class _Block:
    """Lines that lie together: their bytes, and which of them there are."""

    __slots__ = ("data", "held")

    def __init__(self) -> None:
        self.data = bytearray(_BLOCK)
        self.held = 0


class Lines(Generic[R]):
    """Lines of regions. Offsets and sizes are in bytes; those of lines are multiples of `LINE`.

    Most are forgotten before anyone asks for them, so what is taken is put into blocks only when
    something else meets it.
    """

    def __init__(self) -> None:
        self._blocks: dict[tuple[R, int], _Block] = {}
        self._taken: list[tuple[R, int, int, bytes]] = []  # with where they end

    def clear(self) -> None:
        """Forgets all."""
        self._blocks.clear()
        self._taken.clear()

    def take(self, region: R, start: int, seen: bytes) -> list[int]:
        """Holds whole lines as they are seen, those that it holds already excepted.

        Gives the offsets of the lines of which it holds something else. `seen` must not change.
        """
        end = start + len(seen)
        if (self._taken or self._blocks) and not self._is_free(region, start, end):
            self._settle()
            return self._hold(region, start, seen)
        self._taken.append((region, start, end, seen))
        return []

    def _is_free(self, region: R, start: int, end: int) -> bool:
        """Whether it is plain that it holds nothing of a range: while little is held."""
        if self._blocks or len(self._taken) > _MANY:
            return False
        for of, first, last, _ in self._taken:
            if of is region and first < end and start < last:
                return False
        return True

    def _settle(self) -> None:
        """Puts into blocks what was taken."""
        taken, self._taken = self._taken, []
        for region, start, _, seen in taken:
            self._hold(region, start, seen)

    def _hold(self, region: R, start: int, seen: bytes) -> list[int]:
        differing: list[int] = []
        for number, first, last in _pieces(start, len(seen)):
            block = self._blocks.get((region, number))
            if block is None:
                block = self._blocks[region, number] = _Block()
            base = number * _BLOCK
            piece = seen[base + first * LINE - start : base + last * LINE - start]
            wanted = _mask(first, last)
            held = block.held & wanted
            if not held:
                block.data[first * LINE : last * LINE] = piece
            elif held != wanted or block.data[first * LINE : last * LINE] != piece:
                for line in range(first, last):
                    at = base + line * LINE
                    now = seen[at - start : at - start + LINE]
                    if not held >> line & 1:
                        block.data[line * LINE : (line + 1) * LINE] = now
                    elif block.data[line * LINE : (line + 1) * LINE] != now:
                        differing.append(at)
            block.held |= wanted
        return differing

    def within(self, region: R, offset: int, size: int) -> Iterator[int]:
        """The offsets of the lines with a byte of a range that it holds."""
        for number, wanted in self._meeting(region, offset, size):
            held = self._blocks[region, number].held & wanted
            while held:
                lowest = held & -held
                yield number * _BLOCK + (lowest.bit_length() - 1) * LINE
                held ^= lowest

    def drop(self, region: R, offset: int, size: int) -> None:
        """Forgets the lines with a byte of a range."""
        for number, dropped in self._meeting(region, offset, size):
            block = self._blocks[region, number]
            block.held &= ~dropped
            if not block.held:
                del self._blocks[region, number]

    def _meeting(self, region: R, offset: int, size: int) -> list[tuple[int, int]]:
        """The blocks that meet a range, by number, with a mask of its lines in each.

        A range may be much larger than all that is held: a buffer of gigabytes that is freed.
        """
        if self._is_free(region, offset, offset + size):
            return []
        self._settle()
        begin, end = offset // LINE, -(-(offset + size) // LINE)
        numbers = range(begin // _LINES, -(-end // _LINES))
        if len(numbers) > len(self._blocks):
            held = sorted(n for of, n in self._blocks if of == region and n in numbers)
        else:
            held = [n for n in numbers if (region, n) in self._blocks]
        bounds = ((n, max(begin - n * _LINES, 0), min(end - n * _LINES, _LINES)) for n in held)
        return [(n, _mask(first, last)) for n, first, last in bounds]

    def __getitem__(self, line: tuple[R, int]) -> bytes:
        """What it holds of a line that it holds."""
        self._settle()
        region, at = line
        data = self._blocks[region, at // _BLOCK].data
        return bytes(data[at % _BLOCK : at % _BLOCK + LINE])

    def __setitem__(self, line: tuple[R, int], data: bytes) -> None:
        """Changes a line that it holds."""
        self._settle()
        region, at = line
        self._blocks[region, at // _BLOCK].data[at % _BLOCK : at % _BLOCK + LINE] = data


def _pieces(start: int, size: int) -> Iterator[tuple[int, int, int]]:
    """(number of a block, first line in it, the one behind the last) of lines from a start on."""
    line, end = start // LINE, -(-(start + size) // LINE)
    while line < end:
        number, first = divmod(line, _LINES)
        last = min(_LINES, first + end - line)
        yield number, first, last
        line += last - first


def _mask(first: int, last: int) -> int:
    return (1 << last) - (1 << first)

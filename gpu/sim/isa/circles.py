"""Waves that go round in circles, and grids in which no wave does anything else.

A wave does what its registers and the memory say. So one that is back where it was, with the same
registers, on a way that writes no memory, does the same again for as long as others leave the
memory alone. Of loops whose registers change all the time this says nothing, except of those from
which no way leads to an end of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final, Protocol

_MOST_MISSES: Final = 256
"""Looks at which a wave that is not back has left its circle. It may come by again later, where
its lanes take turns at random."""
_MOST_TOLD: Final = 4


class Code(Protocol):
    """A program as far as ways through it go; places are numbers."""

    def following(self, place: int) -> Iterable[int] | None:
        """Where it may go on behind an instruction; None where it may end, or go anywhere."""
        ...

    def is_plain(self, place: int) -> bool:
        """Whether an instruction does what registers and memory say, and writes no memory."""
        ...


class Found(Enum):
    """What a look at a wave has shown."""

    NOTHING = 0
    CIRCLE = 1  # it goes round in one; by now it may have gone round only once
    CLOSED = 2  # it has gone round again
    LEFT = 3  # it has left its circle
    ENDLESS = 4  # no way leads to an end, whatever the memory holds


class Circle:
    """The circle of one wave, found by Brent's algorithm: a state is kept for twice as long each
    time. Looks come at places that the wave's own way decides, whatever others do.

    Attributes:
        is_endless: no way leads to an end, whatever the memory holds.
        length: of the circle in looks; 0 where none is known.
    """

    __slots__ = ("_kept", "_looks", "_misses", "_since", "is_endless", "length")

    def __init__(self) -> None:
        self.is_endless = False
        self.length = 0
        self._kept: object = None
        self._looks = 0
        self._since = 0  # what `_looks` was when the state was kept, or the circle gone round
        self._misses = 0

    def look(
        self, state: object, is_plain: Callable[[], bool], is_endless: Callable[[], bool]
    ) -> Found:
        """Takes note of a look.

        ``state`` is all that decides what the wave does next but memory; ``is_plain`` whether what
        it does on all ways back to where it is does not write memory; ``is_endless`` whether no
        way from there leads to an end.
        """
        self._looks += 1
        if self.length:
            return self._go_round(state)
        if state == self._kept:
            if is_plain():
                self.length = self._looks - self._since
                self._since = self._looks
                return Found.CIRCLE
        elif self._looks & self._looks - 1 == 0:
            self._kept, self._since = state, self._looks
            self.is_endless = is_endless()
            if self.is_endless:
                return Found.ENDLESS
        return Found.NOTHING

    def _go_round(self, state: object) -> Found:
        if self._looks < self._since + self.length:
            return Found.NOTHING
        if state == self._kept:
            self._since, self._misses = self._looks, 0
            return Found.CLOSED
        self._misses += 1
        if self._misses > _MOST_MISSES:
            self.__init__()  # type: ignore[misc]
            return Found.LEFT
        return Found.NOTHING


def tell(waves: Iterable[tuple[str, Circle, bool]]) -> str:
    """What waves do that do not get on: where each is, and whether it waits at a barrier."""
    told = [f"{where}, {_doing(circle, waits)}" for where, circle, waits in waves]
    more = len(told) - _MOST_TOLD
    return "; ".join([*told[:_MOST_TOLD], f"{more} more"] if more > 0 else told)


def _doing(circle: Circle, waits: bool) -> str:
    if waits:
        return "waits at a barrier for others that do not come"
    if circle.is_endless:
        return "is in an endless loop"
    return "goes round in a loop that only a write to memory by others can end"


def reached(
    starts: Iterable[int], following: Callable[[int], Iterable[int] | None]
) -> set[int] | None:
    """All places on ways from some; None where one leads to an end, or to who knows where."""
    seen: set[int] = set()
    waiting = list(starts)
    while waiting:
        place = waiting.pop()
        if place not in seen:
            seen.add(place)
            behind = following(place)
            if behind is None:
                return None
            waiting += behind
    return seen


def is_plain_loop(code: Code, start: int) -> bool:
    """Whether all ways from a place back to it are plain."""
    before: dict[int, list[int]] = {start: []}
    waiting = [start]
    while waiting:
        place = waiting.pop()
        for each in code.following(place) or ():
            if each not in before:
                before[each] = []
                waiting.append(each)
            before[each].append(place)
    loop: set[int] = set()
    waiting = [start]
    while waiting:
        place = waiting.pop()
        if place not in loop:
            loop.add(place)
            waiting += before[place]
    return all(code.is_plain(place) for place in loop)

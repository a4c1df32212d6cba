"""Waves that go round in circles, and grids in which no wave does anything else.

A wave does what its registers and the memory say. So one that is back where it was, with the same
registers, on a way that writes no memory, does the same again for as long as others leave the
memory alone. Of loops whose registers change all the time this says nothing, except of those from
which no way leads to an end of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

_STRIDE: Final = 8  # stops of a wave from one look at it to the next
_MOST_MISSES: Final = 256
"""Stops after which a wave that is not back has left its circle. It may come by again later, where
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


class Circle:
    """The circle of one wave, found by Brent's algorithm: a state is kept for twice as long each
    time.

    Attributes:
        is_endless: no way leads to an end, whatever the memory holds.
        length: of the circle in stops of the wave; 0 where none is known.
    """

    __slots__ = ("_checked", "_kept", "_misses", "_since", "_stops", "is_endless", "length")

    def __init__(self) -> None:
        self.is_endless = False
        self.length = 0
        self._kept: object = None
        self._stops = 0
        self._since = 0  # what `_stops` was when the state was kept, or the circle gone round
        self._misses = 0
        self._checked = -1

    def is_closed(self, changes: int) -> bool:
        """Whether the wave has gone round since the last change in its grid."""
        return self.is_endless or self._checked == changes


class Circles:
    """What is known of the waves of a grid.

    Attributes:
        found: whether any wave goes round in a circle.
    """

    def __init__(self, code: Code):
        self._code = code
        self._changes = 0
        self.found = False

    def changed(self) -> None:
        """Something may have written memory: all waves have to go round once more."""
        self._changes += 1

    def is_closed(self, circle: Circle) -> bool:
        """Whether a wave has gone round since the last change."""
        return self.found and circle.is_closed(self._changes)

    def stopped(
        self,
        circle: Circle,
        state: Callable[[], object],
        places: Callable[[], list[int]],
        is_endless: Callable[[], bool],
    ) -> None:
        """A wave stopped on its way.

        ``state`` gives all that decides what it does next but memory, ``places`` where its lanes
        are, ``is_endless`` whether no way from there leads to an end.
        """
        circle._stops += 1
        if circle.length:
            self._go_round(circle, state)
            return
        self._changes += 1
        if circle._stops % _STRIDE:
            return
        now, look = state(), circle._stops // _STRIDE
        if now == circle._kept:
            if all(is_plain_loop(self._code, place) for place in places()):
                circle.length = circle._stops - circle._since
                circle._since = circle._stops
                self.found = True
        elif look & look - 1 == 0:
            circle._kept, circle._since = now, circle._stops
            circle.is_endless = is_endless()
            self.found |= circle.is_endless

    def _go_round(self, circle: Circle, state: Callable[[], object]) -> None:
        if circle._stops < circle._since + circle.length:
            return
        if state() == circle._kept:
            circle._since, circle._misses, circle._checked = circle._stops, 0, self._changes
            return
        circle._misses += 1
        if circle._misses > _MOST_MISSES:
            circle.__init__()  # type: ignore[misc]
            self._changes += 1


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

"""What was launched and may be running: a fault shows later, in a call about something else.

The launches since the last time the host waited are remembered, so that an error can name them,
with their arguments and the line of the user's code that launched them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from types import CodeType
from typing import Final, Protocol

from gpu.runtime.origins import line_of

_KEPT: Final = 256
_TOLD: Final = 4


class Describes(Protocol):
    """What can be launched, in words."""

    def describe(self, arguments: Sequence[object]) -> str:
        """What a launch of it with these arguments is."""


Place = tuple[CodeType, int]
"""Where in the user's code, as `gpu.runtime.origins.users_place` gives it."""
Launched = tuple[int, Describes, Sequence[object], Place | None]
"""A launch: its ticket (see `streams`), what it is of, its arguments, and where it was made."""


class Launches:
    """The latest launches that are perhaps not done."""

    def __init__(self) -> None:
        self._kept: deque[Launched] = deque(maxlen=_KEPT)
        self.append = self._kept.append

    def take_back(self, launched: Launched) -> None:
        """It was added, and not launched."""
        if self._kept and self._kept[-1] is launched:
            self._kept.pop()

    def forget(self, finished: int) -> None:
        """All up to this ticket is done."""
        kept = self._kept
        while kept and kept[0][0] <= finished:
            kept.popleft()

    def told(self) -> str:
        """Which launches may have gone wrong, oldest first."""
        kept = list(self._kept)
        if not kept:
            return "nothing that was launched here was running"
        told = "; ".join(map(_line, kept[:_TOLD]))
        if len(kept) == 1:
            return f"running was {told}"
        rest = f"; and {len(kept) - _TOLD} more" if len(kept) > _TOLD else ""
        return f"running was one of these {len(kept)}, oldest first: {told}{rest}"


def _line(launched: Launched) -> str:
    _, what, arguments, place = launched
    told = what.describe(arguments)
    site = line_of(place) if place else None
    return f"{told}, launched at {site}" if site else told

"""Launches that were under way when a fault came, in words: those first whose arguments lead there.

Whose pointer it was no vendor's hardware tells; what is known are the arguments and an address
without the bits within its page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from gpu.core.bits import align_down

_MOST_NAMED: Final = 3
_PAGE: Final = 4096
_POINTER: Final = 8
_NEAR: Final = 1 << 16  # bytes behind a pointer that leads to no buffer


Read = Callable[[int, int], bytes | None]
"""Bytes at an address of the GPU, None where the host does not see them."""


@dataclass(frozen=True, slots=True)
class SentLaunch:
    """A launch read back from a queue: what names its code, and where its arguments are, or 0.

    ``user`` is what its user SGPRs hold, on AMD's GPUs.
    """

    program: int
    arguments: int = 0
    user: tuple[int, ...] = ()

    def suspect(
        self,
        name: str,
        code: tuple[int, int],
        start: int,
        places: Iterable[tuple[int, int, int]],
        read: Read,
    ) -> Suspect:
        """It with its kernel's name, and those of its arguments that may be addresses.

        ``code`` is where its code begins, and its size or 0; ``start`` is where arguments begin,
        or 0; of each there are number, offset and size.
        """
        found = []
        for number, offset, size in places if start else ():
            data = read(start + offset, size) if size == _POINTER else None
            if data is not None:
                found.append((number, int.from_bytes(data, "little")))
        return Suspect(name, tuple(found), *code)


@dataclass(frozen=True, slots=True)
class Suspect:
    """A launch: its kernel's name, and its arguments that may be addresses, with their numbers.

    ``code`` is where its code begins, ``size`` how many bytes it has; 0 where that is not known.
    """

    name: str
    pointers: tuple[tuple[int, int], ...] = ()
    code: int = 0
    size: int = 0


def under_way(
    launches: Iterable[Suspect], address: int | None, is_beside: Callable[[int], bool]
) -> str:
    """What is said of launches, given oldest first; empty where there are none.

    ``address`` is that of the fault, ``is_beside`` tells pointers to the allocation next to it.
    """
    named = [_named(launch, address, is_beside) for launch in launches]
    suspects = [text for text, is_suspect in named if is_suspect] or [text for text, _ in named]
    if not suspects:
        return ""
    more = len(suspects) - _MOST_NAMED
    end = f" and {more} more" if more > 0 else ""
    return f"under way, the oldest first: {', '.join(suspects[:_MOST_NAMED])}{end}"


def _named(
    launch: Suspect, address: int | None, is_beside: Callable[[int], bool]
) -> tuple[str, bool]:
    """A launch in words, and whether an argument leads to the address."""
    leading = [] if address is None else _leading(launch.pointers, address, is_beside)
    if not leading:
        return launch.name, False
    _, number, pointer = min(leading)
    return f"{launch.name} (argument {number} is {pointer:#x})", True


def _leading(
    pointers: Sequence[tuple[int, int]], address: int, is_beside: Callable[[int], bool]
) -> list[tuple[int, int, int]]:
    """How far each argument is away that leads to the address, with its number and itself."""
    return [
        (abs(address - align_down(pointer, _PAGE)), number, pointer)
        for number, pointer in pointers
        if is_beside(pointer) or 0 <= address - align_down(pointer, _PAGE) < _NEAR
    ]

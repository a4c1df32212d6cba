"""Handles: what callers name streams, events, modules and the like by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from gpu.sim.cuda.codes import INVALID_HANDLE, CudaError

T = TypeVar("T")
_FIRST: Final = 0x5C0DA_0000_1000
_STEP: Final = 0x100


class Handles:
    """Numbers that stand for objects. None is given out twice, so that old ones are noticed."""

    def __init__(self, tell: Callable[[str], None]):
        """`tell` takes what was used after its end."""
        self._tell = tell
        self._objects: dict[int, Any] = {}
        self._next = _FIRST
        self._gone: dict[int, str] = {}

    def new(self, thing: object) -> int:
        """The handle of a new object."""
        handle, self._next = self._next, self._next + _STEP
        self._objects[handle] = thing
        return handle

    def drop(self, handle: int) -> None:
        """The object of a handle has ended."""
        self._gone[handle] = type(self._objects.pop(handle)).__name__.lower()

    def get(self, handle: int, kind: type[T], code: int = INVALID_HANDLE) -> T:
        """The object of a kind. Raises CudaError for a handle of none."""
        found = self._objects.get(handle)
        if isinstance(found, kind):
            return found
        name = kind.__name__.lower()
        if handle in self._gone:
            self._tell(f"{handle:#x} is used, a {self._gone[handle]} that was destroyed")
        raise CudaError(code, f"{handle:#x} is no {name}")

    def of(self, kind: type[T]) -> Iterator[T]:
        """All objects of a kind."""
        return (thing for thing in tuple(self._objects.values()) if isinstance(thing, kind))

"""Undoing what was opened, in reverse, all of it, without losing the error that came first."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TypeVarTuple

from gpu.core.errors import GpuError

Ts = TypeVarTuple("Ts")


class Undo:
    """A stack of actions that undo; unlike an ExitStack's, their errors never replace another.

    As a context manager it runs them at the end of the block, unless `take` has moved them away.
    """

    def __init__(self) -> None:
        self._actions: list[Callable[[], object]] = []

    def add(self, action: Callable[[*Ts], object], *args: *Ts) -> None:
        """Adds an action; the last added runs first."""
        self._actions.append(lambda: action(*args))

    def take(self) -> Undo:
        """Another stack with all actions of this one, which has none afterwards."""
        moved = Undo()
        moved._actions, self._actions = self._actions, []
        return moved

    def close(self) -> None:
        """Runs all actions, once. Raises the first error among them, with the others as notes."""
        errors: list[GpuError] = []
        while self._actions:
            try:
                self._actions.pop()()
            except GpuError as error:
                errors.append(error)
        if errors:
            for other in errors[1:]:
                errors[0].add_note(f"and then: {other.message}")
            raise errors[0]

    def __enter__(self) -> Undo:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except GpuError as closing:
            error.add_note(f"and while closing what was open: {closing.message}")
            for note in getattr(closing, "__notes__", ()):
                error.add_note(note)

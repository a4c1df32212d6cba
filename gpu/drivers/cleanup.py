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
        """Runs all actions, once, whatever one of them raises.

        Raises the first error that is no GpuError, an interrupt among them, or else the first; what
        the others say are its notes.
        """
        errors: list[BaseException] = []
        while self._actions:
            try:
                self._actions.pop()()
            except BaseException as error:  # raised when the rest is undone
                errors.append(error)
        if errors:
            raised = next((e for e in errors if not isinstance(e, GpuError)), errors[0])
            for other in errors:
                if other is not raised:
                    raised.add_note(f"and then: {_told(other)}")
            raise raised

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


def _told(error: BaseException) -> str:
    return error.message if isinstance(error, GpuError) else f"{type(error).__name__}: {error}"

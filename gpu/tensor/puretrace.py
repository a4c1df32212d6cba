"""Watching a function that is to change nothing outside, as the body of a loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu.core.errors import InvalidValue
from gpu.tensor.tracing import Trace

if TYPE_CHECKING:
    from gpu.tensor.handle import Handle


class PureTrace(Trace):
    """What such a function does: it computes, and changes nothing that is outside.

    What it uses is noted by the trace that is around it, if there is one.
    """

    def __init__(self, name: str, around: Trace | None):
        super().__init__(name)
        self.around = around

    def refused(self, what: str) -> InvalidValue:
        """The error of a function that does `what` to a tensor from outside."""
        raise NotImplementedError

    def _is_outside(self, handle: Handle) -> bool:
        base = handle if handle._view is None else handle._view.base
        return id(base) not in self.born

    def uses(self, handle: Handle) -> None:
        """See `Trace`; nothing is computed for it."""
        if self.around is not None and self._is_outside(handle):
            self.around.uses(handle)

    def writes(self, handle: Handle) -> None:
        """See `Trace`. Raises an error for a tensor from outside."""
        if self._is_outside(handle):
            raise self.refused(f"writes to {handle._described()} that was made outside of it")

    def reads_gradient(self, handle: Handle) -> None:
        """See `Trace`."""
        if self.around is not None and self._is_outside(handle):
            self.around.reads_gradient(handle)

    def writes_gradient(self, handle: Handle) -> None:
        """See `Trace`. Raises an error for a tensor from outside."""
        if self._is_outside(handle):
            raise self.refused(f"sets the gradient of {handle._described()}")

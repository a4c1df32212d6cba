"""Whether positions that come from data are in range: the check ``CHECK=1``, or ``CHECK=index``.

What the host knows when a call is made, as a list, a numpy array or one number for all, is always
looked at. The elements of a tensor are looked at under the setting only: they are computed where
the call is made, so that the error comes from the line at fault and before anything depends on
them. A jitted function notes what there is to check, and each replay does so before it changes
anything.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu.compiler.ir.dims import Dim, bound
from gpu.core.callsite import CallSite, user_call_site
from gpu.core.config import config
from gpu.core.errors import InvalidIndex
from gpu.tensor.arguments import Operand
from gpu.tensor.base import TensorBase
from gpu.tensor.tracing import active

Array = npt.NDArray[Any]


class Allowed(NamedTuple):
    """Which positions an operation takes.

    Attributes:
        operation: what takes them, as "gather".
        size: they are 0..size - 1.
        where: what they are positions in, with braces for the size, as "axis 1 of size {}".
        name: what the operation calls them.
        wraps: whether -size..-1 are allowed too, and count from the end.
        ignored: one more number that is allowed, because it is left out; None for none.
        site: the line of the user's code, if it is not the one being run.
    """

    operation: str
    size: Dim
    where: str
    name: str = "index"
    wraps: bool = False
    ignored: int | None = None
    site: CallSite | None = None

    def verify(self, values: Array) -> None:
        """Raises InvalidIndex for the first of `values` that is not allowed."""
        size = bound((self.size,))[0]
        low = -size if self.wraps else 0
        wrong = (values < low) | (values >= size)
        if self.ignored is not None:
            wrong &= values != self.ignored
        if not wrong.any():
            return
        place = np.unravel_index(int(wrong.argmax()), wrong.shape)
        error = InvalidIndex(self._told(values[place], low, size, [int(i) for i in place]))
        error.call_site = self.site or error.call_site
        raise error

    def _told(self, value: object, low: int, size: int, place: list[int]) -> str:
        allowed = f"allowed are {low}..{size - 1}" if size else "it has no element"
        if self.ignored is not None:
            allowed += f" and ignore_index={self.ignored}"
        element = f"element {place} of " if place else ""
        return (
            f"{self.name} {value} is out of range for {self.where.format(size)}: {allowed}; "
            f"it is {element}what {self.operation} was given"
        )


def check_positions(given: Operand, allowed: Allowed) -> None:
    """Raises InvalidIndex where `given`, of integers, holds a position that is not allowed.

    Of a tensor's elements nothing is known unless ``CHECK`` has "index".
    """
    if not isinstance(given, TensorBase):
        allowed.verify(np.asarray(given))
    elif (node := given._node).kind == "const":
        allowed.verify(np.broadcast_to(node.attr[0], bound(node.shape)))
    elif "index" in config.CHECK:
        trace = active()
        if trace is not None:
            allowed = allowed._replace(site=allowed.site or user_call_site())
        if trace is None or not trace.checks_positions(given, allowed):
            allowed.verify(given.numpy())

"""Printing: what a tensor looks like in an interactive session or a log."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from gpu.core.errors import GpuError
from gpu.tensor.base import TensorBase

if TYPE_CHECKING:
    from gpu.tensor.costs import Costs

_HEAD: Final = "Tensor("
# Of more axes numpy shows fewer elements at the edges of each: they multiply.
_FULL_EDGES_RANK: Final = 3
_MAX_RANK: Final = 10


class Display(TensorBase):
    """`repr`, `str` and `format`; tables in notebooks, and what a value costs."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Values, dtype and device; the tensor is computed if it was not yet.

        Large tensors are shortened as numpy does it, under its `printoptions`. Where the value
        cannot be computed the error's type and first line stand in its place.
        """
        facts = [f"dtype={self.dtype.name}", f"device={self.device}"]
        try:
            lent = self._host_view()
            array = self._copied_out() if lent is None else lent
        except GpuError as error:
            reason = error.message.partition("\n")[0]
            values, whole = f"<{type(error).__name__}: {reason}>", False
        else:
            values, whole = _written(array)
        if not whole:
            facts.insert(0, f"shape={list(self.shape)}")
        if self.requires_grad:
            facts.append("requires_grad=True")
        return f"{_HEAD}{values}, {', '.join(facts)})"

    def _repr_html_(self) -> str:
        """What notebooks show: a table of at most 12 x 12 elements, shaded, and what it is."""
        from gpu.tensor.notebook import table

        facts = f"Tensor {list(self.shape)} {self.dtype.name} on {self.device}"
        facts += f", {self.nbytes():,} bytes"
        try:
            lent = self._host_view()
            array = self._copied_out() if lent is None else lent
        except GpuError as error:
            reason = error.message.partition("\n")[0]
            return table(np.empty(0), f"{facts}: {type(error).__name__}: {reason}")
        return table(array, facts)

    def explain(self) -> Costs:
        """What computing the tensor would cost: kernels, bytes and launches. Nothing is run.

        It is compiled, so that computing it afterwards does not compile again.

        >>> from gpu import Tensor
        >>> x = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize()
        >>> (x @ x + 1).explain().launches
        1
        """
        from gpu.tensor.costs import costs_of

        return costs_of(self._node)

    def __format__(self, format_spec: str) -> str:
        """As `str`; with a format, as in ``f"{loss:.3f}"``, the one element in it.

        Raises ShapeError where there are more or none.
        """
        return format(self.item(), format_spec) if format_spec else str(self)


def _written(array: npt.NDArray[Any]) -> tuple[str, bool]:
    """The elements as text, and whether it shows all of them and the shape."""
    if array.dtype.kind not in "biufc":  # one of ml_dtypes
        array = array.astype(np.float32)
    options = np.get_printoptions()
    shortened = array.size > options["threshold"]
    edges = options["edgeitems"] if array.ndim <= _FULL_EDGES_RANK else 1
    shown = math.prod(min(size, 2 * edges) for size in array.shape)
    if shortened and (array.ndim > _MAX_RANK or shown > options["threshold"]):
        array = array.reshape(-1)
    text = np.array2string(array, separator=", ", prefix=_HEAD, edgeitems=edges)
    return text, array.size > 0 and not shortened

"""The type of `Tensor.size`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpu.compiler.ir.dims import bound
from gpu.compiler.ir.graph import Shape
from gpu.tensor.arguments import axis_of

if TYPE_CHECKING:
    from typing import Self


class Size(int):
    """A number of elements; called, it gives the shape, as `size()` of torch does."""

    shape: Shape

    def __new__(cls, shape: Shape) -> Self:
        """The number of elements of `shape`."""
        size = super().__new__(cls, math.prod(bound(shape)))
        size.shape = shape
        return size

    def __reduce__(self) -> tuple[type[Size], tuple[Shape]]:
        return type(self), (self.shape,)

    def __call__(self, dim: int | None = None) -> Shape | int:
        """The shape, or the size of axis `dim`. Raises InvalidIndex where there is no such axis."""
        return self.shape if dim is None else self.shape[axis_of(dim, len(self.shape), "dim")]

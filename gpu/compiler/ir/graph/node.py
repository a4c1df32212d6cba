"""The node of the graph IR; see `gpu/compiler/ir/graph/__init__.py` for what its kinds mean."""

from __future__ import annotations

import math
from types import CodeType
from typing import Any, Final, TypeAlias

from gpu.compiler.ir.dims import Shape, upper_shape
from gpu.core.dtype import DType
from gpu.core.unpicklable import Unpicklable

__all__ = ["Node", "Place", "Shape", "place"]

# The name of a device; of a value on several devices a tuple of names.
Place: TypeAlias = Any
_INTS: Final = frozenset({int})


def place(device: Place) -> str:
    """Where a value is, in words."""
    return device if isinstance(device, str) else ", ".join(device)


class Node(Unpicklable):
    """One tensor-valued expression.

    Attributes:
        kind: one of the table in `gpu/compiler/ir/graph/__init__.py`.
        src: operands.
        attr: what else the kind needs, see the module's table; hashable.
        shape: sizes of the result's dimensions, see `gpu/compiler/ir/dims.py`.
        dtype: element type of the result.
        device: name of the device the value lives on, or a tuple of the names of several.
        value: the runtime's: a node of memory that has the value, once it is computed.
        origin: the runtime's: where in the user's code the node was made.
    """

    __slots__ = (
        "__weakref__",
        "attr",
        "device",
        "dtype",
        "kind",
        "origin",
        "shape",
        "src",
        "value",
    )

    kind: str
    src: tuple[Node, ...]
    attr: tuple[Any, ...]
    shape: Shape
    dtype: DType
    device: Place
    value: Node | None
    origin: tuple[CodeType, int] | None

    @property
    def size(self) -> int:
        """Number of elements that memory for the value has: symbolic sizes at their largest."""
        shape = self.shape
        return math.prod(shape if _INTS.issuperset(map(type, shape)) else upper_shape(shape))

    @property
    def nbytes(self) -> int:
        """Size of memory for the value in bytes."""
        return self.size * self.dtype.itemsize

    def __repr__(self) -> str:
        label = " ".join([self.kind, *map(str, self.attr if self.kind != "buffer" else ())])
        return f"<{label}: {self.dtype.code}{list(self.shape)}>"

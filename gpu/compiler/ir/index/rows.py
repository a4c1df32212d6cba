"""Places in row-major memory: from the index of an element, and back."""

from __future__ import annotations

from collections.abc import Sequence

from gpu.compiler.ir.dims import Shape, is_many, upper
from gpu.compiler.ir.index import Expr, expr

ZERO = expr(0)


def flatten(indices: Sequence[Expr], shape: Shape) -> Expr:
    """The position of an element in row-major memory."""
    position = ZERO
    for index, size in zip(indices, shape, strict=True):
        position = position * upper(size) + index
    return position


def unflatten(position: Expr, shape: Shape) -> tuple[Expr, ...]:
    """The index of the element at a row-major position."""
    indices: list[Expr] = []
    for size in reversed(shape[1:]):
        indices.append(position % size)
        position = position // size
    if shape:
        indices.append(position if is_many(shape[0]) else ZERO)
    return tuple(reversed(indices))

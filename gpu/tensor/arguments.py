"""Reading of arguments that many methods share: axes, shapes and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gpu.compiler.ir.dims import Dim, dimension, is_symbolic
from gpu.compiler.ir.graph import Shape
from gpu.core.arguments import integer
from gpu.core.dtype import Number
from gpu.core.errors import InvalidIndex, InvalidType, InvalidValue, ShapeError

if TYPE_CHECKING:
    from gpu.tensor.base import TensorBase

__all__ = [
    "Axis",
    "Operand",
    "axes_of",
    "axis_of",
    "check_number",
    "choice",
    "integer",
    "items_of",
    "shape_of",
    "size_of",
]

# What a tensor can be combined with; the types are checked where it happens.
Operand: TypeAlias = "TensorBase | Number | npt.NDArray[Any] | np.generic | Sequence[Any]"
Axis: TypeAlias = int | Sequence[int] | None


def size_of(value: object, name: str) -> Dim:
    """An argument that has to be a whole number, or made of bound `Var`s. Raises InvalidType."""
    return dimension(value) if is_symbolic(value) else integer(value, name)


def check_number(value: object, name: str) -> None:
    """Raises InvalidType for an argument that is no number."""
    if not isinstance(value, int | float | np.number):
        raise InvalidType(f"{name} must be a number, got {type(value).__name__} {value!r}")


def axis_of(axis: object, rank: int, name: str = "axis") -> int:
    """An axis of a tensor of `rank` dimensions, counted from the end if negative.

    Raises InvalidIndex where there is no such axis.
    """
    position = integer(axis, name)
    if not -rank <= position < rank:
        allowed = f"{-rank}..{rank - 1}" if rank else "no axis at all"
        raise InvalidIndex(
            f"{name} {position} is out of range for {rank} dimensions; they allow {allowed}"
        )
    return position % rank


def axes_of(axis: Axis, rank: int, name: str = "axis") -> tuple[int, ...]:
    """Axes named by one number, several, or None for all.

    As in torch, 0 and -1 name the whole of a 0-d tensor. Raises InvalidIndex for an axis that does
    not exist, InvalidValue for one named twice.
    """
    if axis is None:
        return tuple(range(rank))
    named = axis if isinstance(axis, Sequence) else (axis,)
    lines = max(rank, 1) if all(integer(a, name) in (0, -1) for a in named) else rank
    axes = tuple(axis_of(a, lines, name) for a in named)
    if len(set(axes)) != len(axes):
        raise InvalidValue(f"{name} {tuple(named)} names an axis twice in {rank} dimensions")
    return axes if rank else ()


def items_of(first: object, rest: Sequence[object]) -> tuple[object, ...]:
    """Arguments given as one sequence, or one by one."""
    if isinstance(first, (tuple, list)):
        if rest:
            raise InvalidType(f"pass either one sequence or plain ints, got {first!r} and {rest!r}")
        return tuple(first)
    return (first, *rest)


def shape_of(first: object, rest: Sequence[object] = ()) -> Shape:
    """A shape given as one sequence or as several sizes, which must not be negative."""
    shape = tuple(size_of(size, "a size") for size in items_of(first, rest))
    if any(size < 0 for size in shape):
        raise ShapeError(f"shape {list(shape)} has a negative size")
    return shape


def choice(value: object, name: str, allowed: Sequence[object]) -> None:
    """Raises InvalidValue where `value` is not one of `allowed`."""
    if value not in allowed:
        raise InvalidValue(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")

"""Padding as layers, over one, two or three spatial axes.

Each takes one number for all sides, or (before, after, before, after, ...) from the last axis on;
negative ones take elements away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from gpu.core.errors import InvalidValue
from gpu.tensor.nn.maps import pad
from gpu.tensor.nn.module import Module
from gpu.tensor.tensor import Tensor


class _Pad(Module):
    """`functional.pad` in one mode, over so many axes.

    ``class Name(_Pad, rank=n, mode=m)`` is its settings.
    """

    rank: ClassVar[int]
    mode: ClassVar[str]

    def __init_subclass__(cls, rank: int, mode: str):
        cls.rank, cls.mode = rank, mode

    value: float = 0.0

    def __init__(self, padding: int | Sequence[int]):
        sides = tuple(padding) if isinstance(padding, Sequence) else (padding,) * 2 * self.rank
        if len(sides) != 2 * self.rank:
            raise InvalidValue(
                f"{type(self).__name__} takes one number or {2 * self.rank}, got {padding}"
            )
        self.padding = sides

    def forward(self, input: Tensor) -> Tensor:
        """input with elements around its last axes."""
        return pad(input, self.padding, self.mode, self.value)


class _ConstantPad(_Pad, rank=0, mode="constant"):
    """The same with a value that is told."""

    def __init__(self, padding: int | Sequence[int], value: float):
        super().__init__(padding)
        self.value = value


class ZeroPad1d(_Pad, rank=1, mode="constant"):
    """Zeros around the last axis."""


class ZeroPad2d(_Pad, rank=2, mode="constant"):
    """Zeros around the last two axes."""


class ZeroPad3d(_Pad, rank=3, mode="constant"):
    """Zeros around the last three axes."""


class ConstantPad1d(_ConstantPad, rank=1, mode="constant"):
    """A value around the last axis."""


class ConstantPad2d(_ConstantPad, rank=2, mode="constant"):
    """A value around the last two axes."""


class ConstantPad3d(_ConstantPad, rank=3, mode="constant"):
    """A value around the last three axes."""


class ReflectionPad1d(_Pad, rank=1, mode="reflect"):
    """The last axis mirrored at its first and last elements."""


class ReflectionPad2d(_Pad, rank=2, mode="reflect"):
    """The last two axes mirrored at their first and last elements."""


class ReflectionPad3d(_Pad, rank=3, mode="reflect"):
    """The last three axes mirrored at their first and last elements."""


class ReplicationPad1d(_Pad, rank=1, mode="replicate"):
    """The first and last elements of the last axis repeated."""


class ReplicationPad2d(_Pad, rank=2, mode="replicate"):
    """The first and last elements of the last two axes repeated."""


class ReplicationPad3d(_Pad, rank=3, mode="replicate"):
    """The first and last elements of the last three axes repeated."""


class CircularPad1d(_Pad, rank=1, mode="circular"):
    """The last axis continued at its other end."""


class CircularPad2d(_Pad, rank=2, mode="circular"):
    """The last two axes continued at their other ends."""


class CircularPad3d(_Pad, rank=3, mode="circular"):
    """The last three axes continued at their other ends."""

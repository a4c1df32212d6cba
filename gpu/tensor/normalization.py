"""Normalisation by statistics that are given."""

from __future__ import annotations

from typing import Self

from gpu.compiler.ir.graph import build as G
from gpu.core.errors import ShapeError
from gpu.tensor.arguments import Axis, Operand, axes_of
from gpu.tensor.arithmetic import Arithmetic


class Normalization(Arithmetic):
    """`batchnorm`."""

    __slots__ = ()

    def batchnorm(
        self,
        weight: Operand | None,
        bias: Operand | None,
        mean: Operand,
        invstd: Operand,
        axis: Axis = 1,
    ) -> Self:
        """(self - mean) * invstd * weight + bias.

        `mean`, `weight` and `bias` have the sizes of `axis` of self; so has `invstd`, or another
        number of axes and then it only has to broadcast. Raises ShapeError for other sizes.
        """
        axes = axes_of(axis, self.ndim)
        deviation = self._lift(invstd)
        if deviation.ndim == len(axes):
            deviation = self._across(deviation, axes, "invstd")
        scale = deviation if weight is None else deviation.mul(self._across(weight, axes, "weight"))
        result = self.sub(self._across(mean, axes, "mean")).mul(scale)
        return result if bias is None else result.add(self._across(bias, axes, "bias"))

    def _across(self, statistic: Operand, axes: tuple[int, ...], name: str) -> Self:
        """A statistic of `axes`, with axes of size 1 in place of the others."""
        given = self._lift(statistic)
        wanted = tuple(size if axis in axes else 1 for axis, size in enumerate(self.shape))
        sizes = tuple(self.shape[axis] for axis in sorted(axes))
        if given.shape not in (sizes, wanted):
            raise ShapeError(
                f"{name} of axes {sorted(axes)} of shape {list(self.shape)} must have shape "
                f"{list(sizes)}, got {list(given.shape)}"
            )
        return self._wrap(G.reshape(given._node, wanted))

"""Losses. `reduction` is "mean", "sum", or "none" for one value each."""

from __future__ import annotations

from typing import Self

from gpu.core.dtype import PyScalar
from gpu.core.errors import InvalidValue, ShapeError, Unsupported
from gpu.tensor.arguments import Operand, choice
from gpu.tensor.reduction import Reduction


class Loss(Reduction):
    """Distances of predictions, which self holds, from the targets Y."""

    __slots__ = ()

    def binary_crossentropy(self, Y: Operand, reduction: str = "mean") -> Self:
        """-Y log(self) - (1 - Y) log(1 - self) of probabilities; logarithms are at least -100."""
        target = self._target(Y)
        yes = self.log().clamp(min_=-100)
        no = self.neg().log1p().clamp(min_=-100)
        missed = target.mul(yes).add(target.sub(1, reverse=True).mul(no)).neg()
        return missed._summed(reduction)

    def binary_crossentropy_logits(
        self, Y: Operand, reduction: str = "mean", pos_weight: Operand | None = None
    ) -> Self:
        """`binary_crossentropy` of sigmoid(self), finite for all self.

        `pos_weight` multiplies the part of the positive targets.
        """
        target = self._target(Y)
        weight: Operand = 1
        if pos_weight is not None:
            weight = self._lift(pos_weight).sub(1).mul(target).add(1)
        missed = target.sub(1, reverse=True).mul(self).add(self.neg().softplus().mul(weight))
        return missed._summed(reduction)

    def cross_entropy(
        self, Y: Operand, reduction: str = "mean", label_smoothing: PyScalar = 0.0
    ) -> Self:
        """-sum(Y * log_softmax(self)) over axis 1, of logits and class probabilities.

        `label_smoothing` is the share of Y that is spread evenly over the classes; "mean" is over
        all but the classes. Raises Unsupported for class numbers in place of probabilities.
        """
        if not 0 <= label_smoothing <= 1:
            raise InvalidValue(f"label_smoothing must be in 0..1, got {label_smoothing!r}")
        target = self._lift(Y)
        if not target.dtype.is_float:
            raise Unsupported(
                "cross_entropy with class numbers is not supported by this version; "
                "pass probabilities, a float tensor of the shape of the logits"
            )
        target = self._target(Y)
        axis = min(1, self.ndim - 1)
        even = label_smoothing / self.shape[axis] if self.shape[axis] else 0.0
        smooth = target.mul(1 - label_smoothing).add(even)
        missed = self.log_softmax(axis).mul(smooth).sum(axis).neg()
        return missed._summed(reduction)

    def _target(self, Y: Operand) -> Self:
        target = self._lift(Y)
        if target.shape != self.shape:
            raise ShapeError(
                f"targets have shape {list(target.shape)}, predictions {list(self.shape)}"
            )
        return target

    def _summed(self, reduction: str) -> Self:
        choice(reduction, "reduction", ("mean", "sum", "none"))
        if reduction == "none":
            return self
        return self.mean() if reduction == "mean" else self.sum()

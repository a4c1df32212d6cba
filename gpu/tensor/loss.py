"""Losses. `reduction` is "mean", "sum", or "none" for one value each.

Classes given by number are looked up as `gather` does: no matrix of them is formed, and a number
that is no class finds 0.
"""

from __future__ import annotations

from typing import Final, Self

from gpu.core.dtype import PyScalar
from gpu.core.errors import DTypeError, InvalidValue, ShapeError
from gpu.tensor.arguments import Operand, check_number, choice, integer
from gpu.tensor.gathering import Gathering
from gpu.tensor.precision import float_function

# What the gradient of a probability p is divided by in place of p * (1 - p) where that is less.
_LEAST_SPREAD: Final = 1e-12


class Loss(Gathering):
    """Distances of predictions, which self holds, from the targets Y."""

    __slots__ = ()

    @float_function
    def binary_crossentropy(self, Y: Operand, reduction: str = "mean") -> Self:
        """-Y log(self) - (1 - Y) log(1 - self) of probabilities; logarithms are at least -100.

        What its gradient, (self - Y) / (self * (1 - self)), is divided by is at least 1e-12, as in
        torch.
        """
        target = self._target(Y)
        certain = self.mul(self.sub(1, reverse=True)).lt(_LEAST_SPREAD)
        fixed = self.detach()
        slope = fixed.sub(target).div(_LEAST_SPREAD)
        straight = fixed._missed(target).add(self.sub(fixed).mul(slope))
        inside = certain.where(0.5, self)
        return certain.where(straight, inside._missed(target))._summed(reduction)

    def _missed(self, target: Self) -> Self:
        """What `binary_crossentropy` sums, of probabilities whose logarithms are finite or not."""
        yes = self.log().clamp(min_=-100)
        no = self.neg().log1p().clamp(min_=-100)
        return target.mul(yes).add(target.sub(1, reverse=True).mul(no)).neg()

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
        """The distance of logits, with the classes along axis 1, from the targets.

        Args:
            Y: integers, the class of each element, in the shape of self without axis 1; or floats,
                the probability of each class, in the shape of self. Of one axis, that one holds the
                classes.
            reduction: "mean" is over everything but the classes.
            label_smoothing: the share of the target that is spread evenly over the classes.
        """
        _check_share(label_smoothing)
        target = self._lift(Y)
        axis = min(1, self.ndim - 1)
        if not target.dtype.is_float:
            log_probabilities = self.log_softmax(axis)
            picked = log_probabilities._of_class(target, axis)
            return picked._smoothed(log_probabilities.mean(axis), label_smoothing)._summed(
                reduction
            )
        target = self._target(Y)
        even = label_smoothing / self.shape[axis] if self.shape[axis] else 0.0
        smooth = target.mul(1 - label_smoothing).add(even)
        missed = self.log_softmax(axis).mul(smooth).sum(axis).neg()
        return missed._summed(reduction)

    def nll_loss(
        self,
        Y: Operand,
        weight: Operand | None = None,
        ignore_index: int | None = None,
        reduction: str = "mean",
    ) -> Self:
        """Minus the log probability, along axis 1 of self, of the class that Y names.

        Args:
            Y: integers, in the shape of self without axis 1.
            weight: a factor for each class; "mean" divides by the sum of those that took part.
            ignore_index: a class that does not take part.
            reduction: as everywhere.
        """
        axis = min(1, self.ndim - 1)
        target = self._lift(Y)
        missed = self._of_class(target, axis).neg()
        share = self._class_weights(weight, target)
        if ignore_index is not None:
            share = target.eq(integer(ignore_index, "ignore_index")).where(0, share)
        return missed._weighted(share, reduction)

    def sparse_categorical_crossentropy(
        self,
        Y: Operand,
        ignore_index: int = -1,
        label_smoothing: PyScalar = 0.0,
        reduction: str = "mean",
    ) -> Self:
        """`cross_entropy` of logits, with the classes along the last axis, from integers Y.

        Elements whose class is `ignore_index` do not take part.
        """
        _check_share(label_smoothing)
        target = self._lift(Y)
        log_probabilities = self.log_softmax(-1)
        picked = log_probabilities._of_class(target, self.ndim - 1)
        missed = picked._smoothed(log_probabilities.mean(-1), label_smoothing)
        present = target.ne(integer(ignore_index, "ignore_index")).cast(missed.dtype)
        return missed._weighted(present, reduction)

    def _of_class(self, target: Self, axis: int) -> Self:
        """The elements along `axis` that `target`, of the shape of self without it, names."""
        shape = tuple(n for a, n in enumerate(self.shape) if a != axis)
        if not target.dtype.is_int:
            raise DTypeError(f"targets must be integers, the classes, got {target.dtype.name}")
        if target.shape != shape:
            raise ShapeError(
                f"targets have shape {list(target.shape)}, predictions {list(self.shape)}: "
                f"with classes along axis {axis} they must have {list(shape)}"
            )
        line = (*shape[:axis], 1, *shape[axis:])
        return self._taken(target._reshaped(line), axis)._reshaped(shape)

    def _smoothed(self, even: Self, share: PyScalar) -> Self:
        """The loss of self, log probabilities of targets, with a share of the mean over classes."""
        return self.mul(1 - share).add(even.mul(share)).neg() if share else self.neg()

    def _class_weights(self, weight: Operand | None, target: Self) -> Self:
        if weight is None:
            return target._filled(1).cast(self.dtype)
        classes = self.shape[min(1, self.ndim - 1)]
        factors = self._lift(weight)
        if factors.shape != (classes,):
            raise ShapeError(f"weight has shape {list(factors.shape)}, there are {classes} classes")
        return factors.embedding(target)

    def _weighted(self, share: Self, reduction: str) -> Self:
        """self times the share that each element has, the mean over the sum of shares."""
        choice(reduction, "reduction", ("mean", "sum", "none"))
        # A choice, not a product: what does not take part may be infinite.
        parts = share.eq(0).where(0, self.mul(share))
        if reduction == "none":
            return parts
        return parts.sum().div(share.sum()) if reduction == "mean" else parts.sum()

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


def _check_share(label_smoothing: PyScalar) -> None:
    check_number(label_smoothing, "label_smoothing")
    if not 0 <= label_smoothing <= 1:
        raise InvalidValue(f"label_smoothing must be in 0..1, got {label_smoothing!r}")

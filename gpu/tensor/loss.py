"""Losses. `reduction` is "mean", "sum", or "none" for one value each.

Classes given by number are looked up as `gather` does: no matrix of them is formed. Elements whose
class is `ignore_index` do not take part, whether or not there is such a class. Any other number
that is no class finds 0, a loss of 0 that counts; it is an error where the host knows the numbers,
as in a list, and with ``CHECK=1``.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Self

from gpu.core.dtype import PyScalar, accumulator, dtypes
from gpu.core.errors import DTypeError, InvalidValue, ShapeError
from gpu.tensor.arguments import Operand, check_number, choice, integer
from gpu.tensor.checks import Allowed, check_positions
from gpu.tensor.gathering import Gathering
from gpu.tensor.precision import float_function

# What the gradient of a probability p is divided by in place of p * (1 - p) where that is less.
_LEAST_SPREAD: Final = 1e-12
# The class that does not take part, unless another is named: torch's.
_IGNORED: Final = -100


class _Choice(NamedTuple):
    """How classes given by number are turned into a loss.

    Attributes:
        operation: what the user called.
        axis: the axis of the classes.
        weight: a factor for each class.
        ignore_index: the class whose elements do not take part.
        label_smoothing: the share of the target that is spread evenly over the classes.
    """

    operation: str
    axis: int
    weight: Operand | None = None
    ignore_index: int | None = None
    label_smoothing: PyScalar = 0.0


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
        self,
        Y: Operand,
        reduction: str = "mean",
        label_smoothing: PyScalar = 0.0,
        weight: Operand | None = None,
        ignore_index: int | None = _IGNORED,
    ) -> Self:
        """The distance of logits, with the classes along axis 1, from the targets.

        Args:
            Y: integers, the class of each element, in the shape of self without axis 1; or floats,
                the probability of each class, in the shape of self. Of one axis, that one holds the
                classes.
            reduction: "mean" is over everything but the classes; of classes given by number as in
                `nll_loss`.
            label_smoothing: the share of the target that is spread evenly over the classes.
            weight: a factor for each class.
            ignore_index: as in `nll_loss`. Raises InvalidValue for a class beside probabilities.

        >>> from gpu import Tensor
        >>> logits = Tensor([[0.0, 0.0], [5.0, 1.0]])
        >>> logits.cross_entropy(Tensor([1, -100]), reduction="none").tolist()
        [0.6931471824645996, 0.0]
        """
        axis = min(1, self.ndim - 1)
        target = self._lift(Y)
        if not target.dtype.is_float:
            choose = _Choice("cross_entropy", axis, weight, ignore_index, label_smoothing)
            return self.log_softmax(axis)._chosen(Y, choose, reduction)
        _check_share(label_smoothing)
        if ignore_index is not None and integer(ignore_index, "ignore_index") >= 0:
            raise InvalidValue(
                f"ignore_index={ignore_index} is a class, and targets that are probabilities name "
                "none; leave it out, or pass the classes as integers"
            )
        even = label_smoothing / self.shape[axis] if self.shape[axis] else 0.0
        smooth = self._target(target).mul(1 - label_smoothing).add(even)
        missed = self.log_softmax(axis)._weighted(weight, axis).mul(smooth).sum(axis).neg()
        return missed._summed(reduction)

    def nll_loss(
        self,
        Y: Operand,
        weight: Operand | None = None,
        ignore_index: int | None = _IGNORED,
        reduction: str = "mean",
    ) -> Self:
        """Minus the log probability, along axis 1 of self, of the class that Y names.

        Args:
            Y: integers, in the shape of self without axis 1.
            weight: a factor for each class.
            ignore_index: elements of this class do not take part; None for no such class.
            reduction: "mean" divides by the number of elements that take part, or by the sum of
                their weights; NaN where none does.
        """
        choose = _Choice("nll_loss", min(1, self.ndim - 1), weight, ignore_index)
        return self._chosen(Y, choose, reduction)

    def sparse_categorical_crossentropy(
        self,
        Y: Operand,
        ignore_index: int | None = -1,
        label_smoothing: PyScalar = 0.0,
        reduction: str = "mean",
    ) -> Self:
        """`cross_entropy` of logits, with the classes along the last axis, from integers Y."""
        operation = "sparse_categorical_crossentropy"
        choose = _Choice(operation, self.ndim - 1, None, ignore_index, label_smoothing)
        return self.log_softmax(-1)._chosen(Y, choose, reduction)

    def _chosen(self, Y: Operand, choose: _Choice, reduction: str) -> Self:
        """The loss of self, log probabilities, where Y names the classes by number."""
        choice(reduction, "reduction", ("mean", "sum", "none"))
        axis, smoothing = choose.axis, choose.label_smoothing
        _check_share(smoothing)
        target = self._classes(Y, choose)
        lines = target._reshaped((*target.shape[:axis], 1, *target.shape[axis:]))
        weighted = self._weighted(choose.weight, axis)
        missed = weighted._taken(lines, axis)._reshaped(target.shape).neg()
        if smoothing:
            missed = missed.mul(1 - smoothing).sub(weighted.mean(axis).mul(smoothing))
        kept = target._filled(1).cast(dtypes.bool)
        if choose.ignore_index is not None:
            kept = target.ne(choose.ignore_index)
        missed = kept.where(missed, 0)
        if reduction != "mean":
            return missed._summed(reduction)
        share = kept
        if choose.weight is not None:
            flat = target._reshaped((target.numel(),))
            weights = self._lift(choose.weight)._lines(0, flat)._reshaped(target.shape)
            share = kept.where(weights, 0)
        wide = accumulator(self.dtype)
        return missed.cast(wide).sum().div(share.cast(wide).sum()).cast(self.dtype)

    def _classes(self, Y: Operand, choose: _Choice) -> Self:
        """The targets, checked against self."""
        target, axis = self._lift(Y), choose.axis
        shape = tuple(n for a, n in enumerate(self.shape) if a != axis)
        if not target.dtype.is_int:
            raise DTypeError(f"targets must be integers, the classes, got {target.dtype.name}")
        if target.shape != shape:
            raise ShapeError(
                f"targets have shape {list(target.shape)}, predictions {list(self.shape)}: "
                f"with classes along axis {axis} they must have {list(shape)}"
            )
        ignored = choose.ignore_index
        if ignored is not None:
            integer(ignored, "ignore_index")
        size, operation = self.shape[axis], choose.operation
        check_positions(Y, Allowed(operation, size, "{} classes", "target", ignored=ignored))
        return target

    def _weighted(self, weight: Operand | None, axis: int) -> Self:
        """self, times the weight of each class along `axis`."""
        if weight is None:
            return self
        factors, classes = self._lift(weight), self.shape[axis]
        if factors.shape != (classes,):
            raise ShapeError(f"weight has shape {list(factors.shape)}, there are {classes} classes")
        return self.mul(factors._reshaped((classes, *(1,) * (self.ndim - 1 - axis))))

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

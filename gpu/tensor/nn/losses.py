"""Torch's losses of one prediction for one target, by torch's names and in its argument order.

`reduction` is "mean", "sum", or "none" for a value each. Predictions and targets broadcast where
torch lets them. Torch's deprecated `size_average` and `reduce` do not exist: what stands behind
them in torch's order is given by keyword here. Gradients are torch's, also those of the targets.
"""

from __future__ import annotations

import math

from gpu.core.errors import InvalidValue, ShapeError
from gpu.tensor.arguments import Operand, check_number, choice
from gpu.tensor.tensor import Tensor

REDUCTIONS = ("mean", "sum", "none")


def reduced(loss: Tensor, reduction: str) -> Tensor:
    """The mean or the sum of a loss, or itself. Raises InvalidValue for another reduction."""
    return loss._summed(reduction)


def raised(x: Tensor, least: float) -> Tensor:
    """x, or `least` where it is less, with the gradient of x all the same."""
    return x.lt(least).where(x.sub(x.detach()).add(least), x)


def l1_loss(
    input: Tensor, target: Operand, *, reduction: str = "mean", weight: Operand | None = None
) -> Tensor:
    """abs(input - target).

    Args:
        input: any shape.
        target: a shape that broadcasts with it.
        reduction: as told above; the mean is weighted too.
        weight: a factor for each element, in the shape of `input`.

    >>> from gpu import Tensor
    >>> l1_loss(Tensor([1.0, 2.0]), Tensor([0.0, 4.0])).item()
    1.5
    """
    return _averaged(input.sub(target).abs(), input, weight, reduction)


def mse_loss(
    input: Tensor, target: Operand, *, reduction: str = "mean", weight: Operand | None = None
) -> Tensor:
    """(input - target)**2; arguments are those of `l1_loss`."""
    return _averaged(input.sub(target).square(), input, weight, reduction)


def smooth_l1_loss(
    input: Tensor, target: Operand, *, reduction: str = "mean", beta: float = 1.0
) -> Tensor:
    """0.5 * d**2 / beta where d = abs(input - target) is less than `beta`, else d - 0.5 * beta."""
    check_number(beta, "beta")
    if not beta >= 0:
        raise InvalidValue(f"beta of smooth_l1_loss must be at least 0, got {beta!r}")
    if beta == 0:
        return l1_loss(input, target, reduction=reduction)
    difference = input.sub(target)
    distance = difference.abs()
    near = difference.square().mul(0.5 / beta)
    return reduced(distance.lt(beta).where(near, distance.sub(0.5 * beta)), reduction)


def huber_loss(
    input: Tensor,
    target: Operand,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Operand | None = None,
) -> Tensor:
    """0.5 * d**2 where d = abs(input - target) is less than `delta`, else delta * (d - delta / 2).

    `weight` is a factor for each element, in the shape of `input`; the mean is over the elements.
    """
    check_number(delta, "delta")
    if not delta > 0:
        raise InvalidValue(f"delta of huber_loss must be more than 0, got {delta!r}")
    difference = input.sub(target)
    distance = difference.abs()
    far = distance.sub(0.5 * delta).mul(delta)
    loss = distance.lt(delta).where(difference.square().mul(0.5), far)
    return reduced(loss if weight is None else loss.mul(_like(input, weight)), reduction)


def kl_div(
    input: Tensor, target: Operand, *, reduction: str = "mean", log_target: bool = False
) -> Tensor:
    """target * (log(target) - input), of `input` that holds logarithms of probabilities.

    Args:
        input: any shape.
        target: probabilities, in a shape that broadcasts with it.
        reduction: also "batchmean", the sum over the size of the first axis, which is the
            divergence of Kullback and Leibler.
        log_target: `target` holds logarithms too.
    """
    choice(reduction, "reduction", (*REDUCTIONS, "batchmean"))
    wanted = input._lift(target)
    if log_target:
        loss = wanted.exp().mul(wanted.sub(input))
    else:
        loss = wanted.xlogy(wanted).sub(wanted.mul(input))
    if reduction != "batchmean":
        return reduced(loss, reduction)
    return loss.sum().div(input.shape[0]) if input.ndim else loss


def poisson_nll_loss(
    input: Tensor,
    target: Operand,
    log_input: bool = True,
    full: bool = False,
    *,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Tensor:
    """Minus the log probability of counts, up to a constant, where `input` is what is expected.

    Args:
        input: the expectation, or its logarithm.
        target: the counts.
        log_input: whether `input` is a logarithm.
        full: adds Stirling's approximation of log(target!) where that is more than 1.
        eps: is added to an `input` that is no logarithm, whose logarithm is taken.
        reduction: as told above.
    """
    count = input._lift(target)
    if log_input:
        loss = input.exp().sub(count.mul(input))
    else:
        loss = input.sub(count.mul(input.add(eps).log()))
    if full:
        several = count.gt(1)
        n = several.where(count, 1)
        stirling = n.mul(n.log()).sub(n).add(n.mul(2 * math.pi).log().mul(0.5))
        loss = loss.add(several.where(stirling, 0))
    return reduced(loss, reduction)


def gaussian_nll_loss(
    input: Tensor,
    target: Operand,
    var: Operand,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """Minus the log probability of `target` under normal distributions, up to a constant.

    Args:
        input: the means.
        target: a shape that broadcasts with them.
        var: the variances: a number, or a tensor in the shape of `input`, or without its last
            axis, or with one axis of size 1 in place of another. Torch refuses negative ones,
            which here are `eps`: their values are not looked at.
        full: adds the constant, log(2 * pi) / 2.
        eps: the least variance; what is less has a gradient all the same.
        reduction: as told above.
    """
    check_number(eps, "eps")
    if not eps > 0:
        raise InvalidValue(f"eps of gaussian_nll_loss must be more than 0, got {eps!r}")
    given = input._lift(var)
    spread = given.expand(input.shape) if isinstance(var, int | float) else given
    if spread.shape != input.shape:
        if spread.shape == input.shape[:-1]:
            spread = spread.unsqueeze(-1)
        elif not _one_axis_of_size_1(spread.shape, input.shape):
            raise ShapeError(
                f"var has shape {list(spread.shape)}, input {list(input.shape)}: expected the "
                "same, or that without the last axis, or with one axis of size 1"
            )
    spread = raised(spread, eps)
    loss = spread.log().add(input.sub(target).square().div(spread)).mul(0.5)
    return reduced(loss.add(0.5 * math.log(2 * math.pi)) if full else loss, reduction)


def binary_cross_entropy(
    input: Tensor, target: Operand, weight: Operand | None = None, *, reduction: str = "mean"
) -> Tensor:
    """`Tensor.binary_crossentropy` of probabilities, times `weight`, which broadcasts to them."""
    loss = input.binary_crossentropy(target, "none")
    return reduced(loss if weight is None else loss.mul(_expanded(input, weight)), reduction)


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Operand,
    weight: Operand | None = None,
    *,
    reduction: str = "mean",
    pos_weight: Operand | None = None,
) -> Tensor:
    """`Tensor.binary_crossentropy_logits`, times `weight`, which broadcasts to `input`.

    `pos_weight` multiplies the part of the positive targets.
    """
    loss = input.binary_crossentropy_logits(target, "none", pos_weight)
    return reduced(loss if weight is None else loss.mul(_expanded(input, weight)), reduction)


def nll_loss(
    input: Tensor,
    target: Operand,
    weight: Operand | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """`Tensor.nll_loss`: of log probabilities, and classes by number."""
    return input.nll_loss(target, weight, ignore_index, reduction)


def cross_entropy(
    input: Tensor,
    target: Operand,
    weight: Operand | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """`Tensor.cross_entropy`: of logits, and classes by number or by their probabilities."""
    return input.cross_entropy(target, reduction, label_smoothing, weight, ignore_index)


def _averaged(loss: Tensor, input: Tensor, weight: Operand | None, reduction: str) -> Tensor:
    """A loss reduced, where `weight` multiplies the elements and the mean is a weighted one."""
    if weight is None:
        return reduced(loss, reduction)
    factors = _like(input, weight)
    weighted = loss.mul(factors)
    if reduction != "mean":
        return reduced(weighted, reduction)
    return weighted.sum().div(factors.sum())


def _like(input: Tensor, weight: Operand) -> Tensor:
    """Factors of elements. Raises ShapeError where there is not one for each of `input`."""
    factors = input._lift(weight)
    if factors.shape != input.shape:
        raise ShapeError(
            f"weight has shape {list(factors.shape)}, input {list(input.shape)}: expected the same"
        )
    return factors


def _expanded(input: Tensor, weight: Operand) -> Tensor:
    """Factors of elements, in the shape of `input`, to which they must broadcast."""
    return input._lift(weight).expand(input.shape)


def _one_axis_of_size_1(found: tuple[object, ...], shape: tuple[object, ...]) -> bool:
    """Whether `found` is `shape` but for an axis of size 1."""
    if len(found) != len(shape):
        return False
    return [n for n, m in zip(found, shape, strict=True) if n != m] == [1]

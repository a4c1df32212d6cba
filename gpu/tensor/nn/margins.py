"""Torch's losses by distances and margins, by torch's names and in its argument order.

What is told of reductions and of torch's deprecated arguments in `losses.py` holds here.
"""

from __future__ import annotations

from collections.abc import Callable

from gpu.core.dtype import dtypes
from gpu.core.errors import DTypeError, InvalidValue, ShapeError
from gpu.tensor.arguments import Operand, check_number, choice
from gpu.tensor.nn.losses import raised, reduced
from gpu.tensor.tensor import Tensor

# Is added to squared lengths in `cosine_embedding_loss`: torch's number.
_LEAST_LENGTH = 1e-12


def cosine_similarity(x1: Tensor, x2: Operand, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle of vectors along `dim`; their lengths count as `eps` at least."""
    a, b = x1._pair(x2)
    a, b = a._as_float(), b._as_float()
    units = [v.div(raised(v.norm(2, dim, keepdim=True), eps)) for v in (a, b)]
    return units[0].mul(units[1]).sum(dim)


def pairwise_distance(
    x1: Tensor, x2: Operand, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """The p-norm of x1 - x2 + eps along the last axis."""
    return x1.sub(x2)._as_float().add(eps).norm(p, -1, keepdim)


def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """The p-norms of the differences of each row and each of those behind it, one after another."""
    if input.ndim != 2:
        raise ShapeError(f"pdist takes a matrix of vectors, got shape {list(input.shape)}")
    count = input.shape[0]
    rows, others = Tensor.triu_indices(count, count, 1, device=input.device).unbind()
    return input.cdist(input, p).take(rows * count + others)


def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Operand, margin: float = 0.0, *, reduction: str = "mean"
) -> Tensor:
    """1 - cosine where `target` is 1, and max(0, cosine - margin) where it is -1.

    Args:
        input1: vectors along the last axis, shape (batch, width) or (width,).
        input2: likewise.
        target: 1 or -1 for each, shape (batch,) or ().
        margin: from -1 to 1.
        reduction: as in `losses.py`.
    """
    sign = input1._lift(target)
    if input1.ndim != sign.ndim + 1 or input2.ndim != input1.ndim or sign.ndim > 1:
        raise ShapeError(
            "cosine_embedding_loss takes (batch, width) with targets (batch,), or (width,) with "
            f"one, got {list(input1.shape)}, {list(input2.shape)} and {list(sign.shape)}"
        )
    lengths = (x.square().sum(-1).add(_LEAST_LENGTH) for x in (input1, input2))
    cosine = input1.mul(input2).sum(-1).div(next(lengths).mul(next(lengths)).sqrt())
    apart = sign.eq(-1).where(cosine.sub(margin).clamp(min_=0), 0)
    return reduced(sign.eq(1).where(cosine.sub(1, reverse=True), 0).add(apart), reduction)


def hinge_embedding_loss(
    input: Tensor, target: Operand, margin: float = 1.0, *, reduction: str = "mean"
) -> Tensor:
    """`input`, a distance, where `target` is 1, and max(0, margin - input) where it is -1."""
    sign = input._lift(target)
    apart = sign.ne(1).where(input.sub(margin, reverse=True).clamp(min_=0), 0)
    return reduced(sign.ne(-1).where(input, 0).add(apart), reduction)


def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Operand, margin: float = 0.0, *, reduction: str = "mean"
) -> Tensor:
    """max(0, margin - target * (input1 - input2)): `target` is 1 where `input1` is to be larger.

    All have as many axes, and broadcast.
    """
    sign = input1._lift(target)
    if not input1.ndim == input2.ndim == sign.ndim:
        raise ShapeError(
            "margin_ranking_loss takes tensors of as many axes, got "
            f"{list(input1.shape)}, {list(input2.shape)} and {list(sign.shape)}"
        )
    return reduced(sign.neg().mul(input1.sub(input2)).add(margin).clamp(min_=0), reduction)


def soft_margin_loss(input: Tensor, target: Operand, *, reduction: str = "mean") -> Tensor:
    """log(1 + exp(-target * input)), finite for all of them; `target` is 1 or -1."""
    return reduced(input._lift(target).neg().mul(input).softplus(), reduction)


def multilabel_soft_margin_loss(
    input: Tensor, target: Operand, weight: Operand | None = None, *, reduction: str = "mean"
) -> Tensor:
    """The binary cross entropy of logits, averaged over the classes along the last axis.

    `target` is 1 for each class that there is, else 0; `weight` a factor for each class.
    """
    wanted = input._lift(target)
    against = wanted.sub(1, reverse=True).mul(input.neg().logsigmoid())
    loss = wanted.mul(input.logsigmoid()).add(against).neg()
    return reduced((loss if weight is None else loss.mul(weight)).mean(-1), reduction)


def multi_margin_loss(
    input: Tensor,
    target: Operand,
    p: int = 1,
    margin: float = 1.0,
    weight: Operand | None = None,
    *,
    reduction: str = "mean",
) -> Tensor:
    """max(0, margin - right + other)**p, summed over the other classes, over their number.

    Args:
        input: the score of each class, shape (batch, classes) or (classes,).
        target: integers, the right class of each, shape (batch,) or ().
        p: 1 or 2.
        margin: by how much the right class is to lead.
        weight: a factor for each class, where it is the right one.
        reduction: as in `losses.py`.
    """
    choice(p, "p", (1, 2))
    check_number(margin, "margin")
    right, rows = _classes(input, target, 1, "multi_margin_loss")
    classes = rows.shape[1]
    missed = rows.sub(rows.gather(1, right)).add(margin).relu()
    missed = missed.square() if p == 2 else missed
    other = Tensor.arange(classes, device=input.device).ne(right)
    loss = other.where(missed, 0).sum(1).div(classes)
    if weight is not None:
        factors = input._lift(weight)
        if factors.shape != (classes,):
            raise ShapeError(f"weight has shape {list(factors.shape)}, classes are {classes}")
        loss = loss.mul(factors.index_select(0, right.reshape(-1)))
    return reduced(loss.reshape(input.shape[:-1]), reduction)


def multilabel_margin_loss(input: Tensor, target: Operand, *, reduction: str = "mean") -> Tensor:
    """max(0, 1 - right + other), summed over all pairs of a right class and one that is not.

    Args:
        input: the score of each class, shape (batch, classes) or (classes,); the sum is over their
            number.
        target: integers in the shape of `input`: the right classes of each, up to the first -1.
        reduction: as in `losses.py`.
    """
    named, rows = _classes(input, target, 0, "multilabel_margin_loss")
    there = named.lt(0).cast(dtypes.int32).cumsum(1).eq(0)
    named = there.where(named, 0)
    classes = rows.shape[1]
    number = Tensor.arange(classes, device=input.device)
    is_right = there.unsqueeze(2).bitwise_and(named.unsqueeze(2).eq(number)).any(1)
    missed = rows.unsqueeze(1).sub(rows.gather(1, named).unsqueeze(2)).add(1).relu()
    pairs = there.unsqueeze(2).bitwise_and(is_right.logical_not().unsqueeze(1))
    loss = pairs.where(missed, 0).sum((1, 2)).div(classes)
    return reduced(loss.reshape(input.shape[:-1]), reduction)


def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    *,
    reduction: str = "mean",
) -> Tensor:
    """max(0, margin + distance to `positive` - distance to `negative`), vectors on the last axis.

    Args:
        anchor: any shape, as `positive` and `negative`.
        positive: what is to be nearer.
        negative: what is to be farther.
        margin: by how much; more than 0.
        p: the norm of distances, with `eps` added to each difference.
        eps: as told.
        swap: takes the distance of `positive` and `negative` where it is less than that of
            `anchor` and `negative`.
        reduction: as in `losses.py`.
    """

    def distance(a: Tensor, b: Tensor) -> Tensor:
        return pairwise_distance(a, b, p, eps)

    return triplet_margin_with_distance_loss(
        anchor,
        positive,
        negative,
        distance_function=distance,
        margin=margin,
        swap=swap,
        reduction=reduction,
    )


def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """`triplet_margin_loss` by another distance, `pairwise_distance` if none is given."""
    check_number(margin, "margin")
    if not margin > 0:
        raise InvalidValue(f"margin of a triplet must be more than 0, got {margin!r}")
    if not anchor.ndim == positive.ndim == negative.ndim:
        raise ShapeError(
            "anchor, positive and negative must have as many axes, got "
            f"{list(anchor.shape)}, {list(positive.shape)} and {list(negative.shape)}"
        )
    distance = distance_function or pairwise_distance
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = far.minimum(distance(positive, negative))
    return reduced(near.sub(far).add(margin).clamp(min_=0), reduction)


def _classes(input: Tensor, target: Operand, fewer: int, name: str) -> tuple[Tensor, Tensor]:
    """Classes by number and scores, both of the shape (batch, ...).

    Raises ShapeError unless targets have the shape of scores without the last `fewer` axes, and
    DTypeError unless they are integers.
    """
    named = input._lift(target)
    wanted = input.shape[: input.ndim - fewer]
    if input.ndim not in (1, 2) or named.shape != wanted:
        raise ShapeError(
            f"{name} takes scores of shape (batch, classes) or (classes,) and targets of shape "
            f"{list(wanted)}, got {list(input.shape)} and {list(named.shape)}"
        )
    if not named.dtype.is_int:
        raise DTypeError(f"targets of {name} must be integers, got {named.dtype.name}")
    batch = input.shape[0] if input.ndim == 2 else 1
    rows = input.reshape(batch, input.shape[-1])
    return named.reshape(batch, 1 if fewer else input.shape[-1]), rows

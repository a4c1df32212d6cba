"""The loss of connectionist temporal classification: sequences whose alignment is not known.

A. Graves, S. Fernandez, F. Gomez and J. Schmidhuber, "Connectionist temporal classification", 2006.
Minus the logarithm of the probability that a sequence of symbols reads as the target, once repeated
symbols are merged and blanks taken out. It is a sum over all alignments, formed step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from gpu.core.dtype import accumulator, dtypes
from gpu.core.errors import DTypeError, InvalidValue, ShapeError
from gpu.tensor.arguments import choice, integer
from gpu.tensor.nn.losses import REDUCTIONS, reduced
from gpu.tensor.scan import scan
from gpu.tensor.tensor import Tensor

# The logarithm of what cannot happen: finite, so that gradients are.
_NEVER: Final = -1e30
_IMPOSSIBLE: Final = -1e29

Lengths = Tensor | Sequence[int] | int


class _Steps(NamedTuple):
    """What each step of the sequence brings.

    Attributes:
        blank: log probabilities of the blank, shape (steps, batch, 1).
        label: those of the target's labels, shape (steps, batch, labels).
        counts: whether the step belongs to the sequence, shape (steps, batch, 1).
    """

    blank: Tensor
    label: Tensor
    counts: Tensor


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Minus the log probability of targets, given that of each symbol at each step.

    The gradient is that of `log_probs` as they are. (Torch's is that of what `log_softmax` was
    taken of; behind a `log_softmax` the two are one.) It is 0 where the loss is infinite.

    Args:
        log_probs: shape (steps, batch, classes), or (steps, classes) of one sequence.
        targets: integers: shape (batch, labels), of which each counts up to its length, or all of
            them one behind the other, shape (sum of lengths,); of one sequence (labels,).
        input_lengths: how many steps each sequence has.
        target_lengths: how many labels.
        blank: the class that stands for no symbol.
        reduction: "mean" is over the batch, of each loss over the length of its target.
        zero_infinity: a target that its sequence is too short for has a loss of 0.

    Raises ShapeError, DTypeError and InvalidValue for arguments that do not fit. Lengths in a
    tensor are not looked at.
    """
    choice(reduction, "reduction", REDUCTIONS)
    if log_probs.ndim not in (2, 3) or not log_probs.dtype.is_float:
        raise ShapeError(
            "log_probs of ctc_loss must be floats of shape (steps, batch, classes) or "
            f"(steps, classes), got {log_probs.dtype.name} of {list(log_probs.shape)}"
        )
    one = log_probs.ndim == 2
    wide = log_probs.cast(accumulator(log_probs.dtype))
    wide = wide.unsqueeze(1) if one else wide
    steps, batch, classes = wide.shape
    if not 0 <= integer(blank, "blank") < classes:
        raise InvalidValue(f"blank must be one of {classes} classes, got {blank}")
    inputs = _lengths(input_lengths, batch, "input_lengths", log_probs)
    lengths = _lengths(target_lengths, batch, "target_lengths", log_probs)
    named = _padded(targets, lengths, target_lengths, one)
    _check_longest(input_lengths, steps, "input_lengths", "steps")
    _check_longest(target_lengths, named.shape[1], "target_lengths", "labels")
    wide = wide.lt(_NEVER).where(_NEVER, wide)
    place = Tensor.arange(named.shape[1], device=log_probs.device)
    named = place.lt(lengths.reshape(batch, 1)).where(
        named, blank
    )  # what fills rows up is no class
    time = Tensor.arange(steps, device=log_probs.device).reshape(steps, 1, 1)
    each = _Steps(
        wide.narrow(2, blank, 1),
        wide.gather(2, named.expand(steps, *named.shape)),
        time.lt(inputs.reshape(1, batch, 1)),
    )
    loss = _aligned(each, named, lengths).neg()
    endless = loss.gt(-_IMPOSSIBLE)
    loss = endless.where(0.0 if zero_infinity else float("inf"), loss)
    loss = loss.div(lengths.maximum(1)) if reduction == "mean" else loss
    return reduced(loss.reshape(()) if one else loss, reduction).cast(log_probs.dtype)


def _aligned(each: _Steps, named: Tensor, lengths: Tensor) -> Tensor:
    """The log probability of all alignments, shape (batch,).

    Carried are those of the alignments so far that end in the blank before label k, or behind the
    last, and those that end in label k.
    """
    batch, labels = named.shape
    # A label follows the one before it at once unless they are equal.
    apart = named._along(1, 1, labels - 1).ne(named._along(1, 0, labels - 1)) if labels else None

    def step(carry: tuple[Tensor, Tensor], now: tuple[Tensor, ...]) -> tuple[object, None]:
        blanks, ends = carry
        blank, label, counts = now
        next_blanks = blanks.logaddexp(_behind(ends)).add(blank)
        if apart is None:
            return (counts.where(next_blanks, blanks), ends), None
        before = _behind(apart.where(ends._along(1, 0, labels - 1), _NEVER))
        entered = ends.logaddexp(blanks._along(1, 0, labels)).logaddexp(before).add(label)
        return (counts.where(next_blanks, blanks), counts.where(entered, ends)), None

    kind, device = each.blank.dtype, each.blank.device
    never = Tensor.full((batch, labels), _NEVER, dtype=kind, device=device)
    start = Tensor.zeros(batch, 1, dtype=kind, device=device)
    (blanks, ends), _ = scan(step, (Tensor.cat(start, never, dim=1), never), tuple(each))
    last = lengths.reshape(batch, 1)
    total: Tensor = blanks.gather(1, last).logaddexp(_behind(ends).gather(1, last))
    return total.reshape(batch)


def _behind(x: Tensor) -> Tensor:
    """x moved on by one along axis 1, behind what never happens."""
    return x.pad((1, 0), value=_NEVER)


def _lengths(lengths: Lengths, batch: int, name: str, like: Tensor) -> Tensor:
    """A length for each of the batch."""
    given = lengths if isinstance(lengths, Tensor) else Tensor(lengths, device=like.device)
    if not given.dtype.is_int and given.numel():
        raise DTypeError(f"{name} must be integers, got {given.dtype.name}")
    if given.numel() != batch or given.ndim > 1:
        raise ShapeError(f"{name} must be {batch}, one for each, got shape {list(given.shape)}")
    return given.cast(dtypes.int64).reshape(batch)


def _check_longest(lengths: Lengths, most: int, name: str, what: str) -> None:
    """Raises InvalidValue for a length that is not in 0..most, where the host knows it."""
    if isinstance(lengths, Tensor):
        return
    for length in [lengths] if isinstance(lengths, int) else lengths:
        if not 0 <= length <= most:
            raise InvalidValue(f"{name} {length}: there are {most} {what}")


def _padded(targets: Tensor, lengths: Tensor, known: Lengths, one: bool) -> Tensor:
    """The targets as rows, shape (batch, labels); what is behind a row's end is any class."""
    if not targets.dtype.is_int and targets.numel():
        raise DTypeError(f"targets of ctc_loss must be integers, got {targets.dtype.name}")
    batch = lengths.shape[0]
    rows = targets.unsqueeze(0) if one and targets.ndim == 1 else targets
    if rows.ndim == 2 and rows.shape[0] == batch:
        return rows.cast(dtypes.int64)
    if targets.ndim != 1 or one:
        raise ShapeError(
            f"targets of ctc_loss have shape {list(targets.shape)}: expected {batch} rows, or all "
            "labels one behind the other"
        )
    total = targets.shape[0]
    longest = total if isinstance(known, (Tensor, int)) else max(known)
    first = lengths.cumsum(0).sub(lengths).reshape(batch, 1)
    places = first.add(Tensor.arange(longest, device=targets.device)).clamp(max_=max(total - 1, 0))
    return targets.cast(dtypes.int64).embedding(places) if total else rows.reshape(batch, 0)

"""Gradients kept small, by torch's names. Parameters are one tensor or several."""

from __future__ import annotations

import math
from collections.abc import Iterable

from gpu.core.errors import InvalidValue, NonFinite
from gpu.tensor.arguments import check_number
from gpu.tensor.tensor import Tensor

# Is added to the norm that is divided by: torch's number.
_BESIDE = 1e-6

Tensors = Tensor | Iterable[Tensor]


def get_total_norm(
    tensors: Tensors, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Tensor:
    """The norm of all elements of `tensors` together, 0-d; 0 of no tensor.

    Raises NonFinite, with `error_if_nonfinite`, where it is NaN or infinite: that computes it.
    """
    norms = [tensor.norm(norm_type) for tensor in _several(tensors)]
    if not norms:
        return Tensor(0.0)
    device = norms[0].device
    total = Tensor.stack(*(norm.to(device) for norm in norms)).norm(norm_type)
    if error_if_nonfinite and not math.isfinite(value := float(total.item())):
        raise NonFinite(
            f"the norm of order {norm_type} of the gradients is {value}; error_if_nonfinite=False "
            "scales them by it all the same"
        )
    return total


def clip_grads_with_norm_(parameters: Tensors, max_norm: float, total_norm: Tensor) -> None:
    """Multiplies gradients by max_norm / total_norm where that is less than 1."""
    check_number(max_norm, "max_norm")
    scale = total_norm.add(_BESIDE).reciprocal().mul(max_norm).clamp(max_=1.0)
    for parameter in _several(parameters):
        if parameter.grad is not None:
            grad = parameter.grad
            parameter.grad = grad.mul(scale.to(grad.device).cast(grad.dtype))


def clip_grad_norm_(
    parameters: Tensors,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Scales the gradients of `parameters` so that the norm of all together is at most `max_norm`.

    Returns the norm before, which is computed when it is read.

    >>> from gpu import Tensor
    >>> weight = Tensor([1.0, 2.0], requires_grad=True)
    >>> _ = (weight * Tensor([3.0, 4.0])).sum().backward()
    >>> clip_grad_norm_([weight], 1.0).item()
    5.0
    """
    several = _several(parameters)
    grads = [parameter.grad for parameter in several if parameter.grad is not None]
    total = get_total_norm(grads, norm_type, error_if_nonfinite)
    clip_grads_with_norm_(several, max_norm, total)
    return total


def clip_grad_value_(parameters: Tensors, clip_value: float) -> None:
    """Brings each element of the gradients of `parameters` into -clip_value..clip_value."""
    check_number(clip_value, "clip_value")
    if not clip_value >= 0:
        raise InvalidValue(f"clip_value must be at least 0, got {clip_value!r}")
    for parameter in _several(parameters):
        if parameter.grad is not None:
            parameter.grad = parameter.grad.clamp(-clip_value, clip_value)


def _several(tensors: Tensors) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)

"""How layers make the tensors they hold: in memory at once, so that nothing is drawn twice.

Parameters require gradients from the start, as in torch; other state does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gpu.core.dtype import DType, dtypes
from gpu.core.errors import InvalidValue
from gpu.tensor.arguments import check_number, integer
from gpu.tensor.tensor import Tensor


def filled(value: float, *shape: int) -> Tensor:
    """A parameter of `value` everywhere, float32."""
    return Tensor(np.full(shape, value, dtypes.default_float.np), requires_grad=True)


def state(value: float, *shape: int, dtype: DType | None = None) -> Tensor:
    """What a layer keeps and no gradient changes: `value` everywhere, float32 if not told."""
    return Tensor(np.full(shape, value, (dtype or dtypes.default_float).np), requires_grad=False)


def uniform(bound: float, *shape: int) -> Tensor:
    """A parameter of random numbers in -bound..bound."""
    return _parameter(Tensor.uniform(*shape, low=-bound, high=bound))


def normal(*shape: int, deviation: float = 1.0) -> Tensor:
    """A parameter of normally distributed random numbers, of mean 0."""
    return _parameter(Tensor.randn(*shape) * deviation)


def _parameter(value: Tensor) -> Tensor:
    made = value.realize()
    made.requires_grad = True
    return made


def inverse_root(inputs: int) -> float:
    """1 / sqrt(inputs): the bound torch draws weights and biases of `inputs` summands in."""
    return 1 / math.sqrt(inputs) if inputs else 0.0


def share(value: float, name: str) -> float:
    """An argument that is a part of a whole. Raises InvalidValue unless it is in 0..1."""
    check_number(value, name)
    if not 0 <= value <= 1:
        raise InvalidValue(f"{name} must be in 0..1, got {value!r}")
    return value


def count(value: int, name: str) -> int:
    """An argument that counts something. Raises InvalidValue if it is less than 1."""
    if integer(value, name) < 1:
        raise InvalidValue(f"{name} must be at least 1, got {value}")
    return value


def kernel_sizes(kernel_size: int | Sequence[int]) -> tuple[int, ...]:
    """The kernel of a layer over two axes, or over as many as `kernel_size` has numbers."""
    sizes = (kernel_size,) * 2 if isinstance(kernel_size, int) else tuple(kernel_size)
    return tuple(count(size, "kernel_size") for size in sizes)

"""Windows of signals: weights for the elements of a frame, 1 in its middle.

All take how many elements there are, `M`, and `sym`: False makes one period of a window that
repeats, as a spectrum wants it. They are computed in float64 by numpy, once, and rounded to `dtype`,
which is float32 if not told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from gpu.core.dtype import DType, dtypes, to_dtype
from gpu.core.errors import DTypeError, InvalidValue
from gpu.tensor.arguments import check_number, integer
from gpu.tensor.tensor import Tensor

Places = npt.NDArray[np.float64]


class Placement(TypedDict, total=False):
    """What all windows take beside their own arguments."""

    sym: bool
    dtype: DType | str | None
    device: str | None
    requires_grad: bool


def bartlett(M: int, **placement: Unpack[Placement]) -> Tensor:
    """A triangle that is 0 at both ends."""
    return _window(M, lambda n, steps: 1 - np.abs(2 * n / steps - 1), placement)


def blackman(M: int, **placement: Unpack[Placement]) -> Tensor:
    """`general_cosine` with 0.42, 0.5 and 0.08."""
    return general_cosine(M, a=(0.42, 0.5, 0.08), **placement)


def cosine(M: int, **placement: Unpack[Placement]) -> Tensor:
    """Half a wave of a sine, from half a step in to half a step before its end."""
    return _window(M, lambda n, steps: np.sin(np.pi * (n + 0.5) / (steps + 1)), placement)


def exponential(
    M: int, *, center: float | None = None, tau: float = 1.0, **placement: Unpack[Placement]
) -> Tensor:
    """exp(-distance / tau), of the distance from the middle, or without `sym` from `center`."""
    if _positive(tau, "tau") and center is not None and placement.get("sym", True):
        raise InvalidValue("center is for windows with sym=False: a symmetric one has its middle")

    def shape(n: Places, steps: int) -> Places:
        middle = steps / 2 if center is None else center
        return np.exp(-np.abs(n - middle) / tau)

    return _window(M, shape, placement, one=center is None)


def gaussian(M: int, *, std: float = 1.0, **placement: Unpack[Placement]) -> Tensor:
    """The bell of standard deviation `std`, in elements."""
    _positive(std, "std")
    return _window(M, lambda n, steps: np.exp(-0.5 * ((n - steps / 2) / std) ** 2), placement)


def general_cosine(M: int, *, a: Sequence[float], **placement: Unpack[Placement]) -> Tensor:
    """a[0] - a[1] cos(t) + a[2] cos(2 t) - ... over a turn of t."""
    if not isinstance(a, Sequence) or not a:
        raise InvalidValue(f"a must be a sequence of one factor or more, got {a!r}")

    def shape(n: Places, steps: int) -> Places:
        turn = 2 * np.pi * n / steps
        waves = [(-1) ** i * factor * np.cos(i * turn) for i, factor in enumerate(a)]
        return np.asarray(sum(waves), np.float64)

    return _window(M, shape, placement)


def general_hamming(M: int, *, alpha: float = 0.54, **placement: Unpack[Placement]) -> Tensor:
    """`general_cosine` with alpha and 1 - alpha."""
    check_number(alpha, "alpha")
    return general_cosine(M, a=(alpha, 1 - alpha), **placement)


def hamming(M: int, **placement: Unpack[Placement]) -> Tensor:
    """`general_hamming` with 0.54."""
    return general_hamming(M, **placement)


def hann(M: int, **placement: Unpack[Placement]) -> Tensor:
    """`general_hamming` with 0.5."""
    return general_hamming(M, alpha=0.5, **placement)


def kaiser(M: int, *, beta: float = 12.0, **placement: Unpack[Placement]) -> Tensor:
    """A Bessel function over an arc, the narrower the larger `beta`; of 0 it is 1 everywhere."""
    check_number(beta, "beta")
    if beta < 0:
        raise InvalidValue(f"beta must be 0 or more, got {beta!r}")

    def shape(n: Places, steps: int) -> Places:
        arc = np.sqrt(np.maximum(0, 1 - (2 * n / steps - 1) ** 2))
        return np.asarray(np.i0(beta * arc) / np.i0(beta), np.float64)

    return _window(M, shape, placement)


def nuttall(M: int, **placement: Unpack[Placement]) -> Tensor:
    """`general_cosine` with the four factors of Nuttall's window of a continuous first derivative."""
    return general_cosine(M, a=(0.3635819, 0.4891775, 0.1365995, 0.0106411), **placement)


def _window(
    M: int, shape: Callable[[Places, int], Places], placement: Placement, one: bool = True
) -> Tensor:
    """The window whose element n, of a period of so many steps, is `shape`; with `one` 1 of one."""
    wanted = to_dtype(placement.get("dtype") or dtypes.default_float)
    if not wanted.is_float:
        raise DTypeError(f"a window is of floats, got {wanted.name}; take float32, and cast")
    count = integer(M, "M")
    if count < 0:
        raise InvalidValue(f"M must be 0 or more, got {M}")
    steps = max(count - placement.get("sym", True), 1)
    weights = np.ones(1) if count == 1 and one else shape(np.arange(count, dtype=float), steps)
    grad = placement.get("requires_grad") or None
    return Tensor(weights, placement.get("device"), wanted, grad)


def _positive(value: float, name: str) -> bool:
    check_number(value, name)
    if not 0 < value < math.inf:
        raise InvalidValue(f"{name} must be above 0 and finite, got {value!r}")
    return True

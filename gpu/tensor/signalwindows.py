"""Windows of signals: weights for the elements of a frame, 1 in its middle.

All take how many elements there are, `M`, and `sym`: False makes one period of a window that
repeats, as a spectrum wants it. They are computed where they are used, in `dtype`, which is float32
if not told, or in float32 if that is narrower.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Unpack

import numpy as np

from gpu.core.dtype import accumulator, dtypes, to_dtype
from gpu.core.errors import DTypeError, InvalidValue
from gpu.tensor.arguments import check_number, integer
from gpu.tensor.creation import Placement
from gpu.tensor.special.bessel import i0
from gpu.tensor.tensor import Tensor


class Options(Placement, total=False):
    """What all windows take beside their own arguments."""

    sym: bool


def bartlett(M: int, **options: Unpack[Options]) -> Tensor:
    """A triangle that is 0 at both ends."""
    return _window(M, lambda n, steps: 1 - (n * (2 / steps) - 1).abs(), options)


def blackman(M: int, **options: Unpack[Options]) -> Tensor:
    """`general_cosine` with 0.42, 0.5 and 0.08."""
    return general_cosine(M, a=(0.42, 0.5, 0.08), **options)


def cosine(M: int, **options: Unpack[Options]) -> Tensor:
    """Half a wave of a sine, from half a step in to half a step before its end."""
    return _window(M, lambda n, steps: ((n + 0.5) * (math.pi / (steps + 1))).sin(), options)


def exponential(
    M: int, *, center: float | None = None, tau: float = 1.0, **options: Unpack[Options]
) -> Tensor:
    """exp(-distance / tau), of the distance from the middle, or without `sym` from `center`."""
    if _positive(tau, "tau") and center is not None and options.get("sym", True):
        raise InvalidValue("center is for windows with sym=False: a symmetric one has its middle")

    def shape(n: Tensor, steps: int) -> Tensor:
        middle = steps / 2 if center is None else center
        return ((n - middle).abs() / -tau).exp()

    return _window(M, shape, options, one=center is None)


def gaussian(M: int, *, std: float = 1.0, **options: Unpack[Options]) -> Tensor:
    """The bell of standard deviation `std`, in elements."""
    _positive(std, "std")
    return _window(M, lambda n, steps: (((n - steps / 2) / std).square() * -0.5).exp(), options)


def general_cosine(M: int, *, a: Sequence[float], **options: Unpack[Options]) -> Tensor:
    """a[0] - a[1] cos(t) + a[2] cos(2 t) - ... over a turn of t."""
    if not isinstance(a, Sequence) or not a:
        raise InvalidValue(f"a must be a sequence of one factor or more, got {a!r}")

    def shape(n: Tensor, steps: int) -> Tensor:
        turn, total = n * (2 * math.pi / steps), n.full_like(a[0])
        for number, factor in enumerate(a[1:], 1):
            total = total + (turn * number).cos() * (factor * (-1) ** number)
        return total

    return _window(M, shape, options)


def general_hamming(M: int, *, alpha: float = 0.54, **options: Unpack[Options]) -> Tensor:
    """`general_cosine` with alpha and 1 - alpha."""
    check_number(alpha, "alpha")
    return general_cosine(M, a=(alpha, 1 - alpha), **options)


def hamming(M: int, **options: Unpack[Options]) -> Tensor:
    """`general_hamming` with 0.54."""
    return general_hamming(M, **options)


def hann(M: int, **options: Unpack[Options]) -> Tensor:
    """`general_hamming` with 0.5."""
    return general_hamming(M, alpha=0.5, **options)


def kaiser(M: int, *, beta: float = 12.0, **options: Unpack[Options]) -> Tensor:
    """A Bessel function over an arc, the narrower the larger `beta`; of 0 it is 1 everywhere."""
    check_number(beta, "beta")
    if beta < 0:
        raise InvalidValue(f"beta must be 0 or more, got {beta!r}")

    def shape(n: Tensor, steps: int) -> Tensor:
        arc = (1 - (n * (2 / steps) - 1).square()).clamp(0).sqrt()
        return i0(arc * beta) / float(np.i0(beta))

    return _window(M, shape, options)


def nuttall(M: int, **options: Unpack[Options]) -> Tensor:
    """`general_cosine` with the four factors of Nuttall's window with a continuous slope."""
    return general_cosine(M, a=(0.3635819, 0.4891775, 0.1365995, 0.0106411), **options)


def _window(
    M: int, shape: Callable[[Tensor, int], Tensor], options: Options, one: bool = True
) -> Tensor:
    """The window whose element n, of a period of so many steps, is `shape`; with `one` 1 of one."""
    wanted = to_dtype(options.get("dtype") or dtypes.default_float)
    if not wanted.is_float:
        raise DTypeError(f"a window is of floats, got {wanted.name}; take float32, and cast")
    count = integer(M, "M")
    if count < 0:
        raise InvalidValue(f"M must be 0 or more, got {M}")
    steps = max(count - options.get("sym", True), 1)
    place = Tensor.arange(count, dtype=accumulator(wanted), device=options.get("device"))
    weights = place.full_like(1) if count == 1 and one else shape(place, steps)
    window = weights.cast(wanted)
    if options.get("requires_grad"):
        window.realize().requires_grad = True
    return window


def _positive(value: float, name: str) -> bool:
    check_number(value, name)
    if not 0 < value < math.inf:
        raise InvalidValue(f"{name} must be above 0 and finite, got {value!r}")
    return True

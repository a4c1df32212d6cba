"""The frequencies that transforms have, and their order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpu.core.dtype import DType, dtypes, to_dtype
from gpu.core.errors import DTypeError, InvalidValue
from gpu.tensor.arguments import axes_of, check_number, integer
from gpu.tensor.fft.transforms import with_dim
from gpu.tensor.gradients import check_tensor
from gpu.tensor.tensor import Tensor


def fftfreq(
    n: int, d: float = 1.0, *, dtype: DType | str | None = None, device: str | None = None
) -> Tensor:
    """The frequencies of the numbers that `fft` gives, in cycles for each unit of `d`.

    Args:
        n: how many numbers are transformed.
        d: the distance of samples.
        dtype: of floats; float32 by default.
        device: the default one if none is given.

    Raises InvalidValue for an n below 1 and a d of 0, DTypeError for a dtype of no floats.

    >>> from gpu import fft
    >>> fft.fftfreq(4, d=0.5).tolist()
    [0.0, 0.5, -1.0, -0.5]
    """
    half = (_count(n) + 1) // 2
    return _frequencies([*range(half), *range(half - n, 0)], n, d, dtype, device)


def rfftfreq(
    n: int, d: float = 1.0, *, dtype: DType | str | None = None, device: str | None = None
) -> Tensor:
    """The frequencies of the numbers that `rfft` gives: those of `fftfreq` from 0 on."""
    return _frequencies(range(_count(n) // 2 + 1), n, d, dtype, device)


def _count(n: int) -> int:
    if integer(n, "n") < 1:
        raise InvalidValue(f"n must be at least 1, got {n}")
    return n


def _frequencies(
    steps: Sequence[int], n: int, d: float, dtype: DType | str | None, device: str | None
) -> Tensor:
    check_number(d, "d")
    if not d:
        raise InvalidValue("samples are d apart, which must not be 0")
    wanted = dtypes.float32 if dtype is None else to_dtype(dtype)
    if not wanted.is_float:
        raise DTypeError(f"frequencies are floats, not {wanted.name}")
    values: npt.NDArray[np.float64] = np.array(steps, np.float64) / (n * d)
    return Tensor(values.astype(wanted.np), device=device, dtype=wanted)


@with_dim
def fftshift(x: Tensor, axes: int | Sequence[int] | None = None) -> Tensor:
    """With the frequency 0 in the middle of these axes, all by default.

    >>> from gpu import Tensor, fft
    >>> fft.fftshift(Tensor([0, 1, 2, -2, -1])).tolist()
    [-2, -1, 0, 1, 2]
    """
    check_tensor(x, "x")
    places = axes_of(axes, x.ndim)
    return x.roll([x.shape[a] // 2 for a in places], places)


@with_dim
def ifftshift(x: Tensor, axes: int | Sequence[int] | None = None) -> Tensor:
    """The reverse of `fftshift`."""
    check_tensor(x, "x")
    places = axes_of(axes, x.ndim)
    return x.roll([-(x.shape[a] // 2) for a in places], places)

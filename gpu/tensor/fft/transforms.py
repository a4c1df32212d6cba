"""Discrete Fourier transforms by numpy's names: along an axis, two, or several.

Of n numbers x the transform is X(k) = sum over j of x(j) exp(-2 pi i j k / n), and its inverse
has the other sign and is divided by n. `norm` says which way is divided: "backward", the default,
"forward", or "ortho" for both, by the root of n. `n`, and `s` for several axes, say how many
numbers are taken: of more the first, beside fewer zeros.

float64 gives complex128, all other real numbers complex64. Every function takes torch's `dim` for
`axis` or `axes` too. All raise InvalidType for what is no tensor, InvalidIndex for an axis that is
not there, InvalidValue for no numbers to transform or an unknown norm, and Unsupported for an axis
of symbolic size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Final, Literal, ParamSpec, TypeAlias, TypeVar

from gpu.compiler.ir.dims import is_symbolic
from gpu.core.dtype import complex_of, dtypes
from gpu.core.errors import DTypeError, InvalidType, InvalidValue, Unsupported
from gpu.tensor.arguments import axes_of, axis_of, choice, integer
from gpu.tensor.fft.lines import resized, transformed
from gpu.tensor.fft.real import half_spectrum, of_half_spectrum
from gpu.tensor.gradients import check_tensor
from gpu.tensor.tensor import Tensor

Norm: TypeAlias = Literal["backward", "ortho", "forward"] | None
Sizes: TypeAlias = Sequence[int] | None
Axes: TypeAlias = Sequence[int] | None
P = ParamSpec("P")
R = TypeVar("R")

_NORMS: Final = (None, "backward", "ortho", "forward")
_OTHER_WAY: Final[dict[Norm, Norm]] = {
    None: "forward",
    "backward": "forward",
    "ortho": "ortho",
    "forward": "backward",
}


def with_dim(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, which takes torch's `dim` for `axis` or `axes` besides, and `input` for `x`."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    axis = "axis" if "axis" in names else "axes"

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for theirs, ours in (("dim", axis), ("input", "x")):
            if theirs in kwargs:
                if ours in kwargs:
                    raise InvalidType(
                        f"{function.__name__} got {theirs} and {ours}, which mean the same; pass"
                        " one"
                    )
                kwargs[ours] = kwargs.pop(theirs)
        return function(*args, **kwargs)

    return call


def _scale(norm: Norm, size: int, inverse: bool) -> float:
    choice(norm, "norm", _NORMS)
    if norm == "ortho":
        return 1 / math.sqrt(size)
    return 1 / size if (norm == "forward") != inverse else 1.0


def _numbers(x: Tensor) -> Tensor:
    """A tensor as complex numbers."""
    check_tensor(x, "x")
    if x.dtype.is_complex:
        return x
    return _reals(x).cast(complex_of(_real_dtype(x)))


def _reals(x: Tensor) -> Tensor:
    """Real numbers as those that are transformed. Raises DTypeError for complex ones."""
    check_tensor(x, "x")
    if x.dtype.is_complex:
        raise DTypeError(f"this transform is of real numbers, got {x._described()}; take fft")
    return x.cast(_real_dtype(x))


def _real_dtype(x: Tensor) -> Any:
    return dtypes.float64 if x.dtype is dtypes.float64 else dtypes.float32


def _size(n: int | None, x: Tensor, axis: int, default: int | None = None) -> int:
    """How many numbers along an axis are transformed."""
    if n is None:
        n = x.shape[axis] if default is None else default
    if is_symbolic(n) or is_symbolic(x.shape[axis]):
        raise Unsupported(
            f"a transform along axis {axis} of symbolic size {x.shape[axis]}: its passes follow"
            " from the size; bind it, or transform along another axis"
        )
    if integer(n, "n") < 1:
        raise InvalidValue(f"a transform needs at least one number along axis {axis}, got n={n}")
    return n


def _along_one(x: Tensor, n: int | None, axis: int, norm: Norm, inverse: bool) -> Tensor:
    z = _numbers(x)
    place = axis_of(axis, z.ndim)
    size = _size(n, z, place)
    return transformed(resized(z, place, size), place, inverse, _scale(norm, size, inverse))


@with_dim
def fft(x: Tensor, n: int | None = None, axis: int = -1, norm: Norm = None) -> Tensor:
    """The transform along an axis.

    >>> from gpu import Tensor, fft
    >>> fft.fft(Tensor([1.0, 0.0, 0.0, 0.0])).tolist()
    [(1+0j), (1+0j), (1+0j), (1+0j)]
    """
    return _along_one(x, n, axis, norm, inverse=False)


@with_dim
def ifft(x: Tensor, n: int | None = None, axis: int = -1, norm: Norm = None) -> Tensor:
    """The inverse transform along an axis."""
    return _along_one(x, n, axis, norm, inverse=True)


@with_dim
def rfft(x: Tensor, n: int | None = None, axis: int = -1, norm: Norm = None) -> Tensor:
    """The first n // 2 + 1 numbers of the transform of real ones, which tell the others.

    For an even n in half the work of `fft`. Raises DTypeError for complex numbers.

    >>> from gpu import Tensor, fft
    >>> fft.rfft(Tensor([1.0, 2.0, 3.0, 4.0])).tolist()
    [(10+0j), (-2+2j), (-2+0j)]
    """
    real = _reals(x)
    place = axis_of(axis, real.ndim)
    size = _size(n, real, place)
    return half_spectrum(resized(real, place, size), place, _scale(norm, size, False))


@with_dim
def irfft(x: Tensor, n: int | None = None, axis: int = -1, norm: Norm = None) -> Tensor:
    """The real numbers of which `x` is the `rfft`: n of them, by default 2 * (size - 1).

    The imaginary part of the first number, and for an even n of the last, counts as 0.
    """
    z = _numbers(x)
    place = axis_of(axis, z.ndim)
    size = _size(n, z, place, 2 * (z.shape[place] - 1))
    return of_half_spectrum(z, place, size, _scale(norm, size, True))


@with_dim
def hfft(x: Tensor, n: int | None = None, axis: int = -1, norm: Norm = None) -> Tensor:
    """The real transform of n numbers, by default 2 * (size - 1), of which `x` is the first half.

    The others are its conjugates.
    """
    return irfft(_numbers(x).conj(), n, axis, _other_way(norm))


@with_dim
def ihfft(x: Tensor, n: int | None = None, axis: int = -1, norm: Norm = None) -> Tensor:
    """The first half of the inverse transform of real numbers: the inverse of `hfft`."""
    return rfft(x, n, axis, _other_way(norm)).conj()


def _other_way(norm: Norm) -> Norm:
    choice(norm, "norm", _NORMS)
    return _OTHER_WAY[norm]


def _places(x: Tensor, s: Sizes, axes: Axes) -> tuple[tuple[int, ...], list[int | None]]:
    """The axes that are transformed, and how many numbers along each; None for all there are."""
    sizes = None if s is None else [None if integer(n, "s") == -1 else n for n in s]
    if axes is None:
        count = x.ndim if sizes is None else len(sizes)
        if count > x.ndim:
            raise InvalidValue(f"s has {count} sizes, and the tensor {x.ndim} axes")
        axes = range(x.ndim - count, x.ndim)
    places = axes_of(axes if isinstance(axes, int) else tuple(axes), x.ndim)
    if sizes is None:
        sizes = [None] * len(places)
    if len(sizes) != len(places):
        raise InvalidValue(f"s has {len(sizes)} sizes for {len(places)} axes; it needs one each")
    return places, sizes


def _along_all(z: Tensor, sizes: dict[int, int], norm: Norm, inverse: bool) -> Tensor:
    """The transform along some axes, of so many numbers each, the last axis first."""
    scale = _scale(norm, math.prod(sizes.values()), inverse)
    for place, size in reversed(sizes.items()):
        z = transformed(resized(z, place, size), place, inverse, scale)
        scale = 1.0
    return z


def _along_several(x: Tensor, s: Sizes, axes: Axes, norm: Norm, inverse: bool) -> Tensor:
    z = _numbers(x)
    places, sizes = _places(z, s, axes)
    counts = {a: _size(n, z, a) for a, n in zip(places, sizes, strict=True)}
    return _along_all(z, counts, norm, inverse)


@with_dim
def fftn(x: Tensor, s: Sizes = None, axes: Axes = None, norm: Norm = None) -> Tensor:
    """The transform along several axes: all by default, or the last as many as `s` has sizes.

    A size of -1 takes all numbers there are. Raises InvalidValue unless `s` has one for each axis.
    """
    return _along_several(x, s, axes, norm, inverse=False)


@with_dim
def ifftn(x: Tensor, s: Sizes = None, axes: Axes = None, norm: Norm = None) -> Tensor:
    """The inverse of `fftn`."""
    return _along_several(x, s, axes, norm, inverse=True)


@with_dim
def rfftn(x: Tensor, s: Sizes = None, axes: Axes = None, norm: Norm = None) -> Tensor:
    """The `rfft` along the last of several axes, and the `fft` along the others."""
    real = _reals(x)
    places, sizes = _places(real, s, axes)
    _check_any(places)
    counts = {a: _size(n, real, a) for a, n in zip(places, sizes, strict=True)}
    *_, last = places
    scale = _scale(norm, math.prod(counts.values()), False)
    z = half_spectrum(resized(real, last, counts.pop(last)), last, scale)
    return _along_all(z, counts, None, False)


@with_dim
def irfftn(x: Tensor, s: Sizes = None, axes: Axes = None, norm: Norm = None) -> Tensor:
    """The real numbers of which `x` is the `rfftn`; along the last axis as `irfft` takes them."""
    z = _numbers(x)
    places, sizes = _places(z, s, axes)
    _check_any(places)
    *_, last = places
    whole = 2 * (z.shape[last] - 1)
    counts = {
        a: _size(n, z, a, whole if a == last else None) for a, n in zip(places, sizes, strict=True)
    }
    scale = _scale(norm, math.prod(counts.values()), True)
    size = counts.pop(last)
    z = _along_all(resized(z, last, size // 2 + 1), counts, "forward", True)
    return of_half_spectrum(z, last, size, scale)


def _check_any(places: tuple[int, ...]) -> None:
    if not places:
        raise InvalidValue("a transform of real numbers needs one axis or more, got none")


@with_dim
def fft2(x: Tensor, s: Sizes = None, axes: Axes = (-2, -1), norm: Norm = None) -> Tensor:
    """The transform along two axes: `fftn` along the last two."""
    return fftn(x, s, axes, norm)


@with_dim
def ifft2(x: Tensor, s: Sizes = None, axes: Axes = (-2, -1), norm: Norm = None) -> Tensor:
    """The inverse of `fft2`."""
    return ifftn(x, s, axes, norm)


@with_dim
def rfft2(x: Tensor, s: Sizes = None, axes: Axes = (-2, -1), norm: Norm = None) -> Tensor:
    """`rfftn` along the last two axes."""
    return rfftn(x, s, axes, norm)


@with_dim
def irfft2(x: Tensor, s: Sizes = None, axes: Axes = (-2, -1), norm: Norm = None) -> Tensor:
    """`irfftn` along the last two axes."""
    return irfftn(x, s, axes, norm)


@with_dim
def hfftn(x: Tensor, s: Sizes = None, axes: Axes = None, norm: Norm = None) -> Tensor:
    """The real transform of numbers of which `x` is the half along the last of several axes.

    The others are its conjugates. Along the last axis as `hfft`, along the others as `fft`.
    """
    return irfftn(_numbers(x).conj(), s, axes, _other_way(norm))


@with_dim
def ihfftn(x: Tensor, s: Sizes = None, axes: Axes = None, norm: Norm = None) -> Tensor:
    """The inverse of `hfftn`."""
    return rfftn(x, s, axes, _other_way(norm)).conj()


@with_dim
def hfft2(x: Tensor, s: Sizes = None, axes: Axes = (-2, -1), norm: Norm = None) -> Tensor:
    """`hfftn` along the last two axes."""
    return hfftn(x, s, axes, norm)


@with_dim
def ihfft2(x: Tensor, s: Sizes = None, axes: Axes = (-2, -1), norm: Norm = None) -> Tensor:
    """`ihfftn` along the last two axes."""
    return ihfftn(x, s, axes, norm)

"""Transforms of real numbers along one axis, and back: of even lengths in half the work.

Of odd lengths each is one of complex numbers. Two rows could share one, at two thirds of the time,
but then NaN, infinity and the rounding of large values in either would reach the other, and its
gradient; columns of one row can as well, and what puts them together takes what that saves. A
convolution with a chirp gains by what it leaves out: numbers that the others tell.
"""

from __future__ import annotations

from gpu.tensor.complexmath import number, parts
from gpu.tensor.fft.lines import along, by_chirp, resized, transformed
from gpu.tensor.fft.plan import half_turns, radices_of
from gpu.tensor.tensor import Tensor


def half_spectrum(x: Tensor, axis: int, scale: float) -> Tensor:
    """The first half of the transform of real numbers, of which the other is the conjugate.

    Pairs of an even number of them are transformed as complex numbers z, in half the work: the
    transform of even places is (Z(k) + conj Z(-k)) / 2, that of odd ones (Z(k) - conj Z(-k)) / 2i.
    """
    size, part = x.shape[axis], x.dtype
    half = size // 2
    if size % 2:
        whole = number(x, x.zeros_like())
        if radices_of(size) is None:
            return by_chirp(whole, axis, size, half + 1, False, scale)
        return transformed(whole, axis, False, scale).narrow(axis, 0, half + 1)
    pairs = x.reshape(*x.shape[:axis], half, 2, *x.shape[axis + 1 :]).movedim(axis + 1, -1)
    z = transformed(pairs.view_as_complex(), axis, False, scale / 2)
    around = z.cat(z.narrow(axis, 0, 1), dim=axis)
    back = around.flip(axis).conj()
    re, im = parts(around.sub(back).mul(along(half_turns(size, part, x.device), x, axis)))
    return around.add(back).add(number(im, re.neg()))


def of_half_spectrum(x: Tensor, axis: int, size: int, scale: float) -> Tensor:
    """The `size` real numbers whose inverse transform begins with `x`, the first half of it."""
    half = size // 2
    x = resized(x, axis, half + 1)
    if size % 2 and radices_of(size) is None:
        once = x.narrow(axis, 0, 1)
        twice = x.narrow(axis, 1, half).mul(2)
        return by_chirp(once.cat(twice, dim=axis), axis, size, size, True, scale).real
    if size % 2:
        mirrored = x.narrow(axis, 1, half).flip(axis).conj()
        return transformed(x.cat(mirrored, dim=axis), axis, True, scale).real
    x = _with_real_ends(x, axis)
    low, high = x.narrow(axis, 0, half), x.narrow(axis, 1, half).flip(axis).conj()
    turns = along(half_turns(size, x.dtype.real, x.device), x, axis).narrow(axis, 0, half)
    re, im = parts(low.sub(high).mul(turns.conj()))
    z = transformed(low.add(high).add(number(im.neg(), re)), axis, True, scale)
    pairs = z.view_as_real().movedim(-1, axis + 1)
    return pairs.reshape(*x.shape[:axis], size, *x.shape[axis + 1 :])


def _with_real_ends(x: Tensor, axis: int) -> Tensor:
    """Without the imaginary parts of the first and the last number, which real numbers lack."""
    re, im = parts(x)
    count = x.shape[axis]
    place = Tensor.arange(count, device=x.device)
    is_end = place.eq(0).bitwise_or(place.eq(count - 1))
    line = is_end.reshape([count if a == axis else 1 for a in range(x.ndim)])
    return number(re, line.where(0, im).cast(re.dtype))

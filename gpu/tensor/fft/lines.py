"""Transforms along one axis, of a fixed size: of complex numbers, and of real ones in half of them.

Each is multiplied with `scale`. What has a large prime factor goes by a convolution with a chirp
(L. I. Bluestein, "A linear filtering approach to the computation of discrete Fourier transform",
1970), of a length that has none.
"""

from __future__ import annotations

from gpu.compiler.ir.graph import build as G
from gpu.tensor.complexmath import number, parts
from gpu.tensor.fft.plan import (
    chirp,
    chirp_spectrum,
    factors,
    half_turns,
    padded_size,
    radices_of,
)
from gpu.tensor.tensor import Tensor


def transformed(x: Tensor, axis: int, inverse: bool, scale: float) -> Tensor:
    """The transform of complex numbers along `axis`."""
    radices = radices_of(x.shape[axis])
    if radices is None:
        return _by_chirp(x, axis, inverse, scale)
    if not radices:
        return x if scale == 1 else x.mul(scale)
    table = factors(radices, x.dtype.real, x.device)
    pairs = G.fft(G.as_real(x._node), axis, radices, table, inverse, scale)
    return x._wrap(G.as_complex(pairs))


def _by_chirp(x: Tensor, axis: int, inverse: bool, scale: float) -> Tensor:
    if inverse:
        return _by_chirp(x.conj(), axis, False, scale).conj()
    size, part = x.shape[axis], x.dtype.real
    padded = padded_size(2 * size - 1)
    turn = _line(chirp(size, part, x.device), x, axis)
    spectrum = _line(chirp_spectrum(size, padded, part, x.device), x, axis)
    line = resized(x.mul(turn), axis, padded)
    product = transformed(line, axis, False, 1.0).mul(spectrum)
    return resized(transformed(product, axis, True, scale / padded), axis, size).mul(turn)


def _line(table: Tensor, x: Tensor, axis: int) -> Tensor:
    """A table of both parts as complex numbers along an axis of `x`."""
    shape = (2, *(table.shape[1] if a == axis else 1 for a in range(x.ndim)))
    re, im = table.reshape(shape).unbind(0)
    return number(re, im)


def resized(x: Tensor, axis: int, size: int) -> Tensor:
    """The first `size` numbers along an axis, and zeros where there are fewer."""
    have = x.shape[axis]
    if have >= size:
        return x if have == size else x.narrow(axis, 0, size)
    return x.pad([(0, size - have) if a == axis else None for a in range(x.ndim)])


def half_spectrum(x: Tensor, axis: int, scale: float) -> Tensor:
    """The first half of the transform of real numbers, of which the other is the conjugate.

    Pairs of an even number of them are transformed as complex numbers z, in half the work: the
    transform of even places is (Z(k) + conj Z(-k)) / 2, that of odd ones (Z(k) - conj Z(-k)) / 2i.
    """
    size, part = x.shape[axis], x.dtype
    half = size // 2
    if size % 2:
        whole = number(x, x.zeros_like())
        return transformed(whole, axis, False, scale).narrow(axis, 0, half + 1)
    pairs = x.reshape(*x.shape[:axis], half, 2, *x.shape[axis + 1 :]).movedim(axis + 1, -1)
    z = transformed(pairs.view_as_complex(), axis, False, scale / 2)
    around = z.cat(z.narrow(axis, 0, 1), dim=axis)
    back = around.flip(axis).conj()
    re, im = parts(around.sub(back).mul(_line(half_turns(size, part, x.device), x, axis)))
    return around.add(back).add(number(im, re.neg()))


def of_half_spectrum(x: Tensor, axis: int, size: int, scale: float) -> Tensor:
    """The `size` real numbers whose inverse transform begins with `x`, the first half of it."""
    half = size // 2
    x = resized(x, axis, half + 1)
    if size % 2:
        mirrored = x.narrow(axis, 1, half).flip(axis).conj()
        return transformed(x.cat(mirrored, dim=axis), axis, True, scale).real
    x = _with_real_ends(x, axis)
    low, high = x.narrow(axis, 0, half), x.narrow(axis, 1, half).flip(axis).conj()
    turns = _line(half_turns(size, x.dtype.real, x.device), x, axis).narrow(axis, 0, half)
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

"""Transforms of complex numbers along one axis, of a fixed size.

Each is multiplied with `scale`. What has a large prime factor goes by a convolution with a chirp
(L. I. Bluestein, "A linear filtering approach to the computation of discrete Fourier transform",
1970), of a length that has none.
"""

from __future__ import annotations

from gpu.compiler.ir.graph import build as G
from gpu.tensor.complexmath import number
from gpu.tensor.fft.plan import (
    chirp,
    chirp_spectrum,
    factors,
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
    size = x.shape[axis]
    return by_chirp(x, axis, size, size, inverse, scale)


def by_chirp(x: Tensor, axis: int, size: int, results: int, inverse: bool, scale: float) -> Tensor:
    """The first `results` numbers of a transform of `size`, of which the first ones are given.

    The others count as 0. The convolution is as long as both together.
    """
    if inverse:
        return by_chirp(x.conj(), axis, size, results, False, scale).conj()
    given, part = x.shape[axis], x.dtype.real
    padded = padded_size(given + results - 1)
    turn = along(chirp(size, part, x.device), x, axis)
    spectrum = along(chirp_spectrum(size, padded, results, part, x.device), x, axis)
    line = resized(x.mul(turn.narrow(axis, 0, given)), axis, padded)
    product = transformed(line, axis, False, 1.0).mul(spectrum)
    found = resized(transformed(product, axis, True, scale / padded), axis, results)
    return found.mul(turn.narrow(axis, 0, results))


def along(table: Tensor, x: Tensor, axis: int) -> Tensor:
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

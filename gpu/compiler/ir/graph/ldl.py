"""Factors of symmetric and Hermitian matrices that need not be definite, in LAPACK's packed form.

By J. Bunch and L. Kaufman, "Some stable methods for calculating inertia and solving symmetric
linear systems", 1977, with the choices and the storage of LAPACK's ``?sytf2`` and ``?hetf2`` for
the lower half (netlib.org/lapack): the result has D, of blocks of one or two rows, on and beside
the diagonal, and the multipliers of each column below them. A pivot is the row, from 1, with which
that of the block was exchanged, twice and negative for a block of two rows.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from gpu.compiler.ir.evaluate import Array

# The bound on growth that is best for both sizes of blocks.
_ALPHA: Final = (1 + math.sqrt(17)) / 8


def factor(x: Array, hermitian: bool) -> tuple[Array, Array, Array]:
    """The factors, the pivots, and the number of the first zero of D, from 1, or 0."""
    packed = np.tril(x)
    pivots = np.zeros(x.shape[:-1], np.int32)
    info = np.zeros(x.shape[:-2], np.int32)
    for place in np.ndindex(info.shape):
        info[place] = _factor_one(packed[place], pivots[place], hermitian)
    return packed, pivots, info


def _factor_one(a: Array, pivots: Array, hermitian: bool) -> int:
    """Makes factors of the lower half of one matrix in place."""
    size, info, k = len(a), 0, 0
    if hermitian:
        _drop_imaginary(a, range(size))
    while k < size:
        row, step = _pivot(a, k)
        if step == 1 and not a[k:, k].any():
            info = info or k + 1
            pivots[k] = k + 1
            k += 1
            continue
        _exchange(a, k, k + step - 1, row, hermitian)
        pivots[k : k + step] = row + 1 if step == 1 else -(row + 1)
        end = k + step
        block = np.tril(a[k:end, k:end])
        block = block + _turned(np.tril(block, -1), hermitian)
        below = a[end:, k:end].copy()
        with np.errstate(all="ignore"):
            multipliers = below / block if step == 1 else np.linalg.solve(block.T, below.T).T
            a[end:, end:] -= np.tril(multipliers @ _turned(below, hermitian))
        a[end:, k:end] = multipliers
        if hermitian:
            _drop_imaginary(a, range(k, size))
        k = end
    return info


def _drop_imaginary(a: Array, rows: range) -> None:
    """The diagonal of a Hermitian matrix is real."""
    a[rows, rows] = a[rows, rows].real


def _turned(x: Array, hermitian: bool) -> Array:
    turned: Array = x.T.conj() if hermitian else x.T
    return turned


def _size(x: Array) -> Array:
    """The size of numbers as LAPACK compares them: of complex ones both parts' sum."""
    size: Array = np.abs(x.real) + np.abs(x.imag)
    return size


def _pivot(a: Array, k: int) -> tuple[int, int]:
    """The row that is exchanged for the last one of the next block, and the rows of that."""
    own = _size(a[k, k])
    if k + 1 == len(a):
        return k, 1
    largest = k + 1 + int(_size(a[k + 1 :, k]).argmax())
    beside = _size(a[largest, k])
    if own >= _ALPHA * beside:
        return k, 1
    across = np.concatenate([a[largest, k:largest], a[largest + 1 :, largest]])
    most = _size(across).max()
    if own >= _ALPHA * beside * (beside / most):
        return k, 1
    return largest, 1 if _size(a[largest, largest]) >= _ALPHA * most else 2


def _exchange(a: Array, k: int, last: int, row: int, hermitian: bool) -> None:
    """Exchanges two rows and columns of what is left of the lower half."""
    if row == last:
        return
    a[row + 1 :, [last, row]] = a[row + 1 :, [row, last]]
    middle = slice(last + 1, row)
    down, across = a[middle, last].copy(), a[row, middle].copy()
    if hermitian:
        down, across = down.conj(), across.conj()
        a[row, last] = a[row, last].conj()
    a[middle, last], a[row, middle] = across, down
    a[[last, row], [last, row]] = a[[row, last], [row, last]]
    if last > k:
        a[[last, row], k] = a[[row, last], k]


def solve(packed: Array, pivots: Array, right: Array, hermitian: bool) -> Array:
    """X of A @ X = `right`, for the factors of A; infinite or NaN where D has a zero.

    Raises numpy's LinAlgError for pivots that are no rows.
    """
    if np.abs(pivots).max(initial=0) > packed.shape[-1] or not pivots.all():
        raise np.linalg.LinAlgError("pivots must be rows, from 1, as ldl_factor gives them")
    result: Array = right.copy()
    for place in np.ndindex(packed.shape[:-2]):
        _solve_one(packed[place], pivots[place], result[place], hermitian)
    return result


def _solve_one(a: Array, pivots: Array, x: Array, hermitian: bool) -> None:
    size = len(a)
    starts: list[tuple[int, int]] = []
    k = 0
    while k < size:
        step = 1 if pivots[k] > 0 or k + 1 == size else 2
        starts.append((k, step))
        k += step
    with np.errstate(all="ignore"):
        for k, step in starts:
            end, row = k + step, abs(int(pivots[k])) - 1
            x[[end - 1, row]] = x[[row, end - 1]]
            x[end:] -= a[end:, k:end] @ x[k:end]
            block = np.tril(a[k:end, k:end])
            block = block + _turned(np.tril(block, -1), hermitian)
            x[k:end] = x[k:end] / block if step == 1 else np.linalg.solve(block, x[k:end])
        for k, step in reversed(starts):
            end, row = k + step, abs(int(pivots[k])) - 1
            x[k:end] -= _turned(a[end:, k:end], hermitian) @ x[end:]
            x[[end - 1, row]] = x[[row, end - 1]]

"""The kernels of linear algebra: each factors, or solves, all matrices of a batch.

Matrices are the last two axes of three, and complex numbers pairs in a fourth. Steps follow each
other, and within a step all elements of a matrix are changed at once: a column at a time is
eliminated from all of the rest (the right-looking form of LAPACK's unblocked routines).

A status is 0, or tells with the number of the step, from 1, what is wrong with a matrix. No
number stops a loop: NaN and infinity go on into the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from gpu.compiler.ir.kernel.author import Array, KernelBuilder
from gpu.compiler.ir.kernel.scalar import Scalar
from gpu.core.dtype import dtypes
from gpu.tensor.kernels import Kernel
from gpu.tensor.linalg.numbers import Cells, conj, is_real, largest, like, real, size, square, where
from gpu.tensor.tensor import Tensor

# Columns of a product of reflections that are made together.
_COLUMNS: Final = 32
# Bytes of what is solved for together, which all devices have near, and below how many columns of
# it lanes go along a row of the matrix.
_ROOM: Final = 1 << 14
_NARROW: Final = 4
# Numbers of a matrix that is held in registers: its steps are written out, so that lanes, or
# threads, have a matrix each.
_FEW: Final = 16


def _form(x: Any, *shape: int) -> tuple[tuple[int, ...], Any]:
    """Numbers as `x` has them, in another shape."""
    return (*shape, *x.shape[3:]), x.dtype


def _cells(k: KernelBuilder, *arrays: Array) -> list[Cells]:
    """Arrays of matrices as numbers."""
    return [Cells(k, array, array.ndim == 4) for array in arrays]


def _factor(a: Tensor) -> dict[str, Any]:
    count, _, n = a.shape[:3]
    return {"out": _form(a, count, n, n), "info": ((count,), dtypes.int32)}


def _cholesky(k: KernelBuilder, factor: Array, info: Array, given: Array) -> None:
    count, n = factor.shape[:2]
    out, a = _cells(k, factor, given)
    with k.loop(count) as b:
        bad = k.alloc((), info.dtype)
        column = Cells.own(k, (n,), a)
        with k.loop(n, n) as (i, j):
            out[b, i, j] = a[b, i, j]
        with k.loop(n) as j:
            pivot = k.keep(real(out[b, j, j]))
            with k.when((bad[()] == 0) & (pivot <= 0)):
                bad[()] = j.cast(info.dtype) + 1
            root = k.keep(pivot.sqrt())
            with k.loop(n) as i:
                column[i] = where(i > j, out[b, i, j] / root, 0)
            out[b, j, j] = root
            with k.loop(n) as i, k.when(i > j):
                out[b, i, j] = column[i]
            with k.loop(n, n) as (i, m), k.when(m > j):
                out[b, i, m] = out[b, i, m] - column[i] * conj(column[m])
        info[b] = bad[()]
        with k.loop(n, n) as (i, j), k.when(j > i):
            out[b, i, j] = 0


cholesky = Kernel(_cholesky, _factor, name="cholesky")
"""The lower factor of Hermitian matrices, of which the lower half is read, and a status.

Rows below the square are not read.
"""


def _lu_form(a: Tensor) -> dict[str, Any]:
    steps = min(a.shape[1:3])
    return {
        "out": _form(a, *a.shape[:3]),
        "pivots": ((a.shape[0], steps), dtypes.int32),
        "info": (a.shape[:1], dtypes.int32),
    }


def _lu(k: KernelBuilder, factors: Array, pivots: Array, info: Array, given: Array) -> None:
    count, rows, columns = given.shape[:3]
    if rows * columns <= _FEW:
        _lu_of_few(k, factors, pivots, info, given)
        return
    out, a = _cells(k, factors, given)
    steps = min(rows, columns)
    with k.loop(count) as b:
        bad = k.alloc((), info.dtype)
        column, row, held = (Cells.own(k, (n,), a) for n in (rows, columns, columns))
        sizes = k.alloc((rows,), factors.dtype)
        with k.loop(rows, columns) as (i, m):
            out[b, i, m] = a[b, i, m]
        with k.loop(steps) as j:
            # Two reductions, which have lanes. Only rows that are done are smaller than NaN.
            best, place = k.alloc((), factors.dtype, -2), k.alloc((), dtypes.int32, rows)
            with k.loop(rows) as i:
                column[i] = out[b, i, j]
            with k.loop(rows) as i:
                own = size(column[i])
                sizes[i] = (i >= j).where((own >= 0).where(own, -1), -2)
            with k.loop(rows) as i:
                best[()] = best[()].maximum(sizes[i])
            with k.loop(rows) as i:
                here = (sizes[i] == best[()]).where(i.cast(dtypes.int32), rows)
                place[()] = place[()].minimum(here)
            chosen = k.keep(place[()])
            pivots[b, j] = chosen + 1
            with k.loop(columns) as m:
                row[m] = out[b, chosen, m]
            with k.loop(columns) as m:
                held[m] = out[b, j, m]
            with k.loop(columns) as m:
                out[b, chosen, m] = held[m]
            with k.loop(columns) as m:
                out[b, j, m] = row[m]
            column[chosen] = column[j]
            pivot = out.keep(row[j])
            zero = k.keep(size(pivot) == 0)
            with k.when((bad[()] == 0) & zero):
                bad[()] = j.cast(info.dtype) + 1
            with k.loop(rows) as i:
                column[i] = where(i > j, where(zero, column[i], column[i] / pivot), 0)
            with k.loop(rows, columns) as (i, m), k.when((i > j) & (m >= j)):
                there = b, i, m
                left = out[there] - column[i] * row[m]
                out[there] = where(m > j, left, column[i])
        info[b] = bad[()]


def _rank(k: KernelBuilder, x: Any) -> Scalar:
    """How large a number is as a pivot: NaN is smaller than all others."""
    own = k.keep(size(x))
    return k.keep((own >= 0).where(own, -1))


def _lu_of_few(k: KernelBuilder, factors: Array, pivots: Array, info: Array, given: Array) -> None:
    count, rows, columns = given.shape[:3]
    out, a = _cells(k, factors, given)
    with k.loop(count) as b:
        w = [[a.keep(a[b, i, m]) for m in range(columns)] for i in range(rows)]
        bad: Any = 0
        for j in range(min(rows, columns)):
            best = _rank(k, w[j][j])
            chosen: Any = j
            for i in range(j + 1, rows):
                own = _rank(k, w[i][j])
                larger = k.keep(own > best)
                chosen = k.keep(larger.where(i, chosen).cast(info.dtype))
                best = k.keep(larger.where(own, best))
            pivots[b, j] = chosen + 1
            top = w[j]
            for i in range(j + 1, rows):
                here = k.keep(chosen == i)
                first = [a.keep(where(here, w[i][m], top[m])) for m in range(columns)]
                w[i] = [a.keep(where(here, w[j][m], w[i][m])) for m in range(columns)]
                top = first
            w[j] = top
            zero = k.keep(size(top[j]) == 0)
            bad = k.keep((zero & (bad == 0)).where(j + 1, bad).cast(info.dtype))
            for i in range(j + 1, rows):
                share = a.keep(where(zero, w[i][j], w[i][j] / top[j]))
                rest = [a.keep(w[i][m] - share * top[m]) for m in range(j + 1, columns)]
                w[i] = [*w[i][:j], share, *rest]
        info[b] = bad
        for i in range(rows):
            for m in range(columns):
                out[b, i, m] = w[i][m]


lu = Kernel(_lu, _lu_form, name="lu")
"""Both factors of matrices in one, the rows exchanged (from 1, as LAPACK has them), a status."""


def _permutation(k: KernelBuilder, order: Array, pivots: Array) -> None:
    count, rows = order.shape
    with k.loop(count) as b:
        with k.loop(rows) as i:
            order[b, i] = i.cast(dtypes.int32)
        with k.loop(pivots.shape[1]) as j:
            other = k.keep(pivots[b, j] - 1)
            here, there = k.keep(order[b, j]), k.keep(order[b, other])
            order[b, other] = here
            order[b, j] = there


@lru_cache
def permutation(rows: int) -> Kernel:
    """Which row of a matrix of so many comes to each place when `pivots` exchange them."""
    return Kernel(
        _permutation,
        lambda pivots: ((pivots.shape[0], rows), dtypes.int32),
        name="permutation",
    )


def _triangular(upper: bool, unit: bool) -> Callable[..., None]:
    def solve_few(
        k: KernelBuilder, result: Cells, matrix: Cells, right: Cells, shape: tuple[int, ...]
    ) -> None:
        count, n, columns = shape[:3]
        with k.loop(count) as s:
            done: dict[int, list[Any]] = {}
            for j in reversed(range(n)) if upper else range(n):
                row = [right[s, j, m] for m in range(columns)]
                for i, x in done.items():
                    row = [row[m] - matrix[s, j, i] * x[m] for m in range(columns)]
                if not unit:
                    row = [x / matrix[s, j, j] for x in row]
                done[j] = [result.keep(x) for x in row]
            for j, row in done.items():
                for m, x in enumerate(row):
                    result[s, j, m] = x

    def solve(k: KernelBuilder, out: Array, a: Array, b: Array) -> None:
        count, n, columns = out.shape[:3]
        result, matrix, right = _cells(k, out, a, b)
        if n * max(n, columns) <= _FEW:
            solve_few(k, result, matrix, right, out.shape)
            return
        # As many columns together as _ROOM holds.
        width = min(columns, max(_ROOM // (n * math.prod(out.shape[3:]) * out.dtype.itemsize), 1))
        with k.loop(count, -(-columns // width)) as (s, part):
            # Apart, since rows of `out` may be as far from each other as the lines of a cache. What
            # is not known yet is 0.
            x, row = Cells.own(k, (n, width), result), Cells.own(k, (width,), result)
            with k.loop(n) as step:
                j = n - 1 - step if upper else step
                with k.loop(width) as m:
                    row[m] = right[s, j, part * width + m]
                if width < _NARROW:
                    with k.loop(width) as m:
                        total = Cells.own(k, (), result)
                        with k.loop(n) as i:
                            factor = where((i > j) if upper else (i < j), matrix[s, j, i], 0)
                            total[()] = total[()] + factor * x[i, m]
                        row[m] = row[m] - total[()]
                else:
                    with k.loop(n, width) as (i, m):
                        factor = where((i > j) if upper else (i < j), matrix[s, j, i], 0)
                        row[m] = row[m] - factor * x[i, m]
                with k.loop(width) as m:
                    x[j, m] = row[m] if unit else row[m] / matrix[s, j, j]
            with k.loop(n, width) as (i, m):
                result[s, i, part * width + m] = x[i, m]

    return solve


@lru_cache
def triangular(upper: bool, unit: bool) -> Kernel:
    """X in A X = B for triangular matrices A, of which the other half is not read.

    With `unit` the diagonal is not read either, and taken to be ones.
    """
    return Kernel(_triangular(upper, unit), lambda a, b: _form(b, *b.shape[:3]), name="triangular")


def _qr_form(a: Tensor) -> dict[str, Any]:
    return {
        "out": _form(a, *a.shape[:3]),
        "tau": _form(a, a.shape[0], 1, min(a.shape[1:3])),
    }


def _qr(k: KernelBuilder, out: Array, tau: Array, given: Array) -> None:
    count, rows, columns = given.shape[:3]
    r, factor, a = _cells(k, out, tau, given)
    with k.loop(count) as b:
        v, sums = Cells.own(k, (rows,), a), Cells.own(k, (columns,), a)
        with k.loop(rows, columns) as (i, m):
            r[b, i, m] = a[b, i, m]
        with k.loop(min(rows, columns)) as j:
            # Of numbers scaled to 1, so that no square over- or underflows.
            scale, total = k.alloc((), out.dtype), k.alloc((), out.dtype)
            with k.loop(rows) as i, k.when(i >= j):
                scale[()] = scale[()].maximum(largest(r[b, i, j]))
            unit = k.keep((scale[()] == 0).where(1, scale[()]))
            with k.loop(rows) as i, k.when(i > j):
                total[()] += square(r[b, i, j] / unit)
            alpha = r.keep(r[b, j, j] / unit)
            norm = k.keep((square(alpha) + total[()]).sqrt())
            still = k.keep((total[()] == 0) & is_real(alpha))
            beta = k.keep(still.where(real(alpha), (real(alpha) > 0).where(-norm, norm)))
            turn = like(alpha, beta) - alpha
            factor[b, 0, j] = r.keep(where(still, 0 * alpha, turn / beta))
            divisor = r.keep(where(still, like(alpha, 1 + 0 * beta), -turn))
            with k.loop(rows) as i:
                v[i] = where(i > j, r[b, i, j] / unit / divisor, 0)
            v[j] = 1
            with k.loop(rows) as i, k.when(i > j):
                r[b, i, j] = v[i]
            r[b, j, j] = beta * unit
            with k.loop(columns) as m:
                sums[m] = 0
            with k.loop(rows, columns) as (i, m), k.when(m > j):
                sums[m] = sums[m] + conj(v[i]) * r[b, i, m]
            own = r.keep(conj(factor[b, 0, j]))
            with k.loop(rows, columns) as (i, m), k.when(m > j):
                r[b, i, m] = r[b, i, m] - v[i] * own * sums[m]


qr = Kernel(_qr, _qr_form, name="qr")
"""R, with below its diagonal the vectors of reflections (1 - tau v v^H), and tau of each.

The first element of a vector, on the diagonal, is 1. (LAPACK's geqrf.)
"""


def _reflected(k: KernelBuilder, out: Array, given: Array, tau: Array) -> None:
    count, rows, columns = out.shape[:3]
    q, vectors, factor = _cells(k, out, given, tau)
    width, steps = min(columns, _COLUMNS), tau.shape[2]
    with k.loop(count, -(-columns // width)) as (b, part):
        v, sums = Cells.own(k, (rows,), q), Cells.own(k, (width,), q)
        with k.loop(rows, width) as (i, m):
            q[b, i, part * width + m] = (i == part * width + m).cast(out.dtype)
        with k.loop(steps) as step:
            j = steps - 1 - step
            with k.loop(rows) as i:
                v[i] = where(i > j, vectors[b, i, j], 0)
            v[j] = 1
            with k.loop(width) as m:
                sums[m] = 0
            with k.loop(rows, width) as (i, m):
                sums[m] = sums[m] + conj(v[i]) * q[b, i, part * width + m]
            own = q.keep(factor[b, 0, j])
            with k.loop(rows, width) as (i, m):
                place = b, i, part * width + m
                q[place] = q[place] - v[i] * own * sums[m]


@lru_cache
def reflected(columns: int) -> Kernel:
    """So many of the first columns of the product of the reflections that `qr` gives."""
    return Kernel(
        _reflected, lambda given, tau: _form(given, *given.shape[:2], columns), name="reflected"
    )


def _compact(k: KernelBuilder, out: Array, given: Array, tau: Array) -> None:
    count, n = out.shape[:2]
    t, products, factor = _cells(k, out, given, tau)
    with k.loop(count) as b:
        column = Cells.own(k, (n,), t)
        with k.loop(n, n) as (i, j):
            t[b, i, j] = 0
        with k.loop(n) as j:
            own = t.keep(factor[b, 0, j])
            with k.loop(n) as i:
                column[i] = 0
            with k.loop(n, n) as (i, m), k.when(m < j):
                column[i] = column[i] + t[b, i, m] * products[b, m, j]
            with k.loop(n) as i:
                t[b, i, j] = where(i == j, own, -(own * column[i]))


compact = Kernel(_compact, lambda given, tau: _form(given, *given.shape[:3]), name="compact")
"""T of the product 1 - V T V^H of reflections, of V^H V and their tau.

R. Schreiber and C. Van Loan, "A storage-efficient WY representation for products of Householder
transformations", 1989.
"""

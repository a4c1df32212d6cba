"""Factorisations of matrices of any size, block by block.

A step factors a block of columns by the kernel for small matrices, and applies what comes of it to
the rest as products of matrices. Where a block lies is a variable of the step, which is compiled
once: there are as many kernels for large matrices as for small ones.

Each takes and gives what the function of that name in `gpu/tensor/linalg/kernels.py` does, on
tensors of three axes. Sizes are rounded up to whole blocks, by what changes no factor.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gpu.compiler.ir.dims import Dim
from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import dtypes
from gpu.tensor.linalg import kernels
from gpu.tensor.linalg.matrices import flat, in_order, unflat, with_rows
from gpu.tensor.scan import stepped
from gpu.tensor.tensor import Tensor

BLOCK: Final = 64
# Columns that LU factors at once, each of which changes all others of them in all rows: on the CPU
# half as many took 0.6 to 0.98 of the time, from 96 to 2048 rows.
PANEL: Final = 32


def cholesky(a: Tensor) -> tuple[Tensor, Tensor]:
    """The lower factors, and status; of each block of columns the sum over those before it."""
    n = a.shape[-1]
    if n <= BLOCK:
        out, info = kernels.cholesky(flat(a))
        return unflat(out, a), info

    def step(number: Dim, _: None, own: Tensor, info: Tensor) -> tuple[tuple[Tensor, ...], None]:
        w, at = unflat(own, a), number * BLOCK
        done = w[:, at:, :at]
        left = w[:, at:, at : at + BLOCK] - done @ done[:, :BLOCK].mH
        panel = _padded(left, w.shape[1])
        low, bad = kernels.cholesky(flat(panel))
        top = unflat(low, a)
        rest = kernels.triangular(False, False)(low, flat(panel.mH))
        below = unflat(rest, a).mH
        w = _placed(w, top, at, at)
        w = _placed(w, below[:, BLOCK : w.shape[1] - at], at + BLOCK, at)
        return (flat(w), _first(info, bad, at)), None

    given = _rounded(a.tril(), one=True)
    (out, info), _ = stepped(step, (flat(given), _none(a)), given.shape[1] // BLOCK)
    return unflat(out, a)[:, :n, :n], info


def lu(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Both factors, pivots and status."""
    count, rows, columns = a.shape
    if min(rows, columns) <= BLOCK:
        out, pivots, info = kernels.lu(flat(a))
        return unflat(out, a), pivots, info

    def step(number: Dim, _: None, own: Tensor, info: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        w, at = unflat(own, a), number * PANEL
        high, wide = w.shape[1:]
        next_ = at + PANEL
        left = w[:, at:, at:next_] - w[:, at:, :at] @ w[:, :at, at:next_]
        factors, pivots, bad = kernels.lu(flat(_padded(left, high)))
        panel = unflat(factors, a)
        order = kernels.permutation(high)(pivots)
        start = Tensor._wrap(G.index(at, dtypes.int32, a.device))
        # Rows that come to the block, and what comes to where they were.
        first = Tensor.arange(PANEL, dtype=dtypes.int32, device=a.device).expand(count, PANEL)
        places = Tensor.cat(first, pivots - 1, dim=-1).contiguous()
        rows = in_order(w, (order.gather(-1, places) + start).contiguous()).contiguous()
        w = with_rows(w, (places + start).contiguous(), rows)
        w = _placed(w, panel[:, : high - at], at, at)
        beside = rows[:, :PANEL, next_:] - rows[:, :PANEL, :at] @ w[:, :at, next_:]
        grown = _widened(beside, wide)
        solved = unflat(kernels.triangular(False, True)(flat(panel[:, :PANEL]), flat(grown)), a)
        w = _placed(w, solved[:, :, : wide - next_], at, next_)
        return (flat(w), _first(info, bad, at)), pivots + start

    # A column of zeros around the matrix has no pivot, and exchanges no rows.
    steps = -(-min(rows, columns) // PANEL)
    (out, info), pivots = stepped(step, (flat(_rounded(a, PANEL)), _none(a)), steps)
    pivots = pivots.permute(1, 0, 2).reshape(count, steps * PANEL)[:, : min(rows, columns)]
    status = info.gt(min(rows, columns)).where(0, info).contiguous()
    return unflat(out, a)[:, :rows, :columns], pivots, status


def triangular(a: Tensor, b: Tensor, upper: bool, unit: bool) -> Tensor:
    """X in A X = B for triangular A; see `kernels.triangular`."""
    n = b.shape[1]
    solve = kernels.triangular(upper, unit)
    if n <= BLOCK:
        return unflat(solve(flat(a), flat(b)), b)

    def step(number: Dim, _: None, own: Tensor) -> tuple[tuple[Tensor, ...], None]:
        x, at = unflat(own, b), number * BLOCK
        next_ = at + BLOCK
        rows, right = unflat(matrix, a)[:, at:next_], x[:, at:next_]
        known = rows[:, :, next_:] @ x[:, next_:] if upper else rows[:, :, :at] @ x[:, :at]
        found = solve(flat(rows[:, :, at:next_]), flat(right - known))
        return (flat(_placed(x, unflat(found, b), at, 0)),), None

    matrix = flat(_rounded(a, one=True)).contiguous()  # of floats: it is the loop's
    given = Tensor._wrap(G.pad(b._node, [(0, 0, 0), (0, -n % BLOCK, 0), (0, 0, 0)])).contiguous()
    (out,), _ = stepped(step, (flat(given),), matrix.shape[1] // BLOCK, reverse=upper)
    return unflat(out, b)[:, :n]


class Reflections(NamedTuple):
    """What `qr` makes of matrices.

    Attributes:
        factors: R, with below its diagonal the vectors of the reflections.
        turns: of each block of columns T of the product 1 - V T V^H; of a small matrix tau.
    """

    factors: Tensor
    turns: Tensor


def qr(a: Tensor) -> tuple[Tensor, Reflections]:
    """R, whose lower half holds something else, and what `orthogonal` makes Q of."""
    _, rows, columns = a.shape
    if min(rows, columns) <= BLOCK:
        out, tau = kernels.qr(flat(a))
        return unflat(out, a), Reflections(out, tau)

    def step(number: Dim, _: None, own: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        w, at = unflat(own, a), number * BLOCK
        high, wide = w.shape[1:]
        window = w[:, at:]
        out, tau = kernels.qr(flat(_padded(window[:, :, at : at + BLOCK], high)))
        panel = unflat(out, a)
        v = _vectors(panel, high - at)
        turn = _compacted(v, tau, a)
        right = Tensor.arange(wide, device=a.device).ge(at + BLOCK)
        change = right.where(turn.mH @ (v.mH @ window), 0)
        w = _placed(w, window - v @ change, at, 0)
        w = _placed(w, panel[:, : high - at], at, at)
        return (flat(w),), flat(turn)

    given = _rounded(a)
    (out,), turns = stepped(step, (flat(given),), -(-min(rows, columns) // BLOCK))
    return unflat(out, a)[:, :rows, :columns], Reflections(out, turns)


def orthogonal(made: Reflections, like: Tensor, columns: int) -> Tensor:
    """So many of the first columns of Q, for matrices of the shape of `like`."""
    count, rows, given = like.shape
    if min(rows, given) <= BLOCK:
        return unflat(kernels.reflected(columns)(*made), like)
    high = made.factors.shape[1]

    def step(number: Dim, turn: Tensor, own: Tensor) -> tuple[tuple[Tensor, ...], None]:
        q, at = unflat(own, like), number * BLOCK
        v = _vectors(unflat(made.factors, like)[:, at:, at : at + BLOCK], high - at)
        window = q[:, at:]
        change = unflat(turn, like) @ (v.mH @ window)
        return (flat(_placed(q, window - v @ change, at, 0)),), None

    one = Tensor.eye(high, columns, dtype=like.dtype, device=like.device)
    first = one.expand(count, high, columns).contiguous()
    steps = made.turns.shape[0]
    (out,), _ = stepped(step, (flat(first),), steps, made.turns, reverse=True)
    return unflat(out, like)[:, :rows]


def _vectors(panel: Tensor, rows: Dim) -> Tensor:
    """The vectors of a block of reflections, so many rows: below ones on the diagonal."""
    own = panel[:, :rows]
    row = Tensor.arange(rows, device=panel.device).unsqueeze(-1)
    column = Tensor.arange(BLOCK, device=panel.device)
    return row.gt(column).where(own, row.eq(column).cast(panel.dtype))


def _compacted(v: Tensor, tau: Tensor, like: Tensor) -> Tensor:
    """T of the product 1 - V T V^H of a block of reflections."""
    turn = kernels.compact(flat(v.mH @ v), tau)
    return unflat(turn, like)


def _rounded(a: Tensor, block: int = BLOCK, one: bool = False) -> Tensor:
    """Matrices with zeros around them to whole blocks; if `one`, with 1 on the new diagonal."""
    _, rows, columns = a.shape
    more = [-size % block for size in (rows, columns)]
    if not any(more):
        return a
    large = Tensor._wrap(G.pad(a._node, [(0, 0, 0), (0, more[0], 0), (0, more[1], 0)]))
    if not one:
        return large
    row = Tensor.arange(rows + more[0], device=a.device).unsqueeze(-1)
    column = Tensor.arange(columns + more[1], device=a.device)
    return (row.eq(column) & (row.ge(rows) | column.ge(columns))).where(1, large)


def _padded(x: Tensor, rows: int) -> Tensor:
    """Matrices with rows of zeros below, so many in all, in memory of their own."""
    more = rows - x.shape[1]
    return Tensor._wrap(G.pad(x._node, [(0, 0, 0), (0, more, 0), (0, 0, 0)])).contiguous()


def _widened(x: Tensor, columns: int) -> Tensor:
    """Matrices with columns of zeros behind, so many in all, in memory of their own."""
    more = columns - x.shape[2]
    return Tensor._wrap(G.pad(x._node, [(0, 0, 0), (0, 0, 0), (0, more, 0)])).contiguous()


def _placed(w: Tensor, x: Tensor, row: Dim, column: Dim) -> Tensor:
    """`w` with a part, from a row and a column on, replaced by `x`."""
    return Tensor._wrap(G.write(w._node, x._node, [(0, 1), (row, 1), (column, 1)]))


def _none(a: Tensor) -> Tensor:
    """The status of matrices with which nothing is wrong yet."""
    return Tensor.zeros(a.shape[0], dtype=dtypes.int32, device=a.device)


def _first(info: Tensor, bad: Tensor, at: Dim) -> Tensor:
    """The status with that of a block that begins at a column."""
    start = Tensor._wrap(G.index(at, dtypes.int32, info.device))
    return (info.eq(0) & bad.ne(0)).where(bad + start, info)

"""Gradients of factorisations, the rules of their `custom_grad` nodes, in tensors' methods.

They are torch's and jax's, after M. Giles, "Collected matrix derivative results for forward and
reverse mode algorithmic differentiation", 2008, and S. F. Walter and L. Lehmann, "Algorithmic
differentiation of linear algebra functions", 2010. What they are computed from are values that have
gradients themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.graph import build as G
from gpu.core.errors import Unsupported
from gpu.tensor.linalg.factorizations import qr, row_order, solve_triangular
from gpu.tensor.linalg.matrices import eye_like, in_order
from gpu.tensor.linalg.powers import matrix_exp
from gpu.tensor.linalg.systems import cholesky_solve, lu_solve
from gpu.tensor.tensor import Tensor

Rule = Callable[[Node, Node], Sequence[Node | None]]


def _tensors(node: Node, *nodes: Node) -> list[Tensor]:
    """Nodes of a rule as tensors: complex ones where the first number of `node` says so."""
    pairs = node.attr[1]
    return [Tensor._wrap(G.as_complex(n) if pairs and n.dtype.is_float else n) for n in nodes]


def _floats(x: Tensor) -> Node:
    """What a rule gives of a tensor."""
    return G.as_real(x._node) if x.dtype.is_complex else x._node


def _half(x: Tensor) -> Tensor:
    """The lower half, of which the diagonal counts half."""
    return (x.tril() + x.tril(-1)) * 0.5


def _cholesky(node: Node, grad: Node) -> Sequence[Node | None]:
    factor, change = _tensors(node, node, grad)
    inner = _half(factor.mH @ change)
    left = solve_triangular(factor.mH, inner + inner.mH, upper=True)
    whole = solve_triangular(factor, left, upper=False, left=False)
    return (None, _floats(whole * 0.5))


def _triangular(node: Node, grad: Node) -> Sequence[Node | None]:
    upper, unit = map(bool, node.attr[2:])
    x, a, change = _tensors(node, node, node.src[1], grad)
    right = solve_triangular(a.mH, change, upper=not upper, unitriangular=unit)
    whole = -right @ x.mH
    own = whole.triu(int(unit)) if upper else whole.tril(-int(unit))
    return (None, _floats(own), _floats(right))


def _lu(node: Node, grad: Node) -> Sequence[Node | None]:
    both, change = _tensors(node, node, grad)
    rows, columns = both.shape[-2:]
    steps = min(rows, columns)
    lower, upper = both[..., :steps], both[..., :steps, :]
    of_lower = change[..., :steps].tril(-1)
    of_upper = change[..., :steps, :].triu()
    turned_l, turned_u = both[..., :steps, :steps].mH, upper[..., :steps].mH

    def over_lower(x: Tensor) -> Tensor:
        return solve_triangular(turned_l, x, upper=True, unitriangular=True)

    def over_upper(x: Tensor) -> Tensor:
        return solve_triangular(turned_u, x, upper=False, left=False)

    parts: list[Tensor] = []
    if rows > columns:  # A2 = L2 U
        below = over_upper(of_lower[..., steps:, :])
        of_upper = of_upper - (lower[..., steps:, :].mH @ below).triu()
        of_lower = of_lower[..., :steps, :]
        parts = [below]
    elif columns > rows:  # A2 = L U2
        beside = over_lower(of_upper[..., steps:])
        of_lower = of_lower - (beside @ upper[..., steps:].mH).tril(-1)
        of_upper = of_upper[..., :steps]
        parts = [beside]
    unit_l = both[..., :steps, :steps].tril(-1) + eye_like(both, steps)
    inner = (unit_l.mH @ of_lower).tril(-1)
    inner = inner + (of_upper @ upper[..., :steps].triu().mH).triu()
    square = over_upper(over_lower(inner))
    whole = square.cat(*parts, dim=-1 if columns > rows else -2)
    order = row_order(_pivots(node), rows).argsort(-1)
    return (None, _floats(in_order(whole, order)), None)


def _pivots(node: Node) -> Tensor:
    return Tensor._wrap(node.src[-1])


def _solve(node: Node, grad: Node) -> Sequence[Node | None]:
    x, both, change = _tensors(node, node, node.src[3], grad)
    right = lu_solve(both, _pivots(node), change, adjoint=True)
    return (None, _floats(-right @ x.mH), _floats(right), None, None)


def _cholesky_solve(node: Node, grad: Node) -> Sequence[Node | None]:
    """As torch's, that of L @ L.mH for any L: the half that is not read has a gradient too."""
    x, factor, change = _tensors(node, node, node.src[2], grad)
    right = cholesky_solve(change, factor)
    of_product = right @ x.mH
    whole = -(of_product + of_product.mH) @ factor
    return (None, _floats(right), _floats(whole))


def _qr(of_q: bool) -> Rule:
    def rule(node: Node, grad: Node) -> Sequence[Node | None]:
        if node.attr[2]:
            raise Unsupported(
                "qr(mode='complete') has no gradient where there are more rows than columns: the"
                " last columns of Q are not determined; take mode='reduced'"
            )
        a, change = _tensors(node, node.src[1], grad)
        q, r = qr(a)
        rows, columns = a.shape[-2:]
        if not of_q:
            change = change.triu()
        if rows >= columns:
            return (None, _floats(_of_tall(q, r, change, of_q)))
        right, upper = a[..., rows:], r[..., :rows]
        if of_q:
            first = _of_tall(q, upper, change, True)
            rest = right.zeros_like()
        else:
            first = _of_tall(q, upper, change[..., :rows], False)
            own = change[..., rows:]
            first = first + _of_tall(q, upper, right @ own.mH, True)
            rest = q @ own
        return (None, _floats(first.cat(rest, dim=-1)))

    return rule


def _of_tall(q: Tensor, r: Tensor, change: Tensor, of_q: bool) -> Tensor:
    """The gradient where there are no more columns than rows, for that of Q or that of R."""
    inner = -(q.mH @ change) if of_q else change @ r.mH
    upper = (inner.triu() + inner.triu(1)) * 0.5
    whole = q @ (upper + upper.mH)
    return solve_triangular(r.mH, whole + change if of_q else whole, upper=False, left=False)


def _matrix_exp(node: Node, grad: Node) -> Sequence[Node | None]:
    """R. Mathias, "A chain rule for matrix functions and applications", 1996."""
    a, change = _tensors(node, node.src[1], grad)
    turned, n = a.mH, a.shape[-1]
    top = turned.cat(change, dim=-1)
    below = turned.zeros_like().cat(turned, dim=-1)
    return (None, _floats(matrix_exp(top.cat(below, dim=-2))[..., :n, n:]))


RULES: Final[dict[str, Rule]] = {
    "cholesky": _cholesky,
    "triangular": _triangular,
    "lu": _lu,
    "solve": _solve,
    "cholesky_solve": _cholesky_solve,
    "qr_q": _qr(True),
    "qr_r": _qr(False),
    "matrix_exp": _matrix_exp,
}

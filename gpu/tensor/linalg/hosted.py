"""Functions of the host as lazy tensors, with gradients.

The host's LAPACK computes them, by `numpy.linalg`, on whatever device a tensor is: see
`gpu/compiler/ir/graph/hostcall.py`. Gradients follow torch's, of which each is the adjoint of what
differentiating the decomposition gives (M. Giles, "An extended collection of matrix derivative
results for forward and reverse mode automatic differentiation", 2008).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from gpu.compiler.ir.graph import Node, Shape
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.body import Value
from gpu.compiler.ir.graph.hostcall import HostCall
from gpu.core.dtype import DType, complex_of
from gpu.core.errors import Unsupported
from gpu.runtime.origins import note_origin
from gpu.tensor.tensor import Tensor

Grads: TypeAlias = Sequence[Tensor | None]
# The gradient of the matrices, given them, the results, and the gradients of those.
Rule: TypeAlias = Callable[[Tensor, Sequence[Tensor], Grads], Tensor]


def call(name: str, x: Tensor, results: Sequence[Value], *others: Tensor) -> tuple[Tensor, ...]:
    """What the function `name` of the host computes of matrices, of the forms `results`.

    Further operands have no gradient.

    Of matrices without elements results are without elements, or the identity.
    """
    if 0 in x.shape:
        return tuple(_of_none(x, *value) for value in results)
    given = (x, *others)
    inputs = tuple(Value(each.shape, each.dtype) for each in given)
    operands = [G.as_real(t._node) if t.dtype.is_complex else t._node for t in given]
    node = G.host(HostCall(name, inputs, tuple(results)), _gradient, operands)
    note_origin(node)
    nodes = (G.result(node, number) for number in range(len(results)))
    return tuple(_as_numbers(*each) for each in zip(nodes, results, strict=True))


def _of_none(x: Tensor, shape: Shape, dtype: DType) -> Tensor:
    if 0 in shape:
        return Tensor._wrap(G.flat(G.const(0, shape, dtype, x.device), x._node))
    return Tensor.eye(shape[-1], dtype=dtype, device=x.device).expand(shape)


def _as_numbers(node: Node, value: Value) -> Tensor:
    """What a node is of which pairs stand for complex numbers."""
    return Tensor._wrap(G.as_complex(node) if value.dtype.is_complex else node)


def _gradient(node: Node, grads: Mapping[int, Node]) -> list[Node | None]:
    """The rule of `host` nodes: what it takes and gives are floats and pairs."""
    made: HostCall = node.attr[0]
    results = [_as_numbers(G.result(node, n), value) for n, value in enumerate(made.outputs)]
    flowing = [
        _as_numbers(grads[n], value) if n in grads else None for n, value in enumerate(made.outputs)
    ]
    operand = _as_numbers(node.src[0], made.inputs[0])
    found = _RULES[made.name](operand, results, flowing)._node
    own = G.as_real(found) if found.dtype.is_complex else found
    return [own, *(None for _ in node.src[1:])]


def _off_diagonal(values: Tensor) -> Tensor:
    """The differences v[j] - v[i] at (i, j), and 1 on the diagonal."""
    differences = values.unsqueeze(-2).sub(values.unsqueeze(-1))
    return _diagonal_of(differences).where(1, differences)


def _diagonal_of(x: Tensor) -> Tensor:
    """Whether elements are on the diagonal of their matrix."""
    size = x.shape[-1]
    return Tensor.eye(size, dtype="bool", device=x.device).expand(x.shape)


def _diagonal(values: Tensor) -> Tensor:
    """Matrices with these diagonals."""
    return values.diag_embed()


def _svd(x: Tensor, results: Sequence[Tensor], grads: Grads) -> Tensor:
    count = min(x.shape[-2:])
    u, s, vh = results
    u, vh = u[..., :count], vh[..., :count, :]
    grad_u, grad_s, grad_vh = grads
    grad_u = None if grad_u is None else grad_u[..., :count]
    grad_vh = None if grad_vh is None else grad_vh[..., :count, :]
    numbers = s.cast(u.dtype)
    gap = _off_diagonal(s.square()).cast(u.dtype)
    inner = None if grad_s is None else _diagonal(grad_s.cast(u.dtype))
    rows, columns = numbers.unsqueeze(-1), numbers.unsqueeze(-2)
    if grad_u is not None:
        turned = _skew(u.adjoint().matmul(grad_u))
        inner = _sum(inner, turned.div(gap).mul(columns))
        if x.dtype.is_complex:
            phase = turned.diagonal(dim1=-2, dim2=-1).div(numbers.mul(2))
            inner = _sum(inner, _diagonal(phase))
    if grad_vh is not None:
        inner = _sum(inner, _skew(vh.matmul(grad_vh.adjoint())).div(gap).mul(rows))
    assert inner is not None
    left = u.matmul(inner)
    if grad_u is not None and x.shape[-2] > count:
        outside = grad_u.div(columns)
        left = left.add(outside).sub(u.matmul(u.adjoint().matmul(outside)))
    result = left.matmul(vh)
    if grad_vh is not None and x.shape[-1] > count:
        outside = grad_vh.div(rows)
        outside = outside.sub(outside.matmul(vh.adjoint()).matmul(vh))
        result = result.add(u.matmul(outside))
    return result


def _sum(x: Tensor | None, y: Tensor) -> Tensor:
    return y if x is None else x.add(y)


def _skew(x: Tensor) -> Tensor:
    return x.sub(x.adjoint())


def _svdvals(x: Tensor, results: Sequence[Tensor], grads: Grads) -> Tensor:
    u, _, vh = call("svd", x, svd_results(x, full_matrices=False))
    (grad,) = grads
    assert grad is not None
    return u.mul(grad.cast(u.dtype).unsqueeze(-2)).matmul(vh)


def _eigh(x: Tensor, results: Sequence[Tensor], grads: Grads) -> Tensor:
    values, vectors = results
    grad_values, grad_vectors = grads
    inner = None if grad_values is None else _diagonal(grad_values.cast(vectors.dtype))
    if grad_vectors is not None:
        turned = vectors.adjoint().matmul(grad_vectors)
        turned = turned.div(_off_diagonal(values).cast(vectors.dtype))
        inner = _sum(inner, _diagonal_of(turned).where(0, turned))
    assert inner is not None
    return vectors.matmul(inner).matmul(vectors.adjoint())


def _eigvalsh(x: Tensor, results: Sequence[Tensor], grads: Grads) -> Tensor:
    return _eigh(x, call("eigh", x, eigh_results(x)), (grads[0], None))


def _eig(x: Tensor, results: Sequence[Tensor], grads: Grads) -> Tensor:
    values, vectors = results
    grad_values, grad_vectors = grads
    inner = None if grad_values is None else _diagonal(grad_values)
    if grad_vectors is not None:
        gram = vectors.adjoint().matmul(vectors)
        turned = vectors.adjoint().matmul(grad_vectors)
        along = turned.diagonal(dim1=-2, dim2=-1).real.cast(gram.dtype).unsqueeze(-2)
        turned = turned.sub(gram.mul(along)).div(_off_diagonal(values).conj())
        inner = _sum(inner, _diagonal_of(turned).where(0, turned))
    assert inner is not None
    (inverse,) = call("inv", vectors, eig_results(x)[1:])
    found = inverse.adjoint().matmul(inner).matmul(vectors.adjoint())
    return found if x.dtype.is_complex else found.real


def _eigvals(x: Tensor, results: Sequence[Tensor], grads: Grads) -> Tensor:
    return _eig(x, call("eig", x, eig_results(x)), (grads[0], None))


def _inv(x: Tensor, results: Sequence[Tensor], grads: Grads) -> Tensor:
    (inverse,), (grad,) = results, grads
    assert grad is not None
    return inverse.adjoint().matmul(grad).matmul(inverse.adjoint()).neg()


def _pinv(x: Tensor, results: Sequence[Tensor], grads: Grads) -> Tensor:
    """Where the rank does not change (G. Golub and V. Pereyra, 1973)."""
    (inverse,), (grad,) = results, grads
    assert grad is not None
    back, turned = inverse.adjoint(), grad.adjoint()
    if x.shape[-2] <= x.shape[-1]:
        inner = turned.matmul(inverse)
        along = inner.matmul(back)
        found = along.sub(inverse.matmul(inner).adjoint()).sub(x.matmul(inverse).matmul(along))
        return found.add(back.matmul(inverse.matmul(turned.sub(inner.matmul(x)))))
    inner = inverse.matmul(turned)
    along = back.matmul(inner)
    found = along.sub(inner.matmul(inverse).adjoint()).sub(along.matmul(inverse).matmul(x))
    return found.add(turned.sub(x.matmul(inner)).matmul(inverse).matmul(back))


def svd_results(x: Tensor, full_matrices: bool) -> tuple[Value, ...]:
    """The forms of the results of ``svd`` or ``svd_full``."""
    *batch, rows, columns = x.shape
    count = min(rows, columns)
    return (
        Value((*batch, rows, rows if full_matrices else count), x.dtype),
        Value((*batch, count), x.dtype.real),
        Value((*batch, columns if full_matrices else count, columns), x.dtype),
    )


def eigh_results(x: Tensor) -> tuple[Value, ...]:
    """The forms of the results of ``eigh``."""
    return Value(x.shape[:-1], x.dtype.real), Value(x.shape, x.dtype)


def eig_results(x: Tensor) -> tuple[Value, ...]:
    """The forms of the results of ``eig``."""
    dtype = complex_of(x.dtype.real)
    return Value(x.shape[:-1], dtype), Value(x.shape, dtype)


def _without(operation: str) -> Rule:
    def rule(x: Tensor, results: Sequence[Tensor], grads: Grads) -> Tensor:
        raise Unsupported(f"{operation} has no gradient, as in torch; linalg.solve has one")

    return rule


_RULES: Final[dict[str, Rule]] = {
    "svd": _svd,
    "svd_full": _svd,
    "svdvals": _svdvals,
    "eigh": _eigh,
    "eigvalsh": _eigvalsh,
    "eig": _eig,
    "eigvals": _eigvals,
    "inv": _inv,
    "pinv": _pinv,
    "ldl": _without("ldl_factor"),
    "ldl_hermitian": _without("ldl_factor"),
    "ldlsolve": _without("ldl_solve"),
    "ldlsolve_hermitian": _without("ldl_solve"),
}

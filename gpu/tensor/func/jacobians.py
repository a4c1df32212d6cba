"""Matrices of derivatives: `jacrev`, `jacfwd` and `hessian`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from gpu.compiler.ir.dims import has_symbols
from gpu.compiler.ir.graph import Node, Shape
from gpu.compiler.ir.graph import build as G
from gpu.core.errors import DTypeError, Unsupported
from gpu.tensor.func.batching import Batch
from gpu.tensor.func.evaluation import Argnums, Evaluation, evaluate
from gpu.tensor.func.traces import name_of
from gpu.tensor.func.trees import leaves_of, with_leaves, with_nodes
from gpu.tensor.loops import given
from gpu.tensor.tensor import Tensor


def jacrev(
    fun: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """The Jacobian of `fun`, a row for each element of its result, by reverse derivatives.

    It suits functions with few results and many arguments; `jacfwd` gives the same for the others.

    Args:
        fun: a function of tensors in tuples, lists and dicts, which gives such.
        argnums: with respect to which positional arguments.
        has_aux: `fun` gives a pair of which the second is given back beside the Jacobian.

    The function that is returned gives what has the form of the result, and in the place of each
    tensor of that what has the form of the arguments: as that of a gradient. Of a result of shape S
    and an argument of shape A it is of shape S + A.

    It raises as `grad`; DTypeError for complex numbers, of which `x.view_as_real()` has the parts;
    and Unsupported for symbolic sizes.

    >>> from gpu import Tensor, func
    >>> func.jacrev(lambda x: x * x)(Tensor([1.0, 2.0])).tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """
    return _jacobian("jacrev", _by_rows, fun, argnums, has_aux)


def jacfwd(
    fun: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """The Jacobian of `fun`, a column for each element of the arguments, by forward derivatives.

    It suits functions with many results and few arguments; see `jacrev`.

    >>> from gpu import Tensor, func
    >>> func.jacfwd(lambda x: x.sum() * x)(Tensor([1.0, 2.0])).tolist()
    [[4.0, 1.0], [2.0, 5.0]]
    """
    return _jacobian("jacfwd", _by_columns, fun, argnums, has_aux)


def hessian(
    fun: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """The second derivatives of `fun`: the Jacobian of its Jacobian; see `jacrev`.

    >>> from gpu import Tensor, func
    >>> func.hessian(lambda x: x.prod())(Tensor([2.0, 3.0, 4.0])).tolist()
    [[0.0, 4.0, 3.0], [4.0, 0.0, 2.0], [3.0, 2.0, 0.0]]
    """
    return jacfwd(jacrev(fun, argnums, has_aux), argnums, has_aux)


def _jacobian(
    transform: str,
    blocks_of: Callable[[Evaluation], list[list[Node]]],
    fun: Callable[..., Any],
    argnums: Argnums,
    has_aux: bool,
) -> Callable[..., Any]:
    name = name_of(transform, fun)

    @wraps(fun)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        point = evaluate(fun, args, kwargs, argnums, has_aux, name)
        for tensor in (*leaves_of(point.arguments), *leaves_of(point.result)):
            _check(tensor, name)
        blocks = blocks_of(point)
        rows = [with_nodes(point.arguments, row) for row in blocks]
        found = with_leaves(point.result, rows)
        return (found, point.aux) if has_aux else found

    return jacobian


def _by_rows(point: Evaluation) -> list[list[Node]]:
    """For each result, the derivative by each argument."""
    results = [tensor._value for tensor in leaves_of(point.result)]
    rows = []
    for number, result in enumerate(results):
        seed = given(result)
        grads = point.pulled_back([seed if n == number else None for n in range(len(results))])
        batch = _units(seed, grads)
        rows.append([G.reshape(batch.of(g), (*result.shape, *g.shape)) for g in grads])
    return rows


def _by_columns(point: Evaluation) -> list[list[Node]]:
    """The same."""
    arguments = [tensor._value for tensor in leaves_of(point.arguments)]
    forward = point.forward()
    columns = []
    for number, argument in enumerate(arguments):
        seed = given(argument)
        moves = forward.pushed([seed if n == number else None for n in range(len(arguments))])
        batch = _units(seed, moves)
        columns.append([_first_axis_last(batch.of(m), argument.shape) for m in moves])
    return [list(row) for row in zip(*columns, strict=True)]


def _units(seed: Node, results: Sequence[Node]) -> Batch:
    """`results` for each unit vector in the place of `seed`."""
    count = seed.size
    unit = Tensor.eye(count, dtype=seed.dtype, device=seed.device)._node
    batch = Batch(count, {seed: G.reshape(unit, (count, *seed.shape))})
    batch.compute(results)
    return batch


def _first_axis_last(x: Node, shape: Shape) -> Node:
    """`x` with its first axis the last ones, of `shape`."""
    moved = G.permute(x, (*range(1, len(x.shape)), 0))
    return G.reshape(moved, (*x.shape[1:], *shape))


def _check(tensor: Tensor, name: str) -> None:
    if not tensor.dtype.is_float:
        raise DTypeError(
            f"{name} has {tensor._described()}: a Jacobian is of floats by floats; of complex"
            " numbers x.view_as_real() has the parts"
        )
    if has_symbols(tensor.shape):
        raise Unsupported(f"{name} has {tensor._described()}, whose size is symbolic")

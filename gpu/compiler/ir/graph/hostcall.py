"""Functions that the host computes on whatever device a graph is: what a `host` node calls.

A call is plain data: the name of a function in `FUNCTIONS`, and the forms of its operand and its
results. The operand is matrices with any axes before them, of which each is a problem of its own.
A node has the parts of complex numbers as pairs, as all that runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from gpu.compiler.ir.evaluate import Array
from gpu.compiler.ir.graph.body import Value
from gpu.core.linalgerror import LinAlgError


class HostCall(NamedTuple):
    """A call of a function; equal ones compute the same.

    Attributes:
        name: of the function.
        operand: the form of what it takes, perhaps of complex numbers.
        outputs: the forms of what it gives.
    """

    name: str
    operand: Value
    outputs: tuple[Value, ...]


def in_pairs(value: Value) -> Value:
    """The form with a last axis for both parts, of complex numbers."""
    shape, dtype = value
    return Value((*shape, 2), dtype.real) if dtype.is_complex else value


class Function(NamedTuple):
    """A function of matrices.

    Attributes:
        run: computes the results, with numpy's errors.
        is_lower: whether it reads what is on and below the diagonal alone.
    """

    run: Callable[[Array], tuple[Array, ...]]
    is_lower: bool = False


FUNCTIONS: Final[dict[str, Function]] = {
    "svd": Function(lambda x: tuple(np.linalg.svd(x, full_matrices=False))),
    "svd_full": Function(lambda x: tuple(np.linalg.svd(x))),
    "svdvals": Function(lambda x: (np.linalg.svd(x, compute_uv=False),)),
    "eigh": Function(lambda x: tuple(np.linalg.eigh(x)), is_lower=True),
    "eigvalsh": Function(lambda x: (np.linalg.eigvalsh(x),), is_lower=True),
    "eig": Function(lambda x: tuple(np.linalg.eig(x))),
    "eigvals": Function(lambda x: (np.linalg.eigvals(x),)),
    "inv": Function(lambda x: (np.linalg.inv(x),)),
}


def run_host(call: HostCall, operand: Array) -> list[Array]:
    """The results of a call, NaN for matrices with a NaN or an infinity; complex ones as pairs.

    Raises LinAlgError for a matrix with which the function does not come to an end.
    """
    function = FUNCTIONS[call.name]
    shape, dtype = call.operand
    numbers = np.ascontiguousarray(operand).view(dtype.np).reshape(shape)
    read = np.tril(numbers) if function.is_lower else numbers
    finite = np.asarray(np.isfinite(read).all((-2, -1)))
    if not finite.all():
        numbers = np.where(finite[..., None, None], numbers, 0)
    try:
        results = function.run(numbers)
    except np.linalg.LinAlgError as error:
        place = _failing(function, numbers)
        raise LinAlgError(call.name.partition("_")[0], "it does not converge", place) from error
    return [_formed(*each, finite) for each in zip(results, call.outputs, strict=True)]


def _formed(result: Array, value: Value, finite: Array) -> Array:
    """A result in the form of `value`, NaN for the matrices that are not `finite`."""
    own = np.array(result, value.dtype.np, order="C")
    own[~finite] = complex(np.nan, np.nan) if value.dtype.is_complex else np.nan
    shape, dtype = in_pairs(value)
    return own.view(dtype.np).reshape(shape)


def _failing(function: Function, matrices: Array) -> tuple[int, ...]:
    """The first of the matrices with which a function fails."""
    for place in np.ndindex(matrices.shape[:-2]):
        try:
            function.run(matrices[place])
        except np.linalg.LinAlgError:
            return place
    return ()

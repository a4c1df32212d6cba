"""Functions that the host computes on whatever device a graph is: what a `host` node calls.

A call is plain data: the name of a function in `FUNCTIONS`, and the forms of its operands and its
results. The first operand is matrices with any axes before them, of which each is a problem of its
own. Nodes have the parts of complex numbers as pairs, as all that runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Self

import numpy as np

from gpu.compiler.ir.evaluate import Array
from gpu.compiler.ir.graph import ldl
from gpu.compiler.ir.graph.body import Value
from gpu.core.dtype import dtype_named
from gpu.core.errors import Unsupported
from gpu.core.linalgerror import LinAlgError


class Across(NamedTuple):
    """Which processes make a call together.

    Attributes:
        ranks: the sizes of the axes along which all ranks are counted, the last one fastest.
        number: of the axis along which those of one call lie.
        monoid: what combines their values; "" where nothing does.
    """

    ranks: tuple[int, ...]
    number: int
    monoid: str = ""


class HostCall(NamedTuple):
    """A call of a function; equal ones compute the same.

    Attributes:
        name: of the function.
        inputs: the forms of what it takes, perhaps of complex numbers.
        outputs: the forms of what it gives.
        across: for a collective, which processes make it; its name is none of `FUNCTIONS`.
    """

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    across: Across | None = None

    def as_data(self) -> list[Any]:
        """The same as JSON has it."""
        forms = ([(s, dtype.name) for s, dtype in each] for each in (self.inputs, self.outputs))
        return [self.name, *forms, self.across]

    @classmethod
    def from_data(cls, data: Sequence[Any]) -> Self:
        """What `as_data` gave."""
        name, *forms, across = data
        inputs, outputs = (tuple(Value(tuple(s), dtype_named(d)) for s, d in f) for f in forms)
        if across is None:
            return cls(name, inputs, outputs)
        ranks, number, monoid = across
        return cls(name, inputs, outputs, Across(tuple(ranks), number, monoid))


def in_pairs(value: Value) -> Value:
    """The form with a last axis for both parts, of complex numbers."""
    shape, dtype = value
    return Value((*shape, 2), dtype.real) if dtype.is_complex else value


class Function(NamedTuple):
    """A function of matrices.

    Attributes:
        run: computes the results, with numpy's errors.
        is_lower: whether it reads what is on and below the diagonals alone.
    """

    run: Callable[..., tuple[Array, ...]]
    is_lower: bool = False


def _pinv(x: Array, limits: Array) -> tuple[Array, ...]:
    """Pseudoinverses, where `limits` has the least singular value that is no zero.

    It is the larger one of the first of a pair, and of the second times the largest.
    """
    u, s, vh = np.linalg.svd(x, full_matrices=False)
    least = np.maximum(limits[..., 0], limits[..., 1] * s.max(-1, initial=0))
    inverse = np.divide(1, s, out=np.zeros_like(s), where=s > least[..., None])
    return ((vh.swapaxes(-2, -1).conj() * inverse[..., None, :]) @ u.swapaxes(-2, -1).conj(),)


FUNCTIONS: Final[dict[str, Function]] = {
    "svd": Function(lambda x: tuple(np.linalg.svd(x, full_matrices=False))),
    "svd_full": Function(lambda x: tuple(np.linalg.svd(x))),
    "svdvals": Function(lambda x: (np.linalg.svd(x, compute_uv=False),)),
    "eigh": Function(lambda x: tuple(np.linalg.eigh(x)), is_lower=True),
    "eigvalsh": Function(lambda x: (np.linalg.eigvalsh(x),), is_lower=True),
    "eig": Function(lambda x: tuple(np.linalg.eig(x))),
    "eigvals": Function(lambda x: (np.linalg.eigvals(x),)),
    "inv": Function(lambda x: (np.linalg.inv(x),)),
    "pinv": Function(_pinv),
    "ldl": Function(lambda x: ldl.factor(x, hermitian=False), is_lower=True),
    "ldl_hermitian": Function(lambda x: ldl.factor(x, hermitian=True), is_lower=True),
    "ldlsolve": Function(lambda x, p, b: (ldl.solve(x, p, b, hermitian=False),), is_lower=True),
    "ldlsolve_hermitian": Function(
        lambda x, p, b: (ldl.solve(x, p, b, hermitian=True),), is_lower=True
    ),
}


def run_host(call: HostCall, operands: Sequence[Array]) -> list[Array]:
    """The results of a call, NaN for matrices with a NaN or an infinity; complex ones as pairs.

    Raises LinAlgError for a matrix with which the function does not come to an end, Unsupported for
    a collective, which takes other processes.
    """
    if call.across is not None:
        raise Unsupported(f"{call.name} over ranks {call.across.ranks} is nothing for one process")
    function = FUNCTIONS[call.name]
    numbers, *others = (
        np.ascontiguousarray(operand).view(value.dtype.np).reshape(value.shape)
        for operand, value in zip(operands, call.inputs, strict=True)
    )
    read = np.tril(numbers) if function.is_lower else numbers
    finite = np.asarray(np.isfinite(read).all((-2, -1)))
    if not finite.all():
        numbers = np.where(finite[..., None, None], numbers, 0)
    try:
        results = function.run(numbers, *others)
    except np.linalg.LinAlgError as error:
        place = _failing(function, numbers, others)
        which = f", matrix {list(place)} of the batch" if place else ""
        operation = call.name.partition("_")[0]
        raise LinAlgError(f"{operation}{which}: {error}", operation, place) from error
    return [_formed(*each, finite) for each in zip(results, call.outputs, strict=True)]


def _formed(result: Array, value: Value, finite: Array) -> Array:
    """A result in the form of `value`, NaN for the matrices that are not `finite`.

    Integers are those of zeros.
    """
    own = np.array(result, value.dtype.np, order="C")
    if not value.dtype.is_int:
        own[~finite] = complex(np.nan, np.nan) if value.dtype.is_complex else np.nan
    shape, dtype = in_pairs(value)
    return own.view(dtype.np).reshape(shape)


def _failing(function: Function, matrices: Array, others: Sequence[Array]) -> tuple[int, ...]:
    """The first of the matrices with which a function fails."""
    for place in np.ndindex(matrices.shape[:-2]):
        try:
            function.run(matrices[place], *(each[place] for each in others))
        except np.linalg.LinAlgError:
            return place
    return ()

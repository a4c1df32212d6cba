"""What the interpreters of the kernel and linear IRs share.

Both run all iterations of nested parallel loops at once: a *point* is one combination of their
counters, and a value is an array with an element for each point (or one for all, where they agree).
Entering a loop of n iterations turns each point p into the points p * n + i.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from gpu.compiler.ir.evaluate import Array
from gpu.core.dtype import DType
from gpu.core.errors import InvalidValue

POINTS: Final = 1 << 20
"""How many points are run at once; parallel loops with more run in several goes."""

_POISON: Final = {"bool": 1, "int": 0x5A, "uint": 0xA5}


def poison(shape: tuple[int, ...], dtype: DType) -> Array:
    """Memory that nothing has been written to: floats are NaN, integers repeat one odd byte."""
    if dtype.is_float:
        return np.full(shape, np.nan).astype(dtype.np)
    count = int(np.prod(shape)) * dtype.itemsize
    return np.full(count, _POISON[dtype.kind], np.uint8).view(dtype.np).reshape(shape)


def goes(iterations: int, points: int, inner: int) -> Iterator[tuple[int, int]]:
    """Splits a parallel loop into (first, count) so that few enough points run at once.

    `points` are those entering the loop, `inner` how many each iteration becomes further in.
    """
    most = max(1, POINTS // max(points * inner, 1))
    for first in range(0, iterations, most):
        yield first, min(most, iterations - first)


def repeated(value: Array, count: int) -> Array:
    """A value by points for the points of a loop inside; values common to all points stay so."""
    return value if len(value) == 1 else np.repeat(value, count, axis=0)


def owners(points: int, rows: int) -> Array:
    """For each of `points` the one of `rows` earlier points it comes from."""
    return np.arange(points) // (points // rows)


def check_vals(name: str, wanted: Sequence[tuple[str, int, int]], vals: Sequence[int]) -> None:
    """Checks the values of a launch against what a kernel wants: (name, lowest, highest) of each.

    Raises InvalidValue.
    """
    if len(vals) != len(wanted):
        raise InvalidValue(f"{name} takes {len(wanted)} values, got {len(vals)}")
    for (which, lo, hi), value in zip(wanted, vals, strict=True):
        if not lo <= value <= hi:
            raise InvalidValue(f"value {which} of {name} is {value}; expected {lo}..{hi}")


def flat_view(array: Array, what: str, dtype: DType) -> Array:
    """An argument as a flat array that shares its memory.

    Raises InvalidValue where the array's dtype is another or its memory is not contiguous.
    """
    if array.dtype != dtype.np or not array.flags.c_contiguous:
        raise InvalidValue(
            f"{what} must be a C-contiguous array of {dtype.name}, got {array.dtype.name}"
            f"{'' if array.flags.c_contiguous else ' with gaps'}; pass np.ascontiguousarray(...)"
        )
    return array.reshape(-1)

"""Set functions."""

from __future__ import annotations

from typing import NamedTuple

from gpu.tensor.array_api.arguments import Operand, pair_of, tensor_of
from gpu.tensor.tensor import Tensor


class UniqueAll(NamedTuple):
    """Distinct elements, their first places, the place of each element, and how many there are."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """Distinct elements, and how many there are of each."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """Distinct elements, and the place of each element among them."""

    values: Tensor
    inverse_indices: Tensor


def isin(x1: Operand, x2: Operand, /, *, invert: bool = False) -> Tensor:
    """`Tensor.isin`."""
    elements, others = pair_of(x1, x2)
    return elements.isin(others, invert=invert)


def unique_all(x: Tensor, /) -> UniqueAll:
    """`Tensor.unique` with all that it tells."""
    return UniqueAll(
        *tensor_of(x).unique(return_index=True, return_inverse=True, return_counts=True)
    )


def unique_counts(x: Tensor, /) -> UniqueCounts:
    """`Tensor.unique` with counts."""
    return UniqueCounts(*tensor_of(x).unique(return_counts=True))


def unique_inverse(x: Tensor, /) -> UniqueInverse:
    """`Tensor.unique` with places."""
    return UniqueInverse(*tensor_of(x).unique(return_inverse=True))


def unique_values(x: Tensor, /) -> Tensor:
    """`Tensor.unique`."""
    (values, _) = unique_counts(x)
    return values

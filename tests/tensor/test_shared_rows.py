"""Reductions over rows that the threads of a block share, of random shapes, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from gpu import Tensor
from tensor.reference import fitted

CASES = [
    ("sum", "float32"), ("sum", "float64"), ("prod", "int32"), ("max", "float16"),
    ("max", "bool"), ("min", "int64"), ("min", "int8"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_rows_against_numpy(device: str, name: str, dtype: str) -> None:
    """Values are small multiples of a half, and factors signs: every order gives the same."""
    rng = np.random.default_rng(len(name) + len(dtype))
    shape = tuple(int(size) for size in rng.integers((1, 30), (40, 700)))
    x = fitted(device, (rng.integers(-4, 5, shape) * 0.5).astype(dtype))
    if name == "prod":
        x = np.where(x < 0, -1, 1).astype(dtype)
    found = getattr(Tensor(x, device=device), name)(1).numpy()
    wanted = getattr(np, name)(x, axis=1)
    np.testing.assert_array_equal(found, wanted.astype(found.dtype))


def test_a_nan_in_a_row_is_in_the_result(device: str) -> None:
    x = np.random.default_rng(0).normal(size=(9, 300)).astype(np.float32)
    x[np.arange(9), np.arange(9) * 33] = np.nan
    assert np.isnan(Tensor(x, device=device).max(1).numpy()).all()

"""States to save, of all kinds of dtypes and shapes, which the seed alone decides on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from gpu import Tensor, dtypes

STATE: Final = 7  # the seed of what one process saves and several load
_KINDS: Final = (
    *(dtypes.float64, dtypes.float32, dtypes.bfloat16, dtypes.fp8e4m3, dtypes.bool, dtypes.int8),
    *(dtypes.uint64, dtypes.complex64),
)


def filled(rng: np.random.Generator, ranks: int) -> dict[str, Tensor]:
    """Tensors whose sizes ranks and their devices can cut."""
    found = {}
    for number, dtype in enumerate(_KINDS):
        shape = [(), (3,), (4 * ranks,), (2 * ranks, 4 * ranks), (3, 0), (2, 3, 4 * ranks)]
        values = rng.normal(size=shape[number % len(shape)]) * 3
        if dtype is dtypes.uint64:
            values = np.abs(values)
        found[f"layer.{number}@{dtype.name}"] = Tensor(values).cast(dtype).contiguous()
    return found


def shapes(ranks: int) -> dict[str, Tensor]:
    """Zeros of the same shapes and dtypes."""
    drawn = filled(np.random.default_rng(0), ranks)
    return {name: tensor.zeros_like().contiguous() for name, tensor in drawn.items()}


def same(state: Mapping[str, Tensor], wanted: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Raises AssertionError unless all values are, bit for bit."""
    assert state.keys() == wanted.keys()
    for name, tensor in state.items():
        found = tensor.numpy()
        assert found.dtype == wanted[name].dtype and found.shape == wanted[name].shape, name
        assert found.tobytes() == wanted[name].tobytes(), name

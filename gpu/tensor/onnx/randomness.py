"""ONNX's operators that draw. Numbers come from the device's generator, `Tensor.manual_seed`."""

from __future__ import annotations

from gpu.tensor.onnx.values import dtype_of, number_of
from gpu.tensor.tensor import Tensor


def random_normal(
    *, shape: list[int], dtype: int = 1, mean: float = 0.0, scale: float = 1.0,
    seed: float | None = None, device: str,
) -> Tensor:  # fmt: skip
    """Normally distributed numbers; a seed of the model's is not followed."""
    drawn = Tensor.randn(*shape, device=device) * scale + mean
    return drawn.cast(dtype_of(dtype))


def random_uniform(
    *, shape: list[int], dtype: int = 1, high: float = 1.0, low: float = 0.0,
    seed: float | None = None, device: str,
) -> Tensor:  # fmt: skip
    """Numbers between two; a seed of the model's is not followed."""
    drawn = Tensor.rand(*shape, device=device) * (high - low) + low
    return drawn.cast(dtype_of(dtype))


def random_normal_like(
    input: Tensor, *, dtype: int | None = None, mean: float = 0.0, scale: float = 1.0,
    seed: float | None = None,
) -> Tensor:  # fmt: skip
    """`random_normal` of another tensor's shape."""
    kind = number_of(input) if dtype is None else dtype
    return random_normal(
        shape=list(input.shape), dtype=kind, mean=mean, scale=scale, device=input.device
    )


def random_uniform_like(
    input: Tensor, *, dtype: int | None = None, high: float = 1.0, low: float = 0.0,
    seed: float | None = None,
) -> Tensor:  # fmt: skip
    """`random_uniform` of another tensor's shape."""
    kind = number_of(input) if dtype is None else dtype
    return random_uniform(
        shape=list(input.shape), dtype=kind, high=high, low=low, device=input.device
    )


def multinomial(
    input: Tensor, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None
) -> Tensor:
    """Classes drawn by logarithms of their weights."""
    return input.softmax(-1).multinomial(sample_size, replacement=True).cast(dtype_of(dtype))

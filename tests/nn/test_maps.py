"""gpu/tensor/nn/maps.py: torch's functions in torch's argument order, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpu import Tensor
from gpu.core.errors import InvalidIndex, InvalidValue, ShapeError, Unsupported
from gpu.nn import functional as ours
from tensor.reference import Array, assert_same, rng_for, torch

theirs = torch.nn.functional


def drawn(*shape: int) -> Array:
    return rng_for(shape).standard_normal(shape).astype(np.float32)


def agree(name: str, arrays: list[Array], *args: Any, **options: Any) -> None:
    floats = [i for i, x in enumerate(arrays) if x.dtype == np.float32]
    a, b = [Tensor(x) for x in arrays], [torch.from_numpy(x) for x in arrays]
    for each in (*(a[i] for i in floats), *(b[i] for i in floats)):
        each.requires_grad_()
    got, want = (
        getattr(ours, name)(*a, *args, **options),
        getattr(theirs, name)(*b, *args, **options),
    )
    assert_same(got, want)
    weights = drawn(*want.shape, 1)[..., 0]
    found = (got * Tensor(weights)).sum().gradient(*(a[i] for i in floats))
    right = torch.autograd.grad(want, [b[i] for i in floats], torch.from_numpy(weights))
    for mine, other in zip(found, right, strict=True):
        np.testing.assert_allclose(mine.numpy(), other.numpy(), 1e-3, 1e-3)


@pytest.mark.parametrize("shapes", [((2, 3, 5), (4, 5), (4,)), ((5,), (4, 5)), ((3, 5), (5,))])
def test_linear(shapes: tuple[tuple[int, ...], ...]) -> None:
    agree("linear", [drawn(*shape) for shape in shapes])


def test_bilinear() -> None:
    agree("bilinear", [drawn(2, 3, 5), drawn(2, 3, 4), drawn(6, 5, 4), drawn(6)])
    agree("bilinear", [drawn(5), drawn(4), drawn(6, 5, 4)])


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_convolutions(axes: int) -> None:
    sizes, kernel, cube = (7, 6, 5)[:axes], (3, 2, 3)[:axes], (3, 3, 3)[:axes]
    batch, one = drawn(2, 4, *sizes), drawn(4, *sizes)
    agree(f"conv{axes}d", [batch, drawn(6, 2, *kernel), drawn(6)], 2, 1, 1, 2)
    agree(f"conv{axes}d", [one, drawn(6, 4, *cube)], padding="same")
    agree(f"conv{axes}d", [one, drawn(6, 4, *cube)], padding=tuple(range(1, axes + 1)))
    agree(f"conv_transpose{axes}d", [batch, drawn(4, 3, *kernel), drawn(6)], 2, 1, 1, 2, 1)
    agree(f"conv_transpose{axes}d", [one, drawn(4, 3, *cube)])


def test_embedding() -> None:
    places = rng_for("places").integers(0, 7, (4, 5))
    agree("embedding", [places, drawn(7, 4)])
    agree("embedding", [places, drawn(7, 4)], -2)


def test_pad_and_attention() -> None:
    for args in [((1, 2),), ((1, -1, 2, 0), "constant", 3.5), ((1, 2), "reflect")]:
        agree("pad", [drawn(2, 3, 4)], *args)
    q, k, v = drawn(2, 3, 5, 4), drawn(2, 3, 6, 4), drawn(2, 3, 6, 7)
    agree("scaled_dot_product_attention", [q, k, v])
    agree("scaled_dot_product_attention", [q, k[:, :, :5], v[:, :, :5]], is_causal=True, scale=0.3)


def test_refusals() -> None:
    x, table = Tensor.ones(2, 3, 4), Tensor.ones(7, 4)
    with pytest.raises(ShapeError, match="conv2d takes"):
        ours.conv2d(x, Tensor.ones(1, 3, 2))
    with pytest.raises(ShapeError, match="bilinear takes"):
        ours.bilinear(x, x, Tensor.ones(2, 3, 4))
    with pytest.raises(InvalidIndex, match="padding_idx 7 is no row of a table of 7"):
        ours.embedding(Tensor([1]), table, 7)
    with pytest.raises(Unsupported, match="embedding has no max_norm="):
        ours.embedding(Tensor([1]), table, max_norm=1.0)
    with pytest.raises(InvalidValue, match="two numbers for each axis"):
        ours.pad(x, (1, 2, 3))

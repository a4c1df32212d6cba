"""`functional`'s pools and their layers beside torch's, with settings that are drawn."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

from gpu import Tensor, jit, nn
from gpu.core.errors import GpuError, InvalidValue, ShapeError
from gpu.nn import functional as F
from tensor.reference import rng_for, torch

T: Final = torch.nn.functional


def drawn(rng: np.random.Generator, rank: int) -> list[tuple[str, tuple[Any, ...]]]:
    """A call of each kind of pool over `rank` axes."""
    taps, steps = (tuple(map(int, rng.integers(1, 4, rank))) for _ in range(2))
    around = tuple(int(rng.integers(0, tap // 2 + 1)) for tap in taps)
    ceil, within, places = (bool(rng.integers(2)) for _ in range(3))
    own = (int(rng.integers(1, 9)),) if rank > 1 and rng.integers(2) else ()
    sizes = [None if n == 0 else int(n) for n in rng.integers(0, 9, rank)]
    given = tuple(sizes) if rank > 1 else sizes[0] or 3
    return [
        ("avg_pool", (taps, steps, around, ceil, within, *own)),
        ("max_pool", (taps, steps, around, int(rng.integers(1, 3)), ceil, places)),
        ("lp_pool", (float(rng.integers(1, 4)), int(taps[0]), int(steps[0]), ceil)),
        ("adaptive_avg_pool", (given,)),
        ("adaptive_max_pool", (given, places)),
        ("adaptive_avg_pool", (int(rng.integers(1, 9)),)),
    ]


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_values_and_gradients(rank: int) -> None:
    rng = rng_for("pools", rank)
    shape = (2,) * int(rng.integers(1, 3)) + tuple(map(int, rng.integers(6, 9, rank)))
    # Elements that differ, and are positive for the roots of LP pools.
    data = (rng.permutation(int(np.prod(shape))) + 1.0).reshape(shape) / 100
    x, t = Tensor(data, requires_grad=True), torch.tensor(data, requires_grad=True)
    parts, wanted, indices = [], [], []
    for name, given in drawn(rng, rank):
        one = getattr(F, f"{name}{rank}d")(x, *given)
        other = getattr(T, f"{name}{rank}d")(t, *given)
        if isinstance(one, tuple):
            indices.append((one[1], other[1]))
            one, other = one[0], other[0]
        parts.append(one)
        wanted.append(other)
    sum((n + 1) * value.square().sum() for n, value in enumerate(wanted)).backward()
    whole = Tensor.stack(*((n + 1) * value.square().sum() for n, value in enumerate(parts))).sum()
    (grad,) = whole.gradient(x)
    grad.realize(*parts, *(one for one, _ in indices))
    for one, other in zip(parts, wanted, strict=True):
        np.testing.assert_allclose(one.numpy(), other.detach().numpy(), 1e-9, strict=True)
    for one, other in indices:
        np.testing.assert_array_equal(one.numpy(), other.numpy(), strict=True)
    np.testing.assert_allclose(grad.numpy(), t.grad.numpy(), 1e-9)


def test_adaptive_windows_of_equal_elements_infinities_and_nans(device: str) -> None:
    data = np.array([[3, 3, 1, np.inf, np.nan, 2, np.nan], [3, 3, -np.inf, 1, 1, 0, 2]], "float32")
    x, t = Tensor(data[None], device=device, requires_grad=True), torch.tensor(data[None])
    found = F.adaptive_max_pool2d(x, (1, 3), return_indices=True)
    wanted = T.adaptive_max_pool2d(t, (1, 3), return_indices=True)
    mean = F.adaptive_avg_pool2d(x, (3, 4))
    (grad,) = F.adaptive_max_pool2d(x[:, :, :3], 1).sum().gradient(x)
    grad.realize(*found, mean)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    np.testing.assert_allclose(mean.numpy(), T.adaptive_avg_pool2d(t, (3, 4)).numpy(), 1e-6)
    assert grad.numpy().nonzero()[1].tolist() == [0] and grad.numpy().nonzero()[2].tolist() == [0]


def test_sizes_and_dtypes() -> None:
    half = np.arange(40, dtype="float16").reshape(1, 4, 10)
    found = F.adaptive_avg_pool1d(Tensor(half), 3)
    np.testing.assert_array_equal(
        found.numpy(), T.adaptive_avg_pool1d(torch.tensor(half), 3).numpy(), strict=True
    )
    whole = Tensor.arange(24).reshape(1, 2, 12)
    assert F.adaptive_max_pool1d(whole, 5).numpy().dtype == whole.numpy().dtype
    for size in ((0, 2), (2, None)):
        for kind in ("avg", "max"):
            name = f"adaptive_{kind}_pool2d"
            for shape in ((0, 2, 3, 4), (1, 2, 3, 4)):
                one = getattr(F, name)(Tensor.ones(*shape), size)
                assert one.shape == tuple(getattr(T, name)(torch.ones(*shape), size).shape)
    pooled = jit(lambda x: F.adaptive_max_pool1d(x, 3))
    for n in range(4):
        row = rng_for("jit", n).normal(size=(1, 2, 7))
        wanted = T.adaptive_max_pool1d(torch.tensor(row), 3).numpy()
        np.testing.assert_array_equal(pooled(Tensor(row)).numpy(), wanted)


# For each layer its settings.
LAYERS: Final[dict[str, tuple[Any, ...]]] = {
    "AvgPool1d": (3, 2, 1), "AvgPool2d": ((2, 3), None, 1, True, False), "AvgPool3d": (2,),
    "MaxPool1d": (3, 2, 1, 2, False, True), "MaxPool2d": ((2, 3),), "MaxPool3d": (2, 1),
    "LPPool1d": (2, 3), "LPPool2d": (2, (2, 3), 1), "LPPool3d": (3, 2),
    "AdaptiveAvgPool1d": (5,), "AdaptiveAvgPool2d": ((3, None),), "AdaptiveAvgPool3d": (3,),
    "AdaptiveMaxPool1d": (5,), "AdaptiveMaxPool2d": ((3, None),), "AdaptiveMaxPool3d": (3,),
}  # fmt: skip


def test_layers() -> None:
    found, wanted = [], []
    for name, given in LAYERS.items():
        rank = int(name[-2])
        data = rng_for(name).uniform(0.5, 1.5, (1, 2, *(8, 7, 6)[:rank]))
        found.append(getattr(nn, name)(*given)(Tensor(data)))
        wanted.append(getattr(torch.nn, name)(*given)(torch.tensor(data)).numpy())
    found[0].realize(*found[1:])
    for name, one, other in zip(LAYERS, found, wanted, strict=True):
        np.testing.assert_allclose(one.numpy(), other, 1e-9, strict=True, err_msg=name)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_what_was_pooled_goes_back(rank: int) -> None:
    data = rng_for("unpool", rank).normal(size=(2, 2, *(7, 5, 4)[:rank]))
    pool, back = getattr(nn, f"MaxPool{rank}d"), getattr(nn, f"MaxUnpool{rank}d")
    t_pool, t_back = getattr(torch.nn, f"MaxPool{rank}d"), getattr(torch.nn, f"MaxUnpool{rank}d")
    largest, places = pool(2, return_indices=True)(Tensor(data))
    wanted = t_back(2)(*t_pool(2, return_indices=True)(torch.tensor(data)), data.shape)
    found = back(2)(largest, places, data.shape)
    np.testing.assert_array_equal(found.numpy(), wanted.numpy(), strict=True)


def test_sizes_that_are_not_those_of_pooling_are_refused() -> None:
    rng, refused = rng_for("unpooled sizes"), 0
    for _ in range(60):
        kernel, stride = (int(n) for n in rng.integers(1, 5, 2))
        given = (kernel, stride, int(rng.integers(kernel // 2 + 1)))
        counts, sizes = rng.integers(2, 4, 2), tuple(int(n) for n in rng.integers(4, 9, 2))
        data, places = np.zeros((1, *counts), np.float32), np.zeros((1, *counts), np.int64)
        try:
            t_given = (torch.tensor(data), torch.tensor(places), *given, sizes)
            wanted = torch.nn.functional.max_unpool2d(*t_given)
        except ValueError:
            refused += 1
            with pytest.raises(InvalidValue, match="output_size"):
                F.max_unpool2d(Tensor(data), Tensor(places), *given, sizes)
        else:
            found = F.max_unpool2d(Tensor(data), Tensor(places), *given, sizes)
            assert found.shape == tuple(wanted.shape)
    assert 20 < refused < 55


X: Final = Tensor.ones(2, 3, 6)


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (ShapeError, lambda: F.avg_pool3d(X, 2)),
        (ShapeError, lambda: F.adaptive_avg_pool1d(X[0, 0], 2)),
        (ShapeError, lambda: F.adaptive_max_pool1d(X[:, :, :0], 2)),
        (ShapeError, lambda: F.max_pool1d(X, 7)),
        (InvalidValue, lambda: F.adaptive_avg_pool2d(X, (2, 2, 2))),
        (InvalidValue, lambda: F.adaptive_avg_pool2d(X, -1)),
        (InvalidValue, lambda: F.max_pool2d(X, 3, padding=2)),
        (InvalidValue, lambda: F.avg_pool2d(X, 2, divisor_override=0)),
        (InvalidValue, lambda: F.lp_pool1d(X, 0, 2)),
        (InvalidValue, lambda: F.avg_pool1d(X, (2, 2))),
    ],
)
def test_what_is_refused(error: type[GpuError], call: Any) -> None:
    with pytest.raises(error):
        call()

"""Windows as columns and back, and shuffles of pixels and channels, beside torch's."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

from gpu import Tensor, nn
from gpu.core.errors import GpuError, InvalidValue, ShapeError
from gpu.nn import functional as F
from tensor.reference import rng_for, torch


def pair(rng: np.random.Generator, low: int, high: int) -> tuple[int, ...]:
    return tuple(map(int, rng.integers(low, high, 2)))


def test_layers_beside_torchs() -> None:
    """Values and gradients, each layer of an image or of columns with settings that are drawn."""
    rng = rng_for("patches")
    calls: list[tuple[str, tuple[Any, ...], tuple[int, ...]]] = []
    for batch in ((), (2,)):
        taps, apart, around = pair(rng, 1, 4), pair(rng, 1, 3), pair(rng, 0, 3)
        steps, sizes = pair(rng, 1, 4), pair(rng, 6, 10)
        window = (taps, apart, around, steps)
        columns = torch.nn.Unfold(*window)(torch.ones(3, *sizes)).shape
        calls.append(("Unfold", window, (*batch, 3, *sizes)))
        calls.append(("Fold", (sizes, *window), (*batch, *columns)))
        calls.append(("PixelShuffle", (3,), (*batch, *batch, 18, *pair(rng, 1, 4))))
        calls.append(("PixelUnshuffle", (2,), (*batch, *batch, 3, 4, 6)))
    calls += [("Unfold", (2,), (1, 4, 5)), ("Fold", (4, 2, 1, 0, 2), (8, 4))]
    calls += [("ChannelShuffle", (3,), (2, 6, 2)), ("ChannelShuffle", (2,), (1, 4, 3, 1, 2))]
    data = [rng.normal(size=shape) for _, _, shape in calls]
    xs = [Tensor(x, requires_grad=True) for x in data]
    ts = [torch.tensor(x, requires_grad=True) for x in data]
    found = [getattr(nn, call[0])(*call[1])(x) for call, x in zip(calls, xs, strict=True)]
    wanted = [getattr(torch.nn, call[0])(*call[1])(t) for call, t in zip(calls, ts, strict=True)]
    factors = [rng.normal(size=tuple(value.shape)) for value in wanted]
    sum((v * torch.tensor(f)).sum() for v, f in zip(wanted, factors, strict=True)).backward()
    parts = [(v * Tensor(f)).sum() for v, f in zip(found, factors, strict=True)]
    grads = Tensor.stack(*parts).sum().gradient(*xs)
    found[0].realize(*found[1:], *grads)
    for call, one, other in zip(calls, found, wanted, strict=True):
        np.testing.assert_allclose(
            one.numpy(), other.detach().numpy(), 1e-9, 1e-12, strict=True, err_msg=call[0]
        )
    for call, one, t in zip(calls, grads, ts, strict=True):
        np.testing.assert_allclose(one.numpy(), t.grad.numpy(), 1e-9, err_msg=call[0])


def test_dtypes_and_empty_batches() -> None:
    for shape in ((0, 4, 4, 6), (1, 4, 4, 6)):
        x, t = Tensor.ones(*shape, dtype="float16"), torch.ones(shape, dtype=torch.float16)
        calls: list[tuple[str, tuple[Any, ...]]] = [
            ("unfold", (2, 1, 1)), ("pixel_shuffle", (2,)), ("channel_shuffle", (2,)),
        ]  # fmt: skip
        for name, given in calls:
            one = getattr(F, name)(x, *given).numpy()
            other = getattr(torch.nn.functional, name)(t, *given).numpy()
            np.testing.assert_array_equal(one, other, strict=True)
    # Torch gives an empty tensor back in its old shape here.
    assert F.pixel_unshuffle(Tensor.ones(0, 4, 4, 6), 2).shape == (0, 16, 2, 3)


X: Final = Tensor.ones(2, 3, 6, 5)


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (ShapeError, lambda: F.unfold(X[0, 0], 2)),
        (ShapeError, lambda: F.unfold(X, 7)),
        (InvalidValue, lambda: F.unfold(X, 0)),
        (ShapeError, lambda: F.fold(X[0], 4, 2)),
        (ShapeError, lambda: F.fold(Tensor.ones(7, 9), 4, 2)),
        (ShapeError, lambda: F.fold(Tensor.ones(8, 8), 4, 2)),
        (InvalidValue, lambda: F.fold(Tensor.ones(8, 8), (4, 4, 4), 2)),
        (ShapeError, lambda: F.pixel_shuffle(X, 2)),
        (ShapeError, lambda: F.pixel_unshuffle(X, 2)),
        (InvalidValue, lambda: F.pixel_shuffle(X, 0)),
        (ShapeError, lambda: F.pixel_shuffle(X[0, 0], 1)),
        (InvalidValue, lambda: F.channel_shuffle(X, 2)),
        (ShapeError, lambda: F.channel_shuffle(X[0, 0], 1)),
    ],
)
def test_what_is_refused(error: type[GpuError], call: Any) -> None:
    with pytest.raises(error):
        call()

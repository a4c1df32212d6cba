"""`interpolate`, `grid_sample` and `affine_grid` beside torch's, with their gradients."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

from gpu import Tensor, nn
from gpu.core.errors import DTypeError, GpuError, InvalidValue, ShapeError, Unsupported
from gpu.nn import functional as F
from tensor.reference import Tolerance, assert_forward, assert_gradients, rng_for, torch

CPU: Final = "CPU"
TOLERANCE: Final = Tolerance(1e-9, 1e-9)

# The shape, then keywords of torch's function.
SIZES: Final[list[tuple[tuple[int, ...], dict[str, Any]]]] = [
    ((2, 3, 5), {"size": 8}),
    ((2, 3, 4, 5), {"scale_factor": 1.5, "mode": "nearest-exact"}),
    ((1, 2, 7), {"scale_factor": 2.3, "mode": "linear"}),
    ((1, 2, 3, 5), {"scale_factor": (2.3, 0.7), "mode": "bilinear", "align_corners": True}),
    ((1, 2, 3, 5), {"size": (7, 4), "mode": "bicubic"}),
    ((1, 2, 4, 3), {"scale_factor": (1.7, 0.9), "mode": "bicubic", "align_corners": True}),
    ((1, 1, 5, 4), {"scale_factor": 1.3, "mode": "bicubic", "recompute_scale_factor": True}),
    ((1, 1, 3, 2, 4), {"size": (2, 4, 3), "mode": "trilinear"}),
    ((2, 1, 7, 5), {"size": (3, 2), "mode": "area"}),
    ((1, 2, 6), {"scale_factor": 0.5, "mode": "area"}),
]


@pytest.mark.parametrize(("shape", "given"), SIZES)
def test_interpolate(shape: tuple[int, ...], given: dict[str, Any]) -> None:
    x = rng_for(shape, *given.items()).normal(size=shape)
    theirs = torch.nn.functional.interpolate
    assert_gradients(
        CPU, lambda a: F.interpolate(a, **given), lambda a: theirs(a, **given), [x], TOLERANCE
    )


def test_interpolate_to_drawn_scales_and_as_a_layer() -> None:
    rng = rng_for("scales")
    for mode in ("nearest", "bilinear", "bicubic"):
        shape = (1, 1, *map(int, rng.integers(2, 9, 2)))
        scale = tuple(map(float, np.round(rng.uniform(0.6, 3, 2), 1)))
        x = rng.normal(size=shape)
        layer = nn.Upsample(scale_factor=scale, mode=mode)
        theirs = torch.nn.Upsample(scale_factor=scale, mode=mode)
        assert_forward(CPU, layer, theirs, [x], TOLERANCE)


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample(mode: str, padding: str, aligned: bool) -> None:
    rng = rng_for(mode, padding, aligned)
    images = [(2, 3, 4, 5)] if mode == "bicubic" or aligned else [(2, 3, 4, 5), (2, 2, 1, 3, 4)]
    for shape in images:
        axes = len(shape) - 2
        grid = rng.uniform(-1.7, 1.7, (2, *range(2, 2 + axes), axes))
        assert_gradients(
            CPU,
            lambda a, b: F.grid_sample(a, b, mode, padding, aligned),
            lambda a, b: torch.nn.functional.grid_sample(a, b, mode, padding, aligned),
            [rng.normal(size=shape), grid],
            TOLERANCE,
        )


def test_places_far_outside_are_zeros() -> None:
    x = Tensor.ones(1, 1, 2, 2)
    grid = Tensor([[[[np.nan, 0.0], [np.inf, 0.0], [-1e30, 1e30], [0.0, 0.0]]]])
    assert F.grid_sample(x, grid).flatten().tolist() == [0, 0, 0, 1]
    border = F.grid_sample(x, grid[:, :, 1:], padding_mode="border")
    assert border.flatten().tolist() == [1, 1, 1]


@pytest.mark.parametrize("aligned", [False, True])
def test_affine_grid(aligned: bool) -> None:
    theirs = torch.nn.functional.affine_grid
    for size in ((2, 3, 4, 5), (2, 1, 3, 2, 4)):
        axes = len(size) - 2
        theta = rng_for(size).normal(size=(2, axes, axes + 1))
        assert_gradients(
            CPU,
            lambda t, size=size: F.affine_grid(t, size, aligned),
            lambda t, size=size: theirs(t, size, align_corners=aligned),
            [theta],
            TOLERANCE,
        )


def test_on_every_device(device: str) -> None:
    rng = rng_for("device")
    x, theta = rng.normal(size=(1, 2, 3, 4)), rng.normal(size=(1, 2, 3))

    def ours(a: Tensor, t: Tensor) -> Tensor:
        return F.grid_sample(F.interpolate(a, 5, mode="bicubic"), F.affine_grid(t, (1, 1, 2, 3)))

    def theirs(a: Any, t: Any) -> Any:
        own = torch.nn.functional
        grid = own.affine_grid(t, (1, 1, 2, 3), align_corners=False)
        return own.grid_sample(own.interpolate(a, 5, mode="bicubic"), grid, align_corners=False)

    assert_forward(device, ours, theirs, [x, theta], Tolerance(1e-4, 1e-4))


X: Final = Tensor.ones(1, 2, 3, 4)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: F.interpolate(X), InvalidValue, "either size or scale_factor"),
        (lambda: F.interpolate(X, 2, 2.0), InvalidValue, "either size or scale_factor"),
        (lambda: F.interpolate(X, (2, 2, 2)), ShapeError, "each of 2 spatial axes"),
        (lambda: F.interpolate(X, 2, mode="linear"), ShapeError, "by 'linear' takes"),
        (lambda: F.interpolate(X, 2, mode="cubic"), InvalidValue, "mode must be one of"),
        (lambda: F.interpolate(X, 2, align_corners=True), InvalidValue, "not 'nearest'"),
        (lambda: F.interpolate(X, scale_factor=0.1), ShapeError, "leave nothing"),
        (lambda: F.interpolate(X, 2, antialias=True), Unsupported, "antialias"),
        (lambda: F.affine_grid(X, (1, 2, 3, 4)), ShapeError, "takes theta of shape"),
        (lambda: F.grid_sample(X, Tensor.ones(1, 2, 2, 3)), ShapeError, "grid must have"),
        (lambda: F.grid_sample(X, Tensor.ones(1, 2, 2, 2).double()), DTypeError, "one float dtype"),
        (
            lambda: F.grid_sample(X[:, :, :0], Tensor.ones(1, 2, 2, 2)),
            ShapeError,
            "nothing to read",
        ),
        (lambda: F.grid_sample(X, Tensor.ones(1, 2, 2, 2), "cubic"), InvalidValue, "'cubic'"),
    ],
)
def test_what_does_not_fit_is_told(call: Any, error: type[GpuError], message: str) -> None:
    with pytest.raises(error, match=message):
        call()

"""Convolutions and pools against torch, over random configurations."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from gpu import Tensor, dtypes
from gpu.core.errors import GpuError, InvalidValue, ShapeError
from gpu.runtime.prepared import Counters
from tensor.reference import (
    Array,
    assert_forward,
    assert_gradients,
    assert_same,
    rng_for,
    torch,
)

F = torch.nn.functional
CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
MAX_POOL = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
DTYPES = ("float32", "float64")
AVG_POOL = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


class Setting(NamedTuple):
    """A random convolution: its arguments and operands."""

    options: dict[str, Any]
    operands: list[Array]


def setting(rng: np.random.Generator, rank: int, dtype: str, transposed: bool) -> Setting:
    groups, parts, out, batch = (int(n) for n in rng.integers(1, 4, 4))
    kernel, stride, dilation = (tuple(rng.integers(1, 4, rank).tolist()) for _ in range(3))
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    # In a transposed convolution padding takes away what the kernel's span has added.
    padding = tuple(int(rng.integers(0, n // 2 + 1)) for n in spans)
    options = {"groups": groups, "stride": stride, "dilation": dilation, "padding": padding}
    extra = [int(n) for n in rng.integers(0, 4, rank)]
    spatial = [max(n - 2 * p, 1) + e for n, p, e in zip(spans, padding, extra, strict=True)]
    weight = (groups * out, parts, *kernel)
    if transposed:
        furthest = [max(s, d) for s, d in zip(stride, dilation, strict=True)]
        options["output_padding"] = tuple(int(rng.integers(0, n)) for n in furthest)
        spatial = [n + 2 for n in extra]
        weight = (groups * parts, out, *kernel)
    shapes = [(batch, groups * parts, *spatial), weight, (groups * out,)]
    return Setting(options, [rng.normal(size=shape).astype(dtype) for shape in shapes])


@pytest.mark.parametrize("seed", range(9))
def test_conv(seed: int, device: str) -> None:
    rng, rank = rng_for("conv", seed), seed % 3 + 1
    options, operands = setting(rng, rank, DTYPES[seed % 2], transposed=False)
    assert_gradients(
        device,
        lambda x, w, b: x.conv2d(w, b, **options),
        lambda x, w, b: CONV[rank](x, w, b, **options),
        operands,
    )


@pytest.mark.parametrize("seed", range(9))
def test_conv_transpose(seed: int, device: str) -> None:
    rng, rank = rng_for("transposed", seed), seed % 3 + 1
    options, operands = setting(rng, rank, DTYPES[seed % 2], transposed=True)
    assert_gradients(
        device,
        lambda x, w, b: x.conv_transpose2d(w, b, **options),
        lambda x, w, b: TRANSPOSED[rank](x, w, b, **options),
        operands,
    )


@pytest.mark.parametrize("seed", range(6))
def test_conv_of_images_that_are_smaller_than_the_padding(seed: int, device: str) -> None:
    rng, rank = rng_for("small images", seed), seed % 3 + 1
    sizes = rng.integers(1, 4, rank).tolist()
    kernel, padding, dilation = [], [], []
    for size in sizes:  # not all elements of a window meet one of these, or none does
        kernel.append(int(rng.integers(1, 6)))
        dilation.append(int(rng.integers(1, 4)))
        span = dilation[-1] * (kernel[-1] - 1) + 1
        padding.append(max(-(-(span - size) // 2), 0) + int(rng.integers(0, 3)))
    stride = rng.integers(1, 4, rank).tolist()
    options: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation}
    operands = [rng.normal(size=shape) for shape in ((2, 2, *sizes), (3, 2, *kernel))]
    assert_gradients(
        device,
        lambda x, w: x.conv2d(w, **options),
        lambda x, w: CONV[rank](x, w, **options),
        [x.astype(DTYPES[seed % 2]) for x in operands],
    )


def test_padding_that_no_image_reaches_is_not_computed() -> None:
    x, w = Tensor.ones(2, 3, 1, 4), Tensor.ones(5, 3, 3, 3).contiguous()
    cost = x.contiguous().realize().conv2d(w.realize(), padding=1).explain()
    assert cost.operations == 2 * 2 * 5 * 4 * 3 * 3  # of three rows of the weight one


def test_conv_on_every_device(device: str) -> None:
    rng = rng_for("every")
    x, w = (rng.normal(size=s).astype("float32") for s in ((2, 4, 5, 6), (6, 2, 3, 2)))
    options: dict[str, Any] = {"groups": 2, "stride": (2, 1), "padding": 1}
    assert_gradients(
        device,
        lambda x, w: x.conv2d(w, **options),
        lambda x, w: F.conv2d(x, w, **options),
        [x, w],
    )


@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("kernel", [(3, 3), (2, 4)])
def test_conv_padding_by_name(padding: str, kernel: tuple[int, int], device: str) -> None:
    rng = rng_for(padding, kernel)
    x, w = (rng.normal(size=s).astype("float32") for s in ((1, 2, 7, 8), (3, 2, *kernel)))
    assert_forward(
        device,
        lambda x, w: x.conv2d(w, padding=padding, dilation=(2, 1)),
        lambda x, w: F.conv2d(x, w, padding=padding, dilation=(2, 1)),
        [x, w],
    )


def test_conv_padding_of_each_side(device: str) -> None:
    rng = rng_for("sides")
    x, w = (rng.normal(size=s).astype("float32") for s in ((1, 2, 5, 6), (3, 2, 3, 3)))
    assert_forward(
        device,
        lambda x, w: x.conv2d(w, padding=(0, 1, 2, 3)),
        lambda x, w: F.conv2d(F.pad(x, (0, 1, 2, 3)), w),
        [x, w],
    )


@pytest.mark.parametrize("groups", [1, 4])
def test_conv_is_one_kernel(groups: int) -> None:
    rng = rng_for("kernel", groups)
    x, w, b = (
        Tensor(rng.normal(size=s).astype("float32"))
        for s in ((2, 8, 9, 9), (16, 8 // groups, 3, 3), (16,))
    )
    before = Counters.launches
    x.conv2d(w, b, groups=groups, stride=2, padding=1).relu().realize()
    assert Counters.launches == before + 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_floats_are_summed_in_float32(dtype: str) -> None:
    ones = Tensor.ones(1, 64, 9, 9, dtype=dtype).contiguous()
    kernel = Tensor.full((1, 64, 9, 9), 1 / 4096, dtype=dtype).contiguous()
    total = ones.conv2d(kernel)
    assert total.dtype.name == dtype
    # 5184 / 4096: sums in either dtype would stop growing long before.
    assert total.cast("float32").item() == pytest.approx(1.265625, abs=2**-7)
    assert ones.conv2d(kernel, dtype="float32").item() == 1.265625


def test_conv_of_integers() -> None:
    x, w = Tensor.arange(16).reshape(1, 1, 4, 4), Tensor([[[[1, 2], [3, 4]]]])
    result = x.conv2d(w)
    assert result.dtype is dtypes.int32
    assert result.tolist() == [[[[34, 44, 54], [74, 84, 94], [114, 124, 134]]]]


def test_second_order() -> None:
    rng = rng_for("second")
    x, w = (rng.normal(size=s) for s in ((1, 2, 4, 4), (2, 2, 3, 3)))
    ours = [Tensor(a) for a in (x, w)]
    theirs = [torch.tensor(a, requires_grad=True) for a in (x, w)]
    (first,) = (ours[0].conv2d(ours[1], padding=1).square().sum()).gradient(ours[0])
    again = first.square().sum().gradient(*ours)
    inner = F.conv2d(*theirs, padding=1).square().sum()
    (wanted,) = torch.autograd.grad(inner, theirs[0], create_graph=True)
    assert_same(tuple(again), torch.autograd.grad(wanted.square().sum(), theirs))


@pytest.mark.parametrize(
    "case",
    [
        (lambda x, w: x.conv2d(w[0]), ShapeError, "as many axes"),
        (lambda x, w: x.conv2d(w, groups=3), InvalidValue, "groups must divide 4"),
        (lambda x, w: x.conv2d(w, groups=2), ShapeError, "takes 2 channels"),
        (lambda x, w: x.conv2d(w, stride=0), InvalidValue, "stride must be at least 1"),
        (lambda x, w: x.conv2d(w, dilation=9), ShapeError, "take a smaller kernel"),
        (lambda x, w: x.conv2d(w, padding=(1, 1, 1)), InvalidValue, "two for each axis"),
        (lambda x, w: x.conv2d(w, padding="some"), InvalidValue, "'same', 'valid'"),
        (lambda x, w: x.conv2d(w, padding="same", stride=2), InvalidValue, "stride of 1"),
        (lambda x, w: x.conv2d(w, Tensor.ones(5)), ShapeError, "bias has shape"),
        (lambda x, w: x.conv_transpose2d(w, output_padding=1), InvalidValue, "output_padding"),
        (lambda x, w: w[:, :1].conv_transpose2d(x[:, :1], padding=9), ShapeError, "left nothing"),
        (lambda x, w: x.max_pool2d((2, 2, 2, 2, 2)), ShapeError, "pools 5 axes"),
        (lambda x, w: x.max_pool2d(9), ShapeError, "more than"),
        (lambda x, w: x.max_unpool2d(w), ShapeError, "indices must be"),
    ],
)
def test_bad_arguments(case: tuple[Any, type[GpuError], str]) -> None:
    call, error, words = case
    with pytest.raises(error, match=words):
        call(Tensor.ones(1, 2, 5, 5), Tensor.ones(4, 2, 3, 3))


def pool_setting(rng: np.random.Generator, rank: int) -> tuple[dict[str, Any], Array]:
    kernel = tuple(rng.integers(1, 4, rank).tolist())
    options = {
        "kernel_size": kernel,
        "stride": [None, tuple(rng.integers(1, 4, rank).tolist())][rng.integers(0, 2)],
        "padding": tuple(int(rng.integers(0, k // 2 + 1)) for k in kernel),
        "ceil_mode": bool(rng.integers(0, 2)),
    }
    shape = (2, 2, *(rng.integers(4, 9, rank)))
    # No two equal elements: torch gives the whole gradient to the first of them.
    return options, rng.permutation(int(np.prod(shape))).reshape(shape) / 7


@pytest.mark.parametrize("seed", range(6))
def test_max_pool(seed: int, device: str) -> None:
    rng, rank = rng_for("max", seed), seed % 3 + 1
    options, x = pool_setting(rng, rank)
    options["dilation"] = tuple(rng.integers(1, 3, rank).tolist())
    options["kernel_size"] = tuple(min(k, 2) for k in options["kernel_size"])
    options["padding"] = tuple(min(p, k // 2) for p, k in zip(
        options["padding"], options["kernel_size"], strict=True))  # fmt: skip
    assert_gradients(
        device,
        lambda x: x.max_pool2d(**options),
        lambda x: MAX_POOL[rank](x, **options),
        [x],
    )
    ours = Tensor(x.astype("float32")).max_pool2d(**options, return_indices=True)
    theirs = MAX_POOL[rank](torch.tensor(x, dtype=torch.float32), **options, return_indices=True)
    assert ours[1].dtype is dtypes.int64
    assert_same(ours, theirs)


@pytest.mark.parametrize("seed", range(9))
def test_avg_pool(seed: int, device: str) -> None:
    rng, rank = rng_for("avg", seed), seed % 3 + 1
    options, x = pool_setting(rng, rank)
    options["count_include_pad"] = bool(seed % 2)
    assert_gradients(
        device,
        lambda x: x.avg_pool2d(**options),
        lambda x: AVG_POOL[rank](x, **options),
        [x],
    )


def test_max_pool_of_equal_and_special_elements(device: str) -> None:
    x = np.full((1, 1, 4, 4), -np.inf, np.float32)
    x[0, 0, 0, 2:], x[0, 0, 2, 0] = 3, np.nan
    ours = Tensor(x, device=device).max_pool2d(2, return_indices=True)
    assert_same(ours, F.max_pool2d(torch.tensor(x), 2, return_indices=True))
    numbers = Tensor([[-5, -7], [-6, -8]], device=device)
    assert numbers.max_pool2d(2, padding=1).tolist() == [[-5, -7], [-6, -8]]


@pytest.mark.parametrize("padding", [0, 1])
def test_max_unpool(padding: int, device: str) -> None:
    x = rng_for("unpool", padding).normal(size=(2, 3, 7, 7)).astype("float32")
    pooled, places = F.max_pool2d(torch.tensor(x), 3, 3 - padding, padding, return_indices=True)
    ours = Tensor(pooled.numpy(), device=device)
    indices = Tensor(places.numpy().astype("int32"), device=device)
    for size in (None, (7, 7), (2, 3, 7, 7)):
        assert_same(
            ours.max_unpool2d(indices, 3, 3 - padding, padding=padding, output_size=size),
            F.max_unpool2d(
                pooled, places, 3, 3 - padding, padding, None if size is None else [7, 7]
            ),
        )

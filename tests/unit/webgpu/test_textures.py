"""Kernels that load from textures: odd sizes, places anywhere, and memory that changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpu import Tensor
from gpu.backends.webgpu.device import WebGPU
from gpu.runtime.device import Device
from gpu.runtime.execute import is_computed
from gpu.runtime.explain import explain

Array = np.ndarray[Any, Any]
SEEDS = range(2)


@pytest.fixture(autouse=True)
def device(webgpu: WebGPU) -> None:
    """Only where WebGPU is, and with an adapter that is worth it."""
    default = Device["WEBGPU"].renderer
    if not default.target.native.quads:
        pytest.skip(f"{webgpu.link.connection.name} loads from buffers as fast")


def on_device(x: Array) -> Tensor:
    return Tensor(x, device="WEBGPU").realize()


def numbers(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def near(got: Tensor, wanted: Array) -> None:
    np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.sampled(50)
@pytest.mark.parametrize("seed", SEEDS)
def test_products_of_any_size(seed: int) -> None:
    n, m, k = np.random.default_rng(seed).integers(40, 150, 3)
    a, b = numbers(seed, n, k), numbers(seed, k, m)
    near(on_device(a) @ on_device(b), a @ b)
    near(on_device(b).permute(1, 0) @ on_device(a).permute(1, 0), (a @ b).T)


@pytest.mark.sampled(50)
@pytest.mark.parametrize("seed", SEEDS)
def test_halves_are_stored_by_fours(seed: int) -> None:
    n, m = np.random.default_rng(seed).integers(20, 60, 2)
    a = numbers(seed, n, m).astype(np.float16)
    t = on_device(a)
    for got, wanted in (
        (t + t, a + a),
        (t.permute(1, 0).contiguous(), a.T),
        (t[1:, 3:] * 2, a[1:, 3:] * 2),
    ):
        assert got.numpy().dtype == np.float16
        np.testing.assert_array_equal(got.numpy(), wanted)


@pytest.mark.parametrize("seed", SEEDS)
def test_convolutions_read_lines_that_begin_anywhere(seed: int) -> None:
    channels, size, taps, pad = np.random.default_rng(seed).integers((2, 14, 2, 0), (6, 40, 5, 3))
    x, w = numbers(seed, 2, channels, size, size), numbers(seed, 8, channels, taps, taps)
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (taps, taps), axis=(2, 3))
    wanted = np.einsum("nchwij,ocij->nohw", windows, w)
    near(on_device(x).conv2d(on_device(w), padding=int(pad)), wanted)


@pytest.mark.parametrize("seed", SEEDS)
def test_views_whose_rows_begin_anywhere(seed: int) -> None:
    x = numbers(seed, 101, 83 + seed)
    t = on_device(x)
    near(t[3:, 5:] * 2, x[3:, 5:] * 2)
    near(t.flip(1) + 1, x[:, ::-1] + 1)
    near(t.permute(1, 0).contiguous(), x.T)
    near(t.pad(((0, 0), (1, 2))) + 0.5, np.pad(x, ((0, 0), (1, 2))) + 0.5)
    near(t.sum(0), x.sum(0))


@pytest.mark.parametrize("columns", [573 * 202, 573 * 201])
def test_columns_that_vectors_do_not_divide_are_spread_over_the_device(columns: int) -> None:
    x = numbers(1, 14, columns)
    near(on_device(x).max(0), x.max(0))
    (plan,) = [
        text
        for name, text in explain(
            [on_device(x).max(0)._node], is_computed, Device["WEBGPU"].renderer
        )
        if name == "scheduled kernel"
    ]
    assert "grid" in plan.splitlines()[1]


def test_long_sums_of_odd_shapes() -> None:
    x = np.random.default_rng(2).integers(0, 9, (6393, 239, 3)).astype(np.uint16)
    assert on_device(x)[2:, 2::2, 1:].sum().item() == x[2:, 2::2, 1:].sum()


NARROW = ["float16", "bfloat16", "int8", "uint8", "int16", "uint16", "bool", "fp8e4m3"]


@pytest.mark.slow
@pytest.mark.sampled(34)
@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_elements_are_loaded_and_stored_by_fours(dtype: str) -> None:
    whole = numbers(3, 131, 97)
    x = Tensor(whole > 0 if dtype == "bool" else whole * 9, device="CPU").cast(dtype).realize()
    t = x.to("WEBGPU").realize()
    index = np.random.default_rng(4).integers(0, 131, 200).astype(np.int32)
    for view in (
        lambda x, device: x.permute(1, 0).contiguous(),
        lambda x, device: x[3:, 5:].contiguous(),
        lambda x, device: x.flip(1).contiguous(),
        lambda x, device: x.pad(((0, 0), (1, 2))),
        lambda x, device: x.expand(2, 131, 97).contiguous(),
        lambda x, device: x[Tensor(index, device=device)],
        lambda x, device: x[..., :96].cast("float32").sum(0),
    ):
        got, wanted = view(t, "WEBGPU"), view(x, "CPU")
        assert got.dtype == wanted.dtype
        near(got.cast("float32"), wanted.cast("float32").numpy())


@pytest.mark.slow
@pytest.mark.sampled(50)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_products_of_halves(dtype: str) -> None:
    a, b = (Tensor(numbers(seed, 96, 96), device="CPU").cast(dtype).realize() for seed in (5, 6))
    got = a.to("WEBGPU").realize() @ b.to("WEBGPU").realize()
    wanted = a.cast("float32").numpy() @ b.cast("float32").numpy()
    assert got.dtype == a.dtype
    np.testing.assert_allclose(got.cast("float32").numpy(), wanted, rtol=0.02, atol=0.2)


def test_products_of_halves_load_from_textures() -> None:
    """Each load from a buffer is a loop to lavapipe's compiler, which took 19 s for a product."""
    a, b = (on_device(numbers(seed, 256, 256)).cast("bfloat16").realize() for seed in (7, 8))
    *_, (_, source) = explain([(a @ b)._node], is_computed, Device["WEBGPU"].renderer)
    assert source.count("texture_2d") == 2 and source.count("array<") == 1


def test_words_keep_their_bits() -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 20000, dtype=np.uint32)
    for dtype in (np.uint32, np.int32):
        x = bits.view(dtype)
        np.testing.assert_array_equal((on_device(x) ^ 5).numpy(), x ^ 5)


def test_textures_follow_their_memory() -> None:
    x = numbers(0, 300, 300)
    t = on_device(x)
    near(t.permute(1, 0).contiguous(), x.T)
    t.assign(t + 1).realize()  # by a kernel
    near(t.permute(1, 0).contiguous(), x.T + 1)
    for number in range(3):  # by copies into memory that is used again
        other = x * number
        near(on_device(other).permute(1, 0).contiguous(), other.T)


@pytest.mark.parametrize("words", [4, 8192, 8196, 70001])
def test_textures_have_whole_rows_and_what_is_left(words: int) -> None:
    x = np.arange(words, dtype=np.int32)
    index = np.random.default_rng(words).integers(0, words, words + 9000).astype(np.int32)
    np.testing.assert_array_equal(on_device(x)[on_device(index)].numpy(), x[index])

"""Tensors on several devices give what they give on one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gpu
from gpu import Device, Tensor, nn
from gpu.core.errors import (
    DeviceMismatch,
    GpuError,
    InvalidIndex,
    InvalidType,
    InvalidValue,
    ShapeError,
    Unsupported,
)
from gpu.runtime.execute import parts_of, storage
from tensor.reference import rng_for

PAIR = ("CPU", "CPU:1")


def pair(device: str) -> tuple[str, str]:
    """The device and one more of its kind, or the CPU where there is none."""
    kind, _, index = device.partition(":")
    if kind == "QCOM":  # KGSL has one GPU
        return device, "CPU"
    return device, f"{kind}:{int(index or 0) + 1}"


def values(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return rng_for("sharding", seed, *shape).normal(size=shape).astype(np.float32)


def test_parts_are_on_their_devices(device: str) -> None:
    x, devices = values(4, 6), pair(device)
    for axis in (None, 0, 1, -1):
        sharded = Tensor(x, device=device).shard(devices, axis).realize()
        assert sharded.device == devices and sharded.shape == (4, 6)
        assert sharded.shard_axis == (None if axis is None else axis % 2)
        parts = parts_of(sharded._node)
        assert [part.device for part in parts] == list(devices)
        pieces = [x, x] if axis is None else np.split(x, 2, axis)
        for part, piece in zip(parts, pieces, strict=True):
            np.testing.assert_array_equal(storage(part).copy_out().reshape(piece.shape), piece)
        np.testing.assert_array_equal(sharded.numpy(), x)
        np.testing.assert_array_equal(sharded.to(devices[1]).numpy(), x)
    first, second = (Device[name].allocator for name in devices)
    assert first is not second


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "arithmetic": lambda x: (x * 2 - 1).exp() / (x.abs() + 1),
    "all of it": lambda x: x.sum() + x.max() - x.min() + x.mean() + x.prod(),
    "rows": lambda x: x.sum(1) + x.max(1),
    "columns": lambda x: x.sum(0) * x.min(0),
    "softmax": lambda x: x.softmax(0) + x.softmax(1),
    "normalised": lambda x: x.layernorm(1) + x.std(0),
    "argmax": lambda x: x.argmax(1),
    "transposed": lambda x: x.T @ x,
    "reshaped": lambda x: x.reshape(4, 2, 3).permute(1, 0, 2).sum(2),
    "split": lambda x: x.reshape(2, 2, 6) * x.reshape(2, 2, 6).sum(2, keepdim=True),
    "broadcast": lambda x: x[:, None] + x.sum(0),
    "a row": lambda x: x[1] + x[-1],
    "a range": lambda x: x[1:3, ::2],
    "backwards": lambda x: x[::-1] + x,
    "padded": lambda x: x.sum(1, keepdim=True).pad((2, 1)) + x.sum(0, keepdim=True).mean(1),
    "compared": lambda x: (x > 0).where(x, -x).cast("float64"),
    "gathered": lambda x: x[[3, 0, 0], [1, 5, 2]],
    "rows by index": lambda x: x[[3, 0, 2]],
    "one hot": lambda x: x.argmax(1).one_hot(6) + x,
    "windows": lambda x: x.reshape(4, 1, 6).avg_pool2d((1, 2)),
}


# What would need elements of the other part, in an order that no rule has.
REFUSED = {("gathered", 1), ("windows", 1)}


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(name: str, axis: int | None) -> None:
    run, x = OPERATIONS[name], values(4, 6)
    try:
        got = run(Tensor(x).shard(PAIR, axis))
        assert got.device == PAIR
        got = got.numpy()
    except Unsupported as error:
        assert ".to(device)" in error.message and axis is not None
        assert (name, axis) in REFUSED
        return
    assert (name, axis) not in REFUSED
    np.testing.assert_allclose(got, run(Tensor(x)).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("b_axis", [None, 0, 1])
@pytest.mark.parametrize("a_axis", [None, 0, 1])
def test_matmul(a_axis: int | None, b_axis: int | None) -> None:
    a, b = values(4, 6, seed=1), values(6, 8, seed=2)
    x = Tensor(a, requires_grad=True)
    y = Tensor(b, requires_grad=True)
    product = x.shard(PAIR, a_axis) @ y.shard(PAIR, b_axis)
    np.testing.assert_allclose(product.numpy(), a @ b, rtol=1e-4, atol=1e-5)
    product.square().sum().backward()
    assert x.grad is not None and y.grad is not None
    assert x.grad.device == y.grad.device == "CPU"
    np.testing.assert_allclose(x.grad.numpy(), 2 * a @ b @ b.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(y.grad.numpy(), 2 * a.T @ (a @ b), rtol=1e-4, atol=1e-4)


def test_gradients_come_back_sharded() -> None:
    x = Tensor(values(4, 6)).shard(PAIR, 0)
    x.requires_grad = True
    (x * x).sum().backward()
    assert x.grad is not None and x.grad.device == PAIR
    np.testing.assert_allclose(x.grad.numpy(), 2 * values(4, 6), rtol=1e-6)


def test_three_devices_and_the_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu.compiler.shard import values as graph_shards

    devices = ("CPU", "CPU:1", "CPU:2")
    for size in (1 << 30, 0):
        monkeypatch.setattr(graph_shards, "RING_SIZE", size)
        x = values(6, 5, seed=size % 7)
        total = Tensor(x).shard(devices, 0).sum(0).realize()
        assert total.shard_axis is None
        parts = [storage(part).copy_out() for part in parts_of(total._node)]
        np.testing.assert_allclose(parts[0], x.sum(0), rtol=1e-5)
        assert all(np.array_equal(part, parts[0]) for part in parts)


def test_writes_and_views() -> None:
    x, expected = Tensor(values(4, 6)).shard(PAIR, 0), values(4, 6)
    row = x[1]
    x[1:3, ::2] = 5
    expected[1:3, ::2] = 5
    x += 1
    expected += 1
    np.testing.assert_array_equal(row.numpy(), expected[1])
    x[x > 5] = 0
    expected[expected > 5] = 0
    np.testing.assert_array_equal(x.numpy(), expected)
    x[0] = x[3]
    expected[0] = expected[3]
    x[::3, 1] = 8
    expected[::3, 1] = 8
    np.testing.assert_array_equal(x.realize().numpy(), expected)


def test_in_place_and_like() -> None:
    x, other = Tensor(values(4, 6)), Tensor(values(4, 6, seed=3))
    assert x.shard_(PAIR, axis=1) is x and x.shard_axis == 1
    alike = other.shard_like(x)
    assert alike.device == PAIR and alike.shard_axis == 1
    np.testing.assert_array_equal((alike + x).numpy(), values(4, 6) + values(4, 6, seed=3))
    assert x.shard_like(other).device == "CPU"
    assert alike.shard_like(x).device == PAIR
    assert other.shard(("CPU:1",), 0).device == "CPU:1"
    assert x.to_("CPU").device == "CPU"
    np.testing.assert_array_equal(x.numpy(), values(4, 6))


def test_creation_on_several_devices() -> None:
    ones = Tensor.ones(2, 3, device=PAIR)
    assert ones.device == PAIR and (ones + np.arange(3)).sum().item() == 12
    Tensor.manual_seed(5)
    drawn = Tensor.rand(8, device=PAIR)
    Tensor.manual_seed(5)
    np.testing.assert_array_equal(drawn.numpy(), Tensor.rand(8).numpy())
    assert Tensor.arange(4, device=PAIR).tolist() == [0, 1, 2, 3]
    assert "device=('CPU', 'CPU:1')" in repr(ones)


def trained(devices: tuple[str, ...] | None, optimizer: Any, jitted: bool) -> list[Any]:
    """Losses and parameters after some steps of a small model."""
    Tensor.manual_seed(7)
    layers = [nn.Linear(6, 8, bias=False), nn.BatchNorm(8), nn.Linear(8, 3)]
    params = nn.state.get_parameters(layers)
    for param in params:
        param.realize()
        if devices:
            param.shard_(devices)
    optim = optimizer(params)

    def step(x: Tensor, label: Tensor) -> Tensor:
        optim.zero_grad()
        hidden = layers[1](layers[0](x)).relu().dropout(0.25)
        loss = layers[2](hidden).sparse_categorical_crossentropy(label)
        loss.backward()
        optim.step(loss)
        return loss

    run, losses = gpu.jit(step) if jitted else step, []
    with Tensor.train():
        for i in range(5):
            x = Tensor(values(12, 6, seed=i))
            label = Tensor(rng_for("label", i).integers(0, 3, 12))
            if devices:
                x, label = x.shard(devices, 0), label.shard(devices, 0)
            losses.append(run(x, label).item())
    return [np.array(losses), *(param.numpy() for param in params)]


@pytest.mark.slow
@pytest.mark.sampled(50)
@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("optimizer", [nn.optim.SGD, nn.optim.AdamW])
def test_data_parallel_training(optimizer: Any, jitted: bool) -> None:
    """Parameters on every device, a part of the batch on each: the numbers of one device."""
    alone = trained(None, optimizer, jitted)
    together = trained(PAIR, optimizer, jitted)
    for one, both in zip(alone, together, strict=True):
        np.testing.assert_allclose(both, one, rtol=2e-4, atol=2e-6)


def test_sharded_parameters() -> None:
    """Each device owns a part of the weight: the optimiser's state is cut as well."""
    weight = Tensor(values(6, 4)).shard(PAIR, 1)
    optim = nn.optim.Adam([weight], lr=0.1)
    for _ in range(3):
        optim.zero_grad()
        loss = (Tensor(values(5, 6, seed=1)).shard(PAIR) @ weight).square().mean()
        loss.backward()
        optim.step(loss)
        assert weight.shard_axis == 1
    single = Tensor(values(6, 4))
    optim = nn.optim.Adam([single], lr=0.1)
    for _ in range(3):
        optim.zero_grad()
        (Tensor(values(5, 6, seed=1)) @ single).square().mean().backward()
        optim.step()
    np.testing.assert_allclose(weight.numpy(), single.numpy(), rtol=1e-4, atol=1e-6)


def test_jit_writes_state_and_takes_arguments(device: str) -> None:
    devices = pair(device)
    total = Tensor(np.zeros((4, 2), np.float32), device=device).shard(devices, 0).realize()

    @gpu.jit
    def add(x: Tensor) -> tuple[Tensor, Tensor]:
        total.assign(total + x)
        return total.sum(0), x.to(devices[1])

    expected = np.zeros((4, 2), np.float32)
    for i in range(4):
        x = values(4, 2, seed=i)
        expected += x
        columns, gathered = add(Tensor(x, device=device).shard(devices, 0))
        np.testing.assert_allclose(columns.numpy(), expected.sum(0), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(gathered.numpy(), x)
        np.testing.assert_allclose(total.numpy(), expected, rtol=1e-6)
    captures = add.captures
    add(Tensor(x, device=device).shard(devices, 1))
    assert add.captures == captures + 1  # cut along another axis


def test_a_transfer_out_of_shared_memory() -> None:
    """Memory of a larger value that is used again holds more than what is moved."""
    x = Tensor(np.ones(1000, np.float32)).realize()
    big = (x.reshape(1000, 1) * x).contiguous()
    line = (big.sum(1).contiguous() + 1).contiguous().cumsum(0)
    moved = (line * 2).contiguous().to("CPU:1").contiguous().to("CPU")
    np.testing.assert_allclose(moved.numpy(), 2 * 1001 * np.arange(1, 1001), rtol=1e-5)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda x: x.shard(PAIR, 2), InvalidIndex, "axis"),
        (lambda x: x[:3].shard(PAIR, 0), ShapeError, "no 2 parts of one size"),
        (lambda x: x.shard(("CPU", "CPU:0"), 0), InvalidValue, "different names"),
        (lambda x: x.shard((), 0), InvalidValue, "one or more"),
        (lambda x: x.shard(PAIR, 0).shard(PAIR, 1), InvalidValue, "several devices already"),
        (lambda x: x.shard(PAIR, 0) + x, DeviceMismatch, "on CPU, CPU:1, the other on CPU;"),
        (lambda x: x + x.to("CPU:1"), DeviceMismatch, "on CPU, the other on CPU:1"),
        (lambda x: x.shard(PAIR, 0).cumsum(0).numpy(), Unsupported, "scan along axis 0"),
        (lambda x: Device[PAIR], InvalidType, "opened by one name"),
        (lambda x: nn.optim.SGD([x, x.shard(PAIR)]), DeviceMismatch, "CPU and on CPU, CPU:1"),
        (lambda x: x.shard_like(3), InvalidType, "y"),
    ],
)
def test_what_cannot_be_says_so(
    wrong: Callable[[Tensor], object], error: type[GpuError], message: str
) -> None:
    with pytest.raises(error) as caught:
        wrong(Tensor(values(4, 6)))
    assert message in caught.value.message

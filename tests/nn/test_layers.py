"""Layers against torch's with the same weights: values, and gradients of input and weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpu import Tensor, nn
from gpu.core.errors import DTypeError, GpuError, InvalidIndex, InvalidValue, ShapeError
from gpu.nn.state import get_state_dict
from tensor.reference import Tolerance, assert_same, rng_for, torch

CLOSE = Tolerance(1e-4, 1e-5)

Maker = Callable[[], Any]
# Ours, torch's, and the shape of the input.
LAYERS: dict[str, tuple[Maker, Maker, tuple[int, ...]]] = {
    "Linear": (lambda: nn.Linear(5, 3), lambda: torch.nn.Linear(5, 3), (4, 2, 5)),
    "Linear bare": (
        lambda: nn.Linear(5, 3, bias=False),
        lambda: torch.nn.Linear(5, 3, bias=False),
        (4, 5),
    ),
    "Conv1d": (
        lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2),
        lambda: torch.nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2),
        (2, 4, 9),
    ),
    "Conv2d": (
        lambda: nn.Conv2d(3, 4, (3, 2), padding="same", dilation=2),
        lambda: torch.nn.Conv2d(3, 4, (3, 2), padding="same", dilation=2),
        (2, 3, 6, 7),
    ),
    "Conv2d of 3 axes": (
        lambda: nn.Conv2d(2, 3, (2, 2, 2)),
        lambda: torch.nn.Conv3d(2, 3, 2),
        (1, 2, 3, 4, 3),
    ),
    "ConvTranspose1d": (
        lambda: nn.ConvTranspose1d(4, 6, 3, 2, 1, 1, groups=2),
        lambda: torch.nn.ConvTranspose1d(4, 6, 3, 2, 1, 1, groups=2),
        (2, 4, 5),
    ),
    "ConvTranspose2d": (
        lambda: nn.ConvTranspose2d(3, 2, 3, stride=2, bias=False),
        lambda: torch.nn.ConvTranspose2d(3, 2, 3, stride=2, bias=False),
        (2, 3, 4, 4),
    ),
    "GroupNorm": (lambda: nn.GroupNorm(2, 6), lambda: torch.nn.GroupNorm(2, 6), (3, 6, 4, 5)),
    "InstanceNorm": (
        lambda: nn.InstanceNorm(3),
        lambda: torch.nn.InstanceNorm2d(3, affine=True),
        (2, 3, 4, 5),
    ),
    "LayerNorm": (lambda: nn.LayerNorm(5), lambda: torch.nn.LayerNorm(5), (3, 4, 5)),
    "LayerNorm of 2 axes": (
        lambda: nn.LayerNorm((4, 5), eps=0.1, elementwise_affine=False),
        lambda: torch.nn.LayerNorm((4, 5), eps=0.1, elementwise_affine=False),
        (3, 4, 5),
    ),
    "RMSNorm": (lambda: nn.RMSNorm(5), lambda: torch.nn.RMSNorm(5, 1e-6), (3, 4, 5)),
    "BatchNorm of vectors": (
        lambda: nn.BatchNorm(5),
        lambda: torch.nn.BatchNorm1d(5),
        (6, 5),
    ),
    "BatchNorm1d": (
        lambda: nn.BatchNorm(5, eps=1e-3, affine=False),
        lambda: torch.nn.BatchNorm1d(5, eps=1e-3, affine=False),
        (3, 5, 4),
    ),
    "BatchNorm2d": (
        lambda: nn.BatchNorm2d(3, momentum=0.3),
        lambda: torch.nn.BatchNorm2d(3, momentum=0.3),
        (4, 3, 5, 5),
    ),
    "BatchNorm3d": (
        lambda: nn.BatchNorm3d(2, track_running_stats=False),
        lambda: torch.nn.BatchNorm3d(2, track_running_stats=False),
        (2, 2, 3, 3, 3),
    ),
}


def pair(name: str) -> tuple[Any, Any]:
    """A layer and torch's, with equal random weights."""
    ours, theirs = LAYERS[name][0](), LAYERS[name][1]()
    rng = rng_for(name)
    state = theirs.state_dict()
    mine = get_state_dict(ours)
    assert {k: v.shape for k, v in mine.items()} == {k: tuple(v.shape) for k, v in state.items()}
    for value in state.values():
        if value.dtype.is_floating_point:
            value.copy_(torch.tensor(rng.uniform(0.5, 1.5, tuple(value.shape))))
    theirs.load_state_dict(state)
    nn.state.load_state_dict(ours, {k: Tensor(v.numpy()) for k, v in state.items()})
    return ours, theirs


@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str) -> None:
    ours, theirs = pair(name)
    data = rng_for(name, "x").normal(size=LAYERS[name][2]).astype("float32")
    x, t = Tensor(data, requires_grad=True), torch.tensor(data, requires_grad=True)
    names = [key for key, p in theirs.named_parameters()]
    for key in names:
        get_state_dict(ours)[key].requires_grad = True
    with Tensor.train():
        value, expected = ours(x), theirs(t)
    value.square().sum().backward()
    (expected**2).sum().backward()
    assert_same(value, expected, CLOSE)
    assert x.grad is not None
    assert_same(x.grad, t.grad, Tolerance(1e-3, 1e-3))
    for key, param in theirs.named_parameters():
        assert_same(get_state_dict(ours)[key].grad, param.grad, Tolerance(1e-4, 1e-3))
    for key, buffer in theirs.named_buffers():
        assert_same(get_state_dict(ours)[key], buffer, CLOSE)
    theirs.eval()
    assert_same(ours(x), theirs(t), CLOSE)


def test_layernorm2d() -> None:
    data = rng_for("layernorm2d").normal(size=(2, 3, 4, 5)).astype("float32")
    wanted = torch.nn.LayerNorm(3)(torch.tensor(data).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    assert_same(nn.LayerNorm2d(3)(Tensor(data)), wanted)


def test_embedding() -> None:
    ours, theirs = nn.Embedding(7, 3), torch.nn.Embedding(7, 3)
    ours.weight = Tensor(theirs.weight.detach().numpy(), requires_grad=True)
    numbers = np.array([[0, 6, 3], [3, 3, 1]], np.int32)
    value, expected = ours(Tensor(numbers)), theirs(torch.tensor(numbers))
    value.square().sum().backward()
    (expected**2).sum().backward()
    assert_same(value, expected)
    assert_same(ours.weight.grad, theirs.weight.grad)
    with pytest.raises(DTypeError, match="takes integers"):
        ours(Tensor([1.0]))


@pytest.mark.parametrize("row", [0, 3, -1])
def test_embedding_of_padding(row: int, device: str) -> None:
    ours, theirs = nn.Embedding(5, 3, padding_idx=row), torch.nn.Embedding(5, 3, padding_idx=row)
    assert ours.padding_idx == theirs.padding_idx
    assert ours.weight[row].tolist() == [0, 0, 0] and ours.weight.abs().sum(1).min().item() == 0
    # Whatever the row holds later is what is read.
    table = rng_for("padding", row).normal(size=(5, 3)).astype("float32")
    ours.weight = Tensor(table, device=device, requires_grad=True)
    theirs.weight.data = torch.tensor(table)
    numbers = np.array([[0, 3, 4], [3, 3, 1]], np.int32)
    value, expected = ours(Tensor(numbers, device=device)), theirs(torch.tensor(numbers))
    value.square().sum().backward()
    (expected**2).sum().backward()
    assert_same(value, expected)
    assert_same(ours.weight.grad, theirs.weight.grad)


@pytest.mark.parametrize("bias", [True, False])
def test_lstm_cell(bias: bool) -> None:
    ours, theirs = nn.LSTMCell(4, 3, bias), torch.nn.LSTMCell(4, 3, bias)
    state = {k: Tensor(v.numpy()) for k, v in theirs.state_dict().items()}
    nn.state.load_state_dict(ours, state)
    for tensor in get_state_dict(ours).values():
        tensor.requires_grad = True
    steps = rng_for("lstm").normal(size=(2, 2, 4)).astype("float32")
    memory, expected = None, None
    for step in steps:
        memory, expected = ours(Tensor(step), memory), theirs(torch.tensor(step), expected)
    assert memory is not None and expected is not None
    memory[1].sum().backward()
    expected[1].sum().backward()
    assert_same(memory, expected)
    for key, param in theirs.named_parameters():
        assert_same(get_state_dict(ours)[key].grad, param.grad, CLOSE)


@pytest.mark.parametrize(
    ("make", "bound"),
    [
        (lambda: nn.Linear(64, 300), 1 / 8),
        (lambda: nn.Conv2d(32, 64, 3, groups=2), 1 / 12),
        (lambda: nn.ConvTranspose2d(32, 64, 3, groups=2), 1 / math.sqrt(32 * 9)),
        (lambda: nn.LSTMCell(3, 64), 1 / 8),
    ],
)
def test_initial_weights_are_uniform(make: Maker, bound: float) -> None:
    for tensor in get_state_dict(make()).values():
        values = tensor.numpy()
        # A uniform distribution has the standard deviation bound / sqrt(3).
        assert abs(values).max() <= bound
        assert values.std() == pytest.approx(bound / math.sqrt(3), rel=0.2)


def test_initial_embedding_is_normal() -> None:
    values = nn.Embedding(100, 50).weight.numpy()
    assert values.std() == pytest.approx(1, abs=0.05) and abs(values).max() > 2.5


def test_batchnorm_of_one_value() -> None:
    with Tensor.train(), pytest.raises(InvalidValue, match="more than one value"):
        nn.BatchNorm(3)(Tensor.ones(1, 3))
    assert nn.BatchNorm(3)(Tensor.ones(1, 3)).shape == (1, 3)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: nn.Conv2d(3, 4, 3, groups=2), InvalidValue, "groups must divide in_channels 3"),
        (lambda: nn.GroupNorm(4, 6), InvalidValue, "must divide 6 channels"),
        (lambda: nn.Embedding(0, 3), InvalidValue, "vocab_size must be at least 1"),
        (lambda: nn.Embedding(4, 3, padding_idx=4), InvalidIndex, "padding_idx 4 .* 4 rows"),
        (lambda: nn.BatchNorm(3)(Tensor.ones(2, 4)), ShapeError, r"takes \[batch, 3"),
        (lambda: nn.LayerNorm(3)(Tensor.ones(2, 4)), ShapeError, "last sizes"),
        (lambda: nn.RMSNorm(3)(Tensor.ones(2, 4)), ShapeError, "3 elements"),
        (lambda: nn.LSTMCell(3, 2)(Tensor.ones(2, 4)), ShapeError, r"\[batch, 3\]"),
        (
            lambda: Tensor.ones(2, 3).batchnorm(None, None, Tensor.ones(2), Tensor.ones(3)),
            ShapeError,
            "mean of axes",
        ),
    ],
)
def test_bad_arguments(call: Callable[[], Any], error: type[GpuError], words: str) -> None:
    with pytest.raises(error, match=words):
        call()

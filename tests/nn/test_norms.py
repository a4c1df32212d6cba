"""Functional normalisations, bags of embeddings and one-hot rows beside torch's."""

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
Theirs: Final = torch.nn.functional


def test_group_and_instance_norms() -> None:
    rng = rng_for("norms")
    x, weight, bias = rng.normal(size=(3, 6, 4, 2)), rng.normal(size=6), rng.normal(size=6)
    for groups in (1, 3):
        assert_gradients(
            CPU,
            lambda a, w, b, groups=groups: F.group_norm(a, groups, w, b, 0.1),
            lambda a, w, b, groups=groups: Theirs.group_norm(a, groups, w, b, 0.1),
            [x, weight, bias],
            TOLERANCE,
        )
    assert_gradients(
        CPU,
        lambda a, w, b: F.instance_norm(a, weight=w, bias=b),
        lambda a, w, b: Theirs.instance_norm(a, weight=w, bias=b),
        [x, weight, bias],
        TOLERANCE,
    )


@pytest.mark.parametrize("shape", [(4,), (3, 4)])
def test_norms_of_the_last_axes(shape: tuple[int, ...]) -> None:
    rng = rng_for("last", shape)
    x, weight, bias = rng.normal(size=(2, 3, 4)), rng.normal(size=shape), rng.normal(size=shape)
    pairs = [
        (
            lambda f: lambda a, w, b: f.layer_norm(a, shape, w, b, 0.1),
            lambda f: lambda a, w, b: f.rms_norm(a, shape, w) + b,
        ),
        (
            lambda f: lambda a, w, b: f.layer_norm(a, shape) * w + b,
            lambda f: lambda a, w, b: f.rms_norm(a, shape, None, 0.1) + f.normalize(a, 3) * w + b,
        ),
    ]
    for call in (each for pair in pairs for each in pair):
        assert_gradients(CPU, call(F), call(Theirs), [x, weight, bias], TOLERANCE)


@pytest.mark.parametrize("shape", [(5, 3), (4, 3, 2, 2)])
def test_batch_norm(shape: tuple[int, ...]) -> None:
    rng = rng_for("batch", shape)
    x, weight, bias = rng.normal(2, 3, shape), rng.normal(size=3), rng.normal(size=3)
    means, variances = rng.normal(size=3), rng.uniform(1, 2, 3)
    running = [Tensor(means), Tensor(variances)], [torch.tensor(means), torch.tensor(variances)]
    for training in (True, False):
        assert_gradients(
            CPU,
            lambda a, w, b, t=training: F.batch_norm(a, *running[0], w, b, t, 0.3, 0.1),
            lambda a, w, b, t=training: Theirs.batch_norm(a, *running[1], w, b, t, 0.3, 0.1),
            [x, weight, bias],
            TOLERANCE,
        )
        for mine, other in zip(*running, strict=True):
            np.testing.assert_allclose(mine.numpy(), other.numpy(), 1e-9)


def test_running_statistics_of_instance_norms() -> None:
    rng = rng_for("running")
    ours, theirs = (
        nn.InstanceNorm1d(3, 0.01, 0.3, True, True),
        torch.nn.InstanceNorm1d(3, 0.01, 0.3, True, True),
    )
    batch, alone = rng.normal(2, 3, (4, 3, 5)).astype("f4"), rng.normal(size=(3, 7)).astype("f4")
    with Tensor.train():
        for x in (batch, alone):
            np.testing.assert_allclose(
                ours(Tensor(x)).numpy(), theirs(torch.tensor(x)).detach().numpy(), 1e-5, 1e-5
            )
    state = nn.state.get_state_dict(ours)
    assert state.keys() == theirs.state_dict().keys()
    for name, value in theirs.state_dict().items():
        np.testing.assert_allclose(state[name].numpy(), value.numpy(), 1e-5)
    theirs.eval()
    np.testing.assert_allclose(
        ours(Tensor(batch)).numpy(), theirs(torch.tensor(batch)).detach().numpy(), 1e-5, 1e-5
    )


def test_local_response_norm() -> None:
    for size, shape in ((1, (2, 6, 3)), (4, (2, 6, 3, 2)), (9, (1, 3, 2, 1, 2))):
        x = rng_for(size).normal(size=shape)
        assert_gradients(
            CPU,
            nn.LocalResponseNorm(size, 0.3, 0.6, 1.2),
            torch.nn.LocalResponseNorm(size, 0.3, 0.6, 1.2),
            [x],
            TOLERANCE,
        )
    assert F.local_response_norm(Tensor.ones(0, 2, 3), 2).shape == (0, 2, 3)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, -2])
def test_bags_of_embeddings(mode: str, padding: int | None) -> None:
    rng = rng_for(mode, padding)
    table, flat = rng.normal(size=(7, 3)), rng.integers(0, 7, 10)
    cases: list[tuple[Any, Any, dict[str, Any]]] = [
        (rng.integers(0, 7, (4, 3)), None, {}),
        (flat, np.array([0, 3, 3, 8]), {}),
        (flat, np.array([0, 3, 3, 10]), {"include_last_offset": True}),
    ]
    for numbers, offsets, further in cases:
        args = [a for a in (numbers, offsets) if a is not None]
        given = {**further, "mode": mode, "padding_idx": padding}
        assert_gradients(
            CPU,
            lambda w, args=args, given=given: _call(F.embedding_bag, w, map(Tensor, args), given),
            lambda w, args=args, given=given: _call(
                Theirs.embedding_bag, w, map(torch.tensor, args), given
            ),
            [table],
            TOLERANCE,
        )


def _call(function: Any, weight: Any, arguments: Any, given: dict[str, Any]) -> Any:
    numbers, *offsets = arguments
    return function(numbers, weight, *offsets, **given)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("is_flat", [False, True])
def test_largest_of_bags_that_have_nothing_larger_than_minus_infinity(
    device: str, is_flat: bool, padded: bool
) -> None:
    rng = rng_for(is_flat, padded)
    table = rng.standard_normal((7, 4)).astype(np.float32)
    table[rng.random((7, 4)) < 0.6] = -np.inf
    numbers = rng.integers(0, 7, (6, 3))
    numbers[2] = 5  # a bag with nothing in it, where that row does not count
    given: dict[str, Any] = {"mode": "max", "padding_idx": 5 if padded else None}
    ours = [Tensor(numbers, device=device), Tensor(table, device=device)]
    theirs = [torch.tensor(numbers), torch.tensor(table)]
    if is_flat:
        starts = [0, 3, 3, 9]
        ours = [ours[0].reshape(18), ours[1], Tensor(starts, device=device)]
        theirs = [theirs[0].reshape(18), theirs[1], torch.tensor(starts)]
    wanted = Theirs.embedding_bag(*theirs, **given)
    np.testing.assert_array_equal(F.embedding_bag(*ours, **given).numpy(), wanted.numpy())


def test_weighted_bags_and_the_layer() -> None:
    rng = rng_for("weighted")
    numbers, factors = rng.integers(0, 5, (3, 4)), rng.normal(size=(3, 4))
    assert_gradients(
        CPU,
        lambda w, f: F.embedding_bag(Tensor(numbers), w, mode="sum", per_sample_weights=f),
        lambda w, f: Theirs.embedding_bag(
            torch.tensor(numbers), w, mode="sum", per_sample_weights=f
        ),
        [rng.normal(size=(5, 2)), factors],
        TOLERANCE,
    )
    layer = nn.EmbeddingBag(5, 2, "sum", padding_idx=1)
    assert layer.weight[1].tolist() == [0, 0]
    rows = layer.weight.numpy()[numbers].sum(1)
    np.testing.assert_allclose(layer(Tensor(numbers)).numpy(), rows, 1e-6, 1e-6)


def test_one_hot() -> None:
    numbers = rng_for("classes").integers(0, 5, (3, 2))
    for classes in (-1, 8):
        found, wanted = (
            F.one_hot(Tensor(numbers), classes),
            Theirs.one_hot(torch.tensor(numbers), classes),
        )
        np.testing.assert_array_equal(found.numpy(), wanted.numpy(), strict=True)


def test_on_every_device(device: str) -> None:
    rng = rng_for("device")
    x, numbers = rng.normal(size=(2, 4, 3)), rng.integers(0, 4, 6)

    def ours(a: Tensor) -> Tensor:
        table = F.local_response_norm(F.group_norm(a, 2), 3).reshape(4, 6)
        where = Tensor(numbers, device=device)
        return F.embedding_bag(where, table, Tensor([0, 2, 2], device=device))

    def theirs(a: Any) -> Any:
        table = Theirs.local_response_norm(Theirs.group_norm(a, 2), 3).reshape(4, 6)
        return Theirs.embedding_bag(torch.tensor(numbers), table, torch.tensor([0, 2, 2]))

    assert_forward(device, ours, theirs, [x], Tolerance(1e-4, 1e-5))


X: Final = Tensor.ones(2, 6, 3)
ROWS: Final = Tensor.ones(4, 2)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: F.layer_norm(X, (6, 2)), ShapeError, "last sizes are these"),
        (lambda: F.batch_norm(X, None, None), InvalidValue, "running_mean and running_var are"),
        (lambda: F.batch_norm(ROWS[:1], None, None, training=True), InvalidValue, "more than one"),
        (lambda: F.group_norm(X, 4), InvalidValue, "must divide 6 channels, got 4"),
        (lambda: F.group_norm(X, 2, Tensor.ones(3)), ShapeError, "weight must have a number"),
        (lambda: F.instance_norm(X[0]), ShapeError, r"\(batch, channels, \*spatial\)"),
        (lambda: F.instance_norm(X[:, :, :1]), InvalidValue, "more than one element"),
        (lambda: F.instance_norm(X, use_input_stats=False), InvalidValue, "running_mean and"),
        (lambda: nn.InstanceNorm2d(6)(Tensor.ones(6, 6)), ShapeError, "InstanceNorm2d takes"),
        (lambda: F.local_response_norm(X[0], 2), ShapeError, "local_response_norm takes"),
        (lambda: F.embedding_bag(X, ROWS), DTypeError, "takes integers"),
        (lambda: F.embedding_bag(Tensor([1, 2]), ROWS), ShapeError, "offsets None"),
        (
            lambda: F.embedding_bag(Tensor([[1]]), ROWS, Tensor([0])),
            InvalidValue,
            "offsets go with an input of one axis",
        ),
        (lambda: F.embedding_bag(Tensor([[1]]), ROWS, max_norm=1), Unsupported, "max_norm"),
        (
            lambda: F.embedding_bag(Tensor([[1]]), ROWS, per_sample_weights=Tensor([[1.0]])),
            InvalidValue,
            "go with mode 'sum'",
        ),
        (lambda: F.one_hot(Tensor.zeros(0, dtype="int32")), InvalidValue, "cannot be found"),
    ],
)
def test_what_does_not_fit_is_told(call: Any, error: type[GpuError], message: str) -> None:
    with pytest.raises(error, match=message):
        call()

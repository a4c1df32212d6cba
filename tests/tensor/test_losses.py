"""Losses of class numbers, attention, interpolation and Newton-Schulz steps against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpu import Tensor
from gpu.core.errors import DTypeError, GpuError, InvalidType, InvalidValue, ShapeError
from tensor.reference import Array, assert_gradients, assert_same, fitted, rng_for, torch

F = torch.nn.functional
# Shapes of the logits, with the classes along axis 1, or along the only one.
LOGITS = [(5,), (6, 5), (2, 5, 2, 3)]
REDUCTIONS = ["mean", "sum", "none"]


def classes_for(shape: tuple[int, ...]) -> Array:
    axis = min(1, len(shape) - 1)
    return rng_for(shape).integers(0, 5, (*shape[:axis], *shape[axis + 1 :]))


def against(
    device: str, ours: Callable[..., Any], theirs: Callable[..., Any], *inputs: Array, of: Array
) -> None:
    """Compares losses of inputs and a target `of` that has no gradient."""
    of = fitted(device, of)
    assert_gradients(
        device,
        lambda *xs: ours(*xs, Tensor(of, device=device)),
        lambda *ts: theirs(*ts, torch.tensor(of)),
        inputs,
    )


@pytest.mark.parametrize(
    ("reduction", "smoothing"), [("mean", 0.0), ("mean", 0.2), ("sum", 0.2), ("none", 0.0)]
)
@pytest.mark.parametrize("shape", LOGITS)
def test_cross_entropy(
    shape: tuple[int, ...], smoothing: float, reduction: str, device: str
) -> None:
    x = rng_for(shape).normal(size=shape)
    probabilities = rng_for(shape, 2).uniform(size=shape)
    for target in (classes_for(shape), probabilities):
        against(
            device,
            lambda t, y: t.cross_entropy(y, reduction, smoothing),
            lambda t, y: F.cross_entropy(t, y, reduction=reduction, label_smoothing=smoothing),
            x,
            of=target,
        )


@pytest.mark.parametrize(
    ("reduction", "ignored"), [("mean", None), ("mean", 2), ("sum", None), ("none", 2)]
)
@pytest.mark.parametrize("shape", LOGITS)
def test_nll_loss(shape: tuple[int, ...], ignored: int | None, reduction: str, device: str) -> None:
    x = rng_for(shape).normal(size=shape)
    weight = fitted(device, rng_for("weight").uniform(0.5, 2, 5))
    skipped = -100 if ignored is None else ignored
    against(
        device,
        lambda t, y: t.nll_loss(y, Tensor(weight, device=device), ignored, reduction),
        lambda t, y: F.nll_loss(
            t, y, torch.tensor(weight), ignore_index=skipped, reduction=reduction
        ),
        x,
        of=classes_for(shape) if len(shape) > 1 else np.array(1),
    )
    if len(shape) > 1:
        against(device, lambda t, y: t.nll_loss(y), F.nll_loss, x, of=classes_for(shape))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_sparse_categorical_crossentropy(smoothing: float, reduction: str, device: str) -> None:
    x = rng_for("sparse").normal(size=(3, 4, 5))
    target = rng_for("classes").integers(0, 5, (3, 4))
    target[1, :2] = -1

    def theirs(t: Any, y: Any) -> Any:
        found = F.cross_entropy(
            t.reshape(12, 5),
            y.reshape(12),
            ignore_index=-1,
            label_smoothing=smoothing,
            reduction=reduction,
        )
        return found.reshape(3, 4) if reduction == "none" else found

    against(
        device,
        lambda t, y: t.sparse_categorical_crossentropy(y, -1, smoothing, reduction),
        theirs,
        x,
        of=target,
    )


def draw_classes(rng: np.random.Generator, shape: tuple[int, ...], ignored: int) -> Array:
    """Classes for logits of `shape`, about a third of them `ignored`."""
    axis = min(1, len(shape) - 1)
    target = rng.integers(0, shape[axis], (*shape[:axis], *shape[axis + 1 :]))
    return np.where(rng.uniform(size=target.shape) < 0.3, ignored, target)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [-100, -3, 0])
def test_cross_entropy_of_drawn_shapes(
    ignored: int, weighted: bool, smoothing: float, reduction: str, device: str
) -> None:
    rng = rng_for(ignored, weighted, smoothing, reduction)
    shape = tuple(int(n) for n in rng.integers(1, 6, rng.integers(1, 5)))
    classes = shape[min(1, len(shape) - 1)]
    weight = fitted(device, rng.uniform(0.2, 2, classes))
    ours = Tensor(weight, device=device) if weighted else None
    theirs = torch.tensor(weight) if weighted else None
    kwargs: dict[str, Any] = {} if ignored == -100 else {"ignore_index": ignored}
    against(
        device,
        lambda t, y: t.cross_entropy(y, reduction, smoothing, ours, **kwargs),
        lambda t, y: F.cross_entropy(
            t, y, theirs, reduction=reduction, label_smoothing=smoothing, **kwargs
        ),
        rng.normal(size=shape),
        of=draw_classes(rng, shape, ignored),
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 3, 4), (2, 3, 1, 2)])
def test_cross_entropy_of_weighted_probabilities(
    shape: tuple[int, ...], reduction: str, device: str
) -> None:
    rng = rng_for(shape, reduction)
    weight = fitted(device, rng.uniform(0.2, 2, 3))
    against(
        device,
        lambda t, y: t.cross_entropy(y, reduction, 0.1, weight=Tensor(weight, device=device)),
        lambda t, y: F.cross_entropy(
            t, y, torch.tensor(weight), reduction=reduction, label_smoothing=0.1
        ),
        rng.normal(size=shape),
        of=rng.uniform(size=shape),
    )


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint32"])
def test_classes_of_every_dtype(dtype: str, device: str) -> None:
    rng = rng_for(dtype)
    x = rng.normal(size=(7, 4)).astype("float32")
    ignored = -100 if dtype.startswith("int") else 200
    target = draw_classes(rng, x.shape, ignored).astype(dtype)
    found = Tensor(x, device=device).cross_entropy(
        Tensor(target, device=device), ignore_index=ignored
    )
    labels = torch.tensor(target.astype("int64"))
    assert_same(found, F.cross_entropy(torch.tensor(x), labels, ignore_index=ignored))


@pytest.mark.parametrize("call", [Tensor.cross_entropy, Tensor.nll_loss])
def test_where_nothing_takes_part(call: Callable[..., Tensor], device: str) -> None:
    x = Tensor([[1.0, 2.0], [0.0, 1.0]], device=device, requires_grad=True)
    none = Tensor([-100, -100], device=device)
    assert np.isnan(call(x, none).item())
    assert call(x, none, reduction="sum").item() == 0
    assert call(x, none, reduction="none").tolist() == [0, 0]
    assert call(x, none, reduction="sum").gradient(x)[0].tolist() == [[0, 0], [0, 0]]


def test_the_mean_of_many_halves_counts_right() -> None:
    x = Tensor.zeros(70_000, 2, dtype="float16")
    labels = Tensor.arange(70_000) % 3 - 1
    loss = x.cross_entropy(labels, ignore_index=-1)
    assert loss.dtype.name == "float16" and abs(loss.item() - np.log(2)) < 1e-3


def test_losses_of_many_classes_use_no_matrix_of_them() -> None:
    """A million classes for a few elements: nothing of (elements x classes) but the logits."""
    target = Tensor(np.array([5, 999_999], np.int32))
    x = Tensor.zeros(2, 1_000_000)
    assert abs(x.cross_entropy(target).item() - np.log(1e6)) < 1e-4
    assert x.nll_loss(target, ignore_index=5).item() == 0


def test_ignored_elements_may_be_infinite(device: str) -> None:
    x = Tensor([[-np.inf, 0.0], [0.5, 0.5]], device=device)
    assert x.nll_loss(Tensor([0, 1], device=device), ignore_index=0).item() == -0.5


ATTENTION: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": ((2, 3, 4), (2, 5, 4), {}),
    "heads": ((2, 2, 3, 4), (2, 2, 5, 4), {}),
    "causal": ((2, 3, 4), (2, 5, 4), {"is_causal": True}),
    "causal wide": ((4, 4), (2, 4), {"is_causal": True}),
    "shared heads": ((2, 6, 3, 4), (2, 2, 5, 4), {"enable_gqa": True}),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name: str, device: str) -> None:
    queries, keys, kwargs = ATTENTION[name]
    rng = rng_for(name)
    q, k, v = (rng.normal(size=shape) for shape in (queries, keys, (*keys[:-1], 7)))
    assert_gradients(
        device,
        lambda q, k, v: q.scaled_dot_product_attention(k, v, **kwargs),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **kwargs),
        [q, k, v],
    )


@pytest.mark.parametrize("kind", ["bool", "float64"])
def test_attention_under_a_mask(kind: str, device: str) -> None:
    rng = rng_for(kind)
    q, k, v = (rng.normal(size=(2, n, 4)) for n in (3, 5, 5))
    mask = rng.normal(size=(3, 5)) if kind == "float64" else rng.uniform(size=(3, 5)) > 0.4
    mask = fitted(device, mask)
    mask[1] = False if kind == "bool" else -np.inf  # the second query sees nothing
    assert_gradients(
        device,
        lambda q, k, v: q.scaled_dot_product_attention(k, v, Tensor(mask, device=device)),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, torch.tensor(mask)),
        [q, k, v],
    )


def test_attention_drops_weights_in_training() -> None:
    x = Tensor.rand(1, 8, 4)
    plain = x.scaled_dot_product_attention(x, x)
    assert_same(x.scaled_dot_product_attention(x, x, dropout_p=0.5), torch.tensor(plain.numpy()))
    with Tensor.train():
        dropped = x.scaled_dot_product_attention(x, x, dropout_p=0.5)
        assert not np.allclose(dropped.numpy(), plain.numpy())


SIZES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "1d up": ((2, 3, 5), (9,)),
    "1d down": ((1, 1, 9), (4,)),
    "2d": ((1, 2, 4, 5), (7, 3)),
    "3d": ((1, 1, 3, 4, 2), (4, 2, 5)),
    "to one": ((1, 1, 4, 3), (1, 1)),
    "from one": ((1, 1, 1, 1), (3, 2)),
    "same": ((1, 2, 4), (4,)),
}
LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


@pytest.mark.parametrize("mode", ["linear", "aligned", "nearest", "nearest-exact"])
@pytest.mark.parametrize("name", SIZES)
def test_interpolate(name: str, mode: str, device: str) -> None:
    shape, size = SIZES[name]
    kwargs: dict[str, Any] = {"mode": mode}
    if mode in ("linear", "aligned"):
        kwargs = {"mode": LINEAR[len(size)], "align_corners": mode == "aligned"}
    ours = dict(kwargs, mode="linear") if "align_corners" in kwargs else kwargs
    assert_gradients(
        device,
        lambda x: x.interpolate(size, **ours),
        lambda t: F.interpolate(t, size, **kwargs),
        [rng_for(name).normal(size=shape)],
    )


def test_interpolate_dtypes_and_one_size() -> None:
    x = Tensor.arange(8).reshape(1, 1, 2, 4)
    assert x.interpolate(3, "nearest").tolist() == [[[[0, 1, 2], [0, 1, 2], [4, 5, 6]]]]
    assert x.interpolate((2, 2), "bilinear").tolist() == [[[[0.5, 2.5], [4.5, 6.5]]]]
    assert x.half().interpolate((2, 2)).dtype.name == "float16"


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (2, 4, 4)])
def test_newton_schulz(shape: tuple[int, ...], device: str) -> None:
    params = (3.4445, -4.7750, 2.0315)

    def theirs(t: Any) -> Any:
        x = t / (t.square().sum((-2, -1), keepdim=True).sqrt() + 1e-7)
        for _ in range(3):
            gram = x @ x.mT
            x = params[0] * x + params[1] * gram @ x + params[2] * gram @ gram @ x
        return x

    x = rng_for(shape).normal(size=shape)
    x = fitted(device, x)
    assert_gradients(device, lambda t: t.newton_schulz(3, params), theirs, [x])
    values = np.linalg.svd(Tensor(x).newton_schulz(8, (1.5, -0.5)).numpy(), compute_uv=False)
    assert values.max() < 1.001


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda x: x.cross_entropy(Tensor([0, 1, 2])), ShapeError, r"\[3\].* must have \[2\]"),
        (lambda x: x.cross_entropy(Tensor([0, 1]), "all"), InvalidValue, "'all'"),
        (lambda x: x.cross_entropy(Tensor([0, 1]), "mean", 1.5), InvalidValue, "1.5"),
        (lambda x: x.nll_loss(Tensor([0.0, 1.0])), DTypeError, "must be integers"),
        (lambda x: x.nll_loss(Tensor([0, 1]), Tensor([1.0])), ShapeError, "3 classes"),
        (lambda x: x.nll_loss(Tensor([0, 1]), reduction="max"), InvalidValue, "'max'"),
        (lambda x: x.cross_entropy(x, weight=Tensor([1.0])), ShapeError, "3 classes"),
        (lambda x: x.cross_entropy(x, ignore_index=1), InvalidValue, "ignore_index=1 is a class"),
        (lambda x: x.cross_entropy(Tensor([0, 1]), ignore_index=0.5), InvalidType, "ignore_index"),
        (lambda x: x.sparse_categorical_crossentropy(x), DTypeError, "float32"),
        (
            lambda x: x.sparse_categorical_crossentropy(Tensor([0, 1]), label_smoothing=-1),
            InvalidValue,
            "label_smoothing",
        ),
        (lambda x: x[0].scaled_dot_product_attention(x, x), ShapeError, "positions, width"),
        (
            lambda x: x.scaled_dot_product_attention(x, x, x > 0, is_causal=True),
            InvalidValue,
            "exclude each other",
        ),
        (
            lambda x: x.scaled_dot_product_attention(x, x, enable_gqa=True),
            ShapeError,
            "multiple of those",
        ),
        (lambda x: x.interpolate((2, 2, 2)), ShapeError, "does not fit"),
        (lambda x: x.interpolate((0,)), ShapeError, "size"),
        (lambda x: x.interpolate((2,), "cubic"), InvalidValue, "'cubic'"),
        (lambda x: x.interpolate((2,), "nearest", True), InvalidValue, "align_corners"),
        (lambda x: x[:, :0].interpolate((2,)), ShapeError, "nothing to read"),
        (lambda x: x[0].newton_schulz(1, (1, 1)), ShapeError, "two axes"),
        (lambda x: x.newton_schulz(-1, (1, 1)), InvalidValue, "steps"),
    ],
)
def test_bad_input(call: Callable[[Tensor], Any], error: type[GpuError], says: str) -> None:
    with pytest.raises(error, match=says):
        call(Tensor.ones(2, 3))

"""`functional`'s losses beside torch's: values, and gradients of all operands, in few graphs."""

from __future__ import annotations

import inspect
import math
import warnings
from typing import Any, Final

import numpy as np
import pytest

from gpu import Tensor, nn
from gpu.core.errors import DTypeError, GpuError, InvalidValue, ShapeError
from gpu.nn import functional as F
from gpu.nn.state import get_state_dict
from tensor.reference import Array, rng_for, torch, uniform

# Operands: x, y, o, v floats; w weights; p, q shares; c counts; s signs; k classes; l lists of
# classes; h weights of classes; a, b, n vectors.
SHAPES: Final = {
    **dict.fromkeys("xywpqcsl", (4, 3)),
    "o": (4, 1),
    "k": (4,),
    "h": (3,),
    "v": (4,),
    "a": (4, 5),
    "b": (4, 5),
    "n": (4, 5),
}
CALLS: Final = """
    l1_loss(x, y)
    l1_loss(x, o, reduction='none', weight=w)
    l1_loss(x, y, reduction='mean', weight=w)
    mse_loss(x, y, reduction='sum')
    mse_loss(x, y, weight=w)
    smooth_l1_loss(x, y, beta=0.7)
    smooth_l1_loss(x, y, reduction='none', beta=0)
    huber_loss(x, y, 'none', 0.6)
    huber_loss(x, y, delta=1.2, weight=w)
    kl_div(x, p)
    kl_div(x, y, reduction='batchmean', log_target=True)
    poisson_nll_loss(x, c, full=True)
    poisson_nll_loss(w, c, False, eps=1e-3, reduction='none')
    gaussian_nll_loss(x, y, w, True)
    gaussian_nll_loss(x, y, o * o, eps=0.5, reduction='none')
    gaussian_nll_loss(x, y, v * v + 1, reduction='sum')
    gaussian_nll_loss(x, y, 0.5)
    binary_cross_entropy(p, q)
    binary_cross_entropy(p, q, h, reduction='none')
    binary_cross_entropy_with_logits(x, q, w, pos_weight=h)
    nll_loss(x, k, h, ignore_index=1)
    cross_entropy(x, k, h, ignore_index=0, label_smoothing=0.2)
    cross_entropy(x, p, reduction='sum')
    cosine_similarity(a, b)
    cosine_similarity(a, b[:1], -1, eps=3)
    pairwise_distance(a, b)
    pairwise_distance(a, b, 1, 0.1, True)
    cosine_embedding_loss(a, b, s[:, 0], 0.1)
    cosine_embedding_loss(a[0], b[0], s[0, 0], reduction='sum')
    hinge_embedding_loss(w, s, 1.5)
    margin_ranking_loss(x, y, s, 0.3)
    soft_margin_loss(x * 9, s, reduction='none')
    multilabel_soft_margin_loss(x, (c > 2) * 1, h)
    multi_margin_loss(x, k, 2, 0.7, h)
    multi_margin_loss(x[0], k[0], reduction='none')
    multilabel_margin_loss(x, l, reduction='none')
    multilabel_margin_loss(x[1], l[1])
    triplet_margin_loss(a, b, n, 0.9, 1, swap=True)
    triplet_margin_loss(a[0], b[0], n[0])
    triplet_margin_with_distance_loss(a, b, n, reduction='none')
""".strip().split("\n")
# What every device computes: all is made of tensors' methods, which are compared there.
FEW: Final = (5, 27)


def operands(dtype: str) -> dict[str, Array]:
    made: dict[str, Array] = {}
    for name, shape in SHAPES.items():
        rng = rng_for("losses", name)
        if name in "pqw":
            made[name] = uniform(rng, shape, (0.05, 0.95), dtype)
        elif name == "s":
            made[name] = rng.choice([-1, 1], shape)
        elif name == "k":
            made[name] = rng.integers(0, 3, shape)
        elif name == "l":
            lists = rng.permuted(np.tile(np.arange(3), (4, 1)), axis=1)
            made[name] = np.where(np.arange(3) >= np.arange(4)[:, None], -1, lists)
        else:
            made[name] = uniform(rng, shape, (0.0, 5.0) if name in "ch" else (-2.0, 2.0), dtype)
    return made


def theirs(calls: list[str], arrays: dict[str, Array]) -> tuple[list[Array], dict[str, Array]]:
    """Values of torch's, and gradients of the sum of all."""
    xs = {n: torch.tensor(x) for n, x in arrays.items()}
    for name in "xypqovabn":  # not weights, of which torch has gradients here and there
        xs[name].requires_grad = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of shapes that differ
        values = [eval(f"F.{call.strip()}", {"F": torch.nn.functional, **xs}) for call in calls]
    sum((n + 1) * value.sum() for n, value in enumerate(values)).backward()
    grads = {n: x.grad.numpy() for n, x in xs.items() if x.grad is not None}
    return [value.detach().numpy() for value in values], grads


def check(calls: list[str], dtype: str, device: str | None = None) -> None:
    arrays = operands(dtype)
    values, gradients = theirs(calls, arrays)
    leaves = {n: Tensor(x, device=device, requires_grad=n in gradients) for n, x in arrays.items()}
    found = [eval(f"F.{call.strip()}", {"F": F, **leaves}) for call in calls]
    whole = Tensor.stack(*((n + 1) * value.sum() for n, value in enumerate(found))).sum()
    grads = whole.gradient(*(leaves[name] for name in gradients))
    whole.realize(*found, *grads)
    relative, absolute = (1e-10, 1e-10) if dtype == "float64" else (1e-4, 1e-4)
    for call, one, other in zip(calls, found, values, strict=True):
        x = one.numpy()
        assert (x.shape, x.dtype) == (other.shape, other.dtype), call
        np.testing.assert_allclose(x, other, relative, absolute, err_msg=call)
    for (name, wanted), grad in zip(gradients.items(), grads, strict=True):
        np.testing.assert_allclose(grad.numpy(), wanted, relative, absolute, err_msg=name)


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_values_and_gradients(part: int) -> None:
    check(CALLS[part::2], "float64")


def test_on_devices(device: str) -> None:
    check([CALLS[number] for number in FEW], "float32", device)


def ctc_operands(dtype: str) -> tuple[Array, Array, list[int], list[int]]:
    rng = rng_for("ctc", dtype)
    labels = np.array([[1, 1, 3], [3, 1, 2], [2, 2, 2], [1, 2, 3]])
    return rng.normal(size=(7, 4, 4)).astype(dtype), labels, [7, 5, 4, 2], [3, 2, 0, 3]


@pytest.mark.parametrize(
    ("joined", "reduction"), [pytest.param(True, "mean", marks=pytest.mark.slow), (False, "none")]
)
def test_ctc(joined: bool, reduction: str) -> None:
    """One target has equal neighbours, one nothing, and one does not fit into its sequence."""
    data, labels, steps, lengths = ctc_operands("float64")
    if joined:
        labels = np.concatenate([row[:n] for row, n in zip(labels, lengths, strict=True)])
    t = torch.tensor(data, requires_grad=True)
    args = (torch.tensor(labels), torch.tensor(steps), torch.tensor(lengths), 0, reduction, joined)
    wanted = torch.nn.functional.ctc_loss(t.log_softmax(-1), *args)
    torch.where(torch.isfinite(wanted), wanted, 0).sum().backward()
    x = Tensor(data, requires_grad=True)
    given: Any = (Tensor(steps), Tensor(lengths)) if joined else (steps, lengths)
    found = F.ctc_loss(x.log_softmax(-1), Tensor(labels), *given, 0, reduction, joined)
    (grad,) = found.isfinite().where(found, 0).sum().gradient(x)
    found.realize(grad)
    np.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), 1e-10)
    np.testing.assert_allclose(grad.numpy()[:, :3], t.grad.numpy()[:, :3], 1e-8, 1e-10)
    assert not grad.numpy()[:, 3].any()


def test_ctc_of_one_sequence() -> None:
    data, labels, _, _ = ctc_operands("float32")
    t = torch.tensor(data[:3, 0]).log_softmax(-1)
    want = torch.nn.functional.ctc_loss(t, torch.tensor(labels[0, 1:]), (3,), (2,), blank=2)
    found = nn.CTCLoss(blank=2)(Tensor(data[:3, 0]).log_softmax(-1), Tensor(labels[0, 1:]), 3, 2)
    assert found.shape == ()
    assert math.isclose(found.item(), want.item(), rel_tol=1e-4)


def test_layers_are_the_functions_with_torchs_settings() -> None:
    weight = Tensor([1.0, 2.0, 3.0])
    x, k = Tensor([[1.0, 0.0, 2.0]]), Tensor([1])
    layer = nn.CrossEntropyLoss(weight, ignore_index=2, reduction="sum")
    assert (
        layer(x, k).item() == F.cross_entropy(x, k, weight, ignore_index=2, reduction="sum").item()
    )
    assert get_state_dict(layer)["weight"].requires_grad is False and weight.requires_grad is None
    assert layer.ignore_index == 2 and list(get_state_dict(layer)) == ["weight"]
    deprecated = {"size_average", "reduce"}
    for name in nn.__all__:
        if name.endswith("Loss"):
            wanted = inspect.signature(getattr(torch.nn, name)).parameters.keys() - deprecated
            assert set(inspect.signature(getattr(nn, name)).parameters) >= wanted, name
    with pytest.raises(TypeError, match="beta"):
        nn.L1Loss(beta=3)

    class Mine(nn.MSELoss):
        pass

    assert Mine(reduction="none")(Tensor([3.0]), Tensor([1.0])).tolist() == [4.0]


X: Final = Tensor.ones(2, 3)


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (InvalidValue, lambda: F.l1_loss(X, X, reduction="max")),
        (ShapeError, lambda: F.mse_loss(X, X, weight=X[0])),
        (ShapeError, lambda: F.mse_loss(X, X[:, :2])),
        (InvalidValue, lambda: F.smooth_l1_loss(X, X, beta=-1)),
        (InvalidValue, lambda: F.huber_loss(X, X, delta=0)),
        (ShapeError, lambda: F.gaussian_nll_loss(X, X, X[:1, :1])),
        (InvalidValue, lambda: F.gaussian_nll_loss(X, X, X, eps=0)),
        (InvalidValue, lambda: F.triplet_margin_loss(X, X, X, margin=0)),
        (ShapeError, lambda: F.triplet_margin_loss(X, X, X[0])),
        (ShapeError, lambda: F.margin_ranking_loss(X, X, X[0])),
        (ShapeError, lambda: F.cosine_embedding_loss(X, X, X)),
        (DTypeError, lambda: F.multi_margin_loss(X, X[:, 0])),
        (ShapeError, lambda: F.multi_margin_loss(X, Tensor([1]))),
        (InvalidValue, lambda: F.multi_margin_loss(X, Tensor([1, 0]), p=3)),
        (ShapeError, lambda: F.multi_margin_loss(X, Tensor([1, 0]), weight=X[0, :2])),
        (ShapeError, lambda: F.ctc_loss(X[0], Tensor([1]), [1], [1])),
        (InvalidValue, lambda: F.ctc_loss(X, Tensor([1]), [2], [1], blank=3)),
        (InvalidValue, lambda: F.ctc_loss(X, Tensor([1]), [3], [1])),
        (InvalidValue, lambda: F.ctc_loss(X, Tensor([1]), [2], [2])),
        (DTypeError, lambda: F.ctc_loss(X, X[0], [2], [2])),
    ],
)
def test_what_is_refused(error: type[GpuError], call: Any) -> None:
    with pytest.raises(error):
        call()

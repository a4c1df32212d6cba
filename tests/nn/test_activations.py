"""`functional`'s activations and their layers beside torch's, in one graph; and dropouts."""

from __future__ import annotations

import inspect
from typing import Any, Final

import numpy as np
import pytest

from gpu import Tensor, nn
from gpu.core.errors import GpuError, InvalidValue, ShapeError
from gpu.nn import functional as F
from tensor.reference import rng_for, torch, uniform

# For each layer its settings; a function is called with the same.
LAYERS: Final[dict[str, tuple[Any, ...]]] = {
    "ReLU": (), "ReLU6": (), "Hardtanh": (-0.5, 0.7), "LeakyReLU": (0.3,), "ELU": (0.7,),
    "CELU": (0.6,), "SELU": (), "SiLU": (), "Mish": (), "Hardsigmoid": (), "Hardswish": (),
    "Threshold": (0.4, -2.0), "GELU": (), "Sigmoid": (), "Tanh": (), "LogSigmoid": (),
    "Softsign": (), "Softplus": (3.0, 4.0), "Tanhshrink": (), "Hardshrink": (0.7,),
    "Softshrink": (0.7,), "GLU": (1,), "Softmax": (1,), "LogSoftmax": (0,), "Softmin": (2,),
    "Identity": (3,), "Flatten": (1, 2), "PReLU": (4, 0.3), "RReLU": (0.1, 0.3), "Dropout": (0.4,),
}  # fmt: skip


def test_values_and_gradients_of_layers() -> None:
    data = uniform(rng_for("activations"), (3, 4, 2), (-3.0, 3.0), "float64")
    x, t = Tensor(data, requires_grad=True), torch.tensor(data, requires_grad=True)
    found = [getattr(nn, name)(*given)(x) for name, given in LAYERS.items()]
    wanted = [getattr(torch.nn, n)(*given).double().eval()(t) for n, given in LAYERS.items()]
    sum((n + 1) * (value * value).sum() for n, value in enumerate(wanted)).backward()
    parts = [(n + 1) * value.square().sum() for n, value in enumerate(found)]
    (grad,) = Tensor.stack(*parts).sum().gradient(x)
    grad.realize(*found)
    for name, one, other in zip(LAYERS, found, wanted, strict=True):
        assert one.shape == tuple(other.shape), name
        np.testing.assert_allclose(one.numpy(), other.detach().numpy(), 1e-7, 1e-8, err_msg=name)
    np.testing.assert_allclose(grad.numpy(), t.grad.numpy(), 1e-6)


def parameters(function: Any) -> list[str]:
    """Names of arguments, in order, but for those that one side leaves out; none of C's."""
    left_out = ("_stacklevel", "eps", "dtype", "out", "size_average", "reduce")
    try:
        return [name for name in inspect.signature(function).parameters if name not in left_out]
    except ValueError:
        return []


def test_signatures_are_torchs() -> None:
    compared = 0
    for name in F.__all__:
        theirs = torch.nn.functional
        plain = getattr(theirs, f"{name}_with_indices", None) or getattr(theirs, name)
        if wanted := parameters(plain):
            assert parameters(getattr(F, name)) == wanted, name
            compared += 1
    assert compared > 35


def test_what_is_written_in_place() -> None:
    x = Tensor([-1.0, 2.0])
    doubled = x * 2
    y = nn.ReLU(inplace=True)(x)
    assert y is x and x.tolist() == [0.0, 2.0] and doubled.tolist() == [-2.0, 4.0]
    weight = Tensor([-1.0, 2.0], requires_grad=True)
    with pytest.raises(InvalidValue, match="cannot be written to"):
        F.relu(weight, inplace=True)
    hidden = weight * 3
    (grad,) = F.relu(hidden, inplace=True).sum().gradient(weight)
    assert grad.tolist() == [0.0, 3.0]


def test_dropouts() -> None:
    Tensor.manual_seed(1)
    x = Tensor.ones(16, 8, 4)
    assert F.dropout(x, 0.5, training=False) is x and nn.Dropout()(x) is x
    with Tensor.train():
        found = [
            nn.Dropout(0.25)(x).numpy(),
            *(layer(x).numpy() for layer in (nn.Dropout1d(), nn.Dropout2d())),
            nn.Dropout3d()(x.unsqueeze(1)).numpy(),
        ]
    assert not Tensor.training
    assert set(np.unique(found[0])) == {0.0, np.float32(4 / 3)}
    for one, whole in zip(found[1:], (2, 2, 1), strict=True):
        lines = one.reshape(*one.shape[:whole], -1)
        assert set(np.unique(one)) == {0.0, 2.0} and (lines == lines[..., :1]).all()
        assert whole == 1 or (one != one[:, :1]).any()
    kept = F.alpha_dropout(Tensor.zeros(8, 4), 0.3, training=True)
    a = ((1 - 0.3) * (1 + 0.3 * 1.7580993408473766**2)) ** -0.5
    values = [-1.7580993408473766 * a * 0.7, 0.3 * a * 1.7580993408473766]
    np.testing.assert_allclose(np.unique(kept.numpy()), values, 1e-5)
    slopes = F.rrelu(-x, 0.2, 0.4, training=True).numpy()
    assert -0.4 <= slopes.min() < slopes.max() <= -0.2
    hard = F.gumbel_softmax(Tensor([[0.0, 1.0, 50.0]]), hard=True)
    assert hard.tolist() == [[0.0, 0.0, 1.0]]


X: Final = Tensor.ones(2, 3)


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (InvalidValue, lambda: F.hardtanh(X, 1, 1)),
        (InvalidValue, lambda: F.softshrink(X, -1)),
        (ShapeError, lambda: F.glu(X)),
        (ShapeError, lambda: F.prelu(X, X[0, :2])),
        (InvalidValue, lambda: F.dropout(X, 1.5)),
        (ShapeError, lambda: F.dropout3d(X)),
        (InvalidValue, lambda: nn.PReLU(0)),
    ],
)
def test_what_is_refused(error: type[GpuError], call: Any) -> None:
    with pytest.raises(error):
        call()

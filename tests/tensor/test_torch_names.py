"""The names of torch's that there are give what torch gives: a sample of `tools/torch_names`.

Four dtypes each, gradients where torch has them, drawn arguments and shapes; all with ``--whole``.
"""

from __future__ import annotations

import pytest

from gpu import Tensor, dtypes, nn
from gpu.core.errors import DTypeError, GpuError, InvalidValue, ShapeError
from gpu.nn import functional as F
from gpu.signal import windows
from tensor.reference import rng_for, torch
from tools.torch_names.__main__ import EXPECTED, failures
from tools.torch_names.rows import ROWS, Row


@pytest.mark.sampled(4)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.family} {row.call}")
def test_a_name_gives_what_torch_gives(row: Row) -> None:
    told = failures(row, draws=1)
    assert bool(told) == (row.name in EXPECTED), told


def test_most_of_the_names_in_the_table_are_compared() -> None:
    names = {(row.family, row.name) for row in ROWS}
    assert len(names) > 700 and len(EXPECTED) < len(names) / 20


def test_methods_in_place_show_in_views_and_refuse_what_would_not_fit() -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    row = x[1]
    assert row.mul_(2).add_(1) is row and x.tolist() == [[1, 2], [7, 9]]
    assert x.zero_().copy_(Tensor([1, 2])).fill_diagonal_(5).tolist() == [[5, 2], [1, 5]]
    with pytest.raises(ShapeError, match="cannot replace"):
        row.add_(x)
    with pytest.raises(DTypeError, match="cannot replace"):
        Tensor([1, 2]).div_(2)
    weight = Tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(InvalidValue, match="no_grad"):
        weight.mul_(2)
    with Tensor.no_grad():
        assert weight.uniform_(2, 3).min().item() >= 2 and weight.requires_grad
        assert abs(Tensor.zeros(4000).normal_(3, 0.5).mean().item() - 3) < 0.1


def test_a_layer_takes_another_dtype_and_stays_trainable() -> None:
    layer = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).double()
    assert {x.dtype for x in layer.parameters() if x.dtype.is_float} == {dtypes.float64}
    loss = layer(Tensor.ones(4, 3, dtype="float64")).sum()
    loss.backward()
    assert all(x.grad is not None for x in layer.parameters() if x.requires_grad)
    with pytest.raises(DTypeError, match="floats"):
        layer.to("CPU", "int32")


def test_random_windows_of_fractional_pools_are_within_the_plane() -> None:
    data = rng_for("fractional").normal(size=(2, 3, 9, 8))
    largest, places = F.fractional_max_pool2d_with_indices(Tensor(data), 2, (4, 3))
    assert largest.shape == places.shape == (2, 3, 4, 3)
    taken = Tensor(data).reshape(2, 3, 72).gather(2, places.reshape(2, 3, 12))
    assert (taken.reshape(2, 3, 4, 3) == largest).all().item()


X = Tensor.ones(2, 3, 6)


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (InvalidValue, lambda: F.fractional_max_pool2d(X, 2)),
        (InvalidValue, lambda: F.fractional_max_pool2d(X, 2, 2, 0.5)),
        (InvalidValue, lambda: F.fractional_max_pool2d(X, 2, output_ratio=1.5)),
        (ShapeError, lambda: F.fractional_max_pool2d(X, 3, 3)),
        (ShapeError, lambda: F.fractional_max_pool2d(X, 2, 2, _random_samples=X)),
        (ShapeError, lambda: F.fractional_max_pool3d(X, 2, 2)),
        (ShapeError, lambda: F.pdist(X)),
        (ShapeError, lambda: F.feature_alpha_dropout(X[0, 0])),
        (ShapeError, lambda: nn.Softmax2d()(X[0])),
        (InvalidValue, lambda: nn.ZeroPad2d((1, 2))),
        (ShapeError, lambda: X.as_strided((2, 9), (18, 3))),
        (InvalidValue, lambda: X.as_strided((2, 2), (1,))),
        (ShapeError, lambda: X.as_strided_scatter(X, (2, 2), (2, 1))),
        (ShapeError, lambda: X.H),
        (ShapeError, lambda: X[0].dsplit(2)),
        (ShapeError, lambda: X.hsplit(2)),
        (ShapeError, lambda: X.fill_diagonal_(1)),
        (ShapeError, lambda: X.clone().fill_(X)),
        (InvalidValue, lambda: windows.hann(-1)),
        (DTypeError, lambda: windows.hann(5, dtype="int32")),
        (InvalidValue, lambda: windows.gaussian(5, std=0)),
        (InvalidValue, lambda: windows.exponential(5, center=1.0)),
        (InvalidValue, lambda: windows.kaiser(5, beta=-1.0)),
        (InvalidValue, lambda: windows.general_cosine(5, a=[])),
    ],
)
def test_what_is_refused(error: type[GpuError], call: object) -> None:
    assert torch is not None and callable(call)
    with pytest.raises(error):
        call()

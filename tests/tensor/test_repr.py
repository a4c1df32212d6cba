"""What a tensor looks like when it is printed."""

from __future__ import annotations

import numpy as np
import pytest

from gpu import Tensor
from gpu.core.errors import OutOfMemory, ShapeError
from gpu.runtime.prepared import Counters


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (Tensor([1, 2]), "Tensor([1, 2], dtype=int32, device=CPU)"),
        (Tensor([[1.5, 2]]) * 2, "Tensor([[3., 4.]], dtype=float32, device=CPU)"),
        (Tensor(True), "Tensor(True, dtype=bool, device=CPU)"),
        (Tensor([0.1]).cast("bfloat16"), "Tensor([0.10009766], dtype=bfloat16, device=CPU)"),
        (Tensor([], device="PYTHON"), "Tensor([], shape=[0], dtype=float32, device=PYTHON)"),
        (
            Tensor([1.0], requires_grad=True),
            "Tensor([1.], dtype=float32, device=CPU, requires_grad=True)",
        ),
        (Tensor([[1], [2]]), "Tensor([[1],\n        [2]], dtype=int32, device=CPU)"),
        (Tensor([np.nan, np.inf]), "Tensor([nan, inf], dtype=float32, device=CPU)"),
    ],
)
def test_small_tensors_show_everything(tensor: Tensor, text: str) -> None:
    assert repr(tensor) == str(tensor) == text


def test_a_large_tensor_is_shortened() -> None:
    text = repr(Tensor.zeros(2000, 3000))
    assert "..." in text and text.endswith("shape=[2000, 3000], dtype=float32, device=CPU)")
    assert len(text) < 800


@pytest.mark.parametrize("shape", [(6,) * 7, (2,) * 12, (3,) * 8, (5000, 1, 1, 1)])
def test_many_axes_are_shortened(shape: tuple[int, ...]) -> None:
    assert len(repr(Tensor.zeros(*shape))) < 8000


def test_printing_computes_once_and_keeps_gradients() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    y = (x * x).sum()
    assert "5." in repr(y)
    launches = Counters.launches
    assert "5." in repr(y) and Counters.launches == launches
    y.backward()
    assert x.grad is not None and x.grad.tolist() == [2, 4]


def test_one_element_is_formatted_as_a_number() -> None:
    loss = Tensor([[2.5]]) * 0.5
    assert f"{loss:.3f} {Tensor(7):03d} {Tensor(True):d}" == "1.250 007 1"
    assert f"{loss}" == str(loss)
    with pytest.raises(ShapeError, match="one element"):
        f"{Tensor([1.0, 2.0]):.3f}"


def test_an_error_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise OutOfMemory("cannot allocate 8 bytes\nsecond line")

    x = Tensor([1.0, 2.0]) + 1
    monkeypatch.setattr("gpu.tensor.handle.again", lambda node: None)
    monkeypatch.setattr("gpu.tensor.handle.realize", fail)
    wanted = "<OutOfMemory: cannot allocate 8 bytes>, shape=[2], dtype=float32, device=CPU"
    assert repr(x) == f"Tensor({wanted})"

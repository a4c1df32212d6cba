"""What an error says about names that torch has and this package does not."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

import gpu
from gpu import Tensor, nn
from gpu.core.errors import InvalidType
from gpu.tensor.torchnames import NN, PACKAGE, TENSOR


@pytest.mark.parametrize(
    ("owner", "name", "message"),
    [
        (Tensor.ones(2), "type", "here it is: cast()"),
        (Tensor.ones(2), "t_", "here it is: x = x.t(...)"),
        (Tensor.ones(2), "reshap", "did you mean reshape?"),
        (Tensor.ones(2), "qqqqqq", "a Tensor has no attribute 'qqqqqq'"),
        (gpu, "randn", "here it is: gpu.Tensor.randn"),
        (gpu, "float32", "here it is: gpu.dtypes.float32"),
        (gpu, "compile", "here it is: gpu.jit"),
        (nn, "LogSumExp", "here it is: Tensor.logsumexp"),
        (nn, "Parameter", "here it is: a Tensor with requires_grad=True"),
        (nn.functional, "layernorm", "here it is: Tensor.layernorm"),
        (nn.functional, "mse_lose", "did you mean mse_loss?"),
        (nn, "Linaer", "did you mean Linear?"),
    ],
)
def test_a_missing_name_says_what_there_is(owner: object, name: str, message: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(message)):
        getattr(owner, name)
    assert not hasattr(owner, name)


@pytest.mark.parametrize("name", ["__array_struct__", "__cuda_array_interface__", "__bool_"])
def test_protocols_that_a_tensor_lacks_are_told_at_once(name: str) -> None:
    assert not hasattr(Tensor.ones(2), name)


def test_the_tables_name_what_is_there_and_nothing_that_is() -> None:
    assert not [name for name in TENSOR if hasattr(Tensor, name)]
    assert not [name for name in PACKAGE if name in gpu.__all__]
    assert not [name for name in NN if name in nn.__all__]
    for text in (*TENSOR.values(), *PACKAGE.values(), *NN.values()):
        for name in re.findall(r"\bTensor\.(\w+)", text):
            assert hasattr(Tensor, name), text
    for text in TENSOR.values():
        for name in re.findall(r"(?<![.\w])(\w+)\(\)", text):
            assert hasattr(Tensor, name), text


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Tensor.cat([Tensor.ones(2), Tensor.ones(2)]), "Tensor.cat(*tensors)"),  # type: ignore[arg-type]
        (lambda: Tensor.stack((Tensor.ones(2),)), "Tensor.stack(*tensors)"),  # type: ignore[arg-type]
        (lambda: nn.optim.SGD(nn.Linear(2, 2)), "get_parameters()"),  # type: ignore[arg-type]
    ],
)
def test_calls_as_in_torch_say_how_it_is_done_here(
    wrong: Callable[[], object], message: str
) -> None:
    with pytest.raises(InvalidType, match=re.escape(message)):
        wrong()


def test_tensors_are_made_as_others_are():
    x = Tensor([1.5], dtype="float64")
    for made in (x.new_zeros(2, 3), x.new_ones((2, 3)), x.new_full((2, 3), 7), x.new_empty(2, 3)):
        assert made.shape == (2, 3) and made.dtype is gpu.dtypes.float64
    assert x.new_tensor([1, 2]).dtype is gpu.dtypes.float64
    assert x.new_ones(2, dtype="int32", device="PYTHON").device == "PYTHON"
    assert x.new_ones(2, requires_grad=True).requires_grad
    assert Tensor.empty_like(x, requires_grad=True).requires_grad
    assert (x.dim(), x.nelement(), x.cpu().device) == (1, 1, "CPU")
    assert x.type_as(Tensor([1])).dtype is gpu.dtypes.int32
    assert x.to(gpu.dtypes.int8).dtype is gpu.dtypes.int8
    assert x.to("PYTHON", gpu.dtypes.int8).device == "PYTHON"
    with pytest.raises(gpu.GpuError, match="steps must not be negative, got -1"):
        Tensor.logspace(0, 1, -1)
    with pytest.raises(gpu.GpuError, match="combinations needs a vector"):
        Tensor.ones(2, 2).combinations()

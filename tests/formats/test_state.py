"""State dicts: which tensors a model has, and how they take other values."""

from __future__ import annotations

import collections
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpu.nn.state
from gpu.core.errors import InvalidType, InvalidValue
from gpu.nn.state import (
    get_parameters,
    get_state_dict,
    load_state_dict,
    safe_load,
    safe_save,
)
from gpu.runtime.execute import storage
from gpu.tensor.tensor import Tensor

Point = collections.namedtuple("Point", ["x", "y"])


class Layer:
    def __init__(self, size: int = 2):
        self.weight = Tensor(np.ones((size, size), np.float32))
        self.bias: Tensor | None = Tensor(np.zeros(size, np.float32))


class Slotted:
    __slots__ = ("absent", "scale")

    def __init__(self) -> None:
        self.scale = Tensor([3.0])


class Model:
    name = "a class attribute"

    def __init__(self) -> None:
        self.layers = [Layer(), Layer(3)]
        self.parts = {"head": Layer(), 7: (Tensor([1.0]), Slotted())}
        self.point = Point(Tensor([1.0]), None)
        self.activation = Tensor.relu
        self.kind, self.module = Layer, np
        self.numbers = (1, 2.5, "text", None)


NAMES = [
    "layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias",
    "parts.head.weight", "parts.head.bias", "parts.7.0", "parts.7.1.scale", "point.x",
]  # fmt: skip


def test_names() -> None:
    model = Model()
    state = get_state_dict(model)
    assert list(state) == NAMES
    assert state["layers.0.weight"] is model.layers[0].weight
    assert list(get_state_dict(model, "net")) == [f"net.{name}" for name in NAMES]
    assert get_state_dict(Tensor([1]), "x").keys() == {"x"}
    assert get_state_dict(None) == get_state_dict(3) == {}
    assert gpu.nn.state is not None


def test_cycles_and_shared_tensors() -> None:
    model: Any = Layer()
    model.itself, model.list = model, []
    model.list += [model, model.list]
    model.tied = model.weight
    model.twice = [Layer()] * 2
    names = ["weight", "bias", "tied", "twice.0.weight", "twice.0.bias"]
    assert list(get_state_dict(model)) == [*names, "twice.1.weight", "twice.1.bias"]
    assert [id(t) for t in get_parameters(model)] == [
        id(t) for t in (model.weight, model.bias, model.twice[0].weight, model.twice[0].bias)
    ]


def test_two_tensors_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidValue, match=r"'a\.b'"):
        get_state_dict({"a": {"b": Tensor([1])}, "a.b": Tensor([2])})


def test_load_converts_and_copies() -> None:
    model = {"a": Tensor([0.0, 0.0]), "b": Tensor([[1, 2]], device="PYTHON"), "c": Tensor(0.0)}
    x = Tensor([[5.0, 6.5]])
    given = {"a": Tensor([1, 2]), "b": x, "c": Tensor([[3.0]]).reshape(())}
    before = dict(model)
    load_state_dict(model, given)
    assert all(model[name] is before[name] for name in model)
    assert model["a"].tolist() == [1.0, 2.0] and model["a"].dtype.name == "float32"
    assert model["b"].tolist() == [[5, 6]] and model["b"].device == "PYTHON"
    assert model["c"].item() == 3.0
    assert x.tolist() == [[5.0, 6.5]]


def test_models_that_were_given_the_same_values_stay_apart() -> None:
    one, two = Layer(), Layer()
    one.weight.requires_grad = two.weight.requires_grad = True
    load_state_dict(two, get_state_dict(one))
    assert storage(one.weight._node).memory != storage(two.weight._node).memory
    (one.weight * 2 + two.weight * 3).sum().backward()
    assert one.weight.grad is not None and one.weight.grad.tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert two.weight.grad is not None and two.weight.grad.tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_what_was_computed_before_keeps_its_value() -> None:
    model = {"w": Tensor([1.0])}
    earlier = model["w"] * 2
    load_state_dict(model, {"w": Tensor([10.0])})
    assert (earlier.item(), (model["w"] * 2).item()) == (2.0, 20.0)


def test_misfits_are_all_named_and_nothing_changes() -> None:
    model = {"a": Tensor([1.0]), "b": Tensor([1.0]), "c": Tensor([1.0])}
    nodes = [tensor._node for tensor in model.values()]
    given = {"a": Tensor([2.0]), "b": Tensor([[2.0]]), "x": Tensor([2.0]), "y": Tensor([2.0])}
    with pytest.raises(InvalidValue) as caught:
        load_state_dict(model, given)
    for part in ("missing from the state dict: c", "not in the model: x, y", "b: [1, 1] given"):
        assert part in str(caught.value)
    with pytest.raises(InvalidValue, match="other shapes"):
        load_state_dict(model, given, strict=False)
    with pytest.raises(InvalidType, match="'a' is a ndarray"):
        load_state_dict(model, {"a": np.ones(1)}, strict=False)  # type: ignore[dict-item]
    assert [tensor._node for tensor in model.values()] == nodes
    load_state_dict(model, {"a": Tensor([2.0]), "x": Tensor([2.0])}, strict=False)
    assert [tensor.item() for tensor in model.values()] == [2.0, 1.0, 1.0]


def test_a_shared_tensor_needs_one_of_its_names() -> None:
    w = Tensor([1.0])
    load_state_dict({"embedding": w, "head": w}, {"embedding": Tensor([4.0])})
    assert w.item() == 4.0
    with pytest.raises(InvalidValue, match="embedding, head"):
        load_state_dict({"embedding": w, "head": w}, {})


def test_empty_tensors() -> None:
    model = {"e": Tensor(np.zeros((0, 2), np.float32))}
    load_state_dict(model, {"e": Tensor(np.ones((0, 2), np.float32))})
    assert model["e"].shape == (0, 2) and model["e"].tolist() == []


def test_verbose_logs_each_tensor(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "gpu"):
        load_state_dict({"w": Tensor([1.0])}, {"w": Tensor([2.0]), "x": Tensor([1])}, False, True)
    assert "not in the model: x" in caplog.text and "w: " in caplog.text


def test_save_and_load_a_model(tmp_path: Path) -> None:
    model, other = Model(), Model()
    load_state_dict(model, {n: t * 0 + i for i, (n, t) in enumerate(get_state_dict(model).items())})
    safe_save(get_state_dict(model), tmp_path / "model.safetensors")
    load_state_dict(other, safe_load(tmp_path / "model.safetensors"))
    assert other.layers[1].weight.tolist() == [[2.0] * 3] * 3
    assert not storage(other.layers[1].weight._node).read_only

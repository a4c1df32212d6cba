"""Models made here by `onnx.helper`: shapes computed in the graph, control, files, wrong ones."""

from __future__ import annotations

import contextlib
import copy
import pickle
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bounded import bounded
from gpu import Tensor, dtypes, jit
from gpu.core.errors import (
    DTypeError,
    FormatError,
    GpuError,
    InvalidType,
    InvalidValue,
    ShapeError,
    Unsupported,
)
from gpu.nn.onnx import load
from gpu.nn.state import get_state_dict

F32, I64 = 1, 7


@pytest.fixture(autouse=True)
def _onnx(need: Callable[[str], None]) -> None:
    need("onnx")


def made(
    nodes: list[Any],
    inputs: dict[str, Any],
    outputs: list[str],
    weights: dict[str, Any] | None = None,
    **more: Any,
) -> Any:
    """A model's proto; an input is a shape of float32, or a dtype and a shape."""
    from onnx import helper, numpy_helper

    taken = [
        helper.make_tensor_value_info(name, *(kind if isinstance(kind, tuple) else (F32, kind)))
        for name, kind in inputs.items()
    ]
    given = [helper.make_tensor_value_info(name, F32, None) for name in outputs]
    arrays = [numpy_helper.from_array(np.asarray(v), k) for k, v in (weights or {}).items()]
    graph = helper.make_graph(nodes, "g", taken, given, arrays)
    opset = helper.make_opsetid("", more.pop("opset", 21))
    return helper.make_model(graph, opset_imports=[opset], **more)


def node(kind: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    from onnx import helper

    return helper.make_node(kind, inputs.split(" "), outputs.split(" "), **attributes)


def flattening() -> Any:
    """x of (n, 3, 4) by heads: every size comes out of the graph itself, as exporters write it."""
    draw = np.random.default_rng(0)
    weights = {
        "w": draw.standard_normal((4, 6)).astype(np.float32),
        "zero": np.array(0),
        "axis": np.array([0]),
        "rest": np.array([3, 2, 3]),
        "half": np.array(0.5, np.float32),
    }
    nodes = [
        node("Shape", "x", "shape"),
        node("Gather", "shape zero", "n"),
        node("Unsqueeze", "n axis", "n1"),
        node("Concat", "n1 rest", "wanted", axis=0),
        node("MatMul", "x w", "y"),
        node("Reshape", "y wanted", "heads"),
        node("Mul", "heads half", "z"),
    ]
    return made(nodes, {"x": ["n", 3, 4]}, ["z"], weights)


def test_shapes_computed_in_the_graph() -> None:
    model = load(flattening().SerializeToString())
    assert model.inputs["x"].shape == ("n", 3, 4) and model.outputs == ("z",)
    weight = model.weights["w"].numpy()
    run = jit(model)
    draw = np.random.default_rng(1)
    for n in (2, 2, 2, 2, 5):
        x = draw.standard_normal((n, 3, 4)).astype(np.float32)
        found = run(Tensor(x)).numpy()
        np.testing.assert_allclose(
            found, (x @ weight).reshape(n, 3, 2, 3) / 2, rtol=1e-4, atol=1e-5
        )
    assert run.captures == 2  # one of each size: what is computed of sizes is no new program


def test_weights_are_trained() -> None:
    model = load(flattening().SerializeToString())
    assert sorted(get_state_dict(model)) == sorted(model.weights)
    weight = model.weights["w"]
    weight.requires_grad = True
    model(np.ones((2, 3, 4), np.float32)).sum().backward()
    assert weight.grad is not None
    np.testing.assert_allclose(weight.grad.numpy(), np.full((4, 6), 3.0))


def test_copies_and_pickles() -> None:
    model = load(flattening().SerializeToString())
    x = np.random.default_rng(2).standard_normal((2, 3, 4)).astype(np.float32)
    expected = model(x).numpy()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(other(x).numpy(), expected)
    assert repr(model) == "OnnxModel(x: float32['n', 3, 4] -> z)"


def test_control() -> None:
    from onnx import helper

    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [node("Add", "a x", "b"), node("Identity", "c", "c2"), node("Identity", "b", "row")],
        "body",
        [value("i", I64, []), value("c", 9, []), value("a", F32, [2])],
        [value("c2", 9, []), value("b", F32, [2]), value("row", F32, [2])],
    )
    branches = {
        name: helper.make_graph([node(kind, "last x", "r")], name, [], [value("r", F32, None)])
        for name, kind in (("then_branch", "Sub"), ("else_branch", "Add"))
    }
    nodes = [
        node("Loop", "three  x", "last rows", body=body),
        node("ReduceSum", "x", "total", keepdims=0),
        node("Greater", "total limit", "cond"),
        node("If", "cond", "out", **branches),
    ]
    weights = {"three": np.array(3), "limit": np.array(0, np.float32)}
    model = load(made(nodes, {"x": [2]}, ["out", "rows"], weights).SerializeToString())
    for x in (np.array([1.0, 2.0], np.float32), np.array([-1.0, -2.0], np.float32)):
        out, rows = model(x=x)
        np.testing.assert_array_equal(out.numpy(), 4 * x - x if x.sum() > 0 else 4 * x + x)
        np.testing.assert_array_equal(rows.numpy(), [2 * x, 3 * x, 4 * x])
    with pytest.raises(InvalidValue, match="inside a jitted function") as caught:
        jit(lambda x: model(x)[0])(Tensor([1.0, 2.0]))
    assert "in ONNX's If 'out'" in "".join(caught.value.__notes__)


def test_exported_by_torch(tmp_path: Path, need: Callable[[str], None]) -> None:
    need("torch")
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 8, 3, 2, 1)
            self.norm = torch.nn.BatchNorm2d(8)
            self.lstm = torch.nn.LSTM(8, 6, batch_first=True, bidirectional=True)
            self.layer = torch.nn.TransformerEncoderLayer(12, 3, 16, batch_first=True)

        def forward(self, x: Any) -> Any:
            x = self.norm(self.conv(x)).relu()
            x = torch.nn.functional.interpolate(x, scale_factor=1.5, mode="bilinear")
            x = x.flatten(2).transpose(1, 2)[:, ::5]
            return self.layer(self.lstm(x)[0]).mean(1)

    torch.manual_seed(0)
    theirs = Model().eval()
    path = tmp_path / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            theirs, (torch.randn(2, 3, 8, 8),), str(path), input_names=["x"], dynamo=False,
            dynamic_axes={"x": {0: "n"}},
        )  # fmt: skip
    model = load(path)
    for n in (2, 3):
        x = torch.randn(n, 3, 8, 8)
        expected = theirs(x).detach().numpy()
        np.testing.assert_allclose(model(x.numpy()).numpy(), expected, rtol=1e-3, atol=1e-5)


def with_files(folder: Path, **entries: str) -> Path:
    """A model whose weight lies in a file beside it."""
    proto = made([node("Add", "x w", "y")], {"x": [4]}, ["y"], {"w": np.zeros(4, np.float32)})
    weight = proto.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = 1
    for key, value in {"location": "weights.bin", **entries}.items():
        entry = weight.external_data.add()
        entry.key, entry.value = key, value
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_weights_in_another_file(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(np.arange(6, dtype=np.float32).tobytes())
    model = load(with_files(tmp_path, offset="8", length="16"))
    assert model(np.ones(4, np.float32)).tolist() == [3.0, 4.0, 5.0, 6.0]
    with pytest.raises(InvalidValue, match="'w' is in another file; load the model by its path"):
        load((tmp_path / "model.onnx").read_bytes())
    (tmp_path / "secret").write_bytes(bytes(16))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to(tmp_path / "secret")
    for location in ("../secret", str(tmp_path / "secret"), "link", "", "a\0b"):
        with pytest.raises(FormatError, match="which is not in the model's folder"):
            load(with_files(tmp_path / "in", location=location))
    for entries, message in (
        ({"offset": "16"}, "16 bytes from 16 on are not in"),
        ({"offset": "-8"}, "from -8 on are not in"),
        ({"length": "8"}, "takes 16 bytes, there are 8"),
        ({"offset": "x"}, "no number"),
    ):
        with pytest.raises(FormatError, match=message):
            load(with_files(tmp_path, **entries))
    with pytest.raises(FileNotFoundError):
        load(with_files(tmp_path, location="none.bin"))


def test_wrong_inputs() -> None:
    model = load(flattening().SerializeToString())
    x = np.ones((2, 3, 4), np.float32)
    for arguments, named, kind, message in (
        ((), {}, InvalidValue, "input x is missing"),
        ((x, x), {}, InvalidValue, "takes x, each once; got 2 by position"),
        ((x,), {"x": x}, InvalidValue, "got 1 by position and x by name"),
        ((), {"y": x}, InvalidValue, "and y by name"),
        ((x.astype(np.float64),), {}, DTypeError, "x.cast.dtypes.float32"),
        ((x[0],), {}, ShapeError, r"shape \[3, 4\], the model takes float32\['n', 3, 4\]"),
        ((x[:, :2],), {}, ShapeError, r"shape \[2, 2, 4\]"),
    ):
        with pytest.raises(kind, match=message):
            model(*arguments, **named)
    with pytest.raises(InvalidValue, match="on PYTHON, the model on CPU: pass x"):
        load(flattening().SerializeToString(), "CPU")(Tensor(x, device="PYTHON"))


def test_numbers_of_activations_go_over_both_directions() -> None:
    draw = np.random.default_rng(4)
    x, w, r = (draw.standard_normal(s).astype("f4") for s in ((5, 2, 3), (2, 4, 3), (2, 4, 4)))
    recurrent = node(
        "RNN", "x w r", "y", hidden_size=4, direction="bidirectional",
        activations=["LeakyRelu", "LeakyRelu"], activation_alpha=[0.1, 0.9],
    )  # fmt: skip
    model = load(made([recurrent], {"x": [5, 2, 3]}, ["y"], {"w": w, "r": r}).SerializeToString())
    found = model(x).numpy()
    for d, slope in enumerate((0.1, 0.9)):
        h = np.zeros((2, 4), np.float32)
        for t in range(5) if d == 0 else range(4, -1, -1):
            h = x[t] @ w[d].T + h @ r[d].T
            h = np.where(h < 0, slope * h, h)
            np.testing.assert_allclose(found[t, d], h, rtol=1e-4, atol=1e-4)


def test_softplus_of_infinities() -> None:
    model = load(made([node("Softplus", "x", "y")], {"x": [3]}, ["y"]).SerializeToString())
    assert model(np.array([-np.inf, 0, np.inf], np.float32)).tolist() == [
        0.0,
        np.log(2, dtype="f4"),
        np.inf,
    ]


def test_paths_that_are_none() -> None:
    for source in (5, None, ["a"]):
        with pytest.raises(InvalidType, match="named by a str or a path"):
            load(source)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        load("none.onnx")


def test_wrong_models() -> None:
    from onnx import helper, numpy_helper

    for content, kind, message in (
        (b"", FormatError, "no graph, or no opset_import"),
        (b"\xff" * 40, FormatError, "not an ONNX model, or it is damaged"),
        (made([node("Nil", "x", "y"), node("Any", "x", "z")], {"x": [1]}, ["y"]), Unsupported,
         "not computed here: Any, Nil"),
        (made([node("Relu", "q", "y")], {"x": [1]}, ["y"]), FormatError, "takes 'q', which no"),
        (made([node("Relu", "x", "y")], {"x": [1]}, ["z"]), FormatError, "'z' is made by nothing"),
        (made([node("Relu", "x", "y")], {"x": (23, [1])}, ["y"]), Unsupported, "FLOAT4E2M1"),
    ):  # fmt: skip
        data = content if isinstance(content, bytes) else content.SerializeToString()
        with pytest.raises(kind, match=message):
            load(data)
    for bad in ({"wrong": 1}, {"alpha": 1.0}):
        with pytest.raises(
            FormatError, match="Relu has inputs or attributes that it does not take"
        ):
            load(made([node("Relu", "x", "y", **bad)], {"x": [1]}, ["y"]).SerializeToString())(
                np.ones(1, np.float32)
            )
    proto = made([node("Relu", "x", "y")], {"x": [1]}, ["y"])
    for shape, message in (
        ((3,), "takes 12 bytes, there are 4"),
        ((-1,), "shape"),
        ((1,) * 40, "shape"),
    ):
        weight = numpy_helper.from_array(np.ones(1, np.float32), "w")
        del weight.dims[:]
        weight.dims.extend(shape)
        del proto.graph.initializer[:]
        proto.graph.initializer.append(weight)
        with pytest.raises(FormatError, match=message):
            load(proto.SerializeToString())
    narrow = helper.make_tensor("w", 22, [4], np.array([1, -2, 3, -8]))
    for kind, given, works in (("Add", "w x", False), ("DequantizeLinear", "w s", True)):
        proto = made([node(kind, given, "y")], {"x": [4]}, ["y"], {"s": np.array(0.5, np.float32)})
        proto.graph.initializer.append(narrow)
        if works:
            found = load(proto.SerializeToString())(np.ones(4, np.float32))
            assert found.tolist() == [0.5, -1.0, 1.5, -4.0]
        else:
            with pytest.raises(Unsupported, match="elements of 4 bits"):
                load(proto.SerializeToString())


def test_damaged_files() -> None:
    """Bytes changed at random: a typed error or a model, soon."""
    draw = random.Random(5)
    whole = flattening().SerializeToString()
    with bounded(30.0):
        for _ in range(400):
            data = bytearray(whole)
            for _ in range(draw.randint(1, 3)):
                data[draw.randrange(len(data))] = draw.randrange(256)
            with contextlib.suppress(GpuError):
                load(bytes(data))(Tensor.ones(2, 3, 4, dtype=dtypes.float32))

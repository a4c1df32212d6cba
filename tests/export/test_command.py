"""`gpu export`: what it writes, and how it fails. No browser is needed here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpu.cli.export.page import NAMES, STATIC
from gpu.cli.main import main
from gpu.nn.state import safe_load

LAYERS = '''
"""Layers.

The first paragraph
of text.

Not this."""
from gpu import Tensor

class Layers:
    def __init__(self):
        self.first = Tensor.randn(40, 40).realize()
        self.same = Tensor(self.first.numpy())
        self.unused = Tensor.ones(40, 40).realize()

    def __call__(self, x):
        for weight in (self.first, self.same, self.first, self.same):
            x = (x @ weight).contiguous().relu()
        return x, [x.sum(), x.max()]

model = Layers()
inputs = (Tensor.randn(7, 40),)
'''


def export(path: Path, text: str, *options: str) -> tuple[int, Path]:
    """The exit code for a model of this text, and the folder for its page."""
    file = path / "model.py"
    file.write_text(text)
    return main(["export", "webgpu", str(file), str(path / "out"), *options]), path / "out"


def test_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, folder = export(tmp_path, LAYERS)
    assert code == 0, capsys.readouterr().err
    assert {entry.name for entry in folder.iterdir()} == NAMES
    assert {entry.name for entry in tmp_path.iterdir()} >= {"model.py", "out"}
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]
    about: dict[str, Any] = json.loads((folder / "model.json").read_text())
    assert (about["title"], about["text"]) == ("Layers.", "The first paragraph of text.")
    assert about["inputs"]["x"] == {"dtype": "float32", "shape": [7, 40], "slot": 0}
    assert list(about["outputs"]) == ["output0", "output1.0", "output1.1"]
    files = {kernel["file"] for kernel in about["kernels"]}
    assert files == {f"kernels/{name}" for name in os.listdir(folder / "kernels")}
    out = capsys.readouterr().out
    assert "x float32[7, 40]" in out and f"python3 -m http.server -d {folder}" in out


def test_weights_are_written_once_and_if_read(tmp_path: Path) -> None:
    _, folder = export(tmp_path, LAYERS)
    weights = safe_load(folder / "weights.safetensors")
    assert list(weights) == ["first"] and weights["first"].shape == (40, 40)


def test_intermediate_values_share_memory(tmp_path: Path) -> None:
    _, folder = export(tmp_path, LAYERS)
    about = json.loads((folder / "model.json").read_text())
    results = {tensor["slot"] for tensor in about["outputs"].values()}
    kept = results | {about["inputs"]["x"]["slot"]} | set(about["weights"].values())
    shared = [size for slot, size in enumerate(about["slots"]) if slot not in kept]
    assert 0 < len(shared) < 3 < len(about["steps"])
    assert about["limits"]["maxStorageBufferBindingSize"] == max(about["slots"])


def test_every_binding_has_a_buffer(tmp_path: Path) -> None:
    _, folder = export(tmp_path, LAYERS)
    about = json.loads((folder / "model.json").read_text())
    for number, slots, values in about["steps"]:
        kernel = about["kernels"][number]
        text = (folder / kernel["file"]).read_text()
        assert text.count("@binding(") == len(slots) == len(kernel["written"])
        assert [f"var<storage, {'read_write' if w else 'read'}> p{i}:" in text
                for i, w in enumerate(kernel["written"])] == [True] * len(slots)  # fmt: skip
        assert values == []
        assert f"fn {kernel['entry']}(" in text and "enable f16" not in text
        assert all(0 <= slot < len(about["slots"]) for slot in slots)


def test_example_is_what_python_computes(tmp_path: Path) -> None:
    _, folder = export(
        tmp_path,
        "from gpu import Tensor\nimport numpy as np\n"
        "inputs = {'x': np.float32([1, 2]), 'h': Tensor([0.5]).half()}\n"
        "def model(h, x):\n    return {'y': x * h}\n",
    )
    example = safe_load(folder / "example.safetensors")
    assert {name: tensor.numpy().tolist() for name, tensor in example.items()} == {
        "inputs.x": [1, 2], "inputs.h": [0.5], "outputs.y": [0.5, 1],
    }  # fmt: skip
    assert example["inputs.h"].dtype.name == "float32", "JavaScript has no float16"


def test_nothing_comes_from_elsewhere(tmp_path: Path) -> None:
    _, folder = export(tmp_path, LAYERS)
    for name in STATIC:
        for line in (folder / name).read_text().splitlines():
            outside = [word for word in line.split() if "://" in word]
            allowed = ("https://", "http://localhost", "http://localhost:8000", "chrome://gpu")
            assert all(word.strip('`";,.)(').startswith(allowed) for word in outside), line


def test_f16_is_asked_for(tmp_path: Path) -> None:
    _, folder = export(tmp_path, LAYERS, "--f16")
    about = json.loads((folder / "model.json").read_text())
    assert about["features"] == ["shader-f16"]
    assert (folder / about["kernels"][0]["file"]).read_text().startswith("enable f16;")


# What goes wrong. None of it leaves anything behind.

X = "from gpu import Tensor\ninputs = {'x': Tensor([1.0])}\n"
BAD: dict[str, tuple[str, str]] = {
    "no model": (X, "defines no 'model'"),
    "no inputs": ("def model(x): return x", "defines no 'inputs'"),
    "syntax": ("def model(x:", "is no Python program: '(' was never closed"),
    "not callable": (X + "model = 5", "model is a int, which cannot be called"),
    "arguments": (X + "def model(y): return y", "model does not take these inputs: missing"),
    "kind of inputs": ("inputs = 5\ndef model(x): return x", "inputs is a int; make it a dict"),
    "input": ("inputs = {'x': 5}\ndef model(x): return x", "inputs['x'] is a int; make it a"),
    "float64": (
        "import numpy as np\ninputs = [np.zeros(3)]\ndef model(x): return x",
        "inputs['x'] is float64, which WebGPU does not have",
    ),
    "complex": (
        "import numpy as np\ninputs = [np.zeros(3, complex)]\ndef model(x): return x",
        "inputs['x'] is complex128, and pages have no complex numbers",
    ),
    "exit": ("import sys\nsys.exit(3)", "ends the process while it is loaded, with 3"),
    "float64 inside": (
        X + "def model(x): return (x.cast('float64') * 2).cast('float32')",
        "computes cast in float64, which WebGPU does not have",
    ),
    "of the host": (
        X + "from gpu import linalg\ndef model(x): return linalg.svdvals(x.reshape(1, 1))",
        "the exported function has svdvals, which is computed by the LAPACK of the host",
    ),
    "multiple": (
        "from gpu import Var\ninputs = {'n': Var('n', 0, 8, multiple_of=4).bind(4)}\n"
        "def model(n): return n",
        "make it a variable itself, without multiple_of",
    ),
    "result": (X + "def model(x): return x.shape", "model returns a int as output0"),
    "no result": (X + "def model(x): return {}", "has to return at least one tensor"),
    "value": (X + "def model(x): return x * x.item()", "inside a jitted function"),
    "leak": (
        X + "kept = []\ndef model(x):\n    kept.append(x * 2)\n    return kept[0] + x",
        "kept in another way than by returning it",
    ),
    "changes": (
        X + "calls = []\ndef model(x):\n    calls.append(1)\n    return x * len(calls)",
        "something else when it was called a second time",
    ),
    "written input": (
        X + "def model(x):\n    x += 1\n    return x",
        "writes to its input 'x'",
    ),
    "gradient": (
        X + "w = Tensor([2.0], requires_grad=True)\n"
        "def model(x):\n    loss = (x * w).sum()\n    loss.backward()\n    return loss",
        "leaves a gradient in a tensor of shape [1]",
    ),
    "devices": (
        X + "w = Tensor([1.0, 2.0]).shard(('CPU', 'CPU:1'), 0)\n"
        "def model(x): return (w * 2).to('CPU') + x",
        "uses a tensor on several devices",
    ),
    "sizes": (
        X + "from gpu import Var\nn = Var('n', 1, 5).bind(2)\nw = Tensor.ones(5)\n"
        "def model(x): return w[:n] + x",
        "keeps a tensor of shape [n]",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_models(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    text, message = BAD[name]
    code, _ = export(tmp_path, text)
    error = capsys.readouterr().err
    assert code == 1 and message in error and error.count("\n") == 1, error
    assert os.listdir(tmp_path) == ["model.py"]


def test_no_such_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "webgpu", str(tmp_path / "none.py"), str(tmp_path / "out")]) == 1
    assert "none.py: cannot be read, No such file" in capsys.readouterr().err


def test_a_model_without_an_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "webgpu", "/dev/zero", str(tmp_path / "out")]) == 1
    assert "/dev/zero: is a device" in capsys.readouterr().err


def test_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = X + "def model(x): return x + 1"
    (tmp_path / "out").mkdir()
    code, folder = export(tmp_path, text)
    assert code == 0, "an empty folder is as good as none"
    before = (folder / "model.json").read_bytes()
    assert export(tmp_path, text)[0] == 1
    assert "holds 'demo.js' already" in capsys.readouterr().err
    assert export(tmp_path, X + "def model(x): return x.item()", "--force")[0] == 1
    assert (folder / "model.json").read_bytes() == before, "the old one stays until then"
    assert export(tmp_path, X + "def model(x): return x * 7, x", "--force")[0] == 0
    assert (folder / "model.json").read_bytes() != before
    (folder / "precious.txt").write_text("mine")
    capsys.readouterr()
    assert export(tmp_path, text, "--force")[0] == 1
    assert "holds 'precious.txt', which is not of an export" in capsys.readouterr().err
    assert (folder / "precious.txt").exists()
    assert sorted(os.listdir(tmp_path)) == ["model.py", "out"]


def test_places_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "circle").symlink_to("circle")
    for place, message in {
        tmp_path / "file": "is a file",
        tmp_path / "no" / "out": "there is no folder",
        tmp_path / "circle": "a link that leads back to itself",
    }.items():
        assert main(["export", "webgpu", "model.py", str(place)]) == 1
        assert message in capsys.readouterr().err


def test_full_disk_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpu.cli.export import page

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(page, "safe_save", full)
    code, _ = export(tmp_path, X + "def model(x): return x + 1")
    assert code == 1 and "cannot be written, No space left" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["model.py"]


def test_formats_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["export"])
    assert "FORMAT" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["export", "webgpu", "--help"])
    assert "example inputs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("\n\nnumber = [][3]", "line 3, in <module>: IndexError"),
        (
            "from gpu import Tensor\ninputs = {'x': Tensor([1.0])}\n"
            "def helper(x):\n    return x.no_such_thing\n\ndef model(x):\n    return helper(x)\n",
            "line 4, in helper: AttributeError",
        ),
    ],
)
def test_errors_of_the_file_itself_are_told_by_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, where: str
) -> None:
    code, folder = export(tmp_path, text)
    told = capsys.readouterr().err
    assert code == 1 and not folder.exists()
    assert f"model.py, {where}" in told and "DEBUG=2" in told and "Traceback" not in told


def test_errors_of_ours_name_the_line_that_led_to_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        "from gpu import Tensor\ninputs = {'x': Tensor([1.0])}\n"
        "def model(x):\n    return x.reshape(7)\n"
    )
    assert export(tmp_path, text)[0] == 1
    assert "model.py, line 4, in model: shape [1] has 1 elements" in capsys.readouterr().err

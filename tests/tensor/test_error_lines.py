"""Errors name the line of the user's code that led to them."""

from __future__ import annotations

import gc
import inspect
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpu
from gpu import Device, Tensor, jit, nn
from gpu.core.dtype import dtypes
from gpu.core.errors import (
    CompileError,
    DeviceMismatch,
    DTypeError,
    GpuError,
    InvalidIndex,
    OutOfMemory,
    ShapeError,
    Unsupported,
)
from gpu.runtime import origins

X = Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
CALLS: list[tuple[Callable[[], Any], type[GpuError]]] = [
    (lambda: X @ X, ShapeError),
    (lambda: X + Tensor.ones(4), ShapeError),
    (lambda: X.reshape(7), ShapeError),
    (lambda: X & 1, DTypeError),
    (lambda: Tensor.zeros(2, dtype="float31"), DTypeError),
    (lambda: X + Tensor.ones(3, device="PYTHON"), DeviceMismatch),
    (lambda: X.to("CUPS"), GpuError),
    (lambda: X[5], InvalidIndex),
    (lambda: X[0, [9]], InvalidIndex),
    (lambda: X.sum(axis=3), InvalidIndex),
    (lambda: X.sum(dim=3), InvalidIndex),  # type: ignore[call-arg]
    (lambda: nn.Linear(4, 2)(X), ShapeError),
    (lambda: nn.GroupNorm(4, 6), GpuError),
    (lambda: nn.optim.SGD([], lr=0.1), GpuError),
    (lambda: X.backward().grad, GpuError),
    (lambda: Tensor.einsum("ij,jk", X), GpuError),
    (lambda: list(map(Tensor.item, [X])), ShapeError),
    (lambda: Tensor.ones(1 << 45).contiguous().realize(), OutOfMemory),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "error"), CALLS, ids=[str(c[0].__code__.co_firstlineno) for c in CALLS]
)
def test_the_line_of_the_call(call: Callable[[], Any], error: type[GpuError]) -> None:
    line = call.__code__.co_firstlineno
    text = inspect.getsource(call).splitlines()[0].strip()
    with pytest.raises(error) as caught:
        call()
    assert caught.value.call_site == (__file__, line)
    assert str(caught.value).endswith(f":{line}: {text})")
    assert str(caught.value).startswith(f"{caught.value.message} (at ")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def _inner(x: Tensor) -> Tensor:
    return x @ x  # the innermost line


def _line_of(function: Callable[..., Any], words: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if words in line)


def test_of_nested_functions_the_innermost_line() -> None:
    with pytest.raises(ShapeError) as caught:
        sorted([X], key=lambda x: _inner(x).sum().item())
    assert caught.value.call_site == (__file__, _line_of(_inner, "innermost"))


def test_of_a_jitted_function_the_line_inside() -> None:
    @jit
    def step(x: Tensor) -> Tensor:
        y = x * 2
        return y + Tensor.ones(7)  # the wrong line

    with pytest.raises(ShapeError) as caught:
        step(X)
    assert caught.value.call_site is not None
    assert str(caught.value.call_site).endswith("# the wrong line")


def test_of_an_error_when_computing_the_line_that_asks_for_the_value() -> None:
    y = Tensor.ones(1 << 45).contiguous() + 1
    with pytest.raises(OutOfMemory) as caught:
        y.numpy()
    assert str(caught.value).endswith(": y.numpy())")


def notes(error: BaseException) -> str:
    """What an error says besides its text, without the names of files."""
    return re.sub(r"\S*test_error_lines.py:\d+: ", "", "".join(getattr(error, "__notes__", [])))


def test_of_an_error_when_computing_also_the_line_that_made_it() -> None:
    huge = Tensor.ones(1 << 44, dtype="int32").contiguous()  # here
    alike = Tensor.ones(1 << 44, dtype="int32").contiguous()  # the same node: it was made above
    with pytest.raises(OutOfMemory) as caught:
        Tensor.realize(huge + 2, alike)
    first, second = notes(caught.value).split("\n  and at ")
    assert first == "while computing what was made at Tensor.realize(huge + 2, alike)"
    assert second == 'huge = Tensor.ones(1 << 44, dtype="int32").contiguous()  # here'


def test_of_what_a_device_lacks_the_line_that_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = Device["PYTHON"].renderer
    native = replace(renderer.target.native, lacking=frozenset({dtypes.float64}))
    monkeypatch.setattr(renderer, "target", replace(renderer.target, native=native))
    x = Tensor([1.0, 2.0, 3.0, 4.0, 5.0], device="PYTHON") * 3
    wide = x.cast("float64")  # too wide
    y = (wide + 1).cast("float32").exp()
    with pytest.raises(Unsupported, match="no float64") as caught:
        y.numpy()
    assert notes(caught.value).endswith('made at wide = x.cast("float64")  # too wide')


def test_of_a_kernel_that_cannot_be_compiled_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object, program: object) -> str:
        raise CompileError("no such instruction")

    x = Tensor(np.ones((5, 3), np.float32)).realize()
    inner = (x.sin() @ x.T).contiguous()  # a kernel of its own
    y = inner.log() + 0.123
    monkeypatch.setattr(type(Device["CPU"].renderer), "render", fail)
    with pytest.raises(CompileError) as caught:
        y.realize()
    assert notes(caught.value).endswith("@ x.T).contiguous()  # a kernel of its own")


def test_lines_are_forgotten_with_what_they_made() -> None:
    gc.collect()
    before = len(list(origins.known_origins()))
    for number in range(100):
        (X + number).sum()
    gc.collect()
    assert len(list(origins.known_origins())) < before + 10


def test_without_a_file_the_place_alone() -> None:
    root = Path(gpu.__file__).parents[1]
    code = "\nfrom gpu import Tensor\n\nTensor.ones(3)[5]"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, check=False, capture_output=True, text=True
    )  # fmt: skip
    assert done.stderr.rstrip().endswith("(at <string>:4)")


def test_a_file_below_the_working_directory_is_named_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "models" / "train.py"
    script.parent.mkdir()
    script.write_text("def run(x):\n    return x @ x\n")
    names: dict[str, Any] = {}
    exec(compile(script.read_text(), str(script), "exec"), names)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ShapeError) as caught:
        names["run"](X)
    assert str(caught.value).endswith(" (at models/train.py:2: return x @ x)")


NONSENSE = [object(), "nonsense", -99, (1, 2, 3, 4, 5), None, 2.5, [[1.0]] * 3, b"", {1: 2}]
# They have no arguments to misuse, or take what a user defines.
NOT_MISUSED = {"sequential", "from_blob", "from_dlpack", "manual_seed", "train"}
METHODS = [
    name for name in dir(Tensor)
    if not name.startswith("_") and name not in NOT_MISUSED and callable(getattr(Tensor, name))
]  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_nonsense_is_refused_by_name_of_the_line(name: str) -> None:
    for value in NONSENSE:
        for count in range(4):
            x = Tensor([[1.0, 2.0], [3.0, 4.0]])
            try:
                getattr(x, name)(*[value] * count)
            except GpuError as error:
                assert error.call_site is not None and error.call_site.file == __file__
                assert isinstance(error, ValueError | TypeError | IndexError | MemoryError), error
            except TypeError as error:
                assert "argument" in str(error), f"{name}{(value,) * count}: {error}"

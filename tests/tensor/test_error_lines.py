"""Errors name the line of the user's code that led to them."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpu
from gpu import Tensor, jit, nn
from gpu.core.errors import (
    DeviceMismatch,
    DTypeError,
    GpuError,
    InvalidIndex,
    OutOfMemory,
    ShapeError,
)

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
    with pytest.raises(OutOfMemory, match=r"\(at .*test_error_lines.py:\d+: y.numpy\(\)\)$"):
        y.numpy()


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
    if not name.startswith("_") and name not in NOT_MISUSED and callable(getattr(X, name))
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

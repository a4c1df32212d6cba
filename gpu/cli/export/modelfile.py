"""The file that says what to export: a Python program that defines `model` and `inputs`."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu.compiler.ir.dims import Symbol, find_symbols, has_symbols
from gpu.compiler.ir.index.expression import Expr
from gpu.core.dtype import dtypes
from gpu.core.errors import GpuError, InvalidType, InvalidValue, Unsupported
from gpu.core.files import read_bytes
from gpu.tensor.jit import Jit
from gpu.tensor.nn.state import get_state_dict
from gpu.tensor.tensor import Tensor

_MODULE: Final = "__gpu_export__"


class Model(NamedTuple):
    """What a file exports.

    Attributes:
        function: named inputs to named outputs.
        inputs: examples of tensors, by name.
        values: the other inputs, which are whole numbers, as variables with example values.
        title: of the page.
        text: what the page says below it, may be empty.
        names: of tensors that the function uses, by their identity.
    """

    function: Callable[[dict[str, Tensor]], dict[str, Tensor]]
    inputs: dict[str, Tensor]
    values: dict[str, Symbol]
    title: str
    text: str
    names: dict[int, str]


def load_model(path: Path) -> Model:
    """Runs a file and reads what it defines.

    Raises InvalidValue for a file that cannot be read or is no Python, InvalidType and InvalidValue
    where it does not define what it should, InvalidValue for what its code raises.
    """
    namespace = _run(path)
    for name in ("model", "inputs"):
        if name not in namespace:
            raise InvalidValue(
                f"{path} defines no {name!r}; it has to define a function 'model' and its example"
                " 'inputs', see gpu export webgpu --help"
            )
    model = namespace["model"]
    if not callable(model):
        raise InvalidType(
            f"{path}: model is a {type(model).__name__}, which cannot be called; make it a"
            " function of tensors"
        )
    function = model.function if isinstance(model, Jit) else model
    given, call = _with_names(path, function, namespace["inputs"])
    values = {n: _variable(path, n, v) for n, v in given.items() if isinstance(v, Expr)}
    inputs = {n: _tensor(path, n, v) for n, v in given.items() if n not in values}
    title, _, text = inspect.cleandoc(namespace["__doc__"] or path.stem).partition("\n\n")
    return Model(
        lambda tensors: named_outputs(path, _called(path, call, given | tensors)),
        inputs,
        values,
        " ".join(title.split()),
        " ".join(text.partition("\n\n")[0].split()),
        _names_of_tensors(model),
    )


def _called(path: Path, call: Callable[[dict[str, Any]], Any], inputs: dict[str, Any]) -> object:
    with _located(path):
        return call(inputs)


def _run(path: Path) -> dict[str, Any]:
    """The names that a file defines. Modules beside it can be imported, as when it is a script."""
    if path.is_char_device():
        raise InvalidValue(f"{path}: is a device, which may have no end; name a file")
    try:
        source = read_bytes(path)
    except OSError as error:
        raise InvalidValue(f"{path}: cannot be read, {error.strerror}; name a file") from error
    try:
        code = compile(source, str(path), "exec")
    except (SyntaxError, ValueError) as error:
        raise InvalidValue(f"{path}: is no Python program: {error}") from error
    module = types.ModuleType(_MODULE)
    module.__file__ = str(path)
    sys.modules[_MODULE] = module  # where dataclasses look for the module of a class
    sys.path.insert(0, os.path.abspath(path.parent))
    try:
        with _located(path):
            exec(code, module.__dict__)
    except SystemExit as error:
        raise InvalidValue(
            f"{path}: ends the process while it is loaded, with {error.code!r}; leave the call of"
            " exit out, or under if __name__ == '__main__'"
        ) from error
    return module.__dict__


@contextlib.contextmanager
def _located(path: Path) -> Iterator[None]:
    """Errors that the file's code leads to, with the line they come from.

    This package's keep their type; of others InvalidValue is raised, with them as its cause.
    """
    try:
        yield
    except GpuError as error:
        error.args = (f"{path}, {_line_of(path, error)}: {error.message}",)
        raise
    except Exception as error:  # whatever other people's code raises
        raise InvalidValue(
            f"{path}, {_line_of(path, error)}: {type(error).__name__}: {error}; with DEBUG=2 the"
            " whole traceback is shown"
        ) from error


def _line_of(path: Path, error: BaseException) -> str:
    """The innermost line of the file that led to an error, in words."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame for frame in frames if frame.filename == str(path)]
    return f"line {lines[-1].lineno}, in {lines[-1].name}" if lines else "when it is called"


# Inputs.


def _with_names(
    path: Path, function: Callable[..., Any], given: object
) -> tuple[dict[str, object], Callable[[dict[str, Any]], Any]]:
    """`inputs` by the names of the function's arguments, and how it is called with such."""
    if not isinstance(given, (dict, tuple, list)):
        raise InvalidType(
            f"{path}: inputs is a {type(given).__name__}; make it a dict of tensors by the names of"
            " model's arguments, or a tuple of tensors"
        )
    positional = () if isinstance(given, dict) else given
    named = given if isinstance(given, dict) else {}
    try:
        signature = inspect.signature(function)
        signature.bind(*positional, **named)
    except (TypeError, ValueError) as error:
        raise InvalidValue(
            f"{path}: model does not take these inputs: {error}; give one for each argument"
        ) from error
    if isinstance(given, dict):
        return dict(given), lambda inputs: function(**inputs)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in signature.parameters.values() if p.kind in kinds][: len(given)]
    names += [f"input{i}" for i in range(len(names), len(given))]
    return dict(zip(names, given, strict=True)), lambda inputs: function(*inputs.values())


def _variable(path: Path, name: str, value: Expr) -> Symbol:
    found: dict[str, Symbol] = {}
    find_symbols(value, found)
    symbols = list(found.values())
    if len(symbols) != 1 or value is not symbols[0].as_expr or "." in symbols[0].name:
        raise Unsupported(
            f"{path}: inputs[{name!r}] is {value}; make it a variable itself, without multiple_of,"
            " as by Var('position', 0, 511).bind(3)"
        )
    return symbols[0]


def _tensor(path: Path, name: str, value: object) -> Tensor:
    if not isinstance(value, (Tensor, np.ndarray)):
        raise InvalidType(
            f"{path}: inputs[{name!r}] is a {type(value).__name__}; make it a Tensor, a numpy array"
            " or a variable with a value, as by Var('position', 0, 511).bind(3) (what does not"
            " change between runs belongs into the function)"
        )
    tensor = value if isinstance(value, Tensor) else _converted(path, name, value)
    if not isinstance(tensor.device, str):
        raise Unsupported(
            f"{path}: inputs[{name!r}] is on several devices; a page has one: give it on 'CPU'"
        )
    if has_symbols(tensor.shape):
        raise Unsupported(
            f"{path}: inputs[{name!r}] has the shape {list(tensor.shape)}, but inputs have fixed"
            " sizes: give it numbers, and slice it inside the function"
        )
    _refuse_float64(path, f"inputs[{name!r}]", tensor)
    return tensor


def _converted(path: Path, name: str, value: npt.NDArray[Any]) -> Tensor:
    try:
        return Tensor(value)
    except (TypeError, ValueError) as error:
        raise InvalidType(
            f"{path}: inputs[{name!r}], an array of {value.dtype}, cannot be a tensor: {error}"
        ) from error


def _refuse_float64(path: Path, what: str, tensor: Tensor) -> None:
    if tensor.dtype.is_complex:
        raise Unsupported(
            f"{path}: {what} is {tensor.dtype.name}, and pages have no complex numbers; make it"
            " floats, as by .view_as_real()"
        )
    if tensor.dtype is dtypes.float64:
        raise Unsupported(
            f"{path}: {what} is float64, which WebGPU does not have; make it float32, as by"
            " .cast('float32') or .astype('float32')"
        )


# Outputs.


def named_outputs(path: Path, result: object) -> dict[str, Tensor]:
    """The tensors of a function's result by name: `output` for one that has none."""
    if isinstance(result, (tuple, list)) and not hasattr(result, "_fields"):
        result = {f"output{number}": item for number, item in enumerate(result)}
    found = list(_outputs(path, "", result))
    named = dict(found)
    if not named or len(named) < len(found):
        raise InvalidValue(
            f"{path}: model returns {[name for name, _ in found]}; it has to return at least one"
            " tensor, and each under a name of its own"
        )
    return named


def _outputs(path: Path, name: str, value: object) -> Iterator[tuple[str, Tensor]]:
    """The tensors in `value`, which is called `name`."""
    dot = f"{name}." if name else ""
    if isinstance(value, Tensor):
        _refuse_float64(path, f"model's {name or 'output'}", value)
        yield name or "output", value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _outputs(path, f"{dot}{key}", item)
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for key, item in zip(value._fields, value, strict=True):
            yield from _outputs(path, f"{dot}{key}", item)
    elif isinstance(value, (tuple, list)):
        for number, item in enumerate(value):
            yield from _outputs(path, f"{dot}{number}", item)
    else:
        raise InvalidType(
            f"{path}: model returns a {type(value).__name__}{f' as {name}' if name else ''}; it has"
            " to return tensors, in tuples, lists and dicts"
        )


# Names.


def _names_of_tensors(model: object) -> dict[int, str]:
    """How the tensors that a function or an object uses may be called, by identity."""
    function = model.function if isinstance(model, Jit) else model
    names: dict[int, str] = {}
    for name, value in _things_in(function):
        if isinstance(value, (types.ModuleType, types.FunctionType, type, Jit)):
            continue
        with contextlib.suppress(InvalidValue):  # two tensors of one name: these have none
            for path, tensor in get_state_dict(value, name).items():
                names.setdefault(id(tensor), path)
    return names


def _things_in(function: object) -> Iterator[tuple[str, object]]:
    """What a function gets from around it, with the names that it has there."""
    if isinstance(function, types.MethodType):
        yield "", function.__self__
    elif isinstance(function, types.FunctionType):
        code = function.__code__
        cells = function.__closure__ or ()
        yield from ((n, c.cell_contents) for n, c in zip(code.co_freevars, cells, strict=True))
        found = (name for name in code.co_names if name in function.__globals__)
        yield from ((name, function.__globals__[name]) for name in found)
    else:
        yield "", function

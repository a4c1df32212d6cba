"""Running ONNX models; `load` and what it gives."""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Final

import numpy as np

from gpu.core.errors import (
    DTypeError,
    FormatError,
    GpuError,
    InvalidValue,
    ShapeError,
    Unsupported,
)
from gpu.core.files import map_file
from gpu.runtime.device import Device
from gpu.tensor.onnx.reading import Function, Graph, Input, Operation, Path, Reader
from gpu.tensor.onnx.table import OPS, Op
from gpu.tensor.onnx.values import HOST_ELEMENTS, Array, Value, number_of, one
from gpu.tensor.scan import scan
from gpu.tensor.tensor import Tensor
from gpu.tensor.tracing import tracing_inside

Scope = MutableMapping[str, Value]

_HOST: Final = "PYTHON"
_WITH_GRAPHS: Final = ("If", "Loop", "Scan", "SequenceMap", "Constant")
_FOR_NARROW: Final = ("DequantizeLinear", "Gather", "Identity", "Reshape", "Transpose")
_KEPT: Final = 4096  # different arrays
_MAX_DEPTH: Final = 64  # of functions in functions


class OnnxModel:
    """A model of a file: call it with its inputs, by position or by name.

    A call is a program of tensors as if it were written by hand: lazy, differentiable, and compiled
    once in a `jit`. Weights are found by `gpu.nn.state.get_state_dict` and may be trained. What
    depends on values, as the length of `NonZero`'s result or a condition, is read from the device
    and raises JitError in a `jit`.

    Attributes:
        inputs: dtype and shape of what it takes by name, without the weights.
        outputs: the names of its results.
        weights: its tensors by name.
        metadata: free text of whoever wrote the file.
        opset: the version of ONNX's operators that it is written for.
        device: where its weights are.
    """

    def __init__(self, proto: Any, folder: str | None, device: str):
        reader = Reader(folder, device)
        self.device = device
        self._reader = reader
        self._opsets = {_domain(e.domain): e.version for e in proto.opset_import}
        self.opset = self._opsets.get("", 1)
        self.metadata = {entry.key: entry.value for entry in proto.metadata_props}
        self._functions = {(_domain(f.domain), f.name): reader.function(f) for f in proto.functions}
        self._graph = reader.graph(proto.graph)
        self.weights = self._graph.tensors
        self.inputs = {
            name: value
            for name, value in self._graph.inputs.items()
            if name not in self._graph.tensors and name not in self._graph.arrays
        }
        self.outputs = self._graph.outputs
        self._kept = _Kept()
        self._check(self._graph, set())

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """The model's results: one value, or a tuple where it has several.

        Inputs are tensors of the model's device, or what makes one; sequences are lists.

        Raises InvalidValue, DTypeError and ShapeError for inputs that do not fit.
        """
        given = dict(zip(self.inputs, inputs, strict=False))
        unknown = [name for name in named if name not in self.inputs or name in given]
        if unknown or len(inputs) > len(self.inputs):
            raise InvalidValue(
                f"the model takes {', '.join(self.inputs) or 'nothing'}, each once; got"
                f" {len(inputs)} by position and {', '.join(named) or 'none'} by name"
            )
        given.update(named)
        self._kept.forget()
        missing = [name for name in self.inputs if name not in given]
        if missing:
            raise InvalidValue(f"the model's input {', '.join(missing)} is missing")
        scope: Scope = {name: self._taken(name, value) for name, value in given.items()}
        results = [self._on_device(value) for value in self._run(self._graph, scope, 0)]
        return results[0] if len(results) == 1 else tuple(results)

    def named_parts(self) -> Iterable[tuple[str, object]]:
        """The weights, by the names that the file has for them."""
        return self.weights.items()

    def __repr__(self) -> str:
        taken = ", ".join(f"{name}: {_shown(value)}" for name, value in self.inputs.items())
        return f"OnnxModel({taken} -> {', '.join(self.outputs)})"

    def _taken(self, name: str, value: Any) -> Value:
        if value is None:
            return None
        if isinstance(value, (list, tuple)) and self.inputs[name].dtype is None:
            return [self._taken(name, item) for item in value]
        wanted = self.inputs[name]
        tensor = value if isinstance(value, Tensor) else Tensor(value, device=self.device)
        if wanted.dtype is not None and tensor.dtype is not wanted.dtype:
            raise DTypeError(
                f"input {name!r} is {tensor.dtype.name}, the model takes {wanted.dtype.name}:"
                f" pass x.cast(dtypes.{wanted.dtype.name})"
            )
        if tensor.device != self.device:
            raise InvalidValue(
                f"input {name!r} is on {tensor.device}, the model on {self.device}:"
                f" pass x.to({self.device!r})"
            )
        shape = wanted.shape
        if shape is not None and (
            len(shape) != tensor.ndim
            or any(isinstance(n, int) and n != m for n, m in zip(shape, tensor.shape, strict=True))
        ):
            raise ShapeError(
                f"input {name!r} has shape {list(tensor.shape)}, the model takes {_shown(wanted)}"
            )
        return tensor

    def _run(self, graph: Graph, scope: Scope, depth: int) -> list[Value]:
        for name, tensor in graph.tensors.items():
            scope.setdefault(name, tensor)
        for name, array in graph.arrays.items():
            if name not in graph.tensors or array.dtype.kind in "biu":
                scope[name] = array
        self._steps(graph.operations, scope, graph.arrays, {}, self._opsets, depth)
        return [_found(scope, name) for name in graph.outputs]

    def _steps(
        self, operations: tuple[Operation, ...], scope: Scope, arrays: Mapping[str, Array],
        around: Mapping[str, Any], opsets: Mapping[str, int], depth: int,
    ) -> None:  # fmt: skip
        for operation in operations:
            try:
                results = self._step(operation, scope, arrays, around, opsets, depth)
            except GpuError as error:
                error.add_note(
                    f"in ONNX's {operation.kind} {operation.name or operation.outputs[0]!r}"
                )
                raise
            for name, value in zip(operation.outputs, results, strict=False):
                if name:
                    scope[name] = value

    def _step(
        self, operation: Operation, scope: Scope, arrays: Mapping[str, Array],
        around: Mapping[str, Any], opsets: Mapping[str, int], depth: int,
    ) -> list[Value]:  # fmt: skip
        attributes = dict(operation.attributes)
        attributes.update(
            (name, around[source])
            for name, source in operation.references.items()
            if source in around
        )
        inputs = [_found(scope, name) if name else None for name in operation.inputs]
        own = self._functions.get((operation.domain, operation.kind))
        if own is not None:
            return self._call(own, inputs, attributes, depth)
        if operation.domain == "" and operation.kind in _WITH_GRAPHS:
            return self._with_graphs(operation.kind, inputs, attributes, scope, depth)
        op = OPS.get(operation.kind) if operation.domain == "" else None
        if op is None:
            function = self._standard(operation, inputs, opsets)
            return self._call(function, inputs, attributes, depth)
        for place in op.host:  # a weight that says how, as a factor of Resize, is known here
            if place < len(inputs) and operation.inputs[place] in arrays:
                inputs[place] = arrays[operation.inputs[place]]
        return self._computed(op, operation, inputs, attributes, opsets.get("", self.opset))

    def _computed(
        self,
        op: Op,
        operation: Operation,
        inputs: list[Value],
        attributes: dict[str, Any],
        opset: int,
    ) -> list[Value]:
        asked = {"opset": opset, "outputs": len(operation.outputs), "device": self.device}
        attributes.update((name, asked[name]) for name in op.asked)
        present = [value for value in inputs if value is not None]
        at_once = (
            op.foldable and present and all(isinstance(value, np.ndarray) for value in present)
        )
        if at_once:
            return self._at_once(op, operation, inputs, attributes)
        taken = [
            self._as_tensor(value) if op.foldable and place not in op.host else value
            for place, value in enumerate(inputs)
        ]
        return [
            self._kept.array(value)
            if isinstance(value, np.ndarray) and value.dtype != object
            else value
            for value in _applied(op, operation, taken, attributes)
        ]

    def _at_once(
        self, op: Op, operation: Operation, inputs: list[Value], attributes: dict[str, Any]
    ) -> list[Value]:
        """What is computed of arrays: arrays again, or tensors if they are large.

        The same arrays give the same objects, so that a `jit` sees the same program in each call.
        """
        inputs = [self._kept.array(v) if isinstance(v, np.ndarray) else v for v in inputs]
        key = (id(operation), *map(id, inputs))
        if key in self._kept.results and not operation.references:
            return self._kept.results[key]
        with tracing_inside(None):
            taken = [
                Tensor(_numbers(value), device=_HOST)
                if isinstance(value, np.ndarray) and place not in op.host
                else value
                for place, value in enumerate(inputs)
            ]
            results: list[Value] = [
                self._kept.array(value.numpy())
                if value.numel() <= HOST_ELEMENTS
                else value.to(self.device)
                for value in _applied(op, operation, taken, attributes)
                if isinstance(value, Tensor)
            ]
        self._kept.results[key] = results
        return results

    def _as_tensor(self, value: Value) -> Any:
        """An array as a tensor; the same array is moved once."""
        if not isinstance(value, np.ndarray):
            return value
        value = self._kept.array(_numbers(value))
        if id(value) not in self._kept.moved:
            with tracing_inside(None):
                self._kept.moved[id(value)] = Tensor(value, device=self.device)
        return self._kept.moved[id(value)]

    def _on_device(self, value: Value) -> Any:
        if isinstance(value, list):
            return [self._on_device(item) for item in value]
        if isinstance(value, np.ndarray) and value.dtype == object:
            return value
        return self._as_tensor(value)

    def _with_graphs(
        self, kind: str, inputs: list[Value], attributes: dict[str, Any], scope: Scope, depth: int
    ) -> list[Value]:
        if kind == "Constant":
            return [_constant(attributes)]
        inner: Scope = ChainMap({}, scope)
        if kind == "If":
            chosen = attributes["then_branch" if one(inputs[0], "cond") else "else_branch"]
            return self._run(chosen, inner, depth + 1)
        if kind == "Loop":
            return self._loop(inputs, attributes["body"], scope, depth)
        if kind == "Scan":
            return self._scan(inputs, attributes, scope, depth)
        body: Graph = attributes["body"]
        first = inputs[0]
        if not isinstance(first, list):
            raise FormatError("SequenceMap's first input is no sequence")
        rows = []
        for i in range(len(first)):
            inner = ChainMap({}, scope)
            inner.update(
                (name, value[i] if isinstance(value, list) else value)
                for name, value in zip(body.inputs, inputs, strict=True)
            )
            rows.append(self._run(body, inner, depth + 1))
        return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in body.outputs]

    def _loop(self, inputs: list[Value], body: Graph, scope: Scope, depth: int) -> list[Value]:
        most = None if inputs[0] is None else int(one(inputs[0], "M"))
        going = inputs[1] is None or bool(one(inputs[1], "cond"))
        carried = list(inputs[2:])
        rows: list[list[Value]] = []
        number = 0
        while going and (most is None or number < most):
            inner: Scope = ChainMap({}, scope)
            start: list[Value] = [np.array(number, np.int64), np.array(True), *carried]
            inner.update(zip(body.inputs, start, strict=True))
            condition, *results = self._run(body, inner, depth + 1)
            carried, row = results[: len(carried)], results[len(carried) :]
            rows.append(row)
            number += 1
            # A condition that is not computed from what goes through the loop stays as it was.
            going = bool(one(condition, "cond"))
        count = len(body.outputs) - 1 - len(carried)
        stacked: list[Value] = []
        for i in range(count):
            if not rows:
                raise Unsupported("a Loop without a step, whose results by step have no shape")
            stacked.append(Tensor.stack(*(self._on_device(row[i]) for row in rows)))
        return [*carried, *stacked]

    def _scan(
        self, inputs: list[Value], attributes: dict[str, Any], scope: Scope, depth: int
    ) -> list[Value]:
        body: Graph = attributes["body"]
        count = attributes["num_scan_inputs"]
        states, taken = inputs[:-count], inputs[-count:]
        results = len(body.outputs) - len(states)
        axes = attributes.get("scan_input_axes", [0] * count)
        back = attributes.get("scan_input_directions", [0] * count)
        out_axes = attributes.get("scan_output_axes", [0] * results)
        out_back = attributes.get("scan_output_directions", [0] * results)
        if self.opset < 9:
            raise Unsupported("Scan before version 9 of the operators; convert the model")
        xs = []
        for value, axis, reverse in zip(taken, axes, back, strict=True):
            x = self._on_device(value).moveaxis(axis, 0)
            xs.append(x.flip(0) if reverse else x)

        def step(carry: list[Tensor], slices: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            inner: Scope = ChainMap({}, scope)
            inner.update(zip(body.inputs, [*carry, *slices], strict=True))
            values = [self._on_device(v) for v in self._run(body, inner, depth + 1)]
            return values[: len(carry)], values[len(carry) :]

        last, ys = scan(step, [self._on_device(s) for s in states], xs)
        stacked = []
        for y, axis, reverse in zip(ys, out_axes, out_back, strict=True):
            stacked.append((y.flip(0) if reverse else y).moveaxis(0, axis))
        return [*last, *stacked]

    def _call(
        self, function: Function, inputs: list[Value], attributes: dict[str, Any], depth: int
    ) -> list[Value]:
        if depth > _MAX_DEPTH:
            raise FormatError(f"functions are nested more than {_MAX_DEPTH} deep")
        inputs = inputs + [None] * (len(function.inputs) - len(inputs))
        scope: Scope = dict(zip(function.inputs, inputs, strict=True))
        around = {**function.defaults, **attributes}
        self._steps(function.operations, scope, {}, around, function.opsets, depth + 1)
        return [
            scope.get(name) for name in function.outputs
        ]  # one that nobody uses may be left out

    def _standard(
        self, operation: Operation, inputs: list[Value], opsets: Mapping[str, int]
    ) -> Function:
        """What ONNX defines an operator to be, in terms of others."""
        function = _definition(operation, opsets, inputs)
        if function is None:
            raise Unsupported(_missing([operation]))
        return self._reader.function(function)

    def _check(self, graph: Graph, known: set[str]) -> None:
        """Raises FormatError for a name that nothing makes, Unsupported for unknown operators."""
        names = known | set(graph.inputs) | set(graph.tensors) | set(graph.arrays)
        narrow = set(graph.narrow)
        missing = [o for o in _operations(graph) if not self._is_known(o)]
        if missing:
            raise Unsupported(_missing(missing))
        for operation in graph.operations:
            for name in operation.inputs:
                if name and name not in names:
                    raise FormatError(
                        f"{operation.kind} {operation.name!r} takes {name!r}, which nothing before"
                        " it makes"
                    )
            if narrow.intersection(operation.inputs):
                _check_narrow(operation, narrow)
            for inner in operation.attributes.values():
                if isinstance(inner, Graph):
                    self._check(inner, names)
            names.update(operation.outputs)
        for name in graph.outputs:
            if name not in names:
                raise FormatError(f"the result {name!r} is made by nothing")

    def _is_known(self, operation: Operation) -> bool:
        return (
            (operation.domain, operation.kind) in self._functions
            or (
                operation.domain == "" and (operation.kind in OPS or operation.kind in _WITH_GRAPHS)
            )
            or _schema(operation, self._opsets) is not None
        )


class _Kept:
    """Arrays by what is in them, and what was made of each.

    Attributes:
        moved: tensors by the identity of the array.
        results: of operations on arrays, by the identities of both.
    """

    def __init__(self) -> None:
        self._arrays: dict[tuple[str, tuple[int, ...], bytes], Array] = {}
        self.moved: dict[int, Tensor] = {}
        self.results: dict[tuple[int, ...], list[Value]] = {}

    def __reduce__(self) -> tuple[type[_Kept], tuple[()]]:
        return _Kept, ()  # identities are of this process

    def forget(self) -> None:
        """Drops everything once there is much, as of ever new shapes; not while a graph runs."""
        if len(self._arrays) > _KEPT:
            self._arrays, self.moved, self.results = {}, {}, {}

    def array(self, array: Array) -> Array:
        """The array that stands for all with these elements."""
        return self._arrays.setdefault((array.dtype.str, array.shape, array.tobytes()), array)


def load(source: Path | bytes, device: str | None = None) -> OnnxModel:
    """The model in an ONNX file, or in its content as bytes.

    Needs the package `onnx`, `pip install 'gpu[onnx]'`, which reads the file. On the CPU weights in
    files beside it are views of them.

    Args:
        source: a path, or the content of a file that has all weights in it.
        device: where weights and results shall live; None for the default device.

    Raises:
        FormatError: a malformed file.
        Unsupported: operators or types that are not computed here, all by name; or no `onnx`.
        InvalidType: a path that is none.
        OSError: a file that cannot be read.

    >>> from gpu.nn import onnx
    >>> model = onnx.load("model.onnx")  # doctest: +SKIP
    >>> model(Tensor.rand(1, 3, 224, 224)).shape  # doctest: +SKIP
    (1, 1000)
    """
    try:
        from google.protobuf.message import DecodeError
        from onnx import ModelProto
    except ImportError as error:
        raise Unsupported(
            "ONNX files are read by the package onnx: pip install 'gpu[onnx]'"
        ) from error
    target = Device.canonicalize(device)
    if isinstance(source, bytes):
        content, folder = source, None
    else:
        content, folder = map_file(source).tobytes(), os.path.dirname(os.path.abspath(source))
    proto = ModelProto()
    try:
        proto.ParseFromString(content)
    except DecodeError as error:
        raise FormatError(f"this is not an ONNX model, or it is damaged: {error}") from error
    if not proto.opset_import or not proto.HasField("graph"):
        raise FormatError("this is not an ONNX model: it has no graph, or no opset_import")
    return OnnxModel(proto, folder, target)


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _found(scope: Scope, name: str) -> Value:
    if name not in scope:
        raise FormatError(f"{name!r} is used, and nothing before makes it")
    return scope[name]


def _applied(
    op: Op, operation: Operation, inputs: list[Any], attributes: dict[str, Any]
) -> list[Value]:
    try:
        result = op.function(*inputs, **attributes)
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise
        raise FormatError(
            f"{operation.kind} has inputs or attributes that it does not take: {error}"
        ) from error
    return list(result) if isinstance(result, tuple) else [result]


def _numbers(array: Array) -> Array:
    if array.dtype == object:
        raise Unsupported("strings are not computed with here")
    return array


def _constant(attributes: Mapping[str, Any]) -> Value:
    for name, value in attributes.items():
        match name:
            case "value":
                return value  # type: ignore[no-any-return]
            case "value_float" | "value_floats":
                return np.array(value, np.float32)
            case "value_int" | "value_ints":
                return np.array(value, np.int64)
            case "value_string" | "value_strings":
                return np.array(value, object)
    raise Unsupported(f"Constant with the attributes {sorted(attributes)}")


def _operations(graph: Graph) -> Iterator[Operation]:
    """A graph's operations, and those of the graphs in it."""
    for operation in graph.operations:
        yield operation
        for value in operation.attributes.values():
            if isinstance(value, Graph):
                yield from _operations(value)


def _check_narrow(operation: Operation, narrow: set[str]) -> None:
    """Numbers of 4 bits are kept in 8, so they are for what decodes them alone."""
    if operation.kind not in _FOR_NARROW:
        raise Unsupported(
            f"{operation.kind} {operation.name!r} takes elements of 4 bits, which are computed with"
            f" by {', '.join(_FOR_NARROW)} alone"
        )
    if operation.kind != "DequantizeLinear":
        narrow.update(operation.outputs)


def _missing(operations: list[Operation]) -> str:
    names = sorted({f"{o.domain}.{o.kind}".lstrip(".") for o in operations})
    return f"the model uses operators that are not computed here: {', '.join(names)}"


def _schema(operation: Operation, opsets: Mapping[str, int]) -> Any:
    """ONNX's description of an operator that is a function of others, or None."""
    from onnx import defs

    try:
        schema = defs.get_schema(operation.kind, opsets.get(operation.domain, 1), operation.domain)
    except defs.SchemaError:
        return None
    return schema if schema.has_function or schema.has_context_dependent_function else None


def _definition(operation: Operation, opsets: Mapping[str, int], inputs: list[Value]) -> Any:
    from onnx import FunctionProto, helper

    schema = _schema(operation, opsets)
    if schema is None:
        return None
    version = opsets.get(operation.domain, 1)
    if schema.has_function:
        return schema.function_body
    types = [
        helper.make_tensor_type_proto(number_of(value), list(value.shape)).SerializeToString()
        if isinstance(value, (Tensor, np.ndarray))
        else b""
        for value in inputs
    ]
    versions = [v for v in schema.context_dependent_function_opset_versions if v <= version]
    content = schema.get_context_dependent_function_with_opset_version(
        max(versions), operation.proto.SerializeToString(), types
    )
    function = FunctionProto()
    function.ParseFromString(content)
    return function


def _shown(value: Input) -> str:
    kind = "sequence" if value.dtype is None else value.dtype.name
    return f"{kind}{'' if value.shape is None else list(value.shape)}"

"""ONNX files as plain structures: tensors, attributes and graphs, of which nothing is believed.

The package `onnx` parses the file. Weights that lie in files beside it are mapped, and only those
in the model's own folder or below are opened.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from gpu.core.dtype import DType
from gpu.core.errors import FormatError, InvalidValue, Unsupported
from gpu.core.files import map_file
from gpu.tensor.formats.hostbytes import MAX_DIMENSIONS, Bytes, byte_size, bytes_of, tensor_over
from gpu.tensor.onnx.values import HOST_ELEMENTS, Array, dtype_of
from gpu.tensor.tensor import Tensor

Path = str | os.PathLike[str]

_MAX_DEPTH: Final = 32  # of graphs in graphs
_UNPACKED: Final = {21: np.uint8, 22: np.int8}  # 4 bits, kept as 8
_STRING, _EXTERNAL = 8, 1


class Operation(NamedTuple):
    """A node of a graph.

    Attributes:
        kind: the operator's name.
        domain: of the operator, empty for ONNX's own.
        name: of the node, for messages.
        inputs: names of values, empty for those left out.
        outputs: names of results, empty for those not used.
        attributes: numbers, bytes, lists, arrays, tensors and graphs.
        references: attributes that take the value of one of the function's around them.
        proto: what the file has for it.
    """

    kind: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]
    references: dict[str, str]
    proto: Any


class Input(NamedTuple):
    """What a graph takes.

    Attributes:
        dtype: of its elements; None for what is no tensor.
        shape: sizes, or their names where they are free; None where the file says nothing.
    """

    dtype: DType | None
    shape: tuple[int | str, ...] | None


class Graph(NamedTuple):
    """Operations in order.

    Attributes:
        inputs: what it takes, by name; those of `tensors` too where the file lists them.
        outputs: names of its results.
        operations: each uses results of those before it.
        tensors: its own weights by name.
        arrays: those of `tensors` that may say how something is computed, on the host.
        narrow: those of `tensors` whose elements have 4 bits in the file.
    """

    inputs: dict[str, Input]
    outputs: tuple[str, ...]
    operations: tuple[Operation, ...]
    tensors: dict[str, Tensor]
    arrays: dict[str, Array]
    narrow: frozenset[str]


class Function(NamedTuple):
    """An operator that is made of others.

    Attributes:
        inputs: names of its parameters.
        outputs: names of its results.
        operations: as in `Graph`.
        defaults: values of its attributes where none is given.
        opsets: versions of the operators in it by domain.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operations: tuple[Operation, ...]
    defaults: dict[str, Any]
    opsets: dict[str, int]


class Reader:
    """Turns what `onnx` parsed into the structures above.

    Attributes:
        device: where weights go.
    """

    def __init__(self, folder: str | None, device: str):
        self.device = device
        self._folder = folder
        self._files: dict[str, Bytes] = {}

    def graph(self, proto: Any, depth: int = 0) -> Graph:
        """A graph and those in it. Raises FormatError and Unsupported."""
        if depth > _MAX_DEPTH:
            raise FormatError(f"graphs are nested more than {_MAX_DEPTH} deep")
        if proto.sparse_initializer:
            raise Unsupported("sparse weights are not computed with here; save the model dense")
        tensors: dict[str, Tensor] = {}
        arrays: dict[str, Array] = {}
        for weight in proto.initializer:
            if weight.name in tensors or weight.name in arrays:
                raise FormatError(f"there are two weights {weight.name!r}")
            value = self.tensor(weight, f"weight {weight.name!r}")
            if isinstance(value, Tensor):
                tensors[weight.name] = value
            if _may_say_how(value):
                arrays[weight.name] = value if isinstance(value, np.ndarray) else value.numpy()
        return Graph(
            {value.name: _input(value) for value in proto.input},
            tuple(value.name for value in proto.output),
            tuple(self.operation(node, depth) for node in proto.node),
            tensors,
            arrays,
            frozenset(w.name for w in proto.initializer if w.data_type in _UNPACKED),
        )

    def function(self, proto: Any) -> Function:
        """A function that a model or ONNX itself defines."""
        return Function(
            tuple(proto.input),
            tuple(proto.output),
            tuple(self.operation(node, 0) for node in proto.node),
            {a.name: self._attribute(a, 0) for a in proto.attribute_proto},
            {entry.domain: entry.version for entry in proto.opset_import},
        )

    def operation(self, node: Any, depth: int) -> Operation:
        """A node of a graph or of a function."""
        attributes, references = {}, {}
        for text in (node.op_type, node.domain, node.name, *node.input, *node.output):
            if not isinstance(text, str):  # what the parser could not decode
                raise FormatError(f"a node has the name {text!r}, which is not UTF-8")
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                references[attribute.name] = attribute.ref_attr_name
            else:
                attributes[attribute.name] = self._attribute(attribute, depth)
        domain = "" if node.domain == "ai.onnx" else node.domain
        return Operation(
            node.op_type, domain, node.name, tuple(node.input), tuple(node.output), attributes,
            references, node,
        )  # fmt: skip

    def _attribute(self, proto: Any, depth: int) -> Any:
        match proto.type:
            case 1:
                return proto.f
            case 2:
                return proto.i
            case 3:
                return proto.s
            case 4:
                value = self.tensor(proto.t, f"attribute {proto.name!r}")
                return (
                    value
                    if isinstance(value, np.ndarray) or value.numel() > HOST_ELEMENTS
                    else value.numpy()
                )
            case 5:
                return self.graph(proto.g, depth + 1)
            case 6:
                return list(proto.floats)
            case 7:
                return list(proto.ints)
            case 8:
                return list(proto.strings)
            case 13:
                return proto.tp
        raise Unsupported(f"attribute {proto.name!r} has type {proto.type}, which is not read here")

    def tensor(self, proto: Any, what: str) -> Tensor | Array:
        """A tensor of the file; strings as an array. Raises FormatError and Unsupported."""
        shape = tuple(proto.dims)
        if len(shape) > MAX_DIMENSIONS or any(size < 0 for size in shape):
            raise FormatError(f"{what} has shape {list(shape)[:40]}")
        if proto.data_type == _STRING:
            if math.prod(shape) != len(proto.string_data):
                raise FormatError(
                    f"{what} of shape {list(shape)} has {len(proto.string_data)} strings"
                )
            return np.array(
                [s.decode(errors="replace") for s in proto.string_data], object
            ).reshape(shape)
        if proto.data_type in _UNPACKED:
            return self._small(proto, shape, what)
        dtype = dtype_of(proto.data_type)
        size = byte_size(shape, dtype)
        if proto.data_location == _EXTERNAL:
            data = self._outside({e.key: e.value for e in proto.external_data}, size, what)
        elif proto.HasField("raw_data"):
            data = bytes_of(proto.raw_data)
        else:
            data = _typed(proto, shape, what)
        if data.size != size:
            raise FormatError(
                f"{what}: shape {list(shape)} of {dtype.name} takes {size:,} bytes, there are"
                f" {data.size:,}"
            )
        return tensor_over(data, shape, dtype, self.device)

    def _small(self, proto: Any, shape: tuple[int, ...], what: str) -> Tensor:
        from onnx import numpy_helper

        if proto.data_location == _EXTERNAL:
            raise Unsupported(
                f"{what} has 4 bits an element in a file of its own; save it in one file"
            )
        try:
            values = numpy_helper.to_array(proto).astype(_UNPACKED[proto.data_type])
        except ValueError as error:
            raise FormatError(f"{what} of shape {list(shape)} cannot be read: {error}") from error
        return Tensor(values, device=self.device)

    def _outside(self, entries: Mapping[str, str], size: int, what: str) -> Bytes:
        """Bytes of a file beside the model."""
        if self._folder is None:
            raise InvalidValue(f"{what} is in another file; load the model by its path")
        location, folder = entries.get("location", ""), os.path.realpath(self._folder)
        path = os.path.realpath(os.path.join(folder, location.replace("\0", "")))
        if "\0" in location or not location or os.path.commonpath([folder, path]) != folder:
            raise FormatError(f"{what} is in {location!r}, which is not in the model's folder")
        try:
            start, length = int(entries.get("offset", 0)), int(entries.get("length", size))
        except ValueError as error:
            raise FormatError(f"{what}: offset or length is no number: {error}") from error
        if path not in self._files:
            self._files[path] = map_file(path)
        content = self._files[path]
        if start < 0 or length < 0 or start + length > content.size:
            raise FormatError(
                f"{what}: {length:,} bytes from {start:,} on are not in {location!r},"
                f" which has {content.size:,}"
            )
        return content[start : start + length]


def _typed(proto: Any, shape: tuple[int, ...], what: str) -> Bytes:
    """The bytes of a tensor whose elements the file has as a list of numbers."""
    from onnx import numpy_helper

    stored = max(
        len(proto.float_data), len(proto.int32_data), len(proto.int64_data),
        len(proto.double_data), len(proto.uint64_data),
    )  # fmt: skip
    parts = 2 if proto.data_type in (14, 15) else 1
    if stored != math.prod(shape) * parts:
        raise FormatError(f"{what} of shape {list(shape)} has {stored:,} numbers")
    try:
        array = np.ascontiguousarray(numpy_helper.to_array(proto))
    except (ValueError, OverflowError) as error:
        raise FormatError(f"{what} cannot be read: {error}") from error
    return array.reshape(-1).view(np.uint8)


def _may_say_how(value: Tensor | Array) -> bool:
    """Whether it may be a shape, axes, bounds, a factor: what is looked at on the host."""
    if isinstance(value, np.ndarray):
        return True
    most = HOST_ELEMENTS if not value.dtype.is_float and not value.dtype.is_complex else 16
    return value.numel() <= most and value.dtype.kind != "complex" and value.dtype.np.kind in "biuf"


def _input(value: Any) -> Input:
    kind = value.type
    if not kind.HasField("tensor_type") or not kind.tensor_type.elem_type:
        return Input(None, None)
    number = kind.tensor_type.elem_type
    dtype = None if number == _STRING else dtype_of(number)
    if not kind.tensor_type.HasField("shape"):
        return Input(dtype, None)
    sizes = [
        d.dim_value if d.HasField("dim_value") else d.dim_param or "?"
        for d in kind.tensor_type.shape.dim
    ]
    return Input(dtype, tuple(sizes))

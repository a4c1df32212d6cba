"""GGUF, the format of ggml's models: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.

A file is ``GGUF``, a version, the number of tensors and of metadata's entries, those entries, what
there is to know of each tensor, and the data, all little-endian. Each tensor's data begins at a
multiple of ``general.alignment`` (32 where that is not there). Sizes of dimensions are written
innermost first; shapes here are the other way round, as everywhere.
"""

from __future__ import annotations

import math
import os
import struct
from itertools import pairwise
from typing import Any, Final, NamedTuple

from gpu.core.dtype import dtypes
from gpu.core.errors import FormatError, Unsupported
from gpu.core.files import map_file
from gpu.runtime.device import Device
from gpu.tensor.formats.ggml_blocks import BLOCK_TYPES, BlockType
from gpu.tensor.formats.hostbytes import MAX_ELEMENTS, Bytes, bytes_of, tensor_over
from gpu.tensor.formats.progress import byte_progress
from gpu.tensor.tensor import Tensor

Path = str | os.PathLike[str]

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_ALIGNMENT: Final = "general.alignment"
_MAX_DIMENSIONS: Final = 4  # GGML_MAX_DIMS
_MAX_DEPTH: Final = 4  # of arrays in arrays
_LEAST_ENTRY: Final = 8 + 4 + 1  # bytes of an entry: an empty name, a type, a value of one byte
_LEAST_TENSOR: Final = 8 + 4 + 4 + 8
# By the number that stands for the type of a metadata's value.
_NUMBERS: Final = {
    0: struct.Struct("<B"), 1: struct.Struct("<b"), 2: struct.Struct("<H"), 3: struct.Struct("<h"),
    4: struct.Struct("<I"), 5: struct.Struct("<i"), 6: struct.Struct("<f"), 7: struct.Struct("<B"),
    10: struct.Struct("<Q"), 11: struct.Struct("<q"), 12: struct.Struct("<d"),
}  # fmt: skip
_BOOL, _STRING, _ARRAY = 7, 8, 9


class GgufFile(NamedTuple):
    """What a GGUF file holds.

    Attributes:
        metadata: numbers, strings, bools and lists of them by key, as ``general.architecture``.
        tensors: by name, in the file's order.
    """

    metadata: dict[str, Any]
    tensors: dict[str, Tensor]


def gguf_load(source: Path | bytes, device: str | None = None) -> GgufFile:
    """What a GGUF file, or its content as bytes, holds.

    Quantised tensors stay as they are in memory; where one is used, float32 values are computed of
    its bytes on the way. What keeps values, keeps them as float32: `realize`, `load_state_dict`,
    and a `jit`, of tensors from outside; of `tensor.half()` they are half as large. All other
    types are as in `safe_load`: on the CPU views of the file, which must not be written to
    meanwhile.

    Args:
        source: a path, or the content of a file.
        device: where the tensors shall live; None for the default device.

    Raises FormatError for a malformed file, Unsupported for a type of tensors that is not decoded
    here, OSError for a file that cannot be read.

    >>> from gpu.nn.state import gguf_load
    >>> metadata, tensors = gguf_load("model.gguf")  # doctest: +SKIP
    """
    target = Device.canonicalize(device)
    data = bytes_of(source) if isinstance(source, bytes) else map_file(source)
    reader = _Reader(data)
    metadata, infos = reader.header()
    start = -(-reader.position // reader.alignment) * reader.alignment
    _check_spans(infos, data.size - start)
    tensors = {}
    with byte_progress("loading", data.size) as advance:
        for name, info in infos.items():
            span = data[start + info.offset : start + info.end]
            tensors[name] = _tensor(span, info, target)
            advance(span.size)
    return GgufFile(metadata, tensors)


class _Info(NamedTuple):
    """A tensor in a file; `offset` is that of its data behind the start of all data."""

    type: BlockType
    shape: tuple[int, ...]
    offset: int

    @property
    def end(self) -> int:
        return self.offset + math.prod(self.shape) // self.type.elements * self.type.size


def _tensor(span: Bytes, info: _Info, device: str) -> Tensor:
    kind = info.type
    if kind.dtype is not None:
        return tensor_over(span, info.shape, kind.dtype, device)
    assert kind.values is not None, kind
    if 0 in info.shape:
        return Tensor.zeros(*info.shape, device=device)
    blocks = (span.size // kind.size, kind.size)
    return kind.values(tensor_over(span, blocks, dtypes.uint8, device)).reshape(*info.shape)


class _Reader:
    """Reads the head of a file from its first byte on, and believes nothing.

    Attributes:
        position: offset of what comes next.
        alignment: of tensors' data, once `header` has read it.
    """

    def __init__(self, data: Bytes):
        self._data = data
        self.position = 0
        self.alignment = 32

    def header(self) -> tuple[dict[str, Any], dict[str, _Info]]:
        """The metadata, and what is said of each tensor. Raises FormatError and Unsupported."""
        magic = self._data[:4].tobytes()
        if magic != _MAGIC:
            raise FormatError(f"a GGUF file begins with {_MAGIC!r}, this one with {magic!r}")
        self.position = 4
        version = self._number(4, "the version")
        if version not in _VERSIONS:
            raise FormatError(
                f"the version is {version}; 2 and 3 are read, in little-endian order"
                + (": this file is big-endian" if version & 0xFFFF == 0 else "")
            )
        tensors = self._count("tensors", _LEAST_TENSOR)
        entries = self._count("metadata's entries", _LEAST_ENTRY)
        metadata: dict[str, Any] = {}
        for _ in range(entries):
            key = self._string("a key of the metadata")
            if key in metadata:
                raise FormatError(f"the metadata has {key!r} twice")
            metadata[key] = self._value(self._number(4, f"the type of {key!r}"), key)
        self.alignment = _checked_alignment(metadata.get(_ALIGNMENT, self.alignment))
        infos: dict[str, _Info] = {}
        for _ in range(tensors):
            name = self._string("the name of a tensor")
            if name in infos:
                raise FormatError(f"there are two tensors {name!r}")
            infos[name] = self._info(name)
        return metadata, infos

    def _info(self, name: str) -> _Info:
        dimensions = self._number(4, f"the dimensions of {name!r}")
        if dimensions > _MAX_DIMENSIONS:
            raise FormatError(f"tensor {name!r} has {dimensions} dimensions, more than 4")
        sizes = [self._number(10, f"a size of {name!r}") for _ in range(dimensions)]
        number = self._number(4, f"the type of {name!r}")
        offset = self._number(10, f"the offset of {name!r}")
        if number not in BLOCK_TYPES:
            raise FormatError(f"tensor {name!r} has type {number}, which no type of ggml's has")
        kind = BLOCK_TYPES[number]
        if math.prod(size for size in sizes if size) > MAX_ELEMENTS // 8:
            raise FormatError(f"tensor {name!r}: shape {sizes[::-1]} is larger than any memory")
        if (sizes[0] if sizes else 1) % kind.elements:
            raise FormatError(
                f"tensor {name!r}: rows of {sizes[0] if sizes else 1} elements are no whole number"
                f" of {kind.name}'s blocks of {kind.elements}"
            )
        if offset % self.alignment:
            raise FormatError(
                f"tensor {name!r} begins at {offset:,}, no multiple of the alignment"
                f" {self.alignment}"
            )
        if kind.dtype is None and kind.values is None:
            decoded = ", ".join(t.name for t in BLOCK_TYPES.values() if t.values is not None)
            raise Unsupported(
                f"tensor {name!r} is {kind.name}, which is not decoded here; quantise the model as"
                f" one of {decoded}"
            )
        return _Info(kind, tuple(sizes[::-1]), offset)

    def _value(self, kind: int, key: str, depth: int = 0) -> Any:
        if kind == _STRING:
            return self._string(f"the metadata's {key!r}")
        if kind == _ARRAY:
            return self._array(key, depth)
        if kind not in _NUMBERS:
            raise FormatError(f"the metadata's {key!r} has type {kind}; known are 0 to 12")
        value = self._number(kind, f"the metadata's {key!r}")
        return _as_bool(value, key) if kind == _BOOL else value

    def _array(self, key: str, depth: int) -> list[Any]:
        if depth == _MAX_DEPTH:
            raise FormatError(f"the metadata's {key!r} is nested more than {_MAX_DEPTH} deep")
        kind = self._number(4, f"the elements' type of {key!r}")
        number = _NUMBERS.get(kind)
        least = {_STRING: 8, _ARRAY: 12}.get(kind, 1) if number is None else number.size
        count = self._count(f"elements of {key!r}", least)
        if number is None:
            return [self._value(kind, key, depth + 1) for _ in range(count)]
        content = self._take(count * number.size, f"the metadata's {key!r}")
        values = [value for (value,) in number.iter_unpack(content)]
        return [_as_bool(value, key) for value in values] if kind == _BOOL else values

    def _count(self, what: str, least: int) -> int:
        """How many there are, if the file can hold so many of at least so many bytes."""
        count: int = self._number(10, f"the number of {what}")
        if count > (self._data.size - self.position) // least:
            raise FormatError(
                f"there should be {count:,} {what}, more than the file's {self._data.size:,} bytes"
                " can hold: it is cut off or damaged"
            )
        return count

    def _string(self, what: str) -> str:
        content = self._take(self._number(10, f"the length of {what}"), what)
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise FormatError(f"{what} is not UTF-8: {error}") from error

    def _number(self, kind: int, what: str) -> Any:
        form = _NUMBERS[kind]
        return form.unpack(self._take(form.size, what))[0]

    def _take(self, count: int, what: str) -> bytes:
        end = self.position + count
        if end > self._data.size:
            raise FormatError(
                f"the file ends at {self._data.size:,}, inside of {what}, which ends at {end:,}:"
                " it is cut off or damaged"
            )
        content = self._data[self.position : end].tobytes()
        self.position = end
        return content


def _as_bool(value: int, key: str) -> bool:
    if value > 1:
        raise FormatError(f"the metadata's {key!r} is a bool with the value {value}")
    return bool(value)


def _checked_alignment(value: int) -> int:
    if type(value) is not int or not 0 < value <= 1 << 31 or value & (value - 1):
        raise FormatError(f"{_ALIGNMENT} is {value!r}; it has to be a power of two")
    return value


def _check_spans(infos: dict[str, _Info], size: int) -> None:
    """Each tensor's data is inside of the file, and none is inside of another's."""
    ordered = sorted(infos, key=lambda name: (infos[name].offset, infos[name].end))
    for name in ordered:
        if infos[name].end > size:
            raise FormatError(
                f"tensor {name!r} ends at {infos[name].end:,} of the data, which ends at"
                f" {max(0, size):,}: the file is cut off or damaged"
            )
    for before, name in pairwise(ordered):
        if infos[before].end > infos[name].offset:
            raise FormatError(
                f"tensor {name!r} begins at {infos[name].offset:,}, inside of tensor {before!r}"
            )

"""The safetensors format: https://huggingface.co/docs/safetensors (section "Format").

A file is 8 bytes with the length of the header (little-endian), the header, and the data of all
tensors without gaps. The header is a JSON object in UTF-8 that begins with ``{``, may be padded
with spaces, and maps names to ``{"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}``, the
offsets counted from the end of the header. ``__metadata__`` maps strings to strings.

Tensors on the CPU are views of the mapped file, which is mapped for reading: their buffers are
marked read-only, and an operation that would write in place has to copy first.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from gpu.core.dtype import DType, dtypes
from gpu.core.errors import DTypeError, FormatError, InvalidType, InvalidValue
from gpu.core.files import atomic_file, map_file
from gpu.runtime.device import Device
from gpu.tensor.base import TensorBase
from gpu.tensor.formats.hostbytes import (
    MAX_DIMENSIONS,
    MAX_ELEMENTS,
    Bytes,
    byte_size,
    bytes_of,
    tensor_over,
)
from gpu.tensor.formats.progress import byte_progress
from gpu.tensor.tensor import Tensor

Path = str | os.PathLike[str]

_LENGTH: Final = struct.Struct("<Q")
_MAX_HEADER: Final = 100_000_000  # bytes, as the format's own reader has it
_ALIGNMENT: Final = 8  # of the data's start, which the format asks writers for
_METADATA: Final = "__metadata__"
_FIELDS: Final = {"dtype", "shape", "data_offsets"}
_DTYPES: Final = {
    "BOOL": dtypes.bool,
    "U8": dtypes.uint8, "U16": dtypes.uint16, "U32": dtypes.uint32, "U64": dtypes.uint64,
    "I8": dtypes.int8, "I16": dtypes.int16, "I32": dtypes.int32, "I64": dtypes.int64,
    "F8_E4M3": dtypes.fp8e4m3, "F8_E5M2": dtypes.fp8e5m2,
    "F16": dtypes.float16, "BF16": dtypes.bfloat16, "F32": dtypes.float32, "F64": dtypes.float64,
    "C64": dtypes.complex64,
}  # fmt: skip
_NAMES: Final = {dtype: name for name, dtype in _DTYPES.items()}


class TensorInfo(NamedTuple):
    """One tensor of a file.

    Attributes:
        dtype: element type.
        shape: sizes of its dimensions.
        start: offset of its first byte, counted from the start of the data.
        stop: offset past its last byte.
    """

    dtype: DType
    shape: tuple[int, ...]
    start: int
    stop: int


class SafeMetadata(NamedTuple):
    """What the header of a file says.

    Attributes:
        data_start: offset of the data in the file.
        tensors: by name, in the header's order.
        metadata: free text of whoever wrote the file.
    """

    data_start: int
    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]


def safe_load(source: Path | bytes, device: str | None = None) -> dict[str, Tensor]:
    """The tensors of a safetensors file, or of its content as bytes, by name.

    On the CPU they are views of the file, which is read when they are used and must not be written
    to meanwhile (replacing it by name is fine); those at offsets that do not suit their dtype are
    copied. To other devices they are copied now.

    Args:
        source: a path, or the content of a file.
        device: where the tensors shall live; None for the default device.

    Raises FormatError for a malformed file and OSError for one that cannot be read.

    >>> from gpu.nn.state import safe_load
    >>> model = safe_load("model.safetensors")  # doctest: +SKIP
    """
    target = Device.canonicalize(device)
    data = bytes_of(source) if isinstance(source, bytes) else map_file(source)
    header = read_header(data)
    result = {}
    with byte_progress("loading", data.size) as advance:
        for name, info in header.tensors.items():
            span = data[header.data_start + info.start : header.data_start + info.stop]
            result[name] = tensor_over(span, info.shape, info.dtype, target)
            advance(span.size)
    return result


def safe_load_metadata(source: Path | bytes) -> SafeMetadata:
    """What the header of a safetensors file says, checked as `safe_load` checks it."""
    return read_header(bytes_of(source) if isinstance(source, bytes) else map_file(source))


def safe_save(
    tensors: Mapping[str, TensorBase], path: Path, metadata: Mapping[str, str] | None = None
) -> None:
    """Writes tensors by name, and text about them, to a safetensors file.

    The file appears when it is complete; one that was there before stays until then, and what a
    process left in the folder that was killed while it saved is removed. Tensors that were not
    computed yet are. Raises InvalidType for what is not a tensor or not text, InvalidValue
    for a name that cannot be written, DTypeError for complex128, OSError as the system does.
    """
    _check_saved(tensors, metadata or {})
    shapes = {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
    content = layout_of_file(shapes, metadata or {})
    if content.order:
        tensors[content.order[0]].realize(*[tensors[name] for name in content.order[1:]])
    with byte_progress("saving", content.size) as advance:
        write_file(path, content, lambda name: tensors[name].numpy(), advance)


class Content(NamedTuple):
    """What a file will hold.

    Attributes:
        head: its first bytes.
        order: the names of the tensors, as they follow each other.
        size: bytes of all of them.
    """

    head: bytes
    order: list[str]
    size: int


def layout_of_file(
    tensors: Mapping[str, tuple[DType, tuple[int, ...]]], metadata: Mapping[str, str]
) -> Content:
    """Where the tensors go. Raises InvalidValue where names and metadata are too long."""
    # The widest first, so that all are aligned; then by name, so that equal models are equal files.
    order = sorted(tensors, key=lambda name: (-tensors[name][0].itemsize, name))
    header: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    offset = 0
    for name in order:
        dtype, shape = tensors[name]
        end = offset + byte_size(shape, dtype)
        header[name] = {
            "dtype": _NAMES[dtype],
            "shape": list(shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    if len(text) > _MAX_HEADER:
        raise InvalidValue(f"names and metadata take {len(text):,} of {_MAX_HEADER:,} bytes")
    return Content(_LENGTH.pack(len(text)) + text, order, offset)


def write_file(
    path: Path,
    content: Content,
    data: Callable[[str], np.ndarray[Any, Any]],
    advance: Callable[[int], object] = lambda count: None,
) -> None:
    """Writes a whole file to the disk, of the array that `data` gives for each name."""
    with atomic_file(path, durable=True) as file:
        file.write(content.head)
        for name in content.order:
            array = np.ascontiguousarray(data(name))
            file.write(array.reshape(-1).view(np.uint8).data)
            advance(array.nbytes)


def _check_saved(tensors: Mapping[str, TensorBase], metadata: Mapping[str, str]) -> None:
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, TensorBase):
            raise InvalidType(
                f"safe_save takes tensors by name; {name!r} is a {type(tensor).__name__}"
            )
        if name == _METADATA or not is_text(name):
            raise InvalidValue(f"a tensor cannot be saved under the name {name!r}: rename it")
        check_saved_dtype(name, tensor.dtype)
    for key, value in metadata.items():
        if not (isinstance(key, str) and isinstance(value, str)):
            raise InvalidType(f"metadata maps text to text; {key!r} is {value!r}: write it as text")
        if not (is_text(key) and is_text(value)):
            raise InvalidValue(f"metadata {key!r}: {value!r} is not valid Unicode")


def check_saved_dtype(name: str, dtype: DType) -> None:
    """Raises DTypeError for what the format does not have."""
    if dtype not in _NAMES:
        raise DTypeError(f"{name} is {dtype.name}, which the format does not have; save its parts")


def is_text(value: object) -> bool:
    """Whether it is a string without lone surrogates."""
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def read_header(data: Bytes) -> SafeMetadata:
    """What the header of a file says, of which `data` is the content. Raises FormatError."""
    if data.size < _LENGTH.size:
        raise FormatError(
            f"a safetensors file has at least {_LENGTH.size} bytes, this one {data.size}"
        )
    length = _LENGTH.unpack(data[: _LENGTH.size].tobytes())[0]
    data_start = _LENGTH.size + length
    if length > _MAX_HEADER:
        raise FormatError(
            f"the header length is {length:,}, more than the {_MAX_HEADER:,} bytes allowed:"
            " this is not a safetensors file, or it is damaged"
        )
    if data_start > data.size:
        raise FormatError(
            f"the header length is {length:,}, but the file has only {data.size:,} bytes: it is"
            " cut off, or is not a safetensors file"
        )
    header = _parse_json(data[_LENGTH.size : data_start].tobytes())
    metadata = _check_metadata(header.pop(_METADATA, {}))
    tensors = {name: _check_tensor(name, entry) for name, entry in header.items()}
    _check_spans(tensors, data.size - data_start)
    return SafeMetadata(data_start, tensors, metadata)


def _parse_json(text: bytes) -> dict[str, Any]:
    if not text.startswith(b"{"):
        raise FormatError(f"the header begins with {text[:8]!r}; it has to begin with '{{'")
    try:
        header = json.loads(text.decode(), object_pairs_hook=_without_duplicates)
    except FormatError:
        raise
    except ValueError as error:  # not UTF-8, not JSON, or a number of thousands of digits
        raise FormatError(f"the header is not JSON in UTF-8: {error}") from error
    except RecursionError as error:
        raise FormatError("the header is nested too deeply; it has three levels") from error
    if not isinstance(header, dict):
        raise FormatError(f"the header is a {type(header).__name__}; it has to be an object")
    return header


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise FormatError(f"the header has {key!r} twice")
        if not is_text(key):
            raise FormatError(f"the header's key {key!r} is not valid Unicode")
        result[key] = value
    return result


def _check_metadata(entry: object) -> dict[str, str]:
    if not isinstance(entry, dict):
        raise FormatError(f"{_METADATA} is {_shown(entry)}; it has to be an object")
    for key, value in entry.items():
        if not isinstance(value, str):
            raise FormatError(f"{_METADATA}[{key!r}] is {_shown(value)}; it has to be a string")
    return entry


def _check_tensor(name: str, entry: object) -> TensorInfo:
    if not isinstance(entry, dict):
        raise FormatError(f"tensor {name!r} is {_shown(entry)}; it has to be an object")
    if entry.keys() != _FIELDS:
        raise FormatError(
            f"tensor {name!r} has the fields {_shown(sorted(entry))};"
            f" it has to have {sorted(_FIELDS)}"
        )
    dtype_name = entry["dtype"]
    if not isinstance(dtype_name, str) or dtype_name not in _DTYPES:
        raise FormatError(
            f"tensor {name!r}: dtype is {_shown(dtype_name)}; known are {', '.join(_DTYPES)}"
        )
    dtype = _DTYPES[dtype_name]
    shape = _check_naturals(name, "shape", entry["shape"])
    if len(shape) > MAX_DIMENSIONS:
        raise FormatError(
            f"tensor {name!r}: shape has {len(shape)} dimensions, more than {MAX_DIMENSIONS}"
        )
    if math.prod(size for size in shape if size) > MAX_ELEMENTS // dtype.itemsize:
        raise FormatError(f"tensor {name!r}: shape {_shown(list(shape))} is larger than any memory")
    offsets = _check_naturals(name, "data_offsets", entry["data_offsets"])
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise FormatError(
            f"tensor {name!r}: data_offsets is {_shown(list(offsets))};"
            " it has to be [start, end] with start <= end"
        )
    if byte_size(shape, dtype) != offsets[1] - offsets[0]:
        raise FormatError(
            f"tensor {name!r}: data_offsets {list(offsets)} hold {offsets[1] - offsets[0]:,} bytes,"
            f" shape {list(shape)} of {dtype_name} takes {byte_size(shape, dtype):,}"
        )
    return TensorInfo(dtype, shape, *offsets)


def _check_naturals(name: str, field: str, value: object) -> tuple[int, ...]:
    """A list of integers from 0 to 2^63 - 1. A bool is none: JSON tells them apart."""
    if not isinstance(value, list):
        raise FormatError(f"tensor {name!r}: {field} is {_shown(value)}; it has to be a list")
    for item in value:
        if type(item) is not int or not 0 <= item <= MAX_ELEMENTS:
            raise FormatError(
                f"tensor {name!r}: {field} holds {_shown(item)};"
                " it has to hold integers from 0 to 2^63 - 1"
            )
    return tuple(value)


def _check_spans(tensors: Mapping[str, TensorInfo], size: int) -> None:
    """The data of all tensors, in order, is the whole of the data: no gap, no overlap."""
    ordered = sorted(tensors, key=lambda name: (tensors[name].start, tensors[name].stop))
    if ordered and tensors[ordered[0]].start:
        raise FormatError(
            f"tensor {ordered[0]!r}: data_offsets start at {tensors[ordered[0]].start:,};"
            " the first tensor has to start at 0"
        )
    for before, name in pairwise(ordered):
        end, start = tensors[before].stop, tensors[name].start
        if start != end:
            fault = "overlaps" if start < end else "leaves a gap after"
            raise FormatError(
                f"tensor {name!r}: data_offsets start at {start:,}, which {fault}"
                f" tensor {before!r}, which ends at {end:,}"
            )
    used = tensors[ordered[-1]].stop if ordered else 0
    if used != size:
        which = f"tensor {ordered[-1]!r}: data_offsets end" if ordered else "the tensors end"
        raise FormatError(
            f"{which} at {used:,}, the file's data at {size:,}: it is cut off or has been added to"
        )


def _shown(value: object) -> str:
    """A value of the file for an error message, which a hostile file must not make long."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or a number of thousands of digits
        text = f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= 80 else text[:77] + "..."

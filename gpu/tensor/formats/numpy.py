"""numpy's files: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html.

A .npy file is the magic string, two bytes of version, the length of the header (little-endian, of 2
bytes in version 1 and 4 in later ones), a header that is the text of a Python dict with the keys
``descr``, ``fortran_order`` and ``shape``, and the elements. A .npz file is a zip archive of such
files. Nothing of a file is evaluated: the header has to be of this form, objects are refused.
"""

from __future__ import annotations

import io
import os
import re
import struct
import zipfile
from collections.abc import Mapping
from typing import Final

import numpy as np

from gpu.core.dtype import DType, dtypes
from gpu.core.errors import DTypeError, FormatError, InvalidValue
from gpu.core.files import atomic_file, map_file
from gpu.runtime.device import Device
from gpu.tensor.formats.archive import DEFAULT_LIMIT, ZipMembers
from gpu.tensor.formats.hostbytes import MAX_DIMENSIONS, MAX_ELEMENTS, Bytes, byte_size, tensor_over
from gpu.tensor.formats.safetensors import is_text
from gpu.tensor.tensor import Tensor

Path = str | os.PathLike[str]

_MAGIC: Final = b"\x93NUMPY"
_LENGTHS: Final = {1: struct.Struct("<H"), 2: struct.Struct("<I"), 3: struct.Struct("<I")}
_MAX_NAME: Final = 0xFFFF  # bytes of a zip member's name, the suffix among them
_MAX_HEADER: Final = 10_000  # bytes, as numpy's own reader has it
# The keys in any order: "A reader MUST NOT depend on this", the format says of theirs.
_HEADER: Final = re.compile(
    r"\{(?:\s*(?:"
    r"['\"]descr['\"]\s*:\s*['\"](?P<descr>[<>|=][a-z]\d{1,2})['\"]"
    r"|['\"]fortran_order['\"]\s*:\s*(?P<fortran>True|False)"
    r"|['\"]shape['\"]\s*:\s*\((?P<shape>[\d\s,]*)\)"
    r")\s*(?:,|(?=\})))+\s*\}\s*"
)
_MAX_DIGITS: Final = 19  # of a size
_DTYPES: Final = {
    "b1": dtypes.bool,
    "i1": dtypes.int8, "i2": dtypes.int16, "i4": dtypes.int32, "i8": dtypes.int64,
    "u1": dtypes.uint8, "u2": dtypes.uint16, "u4": dtypes.uint32, "u8": dtypes.uint64,
    "f2": dtypes.float16, "f4": dtypes.float32, "f8": dtypes.float64,
    "c8": dtypes.complex64, "c16": dtypes.complex128,
}  # fmt: skip


def npy_load(path: Path, device: str | None = None) -> Tensor:
    """The tensor of a .npy file; on the CPU its memory is the mapped file.

    Raises FormatError where the file is malformed or holds no numbers, OSError as the system does.
    """
    return _tensor(map_file(path), Device.canonicalize(device), repr(os.fspath(path)))


def npz_load(path: Path, device: str | None = None) -> dict[str, Tensor]:
    """The tensors of a .npz file by their names. Raises as `npy_load`.

    What is compressed may take 4 GiB in all.
    """
    members = ZipMembers(map_file(path), DEFAULT_LIMIT)
    place = Device.canonicalize(device)
    tensors: dict[str, Tensor] = {}
    for member in members.names:
        name = member.removesuffix(".npy")
        if name in tensors:
            raise FormatError(f"the members {name!r} and '{name}.npy' would have one name")
        tensors[name] = _tensor(members.read(member), place, f"member {member!r}")
    return tensors


def npy_save(tensor: Tensor, path: Path) -> None:
    """Writes a .npy file. Raises DTypeError for bfloat16 and fp8, which numpy's files lack."""
    with atomic_file(path) as file:
        file.write(_content(tensor, "the tensor"))


def npz_save(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Writes a .npz file, without compression.

    Raises DTypeError as `npy_save`, and InvalidValue for a name that zip archives cannot have.
    """
    for name in tensors:
        if not is_text(name) or "\0" in name or len(f"{name}.npy".encode()) > _MAX_NAME:
            shown = repr(name) if len(name) < 100 else f"{name[:50]!r}... of {len(name):,} letters"
            raise InvalidValue(f"a tensor cannot be saved under the name {shown}: rename it")
    contents = {name: _content(tensor, repr(name)) for name, tensor in tensors.items()}
    with atomic_file(path) as file, zipfile.ZipFile(file, "w") as archive:
        for name, content in contents.items():
            # A fixed time, so that equal tensors make equal files.
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0)), content)


def _content(tensor: Tensor, name: str) -> bytes:
    if tensor.dtype not in _DTYPES.values():
        raise DTypeError(
            f"{name} is {tensor.dtype.name}, which numpy's files do not have; cast it, or save "
            "it as .safetensors"
        )
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(tensor), allow_pickle=False)
    return file.getvalue()


def _tensor(data: Bytes, device: str, name: str) -> Tensor:
    """The tensor that the bytes of a .npy file are."""
    header, start = _header(data, name)
    found = _HEADER.fullmatch(header)
    if found is None or None in found.groups():
        raise FormatError(f"{name}: the header is none of an array of numbers: {header[:200]!r}")
    order, kind = found["descr"][0], found["descr"][1:]
    dtype = _DTYPES.get(kind)
    if dtype is None:
        raise FormatError(f"{name} holds {found['descr']!r}, which is no dtype that there is here")
    shape = _shape(found["shape"], name)
    elements = data[start:]
    if elements.size != byte_size(shape, dtype):
        raise FormatError(
            f"{name}: shape {list(shape)} of {dtype.name} takes {byte_size(shape, dtype):,} bytes, "
            f"there are {elements.size:,}"
        )
    if order == ">" and dtype.itemsize > 1:
        elements = _swapped(elements, dtype)
    if found["fortran"] == "True":
        return tensor_over(elements, shape[::-1], dtype, device).T
    return tensor_over(elements, shape, dtype, device)


def _header(data: Bytes, name: str) -> tuple[str, int]:
    """The text of the header, and where the elements begin."""
    begin = data[:12].tobytes()
    length = _LENGTHS.get(begin[6]) if len(begin) > 6 and begin.startswith(_MAGIC) else None
    if length is None or len(begin) < 8 + length.size:
        raise FormatError(f"{name} is no .npy file of version 1 to 3: it begins with {begin!r}")
    (size,) = length.unpack_from(begin, 8)
    start = 8 + length.size + size
    if size > _MAX_HEADER or start > data.size:
        raise FormatError(f"{name} claims a header of {size:,} bytes; the file has {data.size:,}")
    return data[8 + length.size : start].tobytes().decode("latin-1"), start


def _shape(text: str, name: str) -> tuple[int, ...]:
    sizes = [part.strip() for part in text.split(",")]
    if sizes[-1] == "":
        sizes.pop()
    valid = all(size.isdigit() and len(size) <= _MAX_DIGITS for size in sizes)
    shape = tuple(map(int, sizes)) if valid else ()
    count = 1
    for size in shape:
        count *= max(size, 1)
    if not valid or len(shape) > MAX_DIMENSIONS or count > MAX_ELEMENTS:
        raise FormatError(f"{name}: ({text[:200]}) is no shape that can be")
    return shape


def _swapped(data: Bytes, dtype: DType) -> Bytes:
    """Elements of the other byte order in this one."""
    swapped = data.reshape(-1, dtype.real.itemsize)[:, ::-1]
    return np.ascontiguousarray(swapped).reshape(-1)

"""DLPack: tensors handed from one library to another without copying.

A tensor travels in a capsule, a Python object around a pointer to a C struct. Version 1.0 of DLPack
adds a version, flags and another name for the capsule; both forms are read and made here. Structs,
codes and the naming protocol are those of include/dlpack/dlpack.h of dmlc/dlpack 1.0 and of the
Python specification of the Array API standard.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection
from typing import Any, Final

import numpy.typing as npt

from gpu.core.dtype import COMPLEXES, DType, dtypes
from gpu.core.errors import FormatError, GpuError, InvalidType, Unsupported
from gpu.tensor.strided import Strided, row_major

Array = npt.NDArray[Any]

VERSION: Final = (1, 0)
CPU_DEVICE: Final = (1, 0)  # kDLCPU, number 0
CUDA_KIND: Final = 2
METAL_KIND: Final = 8
_KINDS: Final = {1: "host memory", 2: "CUDA", 3: "pinned memory of CUDA", 8: "Metal", 10: "ROCm"}
_HINTS: Final = {
    CUDA_KIND: ", or use it in place on device='CUDA' (docs/devices/cuda.md)",
    METAL_KIND: ", or use it in place on device='METAL' (docs/devices/metal.md)",
}
READ_ONLY: Final = 1 << 0
IS_COPIED: Final = 1 << 1

_LEGACY, _USED_LEGACY = b"dltensor", b"used_dltensor"
_VERSIONED, _USED_VERSIONED = b"dltensor_versioned", b"used_dltensor_versioned"
_MAX_RANK: Final = 64  # of numpy arrays

# (type code, bits) of DLDataType.
_CODES: Final = {
    **{d: (0, d.bits) for d in (dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64)},
    **{d: (1, d.bits) for d in (dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64)},
    **{d: (2, d.bits) for d in (dtypes.float16, dtypes.float32, dtypes.float64)},
    dtypes.bfloat16: (4, 16),
    **{d: (5, d.bits) for d in COMPLEXES},
    dtypes.bool: (6, 8),
    dtypes.fp8e4m3: (10, 8),
    dtypes.fp8e5m2: (12, 8),
}
_DTYPES: Final = {code: dtype for dtype, code in _CODES.items()}


class NotExportable(GpuError, BufferError):
    """The tensor's memory cannot be lent in the way that was asked for; says why."""


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


class _ManagedVersioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


# Prototypes of our own: those in ctypes.pythonapi are shared with everyone else in the process.
_new_capsule = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)(("PyCapsule_New", ctypes.pythonapi))
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer_in = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_SetName", ctypes.pythonapi)
)

# What each struct handed out needs to stay alive, by its address, until its deleter is called.
_lent: dict[int, tuple[Any, ...]] = {}


def _forget(address: int, lent: dict[int, tuple[Any, ...]] = _lent) -> None:
    # A default argument: when the interpreter ends, globals go before tensors of other libraries.
    lent.pop(address, None)


def _drop_unused(capsule: int) -> None:
    for name in (_VERSIONED, _LEGACY):
        if _is_valid(capsule, name):
            _forget(_pointer_in(capsule, name))


def _immortal(function: Callable[[int], None]) -> Any:
    """A C function pointer that stays valid until the process ends."""
    pointer = _Deleter(function)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(pointer))
    return pointer


_forget_pointer = _immortal(_forget)
_drop_unused_pointer = _immortal(_drop_unused)


def host_memory(array: Array, dtype: DType) -> Strided:
    """The memory of a numpy array, whose elements are of `dtype`."""
    strides = tuple(step // dtype.itemsize for step in array.strides)
    return Strided(CPU_DEVICE, array.ctypes.data, array.shape, strides, dtype, array)


def make_capsule(memory: Strided, versioned: bool, flags: int) -> object:
    """A capsule over `memory`, whose owner is kept alive until the consumer is done.

    `flags` are those of DLPack 1.0; the older form has none.
    """
    rank = len(memory.shape)
    sizes = (ctypes.c_int64 * rank)(*memory.shape)
    strides = (ctypes.c_int64 * rank)(*memory.strides)
    managed = _ManagedVersioned() if versioned else _Managed()
    tensor = managed.tensor
    tensor.data, tensor.byte_offset = memory.address, memory.offset
    tensor.device_type, tensor.device_id = memory.device
    tensor.ndim = rank
    tensor.dtype = _DataType(*_CODES[memory.dtype], 1)
    tensor.shape = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
    tensor.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = _forget_pointer
    if isinstance(managed, _ManagedVersioned):
        managed.major, managed.minor = VERSION
        managed.flags = flags
    address = ctypes.addressof(managed)
    _lent[address] = (managed, sizes, strides, memory)
    name = _VERSIONED if versioned else _LEGACY
    capsule: object = _new_capsule(
        address, name, ctypes.cast(_drop_unused_pointer, ctypes.c_void_p)
    )
    return capsule


class _Taken:
    """A struct that was taken out of a capsule; it is given back when this is dropped."""

    def __init__(self, managed: _Managed | _ManagedVersioned):
        self._address = ctypes.addressof(managed)
        self._deleter = managed.deleter

    def __del__(self) -> None:
        if self._deleter:
            self._deleter(self._address)


def take_capsule(capsule: object, kinds: Collection[int] = CPU_DEVICE[:1]) -> Strided:
    """Takes the tensor out of a capsule, which cannot be used again.

    Raises InvalidType for something that is no unused DLPack capsule, FormatError for a struct that
    makes no sense, Unsupported for a type of device that is not in `kinds` and for a dtype that
    cannot be read. The capsule is left as it was then.
    """
    if type(capsule).__name__ != "PyCapsule":
        raise InvalidType(f"a DLPack capsule is needed, got {type(capsule).__name__}")
    managed, used = _opened(capsule)
    memory = _memory_of(managed.tensor, kinds)
    read_only = isinstance(managed, _ManagedVersioned) and bool(managed.flags & READ_ONLY)
    _rename(id(capsule), used)
    return memory._replace(owner=_Taken(managed), read_only=read_only)


def _opened(capsule: object) -> tuple[_Managed | _ManagedVersioned, bytes]:
    """The struct in a capsule, and the name of a capsule that was used."""
    if _is_valid(id(capsule), _VERSIONED):
        versioned = _ManagedVersioned.from_address(_pointer_in(id(capsule), _VERSIONED))
        if versioned.major != VERSION[0]:
            raise Unsupported(
                f"a DLPack capsule of version {versioned.major}.{versioned.minor}; this package "
                f"reads {VERSION[0]}.x"
            )
        return versioned, _USED_VERSIONED
    if _is_valid(id(capsule), _LEGACY):
        return _Managed.from_address(_pointer_in(id(capsule), _LEGACY)), _USED_LEGACY
    raise InvalidType("the capsule holds no DLPack tensor, or one that was taken already")


def _checked_dtype(tensor: _Tensor) -> DType:
    code = (tensor.dtype.code, tensor.dtype.bits)
    if tensor.dtype.lanes != 1 or code not in _DTYPES:
        raise Unsupported(
            f"DLPack type code {code[0]} of {code[1]} bits and {tensor.dtype.lanes} lanes has no "
            "dtype here; convert it before"
        )
    return _DTYPES[code]


def _memory_of(tensor: _Tensor, kinds: Collection[int]) -> Strided:
    dtype = _checked_dtype(tensor)
    device = (tensor.device_type, tensor.device_id)
    check_kind(device[0], kinds)
    if not 0 <= tensor.ndim <= _MAX_RANK:
        raise FormatError(f"a DLPack tensor of {tensor.ndim} dimensions; 0..{_MAX_RANK} are read")
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    if min(shape, default=0) < 0:
        raise FormatError(f"a DLPack tensor of shape {list(shape)}; sizes must not be negative")
    strides = row_major(shape)
    if tensor.strides:
        strides = tuple(tensor.strides[i] for i in range(tensor.ndim))
    if 0 not in shape and not tensor.data:
        raise FormatError(f"a DLPack tensor of shape {list(shape)} without memory")
    data, offset = tensor.data or 0, tensor.byte_offset
    if device[0] != METAL_KIND:  # whose data is an MTLBuffer
        data, offset = data + offset, 0
    return Strided(device, data, shape, strides, dtype, None, offset=offset)


def check_kind(kind: int, kinds: Collection[int]) -> None:
    """Raises Unsupported for a type of device that is not in `kinds`."""
    if kind in kinds:
        return
    name = f"{kind} ({_KINDS[kind]})" if kind in _KINDS else str(kind)
    known = " and ".join(f"{_KINDS[each]} ({each})" for each in kinds)
    raise Unsupported(
        f"the DLPack tensor is on a device of type {name}; only {known} can be read, copy it there"
        f" first{_HINTS.get(kind, '')}"
    )

"""Another library of the process on the GPU, such as torch: its arrays, its streams, its capsules.

The structures are those of dlpack.h, written down here a second time; numbers of dtypes are those
of float32 and int32.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu import Context, Device
from gpu.sim.cuda import drivers
from sim.cuda.raw_cuda import RawCuda
from simulated import SIMULATED, keeping_rules

CUDA = 2
KINDS = {"float32": (2, 32), "int32": (0, 32), "float16": (2, 16), "uint8": (1, 8)}


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_uint64), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", DELETER), ("flags", ctypes.c_uint64), ("tensor", DLTensor),
    )  # fmt: skip


class Legacy(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", DELETER))


_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_set_name = ctypes.pythonapi.PyCapsule_SetName
_set_name.argtypes = (ctypes.py_object, ctypes.c_char_p)


def tell(tensor: DLTensor, array: Any, data: int, dtype: str) -> None:
    """Says what an array with `device`, `offset`, `shape` and `strides` is; `data` is its place."""
    rank = len(array.shape)
    tensor.data, tensor.byte_offset = data, array.offset
    tensor.device_type, tensor.device_id = array.device
    tensor.code, tensor.bits = KINDS[dtype]
    tensor.ndim, tensor.lanes = rank, 1
    tensor.shape = (ctypes.c_int64 * rank)(*array.shape)
    if array.strides is not None:
        tensor.strides = (ctypes.c_int64 * rank)(*array.strides)


class Foreign:
    """An array of another library, whose contents a stream of its own makes, late.

    Attributes:
        raw: how it uses CUDA.
        stream: its own, not blocking.
        given_back: how many of its capsules were.
        asked: with what `__dlpack__` was called.
    """

    def __init__(self, raw: RawCuda, values: npt.NDArray[Any], device: tuple[int, int] = (CUDA, 0)):
        self.raw, self.values, self.device = raw, np.ascontiguousarray(values), device
        self.shape, self.strides = values.shape, None
        self.stream, self.address = raw.stream(1), raw.alloc(max(values.nbytes, 1))
        self._pinned = raw.pinned(max(values.nbytes, 1))
        self.offset = 0
        self.given_back = 0
        self.asked: list[dict[str, Any]] = []
        self._kept: list[Any] = []
        self.fill(values)

    def fill(self, values: npt.NDArray[Any]) -> None:
        """Its stream makes these its contents."""
        self.raw.call("cuStreamSynchronize", self.stream)
        self._pinned[: values.nbytes] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        self.raw.call(
            *("cuMemcpyHtoDAsync_v2", self.address, self._pinned.ctypes.data, values.nbytes),
            self.stream,
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **options: Any) -> object:
        self.asked.append(options)
        if (stream := options.get("stream")) is not None:
            event = self.raw.event(2)
            self.raw.call("cuEventRecord", event, self.stream)
            self.raw.call("cuStreamWaitEvent", stream, event, 0)
            self.raw.call("cuEventDestroy_v2", event)
        return self.capsule()

    def capsule(self) -> object:
        """A capsule that nothing orders."""
        managed = Managed(1, 0)
        tell(managed.tensor, self, self.address, self.values.dtype.name)
        managed.deleter = DELETER(self._give_back)
        self._kept.append((managed, managed.deleter))
        return _new(ctypes.addressof(managed), b"dltensor_versioned", None)

    def _give_back(self, _: int) -> None:
        self.given_back += 1

    def now(self) -> npt.NDArray[Any]:
        """What its memory holds when all is done."""
        self.raw.call("cuCtxSynchronize")
        return self.raw.download(self.address, self.values)

    def free(self) -> None:
        """Frees its memory; nothing uses it any more."""
        self.raw.call("cuStreamSynchronize", self.stream)
        self.raw.call("cuMemFree_v2", self.address)
        self.address = 0

    def close(self) -> None:
        """Gives all back."""
        self.raw.call("cuCtxSynchronize")
        if self.address:
            self.raw.call("cuMemFree_v2", self.address)
        self.raw.call("cuMemFreeHost", self._pinned.ctypes.data)
        self.raw.call("cuStreamDestroy_v2", self.stream)


class WithInterface(Foreign):
    """An array that has `__cuda_array_interface__` alone, as numba's, which names no stream.

    Attributes:
        changes: what the interface says otherwise; None leaves it out.
    """

    __dlpack__ = __dlpack_device__ = property()  # type: ignore[assignment]

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args)
        self.changes = options

    @property
    def __cuda_array_interface__(self) -> Any:
        told = {
            "shape": self.shape, "typestr": self.values.dtype.str, "version": 3,
            "data": (self.address + self.offset, False), "strides": self.strides, "stream": None,
        }  # fmt: skip
        return {**told, **self.changes}


Make = Callable[..., Foreign]


class Taken:
    """An array that the other library made of a capsule of ours.

    Attributes:
        tensor: what the capsule says.
        flags: as well; None of one from before DLPack 1.0.
    """

    def __init__(self, capsule: object):
        self.flags: int | None = None
        try:
            name = b"dltensor_versioned"
            managed: Any = Managed.from_address(_pointer(capsule, name))
            self.flags = managed.flags
        except ValueError:
            name = b"dltensor"
            managed = Legacy.from_address(_pointer(capsule, name))
        _set_name(capsule, b"used_" + name)
        self._managed, self.tensor = managed, managed.tensor
        self.address: int = self.tensor.data + self.tensor.byte_offset
        rank = self.tensor.ndim
        self.shape = tuple(self.tensor.shape[:rank])
        self.strides = tuple(self.tensor.strides[:rank])

    def drop(self) -> None:
        """Gives it back."""
        self._managed.deleter(ctypes.addressof(self._managed))


@contextmanager
def sharing(kept: list[Foreign]) -> Iterator[RawCuda]:
    """Another user of the model that the device CUDA is on, who breaks no rule either."""
    with Context(DEV="CUDA", SIM=SIMULATED["CUDA"]), keeping_rules("CUDA"):
        allocator = Device["CUDA"].allocator
        memory = allocator.alloc(64)
        (library,) = (one for one in drivers() if one.driver.memory.find(memory.address))
        allocator.free(memory, 64)
        raw = RawCuda(library.functions)
        raw.start()
        try:
            yield raw
        finally:
            gc.collect()
            Device["CUDA"].synchronize()
            raw.start()
            for each in kept:
                each.close()
            for _ in range(2):
                raw.call("cuDevicePrimaryCtxRelease_v2", 0)

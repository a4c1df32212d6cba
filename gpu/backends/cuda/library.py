"""libcuda: loaded, its functions with their types, and the places where it is.

Signatures are those of cuda.h of CUDA 13. Every handle, pointer and address is an integer; where a
function writes something, it is given the address of `Words`.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from gpu.backends.cpu.native import native_function, native_pointer
from gpu.core.errors import DeviceError
from gpu.transport.files import RealFiles
from gpu.transport.missing import no_libcuda
from gpu.transport.nvidia import LIBCUDA, libcuda

OLDEST: Final = (12, 0)
"""The CUDA that a driver must be of at least: `cuGraphAddKernelNode_v2` and others are of 12.0."""
UPDATE: Final = "update the driver to 525 or later, which are of CUDA 12"

_P: Final = "uintptr_t"
_U: Final = "unsigned int"
_COPY: Final = (_P, _P, "size_t", _P)
# All return a code.
SIGNATURES: Final[dict[str, tuple[str, ...]]] = {
    "cuInit": (_U,),
    "cuDriverGetVersion": (_P,),
    "cuGetErrorName": ("int", _P),
    "cuGetErrorString": ("int", _P),
    "cuDeviceGetCount": (_P,),
    "cuDeviceGet": (_P, "int"),
    "cuDeviceGetName": (_P, "int", "int"),
    "cuDeviceGetAttribute": (_P, "int", "int"),
    "cuDeviceTotalMem_v2": (_P, "int"),
    "cuDeviceCanAccessPeer": (_P, "int", "int"),
    "cuDevicePrimaryCtxRetain": (_P, "int"),
    "cuDevicePrimaryCtxRelease_v2": ("int",),
    "cuDevicePrimaryCtxReset_v2": ("int",),
    "cuCtxGetCurrent": (_P,),
    "cuCtxSetCurrent": (_P,),
    "cuCtxPushCurrent_v2": (_P,),
    "cuCtxPopCurrent_v2": (_P,),
    "cuCtxSynchronize": (),
    "cuCtxEnablePeerAccess": (_P, _U),
    "cuMemAlloc_v2": (_P, "size_t"),
    "cuMemFree_v2": (_P,),
    "cuMemGetInfo_v2": (_P, _P),
    "cuMemGetAddressRange_v2": (_P, _P, _P),
    "cuPointerGetAttributes": (_U, _P, _P, _P),
    "cuDeviceGetUuid_v2": (_P, "int"),
    "cuIpcGetMemHandle": (_P, _P),
    "cuIpcCloseMemHandle": (_P,),
    "cuMemGetAllocationGranularity": (_P, _P, _U),
    "cuMemCreate": (_P, "size_t", _P, "unsigned long long"),
    "cuMemRelease": (_P,),
    "cuMemAddressReserve": (_P, "size_t", "size_t", _P, "unsigned long long"),
    "cuMemAddressFree": (_P, "size_t"),
    "cuMemMap": (_P, "size_t", "size_t", _P, "unsigned long long"),
    "cuMemUnmap": (_P, "size_t"),
    "cuMemSetAccess": (_P, "size_t", _P, "size_t"),
    "cuMemExportToShareableHandle": (_P, _P, "int", "unsigned long long"),
    "cuMemImportFromShareableHandle": (_P, _P, "int"),
    "cuMemHostAlloc": (_P, "size_t", _U),
    "cuMemFreeHost": (_P,),
    "cuMemcpyHtoDAsync_v2": _COPY,
    "cuMemcpyDtoHAsync_v2": _COPY,
    "cuMemcpyDtoDAsync_v2": _COPY,
    "cuStreamCreate": (_P, _U),
    "cuStreamSynchronize": (_P,),
    "cuStreamWaitEvent": (_P, _P, _U),
    "cuStreamDestroy_v2": (_P,),
    "cuEventCreate": (_P, _U),
    "cuEventRecord": (_P, _P),
    "cuEventQuery": (_P,),
    "cuEventSynchronize": (_P,),
    "cuEventElapsedTime": (_P, _P, _P),
    "cuEventDestroy_v2": (_P,),
    "cuModuleLoadDataEx": (_P, _P, _U, _P, _P),
    "cuModuleUnload": (_P,),
    "cuModuleGetFunction": (_P, _P, _P),
    "cuFuncSetAttribute": (_P, "int", "int"),
    "cuLaunchKernelEx": (_P, _P, _P, _P),
    "cuGraphCreate": (_P, _U),
    "cuGraphDestroy": (_P,),
    "cuGraphAddKernelNode_v2": (_P, _P, _P, "size_t", _P),
    "cuGraphInstantiateWithFlags": (_P, _P, "unsigned long long"),
    "cuGraphExecKernelNodeSetParams_v2": (_P, _P, _P),
    "cuGraphLaunch": (_P, _P),
    "cuGraphExecDestroy": (_P,),
}
"""The functions that are used, under the names that libcuda exports, and what they take."""


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle, which is passed by value."""

    _fields_ = (("token", ctypes.c_char * 64),)


# cffi takes structures only with its parser of C.
BY_VALUE: Final = {
    "cuIpcOpenMemHandle_v2": ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_size_t, IpcHandle, ctypes.c_uint
    )
}
"""The functions besides that take a structure, as ctypes has them."""

_CONFIG: Final = struct.Struct("<7I4xQQI4x")
"""CUlaunchConfig of cuda.h: grid, block, shared bytes, stream, attributes and how many."""


class Words:
    """Words of 64 bits in memory, that a function reads or writes.

    Attributes:
        memory: the bytes, to be packed into.
        values: the words.
        address: of them.
    """

    __slots__ = ("_owner", "address", "memory", "values")

    def __init__(self, count: int = 1):
        self.memory = bytearray(8 * count)
        self.values = memoryview(self.memory).cast("Q")
        self._owner = (ctypes.c_char * len(self.memory)).from_buffer(self.memory)
        self.address = ctypes.addressof(self._owner)

    def __getitem__(self, index: int) -> int:
        return self.values[index]

    @classmethod
    def of(cls, *values: int) -> Words:
        """Words that hold these values."""
        words = cls(len(values))
        for index, value in enumerate(values):
            words.values[index] = value
        return words


def launch_config(grid: int, block: int, shared: int, stream: int) -> Words:
    """CUlaunchConfig of blocks and of threads of each along x, and bytes of shared memory."""
    words = Words(_CONFIG.size // 8)
    _CONFIG.pack_into(words.memory, 0, grid, 1, 1, block, 1, 1, shared, stream, 0, 0)
    return words


class Library:
    """The functions of libcuda, as attributes under the names that it exports.

    They return a code, which is 0 for success. The interpreter lock is released during a call.

    Attributes:
        learn: tells a simulated one what PTX a cubin was made of; None of a real one.
    """

    def __init__(
        self, addresses: Mapping[str, int], learn: Callable[[bytes, str], None] | None = None
    ):
        """`addresses` are those of the functions. Raises DeviceError where one is missing."""
        self.learn, self._addresses = learn, addresses
        if missing := [name for name in (*SIGNATURES, *BY_VALUE) if name not in addresses]:
            raise DeviceError(f"this {LIBCUDA} has no {missing[0]}: it is too old; {UPDATE}")
        for name, arguments in SIGNATURES.items():
            signature = f"int(*)({', '.join(arguments)})"
            setattr(self, name, native_function(addresses[name], signature))
        for name, prototype in BY_VALUE.items():
            setattr(self, name, prototype(addresses[name]))

    def address(self, name: str) -> int:
        """Where a function is."""
        return self._addresses[name]

    def bind(self, name: str, *pointers: int) -> Callable[[], int]:
        """A call of a function that takes nothing but pointers, with these.

        It is made again and again: what the function is given is converted once.
        """
        signature = f"int(*)({', '.join(['void *'] * len(pointers))})"
        function = native_function(self._addresses[name], signature)
        return partial(function, *map(native_pointer, pointers))

    def __getattr__(self, name: str) -> Any:
        # For type checkers: all that exist were set above.
        raise AttributeError(name)

    def error_name(self, code: int) -> str:
        """What cuda.h calls a code, and what it says about it."""
        words = Words()
        told = []
        for function in (self.cuGetErrorName, self.cuGetErrorString):
            if function(code, words.address) == 0 and words[0]:
                told.append(ctypes.string_at(words[0]).decode(errors="replace"))
        return ", ".join([f"{told[0]} ({code})", *told[1:]]) if told else f"error {code}"


def load_library(path: str) -> Library:
    """The libcuda at `path`, or where that is empty the one that this system has.

    Raises DeviceError where there is none, where it is no libcuda, and where it is too old.
    """
    system = RealFiles()
    known = libcuda(system)  # the loader does not look into all places
    for place in filter(None, (path,) if path else (LIBCUDA, known)):
        try:
            return Library(_exported(ctypes.CDLL(place)))
        except OSError as error:
            refused = error
    if path:
        raise DeviceError(
            f"CUDA_LIBRARY={path} cannot be loaded ({refused}): give the path of {LIBCUDA}, a file"
            " of NVIDIA's driver, or unset it"
        ) from refused
    if known:
        raise DeviceError(f"{known} cannot be loaded: {refused}") from refused
    raise DeviceError(str(no_libcuda(system))) from refused


def _exported(library: ctypes.CDLL) -> dict[str, int]:
    found = {}
    for name in (*SIGNATURES, *BY_VALUE):
        function = getattr(library, name, None)
        if function is not None:
            found[name] = ctypes.cast(function, ctypes.c_void_p).value or 0
    return found

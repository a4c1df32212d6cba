"""The OpenCL library: loaded, its functions with their types, its errors as ours.

Signatures are those of the OpenCL 3.0 API specification; handles are addresses.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import POINTER, byref, c_char_p, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, Final

from gpu.autogen import opencl as cl
from gpu.core.errors import DeviceError, DeviceLost, GpuError, OutOfMemory

_NAMES: Final = {"darwin": "/System/Library/Frameworks/OpenCL.framework/OpenCL",
                 "win32": "OpenCL.dll"}  # fmt: skip
INSTALL: Final = (
    "install the loader and a driver (Debian: `apt install ocl-icd-libopencl1 pocl-opencl-icd`,"
    " which runs on any CPU)"
)
"""What to do where there is no OpenCL."""

_HANDLES: Final = POINTER(c_void_p)
_SIZES: Final = POINTER(c_size_t)
_ERROR: Final = POINTER(c_int32)
# Return a code.
_CALLS: Final[dict[str, tuple[Any, ...]]] = {
    "clGetPlatformIDs": (c_uint32, _HANDLES, POINTER(c_uint32)),
    "clGetPlatformInfo": (c_void_p, c_uint32, c_size_t, c_void_p, _SIZES),
    "clGetDeviceIDs": (c_void_p, c_uint64, c_uint32, _HANDLES, POINTER(c_uint32)),
    "clGetDeviceInfo": (c_void_p, c_uint32, c_size_t, c_void_p, _SIZES),
    "clGetMemObjectInfo": (c_void_p, c_uint32, c_size_t, c_void_p, _SIZES),
    "clGetImageInfo": (c_void_p, c_uint32, c_size_t, c_void_p, _SIZES),
    "clGetProgramInfo": (c_void_p, c_uint32, c_size_t, c_void_p, _SIZES),
    "clGetProgramBuildInfo": (c_void_p, c_void_p, c_uint32, c_size_t, c_void_p, _SIZES),
    "clGetEventProfilingInfo": (c_void_p, c_uint32, c_size_t, c_void_p, _SIZES),
    "clBuildProgram": (c_void_p, c_uint32, _HANDLES, c_char_p, c_void_p, c_void_p),
    "clSetKernelArg": (c_void_p, c_uint32, c_size_t, c_void_p),
    "clEnqueueNDRangeKernel": (
        *(c_void_p, c_void_p, c_uint32, c_void_p, c_void_p, c_void_p),
        *(c_uint32, c_void_p, c_void_p),
    ),
    "clEnqueueReadBuffer": (
        *(c_void_p, c_void_p, c_uint32, c_size_t, c_size_t, c_void_p),
        *(c_uint32, c_void_p, c_void_p),
    ),
    "clEnqueueWriteBuffer": (
        *(c_void_p, c_void_p, c_uint32, c_size_t, c_size_t, c_void_p),
        *(c_uint32, c_void_p, c_void_p),
    ),
    "clEnqueueCopyBuffer": (
        *(c_void_p, c_void_p, c_void_p, c_size_t, c_size_t, c_size_t),
        *(c_uint32, c_void_p, c_void_p),
    ),
    "clEnqueueReadImage": (
        *(c_void_p, c_void_p, c_uint32, _SIZES, _SIZES, c_size_t, c_size_t, c_void_p),
        *(c_uint32, c_void_p, c_void_p),
    ),
    "clEnqueueWriteImage": (
        *(c_void_p, c_void_p, c_uint32, _SIZES, _SIZES, c_size_t, c_size_t, c_void_p),
        *(c_uint32, c_void_p, c_void_p),
    ),
    "clEnqueueCopyImage": (
        *(c_void_p, c_void_p, c_void_p, _SIZES, _SIZES, _SIZES),
        *(c_uint32, c_void_p, c_void_p),
    ),
    "clEnqueueCopyBufferToImage": (
        *(c_void_p, c_void_p, c_void_p, c_size_t, _SIZES, _SIZES),
        *(c_uint32, c_void_p, c_void_p),
    ),
    "clEnqueueCopyImageToBuffer": (
        *(c_void_p, c_void_p, c_void_p, _SIZES, _SIZES, c_size_t),
        *(c_uint32, c_void_p, c_void_p),
    ),
    "clEnqueueMarkerWithWaitList": (c_void_p, c_uint32, c_void_p, c_void_p),
    "clFinish": (c_void_p,),
    "clWaitForEvents": (c_uint32, _HANDLES),
    "clReleaseEvent": (c_void_p,),
    "clReleaseMemObject": (c_void_p,),
    "clReleaseKernel": (c_void_p,),
    "clReleaseProgram": (c_void_p,),
    "clRetainMemObject": (c_void_p,),
}
# Return a handle, and a code through the last argument.
_MAKERS: Final[dict[str, tuple[Any, ...]]] = {
    "clCreateContext": (c_void_p, c_uint32, _HANDLES, c_void_p, c_void_p, _ERROR),
    "clCreateCommandQueue": (c_void_p, c_void_p, c_uint64, _ERROR),
    "clCreateBuffer": (c_void_p, c_uint64, c_size_t, c_void_p, _ERROR),
    "clCreateSubBuffer": (c_void_p, c_uint64, c_uint32, c_void_p, _ERROR),
    "clCreateImage": (c_void_p, c_uint64, c_void_p, c_void_p, c_void_p, _ERROR),
    "clCreateProgramWithSource": (c_void_p, c_uint32, POINTER(c_char_p), _SIZES, _ERROR),
    "clCreateProgramWithBinary": (
        *(c_void_p, c_uint32, _HANDLES, _SIZES, _HANDLES, POINTER(c_int32), _ERROR),
    ),
    "clCreateKernel": (c_void_p, c_char_p, _ERROR),
}

ERROR_NAMES: Final = {
    value: name for name, value in vars(cl).items() if isinstance(value, int) and value < 0
}
"""The names of error codes."""
_MEMORY_ERRORS: Final = frozenset(
    {
        cl.CL_MEM_OBJECT_ALLOCATION_FAILURE,
        cl.CL_OUT_OF_RESOURCES,
        cl.CL_OUT_OF_HOST_MEMORY,
        cl.CL_INVALID_BUFFER_SIZE,
    }
)
# What calls that were right before give after a device was reset, removed or a kernel crashed.
_LOSSES: Final = frozenset(
    {
        cl.CL_DEVICE_NOT_AVAILABLE,
        cl.CL_INVALID_COMMAND_QUEUE,
        cl.CL_INVALID_CONTEXT,
        cl.CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST,
    }
)


def error_name(code: int) -> str:
    """What the headers call an error code."""
    return ERROR_NAMES.get(code, "an error of its own")


def error_of(code: int, what: str) -> GpuError:
    """The error for a code that a call returned; `what` says what it was to do."""
    text = f"OpenCL cannot {what}: {error_name(code)} ({code})"
    if code in _MEMORY_ERRORS:
        return OutOfMemory(f"{text}; free tensors or use smaller ones")
    if code in _LOSSES:
        return DeviceLost(
            f"{text}; the device is lost to this process: start it again, and look into the"
            " system's log (dmesg) for what happened to the device"
        )
    return DeviceError(text)


class OpenCL:
    """The functions of an OpenCL library, as attributes under their own names.

    Those that return a code are called as they are, and their code given to `check`; handles are
    made by `make`.
    """

    def __init__(self, library: Any):
        """`library` is a `ctypes.CDLL`, or anything with the functions as attributes.

        Raises DeviceError for a library that lacks one of them.
        """
        try:
            for name, arguments in _CALLS.items():
                self._bind(library, name, c_int32, arguments)
            for name, arguments in _MAKERS.items():
                self._bind(library, name, c_void_p, arguments)
        except AttributeError as error:
            raise DeviceError(f"this is no OpenCL 1.2 library: {error}; {INSTALL}") from error

    def _bind(self, library: Any, name: str, result: Any, arguments: tuple[Any, ...]) -> None:
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
        setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def check(self, code: int, what: str) -> None:
        """Raises the error of a code that is not CL_SUCCESS."""
        if code:
            raise error_of(code, what)

    def make(self, name: str, *arguments: object, what: str) -> int:
        """The handle that the function `name` makes. Raises the error of its code."""
        code = c_int32()
        handle = getattr(self, name)(*arguments, byref(code))
        self.check(code.value, what)
        return int(handle or 0)

    def info(self, name: str, *handles: int, key: int) -> bytes:
        """What the function `name` tells of an object under `key`."""
        function, size = getattr(self, name), c_size_t()
        what = f"tell {key:#x} ({name})"
        self.check(function(*handles, key, 0, None, byref(size)), what)
        buffer = ctypes.create_string_buffer(max(size.value, 1))
        self.check(function(*handles, key, size.value, buffer, None), what)
        return buffer.raw[: size.value]

    def text(self, name: str, *handles: int, key: int) -> str:
        """As `info`, of a string."""
        return self.info(name, *handles, key=key).rstrip(b"\0").decode(errors="replace").strip()

    def number(self, name: str, *handles: int, key: int) -> int:
        """As `info`, of an integer or handle of this machine's byte order."""
        return int.from_bytes(self.info(name, *handles, key=key), sys.byteorder)


def load_opencl(path: str) -> OpenCL:
    """The OpenCL library at `path`, or where that is empty the one this system has.

    Raises DeviceError where there is none.
    """
    name = path or _NAMES.get(sys.platform, "libOpenCL.so.1")
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        raise DeviceError(
            f"the OpenCL library {name} cannot be loaded ({error}); {INSTALL}, or set CL_LIBRARY"
            " to the path of one"
        ) from error
    return OpenCL(library)


def handles(*values: int) -> Any:
    """An array of handles, to be passed to a function."""
    return (c_void_p * len(values))(*values)

"""Codes of libcuda's functions as errors of ours, and the other numbers of cuda.h.

All from cuda.h of CUDA 13: CUresult, CUdevice_attribute, CUjit_option and flags.
"""

from __future__ import annotations

import enum
from typing import Final

from gpu.core.errors import CompileError, DeviceError, DeviceLost, GpuError, GpuFault, OutOfMemory


class Result(enum.IntEnum):
    """Codes that are treated each in its own way."""

    INVALID_VALUE = 1
    OUT_OF_MEMORY = 2
    NOT_INITIALIZED = 3
    DEINITIALIZED = 4
    NO_DEVICE = 100
    INVALID_DEVICE = 101
    INVALID_IMAGE = 200
    INVALID_CONTEXT = 201
    MAP_FAILED = 205
    NO_BINARY_FOR_GPU = 209
    PEER_ACCESS_UNSUPPORTED = 217
    INVALID_PTX = 218
    JIT_COMPILER_NOT_FOUND = 221
    UNSUPPORTED_PTX_VERSION = 222
    JIT_COMPILATION_DISABLED = 223
    INVALID_HANDLE = 400
    NOT_READY = 600
    PEER_ACCESS_ALREADY_ENABLED = 704
    CONTEXT_IS_DESTROYED = 709
    TOO_MANY_PEERS = 711
    NOT_PERMITTED = 800
    NOT_SUPPORTED = 801


class Attribute(enum.IntEnum):
    """CUdevice_attribute."""

    MULTIPROCESSOR_COUNT = 16
    COMPUTE_CAPABILITY_MAJOR = 75
    COMPUTE_CAPABILITY_MINOR = 76


class PointerAttribute(enum.IntEnum):
    """CUpointer_attribute."""

    CONTEXT = 1
    MEMORY_TYPE = 2
    DEVICE_ORDINAL = 9
    RANGE_START = 11
    RANGE_SIZE = 12


SUCCESS: Final = 0
STREAM_NON_BLOCKING: Final = 1
EVENT_DEFAULT: Final = 0
EVENT_DISABLE_TIMING: Final = 2
FUNCTION_DYNAMIC_SHARED: Final = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES."""
JIT_ERROR_LOG: Final = (5, 6)
"""CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES."""
LAUNCH_BUFFER, LAUNCH_BUFFER_SIZE, LAUNCH_END = 1, 2, 0
"""CU_LAUNCH_PARAM_*: what `extra` of a launch lists."""

FAULTS: Final = {
    214: "memory had an error that could not be corrected",
    220: "NVLink had an error that could not be corrected",
    226: "an error was contained, and ended this context",
    700: "a kernel touched an address that no memory has",
    702: "a kernel ran for longer than the system allows",
    710: "a kernel reported a failed assertion",
    714: "a kernel's stack was corrupted or too small",
    715: "a kernel came to an instruction that there is not",
    716: "a kernel touched an address that is not aligned",
    717: "a kernel touched an address of the wrong kind of memory",
    718: "a kernel jumped to where no code is",
    719: "a kernel failed",
    721: "a kernel ended with tensor memory of its own",
}
"""Codes after which a context cannot be used: every later call gives them again."""
_LOST: Final = frozenset(
    {Result.NOT_INITIALIZED, Result.DEINITIALIZED, Result.CONTEXT_IS_DESTROYED}
)
_COMPILING: Final = {
    Result.INVALID_PTX: "",
    Result.JIT_COMPILER_NOT_FOUND: (
        "; its compiler, libnvidia-ptxjitcompiler.so.1, is a file of the driver beside libcuda"
    ),
    Result.UNSUPPORTED_PTX_VERSION: (
        "; the driver is older than the compiler that made this PTX: update the driver, or install"
        " an nvrtc of its version"
    ),
    Result.JIT_COMPILATION_DISABLED: "; it is disabled by CUDA_DISABLE_PTX_JIT",
}


def error_of(code: int, name: str, what: str) -> GpuError:
    """The error for a code, called `name`, of a call that was to do `what`."""
    text = f"CUDA cannot {what}: {name}"
    if code in FAULTS:
        return GpuFault(f"{text}: {FAULTS[code]}")
    if code == Result.OUT_OF_MEMORY:
        return OutOfMemory(f"{text}; free tensors or use smaller ones")
    if code in _COMPILING:
        return CompileError(f"{text}{_COMPILING[Result(code)]}")
    if code in _LOST:
        return DeviceLost(f"{text}; what held the GPU is gone: start the process again")
    return DeviceError(text)

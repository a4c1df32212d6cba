"""Launches of kernels: section 6.23."""

from __future__ import annotations

import ctypes
from typing import Final

from gpu.sim.cuda.attributes import capability
from gpu.sim.cuda.codes import (
    COOPERATIVE_LAUNCH_TOO_LARGE,
    INVALID_HANDLE,
    INVALID_VALUE,
    NOT_SUPPORTED,
    CudaError,
)
from gpu.sim.cuda.driver import Call
from gpu.sim.cuda.entry import export, get32, get64, get_bytes
from gpu.sim.cuda.kernels import Configuration, Launch, Running, check
from gpu.sim.cuda.modules import Function

_END, _BUFFER, _BUFFER_SIZE = 0, 1, 2  # CU_LAUNCH_PARAM_*
_ATTRIBUTE: Final = 72  # bytes of a CUlaunchAttribute; its value is 8 bytes behind its id
# CUlaunchAttributeID.
_COOPERATIVE: Final = 2
_CLUSTER: Final = 4
_HINTS: Final = (0, 1, 3, 8, 9, 10, 14)  # what changes no result
_MOST_EXTRA: Final = 16


def pack(function: Function, pointers: int, extra: int) -> bytes:
    """The parameters of a launch, from one of the two ways to give them. Raises CudaError."""
    if pointers and extra:
        raise CudaError(INVALID_VALUE, "parameters are given twice, by kernelParams and by extra")
    packed = bytearray(function.program.parameter_bytes)
    if extra:
        given = _extra(extra)
        if len(given) < len(packed):
            raise CudaError(
                INVALID_VALUE,
                f"{len(given)} bytes of parameters: {function.name} takes {len(packed)}",
            )
        return given[: len(packed)]
    for number, (offset, size) in enumerate(function.parameters):
        if not pointers:
            raise CudaError(INVALID_VALUE, f"{function.name} takes parameters, none are given")
        pointer = get64(pointers + 8 * number)
        packed[offset : offset + size] = get_bytes(pointer, size, f"parameter {number}")
    return bytes(packed)


def _extra(extra: int) -> bytes:
    """The buffer that CU_LAUNCH_PARAM_BUFFER_POINTER and its size name."""
    found: dict[int, int] = {}
    for number in range(_MOST_EXTRA):
        kind = get64(extra + 16 * number)
        if kind == _END:
            break
        if kind not in (_BUFFER, _BUFFER_SIZE):
            raise CudaError(INVALID_VALUE, f"{kind:#x} among the extra options of a launch")
        found[kind] = get64(extra + 16 * number + 8)
    if len(found) != 2:
        raise CudaError(INVALID_VALUE, "extra names no buffer of parameters and its size")
    return get_bytes(found[_BUFFER], get64(found[_BUFFER_SIZE]), "the buffer of parameters")


def prepare(
    call: Call, handle: int, configuration: Configuration, pointers: int, extra: int
) -> Launch:
    """A launch that may be queued. Raises CudaError."""
    function = call.driver.handles.get(handle, Function)
    if function.module.context is not call.context:
        raise CudaError(INVALID_HANDLE, f"{function.name} is of another context")
    check(function, configuration)
    return Launch(function, configuration, pack(function, pointers, extra))


def _launch(call: Call, launch: Launch, stream: int) -> None:
    queue = call.own_stream(stream)
    call.driver.work.submit(queue, launch.name, Running(call.driver, launch))


@export("cuLaunchKernel", "puuuuuuuppp", twin="ptsz", since=4000)
def _launch_kernel(call: Call, function: int, *rest: int) -> None:
    (gx, gy, gz, bx, by, bz, dynamic, stream, pointers, extra) = rest
    configuration = Configuration((gx, gy, gz), (bx, by, bz), dynamic)
    _launch(call, prepare(call, function, configuration, pointers, extra), stream)


@export("cuLaunchCooperativeKernel", "puuuuuuupp", twin="ptsz", since=9000)
def _launch_cooperative(call: Call, function: int, *rest: int) -> None:
    (gx, gy, gz, bx, by, bz, dynamic, stream, pointers) = rest
    configuration = Configuration((gx, gy, gz), (bx, by, bz), dynamic)
    launch = prepare(call, function, configuration, pointers, 0)
    _check_cooperative(launch)
    _launch(call, launch, stream)


def _check_cooperative(launch: Launch) -> None:
    function, (grid, block, dynamic) = launch.function, launch.configuration
    threads, blocks = block[0] * block[1] * block[2], grid[0] * grid[1] * grid[2]
    held = function.blocks_per_sm(threads, dynamic) * function.module.context.device.chip.sms
    if blocks > held:
        raise CudaError(
            COOPERATIVE_LAUNCH_TOO_LARGE, f"{blocks} blocks; {held} are there at a time"
        )
    if blocks > 1:
        raise CudaError(NOT_SUPPORTED, "cooperative grids of several blocks are not modelled")


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "dynamic")),
        ("stream", ctypes.c_uint64),
        ("attributes", ctypes.c_uint64),
        ("count", ctypes.c_uint),
    ]


@export("cuLaunchKernelEx", "pppp", twin="ptsz", since=11060)
def _launch_with(call: Call, config: int, function: int, pointers: int, extra: int) -> None:
    if not config:
        raise CudaError(INVALID_VALUE, "the configuration is NULL")
    c = _Config.from_address(config)
    configuration = Configuration((c.gx, c.gy, c.gz), (c.bx, c.by, c.bz), c.dynamic)
    launch = prepare(call, function, configuration, pointers, extra)
    for number in range(c.count):
        at = c.attributes + _ATTRIBUTE * number
        _apply(call, launch, get32(at, "the attributes"), at + 8)
    _launch(call, launch, c.stream)


def _apply(call: Call, launch: Launch, attribute: int, value: int) -> None:
    if attribute == _COOPERATIVE:
        if get32(value):
            _check_cooperative(launch)
    elif attribute == _CLUSTER:
        sizes = [get32(value + 4 * axis) for axis in range(3)]
        if capability(call.context.device.chip) < (9, 0) or sizes != [1, 1, 1]:
            raise CudaError(NOT_SUPPORTED, f"a cluster of {sizes} blocks is not modelled")
    elif attribute not in _HINTS:
        raise CudaError(NOT_SUPPORTED, f"launch attribute {attribute} is not modelled")

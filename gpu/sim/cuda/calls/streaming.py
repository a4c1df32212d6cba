"""Streams, and functions of the program in them: sections 6.18 and 6.23."""

from __future__ import annotations

import ctypes

from gpu.sim.cuda.calls.contexts import GREATEST_PRIORITY
from gpu.sim.cuda.codes import (
    INVALID_VALUE,
    NOT_READY,
    SUCCESS,
    CudaError,
)
from gpu.sim.cuda.context import Context
from gpu.sim.cuda.driver import Call, Driver
from gpu.sim.cuda.entry import export, put32, put64
from gpu.sim.cuda.work import Kind, Op, Run, Stream

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)


@export("cuStreamCreate", "pu")
def _create(call: Call, result: int, flags: int) -> None:
    _create_with_priority(call, result, flags, 0)


@export("cuStreamCreateWithPriority", "pui", since=5050)
def _create_with_priority(call: Call, result: int, flags: int, priority: int) -> None:
    if flags not in (0, _NON_BLOCKING) or not result:
        raise CudaError(INVALID_VALUE, f"flags {flags:#x} of a stream, or no place for it")
    # A priority beyond the range is brought into it.
    clamped = max(GREATEST_PRIORITY, min(0, priority))
    context = call.context
    kind: Kind = "non-blocking" if flags else "blocking"
    stream = Stream(context, kind, flags=flags, priority=clamped)
    put64(result, call.driver.own(context, stream))


@export("cuStreamDestroy_v2", "p", needs="driver", since=4000)
def _destroy(call: Call, handle: int) -> None:
    stream = call.driver.handles.get(handle, Stream)
    context = stream.space
    assert isinstance(context, Context)
    context.check()
    stream.end()
    call.driver.disown(context, handle)


@export("cuStreamSynchronize", "p", twin="ptsz")
def _synchronize(call: Call, handle: int) -> None:
    stream = call.stream(handle)
    call.wait([stream.tail] if stream.kind != "legacy" else [*stream.before()])


@export("cuStreamQuery", "p", twin="ptsz")
def _query(call: Call, handle: int) -> None:
    stream = call.stream(handle)
    tails = [stream.tail] if stream.kind != "legacy" else [*stream.before()]
    done = [call.driver.work.look(op) for op in tails]
    call.context.check()
    if not all(done):
        raise CudaError(NOT_READY, f"{stream.name} has work")


@export("cuStreamGetFlags", "pp", twin="ptsz", since=5050)
def _flags(call: Call, handle: int, result: int) -> None:
    put32(result, call.stream(handle).flags)


@export("cuStreamGetPriority", "pp", twin="ptsz", since=5050)
def _priority(call: Call, handle: int, result: int) -> None:
    put32(result, call.stream(handle).priority & 0xFFFFFFFF)


@export("cuStreamGetCtx", "pp", twin="ptsz", since=9020)
def _context(call: Call, handle: int, result: int) -> None:
    stream = call.stream(handle)
    found = [c for c in call.driver.all_contexts() if c is stream.space]
    put64(result, found[0].handle)


@export("cuStreamGetId", "pp", twin="ptsz", since=12000)
def _id(call: Call, handle: int, result: int) -> None:
    put64(result, call.stream(handle).id)


@export("cuStreamIsCapturing", "pp", twin="ptsz", since=10000)
def _is_capturing(call: Call, handle: int, result: int) -> None:
    call.stream(handle)
    put32(result, 0)  # CU_STREAM_CAPTURE_STATUS_NONE: capture is not modelled


def host_function(driver: Driver, function: int, data: int) -> Run:
    """Work that calls a function of the program, which must make no calls itself."""

    def run(_: Op) -> bool:
        driver.thread.in_callback = True
        try:
            _HOST_FUNCTION(function)(data)
        finally:
            driver.thread.in_callback = False
        return True

    return run


@export("cuLaunchHostFunc", "ppp", twin="ptsz", since=10000)
def _launch_host(call: Call, handle: int, function: int, data: int) -> None:
    stream = call.own_stream(handle)
    if not function:
        raise CudaError(INVALID_VALUE, "the function is NULL")
    call.driver.work.submit(stream, "host function", host_function(call.driver, function, data))


@export("cuStreamAddCallback", "pppu", twin="ptsz", since=5000)
def _add_callback(call: Call, handle: int, function: int, data: int, flags: int) -> None:
    stream, driver = call.own_stream(handle), call.driver
    if not function or flags:
        raise CudaError(INVALID_VALUE, f"a callback at {function:#x} with flags {flags:#x}")

    def run(_: Op) -> bool:
        driver.thread.in_callback = True
        try:
            _CALLBACK(function)(handle, SUCCESS, data)
        finally:
            driver.thread.in_callback = False
        return True

    driver.work.submit(stream, "callback", run)

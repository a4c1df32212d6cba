"""Primary contexts, contexts, and which of them a thread has: sections 6.7 and 6.8."""

from __future__ import annotations

from gpu.sim.cuda.codes import (
    INVALID_CONTEXT,
    INVALID_VALUE,
    PEER_ACCESS_ALREADY_ENABLED,
    PEER_ACCESS_NOT_ENABLED,
    PEER_ACCESS_UNSUPPORTED,
    UNSUPPORTED_LIMIT,
    CudaError,
)
from gpu.sim.cuda.context import FLAGS, SCHEDULES, Context
from gpu.sim.cuda.driver import Call
from gpu.sim.cuda.entry import export, put32, put64
from gpu.sim.cuda.memory import EVERY
from gpu.sim.isa import layout

_API: int = 3020  # what contexts of cuCtxCreate_v2 and later say of themselves
GREATEST_PRIORITY: int = -5


def _check_flags(flags: int) -> None:
    if flags & ~FLAGS or flags & 7 not in SCHEDULES:
        raise CudaError(INVALID_VALUE, f"flags {flags:#x} of a context")


@export("cuDevicePrimaryCtxRetain", "pi", needs="driver", since=7000)
def _retain(call: Call, result: int, ordinal: int) -> None:
    device = call.driver.device(ordinal)
    if not result:
        raise CudaError(INVALID_VALUE, "where the context goes is NULL")
    if device.primary is None:
        device.primary = call.driver.new_context(device, device.flags, is_primary=True)
    device.retained += 1
    put64(result, device.primary.handle)


def _end_primary(call: Call, ordinal: int) -> None:
    device = call.driver.device(ordinal)
    context, device.primary = device.primary, None
    device.retained = 0
    if context is not None:
        call.driver.destroy(context)


@export("cuDevicePrimaryCtxRelease_v2", "i", needs="driver", since=11000)
def _release(call: Call, ordinal: int) -> None:
    device = call.driver.device(ordinal)
    if not device.retained:
        raise CudaError(INVALID_CONTEXT, "the primary context is not retained")
    device.retained -= 1
    if not device.retained:
        _end_primary(call, ordinal)


@export("cuDevicePrimaryCtxReset_v2", "i", needs="driver", since=11000)
def _reset(call: Call, ordinal: int) -> None:
    _end_primary(call, ordinal)


@export("cuDevicePrimaryCtxSetFlags_v2", "iu", needs="driver", since=11000)
def _set_primary_flags(call: Call, ordinal: int, flags: int) -> None:
    device = call.driver.device(ordinal)
    _check_flags(flags)
    device.flags = flags
    if device.primary is not None:
        device.primary.flags = flags


@export("cuDevicePrimaryCtxGetState", "ipp", needs="driver", since=7000)
def _primary_state(call: Call, ordinal: int, flags: int, active: int) -> None:
    device = call.driver.device(ordinal)
    put32(flags, device.flags)
    put32(active, int(device.primary is not None))


@export("cuCtxCreate_v2", "pui", needs="driver", since=3020)
def _create(call: Call, result: int, flags: int, ordinal: int) -> None:
    device = call.driver.device(ordinal)
    _check_flags(flags)
    if not result:
        raise CudaError(INVALID_VALUE, "where the context goes is NULL")
    context = call.driver.new_context(device, flags, is_primary=False)
    call.driver.thread.contexts.append(context)
    put64(result, context.handle)


@export("cuCtxCreate_v4", "ppui", needs="driver", since=12050)
def _create_with(call: Call, result: int, parameters: int, flags: int, ordinal: int) -> None:
    if parameters:
        raise CudaError(INVALID_VALUE, "execution affinities and graphics are not modelled")
    _create(call, result, flags, ordinal)


@export("cuCtxDestroy_v2", "p", needs="driver", since=4000)
def _destroy(call: Call, handle: int) -> None:
    context = call.driver.context(handle)
    if context.is_primary:
        raise CudaError(INVALID_CONTEXT, "a primary context is released, not destroyed")
    stack = call.driver.thread.contexts
    if stack and stack[-1] is context:
        stack.pop()
    call.driver.destroy(context)


@export("cuCtxPushCurrent_v2", "p", needs="driver", since=4000)
def _push(call: Call, handle: int) -> None:
    call.driver.thread.contexts.append(call.driver.context(handle))


@export("cuCtxPopCurrent_v2", "p", needs="driver", since=4000)
def _pop(call: Call, result: int) -> None:
    stack = call.driver.thread.contexts
    if not stack:
        raise CudaError(INVALID_CONTEXT, "the thread has no current context")
    context = stack.pop()
    if result:
        put64(result, context.handle)


@export("cuCtxSetCurrent", "p", needs="driver", since=4000)
def _set_current(call: Call, handle: int) -> None:
    stack = call.driver.thread.contexts
    context = call.driver.context(handle) if handle else None
    if stack:
        stack.pop()
    if context is not None:
        stack.append(context)


@export("cuCtxGetCurrent", "p", needs="driver", since=4000)
def _current(call: Call, result: int) -> None:
    stack = call.driver.thread.contexts
    put64(result, stack[-1].handle if stack else 0)


@export("cuCtxGetDevice", "p", needs="driver")
def _device(call: Call, result: int) -> None:
    put32(result, call.context.device.index)


@export("cuCtxGetFlags", "p", needs="driver", since=7000)
def _flags(call: Call, result: int) -> None:
    put32(result, call.context.flags)


@export("cuCtxGetId", "pp", needs="driver", since=12000)
def _id(call: Call, handle: int, result: int) -> None:
    context = call.driver.context(handle) if handle else call.context
    put64(result, context.number)


@export("cuCtxGetApiVersion", "pp", needs="driver", since=3020)
def _api_version(call: Call, handle: int, result: int) -> None:
    if handle:
        call.driver.context(handle)
    put32(result, _API)


@export("cuCtxSynchronize", "")
def _synchronize(call: Call) -> None:
    call.synchronize()


@export("cuCtxGetStreamPriorityRange", "pp", since=5050)
def _priorities(call: Call, least: int, greatest: int) -> None:
    if least:
        put32(least, 0)
    if greatest:
        put32(greatest, GREATEST_PRIORITY & 0xFFFFFFFF)


def _limit_of(context: Context, limit: int) -> int:
    if limit not in context.limits:
        raise CudaError(UNSUPPORTED_LIMIT, f"limit {limit} is not there")
    return context.limits[limit]


@export("cuCtxGetLimit", "pi", since=3010)
def _limit(call: Call, result: int, limit: int) -> None:
    put64(result, _limit_of(call.context, limit))


@export("cuCtxSetLimit", "iz", since=3010)
def _set_limit(call: Call, limit: int, value: int) -> None:
    _limit_of(call.context, limit)
    call.context.limits[limit] = value


@export("cuCtxGetCacheConfig", "p", since=3020)
def _cache_config(call: Call, result: int) -> None:
    put32(result, call.context.cache_config)


@export("cuCtxSetCacheConfig", "i", since=3020)
def _set_cache_config(call: Call, config: int) -> None:
    if not 0 <= config <= 3:
        raise CudaError(INVALID_VALUE, f"cache configuration {config}")
    call.context.cache_config = config


@export("cuCtxEnablePeerAccess", "pu", since=4000)
def _enable_peer(call: Call, handle: int, flags: int) -> None:
    context, peer = call.context, call.driver.context(handle)
    if flags:
        raise CudaError(INVALID_VALUE, f"flags {flags:#x} of peer access; they must be 0")
    if context is peer:
        raise CudaError(INVALID_CONTEXT, "a context is no peer of its own")
    if context.device.chip is not peer.device.chip or context.device is peer.device:
        raise CudaError(PEER_ACCESS_UNSUPPORTED, "two devices of one chip are peers")
    if peer in context.peers:
        raise CudaError(PEER_ACCESS_ALREADY_ENABLED, "the context has access already")
    context.peers.add(peer)
    peer.watchers.add(context)
    for each in peer.allocations:
        context.map.add(each.start, each.reach, each.host, layout.READ if each.is_host else EVERY)


@export("cuCtxDisablePeerAccess", "p", since=4000)
def _disable_peer(call: Call, handle: int) -> None:
    context, peer = call.context, call.driver.context(handle)
    if peer not in context.peers:
        raise CudaError(PEER_ACCESS_NOT_ENABLED, "the context has no access")
    call.synchronize()
    context.peers.discard(peer)
    peer.watchers.discard(context)
    for each in peer.allocations:
        context.map.remove(each.start)

"""Calls on contexts: their making and end, timestamps, faults (kgsl.c, adreno_drawctxt.c)."""

from __future__ import annotations

import ctypes
import errno
from typing import Final

from gpu.autogen import kgsl
from gpu.sim.kernel import SysError
from gpu.sim.kgsl.driver.call import Call
from gpu.sim.kgsl.driver.contexts import Context
from gpu.sim.kgsl.driver.dispatcher import MS

_NEEDED: Final = kgsl.KGSL_CONTEXT_PREAMBLE | kgsl.KGSL_CONTEXT_NO_GMEM_ALLOC
_MEDIUM: Final = 8 << kgsl.KGSL_CONTEXT_PRIORITY_SHIFT
_FOR_EVER_MS: Final = 0x7FFF_FFFF  # msecs_to_jiffies: more than an int never ends
_FAULT_SIZE: Final = ctypes.sizeof(kgsl.kgsl_fault)


def create(call: Call[kgsl.kgsl_drawctxt_create]) -> None:
    """DRAWCTXT_CREATE."""
    args, release = call.args, call.device.release
    flags = args.flags & release.context_flags
    if flags & _NEEDED != _NEEDED:
        raise SysError(errno.EINVAL, "contexts need PREAMBLE and NO_GMEM_ALLOC")
    if flags & kgsl.KGSL_CONTEXT_SECURE:
        raise SysError(errno.EOPNOTSUPP, "there are no secure contexts here")
    if flags & kgsl.KGSL_CONTEXT_LPAC:
        raise SysError(errno.EOPNOTSUPP, "LPAC is off")
    flags |= kgsl.KGSL_CONTEXT_PER_CONTEXT_TS
    if not flags & kgsl.KGSL_CONTEXT_PRIORITY_MASK:
        flags |= _MEDIUM
    context = call.device.new_context(call.owner, call.file, flags)
    args.flags, args.drawctxt_id = flags, context.id


def destroy(call: Call[kgsl.kgsl_drawctxt_destroy]) -> None:
    """DRAWCTXT_DESTROY."""
    call.device.detach(call.device.context(call.owner, call.args.drawctxt_id))


def wait_timestamp(call: Call[kgsl.kgsl_device_waittimestamp_ctxtid]) -> None:
    """WAITTIMESTAMP_CTXTID (`adreno_drawctxt_wait`)."""
    args, device = call.args, call.device
    context = device.context(call.owner, args.context_id)
    if context.is_detached:
        raise SysError(errno.ENOENT, f"{context} is being destroyed")
    if context.is_invalid:
        raise SysError(errno.EDEADLK, f"{context} is invalid")
    if not context.chooses_timestamps and context.is_ahead(args.timestamp):
        raise SysError(errno.EINVAL, f"timestamp {args.timestamp} was not queued yet")
    _wait(call, context, args.timestamp, args.timeout)
    if context.is_detached:
        raise SysError(errno.ENOENT, f"{context} was destroyed meanwhile")
    if context.is_invalid:
        raise SysError(errno.EDEADLK, f"{context} became invalid meanwhile")


def _wait(
    call: Call[kgsl.kgsl_device_waittimestamp_ctxtid], context: Context, wanted: int, timeout: int
) -> None:
    machine = call.device.machine

    def is_over() -> bool:
        return context.is_bad or context.has_noticed(wanted)

    if context.has_retired(wanted):
        return
    for_ever = timeout == 0 or timeout > _FOR_EVER_MS
    start = machine.clock.now_ns
    machine.wait(is_over, (_FOR_EVER_MS if for_ever else timeout) * MS)
    if is_over():
        return
    if for_ever:
        raise machine.stuck(f"WAITTIMESTAMP of {context} for {wanted} without a timeout")
    assert machine.clock.now_ns >= start
    raise SysError(errno.ETIMEDOUT, f"timestamp {wanted} of {context}; {context.retired} is over")


def read_timestamp(call: Call[kgsl.kgsl_cmdstream_readtimestamp_ctxtid]) -> None:
    """CMDSTREAM_READTIMESTAMP_CTXTID."""
    args = call.args
    context = call.device.context(call.owner, args.context_id)
    if args.type == kgsl.KGSL_TIMESTAMP_QUEUED:
        args.timestamp = context.timestamp
    elif args.type == kgsl.KGSL_TIMESTAMP_CONSUMED:
        args.timestamp = context.consumed
    elif args.type == kgsl.KGSL_TIMESTAMP_RETIRED:
        args.timestamp = context.retired
    else:
        raise SysError(errno.EINVAL, f"there is no timestamp of type {args.type}")


def fault_report(call: Call[kgsl.kgsl_fault_report]) -> None:
    """GET_FAULT_REPORT: of an invalid context that was made with FAULT_INFO."""
    args = call.args
    context = call.device.context(call.owner, args.context_id)
    if not context.flags & kgsl.KGSL_CONTEXT_FAULT_INFO:
        raise SysError(errno.EINVAL, f"{context} was made without FAULT_INFO")
    if not context.is_invalid:
        raise SysError(errno.EINVAL, f"{context} is not invalid")
    if not args.faultlist:
        args.faultnents = kgsl.KGSL_FAULT_TYPE_MAX
        return
    size = min(args.faultsize, _FAULT_SIZE)
    given = [
        kgsl.kgsl_fault.from_buffer_copy(
            call.user.read(args.faultlist + i * args.faultsize, size).ljust(_FAULT_SIZE, b"\0")
        )
        for i in range(args.faultnents)
    ]
    if not any(each.fault for each in given):
        if context.faults and given:
            found = kgsl.kgsl_fault(type=kgsl.KGSL_FAULT_TYPE_PAGEFAULT, count=len(context.faults))
            call.user.write(args.faultlist, bytes(found)[:size])
        return
    _tell_faults(call, context, given)


def _tell_faults(
    call: Call[kgsl.kgsl_fault_report], context: Context, given: list[kgsl.kgsl_fault]
) -> None:
    """`kgsl_update_fault_details`."""
    if any(each.type >= kgsl.KGSL_FAULT_TYPE_MAX for each in given):
        raise SysError(errno.EINVAL, "there is no such type of fault")
    pages = [each for each in given if each.type == kgsl.KGSL_FAULT_TYPE_PAGEFAULT]
    if not pages:
        return
    place = pages[-1]
    for i, fault in enumerate(context.faults[: place.count]):
        report = kgsl.kgsl_pagefault_report(fault_addr=fault.address, fault_type=fault.type)
        call.user.write(place.fault + i * place.size, bytes(report)[: place.size])

"""DEVICE_GETPROPERTY and SETPROPERTY (kgsl.c, adreno.c)."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Callable, Mapping
from typing import Final

from gpu.autogen import kgsl
from gpu.sim.kernel import SysError
from gpu.sim.kgsl.driver.call import Call
from gpu.sim.kgsl.driver.device import Device

MEMSTORE_TOKEN: Final = 0xF000_0000 - 4096
"""What the offset of an mmap of the memstore is (kgsl_iommu.h, KGSL_MEMSTORE_TOKEN_ADDRESS)."""
_MICROCODE: Final = 0x016E_D0AC  # of the packet processor: a number that public logs show
_LEVELS: Final = 2  # KGSL_CONSTRAINT_PWR_MIN and _MAX


def _info(device: Device) -> bytes:
    chip = device.gpu.chip
    return bytes(
        kgsl.kgsl_devinfo(
            device_id=1,
            chip_id=chip.chip_id,
            mmu_enabled=1,
            gmem_gpubaseaddr=0,
            gpu_id=chip.revision if device.release.names_gpu else 0,
            gmem_sizebytes=chip.gmem,
        )
    )


def _shadow(device: Device) -> bytes:
    flags = kgsl.KGSL_FLAGS_INITIALIZED | kgsl.KGSL_FLAGS_PER_CONTEXT_TIMESTAMPS
    size = device.memstore.size
    return bytes(kgsl.kgsl_shadowprop(gpuaddr=MEMSTORE_TOKEN, size=size, flags=flags))


def _version(device: Device) -> bytes:
    version = (kgsl.KGSL_VERSION_MAJOR, kgsl.KGSL_VERSION_MINOR, 3, 1)
    return bytes(kgsl.kgsl_version(*version))


def _microcode(device: Device) -> bytes:
    return bytes(kgsl.kgsl_ucode_version(pfp=_MICROCODE, pm4=_MICROCODE))


def _model(device: Device) -> bytes:
    return bytes(kgsl.kgsl_gpu_model(gpu_model=f"Adreno{device.gpu.chip.revision}v1".encode()))


def _word(value: Callable[[Device], int]) -> Callable[[Device], bytes]:
    return lambda device: value(device).to_bytes(4, "little")


def _wide(value: Callable[[Device], int]) -> Callable[[Device], bytes]:
    return lambda device: value(device).to_bytes(8, "little")


_OF_ALL: Final[Mapping[int, Callable[[Device], bytes]]] = {
    kgsl.KGSL_PROP_DEVICE_INFO: _info,
    kgsl.KGSL_PROP_DEVICE_SHADOW: _shadow,
    kgsl.KGSL_PROP_MMU_ENABLE: _word(lambda d: 1),
    kgsl.KGSL_PROP_INTERRUPT_WAITS: _word(lambda d: 1),
    kgsl.KGSL_PROP_VERSION: _version,
    kgsl.KGSL_PROP_UCHE_GMEM_VADDR: _wide(lambda d: max(d.gpu.chip.gmem, 1 << 20)),
    kgsl.KGSL_PROP_UCODE_VERSION: _microcode,
    kgsl.KGSL_PROP_HIGHEST_BANK_BIT: _word(lambda d: d.gpu.chip.bank_bit),
    kgsl.KGSL_PROP_DEVICE_BITNESS: _word(lambda d: 48),
    kgsl.KGSL_PROP_MIN_ACCESS_LENGTH: _word(lambda d: 32),
    kgsl.KGSL_PROP_UBWC_MODE: _word(lambda d: 2),
    kgsl.KGSL_PROP_SECURE_BUFFER_ALIGNMENT: _word(lambda d: 4096),
    kgsl.KGSL_PROP_SECURE_CTXT_SUPPORT: _word(lambda d: 0),
    kgsl.KGSL_PROP_SPEED_BIN: _word(lambda d: 0),
}
_OF_THE_MODULE: Final[Mapping[int, Callable[[Device], bytes]]] = {
    kgsl.KGSL_PROP_GPU_MODEL: _model,
    kgsl.KGSL_PROP_VK_DEVICE_ID: _word(lambda d: d.gpu.chip.chip_id),
    kgsl.KGSL_PROP_IS_LPAC_ENABLED: _word(lambda d: 0),
    kgsl.KGSL_PROP_GPU_VA64_SIZE: _wide(lambda d: len(d.release.va)),
    kgsl.KGSL_PROP_IS_RAYTRACING_ENABLED: _word(lambda d: 0),
    kgsl.KGSL_PROP_IS_FASTBLEND_ENABLED: _word(lambda d: 0),
}
# Whose size has to be right in all releases (kgsl.c, `kgsl_property_funcs`).
_EXACT: Final = {
    *(kgsl.KGSL_PROP_VERSION, kgsl.KGSL_PROP_SECURE_BUFFER_ALIGNMENT),
    *(kgsl.KGSL_PROP_SECURE_CTXT_SUPPORT, kgsl.KGSL_PROP_GPU_VA64_SIZE),
}


def get_property(call: Call[kgsl.kgsl_device_getproperty]) -> None:
    """DEVICE_GETPROPERTY."""
    args, device = call.args, call.device
    if args.type == kgsl.KGSL_PROP_GPU_RESET_STAT:
        _reset_status(call)
        return
    if args.type == kgsl.KGSL_PROP_CONTEXT_PROPERTY and device.release.name == "2025":
        _context_property(call)
        return
    made = _OF_ALL.get(args.type)
    if made is None and device.release.name == "2025":
        made = _OF_THE_MODULE.get(args.type)
    if made is None:
        raise SysError(device.release.no_property, f"there is no property {args.type}")
    data = made(device)
    is_exact = device.release.exact_sizes or args.type in _EXACT
    if is_exact and args.sizebytes != len(data):
        raise SysError(errno.EINVAL, f"property {args.type} has {len(data)} bytes")
    call.user.write(args.value, data[: args.sizebytes & 0xFFFF_FFFF])


def _reset_status(call: Call[kgsl.kgsl_device_getproperty]) -> None:
    """`kgsl_prop_gpu_reset_stat`: of a context, and forgets it."""
    args = call.args
    if args.sizebytes != 4:
        raise SysError(errno.EINVAL, "the number of a context is 4 bytes")
    number = int.from_bytes(call.user.read(args.value, 4), "little")
    context = call.device.context(call.owner, number)
    status, context.reset_status = context.reset_status, kgsl.KGSL_CTX_STAT_NO_ERROR
    call.user.write(args.value, status.to_bytes(4, "little"))


def _context_property(call: Call[kgsl.kgsl_device_getproperty]) -> None:
    """`kgsl_get_ctxt_properties`: how often a context faulted."""
    args, size = call.args, ctypes.sizeof(kgsl.kgsl_context_property)
    if not args.sizebytes:
        args.sizebytes = size
        return
    given = call.user.read(args.value, min(args.sizebytes, size)).ljust(size, b"\0")
    asked = kgsl.kgsl_context_property.from_buffer_copy(given)
    if not asked.type:
        raise SysError(errno.EINVAL, "property 0 of a context")
    context = call.device.context(call.owner, asked.contextid)
    if asked.type != kgsl.KGSL_CONTEXT_PROP_FAULTS:
        raise SysError(errno.EOPNOTSUPP, f"there is no property {asked.type} of contexts")
    if asked.size:
        found = kgsl.kgsl_context_property_fault(context.total_faults, context.last_faulted)
        call.user.write(asked.data, bytes(found)[: asked.size])


def set_property(call: Call[kgsl.kgsl_device_getproperty]) -> None:
    """SETPROPERTY: PWR_CONSTRAINT (`adreno_set_constraint`)."""
    args = call.args
    if args.type != kgsl.KGSL_PROP_PWR_CONSTRAINT:
        raise SysError(errno.EINVAL, f"property {args.type} cannot be set")
    if args.sizebytes != ctypes.sizeof(kgsl.kgsl_device_constraint):
        raise SysError(errno.EINVAL, f"a constraint of {args.sizebytes} bytes")
    wanted = call.user.read_struct(args.value, kgsl.kgsl_device_constraint)
    context = call.device.context(call.owner, wanted.context_id)
    if wanted.type == kgsl.KGSL_CONSTRAINT_PWRLEVEL:
        if wanted.size != ctypes.sizeof(kgsl.kgsl_device_constraint_pwrlevel):
            raise SysError(errno.EINVAL, f"a power level of {wanted.size} bytes")
        level = call.user.read_struct(wanted.data, kgsl.kgsl_device_constraint_pwrlevel).level
        if level >= _LEVELS:
            raise SysError(errno.EINVAL, f"there is no power level {level}")
    elif wanted.type != kgsl.KGSL_CONSTRAINT_NONE:
        raise SysError(errno.EINVAL, f"there is no constraint {wanted.type} here")
    if not context.flags & kgsl.KGSL_CONTEXT_PWR_CONSTRAINT and wanted.type:
        call.device.machine.debug.violation(
            f"{context} asks for a power level without KGSL_CONTEXT_PWR_CONSTRAINT: its commands"
            " do not apply it"
        )
    context.constraint = wanted.type


def read_counters(call: Call[kgsl.kgsl_perfcounter_read]) -> None:
    """PERFCOUNTER_READ: the clock, and 0 of all others (`adreno_perfcounter_read_group`)."""
    args = call.args
    if not call.device.counts_performance:
        raise SysError(errno.EPERM, "sysfs `perfcounter` is off")
    if not args.reads or not 1 <= args.count <= 100:
        raise SysError(errno.EINVAL, f"{args.count} counters")
    size = ctypes.sizeof(kgsl.kgsl_perfcounter_read_group)
    groups = (kgsl.kgsl_perfcounter_read_group * args.count).from_buffer_copy(
        call.user.read(args.reads, size * args.count)
    )
    for group in groups:
        if group.groupid >= kgsl.KGSL_PERFCOUNTER_GROUP_MAX:
            raise SysError(errno.EINVAL, f"there is no group {group.groupid}")
        is_clock = group.groupid == kgsl.KGSL_PERFCOUNTER_GROUP_ALWAYSON
        registers = call.device.gpu.active.processor.registers
        group.value = registers.ticks if is_clock and group.countable == 0 else 0
    call.user.write(args.reads, bytes(groups))

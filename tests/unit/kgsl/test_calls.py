"""autogen/kgsl.py: what was known of KGSL's calls beforehand, as tinygrad and Mesa use them."""

from __future__ import annotations

import ctypes

import pytest

from gpu.autogen import kgsl

CALLS = {
    # name: (number, bytes); all of type 9
    "DEVICE_GETPROPERTY": (0x02, 0x18),
    "DEVICE_WAITTIMESTAMP_CTXTID": (0x07, 0x0C),
    "DRAWCTXT_CREATE": (0x13, 0x08),
    "DRAWCTXT_DESTROY": (0x14, 0x04),
    "MAP_USER_MEM": (0x15, 0x30),
    "SHAREDMEM_FREE": (0x21, 0x08),
    "SETPROPERTY": (0x32, 0x18),
    "GPUOBJ_ALLOC": (0x45, 0x30),
    "GPUOBJ_FREE": (0x46, 0x20),
    "GPU_COMMAND": (0x4A, 0x40),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_have_their_numbers_and_sizes(name: str) -> None:
    number, size = CALLS[name]
    call = getattr(kgsl, f"IOCTL_KGSL_{name}")
    assert (call & 0xFF, call >> 8 & 0xFF, call >> 16 & 0x3FFF) == (number, 9, size)


def test_members_are_where_drivers_write_them() -> None:
    places = {
        kgsl.kgsl_gpu_command: {
            "flags": 0, "cmdlist": 8, "cmdsize": 0x10, "numcmds": 0x14, "objlist": 0x18,
            "synclist": 0x28, "context_id": 0x38, "timestamp": 0x3C,
        },
        kgsl.kgsl_command_object: {"offset": 0, "gpuaddr": 8, "size": 0x10, "flags": 24, "id": 28},
        kgsl.kgsl_gpuobj_alloc: {"size": 0, "flags": 8, "va_len": 16, "mmapsize": 24, "id": 32},
        kgsl.kgsl_devinfo: {"device_id": 0, "chip_id": 4, "gmem_sizebytes": 0x20},
    }  # fmt: skip
    for kind, members in places.items():
        for member, place in members.items():
            assert getattr(kind, member).offset == place, f"{kind.__name__}.{member}"
        assert ctypes.sizeof(kind) == kgsl.SIZES[kind.__name__]


def test_flags() -> None:
    assert kgsl.KGSL_CONTEXT_PREAMBLE == 0x10
    assert kgsl.KGSL_CONTEXT_NO_GMEM_ALLOC == 0x2
    assert kgsl.KGSL_CONTEXT_NO_FAULT_TOLERANCE == 0x200
    assert kgsl.KGSL_MEMFLAGS_USE_CPU_MAP == 1 << 28

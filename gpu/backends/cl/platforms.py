"""Finding devices: platforms and their devices as plain data, and choosing one."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_uint32
from pathlib import Path
from typing import Final, NamedTuple

from gpu.autogen import opencl as cl
from gpu.backends.cl.api import INSTALL, OpenCL, handles
from gpu.compiler.targets import ImageLimits
from gpu.core.errors import ConfigError, DeviceError, GpuError
from gpu.core.files import read_bytes

KINDS: Final = {
    cl.CL_DEVICE_TYPE_GPU: "GPU",
    cl.CL_DEVICE_TYPE_ACCELERATOR: "accelerator",
    cl.CL_DEVICE_TYPE_CPU: "CPU",
}
"""Types of devices, in the order in which `DEV=CL` prefers them."""
_DRIVER_ENTRY: Final = "clGetExtensionFunctionAddress"  # how loaders enter drivers (cl_khr_icd)
_PIXEL: Final = 16  # bytes of the largest pixel there is: four floats


class Platform(NamedTuple):
    """An implementation of OpenCL."""

    handle: int
    name: str
    vendor: str
    version: str


class DeviceInfo(NamedTuple):
    """A device and its properties, as the implementation tells them.

    Attributes:
        platform: whose it is.
        handle: for calls.
        kind: GPU, accelerator, CPU, or other.
        name, vendor, version, driver: in the implementation's words.
        extensions: names.
        units: compute units.
        group: work items of a group, at most.
        local_memory: bytes that a group's items share in memory of its own, 0 where that is none.
        vector_width: floats of a vector register, 1 where operations are scalar.
        single, double: CL_FP_* bits of float32 and float64; 0 where there is no float64.
        unified: whether it shares memory with the host.
        alignment: of the memory of buffers, in bytes.
        most_memory: bytes of the largest buffer.
        memory: bytes of memory.
        can_compile: whether it takes source text.
        little_endian: the byte order.
        images: the largest image, and how long rows in buffers must be; None without images.
        image_alignment: of the memory of buffers that are read as images in place, in bytes.
        reorders: whether queues may run commands in another order than theirs.
    """

    platform: Platform
    handle: int
    kind: str
    name: str
    vendor: str
    version: str
    driver: str
    extensions: frozenset[str]
    units: int
    group: int
    local_memory: int
    vector_width: int
    single: int
    double: int
    unified: bool
    alignment: int
    most_memory: int
    memory: int
    can_compile: bool
    little_endian: bool
    images: ImageLimits | None = None
    image_alignment: int = 0
    reorders: bool = False


def find_platforms(api: OpenCL, vendors: str) -> list[Platform]:
    """The platforms of a library, in its order.

    `vendors` is the folder in which the loader looks for drivers; it is read to explain an error.
    Raises DeviceError where there are none.
    """
    count = c_uint32()
    code = api.clGetPlatformIDs(0, None, byref(count))
    if code not in (cl.CL_SUCCESS, cl.CL_PLATFORM_NOT_FOUND_KHR):
        api.check(code, "list its platforms")
    if not count.value:
        raise DeviceError(
            f"OpenCL has no platform: no driver is installed for its loader; {INSTALL}"
            f"{_broken_drivers(vendors)}"
        )
    found = (ctypes.c_void_p * count.value)()
    api.check(api.clGetPlatformIDs(count.value, found, None), "list its platforms")
    return [_platform(api, handle or 0) for handle in found]


def _platform(api: OpenCL, handle: int) -> Platform:
    keys = (cl.CL_PLATFORM_NAME, cl.CL_PLATFORM_VENDOR, cl.CL_PLATFORM_VERSION)
    return Platform(handle, *(api.text("clGetPlatformInfo", handle, key=key) for key in keys))


def _broken_drivers(vendors: str) -> str:
    """What keeps the drivers that are registered from being used, for an error message.

    Each file ``*.icd`` of the folder has the library of a driver in its first line (cl_khr_icd).
    The loader skips those that it cannot use without a word.
    """
    reasons = []
    for path in sorted(Path(vendors).glob("*.icd")):
        try:
            lines = read_bytes(path).decode(errors="replace").splitlines()
        except OSError as error:
            reasons.append(f"; {path} cannot be read: {error.strerror}")
            continue
        library = lines[0].strip() if lines else ""
        if reason := _broken_driver(library):
            reasons.append(f"; {path} names the driver {library!r}, {reason}")
    return "".join(reasons)


def _broken_driver(library: str) -> str:
    """What is wrong with the library of a driver; empty where nothing can be seen to be."""
    if not library or "\0" in library:
        return "which is no name of a library"
    try:
        loaded = ctypes.CDLL(library)
    except OSError as error:
        return f"which does not load: {error}"
    if not hasattr(loaded, _DRIVER_ENTRY):
        return f"which is no driver: it has no function {_DRIVER_ENTRY}"
    return ""


def find_devices(api: OpenCL, vendors: str, wanted: str = "") -> list[DeviceInfo]:
    """All devices: GPUs first, CPUs last, else in the order of the platforms.

    `wanted` limits them to the platform of that number, or to those with that text in their name
    or vendor. Raises DeviceError where there are none, ConfigError for a platform there is not.
    """
    platforms = find_platforms(api, vendors)
    chosen = [p for i, p in enumerate(platforms) if _is_wanted(i, p, wanted)]
    if not chosen:
        known = ", ".join(f"{i}: {p.name}" for i, p in enumerate(platforms))
        raise ConfigError(
            f"CL_PLATFORM={wanted} is no platform of this machine; it has {known}"
            f"{_broken_drivers(vendors)}"
        )
    found = [device for platform in chosen for device in _devices_of(api, platform)]
    if not found:
        names = ", ".join(p.name for p in chosen)
        raise DeviceError(f"OpenCL has no device: the platform {names} finds none; {INSTALL}")
    order = [*KINDS.values(), "other"]
    return sorted(found, key=lambda device: order.index(device.kind))


def _is_wanted(number: int, platform: Platform, wanted: str) -> bool:
    if wanted.isdecimal():
        return number == int(wanted)
    return wanted.lower() in f"{platform.name}\0{platform.vendor}".lower()


def choose(devices: list[DeviceInfo], index: int) -> DeviceInfo:
    """The device with that number. Raises DeviceError, listing those there are."""
    if index >= len(devices):
        known = "; ".join(f"CL:{i} is {d.name} ({d.platform.name})" for i, d in enumerate(devices))
        raise DeviceError(f"there is no device CL:{index}: {known}")
    return devices[index]


def _devices_of(api: OpenCL, platform: Platform) -> list[DeviceInfo]:
    count, every = c_uint32(), cl.CL_DEVICE_TYPE_ALL
    what = f"list the devices of {platform.name}"
    code = api.clGetDeviceIDs(platform.handle, every, 0, None, byref(count))
    if code == cl.CL_DEVICE_NOT_FOUND:
        return []
    api.check(code, what)
    found = handles(*[0] * count.value)
    api.check(api.clGetDeviceIDs(platform.handle, every, count.value, found, None), what)
    return [_device(api, platform, handle) for handle in found]


def _device(api: OpenCL, platform: Platform, handle: int) -> DeviceInfo:
    def text(key: int) -> str:
        return api.text("clGetDeviceInfo", handle, key=key)

    def number(key: int) -> int:
        return api.number("clGetDeviceInfo", handle, key=key)

    try:
        double = number(cl.CL_DEVICE_DOUBLE_FP_CONFIG)
    except GpuError:  # unknown to implementations without float64
        double = 0
    extensions = frozenset(text(cl.CL_DEVICE_EXTENSIONS).split())
    in_place = "cl_khr_image2d_from_buffer" in extensions
    images = None
    if number(cl.CL_DEVICE_IMAGE_SUPPORT):
        images = ImageLimits(
            number(cl.CL_DEVICE_IMAGE2D_MAX_WIDTH),
            number(cl.CL_DEVICE_IMAGE2D_MAX_HEIGHT),
            max(number(cl.CL_DEVICE_IMAGE_PITCH_ALIGNMENT), 1) if in_place else 0,
        )
    queues = number(cl.CL_DEVICE_QUEUE_ON_HOST_PROPERTIES)
    has_local = number(cl.CL_DEVICE_LOCAL_MEM_TYPE) == cl.CL_LOCAL
    kinds = [name for bit, name in KINDS.items() if number(cl.CL_DEVICE_TYPE) & bit]
    return DeviceInfo(
        platform=platform,
        handle=handle,
        kind=kinds[0] if kinds else "other",
        name=text(cl.CL_DEVICE_NAME),
        vendor=text(cl.CL_DEVICE_VENDOR),
        version=text(cl.CL_DEVICE_VERSION),
        driver=text(cl.CL_DRIVER_VERSION),
        extensions=extensions,
        units=number(cl.CL_DEVICE_MAX_COMPUTE_UNITS),
        group=number(cl.CL_DEVICE_MAX_WORK_GROUP_SIZE),
        local_memory=number(cl.CL_DEVICE_LOCAL_MEM_SIZE) if has_local else 0,
        vector_width=number(cl.CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT),
        single=number(cl.CL_DEVICE_SINGLE_FP_CONFIG),
        double=double,
        unified=bool(number(cl.CL_DEVICE_HOST_UNIFIED_MEMORY)),
        alignment=number(cl.CL_DEVICE_MEM_BASE_ADDR_ALIGN) // 8,
        most_memory=number(cl.CL_DEVICE_MAX_MEM_ALLOC_SIZE),
        memory=number(cl.CL_DEVICE_GLOBAL_MEM_SIZE),
        can_compile=bool(number(cl.CL_DEVICE_COMPILER_AVAILABLE)),
        little_endian=bool(number(cl.CL_DEVICE_ENDIAN_LITTLE)),
        images=images,
        image_alignment=_PIXEL * number(cl.CL_DEVICE_IMAGE_BASE_ADDRESS_ALIGNMENT)
        if in_place
        else 0,
        reorders=bool(queues & cl.CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE),
    )

"""The GPUs that Metal finds, and what it tells of them."""

from __future__ import annotations

from typing import Final

from gpu.autogen import metal as mtl
from gpu.backends.metal.context import GpuInfo
from gpu.backends.metal.objc import Handle, ObjC
from gpu.core.errors import DeviceError, Unsupported

_FAMILIES: Final = {
    "apple9": mtl.MTLGPUFamilyApple9,
    "apple8": mtl.MTLGPUFamilyApple8,
    "apple7": mtl.MTLGPUFamilyApple7,
    "mac2": mtl.MTLGPUFamilyMac2,
}
"""Those that there is code for, the best first: a GPU supports all that came before its own."""


def find_gpu(objc: ObjC, index: int) -> Handle:
    """The MTLDevice of a number; the default one is the first. Raises DeviceError."""
    first = objc.MTLCreateSystemDefaultDevice()
    if not first:
        raise DeviceError(
            "Metal finds no GPU: in a virtual machine there may be none, and processes of other"
            " users' sessions see none"
        )
    default = Handle(objc, first)
    if not index:
        return default
    with objc.pool():
        listed = Handle(objc, objc.MTLCopyAllDevices())
        found = [objc.objectAtIndex_(listed.id, i) for i in range(objc.count(listed.id))]
        others = [each for each in found if each != first]
        if index > len(others):
            raise DeviceError(f"there is no METAL:{index}: Metal finds {len(others) + 1} GPU(s)")
        return Handle(objc, objc.objc_retain(others[index - 1]))


def gpu_info(objc: ObjC, device: Handle) -> GpuInfo:
    """What Metal tells of a GPU. Raises Unsupported for one of no family that is known."""
    with objc.pool():
        name = objc.text(objc.name(device.id))
        family = next((f for f, n in _FAMILIES.items() if objc.supportsFamily_(device.id, n)), None)
        if family is None:
            known = ", ".join(_FAMILIES)
            raise Unsupported(f"{name} is of no family that there is code for, of {known}")
        return GpuInfo(
            name,
            family,
            objc.recommendedMaxWorkingSetSize(device.id),
            objc.maxBufferLength(device.id),
        )

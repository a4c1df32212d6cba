"""NSErrors as errors of ours."""

from __future__ import annotations

from typing import Final

from gpu.autogen import metal as mtl
from gpu.backends.metal.objc import ObjC
from gpu.core.errors import DeviceError, DeviceLost, GpuError, GpuFault, OutOfMemory

_COMMANDS: Final = "MTLCommandBufferErrorDomain"
FAULTS: Final = {
    mtl.MTLCommandBufferErrorTimeout: "a kernel ran for longer than the system allows",
    mtl.MTLCommandBufferErrorPageFault: "a kernel touched an address that no memory has",
    mtl.MTLCommandBufferErrorInvalidResource: "memory was given back while a kernel used it",
    mtl.MTLCommandBufferErrorStackOverflow: "a kernel's stack was too small",
    mtl.MTLCommandBufferErrorInternal: "Metal tells no more",
}
"""What went wrong with a kernel, of MTLCommandBufferError (MTLCommandBuffer.h)."""
_LOST: Final = {
    mtl.MTLCommandBufferErrorAccessRevoked: (
        "the system refuses all work of this process, after too many errors of its kernels"
    ),
    mtl.MTLCommandBufferErrorDeviceRemoved: "the GPU was removed",
}


def error_text(objc: ObjC, error: int) -> str:
    """What an NSError says, with its domain and code. A pool is open."""
    if not error:
        return "Metal does not say why"
    place = f"{objc.text(objc.domain(error))} {objc.code(error)}"
    return f"{objc.text(objc.localizedDescription(error))} ({place})"


def command_error(objc: ObjC, error: int, what: str) -> GpuError:
    """The error of a command buffer that was to do `what`. A pool is open."""
    text = f"Metal cannot {what}: {error_text(objc, error)}"
    code = objc.code(error) if error and objc.text(objc.domain(error)) == _COMMANDS else 0
    if code == mtl.MTLCommandBufferErrorOutOfMemory:
        return OutOfMemory(f"{text}; free tensors or use smaller ones")
    if code in _LOST:
        return DeviceLost(f"{text}: {_LOST[code]}; start the process again")
    if code in FAULTS:
        return GpuFault(f"{text}: {FAULTS[code]}")
    return DeviceError(text)

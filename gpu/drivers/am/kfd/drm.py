"""What the render node of a GPU tells, beside KFD: the rate of its clock.

`DRM_AMDGPU_INFO` with `AMDGPU_INFO_DEV_INFO` (amdgpu_drm.h; amdgpu_kms.c of Linux 6.12).
"""

from __future__ import annotations

import ctypes
from typing import Final

from gpu.autogen import amdgpu_drm as drm
from gpu.core.errors import FormatError
from gpu.transport.os import Os, Ref

_KILO: Final = 1000


def device_info(os: Os, render_fd: int) -> drm.drm_amdgpu_info_device:
    """All that the driver tells of a GPU. Raises TransportError."""
    info = drm.drm_amdgpu_info_device()
    size = ctypes.sizeof(info)
    call = drm.drm_amdgpu_info(
        return_pointer=ctypes.addressof(info), return_size=size, query=drm.AMDGPU_INFO_DEV_INFO
    )
    os.ioctl(render_fd, drm.DRM_IOCTL_AMDGPU_INFO, call, (Ref(0, size),))
    return info


def clock_hz(os: Os, render_fd: int) -> float:
    """Ticks a second of the GPU's clock. Raises FormatError for a GPU without one."""
    kilohertz = device_info(os, render_fd).gpu_counter_freq
    if not kilohertz:
        raise FormatError("the render node tells a clock of 0 kHz (gpu_counter_freq)")
    return float(kilohertz) * _KILO

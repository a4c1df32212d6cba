"""Where Qualcomm's kernel driver KGSL has its node, and where it tells of its GPU.

From kgsl.c, adreno_sysfs.c and kgsl_pwrctrl.c of Qualcomm's kgsl.
"""

from __future__ import annotations

from typing import Final

from gpu.transport.files import Files
from gpu.transport.machine import text_in

NODE: Final = "/dev/kgsl-3d0"
"""All calls, and all memory."""
FOLDER: Final = "/sys/class/kgsl/kgsl-3d0"
"""What the driver tells of the GPU, and lets who may write there set."""
SNAPSHOT: Final = f"{FOLDER}/snapshot/dump"
"""What the driver wrote down of the GPU when it failed first."""
PAGE_FAULT_POLICY: Final = f"{FOLDER}/ft_pagefault_policy"
"""1 bit of it says whether an access to no memory stops the GPU, so that anybody learns of it."""
STOPS_AT_PAGE_FAULTS: Final = 2

_MAINLINE: Final = ("/sys/module/msm", "/sys/bus/platform/drivers/msm_dpu")


def stops_at_page_faults(system: Files) -> bool | None:
    """Whether an access to no memory stops the GPU; None where the driver does not tell."""
    text = text_in(system, PAGE_FAULT_POLICY)
    try:
        return None if text is None else bool(int(text, 0) & STOPS_AT_PAGE_FAULTS)
    except ValueError:
        return None


def has_mainline_driver(system: Files) -> bool:
    """Whether the GPU is an Adreno that the mainline kernel's driver msm has, which is not KGSL."""
    return any(system.exists(path) for path in _MAINLINE)

"""When a run must end: signs that a GPU needs help that a test must not give.

Of AMD's driver: that it resets a GPU, could not, or lost it (amdgpu_device.c, amdgpu_reset.c,
amdgpu_mes.c, kfd_device_queue_manager.c and amdgpu_ras.c of Linux 6.12, in their words).
Xid numbers: 79 the GPU fell off its bus, 119 its firmware did not answer, 120 its firmware failed
(NVIDIA's Xid catalogue, nverror.h of open-gpu-kernel-modules).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

FATAL_XIDS: Final = frozenset({79, 119, 120})
FATAL_STATUSES: Final = ("NV_ERR_GPU_IS_LOST", "NV_ERR_TIMEOUT", "NV_ERR_RESET_REQUIRED")
_XID: Final = re.compile(r"\bXid \([^)]*\): (\d+)")
_GSP_TIMEOUT: Final = re.compile(r"\bGSP\b.*\b(timed out|timeout)\b", re.IGNORECASE)
_AMDGPU: Final = re.compile(
    r"\b(?:amdgpu|kfd)\b.*?("
    r"GPU reset|VRAM is lost|device wedged|GPU mode\d reset|Fatal error during GPU init"
    r"|failed to (?:remove|add) (?:hardware )?queue|HIQ is hung|The cp might be in an unrecoverable"
    r"|unmap queues failed|device lost from bus|uncorrectable hardware errors|HW exception)",
    re.IGNORECASE,
)
_TIMEOUT_GSP: Final = re.compile(r"\b(timed out|timeout)\b.*\bGSP\d*\b", re.IGNORECASE)


def xids(lines: Iterable[str]) -> list[int]:
    """The Xid numbers in lines of the kernel's log, in order."""
    return [int(found[1]) for line in lines if (found := _XID.search(line))]


def stop_reason(
    lines: Iterable[str],
    statuses: Mapping[str, int],
    notified: Iterable[int] = (),
    lost: str = "",
) -> str:
    """Why nothing may run after this; empty where something may.

    Args:
        lines: of the kernel's log; none where it cannot be read.
        statuses: what RM and UVM answered, by name.
        notified: numbers that RM wrote into notifiers of channels.
        lost: why the step's device is lost for good; empty where it is not.
    """
    lines = list(lines)
    for number in (*xids(lines), *notified):
        if number in FATAL_XIDS:
            return f"Xid {number}"
    for line in lines:
        if _GSP_TIMEOUT.search(line) or _TIMEOUT_GSP.search(line):
            return f"a timeout of the GPU's firmware: {line}"
        if _AMDGPU.search(line):
            return f"the kernel's driver: {line}"
    for name in FATAL_STATUSES:
        if statuses.get(name):
            return f"the kernel driver answered {name}"
    return f"the device is lost: {lost}" if lost else ""

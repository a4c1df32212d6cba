"""Where NVIDIA's kernel driver has its nodes, and where it tells its version.

From kernel-open/nvidia/nv-procfs.c and nv-linux.h of open-gpu-kernel-modules.
"""

from __future__ import annotations

import re
from typing import Final

from gpu.transport.files import Looking

CONTROL: Final = "/dev/nvidiactl"
"""Clients, objects and controls; a client dies with its file."""
UVM: Final = "/dev/nvidia-uvm"
"""The page tables of VA spaces."""
VERSION: Final = "/proc/driver/nvidia/version"
"""A text with the version of the loaded module."""


def card(minor: int) -> str:
    """The node of one GPU, by the minor number that the driver tells."""
    return f"/dev/nvidia{minor}"


def list_cards(system: Looking) -> list[str]:
    """The nodes of GPUs that are there, which may be fewer than the driver lists."""
    return [f"/dev/{name}" for name in system.list_dir("/dev") if re.fullmatch(r"nvidia\d+", name)]

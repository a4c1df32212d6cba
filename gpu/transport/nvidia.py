"""Where NVIDIA's kernel driver has its nodes and tells its version, and where libcuda may be.

From kernel-open/nvidia/nv-procfs.c and nv-linux.h of open-gpu-kernel-modules.
"""

from __future__ import annotations

import re
from typing import Final

from gpu.core.errors import DeviceError
from gpu.transport.files import Files, Looking

CONTROL: Final = "/dev/nvidiactl"
"""Clients, objects and controls; a client dies with its file."""
UVM: Final = "/dev/nvidia-uvm"
"""The page tables of VA spaces."""
VERSION: Final = "/proc/driver/nvidia/version"
"""A text with the version of the loaded module."""

WSL: Final = "/dev/dxg"
"""The node of all GPUs where Linux runs on Windows."""
LIBCUDA: Final = "libcuda.so.1"
"""The library of the driver that programs call."""
LIBCUDA_FOLDERS: Final = (
    *("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"),
    *("/usr/lib/wsl/lib", "/usr/local/nvidia/lib64", "/usr/local/cuda/compat"),
)
"""Where distributions, WSL and containers have it."""
_LOADER_CACHE: Final = "/etc/ld.so.cache"


def card(minor: int) -> str:
    """The node of one GPU, by the minor number that the driver tells."""
    return f"/dev/nvidia{minor}"


def list_cards(system: Looking) -> list[str]:
    """The nodes of GPUs that are there, which may be fewer than the driver lists."""
    return [f"/dev/{name}" for name in system.list_dir("/dev") if re.fullmatch(r"nvidia\d+", name)]


def libcuda(system: Files) -> str:
    """The path of libcuda, its name where the loader's list alone has it; empty without one."""
    for folder in LIBCUDA_FOLDERS:
        if system.exists(f"{folder}/{LIBCUDA}"):
            return f"{folder}/{LIBCUDA}"
    try:
        listed = system.read_file(_LOADER_CACHE) if system.exists(_LOADER_CACHE) else b""
    except DeviceError:  # not for us to read
        listed = b""
    return LIBCUDA if f"{LIBCUDA}\0".encode() in listed else ""

"""Where AMD's kernel driver has its nodes, and where it describes its GPUs.

From amdkfd/kfd_chardev.c, amdkfd/kfd_topology.c and amdgpu/amdgpu_discovery.c of Linux 6.12.
"""

from __future__ import annotations

from typing import Final

KFD: Final = "/dev/kfd"
"""The compute driver of all GPUs."""
TOPOLOGY: Final = "/sys/devices/virtual/kfd/kfd/topology"
"""The machine as KFD sees it: nodes with their properties."""


RENDER: Final = "/dev/dri/renderD"
"""What the nodes of single GPUs begin with."""


def render_node(minor: int) -> str:
    """The node of one GPU, by the minor number that its properties tell."""
    return f"{RENDER}{minor}"


def ip_block(minor: int, name: str) -> str:
    """The folder of the first of some blocks of a chip, such as SDMA0, by the chip's own table."""
    return f"/sys/class/drm/renderD{minor}/device/ip_discovery/die/0/{name}/0"

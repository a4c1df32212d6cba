"""AMD's chips by what KFD and LLVM call them."""

from __future__ import annotations

from gpu.compiler.targets.amd import check_chip
from gpu.core.errors import Unsupported
from gpu.drivers.am.target import Version, generation_of


def chip_name(version: Version) -> str:
    """What LLVM calls a graphics core: `gfx1100` for 11.0.0."""
    major, minor, stepping = version
    return f"gfx{major}{minor:x}{stepping:x}"


def is_supported(version: Version) -> bool:
    """Whether both the driver and the compiler know a graphics core."""
    try:
        generation_of(version)
        check_chip(chip_name(version))
    except Unsupported:
        return False
    return True

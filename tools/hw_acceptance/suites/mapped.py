"""Which of the vendor's run-time libraries are mapped: our process needs none of them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

FORBIDDEN: Final = (
    *("libcuda.so", "libcudart", "libnvidia-"),
    *("libhsa-runtime", "libhsakmt", "libamdhip", "libamdocl"),
)
"""How their files' names begin; compilers have other names."""


def mapped_libraries() -> list[str]:
    """Those that this process has mapped."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    names = {line.rpartition("/")[2] for line in lines if "/" in line}
    return sorted(name for name in names if name.startswith(FORBIDDEN))

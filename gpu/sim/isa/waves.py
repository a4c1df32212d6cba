"""The memory of waves."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from gpu.sim.isa import layout

POISON: Final = 0xA5
"""The byte that registers, shared and private memory hold before anything is written there."""
Bytes = npt.NDArray[np.uint8]


def aligned_bytes(size: int, align: int = layout.ROW) -> Bytes:
    """Fresh memory, poisoned, whose address is a multiple of a power of two."""
    raw = np.full(size + align, POISON, np.uint8)
    skip = -raw.ctypes.data % align
    return raw[skip : skip + size]

"""Copy engines of the chips, and what each can do.

A logical engine (LCE) is what channels see; it has physical ones (PCE) behind it. Capability bits
and what they mean: ctrl2080ce.h. How RM deals PCEs out, in src/nvidia/src/kernel/gpu/ce/arch:

| chip | source | graphics | asynchronous |
|---|---|---|---|
| GA10x, AD10x | ampere/kernel_ce_ga102.c | LCE 0, 1 | 2, 3 of the PCIe hub; 4 of NVLink |
| GH100 | hopper/kernel_ce_gh100.c, first row of its table | 0, 1, shared with 4, 6 | 4, 6 |
| GB202 | blackwell/kernel_ce_gb202.c | 0, shared with 5 | 4 for reads, 5 for writes |

How many PCEs an LCE of GA10x has is a guess. Engines that are better at system memory are told only
where it is behind NVLink (kernel_ce.c, kceGetCeFromNvlinkConfig), and from GB100 on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

GRCE: Final = 0x01
SHARED: Final = 0x02
SYSMEM_READ: Final = 0x04
SYSMEM_WRITE: Final = 0x08
SYSMEM: Final = 0x20
P2P: Final = 0x40


@dataclass(frozen=True, slots=True)
class CopyUnit:
    """One logical engine.

    Attributes:
        index: its number; NV2080_ENGINE_TYPE counts from COPY0.
        pces: a mask of the physical engines behind it.
        caps: the first byte of its capabilities. Without SYSMEM it reaches no system memory,
            without P2P no memory of other GPUs; UVM expects both of each asynchronous engine
            (uvm_channel.c, ces_validate).
    """

    index: int
    pces: int
    caps: int = SYSMEM | P2P

    @property
    def graphics(self) -> bool:
        """Whether it is on the runlist of graphics."""
        return bool(self.caps & GRCE)


_GRAPHICS: Final = GRCE | SYSMEM | P2P
_GRAPHICS_SHARED: Final = _GRAPHICS | SHARED
_ASYNC_SHARED: Final = SYSMEM | P2P | SHARED

GA10X: Final = (
    CopyUnit(0, 0x01, _GRAPHICS),
    CopyUnit(1, 0x02, _GRAPHICS),
    CopyUnit(2, 0x0C),
    CopyUnit(3, 0x30),
    CopyUnit(4, 0x40),
)
GH100: Final = (
    CopyUnit(0, 0x5755, _GRAPHICS_SHARED),
    CopyUnit(1, 0xA8AA, _GRAPHICS_SHARED),
    CopyUnit(4, 0x5755, _ASYNC_SHARED),
    CopyUnit(6, 0xA8AA, _ASYNC_SHARED),
)
GB202: Final = (
    CopyUnit(0, 0xC, _GRAPHICS_SHARED),
    CopyUnit(4, 0x3, SYSMEM | P2P | SYSMEM_READ),
    CopyUnit(5, 0xC, _ASYNC_SHARED | SYSMEM_WRITE),
)

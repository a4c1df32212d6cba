"""How a kernel can go wrong while it runs."""

from __future__ import annotations

from typing import Literal

from gpu.core.errors import GpuFault

Reason = Literal["access", "space", "misaligned", "trap", "stuck"]


class WarpFault(GpuFault):
    """A warp cannot go on.

    Attributes:
        reason: an address that it may not access, one that leads to another space, one that is no
            multiple of the size, a TRAP, or lanes or warps that wait for each other for ever.
        instruction: number of the instruction in the kernel.
        lane: the lowest lane whose access failed.
        access: ``read``, ``write`` or ``atomic``, "" for what is none.
    """

    def __init__(
        self,
        message: str,
        reason: Reason,
        instruction: int,
        lane: int = 0,
        address: int | None = None,
        access: str = "",
    ):
        super().__init__(message, address)
        self.reason = reason
        self.instruction = instruction
        self.lane = lane
        self.access = access

"""How a kernel can go wrong while it runs."""

from __future__ import annotations

from gpu.core.errors import GpuFault


class WaveFault(GpuFault):
    """A wave touched memory that it may not.

    Attributes:
        pc: GPU address of the instruction.
        lane: the lowest lane whose access failed.
        address: what it accessed; within LDS or scratch an offset.
        access: ``read``, ``write`` or ``atomic``.
    """

    def __init__(self, message: str, pc: int, lane: int, address: int, access: str):
        super().__init__(message, address)
        self.pc = pc
        self.lane = lane
        self.access = access


class IllegalInstruction(GpuFault):
    """A wave reached bytes that are no instruction, or one that has no semantics here.

    Attributes:
        pc: GPU address of the instruction.
    """

    def __init__(self, message: str, pc: int):
        super().__init__(message, pc)
        self.pc = pc

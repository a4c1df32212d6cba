"""How a kernel can go wrong while it runs."""

from __future__ import annotations

from typing import Final

from gpu.core.errors import GpuFault
from gpu.sim.isa import layout
from gpu.sim.isa.waves import Wave

_ACCESSES: Final = {layout.READ: "read", layout.SCALAR: "read", layout.WRITE: "write"}


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


def wave_fault(wave: Wave, pc: int, where: str) -> WaveFault:
    """What a wave notes of the access that stopped it, at an instruction's address."""
    lane = wave.word(layout.FAULT_LANE)
    address = wave.word(layout.FAULT_ADDRESS, "<Q")
    access = _ACCESSES.get(wave.word(layout.FAULT_ACCESS) & ~layout.OWN_MEMORY, "atomic")
    size = wave.word(layout.FAULT_SIZE)
    return WaveFault(
        f"{access} of {size} bytes at {address:#x} by lane {lane} is not allowed; {where}",
        *(pc, lane, address, access),
    )

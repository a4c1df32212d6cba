"""How a kernel can go wrong while it runs: as one of any other instruction set."""

from __future__ import annotations

from gpu.sim.isa.rdna.faults import IllegalInstruction, WaveFault

__all__ = ["IllegalInstruction", "WaveFault"]

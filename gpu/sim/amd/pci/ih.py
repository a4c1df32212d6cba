"""The interrupt handler: rings of 32-byte entries in memory, and a message for each that comes.

ih_v6_0.c, ih_v7_0.c and amdgpu_ih.c of Linux 6.12. Rings 0 and 1 are there; entries go to ring 0.
"""

from __future__ import annotations

import struct
from typing import Final

from gpu.sim.amd.pci.gmc import Vmid
from gpu.sim.amd.pci.silicon import Silicon
from gpu.sim.translate import PageFault

GRBM_CP, VMC, GFX = 0x14, 0x12, 0x0A
"""Clients (SOC21_IH_CLIENTID_* of soc15_ih_clientid.h): packet processors; MMHUB; copy engines and
GFXHUB, as sdma_v6_0.c and gmc_v11_0.c register their sources."""
_ENTRY: Final = 32
_BUS, _VIRTUAL = 2, 4


class InterruptHandler:
    """The rings."""

    def __init__(self, chip: Silicon, memory: Vmid):
        self._chip = chip
        self._memory = memory
        chip.regs.hook("IH_RB_CNTL", write=self._control)
        chip.regs.hook("IH_RB_RPTR", write=self._rptr)
        self.reset()

    def reset(self) -> None:
        """No message is under way."""
        self._is_armed = True

    def send(self, client: int, source: int, ring: int, vmid: int, data: tuple[int, ...]) -> None:
        """An entry of a client's; lost while the ring is off, and so recorded."""
        regs = self._chip.regs
        if not regs.field("IH_RB_CNTL", "RB_ENABLE"):
            self._chip.sim.debug.note(f"interrupt {client:#x}/{source} while IH_RB_CNTL is off")
            return
        now = self._chip.sim.clock.gpu_ticks
        words = (client | source << 8 | ring << 16 | vmid << 24, now, now >> 32 & 0xFFFF, 0)
        values = [word & 0xFFFFFFFF for word in (*words, *data, *(0,) * (4 - len(data)))]
        size = 4 << regs.field("IH_RB_CNTL", "RB_SIZE")
        wptr = regs.value("IH_RB_WPTR") & ~1
        base = regs.value("IH_RB_BASE") << 8 | regs.value("IH_RB_BASE_HI") << 40
        ahead = (wptr + _ENTRY) % size
        overflow = regs.value("IH_RB_WPTR") & 1
        if ahead == regs.value("IH_RB_RPTR") & ~3:
            if not regs.field("IH_RB_CNTL", "WPTR_OVERFLOW_ENABLE"):
                self._chip.sim.debug.note("the interrupt ring is full: an entry is lost")
                return
            overflow = 1
        self._put(base + wptr, struct.pack("<8I", *values))
        regs.set("IH_RB_WPTR", ahead | overflow)
        if regs.field("IH_RB_CNTL", "WPTR_WRITEBACK_ENABLE"):
            where = regs.pair("IH_RB_WPTR_ADDR_LO", "IH_RB_WPTR_ADDR_HI")
            self._put(where, (ahead | overflow).to_bytes(4, "little"))
        self._tell()

    def _tell(self) -> None:
        """One message until software has moved the read pointer, where RPTR_REARM says so."""
        regs = self._chip.regs
        if self._is_armed and regs.field("IH_RB_CNTL", "ENABLE_INTR"):
            self._is_armed = not regs.field("IH_RB_CNTL", "RPTR_REARM")
            self._chip.bus.interrupt(0)

    def _put(self, address: int, data: bytes) -> None:
        space = self._chip.regs.field("IH_RB_CNTL", "MC_SPACE")
        try:
            if space == _BUS:
                self._chip.bus.store(address, data)
            elif space == _VIRTUAL:
                self._memory.store(address, data)
            else:
                self._chip.violation(f"IH_RB_CNTL.MC_SPACE is {space}: 2 is the bus, 4 VMID 0")
        except PageFault as fault:
            self._chip.violation(f"interrupt ring: {fault}")

    def _control(self, value: int) -> None:
        regs = self._chip.regs
        low, _ = regs.fields("IH_RB_CNTL")["WPTR_OVERFLOW_CLEAR"]
        regs.set("IH_RB_CNTL", value)
        if value >> low & 1:
            regs.set("IH_RB_WPTR", regs.value("IH_RB_WPTR") & ~1)

    def _rptr(self, value: int) -> None:
        regs = self._chip.regs
        size = 4 << regs.field("IH_RB_CNTL", "RB_SIZE")
        if value % _ENTRY or value >= size:
            self._chip.violation(f"IH_RB_RPTR {value:#x}: entries have 32 bytes")
        regs.set("IH_RB_RPTR", value)
        self._is_armed = True
        if value != regs.value("IH_RB_WPTR") & ~1:
            self._tell()

"""What signed code does on Ampere's and Ada's falcons: FWSEC, booter, the scrubber.

FWSEC of the VBIOS puts FRTS behind WPR2, and ends a session (SB); it tells how it went in scratch
registers (kernel_gsp_frts_tu102.c). booter_load starts RM, booter_unload takes WPR2 down; they tell
by their mailbox (kernel_gsp_booter_tu102.c). Codes of errors are nowhere published: the model's own
(U), as is that SB comes before booter_unload.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from gpu.sim.nv.pci.boards import FalconFacts
from gpu.sim.nv.pci.booter import load
from gpu.sim.nv.pci.falcon import Falcon
from gpu.sim.nv.pci.images import Known
from gpu.sim.nv.pci.signed import Signed
from gpu.sim.nv.pci.silicon import Halt, Silicon
from gpu.sim.nv.pci.vbios import FRTS, SB, Rom
from gpu.sim.nv.pci.wprmeta import Booted

FRTS_ERROR, SB_ERROR, BOOTER_ERROR = 0x7, 0x9, 0x2D
SCRUBBED: Final = 3
HANDOFF: Final = "NV_PGC6_BSI_VPR_SECURE_SCRATCH_15"
_VBIOS_READ: Final = struct.Struct("<IIQII")
_REGION: Final = struct.Struct("<5I")
_FLAGS, _FRAME_BUFFER = 2, 2
_MIB, _ALIGNMENT = 1 << 20, 128 << 10
_FRTS_SCRATCH, _SB_SCRATCH = "NV_PBUS_SW_SCRATCH(14)", "NV_PBUS_SW_SCRATCH(21)"


class SecureCode:
    """What runs.

    Attributes:
        on_booted: RM is behind WPR2, and GSP's core may start.
    """

    def __init__(self, chip: Silicon, known: Known, rom: Rom, gsp: Falcon, sec2: Falcon, vga: int):
        """`vga` is where the VBIOS keeps its work space."""
        self._chip = chip
        self._known = known
        self._rom = rom
        self._gsp, self._sec2 = gsp, sec2
        self._vga = vga
        self._has_ended = False
        self.on_booted: Callable[[Booted], None] = lambda booted: None
        gsp.on_run = sec2.on_run = self._run

    def reset(self) -> None:
        """Nothing has run."""
        self._has_ended = False

    def _run(self, image: Signed, data: bytes) -> None:
        chip = self._chip
        act = {
            "FWSEC": self._fwsec,
            "booter_load": self._load,
            "booter_unload": self._unload,
            "scrubber": self._scrub,
        }[image.name]
        try:
            act(data)
        except Halt as why:
            chip.violation(f"{image.name}: {why}")
            if image.name.startswith("booter"):
                self._sec2.answer(BOOTER_ERROR)

    # On GSP.

    def _fwsec(self, data: bytes) -> None:
        command = int.from_bytes(data[self._rom.command_at : self._rom.command_at + 4], "little")
        buffer = data[self._rom.buffer_at :]
        read = _VBIOS_READ.unpack_from(buffer)
        commands = {
            FRTS: (_FRTS_SCRATCH, FRTS_ERROR << 16, self._frts),
            SB: (_SB_SCRATCH, SB_ERROR, self._end),
        }
        if command not in commands:
            raise Halt(f"command {command:#x}: FRTS ({FRTS:#x}) and SB ({SB:#x}) are known")
        scratch, error, act = commands[command]
        self._chip.regs.set(scratch, error)
        if read != (1, _VBIOS_READ.size, 0, 0, _FLAGS):
            raise Halt(
                f"where it reads the VBIOS is {read}, (1, {_VBIOS_READ.size}, 0, 0, 2) wanted"
            )
        act(buffer[_VBIOS_READ.size :])
        self._chip.regs.set(scratch, 0)

    def _frts(self, region: bytes) -> None:
        chip = self._chip
        version, size, page, pages, medium = _REGION.unpack_from(region)
        if (version, size, medium) != (1, _REGION.size, _FRAME_BUFFER):
            raise Halt(f"FRTS: version {version} of {size} bytes in {medium}: 1, 20 and 2 wanted")
        place = range(page << 12, (page + pages) << 12)
        if len(place) != _MIB:
            raise Halt(f"FRTS has {len(place):#x} bytes, {_MIB:#x} wanted")
        if place.start % _ALIGNMENT or not place.start:
            raise Halt(f"FRTS at {place.start:#x}, not at {_ALIGNMENT:#x}")
        if place.stop > self._vga:
            raise Halt(f"FRTS ends at {place.stop:#x}, beyond {self._vga:#x}")
        if chip.wpr2:
            raise Halt("FRTS while WPR2 is up")
        chip.wpr2 = place

    def _end(self, rest: bytes) -> None:
        if not self._chip.wpr2:
            raise Halt("SB while WPR2 is down: there is nothing to end")
        self._has_ended = True

    # On SEC2.

    def _scrub(self, data: bytes) -> None:
        self._chip.regs.set(HANDOFF, SCRUBBED << 29)

    def _load(self, data: bytes) -> None:
        chip, gsp, facts = self._chip, self._gsp, self._chip.board.start
        assert isinstance(facts, FalconFacts)
        if facts.has_scrubber and chip.regs.value(HANDOFF) >> 29 < SCRUBBED:
            raise Halt("the end of memory was not scrubbed")
        if len(chip.wpr2) != _MIB:
            raise Halt("WPR2 does not hold FRTS alone")
        if not gsp.is_ready_for_riscv:
            raise Halt("GSP was not reset into its other core")
        booted = load(chip, self._known, self._sec2.mailbox, gsp.mailbox, self._vga)
        chip.wpr2, self._has_ended = booted.wpr2, False
        self._sec2.answer(0)
        self.on_booted(booted)

    def _unload(self, data: bytes) -> None:
        if not self._has_ended:
            raise Halt("FWSEC was not told before that this ends (SB)")
        if self._sec2.mailbox != 0xFF << 32 | 0xFF:
            raise Halt(f"its mailbox has {self._sec2.mailbox:#x}, 0xff in both halves is wanted")
        self._chip.wpr2, self._has_ended = range(0), False
        self._sec2.answer(0)

"""Ampere and Ada on their way up: what the card's own firmware leaves, its ROM, GSP and SEC2.

A driver waits for the card's own firmware (GFW), runs FWSEC on GSP, resets GSP into its other core,
and has SEC2 start that (kgspBootstrap_TU102 and what it calls).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from gpu.sim.nv.pci.boards import FalconFacts
from gpu.sim.nv.pci.falcon import Falcon
from gpu.sim.nv.pci.images import Known
from gpu.sim.nv.pci.registers import LOCKED, Refused
from gpu.sim.nv.pci.securecode import HANDOFF, SCRUBBED, SecureCode
from gpu.sim.nv.pci.signed import Engine
from gpu.sim.nv.pci.silicon import Silicon
from gpu.sim.nv.pci.vbios import ROM_BYTES, make_rom
from gpu.sim.nv.pci.wprmeta import Booted

SUSPENDED: Final = 0x80000000
_PROM: Final = 0x300000
_MASK, _GFW, _HANDOFF = 0x118128, 0x118234, 0x1180FC
_WORKING, _DONE = 0x80, 0xFF
_FUSES: Final = {Engine.GSP: 0x8241C0, Engine.SEC2: 0x824140}  # ampere/ga100/dev_fuse.h
_UCODES: Final = 16
_DISPLAY, _VGA = 0x820C04, 0x625F04  # dev_fuse.h; disp/v04_00/dev_disp.h
_VALID: Final = 1 << 3
_LOCK_MASK, _LOCK = 0x1FA7C8, 0x1FA82C  # ampere/ga100/dev_fb.h
_QUEUE_HEAD, _QUEUES = 0x110C00, 8
_GFW_NS, _SUSPEND_NS, _RM_NS = 150_000_000, 5_000_000, 30_000_000
_WORKSPACE: Final = 256 << 10  # the VBIOS' own, at the end of video memory


class Gfw:
    """The card's own firmware: it starts everything, then only tells that it has."""

    def __init__(self, chip: Silicon, settle_ns: int = 0):
        """`settle_ns` is how long it has yet to work, as in a card just plugged in."""
        self._clock = chip.sim.clock
        regs, mask = chip.regs, "NV_PGC6_AON_SECURE_SCRATCH_GROUP_05_PRIV_LEVEL_MASK"
        regs.add(mask, _MASK, read=lambda: int(self._is_shown), writable=False)
        regs.add("NV_PGC6_AON_SECURE_SCRATCH_GROUP_05(0)", _GFW, read=self._read, writable=False)
        self._start(settle_ns)

    @property
    def is_ready(self) -> bool:
        """Whether it is done."""
        return self._clock.now_ns >= self._done_ns

    def reset(self) -> None:
        """It starts anew."""
        self._start(_GFW_NS)

    def _start(self, delay_ns: int) -> None:
        now = self._clock.now_ns
        self._shown_ns, self._done_ns = now + delay_ns // 2, now + delay_ns

    @property
    def _is_shown(self) -> bool:
        """Whether a driver may see how far it is."""
        return self._clock.now_ns >= self._shown_ns

    def _read(self) -> int:
        if not self._is_shown:
            return LOCKED
        return _DONE if self.is_ready else _WORKING


class FalconGsp:
    """GSP and SEC2, and what of the card a driver reads before it starts them.

    Attributes:
        falcons: the two.
        on_boot: booter has put RM there, whatever was before.
        on_start: RM starts, with what booter has found.
        on_doorbell: the driver has rung.
    """

    def __init__(self, chip: Silicon, known: Known, flush: Callable[[], None]):
        """`flush` is what a reset of a falcon does."""
        self._chip = chip
        self.on_boot: Callable[[], None] = lambda: None
        self.on_start: Callable[[Booted], None] = lambda booted: None
        self.on_doorbell: Callable[[], None] = lambda: None
        rom = make_rom(chip.board)
        images = {
            Engine.GSP: {rom.fwsec.ucode_id: rom.fwsec},
            Engine.SEC2: {image.ucode_id: image for image in known.signed},
        }
        self.falcons = {
            engine: Falcon(chip, engine, images[engine], partial(self._version, engine), flush)
            for engine in Engine
        }
        self._gsp = self.falcons[Engine.GSP]
        self._gsp.may_reset = self._may_reset
        self._runs = False
        vga = chip.vram.size - _WORKSPACE
        self._add_registers(rom.data, vga)
        self._secure = SecureCode(chip, known, rom, self._gsp, self.falcons[Engine.SEC2], vga)
        self._secure.on_booted = self._booted

    def reset(self) -> None:
        """All is as after power-on."""
        for falcon in self.falcons.values():
            falcon.forget()
        self._secure.reset()
        self._runs = False

    def is_locked(self, address: int) -> bool:
        """Nothing is kept from the driver by a lock: single registers read so by themselves."""
        return False

    def suspend(self) -> None:
        """RM has shut down: libos stops; WPR2 stays up."""
        self._chip.later.after(_SUSPEND_NS, "suspend libos", self._suspended)

    def _suspended(self) -> None:
        self._runs = False
        self._gsp.answer(SUSPENDED)

    def _booted(self, booted: Booted) -> None:
        self.on_boot()
        self._runs = True
        self._gsp.start_riscv()
        self._chip.later.after(_RM_NS, "start RM", partial(self.on_start, booted))

    def _may_reset(self) -> str:
        return "RM runs on it" if self._runs else ""

    def _version(self, engine: Engine, ucode: int) -> int:
        """The fuses': the number of the highest that is blown, from 1 on."""
        return self._chip.regs.value(_fuse(engine, ucode)).bit_length()

    def _add_registers(self, rom: bytes, vga: int) -> None:
        chip = self._chip
        regs, rng = chip.regs, chip.sim.rng
        words = memoryview(rom).cast("I")
        regs.add_span(
            "NV_PROM_DATA", range(_PROM, _PROM + ROM_BYTES, 4), lambda offset: words[offset // 4]
        )
        for engine, base in _FUSES.items():
            for ucode in range(1, _UCODES + 1):
                image = self.falcons[engine].images.get(ucode)
                version = rng.choice(sorted(image.signatures)) if image else 0
                fuses = (1 << version) - 1
                regs.add(_fuse(engine, ucode), base + 4 * (ucode - 1), fuses, writable=False)
        facts = chip.board.start
        assert isinstance(facts, FalconFacts)
        if facts.has_scrubber:
            done = SCRUBBED << 29 if rng.random() < 0.5 else 0
            regs.add(HANDOFF, _HANDOFF, done, writable=False)
        regs.add("NV_FUSE_STATUS_OPT_DISPLAY", _DISPLAY, writable=False)
        base = vga >> 16 << 8 | _VALID
        regs.add("NV_PDISP_VGA_WORKSPACE_BASE", _VGA, base, writable=False)
        regs.add("NV_PFB_PRI_MMU_LOCK_CFG_PRIV_LEVEL_MASK", _LOCK_MASK, 1, writable=False)
        regs.add("NV_PFB_PRI_MMU_LOCK_ADDR_LO", _LOCK, 0x10, writable=False)  # from behind
        regs.add("NV_PFB_PRI_MMU_LOCK_ADDR_HI", _LOCK + 4, writable=False)  # its end: none
        for index in range(_QUEUES):
            head = _QUEUE_HEAD + 8 * index
            regs.add(f"NV_PGSP_QUEUE_HEAD({index})", head, write=partial(self._ring, index))

    def _ring(self, index: int, value: int) -> None:
        if index or value:
            raise Refused(f"queue {index}, {value:#x}: the doorbell of the one queue is a 0")
        if self._runs:  # before, it is lost: RM looks into the queue as it starts
            self.on_doorbell()


def _fuse(engine: Engine, ucode: int) -> str:
    return f"NV_FUSE_OPT_FPF_{engine.name}_UCODE{ucode}_VERSION"

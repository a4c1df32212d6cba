"""The copy engines (SDMA) and their queues: sdma_v6_0.c and sdma_v7_0.c of Linux 6.12."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from gpu.sim.amd.chip.hwqueue import HwQueue, RingSettings
from gpu.sim.amd.chip.sdma import SdmaQueue
from gpu.sim.amd.pci.hosts import SDMA, Parts, RegisterQueue
from gpu.sim.amd.pci.ih import GFX
from gpu.sim.amd.pci.registers import Refused

ENGINES, QUEUES = 2, 8
_DISTANCE: Final = 0x58  # of SDMA0_QUEUE1_RB_CNTL from SDMA0_QUEUE0_RB_CNTL in dwords
_PORT: Final = (2, 0xE)
_TRAP: Final = 49
Slot = tuple[int, int]


class CopyEngines:
    """Both engines.

    Attributes:
        queues: those that are active, by (engine, queue).
    """

    def __init__(self, parts: Parts):
        self._parts = parts
        self._regs = regs = parts.chip.regs
        self._control = "MCU_CNTL" if parts.chip.board.is_gfx12 else "F32_CNTL"
        self.queues: dict[Slot, RegisterQueue] = {}
        self._is_loaded = False
        for engine in range(ENGINES):
            prefix = f"SDMA{engine}_QUEUE"
            for name in [n for n in regs.names() if n.startswith(f"{prefix}0_")]:
                for queue in range(1, QUEUES):
                    part = name.removeprefix(f"{prefix}0_")
                    regs.repeat(name, f"{prefix}{queue}_{part}", _DISTANCE * queue)
            regs.begin(f"SDMA{engine}_{self._control}", 1)
            regs.hook(f"SDMA{engine}_{self._control}", write=partial(self._unhalt, engine))
            regs.begin(f"SDMA{engine}_STATUS_REG", 1)
            for queue in range(QUEUES):
                status = f"{prefix}{queue}_CONTEXT_STATUS"
                regs.hook(status, partial(self._status, (engine, queue), status))
                slot, base = (engine, queue), f"{prefix}{queue}_RB_"
                regs.hook(f"{base}CNTL", write=partial(self._ring, slot))
                for part, shift in (("", 0), ("_HI", 32)):
                    rptr, wptr = f"{base}RPTR{part}", f"{base}WPTR{part}"
                    regs.hook(rptr, partial(self._pointer, slot, rptr, lambda q: q.rptr, shift))
                    regs.hook(wptr, partial(self._pointer, slot, wptr, lambda q: q.wptr, shift))

    def reset(self) -> None:
        """Nothing runs."""
        for queue in self.queues.values():
            queue.hardware.stop("the chip was reset")
        self.queues.clear()
        self._is_loaded = False

    def start(self) -> None:
        """Firmware was loaded."""
        self._is_loaded = True

    def hardware(self) -> list[HwQueue]:
        """The queues themselves."""
        return [queue.hardware for queue in self.queues.values()]

    def _why_halted(self, engine: int) -> str:
        name = f"SDMA{engine}_{self._control}"
        value, fields = self._regs.value(name), self._regs.fields(name)
        resets = ("HALT", "RESET", "TH0_RESET", "TH1_RESET")
        if not self._is_loaded or any(
            value >> fields[part][0] & 1 for part in resets if part in fields
        ):
            return f"off: {name} is {value:#x}"
        return ""

    def _unhalt(self, engine: int, value: int) -> None:
        if not value & 1 and not self._is_loaded:
            raise Refused("the engine has no firmware before RLC has loaded it")
        self._regs.set(f"SDMA{engine}_{self._control}", value)

    def _status(self, slot: Slot, name: str) -> int:
        """IDLE where it is off, or has nothing to do."""
        queue = self.queues.get(slot)
        hardware = queue.hardware if queue else None
        idle = hardware is None or (hardware.rptr == hardware.wptr and not hardware.runnable())
        return int(idle) << self._regs.fields(name)["IDLE"][0]

    def _pointer(self, slot: Slot, name: str, which: Callable[[HwQueue], int], shift: int) -> int:
        queue = self.queues.get(slot)
        if queue is None:
            return self._regs.value(name)
        return which(queue.hardware) >> shift & 0xFFFFFFFF

    def _ring(self, slot: Slot, value: int) -> None:
        engine, number = slot
        name = f"SDMA{engine}_QUEUE{number}_"
        enabled = value & 1
        was = slot in self.queues
        self._regs.set(f"{name}RB_CNTL", value)
        if enabled and not was:
            self._start(slot, name)
        elif was and not enabled:
            self._stop(slot, name)

    def _start(self, slot: Slot, name: str) -> None:
        regs = self._regs

        def field(register: str, part: str) -> int:
            return regs.field(f"{name}{register}", part)

        def pair(low: str, high: str) -> int:
            return regs.pair(f"{name}{low}", f"{name}{high}")

        if not field("RB_CNTL", "RPTR_WRITEBACK_ENABLE"):
            raise Refused("without RPTR_WRITEBACK_ENABLE nobody learns what was read")
        if regs.value(f"{name}MINOR_PTR_UPDATE") & 1:
            raise Refused(f"{name}MINOR_PTR_UPDATE is still 1: pointers are being changed")
        rptr, wptr = pair("RB_RPTR", "RB_RPTR_HI"), pair("RB_WPTR", "RB_WPTR_HI")
        polls = (
            "MCU_WPTR_POLL_ENABLE" if self._parts.chip.board.is_gfx12 else "F32_WPTR_POLL_ENABLE"
        )
        poll = pair("RB_WPTR_POLL_ADDR_LO", "RB_WPTR_POLL_ADDR_HI")
        settings = RingSettings(
            *(pair("RB_BASE", "RB_BASE_HI") << 8, 4 << field("RB_CNTL", "RB_SIZE")),
            *(pair("RB_RPTR_ADDR_LO", "RB_RPTR_ADDR_HI") & ~3, 0),
        )
        if field("RB_CNTL", polls) or field("RB_CNTL", "WPTR_POLL_ENABLE"):
            settings.wptr = poll
        vmid, engine = field("RB_CNTL", "RB_VMID"), slot[0]
        doorbell = field("DOORBELL_OFFSET", "OFFSET") if field("DOORBELL", "ENABLE") else None
        host = RegisterQueue(
            *(self._parts, f"{slot[1]} of SDMA{engine}", vmid, doorbell, _PORT),
            *(partial(self._why_halted, engine), lambda index: ""),
            partial(self._tell, slot, vmid),
            SDMA + engine,
        )
        host.start(SdmaQueue, settings, rptr, wptr)
        self.queues[slot] = host

    def _stop(self, slot: Slot, name: str) -> None:
        hardware = self.queues.pop(slot).hardware
        for part, value in (("RPTR", hardware.rptr), ("WPTR", hardware.wptr)):
            self._regs.set(f"{name}RB_{part}", value)
            self._regs.set(f"{name}RB_{part}_HI", value >> 32)
        hardware.stop("it was disabled")

    def _tell(self, slot: Slot, vmid: int, number: int) -> None:
        engine, queue = slot
        if not self._regs.field(f"SDMA{engine}_CNTL", "TRAP_ENABLE"):
            self._parts.chip.sim.debug.note(f"SDMA{engine}_CNTL.TRAP_ENABLE is 0: no interrupt")
            return
        self._parts.ih.send(GFX, _TRAP, queue | engine << 4, vmid, (number,))

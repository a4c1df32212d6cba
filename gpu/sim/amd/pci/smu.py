"""The power management unit's mailboxes: smu_cmn.c, smu_v13_0_0_ppsmc.h, smu_v13_0_7_ppsmc.h and
smu_v14_0_2_ppsmc.h of Linux 6.12.

A message goes into C2PMSG_66 when its argument is in C2PMSG_82 and the last answer, in C2PMSG_90,
was cleared. The debug mailbox (75, 53, 54) has no such rule: Linux clears its answer last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpu.sim.amd.pci.gmc import Vmid
from gpu.sim.amd.pci.registers import Refused
from gpu.sim.amd.pci.silicon import Silicon
from gpu.sim.translate import PageFault

OK, FAILED, UNKNOWN, PREREQUISITE, BUSY = 1, 0xFF, 0xFE, 0xFD, 0xFC
VERSION: Final = 0x4E4B00
_NAME: Final = "MP1_SMN_C2PMSG_{}"
_MESSAGE_NS, _RESET_NS = 20_000, 100_000
_DEBUG_MODE1: Final = 2
_DRIVER_IF: Final = {(13, 0, 0): 0x3D, (13, 0, 10): 0x3D, (13, 0, 7): 0x35}
_DRIVER_IF_14: Final = 0x2E
# Sizes of tables by number (smu13_driver_if_v13_0_0.h TABLE_*); contents are zeros (U).
_TABLES: Final = {0: 0x1C00, 4: 0x400, 5: 0x220, 8: 0x200, 10: 0x100, 11: 0x400}
_PPT_W: Final = 303
_CLOCKS: Final = {
    # by PPCLK_*: frequencies in MHz of its levels; the first has two ends alone
    0: (500, 2482),
    1: (400, 800, 1200),
    2: (96, 456, 772, 1249),
    3: (300, 1200, 2000),
}
# Those that nothing in the model follows from: features, sources of power, logs, fans, workloads.
_PLAIN: Final = frozenset(
    (
        *(0x04, 0x05, 0x08, 0x09, 0x0A, 0x0B, 0x10, 0x11, 0x14, 0x19, 0x1A, 0x1B, 0x1C, 0x20),
        *(0x21, 0x22, 0x23, 0x24, 0x28, 0x29, 0x30, 0x31, 0x34, 0x35, 0x36, 0x38, 0x39, 0x3A),
        *(0x3B, 0x3C, 0x4B, 0x4C, 0x4E),
    )
)
_CLOCK_LIMITS: Final = frozenset((0x19, 0x1A, 0x1B, 0x1C))


class Smu:
    """The unit; it answers once its firmware was loaded.

    Attributes:
        on_mode1: is told to reset the whole chip.
    """

    def __init__(self, chip: Silicon, memory: Vmid):
        self._chip = chip
        self._memory = memory
        self.on_mode1: Callable[[], None] = lambda: None
        self._version = chip.board.block("MP1").version
        self._handlers: dict[int, Callable[[int], int]] = {
            0x01: lambda argument: argument + 1,
            0x02: lambda argument: VERSION,
            0x03: lambda argument: _DRIVER_IF.get(self._version, _DRIVER_IF_14),
            0x06: self._enable,
            0x07: self._disable,
            0x0C: lambda argument: self._features & 0xFFFFFFFF,
            0x0D: lambda argument: self._features >> 32,
            0x0E: lambda argument: self._address(argument << 32 | self._table & 0xFFFFFFFF),
            0x0F: lambda argument: self._address(self._table >> 32 << 32 | argument),
            0x12: self._table_out,
            0x13: self._table_in,
            0x1D: lambda argument: self._clock(argument >> 16)[0],
            0x1E: lambda argument: self._clock(argument >> 16)[-1],
            0x1F: self._level,
            0x2E: self._unload,
            0x32: self._set_limit,
            0x33: lambda argument: self._limit,
        }
        regs = chip.regs
        regs.hook(_NAME.format(66), write=self._message)
        regs.hook(_NAME.format(90), write=self._answer)
        regs.hook(_NAME.format(75), write=self._debug)
        self.reset()

    def reset(self) -> None:
        """As after power-on: without firmware."""
        self.is_running = False
        self._busy = False
        self._features = 0
        self._table = 0
        self._limit = _PPT_W

    def loaded(self) -> None:
        """Its firmware is there, and runs."""
        self.is_running = True

    def _get(self, number: int) -> int:
        return self._chip.regs.value(_NAME.format(number))

    def _set(self, number: int, value: int) -> None:
        self._chip.regs.set(_NAME.format(number), value)

    def _answer(self, value: int) -> None:
        if self._busy:
            raise Refused("the last message has no answer yet")
        self._set(90, value)

    def _message(self, message: int) -> None:
        if not self.is_running:
            raise Refused("the unit has no firmware, and will not answer")
        if self._busy or self._get(90):
            raise Refused(
                f"the answer, C2PMSG_90, is {self._get(90):#x}, or one is under way: it is cleared"
                " before the next message"
            )
        self._busy = True
        self._set(66, message)
        argument = self._get(82)

        def done() -> None:
            status, value = self._carry_out(message, argument)
            self._busy = False
            if value is not None:
                self._set(82, value & 0xFFFFFFFF)
            self._set(90, status)

        self._chip.later.after(_MESSAGE_NS, f"answer message {message:#x}", done)

    def _carry_out(self, message: int, argument: int) -> tuple[int, int | None]:
        if message == 0x2F:
            if self._version not in ((13, 0, 0), (13, 0, 7)):
                self._chip.violation("SMU: Mode1Reset is a message of the debug mailbox here")
                return UNKNOWN, None
            self._chip.later.after(_RESET_NS, "reset the chip", self.on_mode1)
            return OK, None
        handler = self._handlers.get(message)
        try:
            if handler is not None:
                return OK, handler(argument)
            if message in _CLOCK_LIMITS:
                self._clock(argument >> 16)
        except _Rejected as rejected:
            self._chip.violation(f"SMU message {message:#x}({argument:#x}): {rejected}")
            return rejected.status, None
        if message in _PLAIN:
            return OK, 0
        self._chip.violation(f"SMU message {message:#x}({argument:#x}) is not known")
        return UNKNOWN, None

    def _debug(self, message: int) -> None:
        if not self.is_running:
            raise Refused("the unit has no firmware, and will not answer")
        self._set(75, message)

        def done() -> None:
            known = message == _DEBUG_MODE1
            self._set(54, OK if known else UNKNOWN)
            if known:
                self._chip.later.after(_RESET_NS, "reset the chip", self.on_mode1)

        self._chip.later.after(_MESSAGE_NS, f"answer debug message {message:#x}", done)

    def _enable(self, argument: int) -> int:
        self._features = (1 << 64) - 1
        return 0

    def _disable(self, argument: int) -> int:
        self._features = 0
        return 0

    def _address(self, address: int) -> int:
        self._table = address
        return 0

    def _table_out(self, argument: int) -> int:
        self._transfer(argument, out=True)
        return 0

    def _table_in(self, argument: int) -> int:
        self._transfer(argument, out=False)
        return 0

    def _transfer(self, argument: int, out: bool) -> None:
        number = argument & 0xFFFF
        if number not in _TABLES:
            raise _Rejected(FAILED, f"there is no table {number}")
        if not self._table:
            raise _Rejected(PREREQUISITE, "no address for tables was set")
        try:
            if out:
                self._memory.store(self._table, bytes(_TABLES[number]))
            else:
                self._memory.load(self._table, _TABLES[number])
        except PageFault as fault:
            raise _Rejected(FAILED, str(fault)) from fault

    def _clock(self, number: int) -> tuple[int, ...]:
        if number not in _CLOCKS:
            raise _Rejected(FAILED, f"there is no clock {number}")
        return _CLOCKS[number]

    def _level(self, argument: int) -> int:
        levels, level = self._clock(argument >> 16), argument & 0xFFFF
        if level == 0xFF:
            return len(levels)
        if level >= len(levels):
            raise _Rejected(FAILED, f"level {level} of {len(levels)}")
        return levels[level] | (1 << 31 if len(levels) == 2 else 0)

    def _unload(self, argument: int) -> int:
        self._features = 0
        return 0

    def _set_limit(self, argument: int) -> int:
        if not 0 < argument & 0xFFFF <= 2 * _PPT_W:
            raise _Rejected(FAILED, f"{argument & 0xFFFF} W")
        self._limit = argument & 0xFFFF
        return 0


class _Rejected(Exception):
    """A message that cannot be carried out."""

    def __init__(self, status: int, why: str):
        self.status = status
        super().__init__(why)

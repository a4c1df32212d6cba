"""Power management: its mailbox, what it is told after it starts, clocks, and the reset of the
card.

Sources: smu_cmn.c, smu_v13_0.c, smu_v14_0.c, smu_v13_0_0_ppt.c, smu_v13_0_7_ppt.c,
smu_v14_0_2_ppt.c and the smu_v*_ppsmc.h of Linux 6.12.117; soc21.c (mode1 reset).
"""

from __future__ import annotations

import enum
from typing import Final

from gpu.core.errors import FirmwareError
from gpu.core.log import get_logger
from gpu.drivers.am.pci.chip import Chip
from gpu.drivers.am.pci.ip.claim import discover, find_state
from gpu.drivers.boot import BootError

_OK, _FAILED, _UNKNOWN, _PREREQUISITE, _BUSY = 0x01, 0xFF, 0xFE, 0xFD, 0xFC
_ANSWERS: Final = {
    _FAILED: "it failed",
    _UNKNOWN: "it does not know the message",
    _PREREQUISITE: "something must be done before",
    _BUSY: "it is busy with another message",
}
_TABLE: Final = 0x4000  # bytes of the tables that are exchanged
_ALL_LEVELS: Final = 0xFF  # of a clock: how many there are
_DEBUG_RESET: Final = 2
_BY_DEBUG: Final = {(13, 0, 10), (14, 0, 2), (14, 0, 3)}
_RESET_SECONDS: Final = {13: 0.5, 14: 1.0}
_log = get_logger(__name__)


class Message(enum.IntEnum):
    """What it can be told; the numbers are the same for all versions here."""

    TestMessage = 0x1
    GetSmuVersion = 0x2
    GetDriverIfVersion = 0x3
    EnableAllSmuFeatures = 0x6
    SetDriverDramAddrHigh = 0xE
    SetDriverDramAddrLow = 0xF
    SetSoftMinByFreq = 0x19
    SetSoftMaxByFreq = 0x1A
    GetDpmFreqByIndex = 0x1F
    PrepareMp1ForUnload = 0x2E
    Mode1Reset = 0x2F
    SetPptLimit = 0x32
    GetPptLimit = 0x33


class Clock(enum.IntEnum):
    """Clocks that have levels (PPCLK_e of smu13_driver_if_v13_0_0.h and its like)."""

    GFXCLK = 0
    SOCCLK = 1
    UCLK = 2
    FCLK = 3


class Smu:
    """The mailbox of a card's power management."""

    def __init__(self, chip: Chip):
        self.chip = chip
        self._block = chip.registers.mp1
        self._told = False

    def send(self, message: Message, argument: int = 0) -> int:
        """Says something, and waits for the answer; what came with it.

        Raises BootTimeout for silence, BootError for a refusal, both naming the message.
        """
        block = self._block
        if self._told:  # before the first the register may hold anything
            self.chip.wait_other(block, "MP1_SMN_C2PMSG_90", 0)
        self._told = True
        block.set("MP1_SMN_C2PMSG_90", 0)
        block.set("MP1_SMN_C2PMSG_82", argument)
        block.set("MP1_SMN_C2PMSG_66", message)
        answer = self.chip.wait_other(block, "MP1_SMN_C2PMSG_90", 0)
        if answer != _OK:
            why = _ANSWERS.get(answer, "an answer that is not known")
            raise BootError(
                *(self.chip.step, "MP1.MP1_SMN_C2PMSG_90", answer, f"{_OK:#x} (OK)"),
                f"to {message.name}({argument:#x}): {why}",
            )
        return block.get("MP1_SMN_C2PMSG_82")

    def order_reset(self) -> None:
        """Says that the whole card is to be reset; there is no answer to wait for."""
        block = self._block
        if block.ip.version in _BY_DEBUG:
            block.set("MP1_SMN_C2PMSG_53", 0)
            block.set("MP1_SMN_C2PMSG_75", _DEBUG_RESET)
            block.set("MP1_SMN_C2PMSG_54", 0)
        else:
            self.send(Message.Mode1Reset)


def reset(chip: Chip) -> None:
    """Brings a card on which firmware runs to where it was when it got power (mode1)."""
    if chip.state != "alive":
        return
    function = chip.function
    function.set_bus_master(False)
    Smu(chip).order_reset()
    chip.sleep(_RESET_SECONDS[chip.registers.mp1.ip.version[0]])
    function.set_bus_master(True)  # and so the command register, which the reset has emptied
    discover(chip)
    find_state(chip)
    if chip.state != "cold":
        raise FirmwareError(f"{chip.name}: a reset did not end the firmware that runs on it")


def start_power(chip: Chip) -> None:
    """Power management learns where tables are exchanged, and begins its work."""
    smu = Smu(chip)
    place = chip.place("SMU table", _TABLE)
    chip.vram.clear(place, _TABLE)
    chip.flush_hdp()
    version = smu.send(Message.GetSmuVersion)
    _log.info("%s: SMU %#x, interface %d", chip.name, version, smu.send(Message.GetDriverIfVersion))
    smu.send(Message.SetDriverDramAddrHigh, chip.mc(place) >> 32)
    smu.send(Message.SetDriverDramAddrLow, chip.mc(place) & 0xFFFF_FFFF)
    smu.send(Message.EnableAllSmuFeatures)


def set_clocks(chip: Chip) -> None:
    """Clocks between their lowest and their highest level, and the power limit that is usual."""
    smu = Smu(chip)
    for clock in Clock:
        count = smu.send(Message.GetDpmFreqByIndex, clock << 16 | _ALL_LEVELS)
        if not 0 < count & 0xFF <= 64:
            raise FirmwareError(f"{chip.name}: {count} levels of {clock.name}")
        levels = [_level(smu, clock, number) for number in range(count & 0xFF)]
        smu.send(Message.SetSoftMaxByFreq, clock << 16 | max(levels))
        smu.send(Message.SetSoftMinByFreq, clock << 16 | min(levels))
    limit = smu.send(Message.GetPptLimit)
    smu.send(Message.SetPptLimit, limit)


def _level(smu: Smu, clock: Clock, number: int) -> int:
    """A level in MHz; the highest bit says that it is one of a range without steps."""
    return smu.send(Message.GetDpmFreqByIndex, clock << 16 | number) & 0x7FFF_FFFF

"""The registers that indirect buffers write, by name, and what they hold that nobody wrote."""

from __future__ import annotations

from typing import Final, NamedTuple

from gpu.autogen.adreno_a6xx import REGISTERS
from gpu.core.bits import lo32
from gpu.sim.clock import VirtualClock
from gpu.sim.kgsl.chip.errors import CpError
from gpu.sim.kgsl.chips import Chip
from gpu.sim.record import DebugChannel

UNSET: Final = 0xB1A5_B1A5
"""What a register holds that its context never wrote: some other context's value."""
ALWAYS_ON_HZ: Final = 19_200_000
"""The clock of CP_ALWAYS_ON_COUNTER."""
_ALWAYS_ON: Final = REGISTERS["CP_ALWAYS_ON_COUNTER"][0]


class Field(NamedTuple):
    """Bits of a register: the lowest one, how many, and how far their value is shifted."""

    low: int
    width: int
    shift: int

    def of(self, value: int) -> int:
        """What the bits of a value say."""
        return (value >> self.low & (1 << self.width) - 1) << self.shift


def _names() -> dict[int, str]:
    found: dict[int, str] = {}
    for name, (offset, width, _) in REGISTERS.items():
        found.setdefault(offset, name)
        if width == 64:
            found.setdefault(offset + 1, f"{name} (high half)")
    return found


NAMES: Final = _names()
"""Registers by offset, in dwords."""


def _known_bits(name: str) -> int:
    """The bits of a register that have a meaning; all where nobody says."""
    fields = REGISTERS[name][2].values() if name in REGISTERS else ()
    known = 0
    for low, width, *_ in fields:
        known |= ((1 << width) - 1) << low
    return known or 0xFFFF_FFFF


_OF_COMPUTE: Final = ("SP_CS_", "HLSQ_CS_", "HLSQ_INVALIDATE")
_BITS: Final = {
    offset: _known_bits(name)
    for offset, name in NAMES.items()
    if name.startswith(_OF_COMPUTE) and REGISTERS.get(name, (0, 64, {}))[1] == 32
}
"""What may be set in registers of compute kernels."""


class Registers:
    """What a ring's commands see of the register file."""

    def __init__(self, chip: Chip, clock: VirtualClock, debug: DebugChannel):
        self._protected = chip.protected
        self._clock = clock
        self._debug = debug
        self._values: dict[int, int] = {}

    def poison(self) -> None:
        """Other contexts have run: nothing is as it was left (adreno_drawctxt.c saves nothing)."""
        self._values.clear()

    @property
    def ticks(self) -> int:
        """CP_ALWAYS_ON_COUNTER."""
        return self._clock.now_ns * ALWAYS_ON_HZ // 1_000_000_000

    def write(self, offset: int, value: int) -> None:
        """Writes one by offset. Raises CpError for one that is protected."""
        self._check_access(offset, "a write to")
        if offset not in NAMES:
            self._debug.violation(f"a write of {value:#x} to {offset:#x}, where no register is")
        elif unknown := value & ~_BITS.get(offset, 0xFFFF_FFFF):
            self._debug.violation(
                f"{NAMES[offset]} = {value:#x}: its bits {unknown:#x} have no meaning"
            )
        self._values[offset] = value

    def read(self, offset: int) -> int:
        """Reads one by offset. Raises CpError for one that may not be read."""
        self._check_access(offset, "a read of")
        if offset - _ALWAYS_ON in (0, 1):
            return lo32(self.ticks >> 32 * (offset - _ALWAYS_ON))
        if offset not in NAMES:
            self._debug.violation(f"a read of {offset:#x}, where no register is")
        return self._values.get(offset, UNSET)

    def unset(self, names: tuple[str, ...]) -> list[str]:
        """Those of some registers that nobody has written, both halves of wide ones."""
        missing = []
        for name in names:
            offset, width, _ = REGISTERS[name]
            if any(at not in self._values for at in range(offset, offset + width // 32)):
                missing.append(name)
        return missing

    def value(self, name: str) -> int:
        """What one holds, 32 or 64 bits."""
        offset, width, _ = REGISTERS[name]
        low = self._values.get(offset, UNSET)
        return low if width == 32 else low | self._values.get(offset + 1, UNSET) << 32

    def field(self, name: str, field: str) -> int:
        """A field of one, as its meaning is, not as its bits are."""
        low, width, shift, _ = REGISTERS[name][2][field]
        return Field(low, width, shift).of(self.value(name))

    def _check_access(self, offset: int, what: str) -> None:
        """a6xx_protect_init: CP_PROTECT faults on what a row of the chip's covers."""
        for row in self._protected:
            if row.first <= offset <= row.last and (what.startswith("a write") or not row.readable):
                name = NAMES.get(offset, f"register {offset:#x}")
                raise CpError(f"{what} {name} ({offset:#x}), which is protected")

"""What an SM takes, by architecture.

Sizes of shared memory: "Technical specifications per compute capability" and "Shared memory" of the
CUDA programming guide. The rest is the same for all architectures here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpu.core.bits import align_up
from gpu.core.errors import InvalidValue, Unsupported

KIB: Final = 1024
WARP: Final = 32
MAX_BLOCK: Final = (1024, 1024, 64)
MAX_GRID: Final = ((1 << 31) - 1, 65535, 65535)
MAX_THREADS: Final = 1024
MAX_REGISTERS: Final = 255
MAX_BARRIERS: Final = 16
MAX_CLUSTER: Final = 16
MAX_LOCAL: Final = 512 * KIB
REGISTER_FILE: Final = 65536
_REGISTER_UNIT: Final = 256  # registers are given to a warp in these units
_WARP_UNIT: Final = 4  # warps are spread over the four quarters of an SM

RESERVED_SHARED: Final = KIB
"""Bytes of shared memory that each block holds for the system, from Ampere on."""


@dataclass(frozen=True, slots=True)
class SmLimits:
    """Shared memory of one architecture.

    Attributes:
        sm: its number, 90 for sm_90.
        carve_outs: how much of the L1 cache can be shared memory, in KiB, rising.
        clusters: whether blocks can form clusters.
    """

    sm: int
    carve_outs: tuple[int, ...]
    clusters: bool

    @property
    def max_shared(self) -> int:
        """The most bytes of shared memory of a block, the reserved ones included."""
        return self.carve_outs[-1] * KIB

    def carve_out(self, shared: int) -> int:
        """The smallest carve-out, in KiB, that holds a block's shared memory.

        Raises InvalidValue for more than the largest.
        """
        for size in self.carve_outs:
            if shared <= size * KIB:
                return size
        raise InvalidValue(
            f"{shared} bytes of shared memory of a block (the {RESERVED_SHARED} reserved ones"
            f" included): sm_{self.sm} has at most {self.max_shared}"
        )


_SMALL: Final = (0, 8, 16, 32, 64, 100)
_AMPERE: Final = (0, 8, 16, 32, 64, 100, 132, 164)
_HOPPER: Final = (*_AMPERE, 196, 228)

_LIMITS: Final = {
    row.sm: row
    for row in (
        SmLimits(80, _AMPERE, clusters=False),
        SmLimits(86, _SMALL, clusters=False),
        SmLimits(89, _SMALL, clusters=False),
        SmLimits(90, _HOPPER, clusters=True),
        SmLimits(100, _HOPPER, clusters=True),
        SmLimits(120, _SMALL, clusters=True),
    )
}


def sm_limits(sm: int) -> SmLimits:
    """The row of an architecture. Raises Unsupported for one that is not in the table."""
    row = _LIMITS.get(sm)
    if row is None:
        known = ", ".join(f"sm_{number}" for number in _LIMITS)
        raise Unsupported(f"launching on sm_{sm} is not known here; those are: {known}")
    return row


def check_registers(registers: int, threads: int) -> None:
    """Raises InvalidValue where a block of so many threads does not fit the register file."""
    warps = align_up(-(-threads // WARP), _WARP_UNIT)
    needed = warps * align_up(registers * WARP, _REGISTER_UNIT)
    if needed > REGISTER_FILE:
        raise InvalidValue(
            f"{threads} threads of {registers} registers take {needed} registers: an SM has"
            f" {REGISTER_FILE}; use smaller blocks"
        )

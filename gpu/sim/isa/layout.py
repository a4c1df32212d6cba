"""Where things lie in the memory of a wave, and what an operation record holds.

A wave is a header and rows of lanes of 4 bytes. Scalar registers are rows too, the same value in
every lane, so that any operation takes any register; 64-bit values are two rows, low and high.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Final

HEADER: Final = 512

# Fields of the header: byte offsets.
SCC: Final = 0
BUDGET: Final = 4
RANGES: Final = 8
RANGE_COUNT: Final = 16
LDS: Final = 24
LDS_SIZE: Final = 32
SCRATCH_SIZE: Final = 36
SCRATCH: Final = 40
SHARED_APERTURE: Final = 48
PRIVATE_APERTURE: Final = 52
RESUME: Final = 56
FAULT_ADDRESS: Final = 64
FAULT_LANE: Final = 72
FAULT_ACCESS: Final = 76
FAULT_SIZE: Final = 80
MODE: Final = 84
MXCSR32: Final = 88
MXCSR64: Final = 92
HOST_MXCSR: Final = 100
COUNT: Final = 104
"""Instructions executed, less those that lie before the place of the wave in the program (i64).
So only what jumps changes it; the records of branches hold by how much."""
CLOCK: Final = 112
LOWEST: Final = 120
"""Lowest place of a lane that waits for its turn, where lanes have places of their own; `NOBODY`
where none does."""
LOOK: Final = 124
"""Taken branches until the wave is looked at; see gpu/sim/isa/circles.py."""
GROUP: Final = 128
"""Number of its workgroup in the grid (u64)."""
BARRIER_ID: Final = 136
BARRIER_THREADS: Final = 140
"""Threads that the barrier waits for at which the wave stands; 0 for all of its workgroup."""
BARRIER_KIND: Final = 144
TALLY: Final = 152
"""Host address of the grid's counts (u64), where the program counts; see gpu/sim/isa/tally.py."""
SAVED_EXEC: Final = 160
"""A mask, of up to 128 lanes."""
OWN: Final = 176
"""From here on fields are an instruction set's own."""

NOBODY: Final = 0xFFFFFFFF

SGPR_COUNT: Final = 128
VCC_LO: Final = 106
TTMP: Final = 108
NULL: Final = 124
M0: Final = 125
EXEC: Final = 126
_POINTER_ROWS: Final = 4
TEMP_COUNT: Final = 24


@dataclass(frozen=True)
class WaveLayout:
    """Where rows lie in waves of so many lanes: 32, 64 or 128.

    Attributes:
        lanes: of a wave. A mask of them is a scalar register for each 32.
    """

    lanes: int

    @cached_property
    def row(self) -> int:
        """Bytes of a row."""
        return 4 * self.lanes

    @property
    def words(self) -> int:
        """Scalar registers of a mask."""
        return self.lanes // 32

    @property
    def mask(self) -> str:
        """The type of a mask, in LLVM IR."""
        return f"i{self.lanes}"

    @property
    def pointers(self) -> int:
        """Host addresses of an access, one u64 a lane; then those of a second one."""
        return HEADER

    @cached_property
    def scalars(self) -> int:
        """Scalar registers."""
        return HEADER + _POINTER_ROWS * self.row

    @cached_property
    def temps(self) -> int:
        """`TEMP_COUNT` rows for what lies between the records of an instruction."""
        return self.scalars + SGPR_COUNT * self.row

    @cached_property
    def trash(self) -> int:
        """Two rows for results that go nowhere (`null`)."""
        return self.temps + TEMP_COUNT * self.row

    @cached_property
    def constants(self) -> int:
        """Here begin the rows of the program's constants, and behind them the vector registers."""
        return self.trash + 2 * self.row

    @cached_property
    def exec(self) -> int:
        """The mask of active lanes."""
        return self.scalar(EXEC)

    @cached_property
    def vcc(self) -> int:
        """The mask that vector comparisons write."""
        return self.scalar(VCC_LO)

    def scalar(self, number: int) -> int:
        """A scalar register by its number in an encoding."""
        return self.scalars + number * self.row


WAVE32: Final = WaveLayout(32)

RECORD: Final = struct.Struct("<Q6iqQiiQ")
"""An operation: function, rows d a b c e f (byte offsets), immediate, target, place, aux, hint: the
number of the range that its last access fell into."""
assert RECORD.size == 64


@dataclass(slots=True, kw_only=True)
class Operands:
    """What a record names besides its function, before it has a place.

    Attributes:
        d, a, b, c, e, f: byte offsets of rows into the wave.
        immediate, aux: constants.
        target: what a jump goes to, None where there is none.
    """

    d: int = 0
    a: int = 0
    b: int = 0
    c: int = 0
    e: int = 0
    f: int = 0
    immediate: int = 0
    aux: int = 0
    target: int | None = None


OPERANDS: Final = {"d": 8, "a": 12, "b": 16, "c": 20, "e": 24, "f": 28}
IMMEDIATE: Final = 32
TARGET: Final = 40
PLACE: Final = 48
"""How many instructions of the program are done where this record begins."""
AUX: Final = 52
HINT: Final = 56

# What `run` gives back.
END: Final = 0
BARRIER: Final = 1
FAULT: Final = 2
SLICE: Final = 3
UNKNOWN: Final = 4
JUMP: Final = 5
STUCK: Final = 6
"""Lanes wait for lanes that never come."""
TRAP: Final = 7
SIGNAL: Final = 8
"""The wave has come to a barrier, and goes on."""
AWAIT: Final = 9
"""It waits for the barrier that it has come to."""

# Accesses, as reported with faults and as flags of ranges.
READ: Final = 1
WRITE: Final = 2
ATOMIC: Final = 4
SCALAR: Final = 8
"""A read through the scalar cache."""
OWN_MEMORY: Final = 128
"""Set with a fault in LDS or scratch, whose addresses are offsets."""
RANGE: Final = struct.Struct("<QQQQ")
"""A range of memory: GPU address, size, host address minus GPU address modulo 2**64, flags."""
# Bits of the word at MODE that operations look at.
MODE_IEEE: Final = 1 << 9
MODE_DX10_CLAMP: Final = 1 << 8
MODE_FP16_OVFL: Final = 1 << 23
MODE_DENORMAL_RESULTS: Final = {"f16": 1 << 7, "f32": 1 << 5, "f64": 1 << 7}
"""Positions as in the MODE register of RDNA3 (section 3.3.2); they come from COMPUTE_PGM_RSRC1."""

"""What a dispatch starts its waves with: the registers of a dispatcher, decoded.

Registers: Mesa 25.0, src/freedreno/registers/adreno/a6xx.xml, SP_CS_* and HLSQ_CS_*.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from gpu.core.errors import InvalidValue, Unsupported
from gpu.sim.isa.ir3.decode import SIZE

MOST_THREADS: Final = 1024
MOST_VECTORS: Final = 48
MOST_SHARED: Final = 32 << 10
MOST_CONSTANTS: Final = 512
"""Vectors of the constant file."""
VECTOR: Final = 16
"""Bytes of a constant of four words."""


class Buffer(NamedTuple):
    """What a descriptor of a buffer says: where, and how many bytes."""

    address: int
    size: int


@dataclass(frozen=True)
class Dispatch:
    """A dispatch of workgroups.

    Attributes:
        code: GPU address of the first instruction (SP_CS_OBJ_START).
        size: bytes of code there (SP_CS_INSTRLEN, in units of 128).
        groups: workgroups in x, y, z.
        block: threads of a workgroup in x, y, z.
        lanes: of a wave, 64, or 128 with THREAD128.
        constants: the constant file from c0.x on.
        full: registers of 4 x 32 bits (FULLREGFOOTPRINT).
        half: of 4 x 16 bits (HALFREGFOOTPRINT), which merged registers have among the others.
        merged: whether half and full registers share their place (MERGEDREGS).
        branches: BRANCHSTACK; lanes may wait at twice as many places.
        group_at: component that has the number of the workgroup in x, y and z behind it
            (WGIDCONSTID); None for none.
        thread_at: the same of a thread in its workgroup (LOCALIDREGID).
        shared_bytes: memory of a workgroup.
        private_bytes: memory of a thread.
        private_address: where that is; None for memory of the simulator's own.
        private_size: bytes there.
        ubos, uavs: buffers by their index.
    """

    code: int
    size: int
    groups: tuple[int, int, int]
    block: tuple[int, int, int]
    lanes: int = 64
    constants: bytes = b""
    full: int = MOST_VECTORS
    half: int = 0
    merged: bool = True
    branches: int = 0
    group_at: int | None = None
    thread_at: int | None = None
    shared_bytes: int = 0
    private_bytes: int = 0
    private_address: int | None = None
    private_size: int = 0
    ubos: tuple[Buffer, ...] = ()
    uavs: tuple[Buffer, ...] = ()

    def __post_init__(self) -> None:
        """Raises InvalidValue for what no dispatcher accepts, Unsupported for what is not here."""
        _check("threads of a workgroup", self.threads, 1, MOST_THREADS)
        for axis in self.block:
            _check("threads of an axis", axis, 1, MOST_THREADS)
        for count in self.groups:
            _check("workgroups of an axis", count, 1, 0xFFFFFFFF)
        _check("registers", self.full, 0, MOST_VECTORS)
        _check("bytes of shared memory", self.shared_bytes, 0, MOST_SHARED)
        _check("vectors of constants", len(self.constants) // VECTOR, 0, MOST_CONSTANTS)
        _check("bytes of code", self.size, SIZE, 1 << 30)
        if self.lanes not in (64, 128):
            raise InvalidValue(f"waves of {self.lanes} threads: Adreno 6xx has waves of 64 and 128")
        if len(self.constants) % VECTOR:
            raise InvalidValue(f"{len(self.constants)} bytes of constants: they come by {VECTOR}")
        if self.code % SIZE or self.size % SIZE:
            raise InvalidValue(f"{self.size} bytes of code at {self.code:#x}: they come by {SIZE}")
        if not self.merged:
            raise Unsupported(
                "half registers that have a place of their own are not simulated: set MERGEDREGS"
            )
        if self.ubos or self.uavs:
            raise Unsupported("buffers with descriptors are not simulated yet")

    @property
    def threads(self) -> int:
        """Threads of a workgroup."""
        x, y, z = self.block
        return x * y * z

    @property
    def waves_per_group(self) -> int:
        """Waves of a workgroup."""
        return -(-self.threads // self.lanes)


def _check(what: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidValue(f"{value} {what}; between {least} and {most} are possible")

"""What packets and launches depend on of an Adreno 6xx GPU.

Sources: Mesa, src/freedreno/common/freedreno_devices.py (sizes, and what registers hold that it
takes from Qualcomm's driver); Qualcomm's kgsl, adreno-gpulist.h (numbers of chips).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from gpu.core.errors import Unsupported


class Tuning(NamedTuple):
    """What registers of shader units and caches hold that differ by chip, and have no known fields.

    They are called as in `autogen/adreno_a6xx.py`.
    """

    SP_CHICKEN_BITS: int
    SP_DBG_ECO_CNTL: int
    TPL1_DBG_ECO_CNTL: int
    HLSQ_DBG_ECO_CNTL: int
    UCHE_UNKNOWN_0E12: int
    UCHE_CLIENT_PF: int


class Chip(NamedTuple):
    """A chip.

    Attributes:
        name: as in a630.
        cores: shader processors.
        fibers: threads that each has at once, at most.
        instructions: units of 128 bytes that its instruction cache holds.
        has_lpac: there is a second front end for compute, whose registers are to be set too.
        tuning: see there.
        more: registers of this chip alone, by offset.
    """

    name: str
    cores: int
    fibers: int
    instructions: int
    has_lpac: bool
    tuning: Tuning
    more: Mapping[int, int] = {}


def _first(name: str, cores: int, fibers: int, *tuning: int) -> Chip:
    return Chip(name, cores, fibers, 64, False, Tuning(*tuning))


def _later(name: str, cores: int, lpac: bool, *tuning: int, more: Mapping[int, int] = {}) -> Chip:
    return Chip(name, cores, 2 * 2048, 127, lpac, Tuning(*tuning), more)


_A61X: Final = (0x430, 0, 0x108000, 0x80000, 1, 4)
CHIPS: Final[Mapping[str, Chip]] = {
    chip.name: chip
    for chip in (
        _first("a618", 1, 2048, *_A61X),
        _first("a619", 1, 2048, *_A61X),
        _first("a620", 1, 2048, 0x400, 0x1000000, 0x1008000, 0, 1, 4),
        _first("a630", 2, 2048, 0x1430, 0, 0x108000, 0x80000, 0x10000001, 4),
        _first("a640", 2, 4 * 2048, 0x420, 0, 0x8000, 0, 1, 4),
        _first("a680", 4, 4 * 2048, 0x1430, 0, 0x108000, 0, 1, 4),
        _later("a650", 3, False, 0x1400, 0x1000000, 0x1008000, 0, 1, 4),
        _later("a660", 3, True, 0x1400, 0x1000000, 0x5008000, 0, 1, 0x84),
        _later("a690", 8, True, 0x1400, 0x1200000, 0x4C00000, 0, 1, 0x84, more={0xAAF2: 0xC00000}),
    )
}
"""Those that there are packets and code for."""


def name_of(chip_id: int) -> str:
    """What a chip is called by the number that KGSL tells: a630 for 0x06030001."""
    core, major, minor = chip_id >> 24, chip_id >> 16 & 0xFF, chip_id >> 8 & 0xFF
    return f"a{core}{major}{minor}"


def find_chip(chip_id: int) -> Chip:
    """The chip of that number. Raises Unsupported for one that there is no code for."""
    chip = CHIPS.get(name_of(chip_id))
    if chip is None:
        raise Unsupported(
            f"this GPU is an Adreno of chip id {chip_id:#010x} ({name_of(chip_id)}); there is code"
            f" for {', '.join(CHIPS)}"
        )
    return chip

"""What a device says of itself: CUdevice_attribute by number, for a chip.

Limits of a compute capability are those of the "CUDA C++ Programming Guide", "Compute
Capabilities". Clocks, buses, caches and copy engines are those of the boards' data sheets; where
there are none they are marked as a guess.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gpu.sim.nv.chip.chips import Chip

_KIB: Final = 1 << 10
_MIB: Final = 1 << 20
RESERVED_SHARED: Final = 1 * _KIB  # of a block, from compute capability 8.0 on
STATIC_SHARED: Final = 48 * _KIB
REGISTERS: Final = 65536
MOST_THREADS: Final = 1024
KERNEL_TIMEOUT: Final = 17
MAJOR: Final = 75
MINOR: Final = 76


class Board(NamedTuple):
    """What a chip's table does not say.

    Attributes:
        clock_khz, memory_khz: highest clocks.
        bus_bits: width of the memory's bus.
        l2: bytes of the cache.
        copy_engines: that work beside kernels.
        blocks: of an SM.
        float64_ratio: single to double precision throughput.
    """

    clock_khz: int
    memory_khz: int
    bus_bits: int
    l2: int
    copy_engines: int
    blocks: int
    float64_ratio: int


BOARDS: Final = {
    "ga102": Board(1_695_000, 9_751_000, 384, 6 * _MIB, 2, 16, 32),
    "ad102": Board(2_520_000, 10_501_000, 384, 72 * _MIB, 2, 24, 64),
    "gh100": Board(1_980_000, 3_201_000, 6144, 60 * _MIB, 3, 32, 2),  # copy engines: a guess
    "gb202": Board(2_407_000, 14_001_000, 512, 96 * _MIB, 2, 24, 64),
}


def capability(chip: Chip) -> tuple[int, int]:
    """(major, minor) of a chip."""
    return chip.sm_version >> 8, chip.sm_version & 0xFF


def shared_per_sm(chip: Chip) -> int:
    """Bytes of shared memory of an SM."""
    return chip.carveouts[-1] * _KIB


def shared_per_block(chip: Chip) -> int:
    """The most that a block may ask for."""
    return shared_per_sm(chip) - RESERVED_SHARED


# The same for all chips here. What is 0 is a feature that this model lacks.
_COMMON: Final = {
    1: MOST_THREADS, 2: 1024, 3: 1024, 4: 64, 5: (1 << 31) - 1, 6: 65535, 7: 65535,
    8: STATIC_SHARED, 9: 64 * _KIB, 10: 32, 11: (1 << 31) - 1, 12: REGISTERS, 14: 512, 15: 1,
    KERNEL_TIMEOUT: 1, 18: 0, 19: 1, 20: 0, 21: 131072, 22: 131072, 23: 65536, 24: 16384, 25: 16384,
    26: 16384, 27: 32768, 28: 32768, 29: 2048, 30: 512, 31: 1, 33: 1, 34: 0, 35: 0, 41: 1,
    42: 32768, 43: 2048, 44: 1, 45: 32768, 46: 32768, 47: 8192, 48: 8192, 49: 32768, 50: 0,
    51: 32, 52: 32768, 53: 32768, 54: 2046, 55: 32768, 56: 131072, 57: 65536, 58: 16384, 59: 16384,
    60: 16384, 61: 32768, 62: 2048, 63: 32768, 64: 32768, 65: 2048, 66: 32768, 67: 32768, 68: 2046,
    69: 268435456, 70: 131072, 71: 65000, 72: 2097120, 73: 32768, 74: 32768, 77: 32768, 78: 1,
    79: 1, 80: 1, 82: REGISTERS, 83: 0, 84: 0, 85: 0, 86: 0, 88: 0, 89: 0, 90: 1, 91: 1, 92: 0,
    93: 0, 94: 0, 95: 1, 96: 0, 98: 0, 99: 1, 100: 0, 101: 0, 102: 1, 103: 1, 104: 0, 105: 0,
    107: 0, 108: 0, 109: 0, 110: 0, 111: RESERVED_SHARED, 112: 0, 113: 0, 114: 0, 115: 1, 116: 0,
    117: 0, 118: 0, 119: 0, 120: 0, 121: 0, 122: 0, 123: 0, 124: 0, 125: 0, 126: 1, 127: 0, 128: 0,
    129: 1, 130: 0, 131: -1, 132: 0, 133: 0, 134: 0, 135: 0, 136: 0, 137: 0, 138: 0,
}  # fmt: skip


def attributes_of(chip: Chip, index: int) -> dict[int, int]:
    """All attributes of the device of a number."""
    board = BOARDS[chip.name]
    major, minor = capability(chip)
    return _COMMON | {
        13: board.clock_khz,
        16: chip.sms,
        32: int(chip.name == "gh100"),  # ECC
        33: 1 + index,
        36: board.memory_khz,
        37: board.bus_bits,
        38: board.l2,
        39: 32 * chip.warps,
        40: board.copy_engines,
        MAJOR: major,
        MINOR: minor,
        81: shared_per_sm(chip),
        87: board.float64_ratio,
        97: shared_per_block(chip),
        106: board.blocks,
    }

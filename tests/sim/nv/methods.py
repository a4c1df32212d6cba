"""Methods as words of a pushbuffer."""

from __future__ import annotations

from sim.nv.numbers import COMPUTE

SHARED_WINDOW, LOCAL_WINDOW = 0x7294_0000_0000, 0x7293_0000_0000


def inc(subchannel: int, address: int, *data: int) -> list[int]:
    return [1 << 29 | len(data) << 16 | subchannel << 13 | address >> 2, *data]


def acquire(address: int, value: int, operation: int = 0) -> list[int]:
    return inc(0, 0x5C, address & 0xFFFFFFFF, address >> 32, value & 0xFFFFFFFF, 0, operation)


def release(address: int, value: int, *, stamp: bool = False, idle: bool = True) -> list[int]:
    execute = 1 | idle << 20 | stamp << 25
    words = (address & 0xFFFFFFFF, address >> 32, value & 0xFFFFFFFF, value >> 32, execute)
    return inc(0, 0x5C, *words)


def copy(source: int, target: int, size: int, launch: int = 0x182) -> list[int]:
    where = (source >> 32, source & 0xFFFFFFFF, target >> 32, target & 0xFFFFFFFF)
    return inc(4, 0x400, *where) + inc(4, 0x418, size) + inc(4, 0x300, launch)


def compute_setup(chip: str) -> list[int]:
    words = inc(1, 0, COMPUTE[chip])
    for method, window in ((0x2A0, SHARED_WINDOW), (0x7B0, LOCAL_WINDOW)):
        words += inc(1, method, window >> 32, window & 0xFFFFFFFF)
    return words


def launch(address: int, action: int = 0xA) -> list[int]:
    return inc(1, 0x2B4, address >> 8) + inc(1, 0x2C0, action)

"""AQL packets by hand."""

from __future__ import annotations

import struct

from sim.raw_kfd import (
    ACCESS,
    GTT,
    PAGE,
    VRAM,
    Buffer,
    RawKfd,
    halves,
    packet3,
)

VENDOR, INVALID, KERNEL, AND, AGENT, OR = range(6)


BARRIER = 1 << 8


def barrier(
    kind: int = AND, signals: tuple[int, ...] = (), completion: int = 0, flags: int = 0
) -> bytes:
    deps = list(signals) + [0] * (5 - len(signals))
    return struct.pack("<HHI5Q2Q", kind | flags, 0, 0, *deps, 0, completion)


def vendor(user: RawKfd, words: list[int], completion: int = 0) -> bytes:
    buffer = user.alloc(PAGE, GTT | ACCESS)
    for i, word in enumerate(words):
        buffer.host.write(4 * i, 4, word)
    body = packet3(0x3F, *halves(buffer.va), len(words) | 1 << 23)
    return struct.pack("<16I", VENDOR | 1 << 16, *body, 0xA, *[0] * 8, *halves(completion))


def kernel(
    descriptor: int,
    *,
    grid: tuple[int, int, int] = (64, 1, 1),
    group: tuple[int, int, int] = (32, 1, 1),
    kernarg: int = 0,
    completion: int = 0,
    setup: int = 1,
    lds: int = 0,
    flags: int = 0,
) -> bytes:
    head = struct.pack("<6H", KERNEL | 1 << 9 | 1 << 11 | flags, setup, *group, 0)
    body = struct.pack("<3I2I2QQQ", *grid, 0, lds, descriptor, kernarg, 0, completion)
    return head + body


def signal(memory: Buffer, value: int, at: int = 0) -> int:
    memory.host.write(at + 8, 8, value)
    return memory.va + at


def descriptor(user: RawKfd, *, properties: int = 8 | 1 << 10, lds: int = 0) -> Buffer:
    """A code object's descriptor with its entry 256 bytes behind it; 8: kernarg, wave32."""
    code = user.alloc(PAGE, VRAM | ACCESS)
    fields = struct.pack("<3I4xq20x3I2H4x", lds, 0, 16, 256, 0, 0x60AF0000, 0x84, properties, 0)
    code.host.store(0, fields)
    return code

"""Random words of ir3, and what Mesa writes for words."""

from __future__ import annotations

import random

from gpu.compiler.toolchain.ir3 import Ir3Compiler
from gpu.core.ir3binary import NO_REGISTER, UNIT, Ir3Binary

DECODED = (0, 1, 2, 3, 4, 6, 7)
"""Categories."""


def random_word(rng: random.Random) -> int:
    """A word of a category that is decoded, in which ones are rare, or rarer."""
    word = rng.getrandbits(61)
    for _ in range(rng.randrange(3)):
        word &= rng.getrandbits(61)
    if rng.random() < 0.4:
        word &= ~rng.getrandbits(32)
    return word | rng.choice(DECODED) << 61


def binary_of(code: bytes) -> bytes:
    """A kernel of nothing but code."""
    code += bytes(-len(code) % UNIT)
    return Ir3Binary(
        chip=630, full=1, half=0, branches=0, constants=0, immediates_at=0, block=64, shared=0,
        private=0, group_at=NO_REGISTER, thread_at=NO_REGISTER, ubos=0, uavs=0, samplers=0,
        double=0, merged=1, early=0, per_wave=0, parameters=0, name="words", code=code,
        immediates=b"",
    ).pack()  # fmt: skip


def mesa_lines(words: list[int]) -> list[str]:
    """A line for each word by Mesa's disassembler, with its comments."""
    code = b"".join(word.to_bytes(8, "little") for word in words)
    return Ir3Compiler("a630").disassemble(binary_of(code)).splitlines()[: len(words)]

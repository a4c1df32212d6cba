"""Changes of bytes and of texts: at random places, by values that parsers go wrong with."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Final

_WORDS: Final = (0, 1, 2, 3, 4, 7, 8, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0x8000, 0xFFFF, 0x10000)
_LARGE: Final = (
    0x7FFF_FFFF,
    0x8000_0000,
    0xFFFF_FFFF,
    1 << 32,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
)
_SIZES: Final = (1, 2, 4, 8)
_MOST: Final = 1 << 16  # bytes of an input
_NUMBERS: Final = (
    *("0", "1", "-1", "00", "4294967295", "4294967296", "18446744073709551616", "9" * 40, "1e3"),
    *("0x10", "", " ", "nan", "\u0663", "1 2"),
)
_NUMBER: Final = re.compile(rb"\d+")

Mutation = Callable[[random.Random, bytes, Sequence[bytes]], bytes]


def mutated(rng: random.Random, pool: Sequence[bytes], *, text: bool) -> bytes:
    """One of some inputs, changed a few times; texts line by line and number by number."""
    data = rng.choice(pool)
    ways = _OF_TEXT if text else _OF_BYTES
    for _ in range(1 + int(rng.expovariate(0.7))):
        data = rng.choice(ways)(rng, data, pool)
    return data[:_MOST]


def _flip(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    """One bit."""
    if not data:
        return data
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def _word(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    """A word at a multiple of its size becomes a limit or the size of the input, or almost."""
    size = rng.choice(_SIZES)
    if len(data) < size:
        return data
    at = rng.randrange(len(data) // size) * size
    value = rng.choice((*_WORDS, *_LARGE, len(data), len(data) - at)) + rng.choice((-1, 0, 0, 1))
    return data[:at] + (value & (1 << 8 * size) - 1).to_bytes(size, "little") + data[at + size :]


def _add(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    """A word becomes a little more or less: counts, sizes and offsets that are off by some."""
    size = rng.choice(_SIZES)
    if len(data) < size:
        return data
    at = rng.randrange(len(data) // size) * size
    value = int.from_bytes(data[at : at + size], "little") + rng.randint(-16, 16)
    return data[:at] + (value & (1 << 8 * size) - 1).to_bytes(size, "little") + data[at + size :]


def _copy_word(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    """A word becomes another one of the input: an offset that leads elsewhere, or to itself."""
    size = rng.choice(_SIZES)
    if len(data) < 2 * size:
        return data
    at, of = (rng.randrange(len(data) // size) * size for _ in range(2))
    return data[:at] + data[of : of + size] + data[at + size :]


def _range(rng: random.Random, size: int) -> tuple[int, int]:
    start = rng.randrange(size + 1)
    return start, min(size, start + int(rng.expovariate(1 / 24)) + 1)


def _cut(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = _range(rng, len(data))
    return data[:start] + data[end:]


def _repeat(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = _range(rng, len(data))
    return data[:end] + data[start:end] * rng.choice((1, 1, 2, 16)) + data[end:]


def _truncate(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _splice(rng: random.Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    """The beginning of one input and the end of another."""
    other = rng.choice(pool)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def _insert(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(rng.randint(1, 16)) + data[at:]


def _line(rng: random.Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    """Lines go, come twice, change places, or come from another input."""
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    match rng.randrange(4):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, lines[at])
        case 2:
            lines.insert(rng.randrange(len(lines)), lines.pop(at))
        case _:
            lines.insert(at, rng.choice(rng.choice(pool).split(b"\n")))
    return b"\n".join(lines)


def _number(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    """A number in a text becomes another, or none."""
    found = list(_NUMBER.finditer(data))
    if not found:
        return data
    one = rng.choice(found)
    near = str(int(one[0]) + rng.choice((-1, 1))) if len(one[0]) < 40 else "7"
    value = rng.choice((*_NUMBERS, near, str(rng.getrandbits(rng.choice((8, 16, 32, 64))))))
    return data[: one.start()] + value.encode() + data[one.end() :]


_OF_BYTES: Final[tuple[Mutation, ...]] = (
    *(_flip, _word, _word, _add, _copy_word, _cut, _repeat, _truncate, _splice, _insert),
)
_OF_TEXT: Final[tuple[Mutation, ...]] = (
    *(_number, _number, _line, _line, _flip, _cut, _repeat, _truncate, _splice, _insert),
)

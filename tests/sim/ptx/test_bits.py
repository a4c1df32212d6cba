"""Instructions on bits, and on parts of words, against definitions in Python."""

from __future__ import annotations

from collections.abc import Iterator

from sim.ptx.ops import Form, check, signed
from sim.ptx.test_integers import WIDE, width_of


def _field(x: int, start: int, count: int, kind: str) -> int:
    """BFE, bit by bit."""
    top = width_of(kind) - 1
    start, count = start & 255, count & 255
    sign = 0 if kind[0] == "u" or not count else x >> min(start + count - 1, top) & 1
    return sum(
        (x >> (start + i) & 1 if i < count and start + i <= top else sign) << i
        for i in range(top + 1)
    )


def _inserted(x: int, y: int, start: int, count: int, bits: int) -> int:
    """BFI, bit by bit."""
    start, count = start & 255, count & 255
    for i in range(count):
        if start + i < bits:
            y = y & ~(1 << (start + i)) | (x >> i & 1) << (start + i)
    return y


def _found(x: int, kind: str, shift: bool) -> int:
    bits = width_of(kind)
    if kind[0] == "s" and x >> (bits - 1):
        x = ~x & ((1 << bits) - 1)
    if not x:
        return -1
    place = x.bit_length() - 1
    return bits - 1 - place if shift else place


def _nth(mask: int, base: int, offset: int) -> int:
    """FNS, as the manual's pseudocode."""
    offset = signed(offset, 32)
    if offset == 0:
        return base if base < 32 and mask >> base & 1 else -1
    if base >= 32:
        return -1
    places = range(base, 32) if offset > 0 else range(base, -1, -1)
    count = 0
    for place in places:
        count += mask >> place & 1
        if mask >> place & 1 and count == abs(offset):
            return place
    return -1


def _bytes_by(x: int, y: int, selector: int) -> int:
    source = (y << 32 | x).to_bytes(8, "little")
    result = 0
    for i in range(4):
        pick = selector >> 4 * i & 15
        byte = source[pick & 7]
        result |= (255 * (byte >> 7) if pick & 8 else byte) << 8 * i
    return result


_MODES = {
    "f4e": lambda s: [s, s + 1, s + 2, s + 3],
    "b4e": lambda s: [s, (s - 1) % 8, (s - 2) % 8, (s - 3) % 8],
    "rc8": lambda s: [s] * 4,
    "ecl": lambda s: [max(s, i) for i in range(4)],
    "ecr": lambda s: [min(s, i) for i in range(4)],
    "rc16": lambda s: [2 * (s & 1), 2 * (s & 1) + 1] * 2,
}


def _bits_forms() -> Iterator[Form]:
    for bits in (32, 64):
        yield Form(f"popc.b{bits} {{d}}, {{a}};", 32, (bits,), int.bit_count)
        yield Form(f"clz.b{bits} {{d}}, {{a}};", 32, (bits,), lambda x, n=bits: n - x.bit_length())
        yield Form(
            f"brev.b{bits} {{d}}, {{a}};",
            bits,
            (bits,),
            lambda x, n=bits: int(f"{x:0{n}b}"[::-1], 2),
        )
        yield Form(
            f"bfi.b{bits} {{d}}, {{a}}, {{b}}, {{c}}, {{e}};",
            bits,
            (bits, bits, 32, 32),
            lambda x, y, s, c, n=bits: _inserted(x, y, s, c, n),
        )
    for kind in WIDE:
        bits = width_of(kind)
        yield Form(
            f"bfe.{kind} {{d}}, {{a}}, {{b}}, {{c}};",
            bits,
            (bits, 32, 32),
            lambda x, s, c, k=kind: _field(x, s, c, k),
        )
        for shift in (False, True):
            yield Form(
                f"bfind{'.shiftamt' if shift else ''}.{kind} {{d}}, {{a}};",
                32,
                (bits,),
                lambda x, k=kind, s=shift: _found(x, k, s),
            )
    for bits in (16, 32, 64):
        yield Form(f"and.b{bits} {{d}}, {{a}}, {{b}};", bits, (bits, bits), int.__and__)
        yield Form(f"or.b{bits} {{d}}, {{a}}, {{b}};", bits, (bits, bits), int.__or__)
        yield Form(f"xor.b{bits} {{d}}, {{a}}, {{b}};", bits, (bits, bits), int.__xor__)
        yield Form(f"not.b{bits} {{d}}, {{a}};", bits, (bits,), lambda x: ~x)
        yield Form(f"cnot.b{bits} {{d}}, {{a}};", bits, (bits,), lambda x: int(not x))
        yield Form(
            f"shl.b{bits} {{d}}, {{a}}, {{b}};",
            bits,
            (bits, 32),
            lambda x, s, n=bits: x << min(s, n),
        )
        yield Form(
            f"shr.u{bits} {{d}}, {{a}}, {{b}};",
            bits,
            (bits, 32),
            lambda x, s, n=bits: x >> min(s, n),
        )
        yield Form(
            f"shr.s{bits} {{d}}, {{a}}, {{b}};",
            bits,
            (bits, 32),
            lambda x, s, n=bits: signed(x, n) >> min(s, n),
        )
    for mode in ("wrap", "clamp"):
        yield Form(
            f"shf.l.{mode}.b32 {{d}}, {{a}}, {{b}}, {{c}};",
            32,
            (32,) * 3,
            lambda x, y, s, m=mode: (y << 32 | x) << (s & 31 if m == "wrap" else min(s, 32)) >> 32,
        )
        yield Form(
            f"shf.r.{mode}.b32 {{d}}, {{a}}, {{b}}, {{c}};",
            32,
            (32,) * 3,
            lambda x, y, s, m=mode: (y << 32 | x) >> (s & 31 if m == "wrap" else min(s, 32)),
        )
    for table in (0, 0x80, 0x96, 0xE8, 0xCA, 0x1B, 0xFF):
        yield Form(
            f"lop3.b32 {{d}}, {{a}}, {{b}}, {{c}}, {table};",
            32,
            (32,) * 3,
            lambda x, y, z, t=table: sum(
                (t >> (4 * (x >> i & 1) + 2 * (y >> i & 1) + (z >> i & 1)) & 1) << i
                for i in range(32)
            ),
        )
    yield Form("prmt.b32 {d}, {a}, {b}, {c};", 32, (32,) * 3, _bytes_by)
    for mode, picks in _MODES.items():
        yield Form(
            f"prmt.b32.{mode} {{d}}, {{a}}, {{b}}, {{c}};",
            32,
            (32,) * 3,
            lambda x, y, s, p=picks: _bytes_by(
                x, y, sum(b << 4 * i for i, b in enumerate(p(s & 3)))
            ),
        )
    yield Form("fns.b32 {d}, {a}, {b}, {c};", 32, (32,) * 3, _nth)


def test_single_operations() -> None:
    check(list(_bits_forms()))


def _extended(x: int, width: int, kind: str, mode: str) -> int:
    width = width & 31 if mode == "wrap" else min(width, 32)
    kept = x & ((1 << width) - 1)
    return signed(kept, width) if kind == "s32" and width else kept


def _mask(start: int, count: int, mode: str) -> int:
    if mode == "wrap":
        start, count = start & 31, count & 31
    return ((1 << min(count, 32)) - 1) << min(start, 32)


def _dots() -> Iterator[Form]:
    def byte(x: int, i: int, kind: str) -> int:
        part = x >> 8 * i & 255
        return signed(part, 8) if kind == "s32" else part

    def word(x: int, i: int, kind: str) -> int:
        part = x >> 16 * i & 0xFFFF
        return signed(part, 16) if kind == "s32" else part

    for a in ("s32", "u32"):
        for b in ("s32", "u32"):
            yield Form(
                f"dp4a.{a}.{b} {{d}}, {{a}}, {{b}}, {{c}};",
                32,
                (32,) * 3,
                lambda x, y, z, a=a, b=b: z + sum(byte(x, i, a) * byte(y, i, b) for i in range(4)),
            )
            for half in ("lo", "hi"):
                yield Form(
                    f"dp2a.{half}.{a}.{b} {{d}}, {{a}}, {{b}}, {{c}};",
                    32,
                    (32,) * 3,
                    lambda x, y, z, a=a, b=b, h=2 * (half == "hi"): (
                        z + sum(word(x, i, a) * byte(y, i + h, b) for i in range(2))
                    ),
                )
    for mode in ("wrap", "clamp"):
        yield Form(
            f"bmsk.{mode}.b32 {{d}}, {{a}}, {{b}};",
            32,
            (32, 32),
            lambda s, c, m=mode: _mask(s, c, m),
        )
        for kind in ("s32", "u32"):
            yield Form(
                f"szext.{mode}.{kind} {{d}}, {{a}}, {{b}};",
                32,
                (32, 32),
                lambda x, w, k=kind, m=mode: _extended(x, w, k, m),
            )


def test_dot_products_and_masks() -> None:
    check(list(_dots()))

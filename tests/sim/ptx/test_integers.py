"""Integer instructions against definitions in Python, written from the manual's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sim.ptx.ops import Form, check, signed

ALL = tuple(f"{letter}{bits}" for letter in "su" for bits in (16, 32, 64))
WIDE = ("s32", "u32", "s64", "u64")


def width_of(kind: str) -> int:
    """Bits of a type."""
    return int(kind[1:])


def _value(kind: str) -> Callable[[int], int]:
    return (lambda x: signed(x, width_of(kind))) if kind[0] == "s" else (lambda x: x)


def _two(text: str, kind: str, wanted: Callable[[int, int], int]) -> Form:
    bits, value = width_of(kind), _value(kind)
    return Form(
        f"{text} {{d}}, {{a}}, {{b}};", bits, (bits, bits), lambda x, y: wanted(value(x), value(y))
    )


def _quotient(kind: str) -> Callable[[int, int], int]:
    def divide(x: int, y: int) -> int:
        if not y:
            return -1
        size = abs(x) // abs(y)
        return size if (x < 0) == (y < 0) else -size

    return divide


def _remainder(x: int, y: int) -> int:
    return x if not y else x - y * _quotient("")(x, y)


def _arithmetic() -> Iterator[Form]:
    for kind in ALL:
        bits = width_of(kind)
        yield _two(f"add.{kind}", kind, lambda x, y: x + y)
        yield _two(f"sub.{kind}", kind, lambda x, y: x - y)
        yield _two(f"mul.lo.{kind}", kind, lambda x, y: x * y)
        yield _two(f"mul.hi.{kind}", kind, lambda x, y, n=bits: x * y >> n)
        yield _two(f"min.{kind}", kind, min)
        yield _two(f"max.{kind}", kind, max)
        yield _two(f"div.{kind}", kind, _quotient(kind))
        yield _two(f"rem.{kind}", kind, _remainder)
        value = _value(kind)
        if bits < 64:
            yield Form(
                f"mul.wide.{kind} {{d}}, {{a}}, {{b}};",
                2 * bits,
                (bits, bits),
                lambda x, y, v=value: v(x) * v(y),
            )
            yield Form(
                f"mad.wide.{kind} {{d}}, {{a}}, {{b}}, {{c}};",
                2 * bits,
                (bits, bits, 2 * bits),
                lambda x, y, z, v=value: v(x) * v(y) + z,
            )
        yield Form(
            f"mad.lo.{kind} {{d}}, {{a}}, {{b}}, {{c}};",
            bits,
            (bits,) * 3,
            lambda x, y, z: x * y + z,
        )
        yield Form(
            f"mad.hi.{kind} {{d}}, {{a}}, {{b}}, {{c}};",
            bits,
            (bits,) * 3,
            lambda x, y, z, v=value, n=bits: (v(x) * v(y) >> n) + z,
        )
        yield Form(
            f"sad.{kind} {{d}}, {{a}}, {{b}}, {{c}};",
            bits,
            (bits,) * 3,
            lambda x, y, z, v=value: abs(v(x) - v(y)) + z,
        )
        if kind[0] == "s":
            yield Form(f"abs.{kind} {{d}}, {{a}};", bits, (bits,), lambda x, v=value: abs(v(x)))
            yield Form(f"neg.{kind} {{d}}, {{a}};", bits, (bits,), lambda x: -x)


def test_arithmetic() -> None:
    check(list(_arithmetic()))


def _clamp(value: int) -> int:
    return max(-(2**31), min(2**31 - 1, value))


def test_saturation_and_24width_of() -> None:
    def low24(x: int, kind: str) -> int:
        return signed(x & 0xFFFFFF, 24) if kind == "s32" else x & 0xFFFFFF

    forms = [
        _two("add.sat.s32", "s32", lambda x, y: _clamp(x + y)),
        _two("sub.sat.s32", "s32", lambda x, y: _clamp(x - y)),
        _two("min.relu.s32", "s32", lambda x, y: max(0, min(x, y))),
        Form(
            "mad.hi.sat.s32 {d}, {a}, {b}, {c};",
            32,
            (32,) * 3,
            lambda x, y, z: _clamp((signed(x, 32) * signed(y, 32) >> 32) + signed(z, 32)),
        ),
    ]
    for kind in ("s32", "u32"):
        for part, shift in (("lo", 0), ("hi", 16)):
            forms.append(
                Form(
                    f"mul24.{part}.{kind} {{d}}, {{a}}, {{b}};",
                    32,
                    (32, 32),
                    lambda x, y, k=kind, s=shift: low24(x, k) * low24(y, k) >> s,
                )
            )
            forms.append(
                Form(
                    f"mad24.{part}.{kind} {{d}}, {{a}}, {{b}}, {{c}};",
                    32,
                    (32,) * 3,
                    lambda x, y, z, k=kind, s=shift: (low24(x, k) * low24(y, k) >> s) + z,
                )
            )
    check(forms)


def test_carries() -> None:
    def joined(low: int, high: int) -> int:
        return high << 32 | low

    both = (32, 32, 32, 32)
    move = "mov.b64 {d}, {{%r21, %r22}};"
    check(
        [
            Form(
                "add.cc.u32 %r21, {a}, {c}; addc.u32 %r22, {b}, {e};" + move,
                64,
                both,
                lambda a, b, c, e: joined(a, b) + joined(c, e),
            ),
            Form(
                "sub.cc.u32 %r21, {a}, {c}; subc.u32 %r22, {b}, {e};" + move,
                64,
                both,
                lambda a, b, c, e: joined(a, b) - joined(c, e),
            ),
            Form(
                "mad.lo.cc.u32 %r21, {a}, {b}, {c}; madc.hi.u32 %r22, {a}, {b}, {e};" + move,
                64,
                both,
                lambda a, b, c, e: a * b + joined(c, e),
            ),
            Form(
                "add.cc.u64 %rd21, {a}, {b}; addc.cc.u64 %rd22, {a}, {a}; addc.u64 {d}, 0, 0;",
                64,
                (64, 64),
                lambda a, b: (a + b + ((a + a) << 64)) >> 128,
            ),
            Form(
                "sub.cc.u64 %rd21, {a}, {b}; subc.cc.u64 %rd22, {b}, {a}; subc.u64 {d}, 0, 0;",
                64,
                (64, 64),
                lambda a, b: -int(b - a - (a < b) < 0),
            ),
        ]
    )


def _comparisons() -> Iterator[Form]:
    tests: dict[str, Callable[[int, int], bool]] = {
        "eq": int.__eq__,
        "ne": int.__ne__,
        "lt": int.__lt__,
        "le": int.__le__,
        "gt": int.__gt__,
        "ge": int.__ge__,
    }
    unsigned = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
    for kind in ALL:
        bits, value = width_of(kind), _value(kind)
        for name, test in tests.items():
            yield Form(
                f"setp.{name}.{kind} {{d}}, {{a}}, {{b}};",
                1,
                (bits, bits),
                lambda x, y, t=test, v=value: int(t(v(x), v(y))),
            )
        for name, plain in unsigned.items():
            if kind[0] == "u":
                yield Form(
                    f"setp.{name}.{kind} {{d}}, {{a}}, {{b}};",
                    1,
                    (bits, bits),
                    lambda x, y, t=tests[plain]: int(t(x, y)),
                )
        yield Form(
            f"slct.b{bits}.s32 {{d}}, {{a}}, {{b}}, {{c}};",
            bits,
            (bits, bits, 32),
            lambda x, y, z: x if z >> 31 == 0 else y,
        )
        yield Form(
            f"selp.{kind} {{d}}, {{a}}, {{b}}, {{c}};",
            bits,
            (bits, bits, 1),
            lambda x, y, z: x if z else y,
        )
    for name, join in (("and", int.__and__), ("or", int.__or__), ("xor", int.__xor__)):
        yield Form(
            f"setp.lt.{name}.u32 {{d}}, {{a}}, {{b}}, {{c}};",
            1,
            (32, 32, 1),
            lambda x, y, z, j=join: j(int(x < y), int(bool(z))),
        )
        yield Form(
            f"setp.lt.{name}.u32 {{d}}, {{a}}, {{b}}, !{{c}};",
            1,
            (32, 32, 1),
            lambda x, y, z, j=join: j(int(x < y), int(not z)),
        )
        yield Form(
            f"setp.ge.{name}.s64 %p9|{{d}}, {{a}}, {{b}}, {{c}};",
            1,
            (64, 64, 1),
            lambda x, y, z, j=join: j(int(signed(x, 64) < signed(y, 64)), int(bool(z))),
        )
        yield Form(
            f"{name}.pred {{d}}, {{a}}, {{b}};",
            1,
            (1, 1),
            lambda x, y, j=join: j(int(bool(x)), int(bool(y))),
        )
    yield Form("not.pred {d}, {a};", 1, (1,), lambda x: int(not x))
    yield Form(
        "set.le.u32.s32 {d}, {a}, {b};",
        32,
        (32, 32),
        lambda x, y: -(signed(x, 32) <= signed(y, 32)),
    )
    yield Form(
        "set.gt.and.f32.u32 {d}, {a}, {b}, {c};",
        32,
        (32, 32, 1),
        lambda x, y, z: 0x3F800000 * (x > y and bool(z)),
    )
    yield Form(
        "mov.u32 {d}, 5; @{a} add.u32 {d}, {d}, {b}; @!{a} mov.u32 {d}, 9;",
        32,
        (1, 32),
        lambda p, x: 5 + x if p else 9,
    )


def test_comparisons_and_guards() -> None:
    check(list(_comparisons()))


def _halves(text: str, one: Callable[[int, int], int]) -> Form:
    return Form(
        text,
        32,
        (32, 32),
        lambda x, y: sum((one(x >> s & 0xFFFF, y >> s & 0xFFFF) & 0xFFFF) << s for s in (0, 16)),
    )


def test_pairs_and_vectors() -> None:
    check(
        [
            _halves("add.u16x2 {d}, {a}, {b};", int.__add__),
            _halves("min.s16x2 {d}, {a}, {b};", lambda x, y: min(signed(x, 16), signed(y, 16))),
            _halves("max.u16x2 {d}, {a}, {b};", max),
            Form(
                "mov.b32 {{%h1, %h2}}, {a}; mov.b32 {d}, {{%h2, %h1}};",
                32,
                (32,),
                lambda x: x >> 16 | x << 16,
            ),
            Form(
                "mov.b64 {{%r21, %r22}}, {a}; mov.b64 {d}, {{%r22, %r21}};",
                64,
                (64,),
                lambda x: x >> 32 | x << 32,
            ),
            Form(
                "mov.b64 {{%h0, %h1, %h2, %h3}}, {a}; mov.b64 {d}, {{%h3, %h0, %h2, %h1}};",
                64,
                (64,),
                lambda x: sum((x >> 16 * s & 0xFFFF) << 16 * t for t, s in enumerate((3, 0, 2, 1))),
            ),
            Form(
                "mov.b64 {{%r0, %r1}}, {a}; mov.b64 {{%r0, _}}, {a}; mov.u32 {d}, %r0;",
                32,
                (64,),
                lambda x: x,
            ),
        ]
    )

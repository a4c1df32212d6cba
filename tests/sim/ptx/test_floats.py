"""Floating-point instructions against exact fractions."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

import numpy as np
import pytest

from sim.ptx.exact import FORMATS, is_finite, is_nan, root, rounded, value
from sim.ptx.ops import LANES, Form, Words, check

MODES = ("rn", "rz", "rm", "rp")
NAN = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF}
MINUS_ZERO = {kind: 1 << (form.bits - 1) for kind, form in FORMATS.items()}


def numbers(rng: np.random.Generator, kind: str) -> Words:
    """Finite patterns of all sizes, many of them near each other, zeros and subnormal ones."""
    form = FORMATS[kind]
    top = 1 << form.bits
    values = [int(v) % top for v in rng.integers(0, 2**64, LANES, dtype=np.uint64)]
    special = [0, 1, form.infinity - 1, 1 << form.fraction, (1 << form.fraction) - 1]
    for lane in range(LANES):
        if rng.random() < 0.6:  # near 1
            digits = values[lane] & ((1 << form.fraction) - 1)
            exponent = form.bias + int(rng.integers(-5, 6))
            values[lane] = digits | exponent << form.fraction | (values[lane] & top >> 1)
        if rng.random() < 0.1:
            values[lane] = int(rng.choice(special)) | int(rng.integers(2)) << (form.bits - 1)
        if not is_finite(values[lane], kind):
            values[lane] ^= 1 << form.fraction
    return np.array(values, np.uint64)


def _kind(form: Form) -> str:
    return next(
        part.rstrip(" ;")
        for part in reversed(form.text.split(" {d}")[0].split("."))
        if part in FORMATS
    )


def make(rng: np.random.Generator, form: Form) -> Sequence[Words]:
    return [numbers(rng, _kind(form)) for _ in form.sources]


def _sum(x: int, y: int, kind: str, mode: str) -> int:
    total = value(x, kind) + value(y, kind)
    both = x == y == MINUS_ZERO[kind] or (mode == "rm" and bool(x or y) and total == 0 and x != y)
    zeros = not value(x, kind) and not value(y, kind)
    negative = x == y == MINUS_ZERO[kind] if zeros and mode != "rm" else both
    if zeros and mode == "rm":
        negative = not (x == y == 0)
    return rounded(total, kind, mode, negative)


def _fused(x: int, y: int, z: int, kind: str, mode: str) -> int:
    product = value(x, kind) * value(y, kind)
    total = product + value(z, kind)
    minus = bool((x ^ y) >> (FORMATS[kind].bits - 1))
    addend = bool(z >> (FORMATS[kind].bits - 1))
    if total == 0:
        negative = minus if minus == addend else mode == "rm"
        if product != 0:
            negative = mode == "rm"
        return rounded(total, kind, mode, negative)
    return rounded(total, kind, mode, total < 0)


def _arithmetic() -> Iterator[Form]:
    for kind, form in FORMATS.items():
        bits = form.bits
        for mode in MODES if kind in ("f32", "f64") else ("rn",):
            sign = MINUS_ZERO[kind]
            yield Form(
                f"add.{mode}.{kind} {{d}}, {{a}}, {{b}};",
                bits,
                (bits, bits),
                lambda x, y, k=kind, m=mode: _sum(x, y, k, m),
            )
            yield Form(
                f"sub.{mode}.{kind} {{d}}, {{a}}, {{b}};",
                bits,
                (bits, bits),
                lambda x, y, k=kind, m=mode, s=sign: _sum(x, y ^ s, k, m),
            )
            yield Form(
                f"mul.{mode}.{kind} {{d}}, {{a}}, {{b}};",
                bits,
                (bits, bits),
                lambda x, y, k=kind, m=mode, s=sign: rounded(
                    value(x, k) * value(y, k), k, m, bool((x ^ y) & s)
                ),
            )
            yield Form(
                f"fma.{mode}.{kind} {{d}}, {{a}}, {{b}}, {{c}};",
                bits,
                (bits,) * 3,
                lambda x, y, z, k=kind, m=mode: _fused(x, y, z, k, m),
            )


def test_arithmetic_rounds_exactly() -> None:
    check(list(_arithmetic()), make)


def _quotients() -> Iterator[Form]:
    for kind in ("f32", "f64"):
        form, sign = FORMATS[kind], MINUS_ZERO[kind]

        def divide(x: int, y: int, mode: str, k: str = kind, s: int = sign) -> int:
            if not y & ~s:
                if not x & ~s:
                    return NAN["f32"] if k == "f32" else 0xFFF8 << 48
                return FORMATS[k].infinity | (x ^ y) & s
            return rounded(value(x, k) / value(y, k), k, mode, bool((x ^ y) & s))

        one = form.bias << form.fraction
        for mode in MODES:
            yield Form(
                f"div.{mode}.{kind} {{d}}, {{a}}, {{b}};",
                form.bits,
                (form.bits,) * 2,
                lambda x, y, m=mode, d=divide: d(x, y, m),
            )
            yield Form(
                f"rcp.{mode}.{kind} {{d}}, {{a}};",
                form.bits,
                (form.bits,),
                lambda x, m=mode, d=divide, o=one: d(o, x, m),
            )
            yield Form(
                f"abs.{kind} %{'r' if kind == 'f32' else 'rd'}21, {{a}};"
                f" sqrt.{mode}.{kind} {{d}}, %{'r' if kind == 'f32' else 'rd'}21;",
                form.bits,
                (form.bits,),
                lambda x, m=mode, k=kind, s=sign: root(value(x & ~s, k), k, m),
            )


def test_division_and_roots_round_exactly() -> None:
    check(list(_quotients()), make)


def _flushed(x: int) -> int:
    return x if x & 0x7F800000 else x & 0x80000000


def test_flushing_saturation_and_signs() -> None:
    def saturated(x: int) -> int:
        return 0 if x >> 31 else min(x, 0x3F800000)

    def positive(x: int) -> int:
        return 0 if x >> 15 else x

    two = (32, 32)
    check(
        [
            Form(
                "add.ftz.f32 {d}, {a}, {b};",
                32,
                two,
                lambda x, y: _flushed(_sum(_flushed(x), _flushed(y), "f32", "rn")),
            ),
            *(
                Form(
                    f"mul{mode}.ftz.f32 {{d}}, {{a}}, {{b}};",
                    32,
                    two,
                    lambda x, y, m=mode[1:] or "rn": _flushed(
                        rounded(
                            value(_flushed(x), "f32") * value(_flushed(y), "f32"),
                            *("f32", m, bool((x ^ y) >> 31)),
                        )
                    ),
                )
                for mode in ("", ".rn", ".rz", ".rm", ".rp")
            ),
            Form(
                "add.sat.f32 {d}, {a}, {b};",
                32,
                two,
                lambda x, y: saturated(_sum(x, y, "f32", "rn")),
            ),
            Form("cvt.sat.f32.f32 {d}, {a};", 32, (32,), saturated),
            Form(
                "fma.rn.relu.f16 {d}, {a}, {b}, {c};",
                16,
                (16,) * 3,
                lambda x, y, z: positive(_fused(x, y, z, "f16", "rn")),
            ),
            Form("neg.f32 {d}, {a};", 32, (32,), lambda x: x ^ 1 << 31),
            Form("abs.f64 {d}, {a};", 64, (64,), lambda x: x & ~(1 << 63)),
            Form("neg.bf16 {d}, {a};", 16, (16,), lambda x: x ^ 1 << 15),
            Form("copysign.f32 {d}, {a}, {b};", 32, two, lambda x, y: x & 1 << 31 | y & ~(1 << 31)),
        ],
        make,
    )


def _any(rng: np.random.Generator, form: Form) -> Sequence[Words]:
    """Numbers, infinities and NaN."""
    kind = _kind(form)
    given = [numbers(rng, kind) for _ in form.sources]
    special = [FORMATS[kind].infinity, FORMATS[kind].infinity + 1, MINUS_ZERO[kind] - 1, 0]
    for row in given:
        for lane in range(0, LANES, 3):
            row[lane] = int(rng.choice(special)) | int(rng.integers(2)) * MINUS_ZERO[kind]
    return given


def _order(pattern: int, kind: str) -> int:
    """A number that orders as patterns do, -0 below +0."""
    sign = MINUS_ZERO[kind]
    return -(pattern & ~sign) - 1 if pattern & sign else pattern


def _extreme(x: int, y: int, kind: str, largest: bool, nan: bool) -> int:
    if is_nan(x, kind) or is_nan(y, kind):
        if nan or (is_nan(x, kind) and is_nan(y, kind)):
            return NAN.get(kind, 0x7FF8 << 48)
        return y if is_nan(x, kind) else x
    pick = max if largest else min
    return pick((x, y), key=lambda v: _order(v, kind))


def _comparisons() -> Iterator[Form]:
    ordered: dict[str, Callable[[Fraction, Fraction], bool]] = {
        "eq": Fraction.__eq__,
        "ne": lambda x, y: x != y,
        "lt": Fraction.__lt__,
        "le": Fraction.__le__,
        "gt": Fraction.__gt__,
        "ge": Fraction.__ge__,
    }

    def number(x: int, kind: str) -> Fraction:
        if is_finite(x, kind):
            return value(x, kind)
        return Fraction(10) ** 400 * (-1 if x & MINUS_ZERO[kind] else 1)

    for kind, form in FORMATS.items():
        two = (form.bits, form.bits)
        for name, test in ordered.items():
            for unordered in (False, True):
                yield Form(
                    f"setp.{name}{'u' * unordered}.{kind} {{d}}, {{a}}, {{b}};",
                    1,
                    two,
                    lambda x, y, k=kind, t=test, u=unordered: int(
                        u if is_nan(x, k) or is_nan(y, k) else t(number(x, k), number(y, k))
                    ),
                )
        yield Form(
            f"setp.num.{kind} {{d}}, {{a}}, {{b}};",
            1,
            two,
            lambda x, y, k=kind: int(not (is_nan(x, k) or is_nan(y, k))),
        )
        yield Form(
            f"setp.nan.{kind} {{d}}, {{a}}, {{b}};",
            1,
            two,
            lambda x, y, k=kind: int(is_nan(x, k) or is_nan(y, k)),
        )
        for name in ("min", "max"):
            for nan in ("", ".NaN") if kind != "f64" else ("",):
                yield Form(
                    f"{name}{nan}.{kind} {{d}}, {{a}}, {{b}};",
                    form.bits,
                    two,
                    lambda x, y, k=kind, n=name, q=nan: _extreme(x, y, k, n == "max", bool(q)),
                )
    for kind, form in (("f32", FORMATS["f32"]), ("f64", FORMATS["f64"])):
        tests = {
            "finite": lambda x, k=kind: is_finite(x, k),
            "infinite": lambda x, k=kind, f=form: x & ~MINUS_ZERO[k] == f.infinity,
            "number": lambda x, k=kind: not is_nan(x, k),
            "notanumber": lambda x, k=kind: is_nan(x, k),
            "normal": lambda x, k=kind, f=form: is_finite(x, k) and x & f.infinity > 0,
            "subnormal": lambda x, k=kind, f=form: 0 < x & ~MINUS_ZERO[k] < 1 << f.fraction,
        }
        for name, property_of in tests.items():
            yield Form(
                f"testp.{name}.{kind} {{d}}, {{a}};",
                1,
                (form.bits,),
                lambda x, t=property_of: int(t(x)),
            )


def _same(got: int, wanted: int) -> bool:
    """The same, or both NaN of double precision, whose payload is the hardware's own."""
    return got == wanted or (is_nan(got, "f64") and is_nan(wanted, "f64"))


def test_comparisons_and_extremes() -> None:
    check(list(_comparisons()), _any, _same)


APPROXIMATE: dict[str, tuple[Callable[[float], float], float, float]] = {
    # exact function, relative error, absolute error; "PTX ISA" states them with each instruction
    "rcp.approx.f32": (lambda x: 1 / x, 2.0**-23, 0),
    "sqrt.approx.f32": (lambda x: math.sqrt(abs(x)), 2.0**-22, 0),
    "rsqrt.approx.f32": (lambda x: 1 / math.sqrt(abs(x)), 2.0**-22.4, 0),
    "ex2.approx.f32": (lambda x: 2.0**x, 2.0**-22, 0),
    "lg2.approx.f32": (lambda x: math.log2(abs(x)), 2.0**-22, 2.0**-22),
    "sin.approx.f32": (math.sin, 0, 2.0**-20.5),
    "cos.approx.f32": (math.cos, 0, 2.0**-20.5),
    "tanh.approx.f32": (math.tanh, 2.0**-11, 0),
    "rcp.approx.ftz.f64": (lambda x: 1 / x, 2.0**-20, 0),
    "rsqrt.approx.ftz.f64": (lambda x: 1 / math.sqrt(abs(x)), 2.0**-20, 0),
    "ex2.approx.f16": (lambda x: 2.0**x, 2.0**-9.9, 0),
    "tanh.approx.f16": (math.tanh, 2.0**-10.9, 0),
}


@pytest.mark.parametrize("name", APPROXIMATE)
def test_approximations(name: str) -> None:
    exact, relative, absolute = APPROXIMATE[name]
    kind = name.rsplit(".", 1)[1]
    form = {"f16": "<e", "f32": "<f", "f64": "<d"}[kind]
    bits = FORMATS[kind].bits

    def unpack(pattern: int) -> float:
        found: float = struct.unpack(form, pattern.to_bytes(bits // 8, "little"))[0]
        return found

    def source(rng: np.random.Generator, _: Form) -> Sequence[Words]:
        values = rng.uniform(-3, 3, LANES)
        if "sqrt" in name or "lg2" in name:
            values = np.abs(values)
        packed = [int.from_bytes(struct.pack(form, v), "little") for v in values]
        return [np.array(packed, np.uint64)]

    def wanted(pattern: int) -> int:
        return int.from_bytes(struct.pack("<d", exact(unpack(pattern))), "little")

    def close(got: int, want: int) -> bool:
        right: float = struct.unpack("<d", want.to_bytes(8, "little"))[0]
        return abs(unpack(got) - right) <= abs(right) * relative + absolute

    text = f"{name} {{d}}, {{a}};"
    check([Form(text, bits, (bits,), wanted)], source, close)  # wanted as a double

"""What floating-point instructions compute: "PTX ISA", sections 9.7.3 to 9.7.5.

The host rounds; for other directions than to nearest its control word is changed around an
operation. Approximate functions are computed more exactly than hardware does, within the errors
that the manual states.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from gpu.sim.isa.ptx import parts
from gpu.sim.isa.values import Value

Build = Callable[..., Value]


def arithmetic(name: str, kind: str) -> Build:
    """``add sub mul fma div`` of a PTX type, not yet flushed or saturated."""
    if kind == "bf16":
        return _brain_fma if name == "fma" else _through_single(name)
    if kind == "f16":
        return _half_fma if name == "fma" else _half(name)
    return _plain(name)


def _plain(name: str) -> Build:
    table: dict[str, Build] = {
        "add": lambda x, y: x + y,
        "sub": lambda x, y: x - y,
        "mul": lambda x, y: x * y,
        "div": lambda x, y: x / y,
        "fma": lambda x, y, z: x.emitter.call(x.kind, "fma", x, y, z),
    }
    return table[name]


def _half(name: str) -> Build:
    plain = _plain(name)
    return lambda x, y: plain(x.to("f32"), y.to("f32")).to("f16")


def _half_fma(x: Value, y: Value, z: Value) -> Value:
    """Products of halves are exact in double, and so is what the sum may keep."""
    return parts.half_of(x.to("f64") * y.to("f64") + z.to("f64"))


def _through_single(name: str) -> Build:
    plain = _plain(name)
    return lambda x, y: parts.narrow(plain(parts.widen(x), parts.widen(y)))


def _brain_fma(x: Value, y: Value, z: Value) -> Value:
    wide = [parts.widen(value).to("f64") for value in (x, y, z)]
    return parts.narrow(parts.odd_single(parts.odd_sum(wide[0] * wide[1], wide[2])))


def smaller(x: Value, y: Value, nan: bool, maximum: bool) -> Value:
    """MIN or MAX: the number where the other is NaN, unless `nan`; -0 is below +0."""
    test = "ogt" if maximum else "olt"
    mixed = x.bits() & y.bits() if maximum else x.bits() | y.bits()
    equal = mixed.bits(x.kind)
    ordered = x.fcmp(test, y).select(x, y.fcmp(test, x).select(y, equal))
    if nan:
        return x.fcmp("uno", y).select(x + y, ordered)
    return x.is_nan().select(y, y.is_nan().select(x, ordered))


def quick_division(x: Value, y: Value) -> Value:
    """DIV.APPROX: its reciprocal is 0 for divisors from 2**126 on."""
    large = y.unary("fabs")
    lost = large.fcmp("ogt", 2.0**126) & large.fcmp("olt", float("inf"))
    reciprocal = lost.select(0.0, y.like(1.0) / y)
    return lost.select(x * reciprocal, x / y)


def _double(x: Value, build: Callable[[Value], Value]) -> Value:
    return build(x.to("f64")).to("f32")


def sine(x: Value, name: str) -> Value:
    """SIN or COS."""
    return _double(x, lambda wide: wide.unary(name))


def reciprocal_root(x: Value) -> Value:
    """RSQRT."""
    if x.kind == "f64":
        return x.like(1.0) / x.unary("sqrt")
    return _double(x, lambda wide: wide.like(1.0) / wide.unary("sqrt"))


def exponential(x: Value) -> Value:
    """EX2."""
    return x.unary("exp2")


def logarithm(x: Value) -> Value:
    """LG2."""
    return x.unary("log2")


def hyperbolic_tangent(x: Value) -> Value:
    """TANH, through the exponential of twice the number; NaN stays one."""
    size = x.unary("fabs").to("f64")
    power = (size * (-2.0 * math.log2(math.e))).unary("exp2")
    small = size - size * size * size * (1.0 / 3.0)
    quotient = (size.like(1.0) - power) / (power + 1.0)
    result = size.fcmp("olt", 1e-4).select(small, quotient).to("f32")
    sign = x.bits() & -(1 << 31)
    return x.is_nan().select(x, (result.bits() | sign).bits("f32"))


def coarse_reciprocal(x: Value) -> Value:
    """RCP.APPROX.FTZ.F64: of the upper word only; the lower word of the result is 0."""
    kept = (x.bits() & -(1 << 32)).bits("f64")
    return ((kept.like(1.0) / kept).bits() & -(1 << 32)).bits("f64")


def coarse_root(x: Value) -> Value:
    """RSQRT.APPROX.FTZ.F64; see `coarse_reciprocal`."""
    kept = (x.bits() & -(1 << 32)).bits("f64")
    return ((kept.like(1.0) / kept.unary("sqrt")).bits() & -(1 << 32)).bits("f64")


UNARY: Final[dict[str, Build]] = {
    "rcp": lambda x: x.like(1.0) / x,
    "sqrt": lambda x: x.unary("sqrt"),
    "rsqrt": reciprocal_root,
    "sin": lambda x: sine(x, "sin"),
    "cos": lambda x: sine(x, "cos"),
    "ex2": exponential,
    "lg2": logarithm,
    "tanh": hyperbolic_tangent,
}
"""Functions of one number."""

COMPARISONS: Final = {
    **{name: f"o{name}" for name in ("eq", "lt", "le", "gt", "ge")},
    **{f"{name}u": f"u{name}" for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "equ": "ueq",
    "neu": "une",
    "ltu": "ult",
    "leu": "ule",
    "gtu": "ugt",
    "geu": "uge",
    "ne": "one",
    "num": "ord",
    "nan": "uno",
}
"""LLVM's names of comparisons of floats."""


def test_property(x: Value, which: str) -> Value:
    """TESTP."""
    exponent = x.bits() & parts.exponent_bits(x.kind)
    size = x.unary("fabs")
    tests: dict[str, Callable[[], Value]] = {
        "finite": lambda: size.fcmp("olt", float("inf")),
        "infinite": lambda: size.fcmp("oeq", float("inf")),
        "number": lambda: x.fcmp("ord", x),
        "notanumber": x.is_nan,
        "normal": lambda: exponent.ne(0) & size.fcmp("olt", float("inf")),
        "subnormal": lambda: exponent.eq(0) & x.fcmp("one", 0.0),
    }
    return tests[which]()

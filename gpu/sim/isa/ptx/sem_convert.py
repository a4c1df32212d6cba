"""Conversions: "PTX ISA", section 9.7.9, CVT.

Directions of rounding other than to nearest come from the host's control word, which the record
before the conversion has set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpu.sim.isa.ptx import parts
from gpu.sim.isa.ptx.syntax import TYPES
from gpu.sim.isa.values import Value, bits_of

Build = Callable[..., Value]
FLOATS: Final = ("f16", "bf16", "f32", "f64")
_TO_INTEGER: Final = {"rni": "roundeven", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}


@dataclass(frozen=True)
class Conversion:
    """A CVT of one value.

    Attributes:
        target, source: PTX types.
        rounding: ``rn``, ``rzi``, ... or "".
        flags: of ``ftz sat relu satfinite``.
    """

    target: str
    source: str
    rounding: str
    flags: frozenset[str]

    def build(self, x: Value) -> Value:
        """Converts a value in a register's type to another one, not yet extended."""
        if self.source not in FLOATS:
            value = x.to(f"i{TYPES[self.source]}")
            if self.target in FLOATS:
                return self._finish(self._integer_to_float(value))
            return self._integer_to_integer(value)
        number = _as_float(x, self.source)
        if "ftz" in self.flags and self.source == "f32":
            number = parts.flush(number)
        if self.rounding in _TO_INTEGER:
            number = number.unary(_TO_INTEGER[self.rounding])
        if self.target not in FLOATS:
            bits = TYPES[self.target]
            found = _to_integer(number, f"i{bits}", self.target[0] == "s")
            if self.source == "f64" or bits == 64:  # of other conversions NaN gives 0
                return number.is_nan().select(-1 << bits - 1, found)
            return found
        return self._finish(self._float_to_float(number))

    def _integer_to_integer(self, value: Value) -> Value:
        target = f"i{TYPES[self.target]}"
        signed = self.source[0] == "s"
        if "sat" in self.flags:
            value = _clamped(value, signed, self.target)
        if bits_of(target) <= bits_of(value.kind):
            return value.to(target)
        return value.sext(target) if signed else value.to(target)

    def _integer_to_float(self, value: Value) -> Value:
        signed = self.source[0] == "s"
        wide = value
        if bits_of(value.kind) < 32 or (self.rounding not in ("", "rn") and not signed):
            kind = "i32" if bits_of(value.kind) < 32 else "i64"
            wide = value.sext(kind) if signed else value.to(kind)
        middle = "f32" if self.target == "f32" else "f64"
        number = wide.from_signed(middle) if signed else wide.from_unsigned(middle)
        if not signed:  # LLVM subtracts two numbers: rounded down, 0 would become -0
            number = wide.eq(0).select(0.0, number)
        return number if middle == self.target else self._float_to_float(number)

    def _float_to_float(self, x: Value) -> Value:
        """To the target's type; a bfloat16 is a single whose lower half is nothing yet."""
        if self.target == "bf16":
            return parts.odd_single(x) if x.kind == "f64" else x.to("f32")
        if self.target == "f16" and x.kind == "f64":
            return parts.half_of(x)
        return x.to(self.target)

    def _finish(self, x: Value) -> Value:
        if "relu" in self.flags:
            x = x.is_nan().select(x, x.fcmp("ogt", 0.0).select(x, 0.0))
        if "sat" in self.flags:
            x = parts.saturate(x)
        if "ftz" in self.flags and x.kind == "f32" and self.target == "f32":
            x = parts.flush(x)
        if self.target == "bf16":
            return parts.narrow(x, self.rounding)
        return parts.canonical(x)


def _as_float(x: Value, kind: str) -> Value:
    if kind == "bf16":
        return parts.widen(x.to("i16"))
    return x.bits().to(f"i{TYPES[kind]}").bits(kind)


def _to_integer(x: Value, kind: str, signed: bool) -> Value:
    """Truncated, within the type; NaN is 0."""
    if bits_of(kind) < 32:
        bits = bits_of(kind)
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        return (
            x.to("f32" if x.kind == "f16" else x.kind)
            .saturated("i32", True)
            .smax(low)
            .smin(high)
            .to(kind)
        )
    return (x.to("f32") if x.kind == "f16" else x).saturated(kind, signed)


def _clamped(value: Value, signed: bool, target: str) -> Value:
    """An integer within the target's bounds, in a type that holds both."""
    bits = TYPES[target]
    low, high = (
        (-(1 << bits - 1), (1 << bits - 1) - 1) if target[0] == "s" else (0, (1 << bits) - 1)
    )
    own = bits_of(value.kind)
    if not signed:
        return value.umin(high) if high < (1 << own) - 1 else value
    if low > -(1 << own - 1):
        value = value.smax(low)
    return value.smin(high) if high < (1 << own - 1) - 1 else value


def pack_two(kind: str, rounding: str, flags: frozenset[str]) -> Build:
    """Two singles to a pair of 16-bit floats; the first becomes the upper half."""
    one = Conversion(kind, "f32", rounding, flags)

    def build(high: Value, low: Value) -> Value:
        return parts.both(one.build(low), one.build(high))

    return build


_SMALL: Final = {"e4m3": (3, -6, 448.0), "e5m2": (2, -14, 57344.0)}


def to_eight(x: Value, kind: str, relu: bool) -> Value:
    """A single as an 8-bit float, in an i32; what is too large is the largest one."""
    fraction, lowest, largest = _SMALL[kind]
    size = x.unary("fabs")
    limited = size.fcmp("ogt", largest).select(largest, size)
    exponent = limited.bits().lshr(23).smax(127 + lowest)
    unit = (exponent - fraction).shl(23).bits("f32")
    rounded = (limited / unit).unary("roundeven") * unit
    normal = rounded.bits().lshr(23 - fraction) - ((126 + lowest) << fraction)
    tiny = (rounded * 2.0 ** (fraction - lowest)).saturated("i32", False)
    code = rounded.fcmp("olt", 2.0**lowest).select(tiny, normal)
    code = code | (x.bits().lshr(24) & 0x80)
    if relu:
        code = x.fcmp("olt", 0.0).select(0, code)
    return x.is_nan().select(0x7F, code)


def from_eight(code: Value, kind: str) -> Value:
    """An 8-bit float, in an i32, as a half."""
    sign, size = (code & 0x80).shl(8), code & 0x7F
    if kind == "e5m2":
        pattern = size.shl(8)
        nan = size.icmp("ugt", 0x7C)
    else:
        # With the fraction in place the exponents of both types differ by 8.
        half = size.shl(7).to("i16").bits("f16").to("f32") * 256.0
        pattern = half.to("f16").bits().to("i32")
        nan = size.eq(0x7F)
    return nan.select(0x7FFF, pattern | sign).to("i16")


def pack_eight(kind: str, relu: bool) -> Build:
    """Two singles to a pair of 8-bit floats."""

    def build(high: Value, low: Value) -> Value:
        first, second = (to_eight(value, kind, relu) for value in (low, high))
        return (first | second.shl(8)).to("i16")

    return build


def pack_eight_from_halves(kind: str, relu: bool) -> Build:
    """A pair of halves to a pair of 8-bit floats."""
    pack = pack_eight(kind, relu)

    def build(word: Value) -> Value:
        low, high = (value.to("f32") for value in parts.halves(word, "f16"))
        return pack(high, low)

    return build


def unpack_eight(kind: str, relu: bool) -> Build:
    """A pair of 8-bit floats to a pair of halves."""

    def build(word: Value) -> Value:
        wide = word.to("i32")
        codes = (wide & 0xFF, wide.lshr(8) & 0xFF)
        if relu:
            codes = tuple(
                ((code & 0x80).ne(0) & (code & 0x7F).icmp("ule", 0x7C)).select(0, code)
                for code in codes
            )  # type: ignore[assignment]
        return parts.both(*(from_eight(code, kind) for code in codes))

    return build


def to_tf32(rounding: str, relu: bool) -> Build:
    """A single with 10 bits of fraction, the others zero."""

    def build(x: Value) -> Value:
        pattern = x.bits()
        if rounding == "rna":
            moved = pattern + 0x1000
        elif rounding == "rn":
            moved = pattern + 0xFFF + (pattern.lshr(13) & 1)
        else:
            moved = pattern
        infinite = (pattern & 0x7FFFFFFF).eq(0x7F800000)
        rounded = infinite.select(pattern, moved & ~0x1FFF).bits("f32")
        if relu:
            rounded = rounded.fcmp("ogt", 0.0).select(rounded, 0.0)
        return x.is_nan().select(x.emitter.const("i32", 0x7FFFFFFF), rounded.bits()).bits("f32")

    return build

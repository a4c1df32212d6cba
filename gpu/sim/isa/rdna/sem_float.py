"""Floating-point operations of the vector ALU.

AMD, "RDNA3 Instruction Set Architecture", sections 16.7, 16.8, 16.12. Reciprocals, roots,
exponentials and sines are computed more exactly than hardware does, which is within 1 ulp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

from gpu.sim.isa.frames import Operation
from gpu.sim.isa.rdna import float_parts as parts
from gpu.sim.isa.rdna import pi_bits
from gpu.sim.isa.rdna.define import vector
from gpu.sim.isa.rdna.sem_compare import exponent_mask, fraction_bits
from gpu.sim.isa.values import Value, bits_of

Unary = Callable[[Value], Value]
Binary = Callable[[Value, Value], Value]
Ternary = Callable[[Value, Value, Value], Value]

_BINARY: Final[dict[str, Binary]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "subrev": lambda x, y: y - x,
    "mul": lambda x, y: x * y,
    "min": parts.minimum,
    "max": parts.maximum,
    "minimum": parts.least,
    "maximum": parts.greatest,
}
_TERNARY: Final[dict[str, Ternary]] = {
    "fma": parts.fma,
    "fmac": parts.fma,
    "fmamk": parts.fma,
    "fmaak": parts.fma,
    "min3": lambda x, y, z: parts.minimum(parts.minimum(x, y), z),
    "max3": lambda x, y, z: parts.maximum(parts.maximum(x, y), z),
    "med3": parts.median,
    "maxmin": lambda x, y, z: parts.minimum(parts.maximum(x, y), z),
    "minmax": lambda x, y, z: parts.maximum(parts.minimum(x, y), z),
    "minimum3": lambda x, y, z: parts.least(parts.least(x, y), z),
    "maximum3": lambda x, y, z: parts.greatest(parts.greatest(x, y), z),
    "minimummaximum": lambda x, y, z: parts.greatest(parts.least(x, y), z),
    "maximumminimum": lambda x, y, z: parts.least(parts.greatest(x, y), z),
}
_UNARY: Final[dict[str, Unary]] = {
    "trunc": lambda x: x.unary("trunc"),
    "ceil": lambda x: x.unary("ceil"),
    "rndne": lambda x: x.unary("roundeven"),
    "floor": lambda x: x.unary("floor"),
    "fract": parts.fraction,
    "rcp": lambda x: x.like(1.0) / x,
    "rsq": lambda x: x.like(1.0) / x.unary("sqrt"),
    "sqrt": lambda x: x.unary("sqrt"),
    "frexp_mant": parts.frexp_mantissa,
}
_SINGLE_UNARY: Final[dict[str, Unary]] = {
    "exp": lambda x: x.unary("exp2"),
    "log": lambda x: x.unary("log2"),
    "sin": lambda x: parts.sine(x, "sin"),
    "cos": lambda x: parts.sine(x, "cos"),
}


def _through_single(build: Unary) -> Unary:
    return lambda x: build(x.to("f32")).to("f16")


def _reciprocal_root(x: Value) -> Value:
    """Through doubles, so that it is rounded once."""
    wide = x.to("f64").unary("sqrt")
    return (wide.like(1.0) / wide).to(x.kind)


def _dx9_product(x: Value, y: Value) -> Value:
    """A product in which zero times anything is zero."""
    zero = x.fcmp("oeq", 0.0) | y.fcmp("oeq", 0.0)
    return zero.select(0.0, x * y)


def _dx9_fma(x: Value, y: Value, z: Value) -> Value:
    zero = x.fcmp("oeq", 0.0) | y.fcmp("oeq", 0.0)
    return zero.select(z, parts.fma(x, y, z))


def _generated() -> Iterator[Operation]:
    for kind in ("f16", "f32", "f64"):
        for name, binary in _BINARY.items():
            yield Operation(f"v_{name}_{kind}", (kind,), (kind, kind), binary)
        for name, ternary in _TERNARY.items():
            yield Operation(f"v_{name}_{kind}", (kind,), (kind, kind, kind), ternary)
        for name, unary in _UNARY.items():
            direct = kind != "f16" or name in ("frexp_mant", "fract")
            build = unary if direct else _through_single(unary)
            if name == "rsq" and kind == "f32":
                build = _reciprocal_root
            yield Operation(f"v_{name}_{kind}", (kind,), (kind,), build)
    for name, unary in _SINGLE_UNARY.items():
        yield Operation(f"v_{name}_f32", ("f32",), ("f32",), unary)
        yield Operation(f"v_{name}_f16", ("f16",), ("f16",), _through_single(unary))


def _exponent(x: Value) -> Value:
    return parts.magnitude(x).lshr(fraction_bits(x.kind))


def _div_scale(x: Value, denominator: Value, numerator: Value) -> tuple[Value, Value]:
    """V_DIV_SCALE: brings a quotient's operands into a range without over- and underflow.

    `x` is one of the two; the mask says that V_DIV_FMAS has to scale back: where their exponents
    are far apart. The manual's text has other conditions (quotients that are denormal, a numerator
    of exponent 23 and not 24); these are those of AMD's open emulator, rocjitsu, which was compared
    with gfx1100 and gfx1201.
    """
    kind, emitter = x.kind, x.emitter
    by, far = (64, 96) if kind == "f32" else (128, 768)
    largest = exponent_mask(kind) >> fraction_bits(kind)
    below, above = _exponent(denominator), _exponent(numerator)
    high, low = (above - below).icmp("sge", far), (above - below).icmp("sle", -far)
    is_denominator = x.bits().eq(denominator.bits())
    up, down, no = (emitter.const("i32", shift) for shift in (by, -by, 0))
    cases = (  # the first that holds counts, so that it is written last
        (above.icmp("ule", fraction_bits(kind) + 1), up),
        (low, is_denominator.select(no, up)),
        (below.icmp("uge", largest - 2), (low & ~is_denominator).select(no, down)),
        (below.eq(0), up),
        (high, is_denominator.select(up, no)),
    )
    shift = no
    for condition, count in cases:
        shift = condition.select(count, shift)
    scaled = shift.eq(0).select(x, parts.scale(x, shift))
    zero = parts.magnitude(denominator).eq(0) | parts.magnitude(numerator).eq(0)
    return zero.select(-math.nan, scaled), high | low


def _div_fmas(x: Value, y: Value, z: Value, scaled: Value) -> Value:
    """V_DIV_FMAS: a fused multiply-add, scaled back where V_DIV_SCALE said so."""
    by = 64 if x.kind == "f32" else 128
    large = _exponent(z).icmp("ugt", exponent_mask(x.kind) >> (fraction_bits(x.kind) + 1))
    count = x.emitter.const("i32", by)
    shift = scaled.select(large.select(count, -count), 0)
    if x.kind == "f64":
        total = parts.fma(x, y, z)
        rest = parts.fma(x, y, z - total)  # what the rounding of the sum left out
        return parts.scale(total, shift) + _tie_correction(total, rest, shift)
    wide = x.emitter.call("f64", "fma", x.to("f64"), y.to("f64"), z.to("f64"))
    power = (shift.sext("i64") + 1023).shl(52).bits("f64")
    return scaled.select((wide * power).to("f32"), parts.fma(x, y, z))


def _tie_correction(total: Value, rest: Value, shift: Value) -> Value:
    """What is missing where scaling a sum into the denormals met a tie that is none.

    The sum was rounded once already: where it now lies halfway between two denormals, `rest` says
    to which side the exact value is.
    """
    lost = total - parts.scale(parts.scale(total, shift), -shift)
    halfway = lost.unary("fabs").fcmp("oeq", 2.0 ** (-1075 + 128))
    upward = lost.fcmp("ogt", 0.0) & rest.fcmp("ogt", 0.0)
    downward = lost.fcmp("olt", 0.0) & rest.fcmp("olt", 0.0)
    step = upward.select(total.like(2.0**-1074), downward.select(total.like(-(2.0**-1074)), 0.0))
    return (halfway & shift.ne(0)).select(step, total.like(-0.0))


def _div_fixup(quotient: Value, denominator: Value, numerator: Value) -> Value:
    """V_DIV_FIXUP: the special cases of a division, and the sign.

    A quotient that is NaN though no operand asks for it has overflowed on the way: infinity.
    """
    kind = quotient.kind
    sign_bit = 1 << (bits_of(kind) - 1)
    infinity = exponent_mask(kind)
    sign = (denominator.bits() ^ numerator.bits()) & sign_bit
    d, n = parts.magnitude(denominator), parts.magnitude(numerator)
    result = quotient.is_nan().select(infinity, parts.magnitude(quotient))
    if kind != "f16":
        limits = (150, 255) if kind == "f32" else (1075, 2047)
        result = _exponent(denominator).eq(limits[1]).select(infinity, result)
        below = (_exponent(numerator) - _exponent(denominator)).icmp("slt", -limits[0])
        result = below.select(0, result)
    result = (d.eq(infinity) | n.eq(0)).select(0, result)
    result = (d.eq(0) | n.eq(infinity)).select(infinity, result)
    result = result | sign
    invalid = (d.eq(0) & n.eq(0)) | (d.eq(infinity) & n.eq(infinity))
    nan = sign_bit | infinity | 1 << (fraction_bits(kind) - 1)
    result = invalid.select(nan - (1 << bits_of(kind)), result)
    result = denominator.is_nan().select(parts.quiet(denominator).bits(), result)
    result = numerator.is_nan().select(parts.quiet(numerator).bits(), result)
    return result.bits(kind)


def _division(kind: str) -> dict[str, Operation]:
    three = f"{kind} {kind} {kind}"
    return {
        **vector(f"{kind} m: {three}", **{f"v_div_scale_{kind}": _div_scale}),
        **vector(f"{kind}: {three} m", **{f"v_div_fmas_{kind}": _div_fmas}),
        **vector(f"{kind}: {three}", **{f"v_div_fixup_{kind}": _div_fixup}),
    }


def _lit_product(x: Value, y: Value, z: Value) -> Value:
    """V_MULLIT_F32: the lighting rules; zero times anything is zero."""
    lowest = -(2.0**128 - 2.0**104)
    unlit = y.fcmp("ule", lowest) | z.fcmp("ule", 0.0)
    return unlit.select(lowest, _dx9_product(x, y))


def _dot2_half(x: Value, y: Value, z: Value) -> Value:
    """V_DOT2_F16_F16: two products and a sum, rounded once."""
    total = z.to("f64")
    for first, second in zip(parts.halves(x, "f16"), parts.halves(y, "f16"), strict=True):
        total = total + first.to("f64") * second.to("f64")
    return parts.half_of(total)


def _scale_half(x: Value, exponent: Value) -> Value:
    return parts.scale(x, exponent.sext("i32"))


TABLE: Final[dict[str, Operation]] = {
    **{operation.name: operation for operation in _generated()},
    **_division("f32"),
    **_division("f64"),
    **vector("f16: f16 f16 f16", v_div_fixup_f16=_div_fixup),
    **vector("f32: f32 f32", v_mul_dx9_zero_f32=_dx9_product),
    **vector("f32: f32 f32 f32", v_fma_dx9_zero_f32=_dx9_fma, v_fmac_dx9_zero_f32=_dx9_fma),
    **vector("f32: f32 f32 f32", v_mullit_f32=_lit_product),
    **vector("f16: i32 i32 f16", v_dot2_f16_f16=_dot2_half),
    **vector("f64: f64 i32", v_trig_preop_f64=pi_bits.trig_preop),
    **vector("f32: f32", v_rcp_iflag_f32=lambda x: x.like(1.0) / x),
    **vector("f32: f32 i32", v_ldexp_f32=parts.scale),
    **vector("f64: f64 i32", v_ldexp_f64=parts.scale),
    **vector("f16: f16 i16", v_ldexp_f16=_scale_half),
    **vector("i32: f32", v_frexp_exp_i32_f32=parts.frexp_exponent),
    **vector("i32: f64", v_frexp_exp_i32_f64=parts.frexp_exponent),
    **vector("i16: f16", v_frexp_exp_i16_f16=lambda x: parts.frexp_exponent(x, "i16")),
    # Modifiers of results; they are operations of their own behind the instruction's.
    **vector("f16: f16", clamp_f16=parts.clamp),
    **vector("f32: f32", clamp_f32=parts.clamp),
    **vector("f64: f64", clamp_f64=parts.clamp),
    **vector("f16: f16 f16", scale_f16=parts.output_scale),
    **vector("f32: f32 f32", scale_f32=parts.output_scale),
    **vector("f64: f64 f64", scale_f64=parts.output_scale),
}

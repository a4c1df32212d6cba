"""Parts that operations on floats share: NaN rules, rounding to half, exponents.

The host's own arithmetic does the rest, under rounding and denormal modes that follow the wave's.
"""

from __future__ import annotations

from gpu.sim.isa import frames, layout
from gpu.sim.isa.rdna.define import clz
from gpu.sim.isa.rdna.sem_compare import exponent_mask, fraction_bits
from gpu.sim.isa.values import Value, bits_of


def quiet(x: Value) -> Value:
    """A NaN as a quiet one."""
    return (x.bits() | (1 << (fraction_bits(x.kind) - 1))).bits(x.kind)


def is_signalling(x: Value) -> Value:
    """Whether a float is a signalling NaN."""
    bit = x.bits() & (1 << (fraction_bits(x.kind) - 1))
    return x.is_nan() & bit.eq(0)


def magnitude(x: Value) -> Value:
    """The bits without the sign, as an integer."""
    return x.bits() & ((1 << (bits_of(x.kind) - 1)) - 1)


def minimum(x: Value, y: Value) -> Value:
    """V_MIN: the number where the other is NaN; -0 is below +0; in IEEE mode sNaN gives qNaN."""
    equal = (x.bits() | y.bits()).bits(x.kind)
    ordered = x.fcmp("olt", y).select(x, y.fcmp("olt", x).select(y, equal))
    return _unless_nan(x, y, ordered)


def maximum(x: Value, y: Value) -> Value:
    """V_MAX; see `minimum`."""
    equal = (x.bits() & y.bits()).bits(x.kind)
    ordered = x.fcmp("ogt", y).select(x, y.fcmp("ogt", x).select(y, equal))
    return _unless_nan(x, y, ordered)


def least(x: Value, y: Value) -> Value:
    """V_MINIMUM: as `minimum`, but NaN where one is; the first one's."""
    equal = (x.bits() | y.bits()).bits(x.kind)
    return _or_nan(x, y, x.fcmp("olt", y).select(x, y.fcmp("olt", x).select(y, equal)))


def greatest(x: Value, y: Value) -> Value:
    """V_MAXIMUM; see `least`."""
    equal = (x.bits() & y.bits()).bits(x.kind)
    return _or_nan(x, y, x.fcmp("ogt", y).select(x, y.fcmp("ogt", x).select(y, equal)))


def _or_nan(x: Value, y: Value, ordered: Value) -> Value:
    """`ordered`, or a NaN of the two: a signalling one first, then the first."""
    nan = (x.is_nan() & (is_signalling(x) | ~is_signalling(y))).select(quiet(x), quiet(y))
    nan = (x.is_nan() & ~y.is_nan()).select(quiet(x), nan)
    return x.fcmp("uno", y).select(nan, ordered)


def _unless_nan(x: Value, y: Value, ordered: Value) -> Value:
    """`ordered`, and the rules for NaN in the lanes that have one; few rows do."""
    emitter = x.emitter
    unordered = x.fcmp("uno", y)
    found = frames.any_lane(emitter, unordered)
    start, rare, done = emitter.labels("ordered", "rare", "chosen")
    emitter.lines += [f"br label %{start}", f"{start}:"]
    emitter.lines += [f"br i1 {found}, label %{rare}, label %{done}", f"{rare}:"]
    special = x.is_nan().select(y.is_nan().select(quiet(x), y), x)
    ieee = frames.mode_bit(emitter, layout.MODE_IEEE)
    special = (ieee & is_signalling(y)).select(quiet(y), special)
    special = (ieee & is_signalling(x)).select(quiet(x), special)
    mixed = unordered.select(special, ordered)
    emitter.lines += [f"br label %{done}", f"{done}:"]
    kind = emitter.type(x.kind)
    choices = f"[ {ordered.text}, %{start} ], [ {mixed.text}, %{rare} ]"
    return emitter.value(x.kind, f"phi {kind} {choices}")


def median(x: Value, y: Value, z: Value) -> Value:
    """V_MED3; with a NaN among them the minimum."""
    any_nan = x.is_nan() | y.is_nan() | z.is_nan()
    largest = maximum(maximum(x, y), z)
    rest = largest.fcmp("oeq", x).select(
        maximum(y, z), largest.fcmp("oeq", y).select(maximum(x, z), maximum(x, y))
    )
    return any_nan.select(minimum(minimum(x, y), z), rest)


def output_scale(x: Value, factor: Value) -> Value:
    """The OMOD modifier (section 7.2.3): ignored with IEEE or denormal results, which it flushes.

    A result that is zero is +0.
    """
    emitter = x.emitter
    denormals = layout.MODE_DENORMAL_RESULTS[x.kind]
    ignored = frames.mode_bit(emitter, layout.MODE_IEEE | denormals)
    product = x * factor
    tiny = magnitude(product).icmp("ult", 1 << fraction_bits(x.kind))
    return ignored.select(x, tiny.select(0.0, product))


def halves(x: Value, kind: str) -> tuple[Value, Value]:
    """The two 16-bit values of a register."""
    return x.to("i16").bits(kind), x.lshr(16).to("i16").bits(kind)


def brain_halves(x: Value) -> tuple[Value, Value]:
    """The two bfloat16 of a register, as singles."""
    return x.shl(16).bits("f32"), (x & (0xFFFF0000 - (1 << 32))).bits("f32")


def brain_of(x: Value) -> Value:
    """A single as a bfloat16, in the low half of a dword, to the nearest; NaN stays one."""
    pattern = x.bits()
    rounded = (pattern + 0x7FFF + (pattern.lshr(16) & 1)).lshr(16)
    return x.is_nan().select(pattern.lshr(16) | 0x40, rounded)


def clamp(x: Value) -> Value:
    """The CLAMP modifier: to 0..1; NaN is 0 where MODE.DX10_CLAMP is set."""
    emitter = x.emitter
    low = x.fcmp("ogt", 0.0).select(x, 0.0)
    result = low.fcmp("ogt", 1.0).select(1.0, low)
    zeroed = frames.mode_bit(emitter, layout.MODE_DX10_CLAMP)
    return (x.is_nan() & ~zeroed).select(x, result)


def fma(x: Value, y: Value, z: Value) -> Value:
    """A fused multiply-add, rounded once."""
    if x.kind == "f16":
        return half_of(x.emitter.call("f64", "fma", x.to("f64"), y.to("f64"), z.to("f64")))
    return x.emitter.call(x.kind, "fma", x, y, z)


def half_of(x: Value) -> Value:
    """A double rounded once to half: first to single with the last bit sticky."""
    single = x.to("f32")
    back = single.to("f64")
    pattern = single.bits()
    inexact = back.fcmp("one", x)
    above = back.unary("fabs").fcmp("ogt", x.unary("fabs"))
    truncated = above.select(pattern - 1, pattern)
    return inexact.select(truncated | 1, pattern).bits("f32").to("f16")


def toward_zero(x: Value) -> Value:
    """A single rounded to half towards zero."""
    rounded = x.to("f16")
    above = rounded.to("f32").unary("fabs").fcmp("ogt", x.unary("fabs"))
    return above.select(rounded.bits() - 1, rounded.bits()).bits("f16")


def _normalized(x: Value) -> tuple[Value, Value, Value]:
    """(is finite and not zero, is denormal, leading zeros of its bits)."""
    pattern = magnitude(x)
    special = pattern.eq(0) | pattern.icmp("uge", exponent_mask(x.kind))
    return ~special, pattern.icmp("ult", 1 << fraction_bits(x.kind)), clz(pattern)


def frexp_exponent(x: Value, kind: str = "i32") -> Value:
    """The exponent for a mantissa of 0.5 to 1; 0 for zero, infinity and NaN."""
    bits, fraction = bits_of(x.kind), fraction_bits(x.kind)
    bias = (1 << (bits - fraction - 2)) - 1
    finite, denormal, zeros = _normalized(x)
    normal = magnitude(x).lshr(fraction) - (bias - 1)
    small = zeros.like(bits - bias - fraction + 1) - zeros
    result = finite.select(denormal.select(small, normal), 0)
    return result.to(kind) if bits_of(result.kind) > bits_of(kind) else result.sext(kind)


def frexp_mantissa(x: Value) -> Value:
    """The mantissa, 0.5 to 1, with the sign; zero, infinity and NaN are themselves."""
    fraction = fraction_bits(x.kind)
    finite, denormal, zeros = _normalized(x)
    pattern = x.bits()
    sign = pattern & (1 << (bits_of(x.kind) - 1))
    exponents = bits_of(x.kind) - fraction - 1
    small = pattern.shl(zeros - zeros.like(exponents))
    low = denormal.select(small, pattern) & ((1 << fraction) - 1)
    half = ((1 << (exponents - 1)) - 2) << fraction  # the exponent of 0.5
    return finite.select(sign | low | half, x.is_nan().select(quiet(x).bits(), pattern)).bits(
        x.kind
    )


def scale(x: Value, exponent: Value) -> Value:
    """``x * 2**exponent``, rounded once."""
    if x.kind == "f64":
        emitter = x.emitter
        lanes = f"v{emitter.lanes}" if emitter.lanes > 1 else ""
        return emitter.call("f64", "ldexp", x, exponent, suffix=f"{lanes}f64.{lanes}i32")
    limited = exponent.smax(-400).smin(400).sext("i64")
    power = (limited + 1023).shl(52).bits("f64")
    product = x.to("f64") * power
    return product.to("f32") if x.kind == "f32" else half_of(product)


def fraction(x: Value) -> Value:
    """``x - floor(x)``, kept below 1."""
    below_one = {"f16": 1 - 2.0**-11, "f32": 1 - 2.0**-24, "f64": 1 - 2.0**-53}[x.kind]
    part = x - x.unary("floor")
    return part.fcmp("ogt", below_one).select(below_one, part)


def sine(x: Value, name: str) -> Value:
    """``sin(2 pi x)`` or ``cos(2 pi x)``: the operand counts revolutions."""
    wide = x.to("f64")
    turns = wide - wide.unary("floor")
    angle = turns * 6.283185307179586
    return angle.unary(name).to("f32").to(x.kind)

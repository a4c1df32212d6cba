"""What the operations of categories 2 to 4 compute, and conversions, as expressions.

Sources: Mesa 25.0, src/freedreno/ir3/ir3_compiler_nir.c, which says what it takes each operation
for, and src/compiler/nir/nir_opcodes.py for `imadsh_mix16`, `shrm_ir3` and their like.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from gpu.sim.isa.values import Value

Build = Callable[..., Value]
ERROR_ULPS: Final = 1
"""Results of category 4 are less than that off, in units of their last place: one of the two floats
around the true value, which its source decides. Hardware tells no bound, but Mesa's division of
integers holds for no other (nir_lower_idiv.c)."""


class Operation(NamedTuple):
    """What an operation computes.

    Attributes:
        domain: of its sources: ``float`` (as f32), ``int`` or ``bits``, in which a sign inverts.
        build: from values of its sources to that of its result.
        widens: how the result of halves becomes one of 32 bits: ``u`` with zeros, ``s`` with its
            sign, ``f`` as a float; empty where that is not known (`ir3_output_conv_type` of ir3.h).
    """

    domain: str
    build: Build
    widens: str = ""

    def widened(self, result: Value) -> Value:
        """The result of halves for a full register."""
        if self.widens == "f":
            return widened_half(rounded_half(result))
        return result.sext("i32") if self.widens == "s" else result.to("i32")


def saturated(result: Value) -> Value:
    """(sat) of floats: 0 to 1, and 0 for what is no number."""
    above = result.fcmp("ogt", 0.0).select(result, 0.0)
    return above.fcmp("olt", 1.0).select(above, 1.0)


def widened_half(bits: Value) -> Value:
    """A half as f32; a denormal becomes 0."""
    kept = (bits & 0x7C00).eq(0).select(bits & 0x8000, bits)
    return kept.bits("f16").to("f32")


def rounded_half(value: Value) -> Value:
    """A float as bits of a half; a denormal becomes 0."""
    bits = value.to("f16").bits()
    return (bits & 0x7C00).eq(0).select(bits & 0x8000, bits)


def _flushed(x: Value) -> Value:
    bits = x.bits()
    return (bits & 0x7F800000).eq(0).select(bits & ~0x7FFFFFFF, bits).bits("f32")


def _smaller(x: Value, y: Value) -> Value:
    """The number where the other is none."""
    x, y = _flushed(x), _flushed(y)
    return (x.fcmp("olt", y) | y.is_nan()).select(x, y)


def _larger(x: Value, y: Value) -> Value:
    x, y = _flushed(x), _flushed(y)
    return (x.fcmp("ogt", y) | y.is_nan()).select(x, y)


def _sign(x: Value) -> Value:
    positive = x.fcmp("ogt", 0.0).select(x.like(1.0), 0.0)
    return x.fcmp("olt", 0.0).select(-1.0, positive)


def _mad_half(x: Value, y: Value, z: Value) -> Value:
    """The product is rounded to a half as well."""
    return widened_half(rounded_half(x * y)) + z


def _low24(x: Value, signed: bool) -> Value:
    wide = x.sext("i32") if signed else x.to("i32")
    return wide.shl(8).ashr(8) if signed else wide & 0xFFFFFF


def _product24(signed: bool) -> Build:
    """Of 32 bits, whatever its sources have (Mesa 25.0, ir3_cf.c)."""
    return lambda x, y: _low24(x, signed) * _low24(y, signed)


def _mad24(signed: bool) -> Build:
    return lambda x, y, z: _low24(x, signed) * _low24(y, signed) + z


def _low_product(x: Value, y: Value) -> Value:
    return (x.to("i32") & 0xFFFF) * (y.to("i32") & 0xFFFF)


def _leading(x: Value, signed: bool) -> Value:
    """Leading zeros, or copies of the sign behind it; -1 where there is nothing else."""
    bits = x ^ x.ashr(31 if x.kind == "i32" else 15) if signed else x
    count = bits.emitter.call_with_flag("ctlz", bits, False)
    return bits.eq(0).select(-1, count)


def _shift(name: str) -> Build:
    return lambda x, y: getattr(x, name)(y)


def _saturating(intrinsic: str) -> Build:
    return lambda x, y: x.emitter.call(x.kind, intrinsic, x, y)


def _masked(name: str) -> Build:
    """(src2 shifted by src1) & src3."""
    return lambda by, x, mask: getattr(x, name)(by) & mask


def _united(name: str) -> Build:
    return lambda by, x, other: getattr(x, name)(by) | other


def _faithful(build: Build) -> Build:
    """What doubles give as one of the two floats around it: the nearest, or at times the other."""

    def off(x: Value) -> Value:
        exact = build(_flushed(x).to("f64"))
        near = exact.to("f32")
        bits, back = near.bits(), near.to("f64")
        low, high = back.fcmp("olt", exact), back.fcmp("ogt", exact)
        outward = low ^ bits.icmp("slt", 0)
        moved = outward.select(bits + 1, bits - 1)
        exponent = bits.lshr(23) & 255
        inner = exponent.icmp("ugt", 1) & exponent.icmp("ult", 254)
        is_other = (x.bits() * 0x9E3779B1).icmp("slt", 0)
        return ((low | high) & inner & is_other).select(moved, bits).bits("f32")

    return off


def _double(name: str) -> Build:
    return lambda x: x.unary(name)


_CONDITIONS: Final = {"lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "eq": "eq", "ne": "ne"}


def _float_comparison(condition: str) -> Build:
    """Only `ne` holds where one is no number."""
    predicate = ("u" if condition == "ne" else "o") + condition
    return lambda x, y: x.fcmp(predicate, y)


def _comparison(condition: str, sign: str) -> Build:
    predicate = condition if condition in ("eq", "ne") else sign + condition
    return lambda x, y: x.icmp(predicate, y)


_ROOT: Final = _faithful(lambda x: x.like(1.0) / x.unary("sqrt"))
_LOG: Final = _faithful(_double("log2"))
_EXP: Final = _faithful(_double("exp2"))
OPERATIONS: Final[dict[str, Operation]] = {
    "add.f": Operation("float", lambda x, y: x + y, "f"),
    "mul.f": Operation("float", lambda x, y: x * y, "f"),
    "min.f": Operation("float", _smaller),
    "max.f": Operation("float", _larger),
    "sign.f": Operation("float", _sign),
    "floor.f": Operation("float", lambda x: _flushed(x).unary("floor")),
    "ceil.f": Operation("float", lambda x: _flushed(x).unary("ceil")),
    "rndne.f": Operation("float", lambda x: _flushed(x).unary("roundeven")),
    "rndaz.f": Operation("float", lambda x: _flushed(x).unary("round")),
    "trunc.f": Operation("float", lambda x: _flushed(x).unary("trunc")),
    "absneg.f": Operation("float", lambda x: x),
    **{f"cmps.f.{c}": Operation("float", _float_comparison(c), "u") for c in _CONDITIONS},
    **{f"cmps.u.{c}": Operation("int", _comparison(c, "u"), "u") for c in _CONDITIONS},
    **{f"cmps.s.{c}": Operation("int", _comparison(c, "s"), "u") for c in _CONDITIONS},
    "add.u": Operation("int", lambda x, y: x + y, "u"),
    "add.s": Operation("int", lambda x, y: x + y, "s"),
    "sub.u": Operation("int", lambda x, y: x - y, "u"),
    "sub.s": Operation("int", lambda x, y: x - y, "s"),
    **{
        f"{name}.sat": Operation("int", _saturating(intrinsic), name[-1])
        for name, intrinsic in {
            "add.u": "uadd.sat",
            "add.s": "sadd.sat",
            "sub.u": "usub.sat",
            "sub.s": "ssub.sat",
        }.items()
    },
    "min.u": Operation("int", lambda x, y: x.umin(y), "u"),
    "min.s": Operation("int", lambda x, y: x.smin(y), "s"),
    "max.u": Operation("int", lambda x, y: x.umax(y), "u"),
    "max.s": Operation("int", lambda x, y: x.smax(y), "s"),
    "absneg.s": Operation("int", lambda x: x, "s"),
    "and.b": Operation("bits", lambda x, y: x & y, "u"),
    "or.b": Operation("bits", lambda x, y: x | y, "u"),
    "xor.b": Operation("bits", lambda x, y: x ^ y, "u"),
    "not.b": Operation("bits", lambda x: ~x, "u"),
    "shl.b": Operation("bits", _shift("shl"), "u"),
    "shr.b": Operation("bits", _shift("lshr"), "u"),
    "ashr.b": Operation("bits", _shift("ashr"), "u"),
    "bfrev.b": Operation("bits", lambda x: x.unary("bitreverse")),
    "cbits.b": Operation("bits", lambda x: x.unary("ctpop")),
    "getbit.b": Operation("bits", lambda x, y: x.lshr(y) & 1),
    "clz.b": Operation("int", lambda x: _leading(x, False)),
    "clz.s": Operation("int", lambda x: _leading(x, True)),
    "mul.u24": Operation("int", _product24(False), "u"),
    "mul.s24": Operation("int", _product24(True), "s"),
    "mull.u": Operation("int", _low_product, "u"),
    "mad.u24": Operation("int", _mad24(False), "u"),
    "mad.s24": Operation("int", _mad24(True), "s"),
    "mad.u16": Operation("int", lambda x, y, z: x * y + z),
    "mad.s16": Operation("int", lambda x, y, z: x * y + z),
    "madsh.m16": Operation("int", lambda x, y, z: ((x & 0xFFFF) * y.lshr(16)).shl(16) + z),
    # Sums of three, which Mesa takes them for (`nir_op_iadd3`).
    "sad.s16": Operation("int", lambda x, y, z: x + y + z),
    "sad.s32": Operation("int", lambda x, y, z: x + y + z),
    "mad.f32": Operation("float", lambda x, y, z: x * y + z, "f"),
    "mad.f16": Operation("float", _mad_half, "f"),
    "sel.b32": Operation("bits", lambda x, chosen, y: chosen.ne(0).select(x, y)),
    "sel.b16": Operation("bits", lambda x, chosen, y: chosen.ne(0).select(x, y)),
    "shrm": Operation("bits", _masked("lshr"), "u"),
    "shlm": Operation("bits", _masked("shl"), "u"),
    "shrg": Operation("bits", _united("lshr"), "u"),
    "shlg": Operation("bits", _united("shl"), "u"),
    "andg": Operation("bits", lambda x, y, z: x & y | z, "u"),
    "rcp": Operation("float", _faithful(lambda x: x.like(1.0) / x)),
    "rsq": Operation("float", _ROOT),
    "hrsq": Operation("float", _ROOT),
    "sqrt": Operation("float", _faithful(_double("sqrt"))),
    "log2": Operation("float", _LOG),
    "hlog2": Operation("float", _LOG),
    "exp2": Operation("float", _EXP),
    "hexp2": Operation("float", _EXP),
    "sin": Operation("float", _faithful(_double("sin"))),
    "cos": Operation("float", _faithful(_double("cos"))),
}
"""By name, with the condition of comparisons; those of integers that saturate are others."""
_ROUNDINGS: Final = {
    "": "trunc",
    "(even)": "roundeven",
    "(pos_infinity)": "ceil",
    "(neg_infinity)": "floor",
}


def can_convert(types: tuple[str, str], rounding: str) -> bool:
    """Whether `convert` knows it: between floats it rounds to nearest, as from wide integers.

    Bytes do not become floats, nor floats bytes (Mesa 25.0, `create_cov` of ir3_compiler_nir.c).
    """
    source, target = types
    if source == target:
        return True
    if "u8_32" in types or ("u8" in types and "f" in source + target):
        return False
    if not target.startswith("f") or (source in ("u16", "s16") and target == "f32"):
        return True
    return rounding == "(even)" or types == ("f16", "f32")


def convert(bits: Value, types: tuple[str, str], rounding: str) -> Value:
    """A value of one type as another: a float as f32, an integer as i32.

    Integers lose their upper bits, and bytes are taken as signed (`create_cov`). Floats are
    rounded, and saturate.
    """
    source, target = types
    if source == target:
        return bits & 0xFF if source == "u8" else bits
    if source.startswith("f"):
        value = widened_half(bits) if source == "f16" else bits.bits("f32")
        if target.startswith("f"):
            return value
        return _to_integer(_flushed(value).unary(_ROUNDINGS[rounding]), target)
    wide = bits.sext("i32") if source == "s16" else bits.to("i32")
    wide = wide.shl(24).ashr(24) if source == "u8" else wide
    if target.startswith("f"):
        return wide.from_signed("f32") if source[0] == "s" else wide.from_unsigned("f32")
    return wide & 0xFF if target == "u8" else wide


def _to_integer(value: Value, target: str) -> Value:
    signed, width = target[0] == "s", int(target[1:])
    whole = value.saturated("i32", signed)
    if width == 32:
        return whole
    if signed:
        return whole.smax(-(1 << width - 1)).smin((1 << width - 1) - 1)
    return whole.umin((1 << width) - 1)

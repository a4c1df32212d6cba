"""Packed 16-bit operations, dot products and mixed multiply-adds: section 16.10 (VOP3P).

Sources come with their halves already chosen and their signs applied (see `translate_packed`):
the low half of each is for the low result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpu.sim.isa.frames import Build, Operation
from gpu.sim.isa.rdna import float_parts as parts
from gpu.sim.isa.rdna.define import vector
from gpu.sim.isa.values import Value

Lanewise = Callable[..., Value]


def _packed(kind: str, build: Lanewise) -> Build:
    def whole(*sources: Value) -> Value:
        pairs = [parts.halves(source, kind) for source in sources]
        low, high = (build(*(pair[side] for pair in pairs)) for side in (0, 1))
        return low.bits().to("i32") | high.bits().to("i32").shl(16)

    return whole


_INTEGER: Final[dict[str, Lanewise]] = {
    "mul_lo_u16": lambda x, y: x * y,
    "add_i16": lambda x, y: x + y,
    "sub_i16": lambda x, y: x - y,
    "add_u16": lambda x, y: x + y,
    "sub_u16": lambda x, y: x - y,
    "lshlrev_b16": lambda x, y: y.shl(x),
    "lshrrev_b16": lambda x, y: y.lshr(x),
    "ashrrev_i16": lambda x, y: y.ashr(x),
    "max_i16": lambda x, y: x.smax(y),
    "min_i16": lambda x, y: x.smin(y),
    "max_u16": lambda x, y: x.umax(y),
    "min_u16": lambda x, y: x.umin(y),
    "add_i16_clamp": lambda x, y: x.emitter.call("i16", "sadd.sat", x, y),
    "sub_i16_clamp": lambda x, y: x.emitter.call("i16", "ssub.sat", x, y),
    "add_u16_clamp": lambda x, y: x.emitter.call("i16", "uadd.sat", x, y),
    "sub_u16_clamp": lambda x, y: x.emitter.call("i16", "usub.sat", x, y),
}
_FLOAT: Final[dict[str, Lanewise]] = {
    "add_f16": lambda x, y: x + y,
    "mul_f16": lambda x, y: x * y,
    "min_f16": parts.minimum,
    "max_f16": parts.maximum,
    "minimum_f16": parts.least,
    "maximum_f16": parts.greatest,
}


def _shifted_bytes(lowest: int, highest: int) -> Build:
    """V_ASHR_PK: two integers shifted to the right, then limited to bytes."""

    def build(x: Value, y: Value, count: Value) -> Value:
        low, high = (each.ashr(count & 31).smax(lowest).smin(highest) & 0xFF for each in (x, y))
        return (low | high.shl(8)).to("i16")

    return build


def _dot2(x: Value, y: Value, start: Value) -> Value:
    total = start
    for first, second in zip(parts.halves(x, "f16"), parts.halves(y, "f16"), strict=True):
        total = parts.fma(first.to("f32"), second.to("f32"), total)
    return total


def _dot2_brain(x: Value, y: Value, start: Value) -> Value:
    total = start
    for first, second in zip(parts.brain_halves(x), parts.brain_halves(y), strict=True):
        total = parts.fma(first, second, total)
    return total


def _dot2_into_brain(x: Value, y: Value, start: Value) -> Value:
    """V_DOT2_BF16_BF16: the sum is rounded to the nearest at its end."""
    return parts.brain_of(_dot2_brain(x, y, start.to("i32").shl(16).bits("f32"))).to("i16")


def _pieces(x: Value, bits: int, signed: bool) -> list[Value]:
    found = []
    for position in range(0, 32, bits):
        high = x.shl(32 - bits - position)
        found.append(high.ashr(32 - bits) if signed else high.lshr(32 - bits))
    return found


def _dot_integer(bits: int, first_signed: bool, second_signed: bool) -> Build:
    def build(x: Value, y: Value, start: Value) -> Value:
        total = start
        pairs = zip(_pieces(x, bits, first_signed), _pieces(y, bits, second_signed), strict=True)
        for first, second in pairs:
            total = total + first * second
        return total

    return build


def _mixed_dots() -> dict[str, Build]:
    """V_DOT4_I32_IU8 and V_DOT8_I32_IU4 by the signs of their sources, which NEG gives."""
    found = {}
    for name, bits in (("v_dot4_i32_iu8", 8), ("v_dot8_i32_iu4", 4)):
        for signs in range(4):
            found[f"{name}_{signs}"] = _dot_integer(bits, bool(signs & 1), bool(signs & 2))
    return found


TABLE: Final[dict[str, Operation]] = {
    **vector("i32: i32 i32", **{f"v_pk_{n}": _packed("i16", b) for n, b in _INTEGER.items()}),
    **vector("i32: i32 i32", **{f"v_pk_{n}": _packed("f16", b) for n, b in _FLOAT.items()}),
    **vector(
        "i32: i32 i32 i32",
        v_pk_mad_i16=_packed("i16", lambda x, y, z: x * y + z),
        v_pk_mad_u16=_packed("i16", lambda x, y, z: x * y + z),
        v_pk_fma_f16=_packed("f16", parts.fma),
        v_pk_minimum3_f16=_packed("f16", lambda x, y, z: parts.least(parts.least(x, y), z)),
        v_pk_maximum3_f16=_packed("f16", lambda x, y, z: parts.greatest(parts.greatest(x, y), z)),
        v_pk_fmac_f16=_packed("f16", parts.fma),
        v_dot2_i32_i16=_dot_integer(16, True, True),
        v_dot2_u32_u16=_dot_integer(16, False, False),
        **dict.fromkeys(("v_dot4_i32_i8", "v_dot4c_i32_i8"), _dot_integer(8, True, True)),
        **dict.fromkeys(("v_dot8_i32_i4", "v_dot8c_i32_i4"), _dot_integer(4, True, True)),
        v_dot2acc_i32_i16=_dot_integer(16, True, True),
        v_dot4_u32_u8=_dot_integer(8, False, False),
        v_dot8_u32_u4=_dot_integer(4, False, False),
        **_mixed_dots(),
    ),
    **vector(
        "f32: i32 i32 f32",
        v_dot2_f32_f16=_dot2,
        v_dot2acc_f32_f16=_dot2,
        v_dot2_f32_bf16=_dot2_brain,
        v_dot2acc_f32_bf16=_dot2_brain,
    ),
    **vector(
        "i16: i32 i32 i32",
        v_ashr_pk_i8_i32=_shifted_bytes(-128, 127),
        v_ashr_pk_u8_i32=_shifted_bytes(0, 255),
    ),
    **vector("i16: i32 i32 i16", v_dot2_bf16_bf16=_dot2_into_brain),
    **vector("f32: f32 f32 f32", v_fma_mix_f32=parts.fma),
    **vector(
        "f16: f32 f32 f32",
        v_fma_mixlo_f16=lambda x, y, z: parts.fma(x, y, z).to("f16"),
        v_fma_mixhi_f16=lambda x, y, z: parts.fma(x, y, z).to("f16"),
    ),
    # Parts of how sources of packed operations are read.
    **vector("i32: i32", clamp_pk_f16=_packed("f16", parts.clamp)),
    **vector(
        "i32: i32",
        pick_ll=lambda x: (x & 0xFFFF) | x.shl(16),
        pick_hl=lambda x: x.emitter.call("i32", "fshl", x, x, x.like(16)),
        pick_hh=lambda x: (x.lshr(16)) | (x & (0xFFFF0000 - (1 << 32))),
    ),
}

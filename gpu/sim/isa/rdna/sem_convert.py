"""Conversions of the vector ALU: sections 16.8 and 16.12 of AMD's RDNA3 manual."""

from __future__ import annotations

from typing import Final

from gpu.sim.isa.frames import Build, Operation
from gpu.sim.isa.rdna import float_parts as parts
from gpu.sim.isa.rdna.define import vector
from gpu.sim.isa.values import Value


def _pack(low: Value, high: Value) -> Value:
    return low.bits().to("i32") | high.bits().to("i32").shl(16)


def _byte(position: int) -> Build:
    return lambda x: (x.lshr(8 * position) & 0xFF).from_unsigned("f32")


def _normalized(x: Value, signed: bool) -> Value:
    """A float of -1 to 1, or 0 to 1, as a 16-bit integer."""
    single = x.to("f32")
    factor = 32767.0 if signed else 65535.0
    scaled = (single * factor).unary("roundeven")
    limited = scaled.fcmp("ogt", factor).select(factor, scaled)
    lowest = -factor if signed else 0.0
    limited = limited.fcmp("olt", lowest).select(lowest, limited)
    return limited.saturated("i32", True).to("i16")


def _nearest(x: Value) -> Value:
    """V_CVT_NEAREST_I32_F32: floor(x + 0.5), which doubles hold exactly."""
    return (x.to("f64") + 0.5).unary("floor").saturated("i32", True)


def _signed_nibble(x: Value) -> Value:
    """V_CVT_OFF_F32_I4: a 4-bit signed integer in sixteenths."""
    return x.shl(28).ashr(28).from_signed("f32") * 0.0625


def _insert_byte(x: Value, position: Value, old: Value) -> Value:
    """V_CVT_PK_U8_F32: a float as a byte, put into `old` at byte `position`."""
    byte = x.unary("trunc").saturated("i32", False).umin(255)
    shift = (position & 3).shl(3)
    return (old & ~old.like(255).shl(shift)) | byte.shl(shift)


def _saturated_byte(x: Value) -> Value:
    return x.smax(0).smin(255)


def _saturate_pair(x: Value) -> Value:
    low, high = x.shl(16).ashr(16), x.ashr(16)
    return (_saturated_byte(low) | _saturated_byte(high).shl(8)).to("i16")


TABLE: Final[dict[str, Operation]] = {
    **vector(
        "f32: i32",
        v_cvt_f32_i32=lambda x: x.from_signed("f32"),
        v_cvt_f32_u32=lambda x: x.from_unsigned("f32"),
        v_cvt_off_f32_i4=_signed_nibble,
        v_cvt_f32_ubyte0=_byte(0),
        v_cvt_f32_ubyte1=_byte(1),
        v_cvt_f32_ubyte2=_byte(2),
        v_cvt_f32_ubyte3=_byte(3),
    ),
    **vector(
        "i32: f32",
        v_cvt_i32_f32=lambda x: x.saturated("i32", True),
        v_cvt_u32_f32=lambda x: x.saturated("i32", False),
        v_cvt_nearest_i32_f32=_nearest,
        v_cvt_floor_i32_f32=lambda x: x.unary("floor").saturated("i32", True),
    ),
    **vector(
        "i32: f64",
        v_cvt_i32_f64=lambda x: x.saturated("i32", True),
        v_cvt_u32_f64=lambda x: x.saturated("i32", False),
    ),
    **vector(
        "f64: i32",
        v_cvt_f64_i32=lambda x: x.from_signed("f64"),
        v_cvt_f64_u32=lambda x: x.from_unsigned("f64"),
    ),
    **vector("f32: f64", v_cvt_f32_f64=lambda x: x.to("f32")),
    **vector("f64: f32", v_cvt_f64_f32=lambda x: x.to("f64")),
    **vector("f16: f32", v_cvt_f16_f32=lambda x: x.to("f16")),
    **vector("f32: f16", v_cvt_f32_f16=lambda x: x.to("f32")),
    **vector("f32: i16", v_cvt_f32_bf16=lambda x: x.to("i32").shl(16).bits("f32")),
    **vector(
        "f16: i16",
        v_cvt_f16_u16=lambda x: x.to("i32").from_unsigned("f32").to("f16"),
        v_cvt_f16_i16=lambda x: x.sext("i32").from_signed("f32").to("f16"),
    ),
    **vector(
        "i16: f16",
        v_cvt_u16_f16=lambda x: x.to("f32").saturated("i32", False).umin(0xFFFF).to("i16"),
        v_cvt_i16_f16=lambda x: (
            x.to("f32").saturated("i32", True).smax(-0x8000).smin(0x7FFF).to("i16")
        ),
        v_cvt_norm_i16_f16=lambda x: _normalized(x, True),
        v_cvt_norm_u16_f16=lambda x: _normalized(x, False),
    ),
    **vector("i16: i32", v_sat_pk_u8_i16=_saturate_pair),
    **vector(
        "i32: f32 f32",
        v_cvt_pk_f16_f32=lambda x, y: _pack(x.to("f16"), y.to("f16")),
        v_cvt_pk_bf16_f32=lambda x, y: parts.brain_of(x) | parts.brain_of(y).shl(16),
        v_cvt_pk_rtz_f16_f32=lambda x, y: _pack(parts.toward_zero(x), parts.toward_zero(y)),
        v_cvt_pk_norm_i16_f32=lambda x, y: _pack(_normalized(x, True), _normalized(y, True)),
        v_cvt_pk_norm_u16_f32=lambda x, y: _pack(_normalized(x, False), _normalized(y, False)),
        v_cvt_pk_i16_f32=lambda x, y: _pack(
            *(v.saturated("i32", True).smax(-0x8000).smin(0x7FFF).to("i16") for v in (x, y))
        ),
        v_cvt_pk_u16_f32=lambda x, y: _pack(
            *(v.saturated("i32", False).umin(0xFFFF).to("i16") for v in (x, y))
        ),
    ),
    **vector(
        "i32: f16 f16",
        v_cvt_pk_norm_i16_f16=lambda x, y: _pack(_normalized(x, True), _normalized(y, True)),
        v_cvt_pk_norm_u16_f16=lambda x, y: _pack(_normalized(x, False), _normalized(y, False)),
    ),
    **vector("i32: f32 i32 i32", v_cvt_pk_u8_f32=_insert_byte),
}

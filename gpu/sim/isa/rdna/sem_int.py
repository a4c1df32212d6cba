"""Integer operations of the vector ALU.

AMD, "RDNA3 Instruction Set Architecture", sections 16.7 (VOP2), 16.8 (VOP1), 16.12 (VOP3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gpu.sim.isa import frames
from gpu.sim.isa.frames import Build, Operation
from gpu.sim.isa.rdna.define import clz, ctz, extract, high_product, median, vector
from gpu.sim.isa.values import Value, bits_of


def _any_function(x: Value, y: Value, z: Value) -> Value:
    """V_BITOP3: bit 4 x + 2 y + z of the table that the record has, bit by bit.

    LLVM, AMDGPUISelDAGToDAG.cpp, `BitOp3_Op`: tables 0xf0, 0xcc and 0xaa are the sources.
    """
    table = frames.splat(x.emitter, "i32", frames.immediate(x.emitter)).to(x.kind)
    last = bits_of(x.kind) - 1
    result = x.like(0)
    for place in range(8):
        chosen = table.shl(last - place).ashr(last)
        for source, bit in ((x, 4), (y, 2), (z, 1)):
            chosen = chosen & (source if place & bit else ~source)
        result = result | chosen
    return result


def _signed24(x: Value) -> Value:
    return x.shl(8).ashr(8)


def _unsigned24(x: Value) -> Value:
    return x & 0xFFFFFF


def _sign_run(x: Value) -> Value:
    """Leading bits equal to the sign; -1 where all are."""
    count = clz(x ^ x.ashr(31))
    return count.eq(32).select(-1, count)


def _unless_zero(x: Value, count: Value) -> Value:
    return x.eq(0).select(-1, count)


def _permute_bytes(x: Value, y: Value, selectors: Value) -> Value:
    """V_PERM_B32: each byte of `selectors` takes a byte of {x, y}, a sign or a constant."""
    pair = x.to("i64").shl(32) | y.to("i64")
    signs = [y.shl(16).ashr(31), y.ashr(31), x.shl(16).ashr(31), x.ashr(31)]
    result = x.like(0)
    for position in range(4):
        selector = selectors.lshr(8 * position) & 0xFF
        byte = pair.lshr((selector & 7).shl(3).to("i64")).to("i32") & 0xFF
        for number, sign in enumerate(signs):
            byte = selector.eq(8 + number).select(sign & 0xFF, byte)
        byte = selector.eq(12).select(0, byte)
        byte = selector.icmp("ugt", 12).select(0xFF, byte)
        result = result | byte.shl(8 * position)
    return result


def _byte_differences(x: Value, y: Value, start: Value, masked: bool = False) -> Value:
    total = start
    for position in range(0, 32, 8):
        first, second = x.lshr(position) & 0xFF, y.lshr(position) & 0xFF
        difference = first.umax(second) - first.umin(second)
        total = total + (second.eq(0).select(0, difference) if masked else difference)
    return total


def _short_differences(x: Value, y: Value, start: Value) -> Value:
    total = start
    for position in (0, 16):
        first, second = x.lshr(position) & 0xFFFF, y.lshr(position) & 0xFFFF
        total = total + (first.umax(second) - first.umin(second))
    return total


def _lane_ids(x: Value) -> Value:
    return x.emitter.lane_ids()


def _count_below(first: int) -> Callable[[Value, Value], Value]:
    """Set bits of a mask of 32 lanes, from the first one on, at lanes below each lane's own."""

    def build(mask: Value, start: Value) -> Value:
        lane = _lane_ids(mask)
        below = mask & (mask.like(1).shl(lane & 31) - 1)
        counted = lane.icmp("uge", first + 32).select(mask, below)
        return lane.icmp("uge", first).select(counted, 0).unary("ctpop") + start

    return build


def _add_carry(x: Value, y: Value, carry: Value) -> tuple[Value, Value]:
    wide = x.to("i64") + y.to("i64") + carry.to("i64")
    return wide.to("i32"), wide.lshr(32).ne(0)


def _sub_borrow(x: Value, y: Value, borrow: Value) -> tuple[Value, Value]:
    wide = x.to("i64") - y.to("i64") - borrow.to("i64")
    return wide.to("i32"), wide.icmp("slt", 0)


def _at_bound(compute: Callable[..., tuple[Value, Value]], bound: int) -> Build:
    """With CLAMP: `bound` where there is a carry or borrow, which is told all the same."""

    def build(*sources: Value) -> tuple[Value, Value]:
        result, over = compute(*sources)
        return over.select(bound, result), over

    return build


def _mad_clamped(x: Value, y: Value, z: Value, signed: bool) -> Value:
    if signed:
        total = x.sext("i32") * y.sext("i32") + z.sext("i32")
        return total.smax(-0x8000).smin(0x7FFF).to("i16")
    total = x.to("i32") * y.to("i32") + z.to("i32")  # at most 65535 * 65536
    return total.umin(0xFFFF).to("i16")


def _multiply_add(x: Value, y: Value, z: Value, signed: bool) -> tuple[Value, Value]:
    """64-bit sum and its carry."""
    wide = [v.sext("i64") if signed else v.to("i64") for v in (x, y)]
    product = wide[0] * wide[1]
    total = product + z
    if not signed:
        return total, total.icmp("ult", product)
    overflow = (product ^ total) & (z ^ total)
    return total, overflow.icmp("slt", 0)


def _lerp(x: Value, y: Value, z: Value) -> Value:
    """V_LERP_U8: averages of bytes, rounded up where the bit of `z` says so."""
    result = x.like(0)
    for position in range(0, 32, 8):
        total = (x.lshr(position) & 0xFF) + (y.lshr(position) & 0xFF) + (z.lshr(position) & 1)
        result = result | total.lshr(1).shl(position)
    return result


BINARY: Final[dict[str, Operation]] = vector(
    "i32: i32 i32",
    v_mul_i32_i24=lambda x, y: _signed24(x) * _signed24(y),
    v_mul_u32_u24=lambda x, y: _unsigned24(x) * _unsigned24(y),
    v_mul_hi_i32_i24=lambda x, y: high_product(_signed24(x), _signed24(y), True),
    v_mul_hi_u32_u24=lambda x, y: high_product(_unsigned24(x), _unsigned24(y), False),
    v_min_i32=lambda x, y: x.smin(y),
    v_max_i32=lambda x, y: x.smax(y),
    v_min_u32=lambda x, y: x.umin(y),
    v_max_u32=lambda x, y: x.umax(y),
    v_lshlrev_b32=lambda x, y: y.shl(x),
    v_lshrrev_b32=lambda x, y: y.lshr(x),
    v_ashrrev_i32=lambda x, y: y.ashr(x),
    v_and_b32=lambda x, y: x & y,
    v_or_b32=lambda x, y: x | y,
    v_xor_b32=lambda x, y: x ^ y,
    v_xnor_b32=lambda x, y: ~(x ^ y),
    v_add_nc_u32=lambda x, y: x + y,
    v_sub_nc_u32=lambda x, y: x - y,
    v_subrev_nc_u32=lambda x, y: y - x,
    v_add_nc_i32=lambda x, y: x + y,
    v_sub_nc_i32=lambda x, y: x - y,
    v_bfm_b32=lambda x, y: (x.like(1).shl(x) - 1).shl(y),
    v_bcnt_u32_b32=lambda x, y: x.unary("ctpop") + y,
    v_mbcnt_lo_u32_b32=_count_below(0),
    v_mbcnt_hi_u32_b32=_count_below(32),
    v_mul_lo_u32=lambda x, y: x * y,
    v_mul_hi_u32=lambda x, y: high_product(x, y, False),
    v_mul_hi_i32=lambda x, y: high_product(x, y, True),
    v_cvt_pk_u16_u32=lambda x, y: x.umin(0xFFFF) | y.umin(0xFFFF).shl(16),
    v_cvt_pk_i16_i32=lambda x, y: (
        (x.smax(-0x8000).smin(0x7FFF) & 0xFFFF) | y.smax(-0x8000).smin(0x7FFF).shl(16)
    ),
) | {
    # With CLAMP integer results saturate.
    **vector(
        "i32: i32 i32",
        v_add_nc_u32_clamp=lambda x, y: x.emitter.call("i32", "uadd.sat", x, y),
        v_sub_nc_u32_clamp=lambda x, y: x.emitter.call("i32", "usub.sat", x, y),
        v_subrev_nc_u32_clamp=lambda x, y: x.emitter.call("i32", "usub.sat", y, x),
        v_add_nc_i32_clamp=lambda x, y: x.emitter.call("i32", "sadd.sat", x, y),
        v_sub_nc_i32_clamp=lambda x, y: x.emitter.call("i32", "ssub.sat", x, y),
    )
}
UNARY: Final = vector(
    "i32: i32",
    v_mov_b32=lambda x: x,
    v_accvgpr_mov_b32=lambda x: x,
    v_not_b32=lambda x: ~x,
    v_bfrev_b32=lambda x: x.unary("bitreverse"),
    v_clz_i32_u32=lambda x: _unless_zero(x, clz(x)),
    v_ctz_i32_b32=lambda x: _unless_zero(x, ctz(x)),
    v_cls_i32=_sign_run,
)
TERNARY: Final = vector(
    "i32: i32 i32 i32",
    v_bfe_u32=lambda x, y, z: extract(x, y & 31, z & 31, False),
    v_bfe_i32=lambda x, y, z: extract(x, y & 31, z & 31, True),
    v_bfi_b32=lambda x, y, z: (x & y) | (~x & z),
    v_perm_b32=_permute_bytes,
    v_lerp_u8=_lerp,
    v_xad_u32=lambda x, y, z: (x ^ y) + z,
    v_lshl_add_u32=lambda x, y, z: x.shl(y) + z,
    v_add_lshl_u32=lambda x, y, z: (x + y).shl(z),
    v_add3_u32=lambda x, y, z: x + y + z,
    v_lshl_or_b32=lambda x, y, z: x.shl(y) | z,
    v_and_or_b32=lambda x, y, z: (x & y) | z,
    v_or3_b32=lambda x, y, z: x | y | z,
    v_xor3_b32=lambda x, y, z: x ^ y ^ z,
    v_bitop3_b32=_any_function,
    v_min3_i32=lambda x, y, z: x.smin(y).smin(z),
    v_min3_u32=lambda x, y, z: x.umin(y).umin(z),
    v_max3_i32=lambda x, y, z: x.smax(y).smax(z),
    v_max3_u32=lambda x, y, z: x.umax(y).umax(z),
    v_med3_i32=lambda x, y, z: median(x, y, z, True),
    v_med3_u32=lambda x, y, z: median(x, y, z, False),
    v_maxmin_u32=lambda x, y, z: x.umax(y).umin(z),
    v_minmax_u32=lambda x, y, z: x.umin(y).umax(z),
    v_maxmin_i32=lambda x, y, z: x.smax(y).smin(z),
    v_minmax_i32=lambda x, y, z: x.smin(y).smax(z),
    v_mad_i32_i24=lambda x, y, z: _signed24(x) * _signed24(y) + z,
    v_mad_u32_u24=lambda x, y, z: _unsigned24(x) * _unsigned24(y) + z,
    v_sad_u8=_byte_differences,
    v_sad_hi_u8=lambda x, y, z: _byte_differences(x, y, x.like(0)).shl(16) + z,
    v_msad_u8=lambda x, y, z: _byte_differences(x, y, z, True),
    v_sad_u16=_short_differences,
    v_sad_u32=lambda x, y, z: (x.umax(y) - x.umin(y)) + z,
)


WIDE: Final = {
    **vector("i64: i64", v_mov_b64=lambda x: x),
    **vector("i64: i64 i32 i64", v_lshl_add_u64=lambda x, y, z: x.shl((y & 7).to("i64")) + z),
    **vector(
        "i64: i32 i64",
        v_lshlrev_b64=lambda x, y: y.shl(x),
        v_lshrrev_b64=lambda x, y: y.lshr(x),
        v_ashrrev_i64=lambda x, y: y.ashr(x),
    ),
    **vector(
        "i64 m: i32 i32 i64",
        v_mad_u64_u32=lambda x, y, z: _multiply_add(x, y, z, False),
        v_mad_i64_i32=lambda x, y, z: _multiply_add(x, y, z, True),
    ),
    **vector(
        "i32: i32 i32 i16",
        v_alignbit_b32=lambda x, y, z: (
            (x.to("i64").shl(32) | y.to("i64")).lshr((z & 31).to("i64")).to("i32")
        ),
        v_alignbyte_b32=lambda x, y, z: (
            (x.to("i64").shl(32) | y.to("i64")).lshr((z & 3).shl(3).to("i64")).to("i32")
        ),
    ),
}
_CARRY_IN: Final[dict[str, Callable[..., tuple[Value, Value]]]] = {
    "v_add_co_ci_u32": _add_carry,
    "v_sub_co_ci_u32": _sub_borrow,
    "v_subrev_co_ci_u32": lambda x, y, c: _sub_borrow(y, x, c),
}
_CARRY_OUT: Final[dict[str, Callable[..., tuple[Value, Value]]]] = {
    "v_add_co_u32": lambda x, y: (x + y, (x + y).icmp("ult", x)),
    "v_sub_co_u32": lambda x, y: (x - y, x.icmp("ult", y)),
    "v_subrev_co_u32": lambda x, y: (y - x, y.icmp("ult", x)),
}


def _clamped(table: Mapping[str, Callable[..., tuple[Value, Value]]]) -> dict[str, Build]:
    return {f"{n}_clamp": _at_bound(b, -1 if "add" in n else 0) for n, b in table.items()}


CARRY: Final = {
    **vector("i32 m: i32 i32 m", **_CARRY_IN, **_clamped(_CARRY_IN)),
    **vector("i32 m: i32 i32", **_CARRY_OUT, **_clamped(_CARRY_OUT)),
    **vector("i32: i32 i32 m", v_cndmask_b32=lambda x, y, m: m.select(y, x)),
    **vector("i16: i16 i16 m", v_cndmask_b16=lambda x, y, m: m.select(y, x)),
}
SHORT: Final = {
    **vector("i16: i16", v_mov_b16=lambda x: x, v_not_b16=lambda x: ~x),
    **vector(
        "i16: i16 i16",
        v_add_nc_u16=lambda x, y: x + y,
        v_sub_nc_u16=lambda x, y: x - y,
        v_subrev_nc_u16=lambda x, y: y - x,
        v_add_nc_i16=lambda x, y: x + y,
        v_sub_nc_i16=lambda x, y: x - y,
        v_add_nc_u16_clamp=lambda x, y: x.emitter.call("i16", "uadd.sat", x, y),
        v_sub_nc_u16_clamp=lambda x, y: x.emitter.call("i16", "usub.sat", x, y),
        v_add_nc_i16_clamp=lambda x, y: x.emitter.call("i16", "sadd.sat", x, y),
        v_sub_nc_i16_clamp=lambda x, y: x.emitter.call("i16", "ssub.sat", x, y),
        v_mul_lo_u16=lambda x, y: x * y,
        v_max_u16=lambda x, y: x.umax(y),
        v_max_i16=lambda x, y: x.smax(y),
        v_min_u16=lambda x, y: x.umin(y),
        v_min_i16=lambda x, y: x.smin(y),
        v_lshlrev_b16=lambda x, y: y.shl(x),
        v_lshrrev_b16=lambda x, y: y.lshr(x),
        v_ashrrev_i16=lambda x, y: y.ashr(x),
        v_and_b16=lambda x, y: x & y,
        v_or_b16=lambda x, y: x | y,
        v_xor_b16=lambda x, y: x ^ y,
    ),
    **vector(
        "i16: i16 i16 i16",
        v_bitop3_b16=_any_function,
        v_mad_u16=lambda x, y, z: x * y + z,
        v_mad_i16=lambda x, y, z: x * y + z,
        v_mad_u16_clamp=lambda x, y, z: _mad_clamped(x, y, z, False),
        v_mad_i16_clamp=lambda x, y, z: _mad_clamped(x, y, z, True),
        v_min3_i16=lambda x, y, z: x.smin(y).smin(z),
        v_min3_u16=lambda x, y, z: x.umin(y).umin(z),
        v_max3_i16=lambda x, y, z: x.smax(y).smax(z),
        v_max3_u16=lambda x, y, z: x.umax(y).umax(z),
        v_med3_i16=lambda x, y, z: median(x, y, z, True),
        v_med3_u16=lambda x, y, z: median(x, y, z, False),
    ),
    **vector(
        "i32: i16 i16 i32",
        v_mad_u32_u16=lambda x, y, z: x.to("i32") * y.to("i32") + z,
        v_mad_i32_i16=lambda x, y, z: x.sext("i32") * y.sext("i32") + z,
    ),
    **vector("i32: i16 i16", v_pack_b32_f16=lambda x, y: x.to("i32") | y.to("i32").shl(16)),
    **vector(
        "i32: i16", v_cvt_i32_i16=lambda x: x.sext("i32"), v_cvt_u32_u16=lambda x: x.to("i32")
    ),
}
TABLE: Final[dict[str, Operation]] = {**BINARY, **UNARY, **TERNARY, **WIDE, **CARRY, **SHORT}

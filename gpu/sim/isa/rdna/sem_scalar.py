"""The scalar ALU: sections 16.1 to 16.4 (SOP2, SOPK, SOP1, SOPC) of AMD's RDNA3 manual."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from gpu.sim.isa.frames import Operation
from gpu.sim.isa.rdna.define import clz, ctz, extract, high_product, scalar
from gpu.sim.isa.values import Value, bits_of

Results = tuple[Value, Value]


def _nonzero(value: Value) -> Results:
    return value, value.ne(0)


def _overflow_add(x: Value, y: Value) -> Results:
    total = x + y
    return total, ((x ^ total) & (y ^ total)).icmp("slt", 0)


def _overflow_sub(x: Value, y: Value) -> Results:
    total = x - y
    return total, ((x ^ y) & (x ^ total)).icmp("slt", 0)


def _carry_add(x: Value, y: Value, carry: Value) -> Results:
    wide = x.to("i64") + y.to("i64") + carry.to("i64")
    return wide.to("i32"), wide.lshr(32).ne(0)


def _borrow_sub(x: Value, y: Value, borrow: Value) -> Results:
    wide = x.to("i64") - y.to("i64") - borrow.to("i64")
    return wide.to("i32"), wide.icmp("slt", 0)


def _shifted_add(count: int) -> Callable[[Value, Value], Results]:
    def build(x: Value, y: Value) -> Results:
        wide = x.to("i64").shl(count) + y.to("i64")
        return wide.to("i32"), wide.lshr(32).ne(0)

    return build


def _choose(predicate: str) -> Callable[[Value, Value], Results]:
    """The first source where it compares so with the second one, and whether it does."""

    def build(x: Value, y: Value) -> Results:
        first = x.icmp(predicate, y)
        return first.select(x, y), first

    return build


def _pack(low_shift: int, high_shift: int) -> Callable[[Value, Value], Value]:
    return lambda x, y: (x.lshr(low_shift) & 0xFFFF) | y.lshr(high_shift).shl(16)


def _bit_field(x: Value, y: Value, signed: bool) -> Results:
    offset = (y & (bits_of(x.kind) - 1)).to(x.kind)
    width = (y.lshr(16) & 0x7F).to(x.kind)
    return _nonzero(extract(x, offset, width, signed))


def _bit_mask(x: Value, y: Value, kind: str) -> Value:
    one = x.emitter.const(kind, 1)
    return (one.shl(x.to(kind)) - 1).shl(y.to(kind))


def _absolute_difference(x: Value, y: Value) -> Results:
    difference = x - y
    return _nonzero(difference.icmp("slt", 0).select(-difference, difference))


def _absolute(x: Value) -> Results:
    return _nonzero(x.icmp("slt", 0).select(-x, x))


def _count(x: Value, count: Value) -> Value:
    """A count of bits as 32 bits; -1 where the source has none."""
    return x.eq(0).select(count.emitter.const("i32", -1), count.to("i32"))


def _sign_run(x: Value) -> Value:
    bits = bits_of(x.kind)
    count = clz(x ^ x.ashr(bits - 1))
    return count.eq(bits).select(x.emitter.const("i32", -1), count.to("i32"))


def _set_bit(index: Value, old: Value, value: bool) -> Value:
    bit = old.like(1).shl(index.to(old.kind))
    return old | bit if value else old & ~bit


def _replicate(x: Value) -> Value:
    """Each bit of 32 twice."""
    wide = x.to("i64")
    for shift, mask in (
        *((16, 0x0000FFFF0000FFFF), (8, 0x00FF00FF00FF00FF), (4, 0x0F0F0F0F0F0F0F0F)),
        *((2, 0x3333333333333333), (1, 0x5555555555555555)),
    ):
        wide = (wide | wide.shl(shift)) & mask
    return wide | wide.shl(1)


def _quads(x: Value, spread: bool) -> Results:
    """A bit for each 4 bits that are not all zero, or those 4 bits all set."""
    marks = x | x.lshr(1)
    marks = marks | marks.lshr(2)
    pattern = 0x1111111111111111 & ((1 << bits_of(x.kind)) - 1)
    marks = marks & pattern
    if spread:
        return _nonzero(marks * 15)
    for shift, mask in (
        *((3, 0x0303030303030303), (6, 0x000F000F000F000F), (12, 0x000000FF000000FF)),
        (24, 0x000000000000FFFF),
    ):
        marks = (marks | marks.lshr(shift)) & (mask & ((1 << bits_of(x.kind)) - 1))
    return _nonzero(marks)


_LOGIC: Final[dict[str, Callable[[Value, Value], Value]]] = {
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "nand": lambda x, y: ~(x & y),
    "nor": lambda x, y: ~(x | y),
    "xnor": lambda x, y: ~(x ^ y),
    "and_not1": lambda x, y: x & ~y,
    "or_not1": lambda x, y: x | ~y,
    "and_not0": lambda x, y: ~x & y,
    "or_not0": lambda x, y: ~x | y,
}


def _with_exec(
    build: Callable[[Value, Value], Value], keep_old: bool
) -> Callable[..., tuple[Value, ...]]:
    """EXEC = build(source, EXEC); the destination gets the old EXEC or the new one."""

    def whole(x: Value, active: Value) -> tuple[Value, ...]:
        result = build(x, active)
        return (active if keep_old else result), result, result.ne(0)

    return whole


def _logic() -> Iterator[Operation]:
    for bits in ("32", "64"):
        kind = f"i{bits}"
        for name, build in _LOGIC.items():
            # Results: sdst, EXEC, SCC.
            signature = (kind, kind, "scc"), (kind, kind)
            saved = _with_exec(build, True)
            yield Operation(f"s_{name}_saveexec_b{bits}", *signature, saved, True)
            if name in ("and_not0", "and_not1"):
                written = _with_exec(build, False)
                yield Operation(f"s_{name}_wrexec_b{bits}", *signature, written, True)
            if not name.endswith("0"):
                yield Operation(
                    f"s_{name}_b{bits}",
                    *((kind, "scc"), (kind, kind)),
                    *(lambda x, y, build=build: _nonzero(build(x, y)), True),
                )


def _compares() -> Iterator[Operation]:
    names = {"eq": "eq", "lg": "ne", "gt": "gt", "ge": "ge", "lt": "lt", "le": "le"}
    for sign in "iu":
        for name, predicate in names.items():
            prefix = "" if predicate in ("eq", "ne") else "s" if sign == "i" else "u"
            for verb in ("cmp", "cmpk"):
                yield Operation(
                    f"s_{verb}_{name}_{sign}32",
                    *(("scc",), ("i32", "i32")),
                    *(lambda x, y, p=prefix + predicate: x.icmp(p, y), True),
                )
    for name, predicate in (("eq", "eq"), ("lg", "ne")):
        yield Operation(
            f"s_cmp_{name}_u64",
            *(("scc",), ("i64", "i64")),
            *(lambda x, y, p=predicate: x.icmp(p, y), True),
        )
    for bits in ("32", "64"):
        for value in (0, 1):
            yield Operation(
                f"s_bitcmp{value}_b{bits}",
                *(("scc",), (f"i{bits}", "i32")),
                *(lambda x, y, v=value: (x.lshr(y) & 1).eq(v), True),
            )


def _by_width() -> Iterator[tuple[str, Operation]]:
    """Operations that exist for 32 and 64 bits alike."""
    for bits in ("32", "64"):
        kind = f"i{bits}"
        tables = (
            scalar(
                f"{kind} scc: {kind} i32",
                **{
                    f"s_lshl_b{bits}": lambda x, y: _nonzero(x.shl(y)),
                    f"s_lshr_b{bits}": lambda x, y: _nonzero(x.lshr(y)),
                    f"s_ashr_i{bits}": lambda x, y: _nonzero(x.ashr(y)),
                    f"s_bfe_u{bits}": lambda x, y: _bit_field(x, y, False),
                    f"s_bfe_i{bits}": lambda x, y: _bit_field(x, y, True),
                },
            ),
            scalar(
                f"{kind}: i32 i32", **{f"s_bfm_b{bits}": lambda x, y, k=kind: _bit_mask(x, y, k)}
            ),
            scalar(
                f"{kind}: {kind} {kind} scc",
                **{f"s_cselect_b{bits}": lambda x, y, c: c.select(x, y)},
                # The destination's old value is the last source.
                **{f"s_cmov_b{bits}": lambda x, old, c: c.select(x, old)},
            ),
            scalar(
                f"{kind}: {kind}",
                **{f"s_mov_b{bits}": lambda x: x},
                **{f"s_brev_b{bits}": lambda x: x.unary("bitreverse")},
            ),
            scalar(
                f"i32: {kind}",
                **{f"s_ctz_i32_b{bits}": lambda x: _count(x, ctz(x))},
                **{f"s_ff0_i32_b{bits}": lambda x: _count(~x, ctz(~x))},
                **{f"s_clz_i32_u{bits}": lambda x: _count(x, clz(x))},
                **{"s_cls_i32" if bits == "32" else "s_cls_i32_i64": _sign_run},
            ),
            scalar(
                f"i32 scc: {kind}",
                **{f"s_bcnt0_i32_b{bits}": lambda x: _nonzero((~x).unary("ctpop").to("i32"))},
                **{f"s_bcnt1_i32_b{bits}": lambda x: _nonzero(x.unary("ctpop").to("i32"))},
            ),
            scalar(
                f"{kind} scc: {kind}",
                **{f"s_not_b{bits}": lambda x: _nonzero(~x)},
                **{f"s_quadmask_b{bits}": lambda x: _quads(x, False)},
                **{f"s_wqm_b{bits}": lambda x: _quads(x, True)},
            ),
            scalar(
                f"{kind}: i32 {kind}",
                **{f"s_bitset0_b{bits}": lambda x, old: _set_bit(x, old, False)},
                **{f"s_bitset1_b{bits}": lambda x, old: _set_bit(x, old, True)},
            ),
        )
        for table in tables:
            yield from table.items()


TABLE: Final[dict[str, Operation]] = {
    **{operation.name: operation for operation in (*_logic(), *_compares())},
    **dict(_by_width()),
    **scalar(
        "i32 scc: i32 i32",
        s_add_u32=lambda x, y: (x + y, (x + y).icmp("ult", x)),
        s_sub_u32=lambda x, y: (x - y, x.icmp("ult", y)),
        s_add_i32=_overflow_add,
        s_sub_i32=_overflow_sub,
        s_absdiff_i32=_absolute_difference,
        s_lshl1_add_u32=_shifted_add(1),
        s_lshl2_add_u32=_shifted_add(2),
        s_lshl3_add_u32=_shifted_add(3),
        s_lshl4_add_u32=_shifted_add(4),
        s_min_i32=_choose("slt"),
        s_min_u32=_choose("ult"),
        s_max_i32=_choose("sge"),
        s_max_u32=_choose("uge"),
    ),
    **scalar("i32 scc: i32 i32 scc", s_addc_u32=_carry_add, s_subb_u32=_borrow_sub),
    **scalar(
        "i32: i32 i32",
        s_mul_i32=lambda x, y: x * y,
        s_mul_hi_u32=lambda x, y: high_product(x, y, False),
        s_mul_hi_i32=lambda x, y: high_product(x, y, True),
        s_pack_ll_b32_b16=_pack(0, 0),
        s_pack_lh_b32_b16=_pack(0, 16),
        s_pack_hh_b32_b16=_pack(16, 16),
        s_pack_hl_b32_b16=_pack(16, 0),
    ),
    **scalar(
        "i32: i32",
        s_movk_i32=lambda x: x,
        s_sext_i32_i8=lambda x: x.to("i8").sext("i32"),
        s_sext_i32_i16=lambda x: x.to("i16").sext("i32"),
    ),
    **scalar("i32: i32 i32 scc", s_cmovk_i32=lambda x, old, c: c.select(x, old)),
    # SOPK: the destination's old value is the last source.
    **scalar("i32 scc: i32 i32", s_addk_i32=_overflow_add),
    **scalar("i32: i32 i32 ", s_mulk_i32=lambda x, old: x * old),
    **scalar(
        "i64: i64 i64",
        s_add_nc_u64=lambda x, y: x + y,
        s_sub_nc_u64=lambda x, y: x - y,
        s_mul_u64=lambda x, y: x * y,
    ),
    **scalar("i64: i32", s_bitreplicate_b64_b32=_replicate),
    **scalar("i32 scc: i32", s_abs_i32=_absolute),
}

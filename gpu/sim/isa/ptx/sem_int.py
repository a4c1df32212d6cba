"""What integer instructions compute: "PTX ISA", sections 9.7.1, 9.7.2 and 9.7.8."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from gpu.sim.isa.ptx.parts import clamped_shift, mask_below
from gpu.sim.isa.values import Value, bits_of

Build = Callable[..., Value]


def extend(value: Value, kind: str, signed: bool) -> Value:
    """An integer in a wider type."""
    return value.sext(kind) if signed else value.to(kind)


def product_high(x: Value, y: Value, signed: bool) -> Value:
    """The upper half of a product."""
    bits = bits_of(x.kind)
    if bits < 64:
        wide = extend(x, f"i{2 * bits}", signed) * extend(y, f"i{2 * bits}", signed)
        return wide.lshr(bits).to(x.kind)
    low_x, low_y = x & 0xFFFFFFFF, y & 0xFFFFFFFF
    high_x, high_y = x.lshr(32), y.lshr(32)
    first = low_x * low_y
    middle = high_x * low_y + first.lshr(32)
    other = low_x * high_y + (middle & 0xFFFFFFFF)
    high = high_x * high_y + middle.lshr(32) + other.lshr(32)
    if signed:
        high = high - (x.ashr(63) & y) - (y.ashr(63) & x)
    return high


def product_wide(x: Value, y: Value, signed: bool) -> Value:
    """The whole product of two integers."""
    kind = f"i{2 * bits_of(x.kind)}"
    return extend(x, kind, signed) * extend(y, kind, signed)


def product24(x: Value, y: Value, signed: bool, high: bool) -> Value:
    """A product of 24-bit integers: bits 31..0 or 47..16."""
    parts = []
    for value in (x, y):
        moved = value.shl(8)
        parts.append(moved.ashr(8) if signed else moved.lshr(8))
    if not high:
        return parts[0] * parts[1]
    return product_wide(parts[0], parts[1], signed).lshr(16).to("i32")


def quotient(x: Value, y: Value, signed: bool, remainder: bool) -> Value:
    """Division; by zero it gives all ones, and `x` as the remainder, as hardware does."""
    bits = bits_of(x.kind)
    zero = y.eq(0)
    if bits == 64:
        safe = zero.select(1, y)
        if signed:  # the smallest number by -1 must not trap
            negative = y.eq(-1)
            safe = negative.select(1, safe)
            raw = _divided(x, safe, "sdiv")
            found = negative.select(-x, raw)
        else:
            found = _divided(x, safe, "udiv")
    else:
        wide = [extend(value, "i32", signed) for value in (x, y)]
        floats = [v.from_signed("f64") if signed else v.from_unsigned("f64") for v in wide]
        ratio = floats[0] / zero.select(1.0, floats[1])
        found = ratio.saturated("i64", True).to(x.kind)
    if remainder:
        return zero.select(x, x - found * y)
    return zero.select(-1, found)


def _divided(x: Value, y: Value, instruction: str) -> Value:
    text = f"{instruction} {x.emitter.type(x.kind)} {x.text}, {y.text}"
    return x.emitter.value(x.kind, text)


def saturated_sum(x: Value, y: Value, subtract: bool) -> Value:
    """A signed sum or difference that stays within its type."""
    return x.emitter.call(x.kind, "ssub.sat" if subtract else "sadd.sat", x, y)


def sad(x: Value, y: Value, z: Value, signed: bool) -> Value:
    """``z + |x - y|``."""
    larger = x.smax(y) if signed else x.umax(y)
    smaller = x.smin(y) if signed else x.umin(y)
    return z + (larger - smaller)


def bit_field(value: Value, position: Value, length: Value, signed: bool) -> Value:
    """BFE: the field's sign bit also fills what lies past the value's end."""
    bits = bits_of(value.kind)
    start, count = ((v & 0xFF).to(value.kind) for v in (position, length))
    moved = start.icmp("uge", bits).select(0, value.lshr(start.umin(bits - 1)))
    kept = count.icmp("uge", bits).select(-1, mask_below(count))
    if not signed:
        return moved & kept
    last = (start + count - 1).umin(bits - 1)
    sign = (value.lshr(last) & 1).ne(0) & count.ne(0)
    # Bits that lie past the end of the value are copies of its sign, too.
    room = (value.like(bits) - start).smax(0)
    valid = kept & mask_below(room)
    result = (moved & valid) | sign.select(~valid, 0)
    return count.eq(0).select(0, result)


def insert_field(x: Value, y: Value, position: Value, length: Value) -> Value:
    """BFI: the low bits of `x` put into `y`."""
    bits = bits_of(x.kind)
    start, count = ((v & 0xFF).to(x.kind) for v in (position, length))
    mask = mask_below(count)
    placed = start.icmp("uge", bits).select(0, mask.shl(start.umin(bits - 1)))
    moved = start.icmp("uge", bits).select(0, x.shl(start.umin(bits - 1)))
    return (y & ~placed) | (moved & placed)


def find_bit(x: Value, signed: bool, shift: bool) -> Value:
    """BFIND: the highest bit that is not the sign's; -1 where there is none."""
    bits = bits_of(x.kind)
    pattern = x.ashr(bits - 1) ^ x if signed else x
    zeros = leading_zeros(pattern)
    place = zeros if shift else zeros.like(bits - 1) - zeros
    return pattern.eq(0).select(-1, place).to("i32")


def leading_zeros(x: Value) -> Value:
    """The width for 0."""
    return x.emitter.call_with_flag("ctlz", x, False)


def find_nth(mask: Value, base: Value, offset: Value) -> Value:
    """FNS: the place of the set bit that is `offset` ones from `base` on; -1 for none."""
    up = offset.icmp("sgt", 0)
    wanted = up.select(offset, -offset)
    inside = base.icmp("ult", 32)
    start = inside.select(base, 0)
    at_base = (mask.lshr(start) & 1).ne(0) & offset.eq(0)
    result = at_base.select(base, -1)
    for number in range(32):
        place = base.like(number)
        upward = up & start.icmp("ule", number)
        downward = offset.icmp("slt", 0) & start.icmp("uge", number)
        above = mask.lshr(start) & mask_below(place - start + 1)
        below = mask.lshr(number) & mask_below(start - place + 1)
        counted = up.select(above, below).unary("ctpop")
        bit = (mask.lshr(number) & 1).ne(0)
        result = (bit & (upward | downward) & counted.eq(wanted)).select(place, result)
    return inside.select(result, -1)


def logic3(table: int) -> Build:
    """LOP3: any function of three bits, as its table says."""

    def build(x: Value, y: Value, z: Value) -> Value:
        total: Value | None = None
        for row in range(8):
            if not table >> row & 1:
                continue
            term = (x if row & 4 else ~x) & (y if row & 2 else ~y) & (z if row & 1 else ~z)
            total = term if total is None else total | term
        return total if total is not None else x & 0

    return build


def funnel(left: bool, wrap: bool) -> Build:
    """SHF: a shift of two words, low and high."""

    def build(low: Value, high: Value, count: Value) -> Value:
        amount = (count & 31) if wrap else count.umin(32)
        wide = low.to("i64") | high.to("i64").shl(32)
        steps = amount.to("i64")
        if left:
            return wide.shl(steps).lshr(32).to("i32")
        return wide.lshr(steps).to("i32")

    return build


def permute(x: Value, y: Value, selector: Value) -> Value:
    """PRMT: bytes by four selectors; bit 3 of one copies the byte's sign."""
    wide = x.to("i64") | y.to("i64").shl(32)
    result: Value | None = None
    for number in range(4):
        pick = selector.lshr(4 * number)
        byte = wide.lshr((pick & 7).shl(3).to("i64")).to("i32") & 0xFF
        sign = byte.shl(24).ashr(31) & 0xFF
        chosen = (pick & 8).ne(0).select(sign, byte).shl(8 * number)
        result = chosen if result is None else result | chosen
    assert result is not None
    return result


def permute_mode(mode: str) -> Build:
    """PRMT with a mode: the low two bits of the selector choose among four permutations."""
    tables = {
        "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
        "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
        "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
        "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
        "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
        "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
    }

    def build(x: Value, y: Value, selector: Value) -> Value:
        which = selector & 3
        table = selector.like(tables[mode][3])
        for number in range(3):
            table = which.eq(number).select(tables[mode][number], table)
        return permute(x, y, table)

    return build


def dot(x: Value, y: Value, z: Value, signs: tuple[bool, bool]) -> Value:
    """DP4A: the sum of products of four bytes."""
    total = z
    for number in range(4):
        parts = []
        for value, signed in zip((x, y), signs, strict=True):
            high = value.shl(24 - 8 * number)
            parts.append(high.ashr(24) if signed else high.lshr(24))
        total = total + parts[0] * parts[1]
    return total


def dot2(x: Value, y: Value, z: Value, signs: tuple[bool, bool], high: bool) -> Value:
    """DP2A: products of two 16-bit values with two of four bytes."""
    total = z
    for number in range(2):
        word = x.shl(16 - 16 * number)
        wide = word.ashr(16) if signs[0] else word.lshr(16)
        moved = y.shl(24 - 8 * (number + 2 * high))
        byte = moved.ashr(24) if signs[1] else moved.lshr(24)
        total = total + wide * byte
    return total


def bit_mask(position: Value, width: Value, wrap: bool) -> Value:
    """BMSK: `width` ones from `position` on."""
    if wrap:
        return mask_below(width & 31).shl(position & 31)
    start = position.umin(32)
    placed = mask_below(width.umin(32)).shl(start.umin(31))
    return start.icmp("uge", 32).select(0, placed)


def extend_from(x: Value, width: Value, signed: bool, wrap: bool) -> Value:
    """SZEXT: the low `width` bits, extended."""
    count = width & 31 if wrap else width.umin(32)
    kept = x & mask_below(count)
    if not signed:
        return kept
    sign = (x.lshr((count - 1).umin(31)) & 1).ne(0) & count.ne(0)
    return sign.select(kept | ~mask_below(count), kept)


SHIFTS: Final[dict[str, Build]] = {
    "shl": partial(clamped_shift, name="shl"),
    "shr.u": partial(clamped_shift, name="lshr"),
    "shr.s": partial(clamped_shift, name="ashr"),
}
"""Shifts by any count."""

"""WMMA: products of 16x16 matrices that a wave holds together (section 7.9 of AMD's RDNA3 manual).

In a wave32, lane l < 16 holds row l of A and column l of B, elements packed two or four to a
register, and lane l + 16 holds them again. Register i of C and D holds element (2 i + l / 16, l %
16), with 16 bits in the half of the register that OP_SEL[2] names; the other half is kept. Sums run
over k in order, each step fused; hardware does not say how it rounds in between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpu.sim.isa import frames
from gpu.sim.isa.rdna.formats import VGPR
from gpu.sim.isa.rdna.translate import Context, Untranslatable
from gpu.sim.isa.values import Emitter, Value

_SIZE: Final = 16
_ROWS: Final = 8
Element = Callable[[Value, int], Value]


def _row(e: Emitter, slot: str, number: int) -> Value:
    place = frames.behind(e, frames.row(e, slot), number * e.wave.row)
    return e.value("i32", f"load {e.type('i32')}, ptr {place}, align {e.wave.row}")


def _spread_rows(e: Emitter, packed: Value, row: int) -> Value:
    """Lanes 0..15 get what lane `row` has, the others what lane `row` + 1 has."""
    kind = e.type("i32")
    picks = [row] * _SIZE + [row + 1] * _SIZE
    mask = ", ".join(f"i32 {lane}" for lane in picks)
    text = f"shufflevector {kind} {packed.text}, {kind} poison, <{e.lanes} x i32> <{mask}>"
    return e.value("i32", text)


def _matrix(
    per_register: int,
    left: Element,
    right: Element,
    step: Callable[..., Value],
    start: Callable[[Value], Value],
    finish: Callable[[Value, Value], Value],
) -> Callable[[Emitter], None]:
    """D = A B + C.

    Elements of A and B are taken out of registers by `left` and `right`, those of C by `start`;
    `finish` takes a sum and what the register of D held before.
    """

    def build(e: Emitter) -> None:
        count = _SIZE // per_register
        a = [_row(e, "a", number) for number in range(count)]
        columns = [right(_row(e, "b", k // per_register), k % per_register) for k in range(_SIZE)]
        sums = []
        for number in range(_ROWS):
            total = start(_row(e, "c", number))
            for register in range(count):
                rows = _spread_rows(e, a[register], 2 * number)
                for place in range(per_register):
                    column = columns[register * per_register + place]
                    total = step(left(rows, place), column, total)
            sums.append(total)
        for number, total in enumerate(sums):
            target = frames.behind(e, frames.row(e, "d"), number * e.wave.row)
            finished = finish(total, _row(e, "d", number))
            frames.store_row(e, target, finished, masked=False)
        frames.next_record(e)

    return build


def _half(value: Value, place: int) -> Value:
    return value.lshr(16 * place).to("i16").bits("f16").to("f32")


def _brain(value: Value, place: int) -> Value:
    """A bfloat16 as a single."""
    high = value.shl(16) if place == 0 else value & (0xFFFF0000 - (1 << 32))
    return high.bits("f32")


def _byte(signed: bool) -> Element:
    def take(value: Value, place: int) -> Value:
        high = value.shl(24 - 8 * place)
        return high.ashr(24) if signed else high.lshr(24)

    return take


def _fused(x: Value, y: Value, z: Value) -> Value:
    return x.emitter.call("f32", "fma", x, y, z)


def _sum(x: Value, y: Value, z: Value) -> Value:
    return x * y + z


def _whole(total: Value, old: Value) -> Value:
    del old
    return total.bits()


def _rounded_half(total: Value) -> Value:
    return total.to("f16").bits().to("i32")


def _rounded_brain(total: Value) -> Value:
    """A single as a bfloat16, to the nearest; NaN stays one."""
    pattern = total.bits()
    rounded = (pattern + 0x7FFF + (pattern.lshr(16) & 1)).lshr(16)
    return total.is_nan().select(pattern.lshr(16) | 0x40, rounded)


def _into_half(round_: Callable[[Value], Value], place: int) -> Callable[[Value, Value], Value]:
    def finish(total: Value, old: Value) -> Value:
        kept = 0xFFFF if place else 0xFFFF0000 - (1 << 32)
        return (old & kept) | round_(total).shl(16 * place)

    return finish


def _narrow(
    element: Element, round_: Callable[[Value], Value], place: int
) -> Callable[[Emitter], None]:
    """A product whose sums have 16 bits, in one half of registers."""
    return _matrix(
        2, element, element, _fused, lambda c: element(c, place), _into_half(round_, place)
    )


def _single(x: Value) -> Value:
    return x.bits("f32")


BUILDERS: Final[dict[str, Callable[[Emitter], None]]] = {
    "v_wmma_f32_16x16x16_f16": _matrix(2, _half, _half, _fused, _single, _whole),
    "v_wmma_f32_16x16x16_bf16": _matrix(2, _brain, _brain, _fused, _single, _whole),
    **{f"v_wmma_f16_16x16x16_f16_{n}": _narrow(_half, _rounded_half, n) for n in (0, 1)},
    **{f"v_wmma_bf16_16x16x16_bf16_{n}": _narrow(_brain, _rounded_brain, n) for n in (0, 1)},
    **{
        f"v_wmma_i32_16x16x16_iu8_{signs}": _matrix(
            4, _byte(bool(signs & 1)), _byte(bool(signs & 2)), _sum, Value.bits, _whole
        )
        for signs in range(4)
    },
}
"""Operations by name: how each is written, on rows. The last number says which sides are signed,
or which half of a register holds 16 bits of C and D."""


def translate_matrix(context: Context) -> None:
    """Adds the record of a WMMA instruction."""
    instruction = context.instruction
    name, fields = instruction.name, instruction.fields
    if context.wave.lanes != 32:
        raise Untranslatable(f"{name} in waves of {context.wave.lanes} lanes has no semantics here")
    integer = name.endswith("iu8")
    narrow = not integer and name.split("_")[2] != "f32"
    if fields["clamp"] or fields["neg_hi"] or fields["neg"] & (4 if integer else 7):
        raise Untranslatable(f"{name} with these modifiers has no semantics here")
    size = 4 if integer else 8
    places = {"a": ("src0", size), "b": ("src1", size), "c": ("src2", _ROWS)}
    operands = {}
    for slot, (field, count) in places.items():
        if fields[field] < VGPR:
            if slot != "c" or fields[field] != 128:
                raise Untranslatable(f"{name} with source {fields[field]} has no semantics here")
            operands[slot] = context.rows.constant((0,) * _ROWS)
        else:
            operands[slot] = context.rows.vector(fields[field] - VGPR, count)
    target = context.rows.vector(fields["vdst"], _ROWS)
    if integer:
        name = f"{name}_{fields['neg'] & 3}"
    elif narrow:
        name = f"{name}_{fields['opsel'] >> 2 & 1}"
    context.emit(name, d=target, **operands)

"""WMMA: products of 16x16 matrices that a wave holds together (section 7.9 of AMD's RDNA3 manual).

In a wave32, lane l < 16 holds row l of A and column l of B, elements packed two or four to a
register, and lane l + 16 holds them again. Register i of C and D holds element (2 i + l / 16, l %
16). Sums run over k in order, each step fused; hardware does not say how it rounds in between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpu.sim.isa import frames, layout
from gpu.sim.isa.rdna.formats import VGPR
from gpu.sim.isa.rdna.translate import Context, Untranslatable
from gpu.sim.isa.values import Emitter, Value

_SIZE: Final = 16
_ROWS: Final = 8
Element = Callable[[Value, int], Value]


def _row(e: Emitter, slot: str, number: int) -> Value:
    place = frames.behind(e, frames.row(e, slot), number * layout.ROW)
    return e.value("i32", f"load {e.type('i32')}, ptr {place}, align {layout.ROW}")


def _spread_rows(e: Emitter, packed: Value, row: int) -> Value:
    """Lanes 0..15 get what lane `row` has, the others what lane `row` + 1 has."""
    kind = e.type("i32")
    picks = [row] * _SIZE + [row + 1] * _SIZE
    mask = ", ".join(f"i32 {lane}" for lane in picks)
    text = f"shufflevector {kind} {packed.text}, {kind} poison, <{e.lanes} x i32> <{mask}>"
    return e.value("i32", text)


def _matrix(
    per_register: int, left: Element, right: Element, result: str, step: Callable[..., Value]
) -> Callable[[Emitter], None]:
    """D = A B + C; elements of A and B are taken out of registers by `left` and `right`."""

    def build(e: Emitter) -> None:
        count = _SIZE // per_register
        a = [_row(e, "a", number) for number in range(count)]
        columns = [right(_row(e, "b", k // per_register), k % per_register) for k in range(_SIZE)]
        sums = []
        for number in range(_ROWS):
            total = _row(e, "c", number).bits(result)
            for register in range(count):
                rows = _spread_rows(e, a[register], 2 * number)
                for place in range(per_register):
                    column = columns[register * per_register + place]
                    total = step(left(rows, place), column, total)
            sums.append(total)
        for number, total in enumerate(sums):
            target = frames.behind(e, frames.row(e, "d"), number * layout.ROW)
            frames.store_row(e, target, total.bits(), masked=False)
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


BUILDERS: Final[dict[str, Callable[[Emitter], None]]] = {
    "v_wmma_f32_16x16x16_f16": _matrix(2, _half, _half, "f32", _fused),
    "v_wmma_f32_16x16x16_bf16": _matrix(2, _brain, _brain, "f32", _fused),
    **{
        f"v_wmma_i32_16x16x16_iu8_{signs}": _matrix(
            4, _byte(bool(signs & 1)), _byte(bool(signs & 2)), "i32", _sum
        )
        for signs in range(4)
    },
}
"""Operations by name: how each is written, on rows. The last number says which sides are signed."""


def translate_matrix(context: Context) -> None:
    """Adds the record of a WMMA instruction."""
    instruction = context.instruction
    name, fields = instruction.name, instruction.fields
    integer = name.endswith("iu8")
    signs = fields["neg"] & 3
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
    context.emit(f"{name}_{signs}" if integer else name, d=target, **operands)

"""Matrix instructions of a warp: "PTX ISA", section 9.7.14, MMA and LDMATRIX.

Lane ``4 g + t`` holds of A, in registers of two 16-bit elements: rows g and g + 8, columns 2t and
2t + 1 and, for 16 columns, 2t + 8 and 2t + 9; of B the same places of column g; of C and D rows g
and g + 8, columns 2t and 2t + 1. Elements of 32 bits are one to a register, in columns t and t + 4,
those of 8 bits four, in columns 4t to 4t + 3 and 16 further. Sums are exact here and rounded or
saturated once; what hardware does in between is not documented. Sums of integers wrap otherwise.
"""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

from gpu.sim.isa import frames, layout
from gpu.sim.isa.ptx import parts, rows, wave
from gpu.sim.isa.ptx.context import Context, Handler
from gpu.sim.isa.ptx.memory import LOADED, gather
from gpu.sim.isa.ptx.resolve import SHARED, Access, address_of, careful
from gpu.sim.isa.ptx.syntax import Operand, Pack
from gpu.sim.isa.ptx.translate_memory import locate
from gpu.sim.isa.values import Emitter, Value

_ALL_LANES: Final = 0xFFFFFFFF
_GROUPS: Final = 4  # lanes of a row


class Shape(NamedTuple):
    """Kinds of a product: of the elements of A and of B, and of the sums."""

    columns: int
    element: str
    other: str
    result: str
    saturates: bool = False

    @property
    def per_register(self) -> int:
        """Elements of a register."""
        return {"tf32": 1, "s8": 4, "u8": 4}.get(self.element, 2)

    @property
    def registers(self) -> tuple[int, int, int]:
        """Registers of A, of B, of C."""
        of_b = self.columns // (_GROUPS * self.per_register)
        return 2 * of_b, of_b, 2 if self.result == "f16" else 4

    @property
    def name(self) -> str:
        """Of the native function."""
        tail = "_sat" if self.saturates else ""
        return f"mma_{self.columns}_{self.element}_{self.other}_{self.result}{tail}"


_SHAPES: Final = {
    ("m16n8k16", "f16"): 16,
    ("m16n8k8", "f16"): 8,
    ("m16n8k16", "bf16"): 16,
    ("m16n8k8", "bf16"): 8,
    ("m16n8k8", "tf32"): 8,
    ("m16n8k4", "tf32"): 4,
    **{(f"m16n8k{columns}", kind): columns for columns in (16, 32) for kind in ("s8", "u8")},
}
_SUMS: Final = {"f16": ("f32", "f16"), "s8": ("s32",), "u8": ("s32",)}


def _shuffled(e: Emitter, value: Value, lanes: list[int]) -> Value:
    """Each lane gets the value of a lane that is known here."""
    kind = e.type(value.kind)
    picks = ", ".join(f"i32 {lane}" for lane in lanes)
    text = f"shufflevector {kind} {value.text}, {kind} poison, <{e.lanes} x i32> <{picks}>"
    return e.value(value.kind, text)


def _elements(word: Value, kind: str) -> list[Value]:
    """The numbers of a register: integers, or doubles."""
    if kind in ("s8", "u8"):
        bytes_ = [word.shl(24 - 8 * number) for number in range(4)]
        return [each.ashr(24) if kind == "s8" else each.lshr(24) for each in bytes_]
    if kind == "tf32":
        return [(word & ~0x1FFF).bits("f32").to("f64")]
    if kind == "f16":
        return [half.to("f64") for half in parts.halves(word, "f16")]
    return [parts.widen(half).to("f64") for half in parts.halves(word, "i16")]


def _row(e: Emitter, slot: str, number: int) -> Value:
    return rows.load(e, frames.behind(e, frames.row(e, slot), number * wave.ROW), "i32")


def product(shape: Shape) -> str:
    """The module of ``d = a b + c``; each operand is rows one behind the other."""
    e = Emitter(wave.LANES)
    of_a, of_b, of_c = shape.registers
    left = [_row(e, "a", number) for number in range(of_a)]
    right = [_row(e, "b", number) for number in range(of_b)]
    before = [_row(e, "c", number) for number in range(of_c)]
    sums = _accumulators(before, shape)
    for source in range(_GROUPS):
        of_row = [lane // _GROUPS * _GROUPS + source for lane in range(e.lanes)]
        for part in range(of_b):
            heights = [
                _elements(_shuffled(e, left[2 * part + upper], of_row), shape.element)
                for upper in range(2)
            ]
            for column in range(2):
                of_column = [
                    (2 * (lane % _GROUPS) + column) * _GROUPS + source for lane in range(e.lanes)
                ]
                numbers = _elements(_shuffled(e, right[part], of_column), shape.other)
                for upper in range(2):
                    place = 2 * upper + column
                    for x, y in zip(heights[upper], numbers, strict=True):
                        term = (x * y).sext("i64") if shape.saturates else x * y
                        sums[place] = sums[place] + term
    for number, word in enumerate(_packed(sums, shape)):
        target = frames.behind(e, frames.row(e, "d"), number * wave.ROW)
        rows.store(e, target, word)
    frames.next_record(e)
    return rows.function(shape.name, e)


def _accumulators(words: list[Value], shape: Shape) -> list[Value]:
    if shape.result == "s32":
        return [word.sext("i64") if shape.saturates else word for word in words]
    if shape.result == "f32":
        return [word.bits("f32").to("f64") for word in words]
    return [half.to("f64") for word in words for half in parts.halves(word, "f16")]


def _packed(sums: list[Value], shape: Shape) -> list[Value]:
    if shape.saturates:
        return [total.smax(-1 << 31).smin((1 << 31) - 1).to("i32") for total in sums]
    if shape.result == "s32":
        return sums
    if shape.result == "f32":
        return [parts.canonical(total.to("f32")).bits() for total in sums]
    halves = [parts.canonical(parts.half_of(total)) for total in sums]
    return [parts.both(halves[0], halves[1]), parts.both(halves[2], halves[3])]


def load_matrix(address: str, count: int, transposed: bool) -> str:
    """The module of LDMATRIX: rows of 16 bytes, whose addresses the first lanes hold."""
    e = Emitter(wave.LANES)
    given = address_of(e, address)
    own = [lane % (8 * count) for lane in range(e.lanes)]
    pointers = careful(e, Access(SHARED, 16, layout.READ), _shuffled(e, given, own))
    kind = f"<{e.lanes} x ptr>"

    def at(lanes: list[int], offsets: list[int]) -> str:
        picks = ", ".join(f"i32 {lane}" for lane in lanes)
        mask = f"<{e.lanes} x i32> <{picks}>"
        chosen = e.raw(f"shufflevector {kind} {pointers}, {kind} poison, {mask}")
        steps = ", ".join(f"i64 {offset}" for offset in offsets)
        return e.raw(f"getelementptr i8, {kind} {chosen}, <{e.lanes} x i64> <{steps}>")

    everyone = range(e.lanes)
    values = []
    for number in range(count):
        if transposed:
            parts_of = [
                gather(
                    e,
                    at(
                        [8 * number + 2 * (lane % 4) + half for lane in everyone],
                        [2 * (lane // 4) for lane in everyone],
                    ),
                    "i16",
                )
                for half in range(2)
            ]
            values.append(parts.both(*parts_of))
        else:
            places = at(
                [8 * number + lane // 4 for lane in everyone],
                [4 * (lane % 4) for lane in everyone],
            )
            values.append(gather(e, places, "i32"))
    for slot, value in zip(LOADED, values, strict=False):
        rows.write(e, slot, value)
    frames.next_record(e)
    return rows.function(load_name(address, count, transposed), e)


def load_name(address: str, count: int, transposed: bool) -> str:
    """Of an LDMATRIX."""
    return f"ldmatrix_{address}_{count}{'_trans' if transposed else ''}"


def _together(context: Context) -> None:
    everyone = context.rows.constant("i32", _ALL_LANES)
    context.emit("warp_sync", a=everyone)


def _items(context: Context, operand: Operand, count: int) -> tuple[Operand, ...]:
    items = operand.items if isinstance(operand, Pack) else (operand,)
    if len(items) != count:
        raise context.error(f"{len(items)} registers, {count} are expected")
    return items


def _multiply(context: Context) -> None:
    """MMA: through rows that lie one behind the other."""
    found = context.instruction.parts
    shape = next((part for part in found if part.startswith("m16n8")), "")
    types, flags = context.parts("sync", "aligned", "row", "col", "satfinite", shape)
    result, left, right, before = types if len(types) == 4 else ("",) * 4
    columns = _SHAPES.get((shape, left))
    same = left == right or {left, right} == {"s8", "u8"}
    if columns is None or not same or result != before:
        raise context.error("this product of matrices has no semantics here")
    if result not in _SUMS.get(left, ("f32",)):
        raise context.error(f"sums of .{result} have no semantics here")
    saturates = "satfinite" in flags
    if saturates and result != "s32":
        raise context.error(".satfinite is for integers")
    how = Shape(columns, left, right, result, saturates)
    of_a, of_b, of_c = how.registers
    operands = context.arity(4)
    counts = (of_c, of_a, of_b, of_c)
    packs = [_items(context, *pair) for pair in zip(operands, counts, strict=True)]
    target, *sources = (context.temp(count) for count in counts)
    for start, pack in zip(sources, packs[1:], strict=True):
        for number, item in enumerate(pack):
            row = context.source(item, "i32")
            place = start + number * wave.ROW
            context.compute("mov", lambda x: x, [row], ["i32"], [place])
    _together(context)
    a, b, c = sources
    context.emit(how.name, partial(product, how), a=a, b=b, c=c, d=target)
    for number, item in enumerate(packs[0]):
        row = context.target(item, "i32")
        context.compute("mov", lambda x: x, [target + number * wave.ROW], ["i32"], [row])


def _load(context: Context) -> None:
    """LDMATRIX."""
    kind, flags = context.one_type(
        *("sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "shared::cta"),
        among=("b16",),
    )
    count = next((number for number in (1, 2, 4) if f"x{number}" in flags), 0)
    if not count or "m8n8" not in flags:
        raise context.error(f"ldmatrix of .{kind} in this form has no semantics here")
    operands = context.arity(2)
    _together(context)
    _, where, form = locate(context, {"shared"}, operands[1])
    for slot, item in zip(LOADED, _items(context, operands[0], count), strict=False):
        where[slot] = context.target(item, "i32")
    what = (form, count, "trans" in flags)
    context.emit(load_name(*what), partial(load_matrix, *what), **where)


HANDLERS: Final[dict[str, Handler]] = {"mma": _multiply, "ldmatrix": _load}
"""Matrix instructions; they are branched around where their guard does not hold."""

"""WMMA and MFMA: products of matrices that a wave holds together.

AMD, "RDNA3 Instruction Set Architecture", section 7.9, "RDNA4 Instruction Set Architecture",
section 7.12.2, "CDNA3 Instruction Set Architecture", chapter 7, and CDNA4's. Sums run over k in
order, each step fused; hardware does not say how it rounds in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

from gpu.sim.isa import frames
from gpu.sim.isa.rdna.float_parts import brain_of
from gpu.sim.isa.rdna.formats import VGPR
from gpu.sim.isa.rdna.sem_fp8 import FORMATS, as_single
from gpu.sim.isa.rdna.translate import Context, Untranslatable
from gpu.sim.isa.values import Emitter, Value

_SIZE: Final = 16
Element = Callable[[Value, int], Value]
Pick = Callable[[int], int]


class Layout(NamedTuple):
    """Where elements of matrices are.

    Attributes:
        depth: columns of A and rows of B, k.
        place: of a k: which `side` lanes have it, in which register, and how many elements from
            bit 0.
        rows: of a register of C and D: its row in the first `side` lanes, and in those behind.
        column: where a lane finds its column of B, by which `side` lanes have it and the lane.
        packed: whether C and D have two rows of 16 bits in a register, else one, of 32 or of 16.
        side: rows of A, C and D, and columns of B, C and D.
        sums: elements of C and D that a lane has.
        six: whether the bytes that the elements are lie in 6 bits each.
    """

    depth: int
    place: Callable[[int], tuple[int, int, int]]
    rows: Callable[[int], tuple[int, ...]]
    column: Callable[[int, int], int]
    packed: bool = False
    side: int = _SIZE
    sums: int = 8
    six: bool = False


def _rdna3(per_register: int) -> Layout:
    """Lane l < 16 holds row l of A and column l of B, and lane l + 16 holds them again.

    Register i of C and D holds element (2 i + l / 16, l % 16), with 16 bits in the half of the
    register that OP_SEL[2] names; the other half is kept.
    """
    return Layout(
        _SIZE,
        lambda k: (0, k // per_register, k % per_register),
        lambda n: (2 * n, 2 * n + 1),
        lambda half, lane: lane,
    )


def _rdna4(bits: int, depth: int = _SIZE, packed: bool = False) -> Layout:
    """Each element is in one lane: a bit of k says in which half of the wave.

    Register i of C and D holds element (i + 8 (l / 16), l % 16); those of 16 bits are packed.
    """
    wide = {
        16: lambda k: (k >> 2 & 1, k >> 2 & 2 | k >> 1 & 1, k & 1),
        8: lambda k: (k >> 3, k >> 2 & 1, k & 3),
        4: lambda k: (k // (depth // 2), k % (depth // 2) >> 3, k & 7),
    }
    return Layout(
        depth,
        wide[bits],
        lambda n: (n, n + 8),
        lambda half, lane: _SIZE * half + lane % _SIZE,
        packed,
    )


def _cdna(bits: int, side: int, depth: int) -> Layout:
    """Each element is in one lane, whose number says which row or column, and which run of k.

    Four registers of C and D hold rows that follow each other; lanes behind have the next four.
    """
    groups = 64 // side
    run, per_register = depth // groups, 32 // bits
    return Layout(
        depth,
        lambda k: (k // run, k % run // per_register, k % per_register),
        lambda n: tuple(4 * (groups * (n // 4) + group) + n % 4 for group in range(groups)),
        lambda group, lane: side * group + lane % side,
        side=side,
        sums=side * side // 64,
    )


def _bytes_of_sixes(rows: list[Value]) -> list[Value]:
    """Registers with four numbers of 6 bits each, a byte for one, of those that lie together."""
    found = []
    for first in range(0, 32 * len(rows), 24):
        low, bit = rows[first // 32], first % 32
        together = low.lshr(bit)
        if bit > 8:
            together = together | rows[first // 32 + 1].shl(32 - bit)
        parts = [together.lshr(6 * n) & 63 for n in range(4)]
        found.append(parts[0] | parts[1].shl(8) | parts[2].shl(16) | parts[3].shl(24))
    return found


def _row(e: Emitter, slot: str, number: int) -> Value:
    place = frames.behind(e, frames.row(e, slot), number * e.wave.row)
    return e.value("i32", f"load {e.type('i32')}, ptr {place}, align {e.wave.row}")


def _spread(e: Emitter, packed: Value, lane_of: Pick) -> Value:
    """What each lane's `lane_of` has."""
    kind = e.type(packed.kind)
    mask = ", ".join(f"i32 {lane_of(lane)}" for lane in range(e.lanes))
    text = f"shufflevector {kind} {packed.text}, {kind} poison, <{e.lanes} x i32> <{mask}>"
    return e.value(packed.kind, text)


def _lane_of_row(rows: tuple[int, ...], side: int, group: int, lane: int) -> int:
    """Where the first `side` lanes find the first row of A, and those behind the others."""
    return side * group + rows[lane // side]


def _matrix(
    layout: Layout,
    left: Element,
    right: Element,
    step: Callable[..., Value],
    start: Element,
    finish: Callable[..., Value],
) -> Callable[[Emitter], None]:
    """D = A B + C.

    Elements of A and B are taken out of registers by `left` and `right`, those of C by `start`;
    `finish` takes the sums of a register of D and what it held before.
    """
    places = [layout.place(k) for k in range(layout.depth)]

    def build(e: Emitter) -> None:
        elements = sorted({(register, place) for _, register, place in places})
        count = 1 + elements[-1][0]
        held = 3 * count // 4 if layout.six else count
        a, b = ([_row(e, slot, number) for number in range(held)] for slot in "ab")
        if layout.six:
            a, b = _bytes_of_sixes(a), _bytes_of_sixes(b)
        lefts = {where: left(a[where[0]], where[1]) for where in elements}
        rights = {where: right(b[where[0]], where[1]) for where in elements}
        columns = [
            _spread(e, rights[register, place], partial(layout.column, half))
            for half, register, place in places
        ]
        sums = []
        for number in range(layout.sums):
            at = (number // 2, number % 2) if layout.packed else (number, 0)
            total = start(_row(e, "c", at[0]), at[1])
            lane_of = partial(_lane_of_row, layout.rows(number), layout.side)
            for (half, register, place), column in zip(places, columns, strict=True):
                row = _spread(e, lefts[register, place], partial(lane_of, half))
                total = step(row, column, total)
            sums.append(total)
        each = 2 if layout.packed else 1
        for number in range(layout.sums // each):
            target = frames.behind(e, frames.row(e, "d"), number * e.wave.row)
            finished = finish(*sums[each * number : each * (number + 1)], _row(e, "d", number))
            frames.store_row(e, target, finished, masked=False)
        frames.next_record(e)

    return build


def _half(value: Value, place: int) -> Value:
    return value.lshr(16 * place).to("i16").bits("f16").to("f32")


def _brain(value: Value, place: int) -> Value:
    """A bfloat16 as a single."""
    high = value.shl(16) if place == 0 else value & (0xFFFF0000 - (1 << 32))
    return high.bits("f32")


def _whole_number(bits: int, signed: bool) -> Element:
    def take(value: Value, place: int) -> Value:
        high = value.shl(32 - bits - bits * place)
        return high.ashr(32 - bits) if signed else high.lshr(32 - bits)

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


def _into_half(round_: Callable[[Value], Value], place: int) -> Callable[[Value, Value], Value]:
    def finish(total: Value, old: Value) -> Value:
        kept = 0xFFFF if place else 0xFFFF0000 - (1 << 32)
        return (old & kept) | round_(total).shl(16 * place)

    return finish


def _into_halves(round_: Callable[[Value], Value]) -> Callable[[Value, Value, Value], Value]:
    return lambda low, high, old: round_(low) | round_(high).shl(16)


def _narrow(
    element: Element, round_: Callable[[Value], Value], place: int
) -> Callable[[Emitter], None]:
    """RDNA3's products whose sums have 16 bits, in one half of registers."""
    return _matrix(
        *(_rdna3(2), element, element, _fused),
        *(lambda c, _: element(c, place), _into_half(round_, place)),
    )


def _single(x: Value, place: int) -> Value:
    del place
    return x.bits("f32")


def _integer(x: Value, place: int) -> Value:
    del place
    return x


def _eight(kind: str) -> Element:
    return lambda value, place: as_single(value.lshr(8 * place), kind)


def _signed_products(layout: Layout, bits: int, signs: int) -> Callable[[Emitter], None]:
    """Products of integers; bit 0 of `signs` says that A's are signed, bit 1 that B's are."""
    left, right = (_whole_number(bits, bool(signs >> side & 1)) for side in (0, 1))
    return _matrix(layout, left, right, _sum, _integer, _whole)


def _cdna_sizes(kind: str, bits: int, *depths: tuple[int, int]) -> Iterator[tuple[str, Layout]]:
    """Names of products of 16x16 and 32x32 matrices, and where their elements are.

    `depths` are those of CDNA3, and then of CDNA4, which has twice as many.
    """
    for pair in depths:
        for side, depth in zip((16, 32), pair, strict=True):
            name = f"{'i32' if kind == 'i8' else 'f32'}_{side}x{side}x{depth}_{kind}"
            yield f"v_mfma_{name}", _cdna(bits, side, depth)


def _small(mantissa: int, exponent: int) -> Element:
    """Numbers of 6 and 4 bits: a sign, an exponent, a mantissa; all are finite ("OCP Microscaling
    Formats", section 5.3)."""
    bits = 1 + mantissa + exponent
    place_of = 8 if bits == 6 else bits
    factor = 2.0 ** (15 - ((1 << exponent - 1) - 1))

    def take(value: Value, place: int) -> Value:
        number = value.lshr(place_of * place)
        magnitude = number & (1 << bits - 1) - 1
        sign = (number & 1 << bits - 1).shl(16 - bits)
        half = magnitude.shl(10 - mantissa) | sign
        return half.to("i16").bits("f16").to("f32") * factor

    return take


def _formats() -> Iterator[tuple[str, Callable[[Emitter], None]]]:
    """CDNA4's products whose operands have a format each, of 8, 6 or 4 bits: both of as many.

    Which steps a lane has where they are not was not found in a public text; a sum over steps of
    formats that lie alike comes out the same. U
    """
    elements = {0: _eight("fp8"), 1: _eight("bf8"), 2: _small(3, 2), 3: _small(2, 3)}
    elements[4] = _small(1, 2)
    for side, depth in ((16, 128), (32, 64)):
        for a, b in ((0, 0), (0, 1), (1, 0), (1, 1), (2, 2), (2, 3), (3, 2), (3, 3), (4, 4)):
            layout = _cdna(4 if a == 4 else 8, side, depth)._replace(six=a in (2, 3))
            name = f"v_mfma_f32_{side}x{side}x{depth}_f8f6f4_{a}_{b}"
            yield name, _matrix(layout, elements[a], elements[b], _fused, _single, _whole)


_HALVES: Final = {"f16": (_half, _rounded_half), "bf16": (_brain, brain_of)}
BUILDERS: Final[dict[str, Callable[[Emitter], None]]] = {
    **{
        name: _matrix(layout, take, take, _fused, _single, _whole)
        for kind, (take, _) in _HALVES.items()
        for name, layout in _cdna_sizes(kind, 16, (16, 8), (32, 16))
    },
    **{
        name: _signed_products(layout, 8, 3)
        for name, layout in _cdna_sizes("i8", 8, (32, 16), (64, 32))
    },
    **{
        f"{name}{behind}": _matrix(
            layout, _eight(a + behind), _eight(b + behind), _fused, _single, _whole
        )
        for a in FORMATS
        for b in FORMATS
        for name, layout in _cdna_sizes(f"{a}_{b}", 8, (32, 16))
        for behind in ("", "_fnuz")
    },
    **dict(_formats()),
    **{
        name: _matrix(layout, _single, _single, _fused, _single, _whole)
        for name, layout in _cdna_sizes("f32", 32, (4, 2))
    },
    **{
        f"v_wmma_f32_16x16x16_{kind}": _matrix(_rdna3(2), take, take, _fused, _single, _whole)
        for kind, (take, _) in _HALVES.items()
    },
    **{
        f"v_wmma_{kind}_16x16x16_{kind}_{n}": _narrow(*parts, n)
        for kind, parts in _HALVES.items()
        for n in (0, 1)
    },
    **{
        f"v_wmma_i32_16x16x16_iu{bits}_{signs}": _signed_products(_rdna3(32 // bits), bits, signs)
        for bits in (8, 4)
        for signs in range(4)
    },
    **{
        f"v_wmma_rdna4_f32_16x16x16_{kind}": _matrix(
            _rdna4(16), take, take, _fused, _single, _whole
        )
        for kind, (take, _) in _HALVES.items()
    },
    **{
        f"v_wmma_rdna4_{kind}_16x16x16_{kind}": _matrix(
            *(_rdna4(16, packed=True), take, take, _fused, take, _into_halves(round_)),
        )
        for kind, (take, round_) in _HALVES.items()
    },
    **{
        f"v_wmma_rdna4_i32_16x16x{depth}_iu{bits}_{signs}": _signed_products(
            _rdna4(bits, depth), bits, signs
        )
        for bits, depth in ((8, 16), (4, 16), (4, 32))
        for signs in range(4)
    },
    **{
        f"v_wmma_rdna4_f32_16x16x16_{a}_{b}": _matrix(
            _rdna4(8), _eight(a), _eight(b), _fused, _single, _whole
        )
        for a in FORMATS
        for b in FORMATS
    },
}
"""Operations by name: how each is written, on rows. The last number says which sides are signed,
or which half of a register holds 16 bits of C and D."""


def translate_matrix(context: Context) -> None:
    """Adds the record of a WMMA or MFMA instruction."""
    instruction = context.instruction
    name, fields = instruction.name, instruction.fields
    lanes = 64 if instruction.opcode.format == "mai" else 32
    if context.wave.lanes != lanes:
        raise Untranslatable(f"{name} in waves of {context.wave.lanes} lanes has no semantics here")
    integer = "_iu" in name
    modifiers: tuple[str, ...] = ("cbsz", "abid", "blgp", "clamp", "neg_hi")
    if "f8f6f4" in name:
        name, modifiers = f"{name}_{fields['cbsz']}_{fields['blgp']}", ("abid",)
    if any(fields.get(each) for each in modifiers) or fields.get("neg", 0) & (4 if integer else 7):
        raise Untranslatable(f"{name} with these modifiers has no semantics here")
    sizes = {spec.field: spec.dwords for spec in instruction.operands}
    operands = {}
    for slot, field in {"a": "src0", "b": "src1", "c": "src2"}.items():
        if fields[field] < VGPR:
            if slot != "c" or fields[field] != 128:
                raise Untranslatable(f"{name} with source {fields[field]} has no semantics here")
            operands[slot] = context.rows.constant((0,) * sizes[field])
        else:
            operands[slot] = context.rows.vector(fields[field] - VGPR, sizes[field])
    target = context.rows.vector(fields["vdst"], sizes["vdst"])
    if integer:
        name = f"{name}_{fields['neg'] & 3}"
    elif "opsel" in instruction.opcode.modifiers:
        name = f"{name}_{fields['opsel'] >> 2 & 1}"
    context.emit(name, d=target, **operands)

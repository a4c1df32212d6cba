"""Translates VOP3P: packed operations, dot products, mixed multiply-adds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpu.sim.isa.rdna.formats import VCC_LO, VGPR
from gpu.sim.isa.rdna.matrix import translate_matrix
from gpu.sim.isa.rdna.translate import Context, Untranslatable

_PLACES = ("src0", "src1", "src2")


def translate_packed(context: Context) -> None:
    """Adds the records of a VOP3P instruction."""
    instruction = context.instruction
    name, fields = instruction.name, instruction.fields
    if name.startswith("v_wmma"):
        translate_matrix(context)
        return
    special = _SPECIAL.get(name)
    if special is not None:
        special(context)
        return
    clamp = bool(fields["clamp"])
    if name in ("v_dot4_i32_iu8", "v_dot8_i32_iu4"):
        name = f"{name}_{fields['neg'] & 3}"
    elif clamp and f"{name}_clamp" in context.engine.operations:
        name, clamp = f"{name}_clamp", False
    operation = context.operation(name)
    rows = []
    for place, kind in enumerate(operation.sources):
        half = "bf16" if "bf16" in name else "f16"
        read_as = half if half in name and kind == "i32" else kind
        row = context.source(fields[_PLACES[place]], read_as, instruction.literal)
        if "opsel" in instruction.opcode.modifiers and kind == "i32":
            row = _chosen(context, row, place)
        rows.append(row)
    target = context.rows.vector(fields["vdst"])
    operands = dict(zip(("a", "b", "c"), rows, strict=False))
    halves = context.mixed_modes and "f16" in name
    if halves:
        context.emit("mode64")
    context.emit(operation.name, d=target, **operands)
    if halves:
        context.emit("mode32")
    if clamp and name.endswith("f16"):
        context.emit("clamp_pk_f16", d=target, a=target)
    elif clamp:
        raise Untranslatable(f"{name} with clamp has no semantics here")


def _chosen(context: Context, row: int, place: int) -> int:
    """A packed source with the halves that OP_SEL names, and their signs."""
    fields = context.instruction.fields
    known = context.instruction.opcode.modifiers
    low = fields["opsel"] >> place & 1
    high = (fields["opsel_hi"] | fields["opsel_hi2"] << 2) >> place & 1
    if (low, high) != (0, 1):
        temp = context.temp()
        # Written in all lanes or in the active ones makes no difference for a temporary.
        context.emit(f"pick_{'lh'[low]}{'lh'[high]}", d=temp, a=row)
        row = temp
    flip = (fields["neg"] & known.get("neg", 0)) >> place & 1 and 0x8000
    flip |= (fields["neg_hi"] & known.get("neg_hi", 0)) >> place & 1 and 0x80000000
    if not flip or "f16" not in context.instruction.name:
        return row
    temp = context.temp()
    signed = flip - (1 << 32) if flip >> 31 else flip
    context.emit("bits", d=temp, a=row, immediate=0xFFFFFFFF, aux=signed)
    return temp


def _mixed(context: Context) -> None:
    """V_FMA_MIX: each source is a single, or with OP_SEL_HI a half that OP_SEL names."""
    instruction = context.instruction
    fields = instruction.fields
    halves = fields["opsel_hi"] | fields["opsel_hi2"] << 2
    rows = []
    for place, name in enumerate(_PLACES):
        half = halves >> place & 1
        row = context.source(fields[name], "f16" if half else "f32", instruction.literal)
        if half:
            if fields["opsel"] >> place & 1:
                temp = context.temp()
                context.emit("high_half", d=temp, a=row)
                row = temp
            temp = context.temp()
            context.emit("v_cvt_f32_f16", d=temp, a=row)
            row = temp
        negate, absolute = fields["neg"] >> place & 1, fields["neg_hi"] >> place & 1
        rows.append(context.signed(row, "f32", bool(negate), bool(absolute)))
    target = context.rows.vector(fields["vdst"])
    high = instruction.name == "v_fma_mixhi_f16"
    result = context.temp() if high else target
    context.emit(instruction.name, d=result, a=rows[0], b=rows[1], c=rows[2])
    if fields["clamp"]:
        kind = "f32" if instruction.name == "v_fma_mix_f32" else "f16"
        context.emit(f"clamp_{kind}", d=result, a=result)
    if high:
        context.emit("merge_high", d=target, a=result)


def _accumulator(context: Context) -> None:
    """V_ACCVGPR_READ and _WRITE."""
    fields = context.instruction.fields
    source = context.source(fields["src0"], "i32", None)
    context.emit("move", d=context.rows.vector(fields["vdst"]), a=source)


def _two_singles(context: Context) -> None:
    """V_PK_FMA_F32 and others on pairs of registers: OP_SEL says which half of a pair is read."""
    instruction = context.instruction
    fields = instruction.fields
    operation = context.operation(instruction.name.replace("v_pk_", "v_"))
    results = []
    for half, (chosen, signs) in enumerate(
        (
            (fields["opsel"], fields["neg"]),
            (fields["opsel_hi"] | fields["opsel_hi2"] << 2, fields["neg_hi"]),
        )
    ):
        rows = [
            context.signed(_single(context, place, chosen), "f32", bool(signs >> place & 1), False)
            for place in range(len(operation.sources))
        ]
        results.append(context.temp())
        operands = dict(zip(("a", "b", "c"), rows, strict=False))
        context.emit(operation.name, d=results[half], **operands)
        if fields["clamp"]:
            context.emit("clamp_f32", d=results[half], a=results[half])
    _move_pair(context, results)


def _single(context: Context, place: int, chosen: int) -> int:
    """A register of a pair, or a constant, which has one half alone."""
    code = context.instruction.fields[_PLACES[place]]
    high = chosen >> place & 1
    if code < VGPR and not code < VCC_LO + 2:
        if high:
            raise Untranslatable(f"{context.instruction.name} with the high half of source {code}")
        return context.source(code, "f32", context.instruction.literal)
    return context.source(code + high, "f32", None)


def _move_two(context: Context) -> None:
    """V_PK_MOV_B32: a register of each of two pairs."""
    chosen = context.instruction.fields["opsel"]
    results = [context.temp(), context.temp()]
    for place, row in enumerate(results):
        context.emit("copy", d=row, a=_single(context, place, chosen))
    _move_pair(context, results)


def _move_pair(context: Context, results: list[int]) -> None:
    target = context.rows.vector(context.instruction.fields["vdst"], 2)
    for number, row in enumerate(results):
        context.emit("move", d=target + number * context.wave.row, a=row)


_SPECIAL: Final[dict[str, Callable[[Context], None]]] = {
    **dict.fromkeys(("v_fma_mix_f32", "v_fma_mixlo_f16", "v_fma_mixhi_f16"), _mixed),
    **dict.fromkeys(("v_accvgpr_read_b32", "v_accvgpr_write_b32"), _accumulator),
    **dict.fromkeys(("v_pk_fma_f32", "v_pk_mul_f32", "v_pk_add_f32"), _two_singles),
    "v_pk_mov_b32": _move_two,
}

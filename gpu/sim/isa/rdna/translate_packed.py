"""Translates VOP3P: packed operations, dot products, mixed multiply-adds."""

from __future__ import annotations

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
    if name.startswith("v_fma_mix"):
        _mixed(context)
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

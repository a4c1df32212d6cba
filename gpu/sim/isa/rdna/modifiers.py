"""What the bits beside register numbers say about operands: signs, and halves of registers."""

from __future__ import annotations

from typing import Final

from gpu.sim.isa.rdna.decode import Instruction
from gpu.sim.isa.rdna.formats import DPP16, VGPR
from gpu.sim.isa.rdna.table import OperandSpec

PLACES: Final = {"src0": 0, "vsrc1": 1, "src1": 1, "src2": 2, "vdst": 3}
"""Bits of NEG, ABS and OP_SEL by field."""

ROUNDED_AT_RANDOM: Final = ("v_cvt_sr_fp8_f32", "v_cvt_sr_bf8_f32")


def is_long(instruction: Instruction) -> bool:
    """Whether the encoding is VOP3 or one of its kind, with modifiers of its own."""
    return instruction.opcode.format.startswith("vop3")


def signs(instruction: Instruction, name: str) -> tuple[bool, bool]:
    """(negate, absolute) of the source in a field."""
    place = PLACES.get(name, 3)
    known = instruction.opcode.modifiers
    fields, dpp = instruction.fields, instruction.dpp
    negate, absolute = fields.get("neg", 0), fields.get("abs", 0)
    chosen = instruction.sdwa or (dpp if dpp is not None and dpp["kind"] == DPP16 else None)
    if not is_long(instruction) and chosen is not None and place < 2:
        negate, absolute = chosen[f"neg{place}"] << place, chosen[f"abs{place}"] << place
    negate &= known.get("neg", 0)
    absolute &= known.get("abs", 0)
    return bool(negate >> place & 1), bool(absolute >> place & 1)


def is_high_half(instruction: Instruction, spec: OperandSpec) -> bool:
    """Whether a 16-bit operand is the high half of its register.

    In VOP3 OP_SEL says so, in the short encodings bit 7 of the register number.
    """
    fields = instruction.fields
    if is_long(instruction):
        return bool(fields["opsel"] >> PLACES[spec.field] & 1)
    code = fields.get(spec.field, 0)
    if spec.field == "src0" and code < VGPR:
        return False
    return bool(code & 0x80)


def is_half(instruction: Instruction, spec: OperandSpec, kind: str) -> bool:
    """Whether bits of the instruction say which half of a register an operand is.

    Before RDNA3 its text does not tell: there it is where OP_SEL is, for numbers of 16 bits.
    """
    short = kind in ("f16", "i16")
    return spec.half or (short and is_long(instruction) and "opsel" in instruction.opcode.modifiers)


def chosen_byte(instruction: Instruction) -> int | None:
    """Which byte of a register a conversion of 8-bit floats reads or writes; None for others."""
    chosen = instruction.fields.get("opsel", 0)
    name = instruction.name.removesuffix("_fnuz")
    if name in ("v_cvt_f32_fp8", "v_cvt_f32_bf8"):
        return chosen >> 1 & 1 | (chosen & 1) << 1
    return chosen >> 2 & 3 if name in ROUNDED_AT_RANDOM else None

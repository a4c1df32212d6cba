"""What the bits beside register numbers say about operands: signs, and halves of registers."""

from __future__ import annotations

from typing import Final

from gpu.sim.isa.rdna.decode import Instruction
from gpu.sim.isa.rdna.formats import DPP16, VGPR
from gpu.sim.isa.rdna.table import OperandSpec

PLACES: Final = {"src0": 0, "vsrc1": 1, "src1": 1, "src2": 2, "vdst": 3}
"""Bits of NEG, ABS and OP_SEL by field."""


def is_long(instruction: Instruction) -> bool:
    """Whether the encoding is VOP3 or one of its kind, with modifiers of its own."""
    return instruction.opcode.format.startswith("vop3")


def signs(instruction: Instruction, name: str) -> tuple[bool, bool]:
    """(negate, absolute) of the source in a field."""
    place = PLACES.get(name, 3)
    known = instruction.opcode.modifiers
    fields, dpp = instruction.fields, instruction.dpp
    negate, absolute = fields.get("neg", 0), fields.get("abs", 0)
    if not is_long(instruction) and dpp is not None and dpp["kind"] == DPP16 and place < 2:
        negate, absolute = dpp[f"neg{place}"] << place, dpp[f"abs{place}"] << place
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


def chosen_byte(instruction: Instruction) -> int | None:
    """Which byte of a register a conversion of 8-bit floats reads or writes; None for others."""
    chosen = instruction.fields.get("opsel", 0)
    if instruction.name in ("v_cvt_f32_fp8", "v_cvt_f32_bf8"):
        return chosen >> 1 & 1 | (chosen & 1) << 1
    return chosen >> 2 & 3 if instruction.name.startswith("v_cvt_sr_") else None

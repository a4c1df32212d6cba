"""The operands of scalar instructions that are no registers: waits, branches, messages, modes."""

from __future__ import annotations

from typing import Final

from gpu.sim.isa.rdna.decode import Instruction
from gpu.sim.isa.rdna.registers import register_name

# Bits of the waits of RDNA3: section 4.4, "S_WAITCNT".
_COUNTERS: Final = (("vmcnt", 10, 0x3F), ("expcnt", 0, 7), ("lgkmcnt", 4, 0x3F))
_DELAYS: Final = (
    *("NO_DEP", "VALU_DEP_1", "VALU_DEP_2", "VALU_DEP_3", "VALU_DEP_4", "TRANS32_DEP_1"),
    *("TRANS32_DEP_2", "TRANS32_DEP_3", "FMA_ACCUM_CYCLE_1", "SALU_CYCLE_1", "SALU_CYCLE_2"),
    "SALU_CYCLE_3",
)
_SKIPS: Final = ("SAME", "NEXT", "SKIP_1", "SKIP_2", "SKIP_3", "SKIP_4")
_HWREGS: Final = {1: "HW_REG_MODE", 2: "HW_REG_STATUS", 3: "HW_REG_TRAPSTS"}
_HWREGS_BY_FORMAT: Final = ("s_getreg_b32", "s_setreg_b32", "s_setreg_imm32_b32")
_DISTANCES: Final = (
    "s_call_b64",
    "s_cbranch_i_fork",
    "s_subvector_loop_begin",
    "s_subvector_loop_end",
)
_BARE: Final = frozenset(("s_endpgm", "s_barrier", "s_wakeup", "s_icache_inv", "s_code_end"))


def scalar_words(instruction: Instruction) -> list[str] | None:
    """The operands of SOPP, SOPK and SMEM as words; None where the common rules make them."""
    form = instruction.opcode.format
    if form == "sopp":
        return [] if instruction.name in _BARE else [_sopp(instruction)]
    if form == "sopk":
        return _sopk(instruction)
    if form == "smem":
        return _smem(instruction)
    return None


def signed16(value: int) -> int:
    """A 16-bit field as a signed number."""
    return value - (1 << 16) if value >> 15 else value


def _sopp(instruction: Instruction) -> str:
    value = instruction.fields["simm16"]
    name = instruction.name
    if name == "s_waitcnt":
        return " ".join(
            f"{counter}({value >> shift & mask})"
            for counter, shift, mask in _COUNTERS
            if value >> shift & mask != mask
        )
    if name == "s_delay_alu":
        return _delay(value)
    if name.startswith(("s_branch", "s_cbranch")):
        return str(signed16(value))
    if not instruction.operands:
        return ""
    return f"{value:#x}"


def _delay(value: int) -> str:
    """``instid0(..) | instskip(..) | instid1(..)``, without what is 0."""
    parts = (
        ("instid0", _DELAYS, value & 15),
        ("instskip", _SKIPS, value >> 4 & 7),
        ("instid1", _DELAYS, value >> 7 & 15),
    )
    if any(number >= len(names) for _, names, number in parts):
        return f"{value:#x}"
    found = [f"{word}({names[number]})" for word, names, number in parts if number]
    return " | ".join(found) or "0"


def _sopk(instruction: Instruction) -> list[str]:
    value = instruction.fields["simm16"]
    words: list[str] = []
    dwords = next((s.dwords for s in instruction.operands if s.field == "sdst"), 0)
    register = register_name(instruction.fields["sdst"], dwords) if dwords else ""
    name = instruction.name
    if name in _HWREGS_BY_FORMAT:
        size = (value >> 11) + 1
        place = _HWREGS.get(value & 63, str(value & 63))
        text = f"hwreg({place}, {value >> 6 & 31}, {size})"
        source = register or f"{instruction.literal:#x}"
        return [source, text] if name == "s_getreg_b32" else [text, source]
    words = [register] if register else []
    return [*words, str(signed16(value)) if name in _DISTANCES else f"{value:#x}"]


def _smem(instruction: Instruction) -> list[str]:
    fields = instruction.fields
    if not instruction.operands:
        return []
    words = []
    for spec in instruction.operands:
        if spec.field == "sdata":
            words.append(register_name(fields["sdata"], spec.dwords))
        elif spec.field == "sbase":
            words.append(register_name(fields["sbase"] * 2, spec.dwords))
    if not any(spec.field == "sbase" for spec in instruction.operands):
        return words
    signed = fields["offset"]
    index = fields["soffset"]
    hexadecimal = f"{'-' if signed < 0 else ''}{abs(signed):#x}"
    if index == 124:
        return [*words, hexadecimal]
    return [*words, register_name(index) + (f" offset:{hexadecimal}" if signed else "")]

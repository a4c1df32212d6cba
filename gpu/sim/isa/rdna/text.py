"""Instructions as text, in the spelling of LLVM's assembler without its encoding suffixes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from gpu.sim.isa.rdna.decode import Instruction
from gpu.sim.isa.rdna.formats import DPP16, LITERAL, NULL, VCC_LO, VGPR
from gpu.sim.isa.rdna.modifiers import (
    PLACES,
    ROUNDED_AT_RANDOM,
    chosen_byte,
    is_high_half,
    is_long,
    signs,
)
from gpu.sim.isa.rdna.registers import register_name, register_range
from gpu.sim.isa.rdna.table import CACHE_CONTROLS, Opcode, OperandSpec
from gpu.sim.isa.rdna.text_scalar import scalar_words

_OMOD: Final = ("", "mul:2", "mul:4", "div:2")
_OUT_OF_BYTES: Final = re.compile(r"v_cvt_(pk_)?f32_[fb][pf]8")
_SELECTIONS: Final = (*(f"BYTE_{n}" for n in range(4)), "WORD_0", "WORD_1", "DWORD", "7")
_CONTROLS: Final = {
    0x130: "wave_shl:1",
    0x134: "wave_rol:1",
    0x138: "wave_shr:1",
    0x13C: "wave_ror:1",
    0x140: "row_mirror",
    0x141: "row_half_mirror",
    0x142: "row_bcast:15",
    0x143: "row_bcast:31",
}
_SCOPES: Final = ("CU", "SE", "DEV", "SYS")
_LOAD_HINTS: Final = ("", "NT", "HT", "LU", "NT_RT", "RT_NT", "NT_HT", "")
_STORE_HINTS: Final = ("", "NT", "HT", "WB", "NT_RT", "RT_NT", "NT_HT", "NT_WB")
_RETURNS: Final = ("", "RETURN", "NT", "NT_RETURN")
_ATOMIC_HINTS: Final = (
    (*_RETURNS, "0x4", "0x5", "0x6", "0x7"),
    (*_RETURNS, "CASCADE_RT", "CASCADE_RT", "CASCADE_NT", "CASCADE_NT"),
)
"""By whether the scope is that of the device or the system."""
_BYPASS: Final = 3
_SWAPS: Final = {2: "bound_ctrl:1", 1: "fi:1"}
_WITH_OLD: Final = (
    *ROUNDED_AT_RANDOM,
    *("v_cvt_scalef32_pk_fp4_f16", "v_cvt_scalef32_pk_fp4_bf16"),
)
"""Instructions whose result is a part of a register, of which LLVM makes a third source."""
_DECIMAL: Final = 11  # LLVM writes smaller tables of bits so
_VECTOR_ONLY: Final = frozenset(
    ("vsrc1", "addr", "data", "data0", "data1", "vaddr", "vdata", "vsrc1x", "vsrc1y")
)


def text_of(instruction: Instruction, pc: int | None = None) -> str:
    """``v_add_f32 v1, v2, v3``; with `pc` its bytes stand before, as in a dump."""
    body = _text(instruction)
    if pc is None:
        return body
    return f"{pc:#010x}: {instruction.code.hex(' ', -4):28} {body}"


def _text(instruction: Instruction) -> str:
    if instruction.dual is not None:
        halves = ((instruction.opcode, "x"), (instruction.dual, "y"))
        return " :: ".join(_dual(instruction, *half) for half in halves)
    form = instruction.opcode.format
    words = scalar_words(instruction)
    if words is None:
        words = [_operand(instruction, spec) for spec in instruction.operands]
    if form in ("flat", "global", "scratch"):
        words = _flat_operands(instruction)
    operands = ", ".join(word for word in words if word)
    return " ".join(filter(None, (instruction.opcode.mnemonic, operands, *_modifiers(instruction))))


def _operand(instruction: Instruction, spec: OperandSpec) -> str:
    fields = instruction.fields
    name = spec.field
    if name == "vcc":
        named = instruction.sdwa is not None and instruction.sdwa.get("named")
        return register_name(fields["sdst"] if named else VCC_LO, spec.dwords)
    if name == "offset01":
        return ""
    if name == "imm":
        return f"{instruction.literal or 0:#x}"
    code = fields[name]
    if name == "vdst":
        code += 0 if spec.scalar else VGPR
    elif name in _VECTOR_ONLY:
        code += VGPR
    elif name == "sbase":
        code *= 2
    elif name == "srsrc":
        code *= 4
    half = ""
    if spec.half:
        code, half = _half(instruction, spec, code)
    text = _source(instruction, spec, code) + half
    if instruction.sdwa is not None and instruction.sdwa.get(f"sext{PLACES.get(name)}"):
        text = f"sext({text})"
    return _with_sign(instruction, name, text)


def _source(instruction: Instruction, spec: OperandSpec, code: int) -> str:
    literal = instruction.literal
    if code != LITERAL or literal is None:
        return register_name(code, spec.dwords)
    return f"{literal & 0xFFFF if spec.half else literal:#x}"


def _half(instruction: Instruction, spec: OperandSpec, code: int) -> tuple[int, str]:
    """The register of a 16-bit operand, and which half of it."""
    if code < VGPR:
        return code, ""
    half = ".h" if is_high_half(instruction, spec) else ".l"
    return (code if is_long(instruction) else code & ~0x80), half


def _with_sign(instruction: Instruction, field: str, text: str) -> str:
    if field not in PLACES:
        return text
    negate, absolute = signs(instruction, field)
    if instruction.opcode.format == "vop3p":  # its signs are of halves, but for these
        mixed = instruction.name.startswith("v_fma_mix")
        absolute = mixed and bool(instruction.fields["neg_hi"] >> PLACES[field] & 1)
        negate = mixed and negate
    if absolute:
        text = f"|{text}|"
    return f"-{text}" if negate else text


def _dual(instruction: Instruction, opcode: Opcode, half: str) -> str:
    fields = instruction.fields
    destination = fields["vdstx"]
    if half == "y":
        destination = fields["vdsty"] << 1 | ~destination & 1
    words = []
    for spec in opcode.operands:
        if spec.field == "vdst":
            words.append(f"v{destination}")
        elif spec.field == "vsrc1":
            words.append(f"v{fields['vsrc1' + half]}")
        elif spec.field == "src0" and fields["src0" + half] != LITERAL:
            words.append(register_name(fields["src0" + half]))
        else:
            words.append(f"{instruction.literal:#x}")
    return f"{opcode.mnemonic} {', '.join(words)}"


def _flat_operands(instruction: Instruction) -> list[str]:
    """Operands of a flat access: the address is a pair, or one register beside a scalar pair."""
    fields = instruction.fields
    form = instruction.opcode.format
    if instruction.name in CACHE_CONTROLS:
        return []
    based = fields["saddr"] != NULL
    words = []
    for spec in instruction.operands:
        if spec.field != "addr":
            words.append(_operand(instruction, spec))
        elif form == "scratch":
            words.append(f"v{fields['addr']}" if fields["sve"] else "off")
        else:
            words.append(register_range("v", fields["addr"], 1 if based else 2))
    if form != "flat":
        pair = register_name(fields["saddr"], 1 if form == "scratch" else 2)
        words.append(pair if based else "off")
    return words


def _modifiers(instruction: Instruction) -> Iterator[str]:
    fields = instruction.fields
    form = instruction.opcode.format
    if form == "ds":
        yield from _ds_offsets(instruction)
    elif form in ("flat", "global", "scratch") and instruction.name not in CACHE_CONTROLS:
        yield f"offset:{fields['offset']}" if fields["offset"] else ""
    elif form == "mubuf":
        yield from (name for name in ("idxen", "offen") if fields[name])
        yield f"offset:{fields['offset']}" if fields["offset"] else ""
    elif form == "mai":
        signs = fields["blgp"] if "f64" in instruction.name else 0
        words = {"cbsz": fields["cbsz"], "abid": fields["abid"], "blgp": fields["blgp"] ^ signs}
        yield from (f"{name}:{value}" for name, value in words.items() if value)
        yield f"neg:[{signs & 1},{signs >> 1 & 1},{signs >> 2}]" if signs else ""
    elif form.startswith("vop"):
        yield from _vector_modifiers(instruction)
    if "scope" in fields and instruction.operands:
        yield from _cache_controls(instruction)
    yield from (bit for bit in ("sc0", "nt", "sc1", "glc", "slc", "dlc", "tfe") if fields.get(bit))


def _cache_controls(instruction: Instruction) -> Iterator[str]:
    """Temporal hint and scope of RDNA4; the hint is named after the kind of access."""
    hint, scope = instruction.fields["th"], _SCOPES[instruction.fields["scope"]]
    if "atomic" in instruction.name:
        words = _ATOMIC_HINTS[scope in ("DEV", "SYS")][hint]
        kind = "ATOMIC"
    else:
        kind = "STORE" if "store" in instruction.name else "LOAD"
        words = _STORE_HINTS[hint] if kind == "STORE" else _LOAD_HINTS[hint]
        if hint == _BYPASS and scope == "SYS":
            words = "BYPASS"
    if hint:
        yield f"th:TH_{kind}_{words}" if words else f"th:{hint:#x}"
    if scope != "CU":
        yield f"scope:SCOPE_{scope}"


def _ds_offsets(instruction: Instruction) -> Iterator[str]:
    fields = instruction.fields
    if any(spec.field == "offset01" for spec in instruction.operands):
        yield from (f"{n}:{fields[n]}" for n in ("offset0", "offset1") if fields[n])
        return
    offset = fields["offset0"] | fields["offset1"] << 8
    yield f"offset:{offset}" if offset else ""
    yield "gds" if fields["gds"] else ""


def _vector_modifiers(instruction: Instruction) -> Iterator[str]:
    fields = instruction.fields
    known = instruction.opcode.modifiers
    if "bitop3" in known and fields["bitop3"]:
        yield f"bitop3:{fields['bitop3']:{'d' if fields['bitop3'] < _DECIMAL else '#x'}}"
    if instruction.opcode.format == "vop3p":
        yield from _packed_modifiers(instruction)
    elif "permlane" in instruction.name and "swap" in instruction.name:
        yield from (word for bit, word in _SWAPS.items() if fields.get("opsel", 0) & bit)
    elif "permlane" in instruction.name and fields.get("opsel", 0) & 3:
        yield f"op_sel:[{fields['opsel'] & 1},{fields['opsel'] >> 1 & 1}]"
    elif instruction.opcode.format == "vop3" and not any(o.half for o in instruction.operands):
        yield _op_sel(instruction)
    if "byte_sel" in known and (byte := chosen_byte(instruction)):
        yield f"byte_sel:{byte}"
    if fields.get("clamp") and "clamp" in known:
        yield "clamp"
    if "omod" in known:
        yield _OMOD[fields.get("omod", 0)]
    if instruction.sdwa is not None:
        yield from _sdwa_modifiers(instruction, instruction.sdwa)
    dpp = instruction.dpp
    if dpp is None:
        return
    if dpp["kind"] != DPP16:
        lanes = ",".join(str(dpp["lanes"] >> 3 * lane & 7) for lane in range(8))
        yield f"dpp8:[{lanes}]"
        yield "" if dpp["kind"] == 233 else "fi:1"
        return
    yield _dpp_control(dpp["ctrl"])
    yield f"row_mask:{dpp['row']:#x}"
    yield f"bank_mask:{dpp['bank']:#x}"
    yield "bound_ctrl:1" if dpp["bc"] else ""
    yield "fi:1" if dpp["fi"] else ""


def _packed_modifiers(instruction: Instruction) -> Iterator[str]:
    fields = instruction.fields
    known = instruction.opcode.modifiers
    count = sum(1 for spec in instruction.operands if spec.field.startswith("src"))
    high = fields["opsel_hi"] | fields["opsel_hi2"] << 2
    mixed = instruction.name.startswith("v_fma_mix")  # its signs stand at the operands
    usual_high = 0 if mixed else (1 << count) - 1
    masks = (
        ("op_sel", "opsel", fields["opsel"], 0),
        ("op_sel_hi", "opsel_hi", high, usual_high),
        ("neg_lo", "neg", fields["neg"] & known.get("neg", 0), 0),
        ("neg_hi", "neg_hi", fields["neg_hi"] & known.get("neg_hi", 0), 0),
    )
    for label, name, value, usual in masks:
        bits = [value >> place & 1 for place in range(count)]
        if (
            name in known
            and not (mixed and "neg" in name)
            and bits != [usual >> place & 1 for place in range(count)]
        ):
            yield f"{label}:[{','.join(map(str, bits))}]"


def _op_sel(instruction: Instruction) -> str:
    """Which halves operands are, before RDNA3, on which registers are written so."""
    chosen = instruction.fields["opsel"]
    known = instruction.opcode.modifiers
    if not chosen or "opsel" not in known or "byte_sel" in known:
        return ""
    sources = [PLACES[o.field] for o in instruction.operands if o.field.startswith("src")]
    if instruction.name.removesuffix("_fnuz") in _WITH_OLD:
        sources = [0, 1, 2]
    return f"op_sel:[{','.join(str(chosen >> place & 1) for place in (*sources, 3))}]"


def _sdwa_modifiers(instruction: Instruction, sdwa: Mapping[str, int]) -> Iterator[str]:
    if "dst" in sdwa and not _OUT_OF_BYTES.match(instruction.name):
        yield f"dst_sel:{_SELECTIONS[sdwa['dst']]}"
        yield f"dst_unused:UNUSED_{('PAD', 'SEXT', 'PRESERVE', '3')[sdwa['unused']]}"
    for place in range(1 + ("vsrc1" in instruction.fields)):
        yield f"src{place}_sel:{_SELECTIONS[sdwa[f'sel{place}']]}"


def _dpp_control(control: int) -> str:
    if control < 0x100:
        lanes = ",".join(str(control >> 2 * lane & 3) for lane in range(4))
        return f"quad_perm:[{lanes}]"
    names = {0x100: "row_shl", 0x110: "row_shr", 0x120: "row_ror", 0x150: "row_share"}
    names |= {0x160: "row_xmask"}
    if control & 0x1F0 in names:
        return f"{names[control & 0x1F0]}:{control & 15}"
    return _CONTROLS.get(control, f"dpp_ctrl:{control:#x}")

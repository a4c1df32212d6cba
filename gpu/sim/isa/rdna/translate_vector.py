"""Translates the vector ALU: VOP1, VOP2, VOPC, VOP3, their DPP forms, and VOPD."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpu.sim.isa.lanes import DPP_BOUND_ZERO, DPP_FETCH_INACTIVE
from gpu.sim.isa.rdna.decode import Instruction
from gpu.sim.isa.rdna.formats import DPP8_FI, DPP16, EXEC, LITERAL, VCC_LO, VGPR
from gpu.sim.isa.rdna.modifiers import PLACES, chosen_byte, is_half, is_high_half, is_long, signs
from gpu.sim.isa.rdna.sem_sdwa import PARTS, REST
from gpu.sim.isa.rdna.table import Opcode, OperandSpec
from gpu.sim.isa.rdna.translate import ROWS_OF_KIND, Context, Untranslatable

_OMOD: Final = {1: 2.0, 2: 4.0, 3: 0.5}
_OMOD_CODES: Final = {1: 244, 2: 246, 3: 240}  # the inline constants 2.0, 4.0, 0.5
_PAIRS: Final = {"v_dot2_f16_f16": "f16", "v_dot2_bf16_bf16": "bf16"}
"""Instructions whose sources are pairs of 16-bit floats, and of which kind."""
_FLOATS: Final = ("f16", "f32", "f64")


def translate_vector(context: Context) -> None:
    """Adds the records of an instruction of the vector ALU, VOPD and VOP3P aside."""
    instruction = context.instruction
    special = _SPECIAL.get(instruction.name)
    if special is not None:
        special(context)
        return
    fields = instruction.fields
    byte = chosen_byte(instruction)
    name = instruction.name if byte is None else f"{instruction.name}_{byte}"
    saturating = bool(fields.get("clamp")) and f"{name}_clamp" in context.engine.operations
    operation = context.operation(f"{name}_clamp" if saturating else name)
    to_exec = name.startswith("v_cmpx")
    named = instruction.operands[0].field in ("vcc", "vdst")
    count = 0 if to_exec and not named else len(operation.results)
    results, sources = instruction.operands[:count], list(instruction.operands[count:])
    read = _packed_source if name in _PAIRS else vector_source
    rows = [
        read(context, sources[place] if place < len(sources) else None, kind)
        for place, kind in enumerate(operation.sources)
    ]
    if not count:
        targets = [context.wave.scalar(EXEC)]
    else:
        targets = [
            _result(context, spec, kind)
            for spec, kind in zip(results, operation.results, strict=True)
        ]
    kind = operation.results[0]
    halved = bool(results) and is_half(instruction, results[0], kind)
    high = halved and is_high_half(instruction, results[0])
    final = targets[0]
    placed = instruction.sdwa is not None and "dst" in instruction.sdwa
    if high or placed:
        targets[0] = context.temp()
    operands = dict(zip(("d", "e"), targets, strict=False))
    operands |= dict(zip(("a", "b", "c", "f"), rows, strict=False))
    if "bitop3" in fields:
        operands["immediate"] = fields["bitop3"]
    context.emit_rounded(operation, **operands)
    if kind in _FLOATS:
        _finish(context, targets[0], f"s_{{}}_{kind}" if operation.is_scalar else f"{{}}_{kind}")
    elif fields.get("clamp") and not saturating and kind != "m":
        raise Untranslatable(f"{name} with clamp has no semantics here")
    if high:
        context.emit("merge_high", d=final, a=targets[0])
    if placed:
        _place(context, final, targets[0], kind)
    elif context.clears_upper and kind in ("f16", "i16") and not halved:
        context.emit("part_w0_u", d=final, a=final)
    if to_exec and count:  # CDNA's write both
        for word in range(context.wave.words):
            row = word * context.wave.row
            context.emit("copy", d=context.wave.scalar(EXEC) + row, a=targets[0] + row)
    if instruction.dpp is not None and not to_exec:
        context.emit("restore_exec")


def vector_source(context: Context, spec: OperandSpec | None, kind: str) -> int:
    """The row of a source, its modifiers applied; without `spec` an implied one."""
    instruction = context.instruction
    fields = instruction.fields
    if spec is None:
        if kind == "m":
            return context.wave.scalar(VCC_LO)
        rows = ROWS_OF_KIND.get(kind, 1)
        number = fields["vdst"] & (0x7F if _short_half(instruction) else 0xFF)
        row = context.rows.vector(number, rows)
        if _short_half(instruction) and _destination_high(instruction):
            return _high(context, row)
        return row
    if spec.field == "vcc":
        return context.wave.scalar(VCC_LO)
    if spec.field in ("imm", "literal"):
        row = context.source(LITERAL, kind, instruction.literal)
    else:
        code = fields[spec.field] + (VGPR if spec.field == "vsrc1" else 0)
        if kind == "m":
            return context.wave.scalar(code) if code <= EXEC + 1 else _no_mask(code)
        if spec.half and code >= VGPR and not is_long(instruction):
            code &= ~0x80
        row = context.source(code, kind, instruction.literal)
    if spec.field == "src0" and instruction.dpp is not None:
        row = _permuted(context, row)
    if instruction.sdwa is not None:
        row = _selected(context, row, PLACES[spec.field])
    if is_half(instruction, spec, kind) and is_high_half(instruction, spec):
        row = _high(context, row)
    negate, absolute = signs(instruction, spec.field)
    return context.signed(row, kind, negate, absolute)


def _packed_source(context: Context, spec: OperandSpec | None, kind: str) -> int:
    """As `vector_source`, but a whole register is two halves, and constants are one."""
    if spec is None or spec.half:
        return vector_source(context, spec, kind)
    if any(signs(context.instruction, spec.field)):
        raise Untranslatable(
            f"{context.instruction.name} with signs of pairs has no semantics here"
        )
    if context.instruction.fields[spec.field] < VGPR:
        kind = _PAIRS[context.instruction.name]
    return vector_source(context, spec, kind)


def _no_mask(code: int) -> int:
    raise Untranslatable(f"source {code} is no lane mask")


def _high(context: Context, row: int) -> int:
    temp = context.temp()
    context.emit("high_half", d=temp, a=row)
    return temp


def _short_half(instruction: Instruction) -> bool:
    """Whether register numbers of a short encoding say which half, by bit 7."""
    if is_long(instruction):
        return False
    return bool(instruction.operands) and instruction.operands[0].half


def _destination_high(instruction: Instruction) -> bool:
    return bool(instruction.fields["vdst"] & 0x80)


def _selected(context: Context, row: int, place: int) -> int:
    """The byte or half of a source that SDWA chooses, extended to 32 bits."""
    sdwa = context.instruction.sdwa
    assert sdwa is not None
    if sdwa[f"sel{place}"] >= len(PARTS):
        return row
    temp = context.temp()
    signed = "i" if sdwa[f"sext{place}"] else "u"
    context.emit(f"part_{PARTS[sdwa[f'sel{place}']]}_{signed}", d=temp, a=row)
    return temp


def _place(context: Context, target: int, row: int, kind: str) -> None:
    """Puts a result where SDWA chooses; the rest becomes zeros or signs, or is kept."""
    sdwa = context.instruction.sdwa
    assert sdwa is not None
    whole = sdwa["dst"] >= len(PARTS)
    if not whole:
        unused = REST[min(sdwa["unused"], len(REST) - 1)]
        context.emit(f"place_{PARTS[sdwa['dst']]}_{unused}", d=target, a=row, b=target)
    elif kind in ("f16", "i16"):
        signed = "i" if REST[min(sdwa["unused"], len(REST) - 1)] == "sign" else "u"
        context.emit(f"part_w0_{signed}", d=target, a=row)
    else:
        context.emit("move", d=target, a=row)


def _result(context: Context, spec: OperandSpec, kind: str) -> int:
    fields = context.instruction.fields
    sdwa = context.instruction.sdwa
    if spec.field == "vcc":
        named = sdwa is not None and sdwa.get("named")
        return context.scalar_result(fields["sdst"] if named else VCC_LO)
    code = fields[spec.field]
    if spec.scalar or spec.field == "sdst":
        return context.scalar_result(code)
    if spec.half and _short_half(context.instruction):
        code &= ~0x80
    return context.rows.vector(code, ROWS_OF_KIND.get(kind, 1))


def _finish(context: Context, row: int, modifier: str) -> None:
    """The output modifiers; `modifier` makes the names of their operations."""
    fields = context.instruction.fields
    known = context.instruction.opcode.modifiers
    omod = fields.get("omod", 0) if "omod" in known else 0
    if omod:
        factor = context.source(_OMOD_CODES[omod], modifier.rpartition("_")[2], None)
        context.emit(modifier.format("scale"), d=row, a=row, b=factor)
    if fields.get("clamp") and "clamp" in known:
        context.emit(modifier.format("clamp"), d=row, a=row)


def _permuted(context: Context, row: int) -> int:
    """Source 0 as DPP moves it between lanes; narrows EXEC until `restore_exec`."""
    dpp = context.instruction.dpp
    assert dpp is not None
    count = context.wave.lanes
    if dpp["kind"] == DPP16:
        lanes = [_dpp_source(dpp["ctrl"], lane) for lane in range(count)]
        aux = DPP_FETCH_INACTIVE * dpp["fi"] | DPP_BOUND_ZERO * dpp["bc"]
        enabled = sum(
            1 << lane
            for lane in range(count)
            if dpp["row"] >> lane // 16 & 1 and dpp["bank"] >> lane % 16 // 4 & 1
        )
    else:
        lanes = [lane & ~7 | dpp["lanes"] >> 3 * (lane & 7) & 7 for lane in range(count)]
        aux = DPP_BOUND_ZERO | DPP_FETCH_INACTIVE * (dpp["kind"] == DPP8_FI)
        enabled = (1 << count) - 1
    temp = context.temp()
    index = context.rows.lanes(lanes)
    signed = enabled - (1 << 64) if enabled >> 63 else enabled
    context.emit("dpp", d=temp, a=row, b=index, immediate=signed, aux=aux)
    return temp


_ACROSS: Final[dict[int, Callable[[int], int]]] = {
    0x130: lambda lane: lane + 1 if lane < 63 else -1,
    0x134: lambda lane: lane + 1 & 63,
    0x138: lambda lane: lane - 1,
    0x13C: lambda lane: lane - 1 & 63,
    0x142: lambda lane: (lane & ~15) - 1,
    0x143: lambda lane: 31 if lane > 31 else -1,
}
"""DPP_CTRL that moves values between rows, of CDNA: shifts and rotations of the wave, broadcasts of
lane 15 of each row to the next, and of lane 31 to the upper half."""


def _dpp_source(control: int, lane: int) -> int:
    """The lane that DPP_CTRL makes a lane read, -1 for none (section 7.3 of the manual)."""
    if control in _ACROSS:
        return _ACROSS[control](lane)
    row, place = lane & ~15, lane & 15
    kind, count = control & 0x1F0, control & 15
    if control < 0x100:
        return lane & ~3 | control >> 2 * (lane & 3) & 3
    moves = {
        0x100: place + count,
        0x110: place - count,
        0x120: (place - count) % 16,
        0x150: count,
        0x160: place ^ count,
    }
    if control in (0x140, 0x141):
        return row | (15 - place if control == 0x140 else place & 8 | 7 - (place & 7))
    if kind not in moves:
        raise Untranslatable(f"DPP_CTRL {control:#x} is not known")
    return row | moves[kind] if 0 <= moves[kind] < 16 else -1


def _between_lanes(context: Context) -> None:
    """Instructions that name a lane; see gpu/sim/isa/lanes.py."""
    instruction = context.instruction
    result, *sources = instruction.operands
    rows = [vector_source(context, spec, "i32") for spec in sources]
    operands = dict(zip(("a", "b", "c"), rows, strict=False))
    aux = instruction.fields.get("opsel", 0) if "permlane" in instruction.name else 0
    target = _result(context, result, "i32")
    context.emit(instruction.name, d=target, **operands, aux=aux)
    if instruction.dpp is not None:
        context.emit("restore_exec")


def _swap(context: Context) -> None:
    fields = context.instruction.fields
    first = context.rows.vector(fields["vdst"])
    second = context.rows.vector(fields["src0"] - VGPR)
    temp = context.temp()
    context.emit("copy", d=temp, a=first)
    context.emit("move", d=first, a=second)
    context.emit("move", d=second, a=temp)


def _swap_rows(context: Context) -> None:
    """V_PERMLANE16_SWAP and 32: odd rows of 16 or 32 lanes with the other's even ones.

    Lanes that are not active are read as by DPP: with FI, else BOUND_CTRL makes their values 0.
    """
    instruction, wave = context.instruction, context.wave
    span = 16 if "16" in instruction.name else 32
    registers = {
        1: context.rows.vector(instruction.fields["vdst"]),
        0: context.rows.vector(instruction.fields["src0"] - VGPR),
    }
    chosen = instruction.fields.get("opsel", 0)
    aux = DPP_FETCH_INACTIVE * (chosen & 1) | DPP_BOUND_ZERO * (chosen >> 1)
    index = context.rows.lanes([lane ^ span for lane in range(wave.lanes)])
    temps = {odd: context.temp() for odd in registers}
    for odd, row in registers.items():
        context.emit("copy", d=temps[odd], a=row)
    moved = context.temp()
    for odd, row in registers.items():
        lanes = sum(1 << lane for lane in range(wave.lanes) if lane // span & 1 == odd)
        signed = lanes - (1 << 64) if lanes >> 63 else lanes
        context.emit("dpp", d=moved, a=temps[1 - odd], b=index, immediate=signed, aux=aux)
        context.emit("move", d=row, a=moved)
        context.emit("restore_exec")


def _swap_halves(context: Context) -> None:
    """V_SWAP_B16, whose operands are halves of registers, perhaps both of one."""
    instruction = context.instruction
    first, second = instruction.operands
    places = {
        "vdst": context.rows.vector(instruction.fields["vdst"] & 0x7F),
        "src0": context.rows.vector(instruction.fields["src0"] - VGPR & 0x7F),
    }
    high = {spec.field: is_high_half(instruction, spec) for spec in (first, second)}
    values = {}
    for field, row in places.items():
        values[field] = context.temp()
        context.emit("high_half" if high[field] else "copy", d=values[field], a=row)
    for field, other in (("vdst", "src0"), ("src0", "vdst")):
        merge = "merge_high" if high[field] else "v_mov_b16"
        context.emit(merge, d=places[field], a=values[other])


def _nothing(context: Context) -> None:
    """V_NOP and the like."""


def _swap_wave_halves(context: Context) -> None:
    """V_PERMLANE64_B32, which does nothing in waves of 32 lanes."""
    if context.wave.lanes == 64:
        _between_lanes(context)


_SPECIAL: Final[dict[str, Callable[[Context], None]]] = {
    "v_nop": _nothing,
    "v_pipeflush": _nothing,
    "v_permlane64_b32": _swap_wave_halves,
    "v_swap_b32": _swap,
    **dict.fromkeys(("v_permlane16_swap_b32", "v_permlane32_swap_b32"), _swap_rows),
    "v_swap_b16": _swap_halves,
    **dict.fromkeys(("v_readfirstlane_b32", "v_readlane_b32", "v_writelane_b32"), _between_lanes),
    **dict.fromkeys(("v_permlane16_b32", "v_permlanex16_b32"), _between_lanes),
    **dict.fromkeys(("v_permlane16_var_b32", "v_permlanex16_var_b32"), _between_lanes),
}


def translate_dual(context: Context) -> None:
    """VOPD: two operations at once; both read before either writes."""
    instruction = context.instruction
    fields = instruction.fields
    assert instruction.dual is not None
    first = context.rows.vector(fields["vdstx"])
    second = context.rows.vector(fields["vdsty"] << 1 | ~fields["vdstx"] & 1)
    sources = _dual_sources(context, instruction.dual, "y", second)
    target = context.temp() if first in sources else first
    _dual_half(
        context, instruction.opcode, _dual_sources(context, instruction.opcode, "x", first), target
    )
    _dual_half(context, instruction.dual, sources, second)
    if target != first:
        context.emit("move", d=first, a=target)


def _dual_sources(context: Context, opcode: Opcode, half: str, target: int) -> list[int]:
    instruction = context.instruction
    operation = context.operation(opcode.name.replace("v_dual_", "v_"))
    rows: list[int] = []
    for spec in opcode.operands[1:]:
        kind = operation.sources[len(rows)]
        if spec.field == "vsrc1":
            code = instruction.fields[f"vsrc1{half}"] + VGPR
        else:
            code = LITERAL if spec.field == "literal" else instruction.fields[f"src0{half}"]
        rows.append(context.source(code, kind, instruction.literal))
    if len(rows) < len(operation.sources):
        rows.append(context.wave.scalar(VCC_LO) if operation.sources[-1] == "m" else target)
    return rows


def _dual_half(context: Context, opcode: Opcode, sources: list[int], target: int) -> None:
    operation = context.operation(opcode.name.replace("v_dual_", "v_"))
    operands = dict(zip(("a", "b", "c"), sources, strict=False))
    context.emit(operation.name, d=target, **operands)

"""Translates the scalar ALU, scalar loads and program control."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpu.sim.isa.rdna.formats import EXEC, LITERAL, NULL
from gpu.sim.isa.rdna.text_scalar import signed16
from gpu.sim.isa.rdna.translate import ROWS_OF_KIND, Context, Untranslatable

# Waits order what the engine does in order anyway; hints change no result.
_IGNORED: Final = frozenset(
    (
        *("s_nop", "s_waitcnt", "s_waitcnt_depctr", "s_waitcnt_vscnt", "s_waitcnt_vmcnt"),
        *("s_waitcnt_expcnt", "s_waitcnt_lgkmcnt", "s_wait_event", "s_wait_idle", "s_delay_alu"),
        *("s_clause", "s_sleep", "s_setprio", "s_wakeup", "s_set_inst_prefetch_distance"),
        *("s_incperflevel", "s_decperflevel", "s_version", "s_ttracedata", "s_ttracedata_imm"),
        *("s_dcache_inv", "s_dcache_wb", "s_dcache_inv_vol", "s_dcache_wb_vol"),
        *("s_gl1_inv", "s_icache_inv", "s_sleep_var"),
        *(f"s_wait_{what}cnt" for what in ("load", "store", "sample", "bvh", "exp", "ds", "km")),
        *("s_wait_loadcnt_dscnt", "s_wait_storecnt_dscnt"),
        *(f"s_prefetch_{what}" for what in ("inst", "data", "inst_pc_rel", "data_pc_rel")),
        "s_buffer_prefetch_data",
    )
)
_BRANCHES: Final = {
    "s_branch": "branch",
    "s_cbranch_scc0": "branch_scc0",
    "s_cbranch_scc1": "branch_scc1",
    "s_cbranch_vccz": "branch_vccz",
    "s_cbranch_vccnz": "branch_vccnz",
    "s_cbranch_execz": "branch_execz",
    "s_cbranch_execnz": "branch_execnz",
}
_DEALLOC_VGPRS: Final = 3  # s_sendmsg: the only message that a compute kernel may send
_READS_DESTINATION: Final = ("s_cmov", "s_bitset", "s_addk", "s_mulk", "s_cmpk", "s_fmac")
_HW_REG_MODE: Final = 1
_MINUS_ONE: Final = 193  # the inline constant


def translate_scalar(context: Context) -> None:
    """Adds the records of an instruction of SOP1, SOP2, SOPC, SOPK or SOPP."""
    name = context.instruction.name
    if name in _IGNORED:
        return
    if name in _BRANCHES:
        context.emit(_BRANCHES[name]).target = _branch_target(context)
        return
    special = _SPECIAL.get(name)
    if special is not None:
        special(context)
        return
    _compute(context)


def _branch_target(context: Context) -> int:
    return context.offset + 4 + 4 * signed16(context.instruction.fields["simm16"])


def _compute(context: Context) -> None:
    instruction = context.instruction
    fields, name = instruction.fields, instruction.name
    operation = context.operation(name)
    kinds = [kind for kind in operation.sources if kind != "scc"]
    rows = []
    for place, kind in enumerate(kinds):
        rows.append(_source(context, place, kind))
    results = [kind for kind in operation.results if kind != "scc"]
    targets = [context.scalar_result(fields["sdst"])] if results else []
    if len(results) > 1:
        targets.append(context.wave.scalar(EXEC))
    operands = dict(zip(("d", "e"), targets, strict=True)) if len(targets) == 2 else {}
    if len(targets) == 1:
        operands = {"d": targets[0]}
    operands |= dict(zip(("a", "b", "c"), rows, strict=False))
    context.emit_rounded(operation, **operands)


def _source(context: Context, place: int, kind: str) -> int:
    """The row of a source; behind those with a field come EXEC or the destination."""
    instruction = context.instruction
    fields, name = instruction.fields, instruction.name
    if instruction.opcode.format == "sopk":
        first_is_register = name.startswith("s_cmpk")
        if (place == 0) == first_is_register:
            return context.source(fields["sdst"], kind, None)
        value = fields["simm16"]
        unsigned = first_is_register and name.endswith("u32")
        return context.rows.constant((value if unsigned else signed16(value),))
    specs = [spec.field for spec in instruction.operands if spec.field != "sdst"]
    if place < len(specs) and specs[place] == "imm":
        return context.source(LITERAL, kind, instruction.literal)
    field = specs[place] if place < len(specs) else f"ssrc{place}"
    if field in fields and not (place == 1 and instruction.opcode.format == "sop1"):
        return context.source(fields[field], kind, instruction.literal)
    if "exec_" in name:
        return context.wave.scalar(EXEC)
    assert name.startswith(_READS_DESTINATION), name
    return context.source(fields["sdst"], kind, None)


def _end(context: Context) -> None:
    context.emit("end")


def _barrier(context: Context) -> None:
    context.emit("barrier")


def _split_barrier(context: Context) -> None:
    """S_BARRIER_SIGNAL and S_BARRIER_WAIT, of the workgroup's barrier."""
    instruction = context.instruction
    signals = instruction.opcode.format == "sop1"
    number = instruction.fields["ssrc0" if signals else "simm16"]
    if number != (_MINUS_ONE if signals else 0xFFFF):
        raise Untranslatable(f"{instruction.name} of barrier {number:#x} has no semantics here")
    context.emit("barrier_signal" if signals else "barrier_wait")


def _message(context: Context) -> None:
    number = context.instruction.fields["simm16"]
    if number != _DEALLOC_VGPRS:
        raise Untranslatable(f"s_sendmsg {number:#x}: there is nobody to take the message")


def _program_counter(context: Context) -> int:
    """Rows with the address behind this instruction."""
    address = context.base + context.offset + context.instruction.size
    return context.rows.constant((address & 0xFFFFFFFF, address >> 32))


def _copy_pair(context: Context, target: int, source: int) -> None:
    for row in range(ROWS_OF_KIND["i64"]):
        context.emit("copy", d=target + row * context.wave.row, a=source + row * context.wave.row)


def _get_pc(context: Context) -> None:
    target = context.scalar_result(context.instruction.fields["sdst"])
    _copy_pair(context, target, _program_counter(context))


def _set_pc(context: Context) -> None:
    source = context.source(context.instruction.fields["ssrc0"], "i64", None)
    context.emit("jump_register", a=source)


def _swap_pc(context: Context) -> None:
    source = context.source(context.instruction.fields["ssrc0"], "i64", None)
    temp = context.temp(2)
    _copy_pair(context, temp, source)
    _get_pc(context)
    context.emit("jump_register", a=temp)


def _call(context: Context) -> None:
    _get_pc(context)
    context.emit("branch").target = _branch_target(context)


def _set_register(context: Context) -> None:
    """S_SETREG: only of MODE, in which the rounding and denormal modes lie."""
    instruction = context.instruction
    place = instruction.fields["simm16"]
    if place & 63 != _HW_REG_MODE:
        raise Untranslatable(f"s_setreg of hardware register {place & 63} has no semantics here")
    if instruction.name == "s_setreg_imm32_b32":
        source = context.rows.constant((instruction.literal or 0,))
    else:
        source = context.source(instruction.fields["sdst"], "i32", None)
    context.emit("set_mode", a=source, aux=place >> 6)


def _get_register(context: Context) -> None:
    place = context.instruction.fields["simm16"]
    if place & 63 != _HW_REG_MODE:
        raise Untranslatable(f"s_getreg of hardware register {place & 63} has no semantics here")
    target = context.scalar_result(context.instruction.fields["sdst"])
    context.emit("get_mode", d=target, aux=place >> 6)


def _part_of_mode(first_bit: int) -> Callable[[Context], None]:
    def build(context: Context) -> None:
        source = context.rows.constant((context.instruction.fields["simm16"] & 15,))
        context.emit("set_mode", a=source, aux=first_bit | 3 << 5)

    return build


_SPECIAL: Final[dict[str, Callable[[Context], None]]] = {
    "s_endpgm": _end,
    "s_barrier": _barrier,
    "s_barrier_signal": _split_barrier,
    "s_barrier_wait": _split_barrier,
    "s_sendmsg": _message,
    "s_getpc_b64": _get_pc,
    "s_setpc_b64": _set_pc,
    "s_swappc_b64": _swap_pc,
    "s_call_b64": _call,
    "s_setreg_b32": _set_register,
    "s_setreg_imm32_b32": _set_register,
    "s_getreg_b32": _get_register,
    "s_round_mode": _part_of_mode(0),
    "s_denorm_mode": _part_of_mode(4),
}


def translate_smem(context: Context) -> None:
    """Adds the record of a scalar load."""
    instruction = context.instruction
    fields, name = instruction.fields, instruction.name
    if name in _IGNORED:
        return
    if not name.startswith("s_load"):
        raise Untranslatable(f"{name} has no semantics here")
    small = name.removeprefix("s_load_")
    function = f"scalar_load_{small}" if small[0] in "ui" else "scalar_load"
    count = next(spec.dwords for spec in instruction.operands if spec.field == "sdata")
    index = fields["soffset"]
    context.emit(
        function,
        d=context.scalar_result(fields["sdata"]),
        a=context.source(fields["sbase"] * 2, "i64", None),
        b=context.source(index, "i32", None) if index != NULL else context.rows.constant((0,)),
        immediate=fields["offset"],
        aux=count,
    )

"""What renderers ask of an instruction: whether the target has it."""

from __future__ import annotations

from typing import Final

from gpu.compiler.ir.linear import Inst, Program
from gpu.compiler.targets import Target
from gpu.compiler.targets.edges import Edge
from gpu.core.dtype import DType
from gpu.core.errors import Unsupported

_VALUE_OPS_OF_NARROW_FLOATS: Final = frozenset(
    {"const", "load", "store", "cast", "bitcast", "splat", "extract", "pack", "shuffle",
     "param", "val", "local", "loop", "carry", "end", "result", "copy", "fragment", "mma",
     "load_tile", "store_tile", "prefetch"}
)  # fmt: skip


def refuse_what_is_lacking(target: Target, program: Program, inst: Inst) -> None:
    """Raises Unsupported for an instruction that the target has no code for."""
    where = f"{target.name} with features '{target.features}'"
    if inst.op == "alu" and inst.attr[0] not in target.native.ops:
        raise Unsupported(
            f"{program.name}: {where} has no {inst.attr[0]}; legalize before rendering"
        )
    if inst.dtype in target.native.lacking:
        raise Unsupported(
            f"{program.name}: {target.name} has no {inst.dtype.name}; cast to another dtype, or use"
            " another device"
        )
    refuse_exchange(target, program, inst)
    refuse_extreme(target, program, inst)
    operands = (inst.dtype, *(a.dtype for a in inst.args))
    if inst.op not in _VALUE_OPS_OF_NARROW_FLOATS and any(map(is_narrow, operands)):
        names = [d.name for d in operands]
        raise Unsupported(
            f"{program.name}: {inst} on {names}: narrow floats have no arithmetic here;"
            " legalize before rendering"
        )
    if inst.op == "cast":
        for dtype in operands:
            if dtype in target.native.storage_only:
                raise Unsupported(
                    f"{program.name}: {where} cannot convert {dtype.name}; legalize before"
                    " rendering"
                )


def refuse_extreme(target: Target, program: Program, inst: Inst) -> None:
    """Raises Unsupported for `max` or `min` of floats where the language has no such operation."""
    if inst.op not in ("alu", "fold") or inst.attr[0] not in ("max", "min"):
        return
    edges = target.native.edges
    is_exact = f"{inst.attr[0]} {inst.dtype.code}" in edges.exact
    if inst.dtype.is_float and edges.extreme is Edge.NEVER and not is_exact:
        raise Unsupported(
            f"{program.name}: {target.name} has no {inst.attr[0]} of {inst.dtype.name} that is NaN"
            " where an operand is; guard its edges before rendering"
        )


def refuse_exchange(target: Target, program: Program, inst: Inst) -> None:
    """Raises Unsupported for a `shuffle_xor` that the target has no code for."""
    if inst.op != "shuffle_xor":
        return
    warp = inst.attr[1]
    if warp > target.shuffle or inst.dtype not in target.native.shuffled:
        raise Unsupported(
            f"{program.name}: {target.name} exchanges no {inst.dtype.name} among {warp} threads;"
            " see Target.shuffle and Native.shuffled"
        )


def is_narrow(dtype: DType) -> bool:
    """Whether a dtype is a float of less than 32 bits."""
    return dtype.is_float and dtype.bits < 32

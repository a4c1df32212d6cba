"""What the renderers for CPUs share: the calling convention, where locals live, what is refused.

The function printed is ``void NAME(ptr args, i64 worker, i64 workers)``. `args` points to words of
8 bytes: the address of each parameter in order, then that of scratch memory, of which the kernel
uses `workers * scratch_bytes(program)` bytes, aligned to 64, then the values of the launch.
`workers` calls with `worker` counting
from 0, in any order or at once, do the work of the kernel.

A `worker` loop gives each worker a contiguous run of its iterations, equal up to one; a worker loop
inside another, and a `grid` loop, run whole. What stands outside worker loops is done by every
worker. A block is one worker, so `team` memory is the worker's own and `barrier` prints nothing.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gpu.compiler.ir.linear import Inst, Program
from gpu.compiler.target import Target
from gpu.core.dtype import DType
from gpu.core.errors import Unsupported

STACK_LIMIT: Final = 16 << 10
"""Bytes of private locals that a kernel keeps on the stack; more go to scratch memory."""
LOCAL_ALIGN: Final = 64
"""Alignment of locals, in bytes."""
_VALUE_OPS_OF_NARROW_FLOATS: Final = frozenset(
    {"const", "load", "store", "cast", "bitcast", "splat", "extract", "pack", "shuffle",
     "param", "val", "local", "loop", "carry", "end", "result", "copy", "fragment", "mma",
     "load_tile", "store_tile", "prefetch"}
)  # fmt: skip


class Places(NamedTuple):
    """Where locals live: offsets into the worker's scratch memory; those without: on the stack."""

    offsets: dict[Inst, int]
    scratch: int


def place_locals(program: Program) -> Places:
    """A place for each local of a program."""
    offsets: dict[Inst, int] = {}
    stack = scratch = 0
    for inst in program.body:
        if inst.op != "local":
            continue
        elements, space = inst.attr
        size = -(-elements * inst.dtype.itemsize // LOCAL_ALIGN) * LOCAL_ALIGN
        if space == "private" and stack + size <= STACK_LIMIT:
            stack += size
        else:
            offsets[inst] = scratch
            scratch += size
    return Places(offsets, scratch)


def scratch_bytes(program: Program) -> int:
    """Scratch memory that each worker of a program needs, in bytes, a multiple of 64."""
    return place_locals(program).scratch


def launch_data(program: Program) -> dict[str, int]:
    """Bytes of scratch memory for each worker, and whether all workers run the kernel."""
    parallel = any(i.op == "loop" and i.attr[0] == "worker" for i in program.body)
    return {"scratch": scratch_bytes(program), "parallel": int(parallel)}


def refuse_what_is_lacking(target: Target, program: Program, inst: Inst) -> None:
    """Raises Unsupported for an instruction that the target has no code for."""
    where = f"{target.name} with features '{target.features}'"
    if inst.op == "alu" and inst.attr[0] not in target.native.ops:
        raise Unsupported(
            f"{program.name}: {where} has no {inst.attr[0]}; legalize before rendering"
        )
    refuse_exchange(target, program, inst)
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


def constant_value(inst: Inst) -> int | None:
    """What every lane of an integer value is known to hold."""
    if inst.op == "splat":
        return constant_value(inst.args[0])
    return inst.attr[0] if inst.op == "const" else None

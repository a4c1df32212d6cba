"""What the renderers for CPUs share: the calling convention and where locals live.

The function printed is ``void NAME(ptr args, i64 worker, i64 workers)``. `args` points to words of
8 bytes: the address of each parameter in order, then that of scratch memory, of which the kernel
uses `workers * scratch_bytes(program)` bytes, aligned to 64, then the values of the launch.
`workers` calls with `worker` counting from 0, in any order or at once, do the work of the kernel.

A `worker` loop gives each worker a contiguous run of its iterations, equal up to one; a worker loop
inside another, and a `grid` loop, run whole. What stands outside worker loops is done by every
worker. A block is one worker, so `team` memory is the worker's own and `barrier` prints nothing.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gpu.compiler.ir.linear import Inst, Program

STACK_LIMIT: Final = 16 << 10
"""Bytes of private locals that a kernel keeps on the stack; more go to scratch memory."""
LOCAL_ALIGN: Final = 64
"""Alignment of locals, in bytes."""


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

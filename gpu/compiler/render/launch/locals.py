"""Where the locals of a program live on an AMD GPU.

Team memory of blocks of threads is local memory of the workgroup. All else is private: on the
stack of each work-item as long as there is room, then in a workspace that the kernel is given, with
a part for each work-item.
"""

from __future__ import annotations

from typing import NamedTuple

from gpu.compiler.ir.linear import Inst, Program
from gpu.compiler.render.launch.grid import Grid
from gpu.core.errors import Unsupported

ALIGN = 16
"""Of locals, in bytes: the widest access."""


class Places(NamedTuple):
    """Where locals are.

    Attributes:
        shared: those in memory of the workgroup.
        offsets: of those in the workspace, in the part of a work-item; the rest is on the stack.
        workspace: bytes of a work-item's part, 0 where there is none.
    """

    shared: frozenset[Inst]
    offsets: dict[Inst, int]
    workspace: int


def place_locals(program: Program, grid: Grid, *, most_private: int, most_shared: int) -> Places:
    """A place for each local, with so many bytes at most of a work-item's and a workgroup's.

    Raises Unsupported for more local memory than a workgroup has.
    """
    stack = shared = workspace = 0
    in_block: list[Inst] = []
    offsets: dict[Inst, int] = {}
    for inst in program.body:
        if inst.op != "local":
            continue
        size = -(-inst.attr[0] * inst.dtype.itemsize // ALIGN) * ALIGN
        if grid.has_threads and inst.attr[1] == "team":
            in_block.append(inst)
            shared += size
        elif stack + size <= most_private:
            stack += size
        else:
            offsets[inst] = workspace
            workspace += size
    if shared > most_shared:
        raise Unsupported(
            f"{program.name} needs {shared:,} bytes of local memory for a workgroup, which has at"
            f" most {most_shared:,}"
        )
    return Places(frozenset(in_block), offsets, workspace)

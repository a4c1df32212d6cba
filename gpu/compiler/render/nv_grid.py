"""How programs are launched on NVIDIA GPUs: as on AMD's, a workgroup being a block of threads."""

from __future__ import annotations

from typing import NamedTuple

from gpu.compiler.ir.linear import Program
from gpu.compiler.render.amdgcn_grid import Grid, plan_grid
from gpu.compiler.render.amdgcn_locals import Places, place_locals
from gpu.compiler.render.nv_target import MOST_BLOCKS, PRIVATE_BYTES, SHARED_BYTES, WARP


def nv_grid(program: Program, most_blocks: int = MOST_BLOCKS) -> Grid:
    """The launch of a program. Raises what `plan_grid` raises."""
    return plan_grid(program, WARP, most_blocks)


def nv_places(program: Program, grid: Grid) -> Places:
    """Where its locals are. Raises Unsupported for more shared memory than a block has."""
    return place_locals(program, grid, most_private=PRIVATE_BYTES, most_shared=SHARED_BYTES)


class Members(NamedTuple):
    """The threads of a warp as a mask: `mask` for threads below `whole`, `rest` for the others."""

    whole: int
    mask: int
    rest: int


def warp_members(grid: Grid) -> Members:
    """Which threads exist of each warp; the last one of a block may have fewer."""
    rest = (1 << grid.block % WARP) - 1
    return Members(grid.block // WARP * WARP, (1 << WARP) - 1, rest)


def launch_data(program: Program) -> dict[str, int]:
    """What a launch needs to know.

    `groups` of the launch, threads of a `block`, bytes of `workspace` of all of them (0 where the
    kernel takes none), and how many of the parameters are `values`.
    """
    grid = nv_grid(program)
    each = nv_places(program, grid).workspace
    workspace = each * grid.groups * grid.block
    values = len(program.vals)
    return {"groups": grid.groups, "block": grid.block, "workspace": workspace, "values": values}

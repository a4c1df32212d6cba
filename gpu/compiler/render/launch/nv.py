"""How programs are launched on NVIDIA GPUs: as on AMD's, a workgroup being a block of threads."""

from __future__ import annotations

from typing import NamedTuple

from gpu.compiler.ir.linear import Inst, Program
from gpu.compiler.render.launch.grid import Grid, plan_grid
from gpu.compiler.render.launch.locals import ALIGN, Places, place_locals
from gpu.compiler.targets import Target
from gpu.compiler.targets.nvidia import MOST_BLOCKS, PRIVATE_BYTES, STATIC_SHARED_BYTES, WARP


class Shared(NamedTuple):
    """Shared memory that a launch asks for: `size` bytes of a block, and where in them locals are.

    None where the kernel declares what it has.
    """

    offsets: dict[Inst, int]
    size: int


def nv_grid(program: Program, most_blocks: int = MOST_BLOCKS) -> Grid:
    """The launch of a program. Raises what `plan_grid` raises."""
    return plan_grid(program, WARP, most_blocks)


def nv_places(program: Program, grid: Grid, target: Target) -> Places:
    """Where its locals are. Raises Unsupported for more shared memory than a block has."""
    most = target.shared_bytes
    return place_locals(program, grid, most_private=PRIVATE_BYTES, most_shared=most)


class Members(NamedTuple):
    """The threads of a warp as a mask: `mask` for threads below `whole`, `rest` for the others."""

    whole: int
    mask: int
    rest: int


def warp_members(grid: Grid) -> Members:
    """Which threads exist of each warp; the last one of a block may have fewer."""
    rest = (1 << grid.block % WARP) - 1
    return Members(grid.block // WARP * WARP, (1 << WARP) - 1, rest)


def nv_shared(program: Program, places: Places) -> Shared:
    """The shared memory that is not declared: all, where it is more than a kernel may declare."""
    offsets: dict[Inst, int] = {}
    size = 0
    for inst in program.body:
        if inst in places.shared:
            offsets[inst] = size
            size += -(-inst.attr[0] * inst.dtype.itemsize // ALIGN) * ALIGN
    return Shared(offsets, size) if size > STATIC_SHARED_BYTES else Shared({}, 0)


def launch_data(program: Program, target: Target) -> dict[str, int]:
    """What a launch needs to know.

    `groups` of the launch, threads of a `block`, bytes of `workspace` of all of them (0 where the
    kernel takes none), how many of the parameters are `values`, bytes of `shared` memory of a
    block that the kernel does not declare, and a bit for each buffer that is `written`.
    """
    grid = nv_grid(program)
    places = nv_places(program, grid, target)
    return {
        "groups": grid.groups,
        "block": grid.block,
        "workspace": places.workspace * grid.groups * grid.block,
        "values": len(program.vals),
        "shared": nv_shared(program, places).size,
        "written": sum(param.written << i for i, param in enumerate(program.params)),
    }

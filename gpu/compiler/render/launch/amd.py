"""How programs are launched on AMD GPUs: workgroups of work-items, which are threads of blocks."""

from __future__ import annotations

from gpu.compiler.ir.linear import Program
from gpu.compiler.render.launch.grid import Grid, plan_grid
from gpu.compiler.render.launch.locals import Places, place_locals
from gpu.compiler.targets.amd import Chip


def amd_places(program: Program, grid: Grid, chip: Chip) -> Places:
    """Where its locals are. Raises Unsupported for more local memory than a workgroup has."""
    return place_locals(program, grid, most_private=chip.private, most_shared=chip.shared)


def launch_data(program: Program, chip: Chip) -> dict[str, int]:
    """Workgroups of the launch, work-items of each, and bytes of workspace of them all."""
    grid = plan_grid(program, chip.wave)
    workspace = amd_places(program, grid, chip).workspace * grid.groups * grid.block
    return {"groups": grid.groups, "block": grid.block, "workspace": workspace}

"""How the loops of a program become workgroups and work-items.

With `thread` loops a workgroup is a block: an iteration of the grid loops, and its work-items are
the threads, the innermost loop counting fastest.

Without, the innermost grid loops, until they have enough iterations together, are spread over the
work-items of workgroups (the *lanes* part); a workgroup stays at one iteration of those around
them, so that what depends on these alone is uniform.

    workgroup = outer iteration * groups of lanes + group
    lane      = group * block + work-item        (idle where it is not below `lanes`)
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from gpu.compiler.ir.linear import Inst, Limit, Program
from gpu.core.errors import Unsupported, VerifyError

BLOCK: Final = 256
"""Work-items of a workgroup, at most."""
MOST_ITEMS: Final = 1024
"""Work-items of a workgroup that hardware has, at most."""
LAUNCH_ITEMS: Final = (1 << 31) - 1
"""Work-items of a launch, at most: they are counted in 31 bits."""
MOST_GROUPS: Final = LAUNCH_ITEMS // MOST_ITEMS
"""Workgroups of a launch that are within `LAUNCH_ITEMS` whatever their size."""


class Grid(NamedTuple):
    """The launch of a program.

    Attributes:
        outer: grid loops whose iterations workgroups stand for, outermost first.
        inner: loops that are spread over work-items.
        block: work-items of a workgroup.
        lane_groups: workgroups that share the lanes of one outer iteration.
    """

    outer: tuple[Inst, ...]
    inner: tuple[Inst, ...]
    block: int
    lane_groups: int

    @property
    def has_threads(self) -> bool:
        """Whether work-items are threads of a block, which share memory and meet at barriers."""
        return bool(self.inner) and self.inner[0].attr[0] == "thread"

    @property
    def lanes(self) -> int:
        """Iterations of the inner loops together."""
        return math.prod(map(trips, self.inner))

    @property
    def groups(self) -> int:
        """Workgroups of the launch."""
        return math.prod(map(trips, self.outer)) * self.lane_groups


def plan_grid(program: Program, wave: int, most_groups: int | None = None) -> Grid:
    """The launch of a program on a machine with waves of `wave` lanes, of at most so many groups.

    Without a number of groups those that `LAUNCH_ITEMS` work-items make up are the most.

    Raises VerifyError for grid loops that are not nested in each other, Unsupported for more
    iterations than a launch has.
    """
    threads = _nest(program, "thread")
    loops = _nest(program, "grid")
    if threads:
        blocks = Grid(loops, threads, math.prod(map(trips, threads)), 1)
        return _checked(program, blocks, most_groups)
    if not loops:
        return Grid((), (), 1, 1)
    split = len(loops) if all(map(trips, loops)) else 0
    while split and math.prod(map(trips, loops[split:])) < BLOCK:
        split -= 1
    lanes = math.prod(map(trips, loops[split:]))
    lane_groups = max(-(-lanes // BLOCK), 1)
    block = max(-(-lanes // (lane_groups * wave)), 1) * wave
    return _checked(program, Grid(loops[:split], loops[split:], block, lane_groups), most_groups)


def _checked(program: Program, grid: Grid, most_groups: int | None) -> Grid:
    most = LAUNCH_ITEMS // grid.block if most_groups is None else most_groups
    if grid.groups > most or grid.block > MOST_ITEMS:
        raise Unsupported(
            f"{program.name} has {grid.groups:,} workgroups of {grid.block} work-items, a launch at"
            f" most {most:,} of at most {MOST_ITEMS}: use smaller tensors"
        )
    return grid


def trips(loop: Inst) -> int:
    """Iterations of a loop, at most."""
    _, start, stop, step = loop.attr
    most: int = stop.most if isinstance(stop, Limit) else stop
    count: int = -(-(most - start) // step)
    return max(0, count)


def _nest(program: Program, kind: str) -> tuple[Inst, ...]:
    """The loops of a kind, outermost first."""
    found: list[Inst] = []
    around: list[Inst] = []
    for inst in program.body:
        if inst.op == "end":
            around.pop()
        elif inst.op == "loop":
            if inst.attr[0] == kind:
                if [loop for loop in around if loop.attr[0] not in ("grid", kind)] or (
                    [loop for loop in around if loop.attr[0] == kind] != found
                ):
                    raise VerifyError(
                        f"{program.name}: {inst} is not directly inside the {kind} loops before it:"
                        " those of a launch are one nest"
                    )
                found.append(inst)
            around.append(inst)
    return tuple(found)

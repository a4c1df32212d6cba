"""How a program spreads over the work items of a launch.

`worker` loops: one work item is a worker, alone in its group; each gets a contiguous run of the
iterations, equal up to one. `grid` loops: up to three of them become the dimensions of the launch;
a work item takes every iteration that its place in a dimension and the size of that dimension
lead to, so that any number of items does all the work.

With `thread` loops a group of work items is a block, whose threads are the loops' iterations: then
groups take the iterations of grid loops, and items those of thread loops.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from gpu.compiler.ir.linear import Inst, Limit, Program, block_size
from gpu.compiler.render.launch.cpu_abi import Places, place_locals
from gpu.compiler.targets import Target
from gpu.core.errors import Unsupported

DIMENSIONS: Final = 3
GROUP: Final = 64
"""Work items of a group of a grid launch: one or two waves of every GPU."""
MAX_ITEMS: Final = 1 << 22
"""Work items of a grid launch."""
MAX_SCRATCH: Final = 1 << 26
"""Bytes of scratch memory of all items of a grid launch."""


class Spread(NamedTuple):
    """The launch of a program.

    Attributes:
        dimension: of each grid loop that is spread out.
        thread: dimension of each thread loop.
        items: work items in each dimension, whole groups.
        group: those of one group.
        places: where locals live; those without a place are private arrays.
    """

    dimension: Mapping[Inst, int]
    thread: Mapping[Inst, int]
    items: tuple[int, int, int]
    group: tuple[int, int, int]
    places: Places

    @property
    def scratch(self) -> int:
        """Bytes of scratch memory for all work items."""
        x, y, z = self.items
        return self.places.scratch * x * y * z


def spread_program(program: Program, target: Target) -> Spread:
    """How to launch a program on a target."""
    places = place_locals(program)
    if target.parallel == "worker":
        shared = any(i.op == "loop" and i.attr[0] == "worker" for i in program.body)
        workers = target.workers if shared else 1
        return Spread({}, {}, (workers, 1, 1), (1, 1, 1), places)
    loops = _largest(common_grid_loops(program))
    # The innermost loop walks memory: neighbours in a group should do so.
    dimension = {loop: position for position, loop in enumerate(reversed(loops))}
    trips = [_trips(loop) for loop in reversed(loops)] + [1] * (DIMENSIONS - len(loops))
    if block_size(program):
        return _spread_blocks(program, dimension, trips)
    room = MAX_ITEMS
    if places.scratch:
        room = max(MAX_SCRATCH // places.scratch, 1)
    group, items = _sizes(trips, room)
    return Spread(dimension, {}, items, group, places)


def _spread_blocks(program: Program, dimension: Mapping[Inst, int], trips: Sequence[int]) -> Spread:
    """Groups for the grid loops of these dimensions and trips, with an item for each thread."""
    loops = [i for i in program.body if i.op == "loop" and i.attr[0] == "thread"]
    if len(loops) > DIMENSIONS:
        raise Unsupported(f"{program.name}: groups have {DIMENSIONS} dimensions, not {len(loops)}")
    thread = {loop: position for position, loop in enumerate(reversed(loops))}
    group = [_trips(loop) for loop in reversed(loops)] + [1] * (DIMENSIONS - len(loops))
    room = max(MAX_ITEMS // math.prod(group), 1)
    items = []
    for count, size in zip(trips, group, strict=True):
        groups = max(min(count, room), 1)
        room //= groups
        items.append(groups * size)
    return Spread(dimension, thread, _triple(items), _triple(group), Places({}, 0))


def _triple(sizes: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = sizes
    return x, y, z


def common_grid_loops(program: Program) -> list[Inst]:
    """The grid loops around every store of a program, outermost first.

    Nothing outside of them has an effect, so that each of their iterations can be run anywhere.
    """
    around: list[Inst] = []
    common: list[Inst] | None = None
    for inst in program.body:
        if inst.op == "loop":
            around.append(inst)
        elif inst.op == "end":
            around.pop()
        elif inst.op == "store":
            grid = _leading_grid(around)
            common = grid if common is None else _same_start(common, grid)
    return common or []


def _leading_grid(around: Sequence[Inst]) -> list[Inst]:
    leading = []
    for loop in around:
        if loop.attr[0] != "grid":
            break
        leading.append(loop)
    return leading


def _same_start(a: Sequence[Inst], b: Sequence[Inst]) -> list[Inst]:
    same = []
    for one, other in zip(a, b, strict=False):
        if one is not other:
            break
        same.append(one)
    return same


def _largest(loops: list[Inst]) -> list[Inst]:
    """As many of the loops as there are dimensions, those with most iterations, in order."""
    chosen = sorted(loops, key=_trips, reverse=True)[:DIMENSIONS]
    return [loop for loop in loops if loop in chosen]


def _trips(loop: Inst) -> int:
    """Iterations of a loop, the most there can be."""
    _, start, stop, step = loop.attr
    last = stop.most if isinstance(stop, Limit) else stop
    return int(max(0, -(-(last - start) // step)))


def _sizes(trips: Sequence[int], room: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Group and items for loops of so many iterations, with `room` for so many items at once."""
    group: list[int] = []
    items: list[int] = []
    for count in trips:
        left = min(GROUP // math.prod(group), room // max(math.prod(items), 1))
        size = 1
        while size * 2 <= min(left, max(count, 1)):
            size *= 2
        group.append(size)
        fitting = max(room // max(math.prod(items), 1) // size, 1)
        items.append(min(-(-max(count, 1) // size), fitting) * size)
    return _triple(group), _triple(items)

"""How a program is launched in WebGPU: its workgroups, its bindings, the memory beside them.

Binding 0 and on are the parameters in order, some of them as textures. Then comes a buffer for the
`local`s that are too large for an invocation, and a uniform buffer with the values of the launch as
a struct of i32; either only where there are any.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from gpu.compiler.ir.linear import Inst, Limit, Program, block_size
from gpu.compiler.render.wgsl.memory import loaded_in_quads
from gpu.core.dtype import dtypes
from gpu.core.errors import Unsupported

PRIVATE_BYTES: Final = 512
"""What the variables of an invocation may take. They begin as zeros, which compilers write out one
by one; WGSL itself allows 8192 bytes (https://www.w3.org/TR/WGSL/ section 2.4, Limits)."""
INVOCATIONS: Final = 64
"""Of a workgroup, where the program has no `thread` loops: what every vendor's warps divide."""

_WORD: Final = 4  # bytes: what an element of a `local` takes, however narrow
MOST_REPEATS: Final = 64
"""Copies of a loop's body, where a device limits the rounds of loops."""


class Shape(NamedTuple):
    """The iterations of a launch.

    Attributes:
        grid: the `grid` loops with their extents, the innermost last.
        threads: iterations of the `thread` loops, the innermost last; () where there are none.
        groups: workgroups that have something to do.
        size: invocations of a workgroup, x first; all along x where those of a subgroup exchange
            values, which are then neighbours.
        counts: workgroups launched in x, y and z.
    """

    grid: tuple[tuple[Inst, int], ...]
    threads: tuple[int, ...]
    groups: int
    size: tuple[int, int, int]
    counts: tuple[int, int, int]

    @property
    def iterations(self) -> int:
        """Of all grid loops together."""
        return math.prod(extent for _, extent in self.grid)

    @property
    def invocations(self) -> int:
        """Of all workgroups that have something to do."""
        return self.groups * math.prod(self.size)

    def counter(self, rank: int) -> str:
        """The counter of a thread loop, of which the outermost has rank 0, as an u32."""
        if self.size[1] > 1:
            return f"thread.{'xyz'[len(self.threads) - 1 - rank]}"
        stride, extent = math.prod(self.threads[rank + 1 :]), self.threads[rank]
        text = f"thread.x / {stride}u" if stride > 1 else "thread.x"
        return f"{text} % {extent}u" if rank else text


def shape_of(program: Program, most_groups: int) -> Shape:
    """The shape of a launch with at most `most_groups` workgroups in each dimension.

    Raises Unsupported where it takes more.
    """
    loops = [i for i in program.body if i.op == "loop" and i.attr[0] == "grid"]
    grid = tuple((loop, _extent(loop)) for loop in loops)
    iterations = math.prod(extent for _, extent in grid)
    threads = block_size(program)
    if len(threads) > 3:
        raise Unsupported(f"{program.name}: WebGPU has blocks of 3 dimensions, not {len(threads)}")
    if threads:
        x, y, z = (*reversed(threads), 1, 1)[:3]
        exchanges = any(i.op == "shuffle_xor" for i in program.body)
        size, groups = (x * y * z, 1, 1) if exchanges else (x, y, z), iterations
    else:
        size = (min(INVOCATIONS, iterations), 1, 1)
        groups = -(-iterations // size[0])
    if groups * math.prod(size) >= 1 << 31:
        raise Unsupported(
            f"{program.name}: a launch of {iterations:,} iterations, 2**31 are too many for WebGPU;"
            " use smaller tensors"
        )
    return Shape(grid, threads, groups, size, _folded(program.name, groups, most_groups))


def _extent(loop: Inst) -> int:
    stop = loop.attr[2]
    most: int = stop.most if isinstance(stop, Limit) else stop
    return max(most, 1)


def _folded(name: str, groups: int, most: int) -> tuple[int, int, int]:
    """Workgroups in three dimensions, `groups` or slightly more."""
    x = min(groups, most)
    y = min(-(-groups // x), most)
    z = -(-groups // (x * y))
    if z > most:
        raise Unsupported(f"{name}: {groups:,} workgroups, {most:,} a dimension are allowed")
    return x, y, z


def spills_of(program: Program, shape: Shape, has_f16: bool) -> dict[Inst, int]:
    """The locals that do not fit an invocation's own memory, with where they start in the buffer.

    The buffer has words of 32 bits; each element takes as many as there are invocations.
    """
    spilled: dict[Inst, int] = {}
    private = words = 0
    for inst in program.body:
        if inst.op != "local" or (shape.threads and inst.attr[1] == "team"):
            continue
        size = inst.attr[0] * _WORD
        is_word = not (has_f16 and inst.dtype is dtypes.float16)
        if private + size <= PRIVATE_BYTES or not is_word:
            private += size
        else:
            spilled[inst] = words
            words += inst.attr[0] * shape.invocations
    return spilled


def spilled_bytes(spilled: Mapping[Inst, int], shape: Shape) -> int:
    """The size of the buffer of spilled memory."""
    if not spilled:
        return 0
    last, start = list(spilled.items())[-1]
    elements: int = last.attr[0]
    return (start + elements * shape.invocations) * _WORD


def launch_data(program: Program, most_groups: int, has_f16: bool) -> dict[str, int]:
    """What launching takes besides the code: counts, which buffers are written, and extra memory.

    `written` and `textures` have a bit for each parameter, `spilled` is in bytes, `vals` a number
    of values.
    """
    shape = shape_of(program, most_groups)
    data = {
        "params": len(program.params),
        "written": sum(1 << i for i, p in enumerate(program.params) if p.written),
        "textures": sum(1 << i for i in textures_of(program)),
        "vals": len(program.vals),
    }
    data |= dict(zip("xyz", shape.counts, strict=True))
    spilled = spills_of(program, shape, has_f16)
    return data | {"spilled": spilled_bytes(spilled, shape)}


def textures_of(program: Program) -> set[int]:
    """The parameters that are bound as textures: those loaded four elements at a time."""
    return {pointer.attr[0] for pointer in loaded_in_quads(program.body)}


def repeats_of(program: Program, most: int) -> dict[Inst, int]:
    """How often to write out the bodies of loops, so that an invocation has `most` rounds at most.

    Of all loops together; 0 is any number. Raises Unsupported where writing out does not help.
    """
    loops = _serial_loops(program)
    for count in range(1, MOST_REPEATS + 1):
        repeats = {loop: count for loop, (_, is_innermost) in loops.items() if is_innermost}
        if not most or _rounds(loops, repeats) <= most:
            return repeats if count > 1 else {}
    raise Unsupported(
        f"{program.name}: loops of {_rounds(loops, {}):,} rounds in one invocation, but this"
        f" device's compiler stops after {most:,}; use smaller tensors, or another device"
    )


def _rounds(loops: Mapping[Inst, tuple[int, bool]], repeats: Mapping[Inst, int]) -> int:
    """The rounds of all loops of an invocation; that in which a loop finds its end is one more."""
    return sum(
        entered * (-(-_extent(loop) // repeats.get(loop, 1)) + 1)
        for loop, (entered, _) in loops.items()
    )


def _serial_loops(program: Program) -> dict[Inst, tuple[int, bool]]:
    """Of each serial loop how often an invocation enters it, and whether no other is inside."""
    loops: dict[Inst, tuple[int, bool]] = {}
    stack: list[Inst] = []
    for inst in program.body:
        if inst.op == "loop" and inst.attr[0] == "serial":
            entered = 1
            if stack:
                around = stack[-1]
                entered = loops[around][0] * _extent(around)
                loops[around] = loops[around][0], False
            loops[inst] = entered, True
            stack.append(inst)
        elif inst.op == "end" and inst.attr[0] in loops:
            stack.pop()
    return loops

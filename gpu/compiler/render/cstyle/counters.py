"""Which iteration of the loops that a launch spreads is a thread's, as lines of a kernel."""

from __future__ import annotations

from typing import Final, NamedTuple

from gpu.compiler.ir.linear import Inst
from gpu.compiler.render.cstyle.text import Emitter, Language, Value
from gpu.compiler.render.launch.grid import Grid, trips

_MOST_SHORT: Final = 1 << 31  # threads of a launch whose numbers fit 32 bits, with room to spare


class ThreadId(NamedTuple):
    """The words for the number of this thread's block, and for its own in the block."""

    block: str
    thread: str


def counter_lines(
    grid: Grid, language: Language, emitter: Emitter, narrow: frozenset[Inst], thread: ThreadId
) -> tuple[dict[Inst, Value], list[str]]:
    """The counters of all loops of a launch, and the lines that compute them.

    A variable `lane` is the number of the thread among those of its outer iteration. Counters are
    ints for the loops in `narrow`, else longs; `emitter` names them.
    """
    if not grid.outer and not grid.inner:
        return {}, []
    number = "uint" if grid.groups * grid.block < _MOST_SHORT else "ulong"
    groups = grid.lane_groups
    lines = [
        f"  const {number} outer = {thread.block} / {groups};",
        f"  const {number} lane ="
        f" ({number})({thread.block} % {groups}) * {grid.block} + {thread.thread};",
    ]
    counters: dict[Inst, Value] = {}
    for nest, index in ((grid.outer, "outer"), (grid.inner, "lane")):
        lines += _count(nest, index, number, counters, language, emitter, narrow)
    return counters, lines


def _count(
    loops: tuple[Inst, ...],
    index: str,
    number: str,
    counters: dict[Inst, Value],
    language: Language,
    emitter: Emitter,
    narrow: frozenset[Inst],
) -> list[str]:
    """Lines for the counters of nested loops, from the number of the iteration."""
    lines = []
    for position in reversed(range(len(loops))):
        loop, count = loops[position], max(trips(loops[position]), 1)
        trip, rest = index, index
        if position:
            trip = f"{index} % {count}"
            rest = emitter.name("rest")
            lines.append(f"  const {number} {rest} = {index} / {count};")
        _, start, _, step = loop.attr
        kind = language.type("i32" if loop in narrow else "i64")
        counter = Value(kind, emitter.name("n"))
        scaled = f" * {step}" * (step != 1) + f" + {start}" * (start != 0)
        lines.append(f"  const {kind} {counter} = ({kind})({trip}){scaled};")
        counters[loop] = counter
        index = rest
    return lines

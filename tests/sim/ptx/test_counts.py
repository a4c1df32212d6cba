"""How many instructions a grid has executed: as counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.sim.isa import layout
from gpu.sim.isa.memorymap import MemoryMap
from gpu.sim.isa.ptx.data import place_module
from gpu.sim.isa.ptx.engine import shared_engine
from gpu.sim.isa.ptx.program import Program
from gpu.sim.isa.ptx.run import Grid
from gpu.sim.isa.ptx.warps import GridShape

HEAD = ".version 8.6\n.target sm_90\n.address_size 64\n"
REGISTERS = ".reg .pred %p<4>; .reg .b32 %r<9>;"
COUNTED = {
    "straight": ("mov.u32 %r0, 1; add.u32 %r0, %r0, 2; ret;", 3),
    "without ret": ("mov.u32 %r0, 1; add.u32 %r0, %r0, 2;", 2),
    "exit in the middle": ("mov.u32 %r0, 1; exit; mov.u32 %r0, 2;", 2),
    "a loop": (
        "mov.u32 %r0, 0; L: add.u32 %r0, %r0, 1; setp.lt.u32 %p0, %r0, 10; @%p0 bra L; ret;",
        1 + 3 * 10 + 1,
    ),
    "over some": ("bra L; mov.u32 %r0, 1; mov.u32 %r0, 2; L: mov.u32 %r0, 3; ret;", 3),
    # Both ways of a branch that lanes part at, 2 and 1 long, and what they do together again.
    "both ways": (
        "mov.u32 %r0, %tid.x; and.b32 %r0, %r0, 31; setp.lt.u32 %p0, %r0, 5; @%p0 bra L;"
        " mov.u32 %r1, 1; mov.u32 %r1, 2; bra M; L: mov.u32 %r1, 3; M: mov.u32 %r2, 4; ret;",
        4 + 3 + 1 + 2,
    ),
    "barriers": ("mov.u32 %r0, 1; bar.sync 0; mov.u32 %r0, 2; bar.sync 0; ret;", 5),
    "guarded": ("setp.eq.u32 %p0, 1, 2; @%p0 mov.u32 %r0, 1; mov.u32 %r0, 2; ret;", 4),
    # Lane n goes round n + 1 times; the others wait behind.
    "loops of lanes": (
        "mov.u32 %r0, 0; mov.u32 %r1, %tid.x; and.b32 %r1, %r1, 31;"
        " L: add.u32 %r0, %r0, 1; setp.le.u32 %p0, %r0, %r1; @%p0 bra L; ret;",
        3 + 3 * 32 + 1,
    ),
    "turns": (
        "mov.u32 %r0, 0; L: add.u32 %r0, %r0, 1; setp.lt.u32 %p0, %r0, 5000; @%p0 bra L; ret;",
        1 + 3 * 5000 + 1,
    ),
}


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize(("blocks", "threads"), [(1, 32), (3, 64), (2, 40)])
def test_instructions_of_a_grid(name: str, blocks: int, threads: int) -> None:
    body, each = COUNTED[name]
    module = place_module(f"{HEAD}.entry k() {{ {REGISTERS} {body} }}")
    program, memory = Program(shared_engine(), module, "k"), MemoryMap()
    data = np.zeros(16, np.uint8)
    memory.add(0x1000, 16, data.ctypes.data, layout.READ)
    shape = GridShape((blocks, 1, 1), (threads, 1, 1), b"", 0)
    grid = Grid(shared_engine(), program, shape, memory, seed=3)
    grid.run()
    warps = -(-threads // 32)
    short = name == "loops of lanes" and threads == 40  # eight lanes go round 8 times at most
    assert grid.instructions == blocks * (warps * each - 3 * 24 * short)

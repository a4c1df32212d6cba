"""The loop over waves, of both instruction sets: what it computes, counts and charges.

Random programs are compared with a plain interpretation, one wave after the other.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from gpu.sim.isa import layout, scheduler
from gpu.sim.isa.grid import LaneGrid
from gpu.sim.isa.memorymap import MemoryMap
from gpu.sim.isa.ptx.data import place_module
from gpu.sim.isa.ptx.engine import shared_engine
from gpu.sim.isa.ptx.program import Program
from gpu.sim.isa.ptx.run import Grid
from gpu.sim.isa.ptx.warps import GridShape
from gpu.sim.isa.rdna.dispatch import Dispatch
from gpu.sim.isa.rdna.run import Machine
from gpu.sim.isa.waves import aligned_bytes
from sim.isa.asm import END, V, op
from sim.isa.programs import Change, Loop, Plain, Statement, interpret, random_phases

READ_WRITE = layout.READ | layout.WRITE | layout.ATOMIC
ZERO, ONE = 128, 129
_SALU = {"add": "s_add_u32", "sub": "s_sub_u32", "xor": "s_xor_b32", "mul": "s_mul_i32"}
_PTX = {"add": "add.u32", "sub": "sub.u32", "xor": "xor.b32", "mul": "mul.lo.u32"}


@pytest.fixture(autouse=True)
def needs_llvm(need: Callable[[str], None]) -> None:
    need("llvmlite")


class Shape(NamedTuple):
    """Workgroups, waves of one, and work-items that the last wave lacks."""

    groups: int
    waves: int
    missing: int = 0


class Target:
    """An instruction set that programs are written in.

    Attributes:
        costs: instructions of what `Plain` counts, by name.
        around: instructions at the beginning and the end.
    """

    lanes: int
    costs: dict[str, int]
    around: int

    def grid(
        self, phases: list[list[Statement]], shape: Shape, out: npt.NDArray[np.uint32], seed: int
    ) -> LaneGrid:
        """A grid that leaves the numbers of all waves in `out`."""
        raise NotImplementedError

    def threads(self, shape: Shape) -> int:
        """Work-items of a workgroup."""
        return shape.waves * self.lanes - shape.missing


class Rdna(Target):
    """Machine code of RDNA3: numbers are in s8 on, counts of loops in s16 on.

    s[0:1] is where they go, s2 the waves of a workgroup, s3 its id, s7 and v2 that of the wave,
    v4 that of the wave behind it.
    """

    costs = {"change": 1, "loop": 2, "round": 3, "condition": 2, "exchange": 6}
    around = 12 + 13

    def __init__(self, lanes: int):
        self.lanes = lanes

    def grid(
        self, phases: list[list[Statement]], shape: Shape, out: npt.NDArray[np.uint32], seed: int
    ) -> LaneGrid:
        code = self._begin() + self._exchange().join(self._of(each, 0) for each in phases)
        code += self._end()
        self.text = aligned_bytes(len(code), 256)
        self.text[:] = np.frombuffer(code, np.uint8)
        memory, at, address = MemoryMap(), self.text.ctypes.data, out.ctypes.data
        memory.add(at, len(code), at, layout.READ)
        memory.add(address, out.nbytes, address, READ_WRITE)
        dispatch = Dispatch(
            pc=at,
            grid=(shape.groups, 1, 1),
            block=(self.threads(shape), 1, 1),
            user_sgprs=(address & 0xFFFFFFFF, address >> 32, shape.waves),
            lds_bytes=4 * shape.waves,
            vgprs=8,
            lanes=self.lanes,
        )
        return Machine(memory, seed=seed).start(dispatch)

    def _begin(self) -> bytes:
        shift = self.lanes.bit_length() - 1
        code = op("v_lshrrev_b32", vdst=2, src0=ZERO + shift, vsrc1=0)
        code += op("v_readfirstlane_b32", vdst=7, src0=V + 2)
        code += op("s_mov_b32", sdst=8, ssrc0=7) + op("s_mov_b32", sdst=9, ssrc0=3)
        code += op("s_add_u32", sdst=10, ssrc0=7, ssrc1=3)
        code += op("s_add_u32", sdst=11, ssrc0=10, ssrc1=7)
        code += op("s_add_u32", sdst=6, ssrc0=7, ssrc1=ONE) + op("s_cmp_lt_u32", ssrc0=6, ssrc1=2)
        code += op("s_cselect_b32", sdst=6, ssrc0=6, ssrc1=ZERO)
        code += op("s_lshl_b32", sdst=6, ssrc0=6, ssrc1=ZERO + 2)
        code += op("v_lshlrev_b32", vdst=2, src0=ZERO + 2, vsrc1=2)
        return code + op("v_mov_b32", vdst=4, src0=6)

    def _exchange(self) -> bytes:
        code = op("v_mov_b32", vdst=1, src0=8) + op("ds_store_b32", addr=2, data0=1)
        code += op("s_barrier") + op("ds_load_b32", vdst=3, addr=4)
        return code + op("v_readfirstlane_b32", vdst=9, src0=V + 3) + op("s_barrier")

    def _end(self) -> bytes:
        code = op("s_mul_i32", sdst=12, ssrc0=3, ssrc1=2)
        code += op("s_add_u32", sdst=12, ssrc0=12, ssrc1=7)
        code += op("s_lshl_b32", sdst=12, ssrc0=12, ssrc1=ZERO + 4) + op(
            "v_mov_b32", vdst=5, src0=12
        )
        for number in range(4):
            code += op("v_mov_b32", vdst=1, src0=8 + number)
            code += op("global_store_b32", addr=5, data=1, saddr=0, offset=4 * number)
        return code + END

    def _of(self, statements: list[Statement], depth: int) -> bytes:
        return b"".join(self._statement(each, depth) for each in statements)

    def _statement(self, each: Statement, depth: int) -> bytes:
        if isinstance(each, Change):
            target = 8 + each.target
            return op(_SALU[each.operation], sdst=target, ssrc0=target, ssrc1=8 + each.source)
        body = self._of(each.body, depth + 1)
        if isinstance(each, Loop):
            count = 16 + depth
            body += op("s_sub_u32", sdst=count, ssrc0=count, ssrc1=ONE)
            body += op("s_cmp_lg_u32", ssrc0=count, ssrc1=ZERO)
            back = -(len(body) // 4 + 1) & 0xFFFF
            begin = op("s_and_b32", sdst=count, ssrc0=8 + each.number, ssrc1=ZERO + 3)
            begin += op("s_add_u32", sdst=count, ssrc0=count, ssrc1=ONE)
            return begin + body + op("s_cbranch_scc1", simm16=back)
        test = op("s_cmp_lt_u32", ssrc0=8 + each.left, ssrc1=8 + each.right)
        return test + op("s_cbranch_scc1", simm16=len(body) // 4) + body


class Ptx(Target):
    """PTX: %w is the warp, %g the block."""

    lanes = 32
    costs = {"change": 1, "loop": 2, "round": 3, "condition": 2, "exchange": 4}
    around = 12 + 9

    def grid(
        self, phases: list[list[Statement]], shape: Shape, out: npt.NDArray[np.uint32], seed: int
    ) -> LaneGrid:
        self.labels = 0
        exchange = "st.shared.u32 [%a], %r0; bar.sync 0; ld.shared.u32 %r1, [%n]; bar.sync 0;"
        body = exchange.join(self._of(each, 0) for each in phases)
        stores = "".join(f"st.global.u32 [%d+{4 * n}], %r{n};" for n in range(4))
        text = f"""
.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p) {{
  .reg .pred %p; .reg .b32 %r<4>; .reg .b32 %c<9>; .reg .b32 %w; .reg .b32 %g; .reg .b32 %n;
  .reg .b32 %a; .reg .b64 %d; .reg .b64 %e;
  mov.u32 %w, %tid.x; shr.u32 %w, %w, 5; mov.u32 %g, %ctaid.x;
  mov.u32 %r0, %w; mov.u32 %r1, %g; add.u32 %r2, %w, %g; add.u32 %r3, %r2, %w;
  add.u32 %n, %w, 1; setp.lt.u32 %p, %n, {shape.waves}; selp.u32 %n, %n, 0, %p;
  shl.b32 %n, %n, 2; shl.b32 %a, %w, 2;
  {body}
  mad.lo.u32 %w, %g, {shape.waves}, %w; mul.wide.u32 %d, %w, 16; ld.param.u64 %e, [p];
  add.u64 %d, %d, %e; {stores} ret;
}}"""
        self.module = place_module(text)
        memory = MemoryMap()
        memory.add(out.ctypes.data, out.nbytes, out.ctypes.data, READ_WRITE)
        parameters = out.ctypes.data.to_bytes(8, "little")
        block = (self.threads(shape), 1, 1)
        launch = GridShape((shape.groups, 1, 1), block, parameters, 4 * shape.waves)
        program = Program(shared_engine(), self.module, "k")
        return Grid(shared_engine(), program, launch, memory, seed=seed)

    def _of(self, statements: list[Statement], depth: int) -> str:
        return " ".join(self._statement(each, depth) for each in statements)

    def _statement(self, each: Statement, depth: int) -> str:
        if isinstance(each, Change):
            return f"{_PTX[each.operation]} %r{each.target}, %r{each.target}, %r{each.source};"
        self.labels += 1
        label = f"L{self.labels}"
        body = self._of(each.body, depth + 1)
        if isinstance(each, Loop):
            count = f"%c{depth}"
            return (
                f"and.b32 {count}, %r{each.number}, 3; add.u32 {count}, {count}, 1; {label}: {body}"
                f" sub.u32 {count}, {count}, 1; setp.ne.u32 %p, {count}, 0; @%p bra {label};"
            )
        test = f"setp.lt.u32 %p, %r{each.left}, %r{each.right}; @%p bra {label};"
        return f"{test} {body} {label}:"


TARGETS = {"wave32": Rdna(32), "wave64": Rdna(64), "ptx": Ptx()}


def steps(grid: LaneGrid, budget: int) -> int:
    """How many steps a grid takes."""
    count = 1
    while not grid.step(budget):
        count += 1
    return count


def charged(waves: list[Plain]) -> int:
    """What a budget is charged for: branches, both barriers of each exchange, ends."""
    return sum(wave.branches + 2 * wave.done.get("exchange", 0) + 1 for wave in waves)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", range(12))
def test_random_programs(target: str, seed: int) -> None:
    """Results, instructions and charges are those of the plain interpretation."""
    written, rng = TARGETS[target], random.Random(seed)
    phases = random_phases(rng)
    shape = Shape(rng.choice([1, 3, 70]), rng.randint(1, 8), rng.randrange(written.lanes))
    wanted = interpret(phases, shape.groups, shape.waves)
    budget = rng.choice([1, 2, 7, 100, 1 << 20])
    out = np.zeros((len(wanted), 4), np.uint32)
    grid = written.grid(phases, shape, out, seed)
    assert steps(grid, budget) == -(-charged(wanted) // budget)
    np.testing.assert_array_equal(out, [wave.numbers for wave in wanted])
    each = (sum(written.costs[k] * n for k, n in wave.done.items()) for wave in wanted)
    assert grid.instructions == sum(each) + written.around * len(wanted)
    assert grid.step(1)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", range(4))
def test_a_wave_gives_way_after_a_slice(target: str, seed: int) -> None:
    """Workgroup 3 could use the whole budget up; the others have their turns meanwhile."""
    nest: list[Statement] = [Change("add", 2, 2)]
    for _ in range(7):
        nest = [Loop(1, nest)]
    wanted = interpret([nest], 4, 1)
    assert wanted[3].branches > 16 * scheduler.SLICE and wanted[2].branches < 3 * scheduler.SLICE
    out = np.full((4, 4), 0xFFFFFFFF, np.uint32)
    grid = TARGETS[target].grid([nest], Shape(4, 1), out, seed)
    assert not grid.step(16 * scheduler.SLICE)
    np.testing.assert_array_equal(out[:3], [wave.numbers for wave in wanted[:3]])


@pytest.mark.parametrize("target", TARGETS)
def test_a_seed_reproduces(target: str) -> None:
    """The order in which waves end is a seed's, and another seed's is another."""
    phases = random_phases(random.Random(5))

    def order(seed: int) -> list[bytes]:
        out = np.zeros((40, 4), np.uint32)
        grid = TARGETS[target].grid(phases, Shape(40, 1), out, seed)
        found = [out.tobytes()]
        while not grid.step(1):
            found.append(out.tobytes())
        return found

    assert order(3) == order(3) != order(4)

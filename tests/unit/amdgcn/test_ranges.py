"""Bounds and factors of integers, against every value that a program computes."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.compiler.ir.linear import Inst, Program
from gpu.compiler.ir.linear.ranges import int_factors, int_ranges
from gpu.core.dtype import dtypes
from unit.amdgcn.lanes import run
from unit.linear_kernels import Kernel

BINARY = ("add", "sub", "mul", "min", "max", "tdiv", "tmod", "and", "or", "xor", "shl", "shr")


def random_program(seed: int) -> tuple[Kernel, int]:
    """Two loops whose counters go through random operations; stores each result."""
    rng = np.random.default_rng(seed)
    starts, steps = rng.integers(-40, 40, 2), rng.integers(1, 5, 2)
    counts = rng.integers(1, 8, 2)
    total, results = int(np.prod(counts)), 10
    k = Kernel(out=(dtypes.int64, total * results))
    loops = []
    for start, step, count, kind in zip(starts, steps, counts, ("grid", "serial"), strict=True):
        stop = int(start + step * (count - 1) + 1)
        loops.append(k.loop(stop, int(step), start=int(start), kind=kind))
    values = [
        *loops,
        k.const(int(rng.integers(-1000, 1000))),
        k.const(int(1 << rng.integers(3, 33))),
    ]
    made: list[Inst] = []
    while len(made) < results:
        name = str(rng.choice(BINARY))
        a, b = (values[i] for i in rng.integers(0, len(values), 2))
        if name in ("tdiv", "tmod", "shl", "shr"):
            b = k.const(int(rng.integers(1, 20)))
        made.append(k.alu(name, a, b))
        values.append(made[-1])
    trips = [
        k.alu("tdiv", k.alu("sub", loop, k.const(int(start))), k.const(int(step)))
        for loop, start, step in zip(loops, starts, steps, strict=True)
    ]
    point = k.alu("add", k.alu("mul", trips[0], k.const(int(counts[1]))), trips[1])
    for position, value in enumerate(made):
        k.store(k.out, k.alu("add", point, k.const(position * total)), value)
    for loop in reversed(loops):
        k.end(loop)
    return k, total


def interpreted(program: Program, size: int) -> np.ndarray:
    from gpu.compiler.ir.linear.interp import interpret_linear

    out = np.zeros(size, np.int64)
    interpret_linear(program, [out], ())
    return out


@pytest.mark.parametrize("seed", range(12))
def test_values_are_within_their_bounds_and_computed_right(seed: int) -> None:
    kernel, total = random_program(seed)
    program = kernel.program()
    want = interpreted(program, total * 10)
    ranges, factors = int_ranges(program), int_factors(program)
    stored = [inst.args[2] for inst in program.body if inst.op == "store"]
    for position, inst in enumerate(stored):
        values = want[position * total : (position + 1) * total]
        low, high = ranges.get(inst, (-(1 << 63), (1 << 63) - 1))
        assert low <= values.min() and values.max() <= high, inst
        assert not (values % factors[inst]).any(), inst
    out = np.zeros(total * 10, np.int64)
    run(kernel, out)
    np.testing.assert_array_equal(out, want)


def test_bounds_are_as_narrow_as_they_can_be() -> None:
    k = Kernel(out=(dtypes.int64, 1))
    i = k.loop(10, kind="grid")
    tight = {
        k.alu("add", k.alu("mul", i, k.const(-3)), k.const(1)): (-26, 1),
        k.alu("tmod", i, k.const(4)): (0, 3),
        k.alu("tdiv", k.alu("sub", i, k.const(5)), k.const(2)): (-2, 2),
        k.alu("and", k.alu("sub", i, k.const(5)), k.const(6)): (0, 6),
        k.alu("shr", k.alu("sub", i, k.const(5)), k.const(1)): (-3, 2),
        k("cast", dtypes.int64, k("const", dtypes.uint8, attr=(7,))): (0, 255),
    }
    k.end(i)
    found = int_ranges(k.program())
    assert {inst: found[inst] for inst in tight} == tight
    assert k.alu("mul", i, k.const(1 << 62)) not in int_ranges(k.program())

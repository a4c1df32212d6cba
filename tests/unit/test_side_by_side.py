"""Stores that fill the places between each other's, and iterations whose stores never meet."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import ALWAYS, expr, loop_var
from gpu.compiler.ir.kernel.interp import interpret_kernel
from gpu.compiler.ir.linear.interp import interpret_linear
from gpu.compiler.lower.linearize import linearize
from gpu.compiler.lower.side_by_side import MOST_SHUFFLES, shuffles
from gpu.compiler.opt.analysis.dependence import separates
from gpu.core.dtype import dtypes
from prop.test_passes import WIDE


def kernel(count: int, order: list[int], lanes: int = 8) -> K.Kernel:
    """Each lane loads one element and stores it times 1, 2, ... to neighbouring places."""
    size = lanes * 3
    out = K.Buf("p0", dtypes.float32, (size * count,), "global")
    x = K.Buf("p1", dtypes.float32, (size,), "global")
    outer, lane = loop_var("i0o", 3), loop_var("i0i", lanes)
    place = expr(outer) * lanes + lane
    value = K.load(x, (place,))
    stores = tuple(
        K.Update(
            out,
            (place * count + number,),
            None,
            K.alu("mul", value, K.const(dtypes.float32, float(number + 1))),
        )
        for number in order
    )
    vector = K.Loop(lane, "vector", K.Block(stores))
    return K.Kernel("k", (out, x), K.Block((K.Loop(outer, "serial", K.Block((vector,))),)))


@pytest.mark.parametrize("lanes", (3, 5, 8))
@pytest.mark.parametrize("count", (2, 3, 4, 5, 6, 7, 8, 12, 13, 14, 16))
def test_whole_vectors_are_stored(count: int, lanes: int) -> None:
    rng = np.random.default_rng(count)
    built = kernel(count, [int(n) for n in rng.permutation(count)], lanes)
    program = linearize(built, WIDE)
    stores = [inst for inst in program.body if inst.op == "store"]
    assert all((inst.args[1].lanes == 1) == (shuffles(count) <= MOST_SHUFFLES) for inst in stores)
    x = rng.normal(size=lanes * 3).astype(np.float32)
    wanted, got = (np.zeros(x.size * count, np.float32) for _ in range(2))
    interpret_kernel(built, {"p0": wanted, "p1": x})
    interpret_linear(program, [got, x])
    assert np.array_equal(got, wanted)
    assert np.array_equal(got.reshape(-1, count)[:, -1], x * np.float32(count))


def test_places_that_leave_a_gap_are_stored_as_they_are() -> None:
    built = kernel(4, [0, 1, 3])
    program = linearize(built, WIDE)
    assert all(inst.args[1].lanes > 1 for inst in program.body if inst.op == "store")


def test_iterations_are_apart_where_trying_all_shows_it() -> None:
    """Against all values; what is said to be apart has to be, and some of it has to be found."""
    rng = np.random.default_rng(0)
    found = [0, 0]
    for _ in range(400):
        var, inner = loop_var("v", int(rng.integers(2, 7))), loop_var("w", int(rng.integers(2, 5)))
        step, other = int(rng.integers(1, 13)), int(rng.choice([0, 1, 2, 12, 24, 36]))
        offsets = [int(n) for n in rng.integers(0, 40, int(rng.integers(1, 5)))]
        places = [(expr(var) * step + expr(inner) * other + n, ALWAYS) for n in offsets]
        reached = [
            {v * step + w * other + n for n in offsets for w in range(inner.extent)}
            for v in range(var.extent)
        ]
        apart = sum(map(len, reached)) == len(set().union(*reached))
        said = separates(places, var, frozenset({inner}))
        assert apart or not said
        found[said] += apart
    assert found[1] > 2 * found[0]

"""Tilings: random ones of random reductions compute what the kernel does, as trees and as code."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.kernel.text import parse_kernel, print_kernel
from gpu.compiler.ir.kernel.tree import walk
from gpu.compiler.ir.kernel.verify import verify_kernel
from gpu.compiler.opt.analysis.reduction_nest import Nest, reduction_nest
from gpu.compiler.opt.opts import Tile, apply
from gpu.compiler.opt.primitives.tiling import Copy, Tiling, is_known, store_of_blocks
from gpu.core.errors import IllegalOpt
from unit.lane_kernels import LANES
from unit.reduction_kernels import inputs_of, outputs, product, random_reduction


def random_tiling(nest: Nest, rng: np.random.Generator) -> Tiling:
    """A legal tiling."""
    lanes, loops = int(rng.choice([2, 4, 8])), (*nest.independent, *nest.reduction)
    lane = rng.choice([v for v in loops if v.extent > 1])
    order = [v for v in nest.independent for _ in range(rng.integers(1, 3))]
    if all(v.stop is None for v in nest.independent) or store_of_blocks(nest, lane.name):
        blocks = [v for v in nest.reduction if v is not lane and v.stop is None]
        order += [v for v in blocks for _ in range(rng.integers(3))]
    left = {v: -(-v.extent // lanes) if v is lane else v.extent for v in loops}
    around = []
    for number in rng.permutation(len(order)):
        var = order[number]
        first = var not in [v for v, _ in around]
        sizes = [
            n for n in range(1, left[var] + 1) if first or var is not lane or not left[var] % n
        ]
        left[var] = int(rng.choice(sizes[: 4 if rng.random() < 0.6 else None]))
        around.append((var, left[var] * (lanes if var is lane else 1)))
    loops_around = tuple((var.name, size) for var, size in around)
    first, _ = around[0]
    parallel = "worker" if first in nest.independent and rng.random() < 0.5 else ""
    copies = []
    for n, operand in enumerate(nest.operands):
        depth = int(rng.integers(bool(parallel), len(around) + 1))
        names = [name for name, _ in loops_around[:depth]]
        if rng.random() < 0.6 and is_known(operand, lane.name, names):
            copies.append(Copy(n, depth))
    return Tiling(lane.name, lanes, loops_around, tuple(copies), int(rng.integers(1, 5)), parallel)


def check(seeds: range, symbolic: bool = False) -> None:
    """Checks a random tiling of a random reduction for each seed."""
    for seed in seeds:
        rng = np.random.default_rng(seed)
        kernel = random_reduction(rng, symbolic)
        nest, arrays = reduction_nest(kernel.body), inputs_of(kernel, rng)
        assert nest is not None
        tiling = random_tiling(nest, rng)
        tiled = apply(kernel, [Tile(tiling)])
        verify_kernel(tiled)
        again = parse_kernel(print_kernel(tiled))
        assert print_kernel(again) == print_kernel(tiled)
        for _ in range(3 if symbolic else 1):
            vals = [int(rng.integers(val.lo, val.hi + 1)) for val in kernel.vals]
            wanted = outputs(kernel, arrays, None, vals)
            for target in (None, LANES):
                got = outputs(tiled, arrays, target, vals)
                np.testing.assert_array_equal(got, wanted, f"{tiling} {vals}")


@pytest.mark.parametrize("part", range(8))
def test_random_tilings_of_loops_that_are_counted_at_launch(part: int) -> None:
    check(range(5 * part, 5 * part + 5), symbolic=True)


@pytest.mark.parametrize("part", range(8))
def test_random_tilings_compute_the_same(part: int) -> None:
    check(range(5 * part, 5 * part + 5))


@pytest.mark.slow
@pytest.mark.sampled(34)
@pytest.mark.parametrize("part", range(6))
def test_more_random_tilings_compute_the_same(part: int) -> None:
    check(range(1000 + 10 * part, 1010 + 10 * part))


WHOLE = Tiling("j", 8, (("i", 4), ("j", 16)), (Copy(1, 2),), 2)


@pytest.mark.parametrize(
    "tiling",
    [
        WHOLE._replace(lane="l"),
        WHOLE._replace(lane="k", loops=(("i", 4), ("k", 4))),
        WHOLE._replace(lanes=1),
        WHOLE._replace(steps=0),
        WHOLE._replace(loops=(("k", 4), ("j", 16)), parallel="worker"),
        WHOLE._replace(loops=(("k", 13), ("j", 16))),
        WHOLE._replace(loops=(("i", 21), ("j", 16))),
        WHOLE._replace(loops=(("i", 4), ("j", 12))),
        WHOLE._replace(loops=(("j", 24), ("i", 4), ("j", 16))),
        WHOLE._replace(copies=(Copy(2, 1),)),
        WHOLE._replace(copies=(Copy(1, 1), Copy(1, 2))),
        WHOLE._replace(copies=(Copy(1, 3),)),
        WHOLE._replace(copies=(Copy(1, 0),), parallel="worker"),
        WHOLE._replace(loops=(), copies=(), parallel="worker"),
    ],
)
def test_tilings_that_a_nest_does_not_have_are_refused(tiling: Tiling) -> None:
    kernel = product(20, 12, 40)
    apply(kernel, [Tile(WHOLE)])
    with pytest.raises(IllegalOpt):
        apply(kernel, [Tile(tiling)])


def test_what_is_left_over_may_be_one_element_of_what_is_copied() -> None:
    rng, kernel = np.random.default_rng(0), product(13, 12, 40, a="i")
    arrays = inputs_of(kernel, rng)
    tiled = apply(kernel, [Tile(WHOLE._replace(copies=(Copy(0, 1), Copy(1, 2))))])
    for target in (None, LANES):
        wanted = outputs(kernel, arrays, None)
        np.testing.assert_array_equal(outputs(tiled, arrays, target), wanted)


def test_workers_share_one_loop_over_all_tiles() -> None:
    tiled = apply(
        product(20, 12, 40), [Tile(WHOLE._replace(loops=(("i", 8),), copies=(), parallel="worker"))]
    )
    (workers,) = (s for s in walk(tiled.body) if isinstance(s, K.Loop) and s.kind == "worker")
    assert workers.var.extent == 3 and [*tiled.body.body] == [workers]


def test_results_that_lie_apart_are_not_taken_out_of_vectors() -> None:
    kernel = product(40, 12, 20)
    tiled = apply(kernel, [Tile(Tiling("i", 8, (("j", 4), ("i", 16))))])
    stores = [s for s in walk(tiled.body) if isinstance(s, K.Loop) and s.kind == "serial"]
    assert any(loop.var.name.startswith("iw") for loop in stores)

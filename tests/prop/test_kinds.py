"""Kinds of nodes with loops or addresses of their own, on random shapes, through every pass."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.fft import factors_of
from gpu.core.dtype import dtypes
from gpu.runtime.execute import realize, storage
from prop.graphs import on
from prop.judge import check, expect
from prop.test_passes import STAGES, run_plan
from prop.test_structures import Case


def indices(case: Case, shape: tuple[int, ...], size: int) -> Node:
    """Random indices, some of them out of range."""
    handle = f"in{len(case.inputs)}"
    dtype = dtypes.int64 if case.rng.random() < 0.5 else dtypes.int32
    case.inputs[handle] = case.rng.integers(-2, size + 2, shape).astype(dtype.np)
    return G.buffer(handle, shape, dtype, "CPU")


def gather(case: Case) -> Node:
    shape = tuple(case.size(12) for _ in range(3))
    axis = int(case.rng.integers(3))
    count = case.size(40)
    picked = (*shape[:axis], count, *shape[axis + 1 :])
    x = case.array(shape, dtypes.float32)
    if case.rng.random() < 0.5:
        x = G.alu(
            "add", G.permute(G.permute(x, (2, 0, 1)), (1, 2, 0)), G.const(1, shape, x.dtype, "CPU")
        )
    result = G.gather(x, indices(case, picked, shape[axis]), axis)
    return G.reduce("add", result, (axis,)) if case.rng.random() < 0.5 else result


def embedding(case: Case) -> Node:
    rows, width, count = case.size(30), case.size(40), case.size(20)
    index = G.expand(G.reshape(indices(case, (count,), rows), (count, 1)), (count, width))
    return G.gather(case.array((rows, width), dtypes.float32), index, 0)


def nested_gather(case: Case) -> Node:
    n, m = case.size(20), case.size(20)
    first = G.gather(indices(case, (n,), m), indices(case, (case.size(30),), n), 0)
    return G.gather(case.array((m,), dtypes.float32), first, 0)


def gather_of_gather(case: Case) -> Node:
    """The rows a gather gives are picked from again, along another axis and along the same."""
    n, m = case.size(12), case.size(12)
    x = case.array((n, m), dtypes.float32)
    axis = int(case.rng.integers(2))
    rows = G.gather(x, indices(case, (case.size(20), m), n), 0)
    place = [case.size(20), m] if axis == 0 else [rows.shape[0], case.size(20)]
    return G.gather(rows, indices(case, (place[0], place[1]), rows.shape[axis]), axis)


def scatter(case: Case) -> Node:
    shape = tuple(case.size(9) for _ in range(3))
    axis = int(case.rng.integers(3))
    place = (*shape[:axis], case.size(30), *shape[axis + 1 :])
    monoid = str(case.rng.choice(["add", "max", "min", "mul", "set"]))
    base, updates = case.array(shape, dtypes.float32), case.array(place, dtypes.float32)
    updates = G.alu("mul", updates, updates)
    return G.scatter(base, indices(case, place, shape[axis]), updates, axis, monoid)


def scan(case: Case) -> Node:
    shape = tuple(case.size(20) for _ in range(3))
    x = case.array(shape, (dtypes.float32, dtypes.int32)[int(case.rng.integers(2))])
    x = G.scan(str(case.rng.choice(["add", "max", "min"])), x, int(case.rng.integers(3)))
    return G.alu("neg", x)


def cumcount(case: Case) -> Node:
    shape = tuple(case.size(40) for _ in range(3))
    bins, axis = case.size(9), int(case.rng.integers(3))
    return G.alu("neg", G.cumcount(indices(case, shape, bins), bins, axis))


def reorder(case: Case) -> Node:
    shape = tuple(case.size(20) for _ in range(3))
    axis = int(case.rng.integers(3))
    places = np.argsort(case.rng.random(shape), axis)
    x = case.array(shape, (dtypes.float32, dtypes.int64)[int(case.rng.integers(2))])
    case.inputs["places"] = places.astype(np.int64)
    index = G.buffer("places", shape, dtypes.int64, "CPU")
    return G.reorder(G.alu("add", x, x), index, axis)


def windows(case: Case) -> Node:
    """A one-dimensional convolution, or the gradient of one, with stride and dilation."""
    taps, stride, dilation = case.size(4), case.size(3), case.size(3)
    size = (taps - 1) * dilation + case.size(30)
    count = (size - (taps - 1) * dilation - 1) // stride + 1
    rows = case.size(4)
    if case.rng.random() < 0.5:
        grad = case.array((rows, count, taps), dtypes.float32)
        return G.reduce("add", G.unskew(grad, 1, 2, stride, dilation, size), (2,))
    x = G.reshape(case.array((rows, size), dtypes.float32), (rows, size, 1))
    view = G.skew(G.expand(x, (rows, size, taps)), 1, 2, stride, dilation, count)
    weight = G.expand(G.reshape(case.array((taps,), dtypes.float32), (1, 1, taps)), view.shape)
    return G.reduce("add", G.alu("mul", view, weight), (2,))


def write(case: Case) -> Node:
    shape = tuple(case.size(20) for _ in range(2))
    ranges, sizes = [], []
    for size in shape:
        start, step = int(case.rng.integers(size)), case.size(3)
        ranges.append((start, step))
        sizes.append(int(case.rng.integers(1, (size - start - 1) // step + 2)))
    old = case.array(shape, dtypes.float32)
    return G.write(old, case.array(tuple(sizes), dtypes.float32), ranges)


def random_numbers(case: Case) -> Node:
    case.inputs["state"] = case.rng.integers(0, 1 << 32, 4, dtype=np.uint32)
    state = G.buffer("state", (4,), dtypes.uint32, "CPU")
    return G.random_bits(state, (case.size(30), case.size(30)))


def side_by_side(case: Case) -> Node:
    """Values that share what they are made of, along new axes of random places."""
    shape = tuple(case.size(9) for _ in range(2))
    sizes = {int(a): case.size(4) for a in sorted(case.rng.choice(4, 2, replace=False))}
    x, y = case.array(shape, dtypes.float32), case.array(shape, dtypes.float32)
    total = G.alu("add", x, y)
    sources = [
        G.alu(str(case.rng.choice(["add", "mul", "sub"])), total, (x, y)[number % 2])
        for number in range(math.prod(sizes.values()))
    ]
    made = G.interleave_all(sources, sizes)
    if case.rng.random() < 0.5:
        return made
    return G.alu("neg", G.places(made, sorted(sizes))[-1])


def transform(case: Case) -> Node:
    """A Fourier transform along a random axis, of numbers that are computed, used again."""
    radices = [int(r) for r in case.rng.integers(2, 10, int(case.rng.integers(1, 4)))]
    shape = [*(2 * case.size(2) for _ in range(3)), 2]
    axis = int(case.rng.integers(3))
    shape[axis] = math.prod(radices)
    x = case.array(tuple(shape), dtypes.float32)
    factors = None
    if len(radices) > 1:
        case.inputs["factors"] = factors_of(radices).astype(np.float32)
        factors = G.buffer("factors", case.inputs["factors"].shape, dtypes.float32, "CPU")
    scale = float(case.rng.choice([1.0, 0.5]))
    inverse = bool(case.rng.random() < 0.5)
    made = G.fft(G.alu("neg", x), axis, radices, factors, inverse, scale)
    return made if case.rng.random() < 0.5 else G.alu("add", made, x)


PROGRAMS: dict[str, Callable[[Case], Node]] = {
    f.__name__: f
    for f in (
        gather,
        embedding,
        nested_gather,
        gather_of_gather,
        scatter,
        scan,
        cumcount,
        reorder,
        windows,
        write,
        random_numbers,
        side_by_side,
        transform,
    )
}


@pytest.mark.sampled(50)
@pytest.mark.parametrize("stage", [*STAGES, "CPU", "PYTHON"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_kind_keeps_its_meaning(program: str, stage: str) -> None:
    for seed in range(4):
        rng = np.random.default_rng([seed, sorted(PROGRAMS).index(program)])
        case = Case(rng)
        roots = [PROGRAMS[program](case)]
        if roots[0].kind == "buffer":
            continue
        if stage in STAGES:
            got = run_plan(roots, case.inputs, STAGES[stage])
        else:
            done = realize(on(stage, roots, case.inputs))
            got = [storage(node).copy_out().reshape(node.shape) for node in done]
        check(got, expect(roots, case.inputs, rng), roots)


@pytest.mark.parametrize("monoid", ["add", "set"])
def test_scatter_large_enough_for_all_workers(monoid: str) -> None:
    """Its two nests follow each other: no worker may begin the second before all end the first."""
    rng = np.random.default_rng(0)
    rows, updates, width = 300, 700, 900
    case = Case(rng)
    base = case.array((rows, width), dtypes.float32)
    index = G.expand(G.reshape(indices(case, (updates,), rows), (updates, 1)), (updates, width))
    root = G.scatter(base, index, case.array((updates, width), dtypes.float32), 0, monoid)
    wanted = expect([root], case.inputs, rng)
    for _ in range(3):
        (done,) = realize(on("CPU", [root], case.inputs))
        check([storage(done).copy_out().reshape(done.shape)], wanted, [root])

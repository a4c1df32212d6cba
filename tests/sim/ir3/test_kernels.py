"""Kernels that Mesa compiles for Adreno 6xx, on the engine: against numpy and the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest

from gpu.compiler.fusion.build import BuiltKernel
from gpu.compiler.ir import evaluate
from gpu.compiler.ir.graph import toposort
from gpu.compiler.ir.linear import Program
from gpu.compiler.ir.optable import OPS, apply
from gpu.compiler.targets.adreno import adreno_target
from gpu.core.dtype import DType, dtypes
from prop.judge import check, expect
from prop.programs import random_graph
from prop.test_grid_kernels import lowered
from prop.test_passes import computed, run_plan
from sim.ir3.running import Array, run_ir3
from unit import test_grid_kernels as grid_kernels
from unit.linear_kernels import (
    COMPUTED,
    Kernel,
    assert_same,
    edge_pairs,
    edge_values,
    matrix_kernel,
)
from unit.nak.machine import run_adreno
from unit.test_grid_kernels import Machine, operations

CHIPS = ("a630", "a618", "a640", "a660", "a690")
ADRENO = adreno_target(CHIPS[0])
MACHINE = Machine("tinymesa", run_ir3, ADRENO)
DTYPES = MACHINE.has(COMPUTED)
NARROW = ADRENO.native.compute_as_int32
WORDS = {dtypes.int32, dtypes.uint32}
FOLDED = {1139}
"""Programs of which Mesa makes others: ``fma(x, 0, y)`` is y, also where x is infinite."""
RunAll = Callable[..., None]


@pytest.fixture(autouse=True)
def tools_are_there(need: Callable[[str], None]) -> None:
    need("tinymesa")
    need("llvmlite")


def run(
    kernels: Sequence[Kernel | Program],
    arrays: Sequence[Sequence[Array]],
    vals: tuple[int, ...] = (),
) -> None:
    """Runs kernels one after the other."""
    programs = [
        k.program(f"kernel{n}") if isinstance(k, Kernel) else k for n, k in enumerate(kernels)
    ]
    run_ir3(programs, arrays, vals)


def normal(values: Array) -> Array:
    """The same values with zeros for subnormal floats."""
    if values.dtype.kind != "f":
        return values
    with np.errstate(all="ignore"):
        small = np.abs(values) < np.finfo(values.dtype).tiny
        return np.where(small, np.copysign(0, values), values).astype(values.dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_operation_means_what_the_op_table_says(dtype: DType) -> None:
    a, b, c, m = map(normal, edge_pairs(dtype))
    kernel = matrix_kernel(dtype, 1, len(a), operations(dtype), "grid")
    results = [np.empty(len(a), p.dtype.np) for p in kernel.params[4:]]
    run([kernel], [[a, b, c, m, *results]])
    for name, got in zip(operations(dtype), results, strict=True):
        args = (m, a, b) if name == "where" else (a, b, c)[: OPS[name].arity]
        want = apply(name, dtypes.from_numpy(got.dtype), args)
        # Quotients that are subnormal are made of integers, and may be there.
        assert_same(normal(got), normal(want), f"{name} {dtype.name}")


def test_every_cast() -> None:
    """But those that are two: what is narrow becomes a word before it is a float."""
    kernels, arrays, wants = [], [], []
    for source in DTYPES:
        targets = [d for d in DTYPES if not {source, d} & NARROW or {source, d} & WORDS]
        values = normal(edge_values(source))
        k = Kernel(a=(source, len(values)), **{f"to_{d.name}": (d, len(values)) for d in targets})
        i = k.loop(len(values), kind="grid")
        a = k.load(k.a, i)
        for target in targets:
            k.store(getattr(k, f"to_{target.name}"), i, k("cast", target, a))
        k.end(i)
        kernels.append(k)
        arrays.append([values, *(np.empty(len(values), d.np) for d in targets)])
        wants.append((source, targets))
    run(kernels, arrays)
    for (source, targets), (values, *results) in zip(wants, arrays, strict=True):
        for target, got in zip(targets, results, strict=True):
            with np.errstate(all="ignore"):
                want = evaluate.cast(values, source, target)
            assert_same(got, want, f"{source.name} to {target.name}")


def test_halves_that_are_subnormal_become_zeros() -> None:
    n = 1 << 16
    every = np.arange(n, dtype=np.uint16).view(np.float16)
    wide, back = np.zeros(n, np.float32), np.zeros(n, np.float16)
    k = Kernel(h=(dtypes.float16, n), f=(dtypes.float32, n), t=(dtypes.float16, n))
    i = k.loop(n, kind="grid")
    value = k("cast", dtypes.float32, k.load(k.h, i))
    k.store(k.f, i, value)
    factor = k.const(float(np.float32(1.00049)), dtypes.float32)
    k.store(k.t, i, k("cast", dtypes.float16, k.alu("mul", value, factor)))
    k.end(i)
    run([k], [[every, wide, back]])
    with np.errstate(all="ignore"):
        want = (normal(every).astype(np.float32) * np.float32(1.00049)).astype(np.float16)
        assert_same(wide, normal(every).astype(np.float32), "float16 to float32")
    assert_same(back, normal(want), "float32 to float16")


@pytest.mark.parametrize(
    "test",
    [
        grid_kernels.test_constant_divisors_and_shift_counts,
        grid_kernels.test_grid_loops_become_every_iteration_once,
        grid_kernels.test_a_loop_counts_from_its_start_in_its_steps,
        grid_kernels.test_carries_may_be_swapped_and_integers_may_be_wide,
        grid_kernels.test_threads_of_a_block_share_memory,
    ],
    ids=lambda test: test.__name__.removeprefix("test_"),
)
def test_as_on_other_machines(test: Callable[[RunAll], None]) -> None:
    test(run)


def test_values_of_a_launch_and_memory_of_a_thread() -> None:
    for n in (0, 255):
        grid_kernels.test_a_loop_stops_at_a_value_of_the_launch(run, "grid", n, 400)
    grid_kernels.test_a_loop_stops_at_a_value_of_the_launch(run, "serial", 300, 1 << 40)
    grid_kernels.test_private_and_team_arrays_of_a_single_thread(run, 40)
    grid_kernels.test_excluded_elements_are_not_touched(MACHINE, run)


def test_threads_that_part_ways_meet_again() -> None:
    """Loops of many lengths inside each other, and a way out of each."""
    n, most = 300, 9
    k = Kernel(a=(dtypes.int32, n), b=(dtypes.int32, n))
    i = k.loop(n, kind="grid")
    a = k.load(k.a, i)
    conditions = []
    for depth in range(3):
        is_more = k.alu("lt", k.const(depth, dtypes.int32), a)
        conditions.append(k("if", dtypes.bool, is_more))
        j = k.loop(most)
        inside = k("if", dtypes.bool, k.alu("lt", k("cast", dtypes.int32, j), a))
        old = k.load(k.b, i)
        k.store(k.b, i, k.alu("add", old, k.alu("mul", a, k.const(depth + 1, dtypes.int32))))
        k("endif", dtypes.bool, attr=(inside,))
        k.end(j)
    for opened in reversed(conditions):
        k("endif", dtypes.bool, attr=(opened,))
    k.end(i)
    values = np.random.default_rng(0).integers(-3, most + 4, n).astype(np.int32)
    result = np.zeros(n, np.int32)
    run([k], [[values, result]])
    turns = np.minimum(np.maximum(values, 0), most)
    want = sum(np.where(values > depth, turns * values * (depth + 1), 0) for depth in range(3))
    np.testing.assert_array_equal(result, want)


def compare(seed: int) -> bool | None:
    """Whether a random graph computes what it says; None where it is not for Adreno.

    Where numbers become zeros for being subnormal, numpy with Adreno's arithmetic must differ too.
    """
    chip = CHIPS[seed % len(CHIPS)]
    rng, target = np.random.default_rng(seed), adreno_target(chip)
    roots, inputs = random_graph(rng, depth=int(rng.integers(3, 31)), max_size=600)
    wanted = computed(roots)
    if not wanted or any(node.dtype in ADRENO.native.lacking for node in toposort(roots)):
        return None

    def values(runs: RunAll) -> list[Array]:
        def run_kernel(built: BuiltKernel, arrays: list[Array]) -> None:
            runs([lowered(built, target)], [arrays])

        return run_plan(wanted, inputs, run_kernel)

    want = expect(wanted, inputs, rng)
    try:
        check(values(partial(run_ir3, chip=chip)), want, wanted)
    except AssertionError:
        with pytest.raises(AssertionError):
            check(values(run_adreno), want, wanted)
        return False
    return True


@pytest.mark.parametrize("seed", range(8))
def test_random_programs_compute_what_the_interpreter_does(seed: int) -> None:
    assert compare(seed) is not False


@pytest.mark.slow
def test_many_random_programs_do() -> None:
    results = [compare(seed) for seed in range(1_000, 1_200) if seed not in FOLDED]
    assert results.count(True) > 20 * results.count(False)

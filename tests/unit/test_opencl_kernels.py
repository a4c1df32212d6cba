"""What kernels mean on an OpenCL device: the same as everywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from gpu.backends.python.device import BLOCKS
from gpu.compiler.ir import evaluate
from gpu.compiler.ir.linear import Limit, Val
from gpu.compiler.ir.optable import MONOIDS, OPS, apply
from gpu.compiler.render.cstyle.opencl import OpenCLRenderer
from gpu.compiler.render.cstyle.opencl_grid import MAX_ITEMS, spread_program
from gpu.compiler.targets import NARROW_FLOATS, Target
from gpu.core.dtype import FLOATS, DType, dtypes
from gpu.core.errors import Unsupported, VerifyError
from unit.cl_kernels import CLRunner, cl_device, grid_target
from unit.linear_kernels import (
    COMPUTED,
    Kernel,
    assert_same,
    edge_pairs,
    edge_values,
    matrix_kernel,
    scratch_kernel,
)

SCALARS = (dtypes.bool, dtypes.int8, dtypes.uint16, dtypes.int64, dtypes.float32)


@pytest.fixture
def runner(need: Callable[[str], None]) -> CLRunner:
    need("opencl")
    return CLRunner(cl_device().renderer.target)


def operations(runner: CLRunner, dtype: DType) -> list[str]:
    native = runner.target.native.ops
    return [n for n, row in OPS.items() if n in native and dtype.kind in row.domain and n != "fma"]


@pytest.mark.slow
def test_every_operation_means_what_the_op_table_says(runner: CLRunner) -> None:
    cases = [(dtype, 8) for dtype in COMPUTED] + [(dtype, 1) for dtype in SCALARS]
    kernels, arrays = [], []
    for dtype, lanes in cases:
        a, b, c, m = edge_pairs(dtype)
        kernel = matrix_kernel(dtype, lanes, len(a), operations(runner, dtype))
        kernels.append(kernel)
        arrays.append([a, b, c, m, *(np.empty(len(a), p.dtype.np) for p in kernel.params[4:])])
    runner.run_many(kernels, arrays)
    for (dtype, lanes), (a, b, c, m, *results) in zip(cases, arrays, strict=True):
        for name, got in zip(operations(runner, dtype), results, strict=True):
            args = (m, a, b) if name == "where" else (a, b, c)[: OPS[name].arity]
            want = apply(name, dtypes.from_numpy(got.dtype), args)
            assert_same(got, want, f"{name} {dtype.name} x{lanes}")


@pytest.mark.parametrize("clang", [False, True])
def test_vectors_are_one_access_to_clang(clang: bool) -> None:
    k = Kernel(out=(dtypes.int16, 16), x=(dtypes.int16, 16))
    k.store(k.out, k.const(1), k.load(k.x, k.const(3), 8))
    target = Target("opencl", BLOCKS.native, "worker", features="clang" if clang else "")
    text = OpenCLRenderer(target).render(k.program())
    assert ("typedef short8 short8_anywhere __attribute__((aligned(2)));" in text) == clang
    assert ("vload8" in text, "vstore8" in text) == (not clang, not clang)


def test_constant_divisors_and_shift_counts(runner: CLRunner) -> None:
    cases, kernels, arrays = [], [], []
    for dtype in (d for d in COMPUTED if d.is_int):
        constants = [v for v in (-3, -1, 0, 1, 7, dtype.bits - 1, dtype.bits) if v >= dtype.min]
        pairs = [(n, v) for n in ("tdiv", "tmod", "shl", "shr") for v in constants]
        k = Kernel(a=(dtype, 32), **{f"r{i}": (dtype, 32) for i in range(len(pairs))})
        i = k.loop(32, 8)
        a = k.load(k.a, i, 8)
        for position, (name, value) in enumerate(pairs):
            known = k("splat", dtype, k.const(value, dtype), lanes=8)
            k.store(getattr(k, f"r{position}"), i, k.alu(name, a, known))
        k.end(i)
        cases.append((dtype, pairs))
        kernels.append(k)
        values = np.resize(edge_values(dtype), 32)
        arrays.append([values, *(np.empty(32, dtype.np) for _ in pairs)])
    runner.run_many(kernels, arrays)
    for (dtype, pairs), (values, *results) in zip(cases, arrays, strict=True):
        for (name, value), got in zip(pairs, results, strict=True):
            want = apply(name, dtype, (values, np.full(32, value, dtype.np)))
            assert_same(got, want, f"{name} {dtype.name} by {value}")


@pytest.mark.slow
def test_every_cast(runner: CLRunner) -> None:
    cases = [(dtype, 8) for dtype in COMPUTED] + [(dtype, 1) for dtype in SCALARS]
    kernels, arrays = [], []
    for source, lanes in cases:
        values = edge_values(source)
        values = np.resize(values, -(-len(values) // 16) * 16)
        k = Kernel(a=(source, len(values)), **{f"to_{d.name}": (d, len(values)) for d in COMPUTED})
        i = k.loop(len(values), lanes)
        a = k.load(k.a, i, lanes)
        for target in COMPUTED:
            k.store(getattr(k, f"to_{target.name}"), i, k("cast", target, a, lanes=lanes))
        k.end(i)
        kernels.append(k)
        arrays.append([values, *(np.empty(len(values), d.np) for d in COMPUTED)])
    runner.run_many(kernels, arrays)
    for (source, lanes), (values, *results) in zip(cases, arrays, strict=True):
        for target, got in zip(COMPUTED, results, strict=True):
            with np.errstate(all="ignore"):
                want = evaluate.cast(values, source, target)
            assert_same(got, want, f"{source.name} to {target.name} x{lanes}")


def test_fma_rounds_once_and_nothing_else_is_fused(runner: CLRunner) -> None:
    kernels, arrays = [], []
    fused_op = "fma" in runner.target.native.ops
    for dtype in (dtypes.float32, dtypes.float64):
        epsilon = float(np.finfo(dtype.np).eps)
        k = Kernel(x=(dtype, 8), fused=(dtype, 8), apart=(dtype, 8))
        v, zero = k.load(k.x, k.const(0), 8), k.const(0)
        negative = k.const(-(1.0 + 2 * epsilon), dtype, 8)
        if fused_op:
            k.store(k.fused, zero, k.alu("fma", v, v, negative))
        k.store(k.apart, zero, k.alu("add", k.alu("mul", v, v), negative))
        kernels.append(k)
        results = [np.empty(8, dtype.np) for _ in range(2)]
        arrays.append([np.full(8, 1 + epsilon, dtype.np), *results])
    runner.run_many(kernels, arrays)
    for x, fused, apart in arrays:
        assert (apart == 0).all()
        assert not fused_op or (fused == float(np.finfo(x.dtype).eps) ** 2).all()


def half_kernel(count: int) -> Kernel:
    """Converts float16 to float32 and back."""
    k = Kernel(h=(dtypes.float16, count), f=(dtypes.float32, count), back=(dtypes.float16, count))
    i = k.loop(count, 8)
    wide = k("cast", dtypes.float32, k.load(k.h, i, 8), lanes=8)
    k.store(k.f, i, wide)
    k.store(k.back, i, k("cast", dtypes.float16, wide, lanes=8))
    k.end(i)
    return k


def test_half_is_converted_by_devices_that_have_it(runner: CLRunner) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    kernel = half_kernel(every.size)
    native = replace(runner.target.native, storage_only=NARROW_FLOATS - {dtypes.float16})
    features = ",".join({*runner.target.features.split(","), "fp16"})
    text = OpenCLRenderer(replace(runner.target, native=native, features=features)).render(
        kernel.program()
    )
    assert "convert_half8_rte(" in text and "cl_khr_fp16 : enable" in text
    if "fp16" not in runner.target.features:
        with pytest.raises(Unsupported, match="cannot convert float16"):
            OpenCLRenderer(runner.target).render(kernel.program())
        return
    wide, back = np.empty(every.size, np.float32), np.empty_like(every)
    runner.run(kernel, every, wide, back)
    assert_same(wide, every.astype(np.float32), "float16 to float32")
    assert_same(back, every, "float32 to float16")


def test_folds(runner: CLRunner) -> None:
    kernels, arrays, cases = [], [], []
    for lanes in (2, 16):
        for dtype in SCALARS:
            names = [n for n, monoid in MONOIDS.items() if dtype.kind in monoid.domain]
            k = Kernel(a=(dtype, lanes), out=(dtype, len(names)))
            v = k.load(k.a, k.const(0), lanes)
            for position, name in enumerate(names):
                k.store(k.out, k.const(position), k("fold", dtype, v, attr=(name,)))
            rng = np.random.default_rng(lanes)
            data = rng.choice(edge_values(dtype), lanes)
            if dtype.is_float:
                data = rng.integers(-4, 5, lanes).astype(dtype.np)  # exact in any order
            kernels.append(k)
            arrays.append([data, np.empty(len(names), dtype.np)])
            cases.append((dtype, names))
    runner.run_many(kernels, arrays)
    for (dtype, names), (data, got) in zip(cases, arrays, strict=True):
        with np.errstate(all="ignore"):
            want = [MONOIDS[n].ufunc.reduce(data).astype(dtype.np) for n in names]
        assert_same(got, np.array(want, dtype.np), f"folds max min {dtype.name} of {data}")


def test_bits_pass_unchanged_and_any_byte_but_zero_is_true(runner: CLRunner) -> None:
    kernels, arrays = [], []
    for dtype in FLOATS:
        unsigned = {8: dtypes.uint8, 16: dtypes.uint16, 32: dtypes.uint32, 64: dtypes.uint64}
        bits = unsigned[dtype.bits]
        rng = np.random.default_rng(3)
        patterns = rng.integers(0, bits.max, 64, bits.np, endpoint=True)
        k = Kernel(a=(dtype, 64), copy=(dtype, 64), flipped=(dtype, 64))
        i = k.loop(64, 8)
        v = k.load(k.a, i, 8)
        k.store(k.copy, i, v)
        raw = k("bitcast", bits, v, lanes=8)
        k.store(k.flipped, i, k("bitcast", dtype, k.alu("not", raw), lanes=8))
        k.end(i)
        kernels.append(k)
        arrays.append([patterns, np.zeros_like(patterns), np.zeros_like(patterns)])
    k = Kernel(a=(dtypes.bool, 16), raw=(dtypes.uint8, 16), back=(dtypes.bool, 16))
    v, three = k.load(k.a, k.const(0), 16), k.const(3, dtypes.uint8, 16)
    k.store(k.raw, k.const(0), k("bitcast", dtypes.uint8, v, lanes=16))
    k.store(k.back, k.const(0), k("bitcast", dtypes.bool, three, lanes=16))
    data = np.array([0, 1, 2, 255] * 4, np.uint8)
    runner.run_many(
        [*kernels, k], [*arrays, truths := [data, np.empty(16, np.uint8), np.empty(16, np.uint8)]]
    )
    for patterns, copy, flipped in arrays:
        assert (copy == patterns).all() and (flipped == ~patterns).all()
    assert (truths[1] == (data != 0)).all() and (truths[2] == 1).all()


def test_vectors_are_made_and_taken_apart(runner: CLRunner) -> None:
    i32 = dtypes.int32
    data = np.arange(16, dtype=np.int32) * 10
    out, ramps = np.zeros(24, np.int32), np.zeros(8, np.int64)
    k = Kernel(a=(i32, 16), out=(i32, 24), ramps=(dtypes.int64, 8))
    zero, eight = k.const(0), k.const(8)
    low, high = k.load(k.a, zero, 8), k.load(k.a, eight, 8)
    k.store(k.out, zero, k("shuffle", i32, low, high, lanes=4, attr=((15, 0, 8, 7),)))
    k.store(k.out, k.const(4), k("shuffle", i32, low, high, attr=((9,),)))
    parts = [k("extract", i32, low, attr=(lane,)) for lane in (3, 1)]
    k.store(k.out, k.const(5), k("pack", i32, *parts, lanes=2))
    spread = k("splat", i32, k("extract", i32, high, attr=(7,)), lanes=8)
    k.store(k.out, k.const(8), spread)
    k.store(k.out, k.const(16), k("shuffle", i32, *parts, lanes=4, attr=((1, 0, 0, 1),)))
    k.store(k.ramps, zero, k("ramp", dtypes.int64, eight, lanes=8, attr=(-3,)))
    runner.run(k, data, out, ramps)
    assert out[:7].tolist() == [150, 0, 80, 70, 90, 30, 10]
    assert (out[8:16] == 150).all() and out[16:20].tolist() == [10, 30, 30, 10]
    assert ramps.tolist() == [8 - 3 * lane for lane in range(8)]


def masked_copy(dtype: DType, lanes: int, count: int, scattered: bool) -> Kernel:
    """Copies `count` of `lanes` elements, and all that was loaded."""
    k = Kernel(a=(dtype, lanes), b=(dtype, lanes), seen=(dtype, lanes))
    lane = k("ramp", dtypes.int64, k.const(0), lanes=lanes, attr=(1,))
    mask = k.alu("lt", lane, k.const(count, lanes=lanes))
    index = lane if scattered else k.const(0)
    value = k.load(k.a, index, lanes, mask)
    k.store(k.seen, k.const(0), value)
    k.store(k.b, index, value, mask)
    return k


@pytest.mark.slow
def test_masks_exclude_lanes(runner: CLRunner) -> None:
    chosen = (dtypes.bool, dtypes.float16, dtypes.float32, dtypes.int64)
    shapes = ((1, 0, False), (1, 1, False), (8, 5, False), (8, 8, False), (16, 15, True))
    cases = [(dtype, *shape) for dtype in chosen for shape in shapes]
    arrays = [[np.full(case[1], v).astype(case[0].np) for v in (1, 0, 1)] for case in cases]
    runner.run_many([masked_copy(*case) for case in cases], arrays)
    for (_, _, count, _), (_, copied, seen) in zip(cases, arrays, strict=True):
        for got in (copied, seen):
            assert (got[:count] == 1).all() and (got[count:] == 0).all()


@pytest.mark.parametrize(("start", "stop", "step"), [(0, 7, 1), (-5, 6, 3), (5, 2, 2), (0, 1, 9)])
def test_loops_carry_values(runner: CLRunner, start: int, stop: int, step: int) -> None:
    i64 = dtypes.int64
    out = np.zeros(2, np.int64)
    k = Kernel(out=(i64, 2))
    outer = k.loop(stop, step, start=start, carry=(k.const(7), k.const(1)))
    total, previous = k("carry", i64, outer, attr=(0,)), k("carry", i64, outer, attr=(1,))
    inner = k.loop(3, carry=(total,))
    part = k("carry", i64, inner, attr=(0,))
    inner_end = k.end(inner, k.alu("add", part, k.alu("mul", outer, inner)))
    end = k.end(outer, previous, k("result", i64, inner_end, attr=(0,)))
    for position in (0, 1):
        k.store(k.out, k.const(position), k("result", i64, end, attr=(position,)))
    runner.run(k, out)
    a, b = 7, 1
    for i in range(start, stop, step):
        a, b = b, a + sum(i * j for j in range(3))
    assert out.tolist() == [a, b]


def counting_kernel(kinds: tuple[str, ...], sizes: tuple[int, ...]) -> Kernel:
    """Adds 1 to every element of a box, one for each iteration of a loop nest."""
    k = Kernel(out=(dtypes.int64, int(np.prod(sizes))))
    loops = [k.loop(size, kind=kind) for kind, size in zip(kinds, sizes, strict=True)]
    at = k.const(0)
    for loop, size in zip(loops, sizes, strict=True):
        at = k.alu("add", k.alu("mul", at, k.const(size)), loop)
    k.store(k.out, at, k.alu("add", k.load(k.out, at), k.const(1)))
    for loop in reversed(loops):
        k.end(loop)
    return k


@pytest.mark.parametrize(
    ("kinds", "sizes"),
    [
        (("worker",), (100,)),
        (("worker", "serial"), (3, 5)),
        (("grid",), (1000,)),
        (("grid", "grid", "grid"), (3, 70, 9)),
        (("grid", "grid", "grid", "grid"), (2, 3, 4, 5)),
        (("grid", "serial", "grid"), (4, 3, 5)),
    ],
)
def test_every_iteration_runs_once(
    runner: CLRunner, kinds: tuple[str, ...], sizes: tuple[int, ...]
) -> None:
    target = runner.target if kinds[0] == "worker" else grid_target()
    kernel = counting_kernel(kinds, sizes)
    out = np.zeros(kernel.params[0].elements, np.int64)
    CLRunner(target).run(kernel, out)
    assert (out == 1).all()


def test_what_is_not_only_grid_loops_runs_in_one_item(runner: CLRunner) -> None:
    k = Kernel(out=(dtypes.int64, 8))
    for _ in range(2):
        i = k.loop(8, kind="grid")
        k.store(k.out, i, k.alu("add", k.load(k.out, i), k.const(1)))
        k.end(i)
    assert spread_program(k.program(), grid_target()).items == (1, 1, 1)
    out = np.zeros(8, np.int64)
    CLRunner(grid_target()).run(k, out)
    assert (out == 2).all()


def test_a_launch_is_never_larger_than_devices_and_memory_bear(runner: CLRunner) -> None:
    sizes = (3, 5000, 7000)
    spread = spread_program(counting_kernel(("grid",) * 3, sizes).program(), grid_target())
    assert np.prod(spread.items) <= MAX_ITEMS and spread.group == (64, 1, 1)
    assert all(item % group == 0 for item, group in zip(spread.items, spread.group, strict=True))


def test_locals_are_private_or_in_scratch_memory(runner: CLRunner) -> None:
    for elements in (100, 20000):
        out = np.zeros(elements, np.int64)
        runner.run(scratch_kernel(elements), out)
        assert (out == np.arange(elements)[::-1] + 1).all()


def test_items_of_a_grid_have_scratch_memory_of_their_own(runner: CLRunner) -> None:
    rows, width = 300, 4000
    k = Kernel(out=(dtypes.int64, rows))
    row = k.loop(rows, kind="grid")
    kept = k("local", dtypes.int64, attr=(width, "team"))
    i = k.loop(width)
    k.store(kept, i, k.alu("add", row, i))
    k.end(i)
    k.store(k.out, row, k.load(kept, k.const(width - 1)))
    k.end(row)
    out = np.zeros(rows, np.int64)
    CLRunner(grid_target()).run(k, out)
    assert out.tolist() == [row + width - 1 for row in range(rows)]


def reversing_kernel(blocks: tuple[int, ...], threads: tuple[int, ...]) -> Kernel:
    """Blocks of threads write their numbers to team memory, and read those of others."""
    size = int(np.prod(threads))
    k = Kernel(out=(dtypes.int64, int(np.prod(blocks)) * size))
    grid = [k.loop(count, kind="grid") for count in blocks]
    kept = k("local", dtypes.int64, attr=(size, "team"))
    inside = [k.loop(count, kind="thread") for count in threads]
    block, thread = k.const(0), k.const(0)
    for loop, count in zip(grid, blocks, strict=True):
        block = k.alu("add", k.alu("mul", block, k.const(count)), loop)
    for loop, count in zip(inside, threads, strict=True):
        thread = k.alu("add", k.alu("mul", thread, k.const(count)), loop)
    first = k.alu("mul", block, k.const(size))
    at = k.alu("add", first, thread)
    k.store(kept, thread, at)
    k("barrier", dtypes.int64)
    other = k.load(kept, k.alu("sub", k.const(size - 1), thread))
    k.store(k.out, at, other)
    for loop in [*reversed(inside), *reversed(grid)]:
        k.end(loop)
    return k


@pytest.mark.parametrize(
    ("blocks", "threads"), [((5,), (64,)), ((2, 3, 2, 2), (4, 8)), ((3,), (2, 3, 4))]
)
def test_threads_of_a_block_share_memory(
    runner: CLRunner, blocks: tuple[int, ...], threads: tuple[int, ...]
) -> None:
    target = replace(grid_target(), threads=64, shared_bytes=1 << 14)
    size, count = int(np.prod(threads)), int(np.prod(blocks))
    out = np.zeros(count * size, np.int64)
    kernel = reversing_kernel(blocks, threads)
    CLRunner(target).run(kernel, out)
    assert (out.reshape(count, size) == np.arange(out.size).reshape(count, size)[:, ::-1]).all()
    with pytest.raises(Unsupported, match="among the threads of a block"):
        OpenCLRenderer(replace(target, shared_bytes=8)).render(kernel.program())


def test_a_launch_takes_values(runner: CLRunner) -> None:
    for target in (runner.target, grid_target()):
        k = Kernel(out=(dtypes.int64, 10))
        value = k("val", dtypes.int64, attr=(0,))
        kind = target.parallel
        loop = k("loop", dtypes.int64, attr=(kind, 0, Limit(value, 10), 1))
        k.store(k.out, loop, k.alu("add", loop, value))
        k.end(loop)
        program = k.program()._replace(vals=(Val("n", 1, 10),))
        renderer, device = OpenCLRenderer(target), cl_device()
        lib = device.compiler.compile_cached(renderer.render(program))
        loaded = device.runtime(program.name, lib, renderer.launch_data(program))
        memory = device.allocator.alloc(80)
        for n in (10, 3):
            out = np.zeros(10, np.int64)
            device.allocator.copy_in(memory, out.view(np.uint8).data)
            loaded(memory, vals=(n,))
            device.allocator.copy_out(out.view(np.uint8).data, memory)
            assert out.tolist() == [i + n if i < n else 0 for i in range(10)]


def test_what_a_device_lacks_is_refused(runner: CLRunner) -> None:
    native = replace(runner.target.native, lacking=frozenset({dtypes.float64}))
    without = OpenCLRenderer(replace(runner.target, native=native))
    k = Kernel(a=(dtypes.float64, 1))
    k.store(k.a, k.const(0), k.const(1.0, dtypes.float64))
    with pytest.raises(Unsupported, match="no float64"):
        without.render(k.program())
    k = Kernel(a=(dtypes.float32, 3))
    k.load(k.a, k.const(0), 3)
    with pytest.raises(Unsupported, match="not of 3"):
        OpenCLRenderer(runner.target).render(k.program())
    k = Kernel(a=(dtypes.float32, 3))
    k.loop(3)
    with pytest.raises(VerifyError, match="has no end"):
        OpenCLRenderer(runner.target).render(k.program())


def test_divisions_that_are_not_rounded_correctly_go_through_float64(runner: CLRunner) -> None:
    rng = np.random.default_rng(5)
    a, b = (rng.random(4096).astype(np.float32) * 9 for _ in range(2))
    k = Kernel(a=(dtypes.float32, 4096), b=(dtypes.float32, 4096), q=(dtypes.float32, 4096))
    i = k.loop(4096, 8)
    quotient = k.alu("div", k.load(k.a, i, 8), k.load(k.b, i, 8))
    k.store(k.q, i, k.alu("sqrt", quotient))
    k.end(i)
    target = replace(runner.target, features="fp64")
    assert "convert_double8" in OpenCLRenderer(target).render(k.program())
    q = np.empty(4096, np.float32)
    CLRunner(target).run(k, a, b, q)
    assert (q == np.sqrt(a / b)).all()


@pytest.mark.parametrize(("features", "hint"), [("clang", "__builtin_prefetch"), ("", "prefetch")])
def test_prefetches_are_those_that_the_compiler_heeds(
    runner: CLRunner, features: str, hint: str
) -> None:
    k = Kernel(out=(dtypes.float32, 8))
    k("prefetch", dtypes.bool, k.out, k.const(1 << 40))
    k.store(k.out, k.const(0), k.const(2.5, dtypes.float32, 8))
    text = OpenCLRenderer(replace(runner.target, features=features)).render(k.program())
    assert f" {hint}(p0 + " in text


def test_prefetches_read_nothing(runner: CLRunner) -> None:
    k = Kernel(out=(dtypes.float32, 8))
    for index in (0, 8, -1, 1 << 40):
        k("prefetch", dtypes.bool, k.out, k.const(index))
    k.store(k.out, k.const(0), k.const(2.5, dtypes.float32, 8))
    out = np.zeros(8, np.float32)
    runner.run_many([k], [[out]])
    assert (out == 2.5).all()

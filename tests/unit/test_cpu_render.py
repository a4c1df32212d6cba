"""What kernels mean on the CPU, whichever compiler makes their code."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gpu.backends.cpu.native import native_function
from gpu.compiler.ir import evaluate
from gpu.compiler.ir.optable import MONOIDS, OPS, apply
from gpu.compiler.render.launch.cpu_abi import STACK_LIMIT, scratch_bytes
from gpu.compiler.targets.cpu import host_target
from gpu.core.dtype import ALL, FLOATS, DType, dtypes
from gpu.core.elf import parse_object
from gpu.core.errors import Unsupported
from unit.linear_kernels import (
    COMPUTED,
    Kernel,
    Toolchain,
    assert_same,
    cast_kernel,
    edge_pairs,
    edge_values,
    matrix_kernel,
    operations,
    printed,
    scratch_kernel,
    toolchain,
)

TARGETS = (
    "x86_64", "x86_64,sse4.1", "x86_64,avx", "x86_64,avx2,fma,f16c",
    "x86_64,avx512f,avx512bw,avx512dq,avx512vl", "aarch64",
)  # fmt: skip

_NEEDS = {"LLVM": "llvmlite", "CLANG": "clang"}


@pytest.fixture(params=_NEEDS)
def compiler_name(request: pytest.FixtureRequest, need: Callable[[str], None]) -> str:
    need(_NEEDS[request.param])
    return request.param


@pytest.fixture
def cpu(compiler_name: str) -> Toolchain:
    return toolchain(compiler_name)


@pytest.mark.parametrize("lanes", [1, 8, 16])
@pytest.mark.parametrize("dtype", COMPUTED, ids=lambda d: d.name)
def test_every_operation_means_what_the_op_table_says(
    cpu: Toolchain, dtype: DType, lanes: int
) -> None:
    a, b, c, m = edge_pairs(dtype)
    names = operations(dtype)
    kernel = matrix_kernel(dtype, lanes, len(a), names)
    results = [np.empty(len(a), p.dtype.np) for p in kernel.params[4:]]
    cpu.run(kernel, a, b, c, m, *results)
    for name, got in zip(names, results, strict=True):
        args = (m, a, b) if name == "where" else (a, b, c)[: OPS[name].arity]
        want = apply(name, dtypes.from_numpy(got.dtype), args)
        assert_same(got, want, f"{name} {dtype.name} x{lanes}")


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("dtype", [d for d in COMPUTED if d.is_int], ids=lambda d: d.name)
def test_constant_divisors_and_shift_counts(cpu: Toolchain, dtype: DType, lanes: int) -> None:
    values = np.resize(edge_values(dtype), 32)
    constants = [v for v in (-3, -1, 0, 1, 2, 7, dtype.bits - 1, dtype.bits) if v >= dtype.min]
    cases = [(n, v) for n in ("tdiv", "tmod", "shl", "shr") for v in constants]
    k = Kernel(a=(dtype, 32), **{f"r{i}": (dtype, 32) for i in range(len(cases))})
    i = k.loop(32, lanes)
    a = k.load(k.a, i, lanes)
    for position, (name, value) in enumerate(cases):
        known = k("splat", dtype, k.const(value, dtype), lanes=lanes)
        k.store(getattr(k, f"r{position}"), i, k.alu(name, a, known))
    k.end(i)
    results = [np.empty(32, dtype.np) for _ in cases]
    cpu.run(k, values, *results)
    for (name, value), got in zip(cases, results, strict=True):
        want = apply(name, dtype, (values, np.full(32, value, dtype.np)))
        assert_same(got, want, f"{name} {dtype.name} by {value}")


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=lambda d: d.name)
def test_fma_rounds_once(cpu: Toolchain, dtype: DType, need: Callable[[str], None]) -> None:
    need("fma")
    epsilon = np.finfo(dtype.np).eps
    x = np.full(8, 1 + epsilon, dtype.np)
    out = np.empty(8, dtype.np)
    k = Kernel(x=(dtype, 8), out=(dtype, 8))
    v = k.load(k.x, k.const(0), 8)
    negative = k.const(-(1.0 + 2 * float(epsilon)), dtype, 8)
    k.store(k.out, k.const(0), k.alu("fma", v, v, negative))
    cpu.run(k, x, out)
    assert (out == float(epsilon) ** 2).all()


@pytest.mark.parametrize("lanes", [1, 8, 16])
@pytest.mark.parametrize("source", COMPUTED, ids=lambda d: d.name)
def test_every_cast(cpu: Toolchain, source: DType, lanes: int) -> None:
    values = edge_values(source)
    values = np.resize(values, -(-len(values) // 16) * 16)
    k = Kernel(a=(source, len(values)), **{f"to_{d.name}": (d, len(values)) for d in COMPUTED})
    i = k.loop(len(values), lanes)
    a = k.load(k.a, i, lanes)
    for target in COMPUTED:
        k.store(getattr(k, f"to_{target.name}"), i, k("cast", target, a, lanes=lanes))
    k.end(i)
    results = [np.empty(len(values), d.np) for d in COMPUTED]
    cpu.run(k, values, *results)
    for target, got in zip(COMPUTED, results, strict=True):
        with np.errstate(all="ignore"):
            want = evaluate.cast(values, source, target)
        assert_same(got, want, f"{source.name} to {target.name} x{lanes}")


@pytest.mark.parametrize("lanes", [1, 8])
def test_half_converts_to_and_from_float(
    cpu: Toolchain, lanes: int, need: Callable[[str], None]
) -> None:
    need("f16c")
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = every[np.isfinite(every)].astype(np.float32)
    singles = np.concatenate([every.astype(np.float32), finite * np.float32(1.00049)])
    singles = np.resize(singles, len(singles) // 8 * 8)
    n, m = len(every), len(singles)
    h, f = dtypes.float16, dtypes.float32
    k = Kernel(h=(h, n), f=(f, n), s=(f, m), t=(h, m))
    i = k.loop(n, lanes)
    k.store(k.f, i, k("cast", f, k.load(k.h, i, lanes), lanes=lanes))
    k.end(i)
    i = k.loop(m, lanes)
    k.store(k.t, i, k("cast", h, k.load(k.s, i, lanes), lanes=lanes))
    k.end(i)
    wide, narrow = np.empty(n, np.float32), np.empty(m, np.float16)
    cpu.run(k, every, wide, singles, narrow)
    assert_same(wide, every.astype(np.float32), "float16 to float32")
    with np.errstate(all="ignore"):
        assert_same(narrow, singles.astype(np.float16), "float32 to float16")


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_bits_of_floats_pass_unchanged(cpu: Toolchain, dtype: DType) -> None:
    bits = {8: dtypes.uint8, 16: dtypes.uint16, 32: dtypes.uint32, 64: dtypes.uint64}[dtype.bits]
    patterns = np.random.default_rng(3).integers(0, bits.max, 64, bits.np, endpoint=True)
    k = Kernel(a=(dtype, 64), copy=(dtype, 64), flipped=(dtype, 64), one=(dtype, 1))
    i = k.loop(64, 8)
    v = k.load(k.a, i, 8)
    k.store(k.copy, i, v)
    raw = k("bitcast", bits, v, lanes=8)
    k.store(k.flipped, i, k("bitcast", dtype, k.alu("not", raw), lanes=8))
    k.end(i)
    k.store(k.one, k.const(0), k.const(1.0, dtype))
    copy, flipped, one = np.zeros_like(patterns), np.zeros_like(patterns), np.zeros(1, dtype.np)
    cpu.run(k, patterns, copy, flipped, one)
    assert (copy == patterns).all() and (flipped == ~patterns).all() and one[0] == 1.0


def test_any_byte_but_zero_is_true(cpu: Toolchain) -> None:
    data = np.array([0, 1, 2, 255] * 4, np.uint8)
    bits, copy, back = np.empty(16, np.uint8), np.empty(16, np.uint8), np.empty(16, np.uint8)
    k = Kernel(
        a=(dtypes.bool, 16), raw=(dtypes.uint8, 16), copy=(dtypes.bool, 16), back=(dtypes.bool, 16)
    )
    v = k.load(k.a, k.const(0), 16)
    k.store(k.copy, k.const(0), v)
    k.store(k.raw, k.const(0), k("bitcast", dtypes.uint8, v, lanes=16))
    three = k.const(3, dtypes.uint8, 16)
    k.store(k.back, k.const(0), k("bitcast", dtypes.bool, three, lanes=16))
    cpu.run(k, data, bits, copy, back)
    assert (copy == (data != 0)).all() and (bits == copy).all() and (back == 1).all()


@pytest.mark.parametrize("lanes", [2, 3, 7, 8, 16])
def test_folds(cpu: Toolchain, lanes: int) -> None:
    rng = np.random.default_rng(lanes)
    for dtype in COMPUTED:
        names = [n for n, monoid in MONOIDS.items() if dtype.kind in monoid.domain]
        k = Kernel(a=(dtype, lanes), out=(dtype, len(names)))
        v = k.load(k.a, k.const(0), lanes)
        for position, name in enumerate(names):
            k.store(k.out, k.const(position), k("fold", dtype, v, attr=(name,)))
        program = cpu.build(k)
        for trial in range(4):
            data = rng.choice(edge_values(dtype), lanes)
            if dtype.is_float:
                data = rng.integers(-4, 5, lanes).astype(dtype.np)  # exact in any order
                data[rng.integers(lanes)] = np.nan if trial == 3 else 1.0
            got = np.empty(len(names), dtype.np)
            program(data.ctypes.data, got.ctypes.data)
            with np.errstate(all="ignore"):
                want = [MONOIDS[n].ufunc.reduce(data).astype(dtype.np) for n in names]
            assert_same(got, np.array(want, dtype.np), f"folds max min {dtype.name} of {data}")


def test_vectors_are_made_and_taken_apart(cpu: Toolchain) -> None:
    i32 = dtypes.int32
    data = np.arange(16, dtype=np.int32) * 10
    out, ramps = np.zeros(24, np.int32), np.zeros(8, np.int64)
    k = Kernel(a=(i32, 16), out=(i32, 24), ramps=(dtypes.int64, 8))
    zero, eight = k.const(0), k.const(8)
    low, high = k.load(k.a, zero, 8), k.load(k.a, eight, 8)
    k.store(k.out, zero, k("shuffle", i32, low, high, lanes=4, attr=((15, 0, 8, 7),)))
    k.store(k.out, k.const(4), k("shuffle", i32, low, high, attr=((9,),)))
    parts = [k("extract", i32, low, attr=(lane,)) for lane in (3, 1, 2)]
    k.store(k.out, k.const(5), k("pack", i32, *parts, lanes=3))
    spread = k("splat", i32, k("extract", i32, high, attr=(7,)), lanes=8)
    k.store(k.out, k.const(8), spread)
    k.store(k.out, k.const(16), k("shuffle", i32, *parts[:2], lanes=4, attr=((1, 0, 0, 1),)))
    k.store(k.ramps, zero, k("ramp", dtypes.int64, eight, lanes=8, attr=(-3,)))
    cpu.run(k, data, out, ramps)
    assert out[:8].tolist() == [150, 0, 80, 70, 90, 30, 10, 20]
    assert (out[8:16] == 150).all() and out[16:20].tolist() == [10, 30, 30, 10]
    assert ramps.tolist() == [8 - 3 * lane for lane in range(8)]


@pytest.mark.parametrize(("first", "second"), [(8, 8), (4, 8), (8, 2), (1, 4), (5, 1), (1, 1)])
def test_shuffles_of_vectors_of_any_lengths(cpu: Toolchain, first: int, second: int) -> None:
    f32 = dtypes.float32
    data = np.random.default_rng(5).standard_normal(16).astype(np.float32)
    k = Kernel(a=(f32, 16), out=(f32, 12))
    a, b = k.load(k.a, k.const(0), first), k.load(k.a, k.const(first), second)
    picks = np.random.default_rng(6).integers(0, first + second, 10).tolist()
    some = k("shuffle", f32, a, b, lanes=8, attr=(tuple(picks[:8]),))
    k.store(k.out, k.const(0), some)
    for position in (8, 9):
        k.store(k.out, k.const(position), k("shuffle", f32, a, b, attr=((picks[position],),)))
    out = np.empty(12, np.float32)
    cpu.run(k, data, out)
    assert (out[:10] == data[picks]).all()


@pytest.mark.parametrize(
    ("start", "stop", "step"), [(0, 7, 1), (0, 10, 4), (-5, 6, 3), (3, 3, 1), (5, 2, 2), (0, 1, 9)]
)
def test_loops_carry_values(cpu: Toolchain, start: int, stop: int, step: int) -> None:
    i64 = dtypes.int64
    out = np.zeros(3, np.int64)
    k = Kernel(out=(i64, 3))
    outer = k.loop(stop, step, start=start, carry=(k.const(7), k.const(1)))
    total, previous = k("carry", i64, outer, attr=(0,)), k("carry", i64, outer, attr=(1,))
    inner = k.loop(3, carry=(total,))
    part = k("carry", i64, inner, attr=(0,))
    inner_end = k.end(inner, k.alu("add", part, k.alu("mul", outer, inner)))
    end = k.end(outer, k("result", i64, inner_end, attr=(0,)), k.alu("sub", total, previous))
    for position in (0, 1):
        k.store(k.out, k.const(position), k("result", i64, end, attr=(position,)))
    cpu.run(k, out)
    want, before = 7, 1
    for i in range(start, stop, step):
        want, before = want + sum(i * j for j in range(3)), want - before
    assert out.tolist() == [want, before, 0]


def test_swapped_carries(cpu: Toolchain) -> None:
    i64 = dtypes.int64
    out = np.zeros(2, np.int64)
    k = Kernel(out=(i64, 2))
    loop = k.loop(5, carry=(k.const(1), k.const(2)))
    a, b = k("carry", i64, loop, attr=(0,)), k("carry", i64, loop, attr=(1,))
    end = k.end(loop, b, a)
    for position in (0, 1):
        k.store(k.out, k.const(position), k("result", i64, end, attr=(position,)))
    cpu.run(k, out)
    assert out.tolist() == [2, 1]


def test_if_runs_only_where_true(cpu: Toolchain) -> None:
    out = np.zeros(10, np.int64)
    k = Kernel(out=(dtypes.int64, 10))
    i = k.loop(10, kind="grid")
    condition = k("if", dtypes.bool, k.alu("lt", i, k.const(6)))
    inner = k("if", dtypes.bool, k.alu("ne", i, k.const(2)))
    k.store(k.out, i, k.const(5))
    k("endif", dtypes.bool, attr=(inner,))
    k("endif", dtypes.bool, attr=(condition,))
    k.end(i)
    cpu.run(k, out)
    assert out.tolist() == [5, 5, 0, 5, 5, 5, 0, 0, 0, 0]


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_gather_and_scatter(cpu: Toolchain, dtype: DType) -> None:
    rng = np.random.default_rng(4)
    data = rng.integers(0, 2, (32, dtype.itemsize), np.uint8).view(dtype.np).reshape(32)
    index = rng.permutation(32)[:8].astype(np.int64)
    out, back = np.zeros(8, dtype.np), np.zeros(32, dtype.np)
    k = Kernel(a=(dtype, 32), at=(dtypes.int64, 8), out=(dtype, 8), back=(dtype, 32))
    where = k.load(k.at, k.const(0), 8)
    got = k.load(k.a, where, 8)
    k.store(k.out, k.const(0), got)
    k.store(k.back, where, got)
    cpu.run(k, data, index, out, back)
    want = np.zeros(32, dtype.np)
    want[index] = data[index]
    assert out.tobytes() == data[index].tobytes() and back.tobytes() == want.tobytes()


_GUARDED = """
import ctypes, mmap, sys
import numpy as np
sys.path.insert(0, {folder!r})
from unit.linear_kernels import guarded_accesses, toolchain

libc = ctypes.CDLL(None)
page = mmap.PAGESIZE

def fenced(size):
    "Memory that ends at a page that cannot be touched."
    area = mmap.mmap(-1, 2 * page)
    base = ctypes.addressof(ctypes.c_char.from_buffer(area))
    assert libc.mprotect(ctypes.c_void_p(base + page), ctypes.c_size_t(page), 0) == 0
    return np.frombuffer(area, np.uint8, size, page - size)

guarded_accesses(toolchain({compiler!r}), fenced)
print("done")
"""


def test_excluded_lanes_touch_no_memory(compiler_name: str) -> None:
    folder = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", _GUARDED.format(folder=folder, compiler=compiler_name)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stdout == "done\n", (done.returncode, done.stderr)


@pytest.mark.parametrize("offset", [0, 1])
def test_streaming_stores_at_any_alignment(cpu: Toolchain, offset: int) -> None:
    raw = np.zeros(64 + 32, np.float32)
    first = (-raw.ctypes.data // 4) % 16 + offset
    k = Kernel(out=(dtypes.float32, 32))
    i = k.loop(32, 8)
    k.store(k.out, i, k.const(2.5, dtypes.float32, 8), streaming=True)
    k.end(i)
    cpu.build(k)(raw.ctypes.data + 4 * first)
    assert (raw[first : first + 32] == 2.5).all() and raw.sum() == 80.0


@pytest.mark.parametrize("start", range(9))
def test_streaming_stores_from_any_element(cpu: Toolchain, start: int) -> None:
    raw = np.zeros(64, np.float32)
    first = (-raw.ctypes.data // 4) % 16
    k = Kernel(out=(dtypes.float32, 48))
    i = k.loop(32, 8)
    at = k.alu("add", i, k.const(start))
    k.store(k.out, at, k.const(2.5, dtypes.float32, 8), streaming=True)
    k.end(i)
    cpu.build(k)(raw.ctypes.data + 4 * first)
    assert (raw[first + start : first + start + 32] == 2.5).all() and raw.sum() == 80.0


def test_prefetches_read_nothing(cpu: Toolchain) -> None:
    k = Kernel(out=(dtypes.float32, 8))
    for index in (0, 8, -1, 1 << 40):
        k("prefetch", dtypes.bool, k.out, k.const(index))
    k.store(k.out, k.const(0), k.const(2.5, dtypes.float32, 8))
    out = np.zeros(8, np.float32)
    cpu.build(k)(out.ctypes.data)
    assert (out == 2.5).all()


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 64])
@pytest.mark.parametrize(("stop", "step"), [(1, 1), (10, 1), (100, 8), (63, 4), (0, 1)])
def test_worker_loops_are_shared_out(cpu: Toolchain, workers: int, stop: int, step: int) -> None:
    k = Kernel(out=(dtypes.int64, 256))
    i = k.loop(stop, step, kind="worker")
    inner = k.loop(2, kind="worker")  # inside another it runs whole
    at = k.alu("add", i, inner)
    k.store(k.out, at, k.alu("add", k.load(k.out, at), k.const(1)))
    k.end(inner)
    k.end(i)
    program = cpu.build(k)
    counts = []
    total = np.zeros(256, np.int64)
    for worker in range(workers):
        out = np.zeros(256, np.int64)
        call = native_function(program.address, "void(*)(char const *, int64_t, int64_t)")
        call(program.words((out.ctypes.data,)), worker, workers)
        counts.append(out.sum() // 2)
        total += out
    want = np.zeros(256, np.int64)
    for first in range(0, stop, step):
        want[first : first + 2] += 1
    assert (total == want).all()
    assert max(counts) - min(counts) <= 1


def test_small_private_arrays_are_on_the_stack_and_others_in_scratch_memory(cpu: Toolchain) -> None:
    small, large = scratch_kernel(100), scratch_kernel(STACK_LIMIT)
    assert scratch_bytes(small.program()) == 128
    assert scratch_bytes(large.program()) == STACK_LIMIT * 8 + STACK_LIMIT
    for kernel, size in ((small, 100), (large, STACK_LIMIT)):
        out = np.zeros(size, np.int64)
        cpu.run(kernel, out)
        assert (out == np.arange(size)[::-1] + 1).all()


@pytest.mark.parametrize("features", TARGETS)
def test_no_target_needs_a_library(compiler_name: str, features: str) -> None:
    target = host_target(features)
    tools = toolchain(compiler_name, target)
    kernels = [cast_kernel(target, 8)]
    for dtype in COMPUTED:
        names = [n for n, r in OPS.items() if n in target.native.ops and dtype.kind in r.domain]
        kernels.append(matrix_kernel(dtype, 8 if dtype.bits == 64 else 16, 64, names))
    libs = tools.compiler.compile_many_cached([printed(tools.renderer, k) for k in kernels])
    for lib in libs:
        undefined = [s.name for s in parse_object(lib).symbols if s.section == 0 and s.name]
        assert undefined == []


def test_what_the_target_lacks_is_refused(compiler_name: str) -> None:
    plain = toolchain(compiler_name, host_target("x86_64")).renderer
    for name in ("floor", "fma", "exp2"):
        k = Kernel(a=(dtypes.float32, 1))
        v = k.load(k.a, k.const(0))
        k.store(k.a, k.const(0), k.alu(name, *[v] * OPS[name].arity))
        with pytest.raises(Unsupported, match=f"no {name}"):
            plain.render(k.program())
    k = Kernel(a=(dtypes.float16, 1), b=(dtypes.float32, 1))
    k("cast", dtypes.float32, k.load(k.a, k.const(0)))
    with pytest.raises(Unsupported, match="cannot convert float16"):
        plain.render(k.program())
    k = Kernel(a=(dtypes.bfloat16, 1))
    k.alu("add", *[k.load(k.a, k.const(0))] * 2)
    with pytest.raises(Unsupported, match="narrow floats have no arithmetic"):
        plain.render(k.program())


def test_vector_extremes_take_a_handful_of_instructions(compiler_name: str) -> None:
    target = host_target("x86_64,avx2,fma,f16c")
    k = Kernel(a=(dtypes.float32, 8), b=(dtypes.float32, 8))
    k.store(k.a, k.const(0), k.alu("max", k.load(k.a, k.const(0), 8), k.load(k.b, k.const(0), 8)))
    tools = toolchain(compiler_name, target)
    lib = tools.compiler.compile(printed(tools.renderer, k))
    code = next(s for s in parse_object(lib).sections if s.name.startswith(".text") and s.size)
    assert len(code.content) < 64

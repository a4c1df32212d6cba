from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import pytest

from gpu.backends.cpu.native import native_function
from gpu.backends.cpu.program import CPUProgram
from gpu.compiler.ir import evaluate
from gpu.compiler.ir.linear import Inst, Param, Program
from gpu.compiler.ir.linear_verify import verify_linear
from gpu.compiler.ir.optable import MONOIDS, OPS, apply
from gpu.compiler.render.cpu import STACK_LIMIT, scratch_bytes
from gpu.compiler.render.llvm import LLVMRenderer
from gpu.compiler.render.llvm_cpus import ARM_CPUS, X86_CPUS
from gpu.compiler.render.llvm_target import host_target, missing_here
from gpu.compiler.target import Target
from gpu.compiler.toolchain.llvm import LLVMCompiler
from gpu.core.dtype import ALL, FLOATS, DType, dtypes
from gpu.core.elf import parse_object
from gpu.core.errors import CompileError, Unsupported

HOST = host_target()
COMPUTED = tuple(d for d in ALL if not d.is_float or d.bits >= 32)
TARGETS = (
    "x86_64", "x86_64,sse4.1", "x86_64,avx", "x86_64,avx2,fma,f16c",
    "x86_64,avx512f,avx512bw,avx512dq,avx512vl", "aarch64",
)  # fmt: skip


class Kernel:
    """Builds a linear program instruction by instruction."""

    def __init__(self, **params: tuple[DType, int]):
        self.params = tuple(Param(name, d, n, True) for name, (d, n) in params.items())
        self.body: list[Inst] = []
        for position, (name, (dtype, _)) in enumerate(params.items()):
            setattr(self, name, self("param", dtype, attr=(position,)))

    def __getattr__(self, name: str) -> Inst:
        raise AttributeError(name)

    def __call__(
        self, op: str, dtype: DType, *args: Inst, lanes: int = 1, attr: tuple[Any, ...] = ()
    ) -> Inst:
        inst = Inst(op, dtype, lanes, args, attr)
        self.body.append(inst)
        return inst

    def const(self, value: Any, dtype: DType = dtypes.int64, lanes: int = 1) -> Inst:
        return self("const", dtype, lanes=lanes, attr=(value,))

    def loop(
        self, stop: int, step: int = 1, *, start: int = 0, kind: str = "serial", carry: Any = ()
    ):
        return self("loop", dtypes.int64, *carry, attr=(kind, start, stop, step))

    def end(self, loop: Inst, *carries: Inst) -> Inst:
        return self("end", dtypes.int64, *carries, attr=(loop,))

    def load(self, pointer: Inst, index: Inst, lanes: int = 1, *mask: Inst) -> Inst:
        return self("load", pointer.dtype, pointer, index, *mask, lanes=lanes)

    def store(self, pointer: Inst, index: Inst, value: Inst, *mask: Inst, streaming: bool = False):
        self("store", pointer.dtype, pointer, index, value, *mask, attr=(streaming,))

    def alu(self, name: str, *args: Inst) -> Inst:
        bool_result = OPS[name].result == "bool"
        dtype = dtypes.bool if bool_result else args[-1].dtype
        return self("alu", dtype, *args, lanes=args[-1].lanes, attr=(name,))

    def program(self, name: str = "kernel") -> Program:
        return Program(name, self.params, tuple(self.body))


@cache
def compiler(target: Target = HOST) -> LLVMCompiler:
    return LLVMCompiler(target.name, target.features)


def build(kernel: Kernel, **options: Any) -> CPUProgram:
    program = kernel.program()
    verify_linear(program)
    lib = compiler().compile(LLVMRenderer(HOST).render(program))
    return CPUProgram(program.name, lib, scratch=scratch_bytes(program), **options)


def run(kernel: Kernel, *arrays: np.ndarray) -> None:
    build(kernel)(*(a.ctypes.data for a in arrays))


def edge_values(dtype: DType) -> np.ndarray:
    rng = np.random.default_rng(1)
    if dtype is dtypes.bool:
        return np.array([False, True])
    if dtype.is_int:
        low, high = int(dtype.min), int(dtype.max)
        chosen = [low, low + 1, -2, -1, 0, 1, 2, 3, 7, dtype.bits - 1, dtype.bits, high - 1, high]
        edges = np.array([v for v in chosen if low <= v <= high], dtype.np)
        return np.concatenate([edges, rng.integers(low, high, 12, dtype.np, endpoint=True)])
    chosen_floats = [
        0.0, 0.5, 1.0, 1.5, 2.5, 127.5, 255.9, 256.0, 32768.0, 65520.0, 2.0**31, 2.0**32, 2.0**63,
        2.0**64, 2147483520.0, 1e-45, 1e-38, 3e38, 1e300, 5e-8, np.inf, np.nan, 8388607.5,
    ]  # fmt: skip
    with np.errstate(all="ignore"):
        positive = np.array(chosen_floats).astype(dtype.np)
    near = rng.standard_normal(6).astype(dtype.np)
    return np.concatenate([positive, -positive, near])


def edge_pairs(dtype: DType) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Every edge value against every other, then a shuffled copy and conditions, in 16s."""
    values = edge_values(dtype)
    size = -(-max(len(values) ** 2, 64) // 16) * 16
    a = np.resize(np.repeat(values, len(values)), size)
    b = np.resize(np.tile(values, len(values)), size)
    rng = np.random.default_rng(2)
    return a, b, rng.permutation(a), rng.integers(0, 2, size).astype(bool)


def assert_same(got: np.ndarray, want: np.ndarray, what: str) -> None:
    assert got.dtype == want.dtype
    same = got == want
    if got.dtype.kind == "f":
        if "max" not in what and "min" not in what:
            same &= np.signbit(got) == np.signbit(want)
        same |= np.isnan(got) & np.isnan(want)
    wrong = np.flatnonzero(~same)
    assert not len(wrong), f"{what}: at {wrong[0]} got {got[wrong[0]]!r}, not {want[wrong[0]]!r}"


def operations(dtype: DType) -> list[str]:
    return [
        n
        for n, row in OPS.items()
        if n in HOST.native.ops and dtype.kind in row.domain and n != "fma"
    ]


def matrix_kernel(dtype: DType, lanes: int, size: int, names: list[str]) -> Kernel:
    results = {f"r_{n}": (dtypes.bool if OPS[n].result == "bool" else dtype, size) for n in names}
    k = Kernel(a=(dtype, size), b=(dtype, size), c=(dtype, size), m=(dtypes.bool, size), **results)
    i = k.loop(size, lanes)
    a, b, c, m = (k.load(p, i, lanes) for p in (k.a, k.b, k.c, k.m))
    for name in names:
        args = (m, a, b) if name == "where" else (a, b, c)[: OPS[name].arity]
        k.store(getattr(k, f"r_{name}"), i, k.alu(name, *args))
    k.end(i)
    return k


@pytest.mark.parametrize("lanes", [1, 8, 16])
@pytest.mark.parametrize("dtype", COMPUTED, ids=lambda d: d.name)
def test_every_operation_means_what_the_op_table_says(dtype: DType, lanes: int) -> None:
    a, b, c, m = edge_pairs(dtype)
    names = operations(dtype)
    kernel = matrix_kernel(dtype, lanes, len(a), names)
    results = [np.empty(len(a), p.dtype.np) for p in kernel.params[4:]]
    run(kernel, a, b, c, m, *results)
    for name, got in zip(names, results, strict=True):
        args = (m, a, b) if name == "where" else (a, b, c)[: OPS[name].arity]
        want = apply(name, dtypes.from_numpy(got.dtype), args)
        assert_same(got, want, f"{name} {dtype.name} x{lanes}")


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("dtype", [d for d in COMPUTED if d.is_int], ids=lambda d: d.name)
def test_constant_divisors_and_shift_counts(dtype: DType, lanes: int) -> None:
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
    run(k, values, *results)
    for (name, value), got in zip(cases, results, strict=True):
        want = apply(name, dtype, (values, np.full(32, value, dtype.np)))
        assert_same(got, want, f"{name} {dtype.name} by {value}")


@pytest.mark.skipif("fma" not in HOST.native.ops, reason="this CPU has no FMA")
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=lambda d: d.name)
def test_fma_rounds_once(dtype: DType) -> None:
    epsilon = np.finfo(dtype.np).eps
    x = np.full(8, 1 + epsilon, dtype.np)
    out = np.empty(8, dtype.np)
    k = Kernel(x=(dtype, 8), out=(dtype, 8))
    v = k.load(k.x, k.const(0), 8)
    negative = k.const(-(1.0 + 2 * float(epsilon)), dtype, 8)
    k.store(k.out, k.const(0), k.alu("fma", v, v, negative))
    run(k, x, out)
    assert (out == float(epsilon) ** 2).all()


@pytest.mark.parametrize("lanes", [1, 8, 16])
@pytest.mark.parametrize("source", COMPUTED, ids=lambda d: d.name)
def test_every_cast(source: DType, lanes: int) -> None:
    values = edge_values(source)
    values = np.resize(values, -(-len(values) // 16) * 16)
    k = Kernel(a=(source, len(values)), **{f"to_{d.name}": (d, len(values)) for d in COMPUTED})
    i = k.loop(len(values), lanes)
    a = k.load(k.a, i, lanes)
    for target in COMPUTED:
        k.store(getattr(k, f"to_{target.name}"), i, k("cast", target, a, lanes=lanes))
    k.end(i)
    results = [np.empty(len(values), d.np) for d in COMPUTED]
    run(k, values, *results)
    for target, got in zip(COMPUTED, results, strict=True):
        with np.errstate(all="ignore"):
            want = evaluate.cast(values, source, target)
        assert_same(got, want, f"{source.name} to {target.name} x{lanes}")


@pytest.mark.skipif(
    dtypes.float16 not in HOST.native.compute_as_float32, reason="this CPU has no F16C"
)
@pytest.mark.parametrize("lanes", [1, 8])
def test_half_converts_to_and_from_float(lanes: int) -> None:
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
    run(k, every, wide, singles, narrow)
    assert_same(wide, every.astype(np.float32), "float16 to float32")
    with np.errstate(all="ignore"):
        assert_same(narrow, singles.astype(np.float16), "float32 to float16")


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_bits_of_floats_pass_unchanged(dtype: DType) -> None:
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
    run(k, patterns, copy, flipped, one)
    assert (copy == patterns).all() and (flipped == ~patterns).all() and one[0] == 1.0


def test_any_byte_but_zero_is_true() -> None:
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
    run(k, data, bits, copy, back)
    assert (copy == (data != 0)).all() and (bits == copy).all() and (back == 1).all()


@pytest.mark.parametrize("lanes", [2, 3, 7, 8, 16])
def test_folds(lanes: int) -> None:
    rng = np.random.default_rng(lanes)
    for dtype in COMPUTED:
        names = [n for n, monoid in MONOIDS.items() if dtype.kind in monoid.domain]
        k = Kernel(a=(dtype, lanes), out=(dtype, len(names)))
        v = k.load(k.a, k.const(0), lanes)
        for position, name in enumerate(names):
            k.store(k.out, k.const(position), k("fold", dtype, v, attr=(name,)))
        program = build(k)
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


def test_vectors_are_made_and_taken_apart() -> None:
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
    run(k, data, out, ramps)
    assert out[:8].tolist() == [150, 0, 80, 70, 90, 30, 10, 20]
    assert (out[8:16] == 150).all() and out[16:20].tolist() == [10, 30, 30, 10]
    assert ramps.tolist() == [8 - 3 * lane for lane in range(8)]


@pytest.mark.parametrize(("first", "second"), [(8, 8), (4, 8), (8, 2), (1, 4), (5, 1), (1, 1)])
def test_shuffles_of_vectors_of_any_lengths(first: int, second: int) -> None:
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
    run(k, data, out)
    assert (out[:10] == data[picks]).all()


@pytest.mark.parametrize(
    ("start", "stop", "step"), [(0, 7, 1), (0, 10, 4), (-5, 6, 3), (3, 3, 1), (5, 2, 2), (0, 1, 9)]
)
def test_loops_carry_values(start: int, stop: int, step: int) -> None:
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
    run(k, out)
    want, before = 7, 1
    for i in range(start, stop, step):
        want, before = want + sum(i * j for j in range(3)), want - before
    assert out.tolist() == [want, before, 0]


def test_swapped_carries() -> None:
    i64 = dtypes.int64
    out = np.zeros(2, np.int64)
    k = Kernel(out=(i64, 2))
    loop = k.loop(5, carry=(k.const(1), k.const(2)))
    a, b = k("carry", i64, loop, attr=(0,)), k("carry", i64, loop, attr=(1,))
    end = k.end(loop, b, a)
    for position in (0, 1):
        k.store(k.out, k.const(position), k("result", i64, end, attr=(position,)))
    run(k, out)
    assert out.tolist() == [2, 1]


def test_if_runs_only_where_true() -> None:
    out = np.zeros(10, np.int64)
    k = Kernel(out=(dtypes.int64, 10))
    i = k.loop(10, kind="grid")
    condition = k("if", dtypes.bool, k.alu("lt", i, k.const(6)))
    inner = k("if", dtypes.bool, k.alu("ne", i, k.const(2)))
    k.store(k.out, i, k.const(5))
    k("endif", dtypes.bool, attr=(inner,))
    k("endif", dtypes.bool, attr=(condition,))
    k.end(i)
    run(k, out)
    assert out.tolist() == [5, 5, 0, 5, 5, 5, 0, 0, 0, 0]


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_gather_and_scatter(dtype: DType) -> None:
    rng = np.random.default_rng(4)
    data = rng.integers(0, 2, (32, dtype.itemsize), np.uint8).view(dtype.np).reshape(32)
    index = rng.permutation(32)[:8].astype(np.int64)
    out, back = np.zeros(8, dtype.np), np.zeros(32, dtype.np)
    k = Kernel(a=(dtype, 32), at=(dtypes.int64, 8), out=(dtype, 8), back=(dtype, 32))
    where = k.load(k.at, k.const(0), 8)
    got = k.load(k.a, where, 8)
    k.store(k.out, k.const(0), got)
    k.store(k.back, where, got)
    run(k, data, index, out, back)
    want = np.zeros(32, dtype.np)
    want[index] = data[index]
    assert out.tobytes() == data[index].tobytes() and back.tobytes() == want.tobytes()


_GUARDED = """
import ctypes, mmap, sys
import numpy as np
sys.path.insert(0, {folder!r})
from test_llvm_render import guarded_accesses

libc = ctypes.CDLL(None)
page = mmap.PAGESIZE

def fenced(size):
    "Memory that ends at a page that cannot be touched."
    area = mmap.mmap(-1, 2 * page)
    base = ctypes.addressof(ctypes.c_char.from_buffer(area))
    assert libc.mprotect(ctypes.c_void_p(base + page), ctypes.c_size_t(page), 0) == 0
    return np.frombuffer(area, np.uint8, size, page - size)

guarded_accesses(fenced)
print("done")
"""


def guarded_accesses(fenced: Any) -> None:
    """Masked accesses that would fault if an excluded lane touched memory (run on its own)."""
    for dtype in ALL:
        for lanes, count in ((1, 0), (1, 1), (8, 5), (8, 0), (16, 15)):
            for scattered in (False, True):
                if lanes > 1 or not scattered:
                    _masked_copy(fenced, dtype, lanes, count, scattered)


def _masked_copy(fenced: Any, dtype: DType, lanes: int, count: int, scattered: bool) -> None:
    source = fenced(max(1, count) * dtype.itemsize)[: count * dtype.itemsize]
    target = fenced(max(1, count) * dtype.itemsize)[: count * dtype.itemsize]
    source[:] = 1
    seen = np.full(lanes * dtype.itemsize, 9, np.uint8)
    k = Kernel(a=(dtype, count), b=(dtype, count), seen=(dtype, lanes))
    # Index 2**40 where there is nothing: in no way near the buffer.
    start = k.const(0 if count else 1 << 40)
    lane = k("ramp", dtypes.int64, k.const(0), lanes=lanes, attr=(1,))
    mask = k.alu("lt", lane, k.const(count, lanes=lanes))
    index = k("ramp", dtypes.int64, start, lanes=lanes, attr=(1,)) if scattered else start
    value = k.load(k.a, index, lanes, mask)
    k.store(k.seen, k.const(0), value)
    k.store(k.b, index, value, mask)
    run(k, source, target, seen)
    assert (target == 1).all(), (dtype, lanes, count, scattered)
    assert (seen[: count * dtype.itemsize] == 1).all()
    assert (seen[count * dtype.itemsize :] == 0).all()


def test_excluded_lanes_touch_no_memory() -> None:
    folder = __file__.rpartition("/")[0]
    done = subprocess.run(
        [sys.executable, "-c", _GUARDED.format(folder=folder)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stdout == "done\n", (done.returncode, done.stderr)


@pytest.mark.parametrize("offset", [0, 1])
def test_streaming_stores_at_any_alignment(offset: int) -> None:
    raw = np.zeros(64 + 32, np.float32)
    first = (-raw.ctypes.data // 4) % 16 + offset
    k = Kernel(out=(dtypes.float32, 32))
    i = k.loop(32, 8)
    k.store(k.out, i, k.const(2.5, dtypes.float32, 8), streaming=True)
    k.end(i)
    build(k)(raw.ctypes.data + 4 * first)
    assert (raw[first : first + 32] == 2.5).all() and raw.sum() == 80.0


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 64])
@pytest.mark.parametrize(("stop", "step"), [(1, 1), (10, 1), (100, 8), (63, 4), (0, 1)])
def test_worker_loops_are_shared_out(workers: int, stop: int, step: int) -> None:
    k = Kernel(out=(dtypes.int64, 256))
    i = k.loop(stop, step, kind="worker")
    inner = k.loop(2, kind="worker")  # inside another it runs whole
    at = k.alu("add", i, inner)
    k.store(k.out, at, k.alu("add", k.load(k.out, at), k.const(1)))
    k.end(inner)
    k.end(i)
    program = build(k)
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


def scratch_kernel(elements: int) -> Kernel:
    """Writes a private and a team array and reads both back in the other order."""
    k = Kernel(out=(dtypes.int64, elements))
    kept = k("local", dtypes.int64, attr=(elements, "private"))
    team = k("local", dtypes.int8, attr=(elements, "team"))
    i = k.loop(elements)
    k.store(kept, i, i)
    k.store(team, i, k.const(1, dtypes.int8))
    k.end(i)
    k("barrier", dtypes.int64)
    i = k.loop(elements)
    reverse = k.alu("sub", k.const(elements - 1), i)
    one = k("cast", dtypes.int64, k.load(team, reverse))
    k.store(k.out, i, k.alu("add", k.load(kept, reverse), one))
    k.end(i)
    return k


def test_small_private_arrays_are_on_the_stack_and_others_in_scratch_memory() -> None:
    small, large = scratch_kernel(100), scratch_kernel(STACK_LIMIT)
    assert scratch_bytes(small.program()) == 128
    assert scratch_bytes(large.program()) == STACK_LIMIT * 8 + STACK_LIMIT
    for kernel, size in ((small, 100), (large, STACK_LIMIT)):
        out = np.zeros(size, np.int64)
        run(kernel, out)
        assert (out == np.arange(size)[::-1] + 1).all()


def cast_kernel(target: Target, lanes: int) -> Kernel:
    narrow = tuple(target.native.compute_as_float32)
    every = (*COMPUTED, *narrow)
    k = Kernel(**{d.name: (d, 64) for d in every})
    at = k.const(0)
    for source in every:
        for result in every:
            if {source, result} & set(narrow) and dtypes.float32 not in (source, result):
                continue
            value = k.load(getattr(k, source.name), at, lanes)
            k.store(getattr(k, result.name), at, k("cast", result, value, lanes=lanes))
    return k


@pytest.mark.parametrize("features", TARGETS)
def test_no_target_needs_a_library(features: str) -> None:
    target = host_target(features)
    renderer = LLVMRenderer(target)
    kernels = [cast_kernel(target, 8)]
    for dtype in COMPUTED:
        names = [n for n, r in OPS.items() if n in target.native.ops and dtype.kind in r.domain]
        kernels.append(matrix_kernel(dtype, 8 if dtype.bits == 64 else 16, 64, names))
    for kernel in kernels:
        lib = compiler(target).compile(renderer.render(kernel.program()))
        undefined = [s.name for s in parse_object(lib).symbols if s.section == 0 and s.name]
        assert undefined == []


def test_what_the_target_lacks_is_refused() -> None:
    plain = LLVMRenderer(host_target("x86_64"))
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


def test_features_choose_the_target() -> None:
    assert host_target("x86_64").vector_bytes == 16
    wide = host_target("x86_64,avx512f", workers=3)
    assert (wide.vector_bytes, wide.registers, wide.workers) == (64, 32, 3)
    less = host_target("x86_64,avx512bw,avx2,-avx512f,-fma")
    assert (less.vector_bytes, less.registers) == (32, 16)
    assert "fma" not in less.native.ops and dtypes.float16 in less.native.compute_as_float32
    assert host_target("x86_64,avx2").features == "+avx,+avx2,+sse3,+sse4.1,+sse4.2,+ssse3"
    with pytest.raises(Unsupported, match="did you mean avx2"):
        host_target("x86_64,avx22")
    with pytest.raises(Unsupported, match="no feature"):
        host_target("riscv64,v")


def test_named_cpus_stand_for_their_features() -> None:
    assert host_target("x86-64") == host_target("x86_64")
    assert host_target("znver2") == host_target("x86_64,avx2,bmi,bmi2,f16c,fma,lzcnt,movbe,popcnt")
    assert host_target("znver4,-avx512f").vector_bytes == 32
    assert host_target("sapphirerapids").registers == 32
    assert host_target("apple-m1").name == "aarch64"
    with pytest.raises(Unsupported, match="did you mean znver5"):
        host_target("znver55")
    for name in (*X86_CPUS, *ARM_CPUS):
        target = host_target(name)
        LLVMCompiler(target.name, target.features).compile("define void @f() { ret void }")


def test_code_for_features_this_machine_lacks_is_known_not_to_run() -> None:
    assert missing_here(HOST) == []
    other = "aarch64" if HOST.name == "x86_64" else "x86_64"
    assert missing_here(host_target(other)) == [other]
    rich = host_target("sapphirerapids" if HOST.name == "x86_64" else "neoverse-v1")
    lacking = set(rich.features.split(",")) - set(HOST.features.split(","))
    assert missing_here(rich) == sorted(lacking)


def test_threads_compile_at_once() -> None:
    text = LLVMRenderer(HOST).render(scratch_kernel(5).program())
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda _: LLVMCompiler(HOST.name).compile(text), range(12)))
    assert len(set(made)) == 1


def test_vector_extremes_take_a_handful_of_instructions() -> None:
    target = host_target("x86_64,avx2,fma,f16c")
    k = Kernel(a=(dtypes.float32, 8), b=(dtypes.float32, 8))
    k.store(k.a, k.const(0), k.alu("max", k.load(k.a, k.const(0), 8), k.load(k.b, k.const(0), 8)))
    lib = compiler(target).compile(LLVMRenderer(target).render(k.program()))
    code = next(s for s in parse_object(lib).sections if s.name == ".text")
    assert len(code.content) < 64


def test_errors_of_llvm_name_the_line() -> None:
    with pytest.raises(CompileError, match=r"line 2: %x = add i32 1, %y"):
        compiler().compile("define void @f() {\n%x = add i32 1, %y\nret void\n}\n")
    with pytest.raises(Unsupported, match="riscv64"):
        LLVMCompiler("riscv64")


def test_cached_objects_and_disassembly(monkeypatch: pytest.MonkeyPatch) -> None:
    made = LLVMCompiler(HOST.name, HOST.features)
    text = LLVMRenderer(HOST).render(scratch_kernel(3).program())
    lib = made.compile_cached(text)
    monkeypatch.setattr(made, "compile", lambda source: pytest.fail("compiled again"))
    assert made.compile_cached(text) is lib
    try:
        assert "kernel" in made.disassemble(lib)
    except Unsupported as error:
        pytest.skip(str(error))

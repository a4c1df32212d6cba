"""Linear programs for tests of renderers, and the values they are tried on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gpu.backends.cpu.program import CPUProgram
from gpu.compiler.ir.linear import Inst, Param, Program
from gpu.compiler.ir.linear.verify import verify_linear
from gpu.compiler.ir.optable import OPS
from gpu.compiler.lower.edges import guard_edges
from gpu.compiler.render.cstyle.c import CRenderer
from gpu.compiler.render.launch.cpu_abi import scratch_bytes
from gpu.compiler.render.llvm.cpu import LLVMRenderer
from gpu.compiler.targets import Target
from gpu.compiler.targets.cpu import host_target
from gpu.compiler.toolchain.base import Compiler
from gpu.compiler.toolchain.clang import ClangCompiler
from gpu.compiler.toolchain.llvm import LLVMCompiler
from gpu.core.dtype import ALL, DType, dtypes
from gpu.runtime.device import Renderer

HOST = host_target()
EXCHANGED = (dtypes.float32, dtypes.int32, dtypes.uint32)
COMPUTED = tuple(d for d in ALL if not d.is_float or d.bits >= 32)


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


class Toolchain(NamedTuple):
    """A renderer and the compiler of what it prints, for one target."""

    renderer: Renderer
    compiler: Compiler

    def build_many(self, kernels: Sequence[Kernel]) -> list[CPUProgram]:
        """The kernels, ready to run, compiled together."""
        programs = [kernel.program() for kernel in kernels]
        libs = self.compiler.compile_many_cached([printed(self.renderer, p) for p in programs])
        return [
            CPUProgram(program.name, lib, scratch=scratch_bytes(program))
            for program, lib in zip(programs, libs, strict=True)
        ]

    def build(self, kernel: Kernel) -> CPUProgram:
        """A kernel, ready to run."""
        return self.build_many([kernel])[0]

    def run(self, kernel: Kernel, *arrays: np.ndarray) -> None:
        """Builds a kernel and runs it on arrays."""
        self.build(kernel)(*(a.ctypes.data for a in arrays))


def printed(renderer: Renderer, program: Kernel | Program) -> str:
    """What a renderer makes of a program by hand, whose operations may be at any edge."""
    program = program.program() if isinstance(program, Kernel) else program
    guarded = guard_edges(program, renderer.target.native)
    verify_linear(guarded)
    return renderer.render(guarded)


def toolchain(name: str, target: Target = HOST) -> Toolchain:
    """What `DEV=CPU:name` compiles with."""
    if name == "LLVM":
        return Toolchain(LLVMRenderer(target), LLVMCompiler(target.name, target.features))
    return Toolchain(CRenderer(target), ClangCompiler(target.name, target.features))


def exchanging(sizes: tuple[int, ...], warp: int, distances: Sequence[int]) -> Kernel:
    """Two blocks of threads, of which each stores what its partners at these distances have.

    Values are float32, int32 and uint32 in turn.
    """
    dtypes_of = {n: EXCHANGED[i % 3] for i, n in enumerate(distances)}
    block = int(np.prod(sizes))
    params = {f"in{n}": (d, 2 * block) for n, d in dtypes_of.items()}
    k = Kernel(**params, **{f"out{n}": (d, 2 * block) for n, d in dtypes_of.items()})
    group = k.loop(2, kind="grid")
    threads = [k.loop(size, kind="thread") for size in sizes]
    number = group
    for size, thread in zip(sizes, threads, strict=True):
        number = k.alu("add", k.alu("mul", number, k.const(size)), thread)
    for n, dtype in dtypes_of.items():
        value = k.load(getattr(k, f"in{n}"), number)
        other = k("shuffle_xor", dtype, value, attr=(n, warp))
        k.store(getattr(k, f"out{n}"), number, other)
    for loop in reversed([group, *threads]):
        k.end(loop)
    return k


def exchanged_arrays(kernel: Kernel | Program) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Random bits for what `exchanging` made, zeros for the results; and what these should be."""
    half = len(kernel.params) // 2
    rng = np.random.default_rng(5)
    given = [
        rng.integers(0, 1 << 32, p.elements, np.uint32).view(p.dtype.np)
        for p in kernel.params[:half]
    ]
    distances = [int(p.name.removeprefix("in")) for p in kernel.params[:half]]
    wanted = [x[np.arange(len(x)) ^ n] for x, n in zip(given, distances, strict=True)]
    return [*given, *(np.zeros_like(x) for x in given)], wanted


def edge_values(dtype: DType) -> np.ndarray:
    """Values of a dtype at which something may go wrong, and some random ones."""
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
    """Equal to the last bit, but for the payload of NaNs and zeros of `max` and `min`."""
    assert got.dtype == want.dtype
    same = got == want
    if got.dtype.kind == "f":
        if "max" not in what and "min" not in what:
            same &= np.signbit(got) == np.signbit(want)
        same |= np.isnan(got) & np.isnan(want)
    wrong = np.flatnonzero(~same)
    assert not len(wrong), f"{what}: at {wrong[0]} got {got[wrong[0]]!r}, not {want[wrong[0]]!r}"


def operations(dtype: DType) -> list[str]:
    """The operations on a dtype that this machine has and that are compared exactly."""
    return [
        n
        for n, row in OPS.items()
        if n in HOST.native.ops and dtype.kind in row.domain and n != "fma"
    ]


def matrix_kernel(
    dtype: DType, lanes: int, size: int, names: list[str], kind: str = "serial"
) -> Kernel:
    """Applies each of the operations `names` to arrays a, b, c (and a mask m)."""
    results = {f"r_{n}": (dtypes.bool if OPS[n].result == "bool" else dtype, size) for n in names}
    k = Kernel(a=(dtype, size), b=(dtype, size), c=(dtype, size), m=(dtypes.bool, size), **results)
    i = k.loop(size, lanes, kind=kind)
    a, b, c, m = (k.load(p, i, lanes) for p in (k.a, k.b, k.c, k.m))
    for name in names:
        args = (m, a, b) if name == "where" else (a, b, c)[: OPS[name].arity]
        k.store(getattr(k, f"r_{name}"), i, k.alu(name, *args))
    k.end(i)
    return k


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


def cast_kernel(target: Target, lanes: int) -> Kernel:
    """Every cast a target has, at least once."""
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


def guarded_accesses(cpu: Toolchain, fenced: Any) -> None:
    """Masked accesses that would fault if an excluded lane touched memory (run on its own)."""
    cases = [
        (dtype, lanes, count, scattered)
        for dtype in ALL
        for lanes, count in ((1, 0), (1, 1), (8, 5), (8, 0), (8, 8), (16, 15))
        for scattered in (False, True)
        if lanes > 1 or not scattered
    ]
    programs = cpu.build_many([_masked_copy(*case) for case in cases])
    for case, program in zip(cases, programs, strict=True):
        dtype, lanes, count, _ = case
        size = count * dtype.itemsize
        source, target = (fenced(max(dtype.itemsize, size))[:size] for _ in range(2))
        source[:] = 1
        seen = np.full(lanes * dtype.itemsize, 9, np.uint8)
        program(source.ctypes.data, target.ctypes.data, seen.ctypes.data)
        assert (target == 1).all() and (seen[:size] == 1).all(), case
        assert (seen[size:] == 0).all(), case


def _masked_copy(dtype: DType, lanes: int, count: int, scattered: bool) -> Kernel:
    k = Kernel(a=(dtype, count), b=(dtype, count), seen=(dtype, lanes))
    # Index 2**40 where there is nothing: in no way near the buffer.
    start = k.const(0 if count else 1 << 40)
    lane = k("ramp", dtypes.int64, k.const(0), lanes=lanes, attr=(1,))
    mask = k.alu("lt", lane, k.const(count, lanes=lanes))
    index = k("ramp", dtypes.int64, start, lanes=lanes, attr=(1,)) if scattered else start
    value = k.load(k.a, index, lanes, mask)
    k.store(k.seen, k.const(0), value)
    k.store(k.b, index, value, mask)
    return k

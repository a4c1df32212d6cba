"""What kernels of blocks of threads mean, for NVIDIA's GPUs and Apple's: the same as everywhere.

CUDA C and MSL are run by this machine's CPU, CUDA C also as the PTX that nvrtc makes of it by
simulated lanes, as is the PTX that LLVM makes; NIR is run by numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pytest

from gpu.compiler.ir import evaluate
from gpu.compiler.ir.linear import Inst, Param, Program, Val
from gpu.compiler.ir.optable import OPS, apply
from gpu.compiler.render.cstyle.cuda import CUDARenderer
from gpu.compiler.targets import Target
from gpu.compiler.targets.apple import metal_target
from gpu.compiler.targets.nvidia import ARCHITECTURES, MOST_BLOCKS, nv_target
from gpu.core.dtype import ALL, DType, dtypes
from gpu.core.errors import Unsupported, VerifyError
from unit.cuda.host import ARCH, run_host
from unit.cuda.kernels import nest, reversing, symbolic
from unit.cuda.lanes import run_llvm, run_nvrtc
from unit.linear_kernels import (
    COMPUTED,
    Kernel,
    assert_same,
    edge_pairs,
    edge_values,
    exchanged_arrays,
    exchanging,
    matrix_kernel,
    scratch_kernel,
)
from unit.metal.host import FAMILY, run_metal
from unit.nak.machine import run_nir

Run = Callable[..., None]
NVIDIA, APPLE = nv_target(ARCH), metal_target(FAMILY)


class Machine(NamedTuple):
    """What runs kernels: the tool that it takes, how, and for which target they are made."""

    tool: str | None
    run: Run
    target: Target = NVIDIA

    def has(self, dtypes_asked: Sequence[DType]) -> list[DType]:
        """Those of some dtypes that the target has."""
        return [d for d in dtypes_asked if d not in self.target.native.lacking]


MACHINES = {
    "host": Machine("clang", run_host),
    "llvm": Machine("llvmlite", run_llvm),
    "metal": Machine("clang", run_metal, APPLE),
    "nir": Machine(None, run_nir),
    "nvrtc": Machine("nvrtc", run_nvrtc),
}


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest, need: Callable[[str], None]) -> Machine:
    found = MACHINES[request.param]
    if found.tool is not None:
        need(found.tool)
    return found


@pytest.fixture
def run(machine: Machine) -> Run:
    """Runs kernels on lists of arrays, and with values."""

    def run_all(
        kernels: Sequence[Kernel | Program],
        arrays: Sequence[Sequence[np.ndarray]],
        vals: tuple[int, ...] = (),
    ) -> None:
        programs = [
            k.program(f"kernel{i}") if isinstance(k, Kernel) else k for i, k in enumerate(kernels)
        ]
        machine.run(programs, arrays, vals)

    return run_all


def operations(dtype: DType) -> list[str]:
    native = NVIDIA.native.ops & APPLE.native.ops
    return [n for n, row in OPS.items() if n in native and dtype.kind in row.domain and n != "fma"]


def test_every_operation_means_what_the_op_table_says(machine: Machine, run: Run) -> None:
    kernels, arrays, computed = [], [], machine.has(COMPUTED)
    for dtype in computed:
        a, b, c, m = edge_pairs(dtype)
        kernels.append(matrix_kernel(dtype, 1, len(a), operations(dtype), "grid"))
        results = [np.empty(len(a), p.dtype.np) for p in kernels[-1].params[4:]]
        arrays.append([a, b, c, m, *results])
    run(kernels, arrays)
    for dtype, (a, b, c, m, *results) in zip(computed, arrays, strict=True):
        for name, got in zip(operations(dtype), results, strict=True):
            args = (m, a, b) if name == "where" else (a, b, c)[: OPS[name].arity]
            want = apply(name, dtypes.from_numpy(got.dtype), args)
            assert_same(got, want, f"{name} {dtype.name}")


@pytest.mark.parametrize("sizes", [(32,), (2, 64), (4,), (5, 16), (3, 24)])
def test_threads_of_a_warp_exchange_values(run: Run, sizes: tuple[int, ...]) -> None:
    """Also in a last warp that has fewer threads."""
    kernel = exchanging(sizes, 32, [n for n in (1, 2, 4, 8, 16) if np.prod(sizes) % (2 * n) == 0])
    arrays, wanted = exchanged_arrays(kernel)
    run([kernel], [arrays])
    for got, want in zip(arrays[len(wanted) :], wanted, strict=True):
        assert got.tobytes() == want.tobytes()


def test_constant_divisors_and_shift_counts(run: Run) -> None:
    cases, kernels, arrays = [], [], []
    for dtype in (d for d in COMPUTED if d.is_int):
        constants = [v for v in (-3, -1, 0, 1, 7, dtype.bits - 1, dtype.bits) if v >= dtype.min]
        pairs = [(n, v) for n in ("tdiv", "tmod", "shl", "shr") for v in constants]
        values = edge_values(dtype)
        results = {f"r{i}": (dtype, len(values)) for i in range(len(pairs))}
        k = Kernel(a=(dtype, len(values)), **results)
        i = k.loop(len(values), kind="grid")
        a = k.load(k.a, i)
        for position, (name, value) in enumerate(pairs):
            k.store(getattr(k, f"r{position}"), i, k.alu(name, a, k.const(value, dtype)))
        k.end(i)
        cases.append((dtype, pairs))
        kernels.append(k)
        arrays.append([values, *(np.empty(len(values), dtype.np) for _ in pairs)])
    run(kernels, arrays)
    for (dtype, pairs), (values, *results) in zip(cases, arrays, strict=True):
        for (name, value), got in zip(pairs, results, strict=True):
            want = apply(name, dtype, (values, np.full(len(values), value, dtype.np)))
            assert_same(got, want, f"{name} {dtype.name} by {value}")


def test_every_cast(machine: Machine, run: Run) -> None:
    kernels, arrays, computed = [], [], machine.has(COMPUTED)
    for source in computed:
        values = edge_values(source)
        k = Kernel(a=(source, len(values)), **{f"to_{d.name}": (d, len(values)) for d in computed})
        i = k.loop(len(values), kind="grid")
        a = k.load(k.a, i)
        for target in computed:
            k.store(getattr(k, f"to_{target.name}"), i, k("cast", target, a))
        k.end(i)
        kernels.append(k)
        arrays.append([values, *(np.empty(len(values), d.np) for d in computed)])
    run(kernels, arrays)
    for source, (values, *results) in zip(computed, arrays, strict=True):
        for target, got in zip(computed, results, strict=True):
            with np.errstate(all="ignore"):
                want = evaluate.cast(values, source, target)
            assert_same(got, want, f"{source.name} to {target.name}")


def test_half_converts_to_and_from_float(run: Run) -> None:
    half, single, n = dtypes.float16, dtypes.float32, 1 << 16
    every = np.arange(n, dtype=np.uint16).view(np.float16)
    wide, back = np.zeros(n, np.float32), np.zeros(n, np.float16)
    k = Kernel(h=(half, n), f=(single, n), t=(half, n))
    i = k.loop(n, kind="grid")
    value = k("cast", single, k.load(k.h, i))
    k.store(k.f, i, value)
    factor = k.const(float(np.float32(1.00049)), single)
    k.store(k.t, i, k("cast", half, k.alu("mul", value, factor)))
    k.end(i)
    run([k], [[every, wide, back]])
    with np.errstate(all="ignore"):
        want = (every.astype(np.float32) * np.float32(1.00049)).astype(np.float16)
        assert_same(wide, every.astype(np.float32), "float16 to float32")
    assert_same(back, want, "float32 to float16")


def test_grid_loops_become_every_iteration_once(run: Run) -> None:
    sizes = [(1,), (31,), (300,), (3, 5), (7, 300), (2, 3, 4, 50), (2, 600), (5, 1, 257), (0, 300)]
    totals = [int(np.prod(s)) for s in sizes]
    outs = [np.full(max(total, 1), -1) for total in totals]
    run([nest(*s) for s in sizes], [[out] for out in outs])
    for total, out in zip(totals, outs, strict=True):
        np.testing.assert_array_equal(out, np.arange(total) if total else [-1])


def test_a_loop_counts_from_its_start_in_its_steps(run: Run) -> None:
    kernels, outs = [], [np.zeros(10, np.int64) for _ in range(2)]
    for kind in ("grid", "serial"):
        k = Kernel(out=(dtypes.int64, 10))
        i = k.loop(17, 3, start=-4, kind=kind)
        k.store(k.out, k.alu("tdiv", k.alu("add", i, k.const(4)), k.const(3)), i)
        k.end(i)
        kernels.append(k)
    run(kernels, [[out] for out in outs])
    for out in outs:
        assert list(out) == [*range(-4, 17, 3), 0, 0, 0]


@pytest.mark.parametrize(
    ("kind", "n", "most"),
    [("grid", 0, 400), ("grid", 255, 400), ("serial", 400, 400), ("serial", 300, 1 << 40)],
)
def test_a_loop_stops_at_a_value_of_the_launch(run: Run, kind: str, n: int, most: int) -> None:
    out = np.full(400, -1)
    run([symbolic(kind, most)], [[out]], vals=(n,))
    np.testing.assert_array_equal(out, np.where(np.arange(400) < n, np.arange(400), -1))


def test_carries_may_be_swapped_and_integers_may_be_wide(run: Run) -> None:
    """Fibonacci numbers: carries are 64-bit integers, though they begin at small constants."""
    k = Kernel(out=(dtypes.int64, 1))
    loop = k.loop(90, carry=(k.const(0), k.const(1)))
    a, b = (k("carry", dtypes.int64, loop, attr=(i,)) for i in range(2))
    end = k.end(loop, b, k.alu("add", a, b))
    k.store(k.out, k.const(0), k("result", dtypes.int64, end, attr=(0,)))
    out = np.zeros(1, np.int64)
    run([k], [[out]])
    assert out[0] == 2880067194370816120


def test_threads_of_a_block_share_memory(run: Run) -> None:
    shapes = [(3, 4, 64), (2, 1, 96), (1, 32, 32), (2, 5, 7)]
    rng = np.random.default_rng(0)
    arrays = [
        [rng.integers(0, 1 << 60, int(np.prod(s))), np.zeros(np.prod(s), int)] for s in shapes
    ]
    run([reversing(*shape) for shape in shapes], arrays)
    for shape, (a, b) in zip(shapes, arrays, strict=True):
        np.testing.assert_array_equal(b, a.reshape(shape[0], -1)[:, ::-1].reshape(-1))


@pytest.mark.parametrize("elements", [40, 2_100])
def test_private_and_team_arrays_of_a_single_thread(run: Run, elements: int) -> None:
    """The larger ones are too much for local memory."""
    out = np.zeros(elements, np.int64)
    run([scratch_kernel(elements)], [[out]])
    np.testing.assert_array_equal(out, np.arange(elements)[::-1] + 1)
    data = CUDARenderer(ARCH).launch_data(scratch_kernel(elements).program())
    assert bool(data["workspace"]) == (elements > 2_048)


def test_excluded_elements_are_not_touched(machine: Machine, run: Run) -> None:
    """Those from 5 on lie outside of two buffers: simulated lanes fault on access to them."""
    kernels, arrays, wants = [], [], []
    for dtype in machine.has(ALL):
        k = Kernel(a=(dtype, 5), b=(dtype, 5), seen=(dtype, 64))
        i = k.loop(64, kind="grid")
        mask = k.alu("lt", i, k.const(5))
        value = k.load(k.a, i, 1, mask)
        k.store(k.seen, i, value)
        k.store(k.b, i, value, mask)
        k.end(i)
        a = np.arange(1, 6).astype(np.uint64).astype(dtype.np)
        kernels.append(k)
        arrays.append([a, np.zeros(5, dtype.np), np.ones(64, dtype.np)])
        wants.append(a.tobytes() + np.zeros(59, dtype.np).tobytes())
    run(kernels, arrays)
    for want, (a, b, seen) in zip(wants, arrays, strict=True):
        assert seen.tobytes() == want and a.tobytes() == b.tobytes()


def test_what_is_no_launch_is_refused() -> None:
    k = Kernel(out=(dtypes.int64, 4))
    for _ in range(2):
        i = k.loop(4, kind="grid")
        k.store(k.out, i, i)
        k.end(i)
    with pytest.raises(VerifyError, match="one nest"):
        CUDARenderer(ARCH).render(k.program())
    with pytest.raises(Unsupported, match="2,147,483,648 workgroups"):
        CUDARenderer(ARCH).render(nest(MOST_BLOCKS + 1, 256).program())
    assert "ulong outer" in CUDARenderer(ARCH).render(nest(MOST_BLOCKS, 256).program())


def test_vectors_and_too_much_shared_memory_are_refused() -> None:
    with pytest.raises(Unsupported, match="is a vector"):
        CUDARenderer(ARCH).render(matrix_kernel(dtypes.int32, 4, 64, ["add"]).program())
    k = reversing(1, 1, 64).program()
    body = tuple(
        Inst("local", i.dtype, attr=(29057, "team")) if i.op == "local" else i for i in k.body
    )
    with pytest.raises(Unsupported, match="at most 232,448"):
        CUDARenderer(ARCH).render(k._replace(body=body))


def test_values_come_behind_buffers_and_workspace() -> None:
    out = Inst("param", dtypes.int64, attr=(0,))
    n = Inst("val", dtypes.int64, attr=(0,))
    kept = Inst("local", dtypes.int64, attr=(10_000, "private"))
    body = (out, n, kept, Inst("store", dtypes.int64, 1, (kept, n, n), (False,)))
    params, vals = (Param("out", dtypes.int64, 1, True),), (Val("n", 0, 9),)
    program = Program("kernel", params, body, vals)
    renderer = CUDARenderer(ARCH)
    assert "(long *__restrict__ p0, uchar *__restrict__ workspace, long value0)" in renderer.render(
        program
    )
    want = {"groups": 1, "block": 1, "workspace": 80_000, "values": 1, "shared": 0, "written": 1}
    assert renderer.launch_data(program) == want


def test_architectures() -> None:
    keys = {nv_target(arch).key for arch in ARCHITECTURES}
    assert len(keys) == len(ARCHITECTURES)
    with pytest.raises(Unsupported, match="did you mean sm_90"):
        nv_target("sm_91")

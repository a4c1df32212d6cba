"""Kernels for AMD GPUs: grids, blocks of threads, masks, locals, values of a launch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gpu.compiler.ir.linear import Inst, Limit, Param, Program, Val
from gpu.compiler.ir.optable import MONOIDS, OPS, apply
from gpu.compiler.render.launch.grid import LAUNCH_ITEMS, MOST_GROUPS, plan_grid
from gpu.compiler.render.llvm import amdgcn
from gpu.compiler.render.llvm.amdgcn import AMDRenderer
from gpu.compiler.targets.amd import CHIPS
from gpu.compiler.toolchain.amdgcn import AMDCompiler, amd_machine
from gpu.compiler.toolchain.llvm import emit_assembly
from gpu.core.dtype import ALL, DType, dtypes
from gpu.core.errors import Unsupported, VerifyError
from gpu.sim.isa.faults import WaveFault
from unit.amdgcn.lanes import run
from unit.linear_kernels import (
    Kernel,
    assert_same,
    cast_kernel,
    edge_values,
    exchanged_arrays,
    exchanging,
    printed,
    scratch_kernel,
)


def nest(*sizes: int, dtype: DType = dtypes.int64) -> Kernel:
    """Grid loops of these sizes; each iteration stores its number."""
    total = int(np.prod(sizes))
    k = Kernel(out=(dtype, max(total, 1)))
    loops = [k.loop(size, kind="grid") for size in sizes]
    number = loops[0]
    for loop, size in zip(loops[1:], sizes[1:], strict=True):
        number = k.alu("add", k.alu("mul", number, k.const(size)), loop)
    k.store(k.out, number, number if dtype is dtypes.int64 else k("cast", dtype, number))
    for loop in reversed(loops):
        k.end(loop)
    return k


@pytest.mark.parametrize(
    "sizes", [(1,), (31,), (300,), (3, 5), (7, 300), (2, 3, 4, 50), (2, 600), (5, 1, 257), (0, 300)]
)
def test_grid_loops_become_every_iteration_once(sizes: tuple[int, ...]) -> None:
    total = int(np.prod(sizes))
    out = np.full(max(total, 1), -1)
    run(nest(*sizes), out)
    np.testing.assert_array_equal(out, np.arange(total) if total else [-1])
    grid = plan_grid(nest(*sizes).program(), 32)
    assert grid.block % 32 == 0 and grid.block * grid.groups < 2 * max(total, 64) + 512


def test_a_loop_counts_from_its_start_in_its_steps() -> None:
    k = Kernel(out=(dtypes.int64, 10))
    i = k.loop(17, 3, start=-4, kind="grid")
    k.store(k.out, k.alu("tdiv", k.alu("add", i, k.const(4)), k.const(3)), i)
    k.end(i)
    out = np.zeros(10, np.int64)
    run(k, out)
    assert list(out) == [*range(-4, 17, 3), 0, 0, 0]


@pytest.mark.parametrize("sizes", [(32,), (2, 64), (4,), (5, 16), (3, 24)])
@pytest.mark.parametrize("by_number", [False, True])
def test_threads_of_a_wave_exchange_values(
    sizes: tuple[int, ...], by_number: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a last wave that has fewer threads, and in the way of chips with waves of 64."""
    if by_number:
        monkeypatch.setattr(amdgcn, "_DPP_XMASK_WAVE", 0)
    kernel = exchanging(sizes, 32, [n for n in (1, 2, 4, 8, 16) if np.prod(sizes) % (2 * n) == 0])
    arrays, wanted = exchanged_arrays(kernel)
    run(kernel, *arrays)
    for got, want in zip(arrays[len(wanted) :], wanted, strict=True):
        assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("chip", CHIPS)
def test_what_chips_exchange_values(chip: str, need: Callable[[str], None]) -> None:
    """Waves of 32 in instructions of moves within a wave; those of 64 by the number of a lane."""
    need("llvmlite")
    wave = CHIPS[chip].wave
    source = exchanging((64,), wave, [1 << bit for bit in range(wave.bit_length() - 1)]).program()
    text = AMDRenderer(chip).render(source)
    moves = ("update.dpp", "permlanex16", "ds.bpermute")
    counts = [text.count(f"call i32 @llvm.amdgcn.{move}") for move in moves]
    assert counts == ([4, 1, 0] if wave == 32 else [0, 0, 6])
    code = emit_assembly(text, amd_machine(chip))
    assert code.count("\tds_bpermute_b32") == counts[2]
    assert AMDCompiler(chip).compile(text).startswith(b"\x7fELF")
    if wave == 32:
        with pytest.raises(Unsupported, match="exchanges no float32 among 64 threads"):
            AMDRenderer(chip).render(exchanging((64,), 64, [1]).program())


def test_what_is_no_launch_is_refused() -> None:
    k = Kernel(out=(dtypes.int64, 4))
    for _ in range(2):
        i = k.loop(4, kind="grid")
        k.store(k.out, i, i)
        k.end(i)
    with pytest.raises(VerifyError, match="one nest"):
        AMDRenderer("gfx1100").render(k.program())
    with pytest.raises(Unsupported, match="workgroups"):
        AMDRenderer("gfx1100").render(nest(LAUNCH_ITEMS // 256 + 1, 256).program())


def test_launches_are_limited_by_their_work_items() -> None:
    small = nest(MOST_GROUPS + 1, 256).program()
    assert plan_grid(small, 32).groups == MOST_GROUPS + 1
    with pytest.raises(Unsupported, match="workgroups"):
        plan_grid(small, 32, MOST_GROUPS)


def symbolic(kind: str) -> Program:
    """out[i] = i for i below a value of the launch, at most 400."""
    out = Inst("param", dtypes.int64, attr=(0,))
    n = Inst("val", dtypes.int64, attr=(0,))
    loop = Inst("loop", dtypes.int64, attr=(kind, 0, Limit(n, 400), 1))
    store = Inst("store", dtypes.int64, 1, (out, loop, loop), (False,))
    end = Inst("end", dtypes.int64, attr=(loop,))
    params = (Param("out", dtypes.int64, 400, True),)
    return Program("kernel", params, (out, n, loop, store, end), (Val("n", 0, 400),))


@pytest.mark.parametrize("kind", ["grid", "serial"])
@pytest.mark.parametrize("n", [0, 1, 255, 400])
def test_a_loop_stops_at_a_value_of_the_launch(kind: str, n: int) -> None:
    out = np.full(400, -1)
    run(symbolic(kind), out, vals=(n,))
    np.testing.assert_array_equal(out, np.where(np.arange(400) < n, np.arange(400), -1))


def reversing(blocks: int, rows: int, columns: int, barrier: bool = True) -> Kernel:
    """Each block reverses its part of the array through team memory."""
    size = rows * columns
    k = Kernel(a=(dtypes.int64, blocks * size), b=(dtypes.int64, blocks * size))
    block = k.loop(blocks, kind="grid")
    start = k.alu("mul", block, k.const(size))
    team = k("local", dtypes.int64, attr=(size, "team"))
    y, x = k.loop(rows, kind="thread"), k.loop(columns, kind="thread")
    thread = k.alu("add", k.alu("mul", y, k.const(columns)), x)
    k.store(team, thread, k.load(k.a, k.alu("add", start, thread)))
    if barrier:
        k("barrier", dtypes.bool)
    other = k.alu("sub", k.const(size - 1), thread)
    k.store(k.b, k.alu("add", start, thread), k.load(team, other))
    for loop in (x, y, block):
        k.end(loop)
    return k


@pytest.mark.parametrize("shape", [(3, 4, 64), (2, 1, 96), (1, 32, 32), (2, 5, 7)])
def test_threads_of_a_block_share_memory(shape: tuple[int, int, int]) -> None:
    a = np.random.default_rng(0).integers(0, 1 << 60, int(np.prod(shape)))
    b = np.zeros_like(a)
    run(reversing(*shape), a, b)
    np.testing.assert_array_equal(b, a.reshape(shape[0], -1)[:, ::-1].reshape(-1))


def test_local_memory_is_limited() -> None:
    k = reversing(1, 1, 64).program()
    body = tuple(
        Inst("local", i.dtype, attr=(9000, "team")) if i.op == "local" else i for i in k.body
    )
    with pytest.raises(Unsupported, match="local memory"):
        AMDRenderer("gfx1100").render(k._replace(body=body))


@pytest.mark.parametrize("elements", [40, 20_000])
def test_private_and_team_arrays_of_a_single_thread(elements: int) -> None:
    """The larger ones do not fit the stack."""
    out = np.zeros(elements, np.int64)
    run(scratch_kernel(elements), out)
    np.testing.assert_array_equal(out, np.arange(elements)[::-1] + 1)
    data = AMDRenderer("gfx1100").launch_data(scratch_kernel(elements).program())
    assert bool(data["workspace"]) == (elements > 10_000)


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
@pytest.mark.parametrize("lanes", [1, 4])
def test_excluded_lanes_touch_nothing(dtype: DType, lanes: int) -> None:
    """Most elements from 5 on lie outside of both buffers: an access to them is a fault."""
    k = Kernel(a=(dtype, 5), b=(dtype, 5), seen=(dtype, 64))
    i = k.loop(64, lanes, kind="grid")
    lane = k("ramp", dtypes.int64, i, lanes=lanes, attr=(1,)) if lanes > 1 else i
    mask = k.alu("lt", lane, k.const(5, lanes=lanes))
    value = k.load(k.a, i, lanes, mask)
    k.store(k.seen, i, value)
    k.store(k.b, i, value, mask)
    k.end(i)
    a = np.arange(1, 6).astype(np.uint64).astype(dtype.np)
    b, seen = np.zeros(5, dtype.np), np.ones(64, dtype.np)
    run(k, a, b, seen)
    want = np.zeros(64, dtype.np)
    want[:5] = a
    assert a.tobytes() == b.tobytes() and seen.tobytes() == want.tobytes()


def test_an_access_outside_is_a_fault() -> None:
    k = nest(300)
    program = k.program()
    with pytest.raises(WaveFault, match="write of 8 bytes"):
        run(program, np.zeros(298, np.int64))


FOLDED = (dtypes.float32, dtypes.int16, dtypes.uint64)


@pytest.mark.parametrize(
    ("dtype", "monoid"),
    [(d, m) for d in FOLDED for m in MONOIDS if d.kind in OPS[MONOIDS[m].combine].domain],
    ids=str,
)
def test_folds(dtype: DType, monoid: str) -> None:
    combine = MONOIDS[monoid].combine
    k = Kernel(a=(dtype, 6), out=(dtype, 1))
    k.store(k.out, k.const(0), k("fold", dtype, k.load(k.a, k.const(0), 6), attr=(monoid,)))
    a = edge_values(dtype)[[1, 2, 3, 5, 6, 8]]
    out = np.zeros(1, dtype.np)
    run(k, a, out)
    want = a[:1]
    for value in a[1:]:
        want = apply(combine, dtype, (want, np.array([value])))
    assert_same(out, want, combine)


def test_half_converts_to_and_from_float() -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    wide, back = np.zeros(1 << 16, np.float32), np.zeros(1 << 16, np.float16)
    h, f, n = dtypes.float16, dtypes.float32, 1 << 16
    k = Kernel(h=(h, n), f=(f, n), t=(h, n))
    i = k.loop(n, kind="grid")
    value = k("cast", f, k.load(k.h, i))
    k.store(k.f, i, value)
    k.store(k.t, i, k("cast", h, k.alu("mul", value, k.const(float(np.float32(1.00049)), f))))
    k.end(i)
    run(k, every, wide, back)
    assert_same(wide, every.astype(np.float32), "float16 to float32")
    with np.errstate(all="ignore"):
        want = (every.astype(np.float32) * np.float32(1.00049)).astype(np.float16)
    assert_same(back, want, "float32 to float16")


@pytest.mark.parametrize("chip", CHIPS)
def test_code_for_every_chip(chip: str) -> None:
    renderer, compiler = AMDRenderer(chip), AMDCompiler(chip)
    for kernel in (reversing(2, 2, 64), cast_kernel(renderer.target, 4), scratch_kernel(20)):
        assert compiler.compile(printed(renderer, kernel))

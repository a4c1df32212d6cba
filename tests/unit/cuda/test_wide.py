"""Several elements in one access, and operations that CUDA C has in one instruction."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gpu.compiler.lower.vectorize_access import join
from gpu.compiler.render.cstyle.cuda import CUDARenderer
from gpu.core.dtype import ALL, DType, dtypes
from unit.cuda.host import ARCH, run_host
from unit.cuda.lanes import run_llvm, run_nvrtc
from unit.linear_kernels import Kernel, edge_values

RUNNERS = {
    "host": ("clang", run_host), "llvm": ("llvmlite", run_llvm), "nvrtc": ("nvrtc", run_nvrtc),
}  # fmt: skip
COUNT = 64
STORED = [dtype for dtype in ALL if not dtype.is_image]


@pytest.fixture(params=RUNNERS)
def run(request: pytest.FixtureRequest, need: Callable[[str], None]) -> Callable[..., None]:
    """Runs programs on lists of arrays."""
    tool, runner = RUNNERS[request.param]
    need(tool)
    return runner


def turned(dtype: DType, lanes: int, limit: int | None) -> Kernel:
    """Each thread copies its elements the other way round, if its number is below a limit."""
    k = Kernel(out=(dtype, COUNT), x=(dtype, COUNT))
    i = k.loop(COUNT // lanes, kind="grid")
    start = k.alu("mul", i, k.const(lanes))
    mask = () if limit is None else (k.alu("lt", i, k.const(limit)),)
    at = [k.alu("add", start, k.const(lane)) for lane in range(lanes)]
    loaded = [k.load(k.x, place, 1, *mask) for place in at]
    for place, value in zip(at, reversed(loaded), strict=True):
        k.store(k.out, place, value, *mask)
    k.end(i)
    return k


@pytest.mark.parametrize("limit", [None, 3])
def test_every_dtype_is_moved_by_all_sizes(run: Callable[..., None], limit: int | None) -> None:
    programs, arrays, wants = [], [], []
    for dtype in STORED:
        for nbytes in (2, 4, 8, 16):
            lanes = nbytes // dtype.itemsize
            if lanes < 2:
                continue
            program = join(turned(dtype, lanes, limit).program(f"k{len(programs)}"), 16)
            assert [i.lanes for i in program.body if i.op == "load"] == [lanes]
            x = np.arange(COUNT * dtype.itemsize, dtype=np.uint8)
            x = (x % 2 if dtype is dtypes.bool else x).view(dtype.np)
            want = x.reshape(-1, lanes)[:, ::-1].copy()
            want[limit:] = np.zeros((), dtype.np) if limit is not None else want[limit:]
            programs.append(program)
            arrays.append([np.zeros(COUNT, dtype.np), x])
            wants.append(want)
    run(programs, arrays)
    for program, (out, _), want in zip(programs, arrays, wants, strict=True):
        same = out.view(np.uint8), want.reshape(-1).view(np.uint8)
        np.testing.assert_array_equal(*same, err_msg=program.params[0].dtype.name)


def test_clamping_keeps_nans_and_zeros(run: Callable[..., None]) -> None:
    values = edge_values(dtypes.float32)
    bounds = [1.0, -2.5, 0.0, -0.0, float("inf"), float("nan")]
    k = Kernel(
        x=(dtypes.float32, len(values)),
        **{f"o{n}": (dtypes.float32, len(values)) for n in range(2 * len(bounds))},
    )
    i = k.loop(len(values), kind="grid")
    x = k.load(k.x, i)
    for number, bound in enumerate(bounds):
        c = k.const(bound, dtypes.float32)
        above, below = k.alu("lt", x, c), k.alu("lt", c, x)
        k.store(getattr(k, f"o{2 * number}"), i, k.alu("where", above, c, x))
        k.store(getattr(k, f"o{2 * number + 1}"), i, k.alu("where", below, c, x))
    k.end(i)
    outs = [np.zeros(len(values), np.float32) for _ in range(2 * len(bounds))]
    run([k.program()], [[values, *outs]])
    for number, bound in enumerate(bounds):
        c = np.float32(bound)
        for out, chosen in zip(outs[2 * number :], (values < c, c < values), strict=False):
            want = np.where(chosen, c, values)
            np.testing.assert_array_equal(out, want)
            signs = ~np.isnan(want)
            np.testing.assert_array_equal(np.signbit(out[signs]), np.signbit(want[signs]))


def test_bounds_are_one_instruction() -> None:
    k = Kernel(out=(dtypes.float32, 8), x=(dtypes.float32, 8))
    i = k.loop(8, kind="grid")
    x, c = k.load(k.x, i), k.const(2.0, dtypes.float32)
    k.store(k.out, i, k.alu("where", k.alu("lt", c, x), c, x))
    k.end(i)
    assert "smaller(" in CUDARenderer(ARCH).render(k.program()).rpartition("__global__")[2]

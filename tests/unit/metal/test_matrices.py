"""Products by matrices of SIMD-groups: on the host, on the simulated Mac, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pytest

import gpu
from gpu import Context, Tensor
from gpu.compiler.ir.kernel.text import parse_kernel
from gpu.compiler.ir.kernel.verify import verify_kernel
from gpu.compiler.ir.linear.text import parse_linear, print_linear
from gpu.compiler.lower.linearize import linearize
from gpu.compiler.opt.policy.choose import schedule
from gpu.compiler.targets.apple import metal_target
from gpu.core.dtype import dtypes
from gpu.core.errors import VerifyError
from simulated import SIMULATED, keeping_rules
from unit.matrix_kernels import Product
from unit.metal.host import FAMILY, run_metal

APPLE: Final = metal_target(FAMILY)
KERNEL = """kernel f(y: f32[128] global, x: f32[128] global)
  alloc s: f32[128] team
  loop i thread {threads}
    alloc w: f32[1,2] fragment
    s[i] = x[i]
    barrier
    {line}
    y[i] = s[i]
"""


@pytest.mark.parametrize("seed", range(4))
def test_random_products_by_clang(seed: int, need: Callable[[str], None]) -> None:
    """Elements lie in threads in another order than in the interpreters."""
    need("clang")
    rng = np.random.default_rng(seed)
    m, n, k = (int(rng.integers(9, 30)) for _ in "mnk")
    dtype = (dtypes.float16, dtypes.float32)[seed % 2]
    left, right, fused = (bool(x) for x in rng.integers(0, 2, 3))
    plain = Product(m, n, k, dtype, int(rng.integers(1, 4)), left, right, fused)
    program = linearize(schedule(plain.kernel(), APPLE)[0], APPLE)
    assert print_linear(parse_linear(print_linear(program))) == print_linear(program)
    assert any(inst.op == "mma" for inst in program.body)
    arrays = plain.arrays(seed)
    run_metal([program], [arrays])
    plain.check(arrays)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_random_products_on_the_mac(dtype: str, need: Callable[[str], None]) -> None:
    need("simulated-mac")
    rng = np.random.default_rng(len(dtype))
    with Context(SIM=SIMULATED["METAL"], DEV="METAL"), keeping_rules("METAL"):
        batch, m, n, k = (int(x) for x in rng.integers((1, 9, 9, 9), (4, 60, 60, 60)))
        a = rng.standard_normal((batch, m, k)).astype(dtype)
        b = rng.standard_normal((batch, n, k)).astype(dtype)
        bias = rng.standard_normal(n).astype(dtype)
        x, y, c = map(Tensor, (a, b, bias))
        got = (x @ y.transpose(1, 2) + c).relu().numpy()
        wide = a.astype(np.float64) @ b.astype(np.float64).transpose(0, 2, 1)
        want = np.maximum(wide + bias, 0)
        near = 2e-2 if dtype == "float16" else 2e-5
        np.testing.assert_allclose(got, want, rtol=near, atol=near)
        image = rng.standard_normal((2, 5, 13, 11)).astype(dtype)
        taps = rng.standard_normal((9, 5, 3, 3)).astype(dtype)
        padded = np.pad(image.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
        want = np.einsum("bcyxij,ocij->boyx", windows, taps.astype(np.float64))
        got = Tensor(image).conv2d(Tensor(taps), padding=1).numpy()
        near = 2e-2 if dtype == "float16" else 5e-5
        np.testing.assert_allclose(got, want, rtol=near, atol=near)


def test_families_of_apple_alone_have_them(need: Callable[[str], None]) -> None:
    need("clang")
    a = Tensor(np.ones((64, 64), np.float32))
    for family, has in (("apple7", True), ("apple9", True), ("mac2", False)):
        (kernel,) = gpu.compile_for(f"METAL::{family}", a @ a)
        assert ("simdgroup_multiply_accumulate" in kernel.source) is has
        # How threads hold elements is not documented.
        assert "thread_elements" not in kernel.source


@pytest.mark.parametrize(
    ("threads", "line", "rule"),
    [
        (16, "load_tile w[] = s[0] row 8", "takes warps of 32, a block has 16"),
        (32, "load_tile w[] = x[0] row 8", "a warp moves tiles of team memory, x is not"),
        (32, "load_tile w[] = s[72] row 8", "a tile ends at 135 of s, which has 128"),
        (32, "store_tile s[0] = w[] row 7", "rows of 8 elements are 7 apart"),
        (32, "if i >= 3\n      load_tile w[] = s[0] row 8", "a tile of a warp under a condition"),
    ],
)
def test_rules_of_tiles_of_warps(threads: int, line: str, rule: str) -> None:
    kernel = parse_kernel(KERNEL.format(threads=threads, line=line))
    with pytest.raises(VerifyError, match=rule):
        verify_kernel(kernel)

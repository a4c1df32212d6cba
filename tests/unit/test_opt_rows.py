"""Rows shorter than a vector share one, whatever part of a row an operand depends on."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import gpu
from gpu import Tensor
from gpu.compiler.ir.kernel.text import parse_kernel
from gpu.compiler.ir.kernel.tree import loops
from gpu.compiler.ir.kernel.verify import verify_kernel
from gpu.compiler.ir.linear.verify import verify_linear
from gpu.compiler.lower.linearize import linearize
from gpu.compiler.opt.opts import Bind, Fuse, Split, apply
from gpu.compiler.opt.policy.choose import schedule
from gpu.compiler.targets.cpu import host_target
from gpu.core.errors import IllegalOpt
from tools.coalescing import memory
from unit.lane_kernels import LANES, random, result

CPUS = ("x86-64-v3", "x86-64-v4", "neoverse-v2")
NEST = """kernel nest(out: f32[{size}] global, x: f32[{size}] global, y: f32[{own}] global)
  loop i serial {0}
    loop j serial {1}
      loop k serial {2}
        out[{place}] = add(mul(x[{place}], y[{at}]), x[{place}])
"""


def draw(rng: np.random.Generator) -> tuple[str, np.ndarray, np.ndarray, tuple[int, ...]]:
    """A kernel, its operands, and the extents; y depends on some of the loops."""
    extents = tuple(int(n) for n in rng.integers((1, 1, 1), (40, 8, 20)))
    has = rng.random(3) < 0.5
    own = [n if depends else 1 for n, depends in zip(extents, has, strict=True)]
    strides = [math.prod(own[axis + 1 :]) for axis in range(3)]
    terms = [f"{s}*{v}" for s, v, depends in zip(strides, "ijk", has, strict=True) if depends]
    place = f"{extents[1] * extents[2]}*i + {extents[2]}*j + k"
    text = NEST.format(
        *extents,
        size=math.prod(extents),
        own=math.prod(own),
        place=place,
        at=" + ".join(terms) or 0,
    )
    return text, random(*extents), random(*own), extents


@pytest.mark.parametrize("cpu", [*CPUS, "lanes"])
def test_nests_of_any_extents(cpu: str) -> None:
    target = LANES if cpu == "lanes" else host_target(cpu)
    rng = np.random.default_rng(len(cpu))
    for _ in range(12):
        text, x, y, _ = draw(rng)
        kernel, opts = schedule(parse_kernel(text), target)
        verify_kernel(kernel)
        verify_linear(linearize(kernel, target))
        wanted = (x * y + x).reshape(-1)
        np.testing.assert_allclose(
            result(kernel, target, x, y), wanted, 1e-6, 1e-6, err_msg=f"{text}{opts}"
        )


@pytest.mark.parametrize("axes", [("i", "j"), ("j", "k")])
def test_loops_that_are_no_one_walk_become_one(axes: tuple[str, str]) -> None:
    """What uses them apart has quotients and rests."""
    rng = np.random.default_rng(ord(axes[0]))
    for _ in range(6):
        text, x, y, extents = draw(rng)
        if 1 in extents:
            continue
        kernel = apply(parse_kernel(text), [Fuse(*axes)])
        verify_kernel(kernel)
        assert len(loops(kernel.body)) == 2
        wanted = (x * y + x).reshape(-1)
        np.testing.assert_allclose(result(kernel, LANES, x, y), wanted, 1e-6, 1e-6)


def test_loops_of_other_kinds_stay_two() -> None:
    kernel = parse_kernel(draw(np.random.default_rng(3))[0])
    with pytest.raises(IllegalOpt, match="not alike"):
        apply(kernel, [Bind("i", "grid"), Fuse("i", "j")])
    with pytest.raises(IllegalOpt, match="directly nested"):
        apply(kernel, [Fuse("i", "k")])


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("width", [2, 3, 5, 6])
def test_rows_fill_vectors(cpu: str, width: int, need: Callable[[str], None]) -> None:
    """Of what a row, or a column, shares no lane is loaded alone inside the loop."""
    need("llvmlite")
    target, rows = host_target(cpu), 1 << 12
    lanes = target.vector_bytes // 4
    if 4 * width > 3 * lanes:
        return
    x = memory(rows, width)
    (kernel,) = gpu.compile_for(f"CPU:LLVM:{cpu}", x * memory(width) + memory(rows, 1))
    stores = re.findall(r"store (<\d+ x float>|float)", kernel.source)
    whole = math.lcm(width, lanes) // lanes
    assert stores.count(f"<{lanes} x float>") >= whole
    assert "gather" not in kernel.source and "srem" not in kernel.source


def test_tensors_of_narrow_rows() -> None:
    rng = np.random.default_rng(5)
    for dtype, width in itertools.product(("float32", "int8", "float16"), (2, 7)):
        rows, many = (int(n) for n in rng.integers(3, 90, 2))
        x = rng.integers(0, 50, (many, rows, width)).astype(dtype)
        for form in ((width,), (rows, 1), (many, 1, width)):
            y = rng.integers(0, 5, form).astype(dtype)
            got = (Tensor(x) + Tensor(y)).realize().numpy()
            np.testing.assert_array_equal(got, x + y, f"{dtype} {x.shape} {form}")


@pytest.mark.parametrize("features", ["", "+avx", "+avx,+avx2,+avx512bw"])
def test_known_lanes_of_masks(features: str) -> None:
    """Rows of a length that leaves some lanes, which are stored without a question for each."""
    target = replace(LANES, features=features)
    for left in range(1, 8):
        size = 16 + left
        text = f"kernel copy(out: f32[{size}] global, x: f32[{size}] global)\n"
        text += f"  loop i serial {size}\n    out[i] = neg(x[i])\n"
        opts = [Split("i", 8, "pad"), Bind("io", "unroll"), Bind("ii", "vector")]
        kernel = apply(parse_kernel(text), opts)
        program = linearize(kernel, target)
        masked = sum(
            inst.op in ("load", "store") and len(inst.args) > 2 + (inst.op == "store")
            for inst in program.body
        )
        assert masked == (2 if features else 0)
        np.testing.assert_array_equal(result(kernel, target, random(size)), -random(size))

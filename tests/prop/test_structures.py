"""Programs that the loop transformations exist for, on random shapes: products, rows, columns.

Random programs rarely contain a contraction or a softmax; these always do. Each is run by the
interpreters after scheduling and after lowering, for machines of different widths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpu.compiler.fusion.placement import plan_fusion
from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import DType, dtypes
from prop.judge import check, expect
from prop.sizes import near_lanes
from prop.test_passes import STAGES, run_plan

Array = np.ndarray[Any, Any]
DTYPES = (dtypes.float32, dtypes.float64, dtypes.float16, dtypes.int32)


class Case:
    """Makes inputs and holds their values."""

    def __init__(self, rng: np.random.Generator):
        self.rng = rng
        self.inputs: dict[Any, Array] = {}

    def array(self, shape: tuple[int, ...], dtype: DType) -> Node:
        handle = f"in{len(self.inputs)}"
        values = self.rng.standard_normal(shape) * 4
        self.inputs[handle] = values.astype(dtype.np)
        return G.buffer(handle, shape, dtype, "CPU")

    def size(self, most: int) -> int:
        if self.rng.random() < 0.4:
            return near_lanes(self.rng, most)
        return int(self.rng.integers(1, most + 1))


def constant(value: float, like: Node) -> Node:
    return G.const(value, like.shape, like.dtype, like.device)


def matmul(case: Case) -> Node:
    """A batched product of operands that may be transposed, shifted, padded, with an epilogue."""
    dtype = DTYPES[int(case.rng.integers(len(DTYPES)))]
    batch = case.size(3) if case.rng.random() < 0.3 else 1
    m, k, n = (int(case.rng.choice([8, 16, 32, case.size(70)])) for _ in range(3))

    def operand(rows: int, columns: int) -> Node:
        kind = case.rng.integers(4)
        if kind == 0:
            return G.permute(case.array((batch, columns, rows), dtype), (0, 2, 1))
        if kind == 1 and rows > 2 and columns > 2:
            inner = case.array((batch, rows - 2, columns - 1), dtype)
            return G.pad(inner, [(0, 0, 0), (1, 1, 0), (0, 1, 0)])
        if kind == 2:
            return G.slice_(
                case.array((batch, rows, columns), dtype),
                [(0, batch, 1), (rows - 1, rows, -1), (columns - 1, columns, -1)],
            )
        return case.array((batch, rows, columns), dtype)

    full = (batch, m, k, n)
    a = G.expand(G.reshape(operand(m, k), (batch, m, k, 1)), full)
    b = G.expand(G.reshape(operand(k, n), (batch, 1, k, n)), full)
    if dtype is dtypes.float16:
        a, b = G.cast(a, dtypes.float32), G.cast(b, dtypes.float32)
    product = G.reshape(G.reduce("add", G.alu("mul", a, b), (2,)), (batch, m, n))
    if case.rng.random() < 0.5:
        bias = G.expand(G.reshape(case.array((n,), product.dtype), (1, 1, n)), product.shape)
        product = G.alu("max", G.alu("add", product, bias), constant(0, product))
    return product


def softmax(case: Case) -> Node:
    x = case.array((case.size(40), case.size(90)), dtypes.float32)
    shifted = G.alu("sub", x, G.expand(G.reduce("max", x, (1,)), x.shape))
    e = G.alu("exp2", shifted)
    return G.alu("div", e, G.expand(G.reduce("add", e, (1,)), x.shape))


def layernorm(case: Case) -> Node:
    x = case.array((case.size(6), case.size(20), case.size(90)), dtypes.float32)
    n = x.shape[2]
    total = G.reduce("add", x, (2,))
    d = G.alu("sub", x, G.expand(G.alu("mul", total, constant(1 / n, total)), x.shape))
    spread = G.reduce("add", G.alu("mul", d, d), (2,))
    scale = G.alu("sqrt", G.alu("add", spread, constant(1e-3, spread)))
    return G.alu("div", d, G.expand(scale, x.shape))


def reduction(case: Case) -> Node:
    """Any axes of a permuted array, by any monoid."""
    dtype = (dtypes.float32, dtypes.int32, dtypes.int8)[int(case.rng.integers(3))]
    x = case.array(tuple(case.size(30) for _ in range(3)), dtype)
    x = G.permute(x, case.rng.permutation(3))
    axes = [a for a in range(3) if case.rng.random() < 0.5] or [0]
    return G.reduce(str(case.rng.choice(["add", "max", "min"])), x, axes)


def convolution(case: Case) -> Node:
    """A 3x3 convolution with padding, as shifted views joined by sums of products."""
    n, c, o, h, w = case.size(2), case.size(4), case.size(9), case.size(9), case.size(20)
    x = G.pad(case.array((n, c, h, w), dtypes.float32), [(0, 0, 0)] * 2 + [(1, 1, 0)] * 2)
    weight = case.array((o, c, 3, 3), dtypes.float32)
    result: Node | None = None
    for ky in range(3):
        for kx in range(3):
            view = G.slice_(x, [(0, n, 1), (0, c, 1), (ky, h, 1), (kx, w, 1)])
            tap = G.slice_(weight, [(0, o, 1), (0, c, 1), (ky, 1, 1), (kx, 1, 1)])
            full = (n, o, c, h, w)
            a = G.expand(G.reshape(view, (n, 1, c, h, w)), full)
            b = G.expand(G.reshape(tap, (1, o, c, 1, 1)), full)
            part = G.reduce("add", G.alu("mul", a, b), (2,))
            result = part if result is None else G.alu("add", result, part)
    assert result is not None
    return result


def dots(case: Case) -> Node:
    """Sums along the last axis of both factors, as in the gradient of a convolution's weights."""
    dtype = DTYPES[int(case.rng.integers(len(DTYPES)))]
    if dtype is dtypes.float16:
        dtype = dtypes.float32
    outer, o, n, size = case.size(3), case.size(9), case.size(4), case.size(60)
    taps = int(case.rng.integers(1, 5))
    grad = case.array((o, n, size), dtype)
    x = case.array((outer, n, size + taps - 1), dtype)
    full = (outer, o, n, size, taps)
    view = G.expand(G.reshape(x, (*x.shape, 1)), (*x.shape, taps))
    view = G.skew(view, 2, 3, 1, 1, size)
    a = G.expand(G.reshape(view, (outer, 1, n, size, taps)), full)
    b = G.expand(G.reshape(grad, (1, o, n, size, 1)), full)
    return G.reduce("add", G.alu("mul", a, b), (2, 3))


def transposition(case: Case) -> Node:
    """A permuted array, with something done to it."""
    dtype = (dtypes.float32, dtypes.int8, dtypes.float64)[int(case.rng.integers(3))]
    x = case.array(tuple(case.size(40) for _ in range(int(case.rng.integers(2, 4)))), dtype)
    x = G.permute(x, case.rng.permutation(len(x.shape)))
    return G.alu("add", x, case.array(x.shape, dtype))


PROGRAMS: dict[str, Callable[[Case], Node]] = {
    "matmul": matmul,
    "softmax": softmax,
    "layernorm": layernorm,
    "reduction": reduction,
    "convolution": convolution,
    "transposition": transposition,
    "dots": dots,
}


@pytest.mark.parametrize("stage", [s for s in STAGES if s != "built"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_structure_keeps_its_meaning(program: str, stage: str) -> None:
    for seed in range(5 if program != "convolution" else 2):
        rng = np.random.default_rng([seed, sorted(PROGRAMS).index(program)])
        case = Case(rng)
        root = PROGRAMS[program](case)
        if root.kind != "buffer":
            got = run_plan([root], case.inputs, STAGES[stage])
            check(got, expect([root], case.inputs, rng), [root])


@pytest.mark.parametrize("program", ["softmax", "layernorm", "matmul"])
def test_one_kernel(program: str) -> None:
    case = Case(np.random.default_rng(7))
    plan = plan_fusion([PROGRAMS[program](case)], lambda node: node.kind == "buffer")
    assert len(plan.kernels) == 1

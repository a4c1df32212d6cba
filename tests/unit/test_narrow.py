"""Sums of narrow integers are formed in int32 just where that holds them."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.compiler.fusion.narrow_sums import narrow_sums
from gpu.compiler.ir.graph import Node, interpret, toposort
from gpu.compiler.ir.graph import build as G
from gpu.core.dtype import DType, dtypes


def is_leaf(node: Node) -> bool:
    return node.kind == "buffer"


def summing_dtypes(root: Node) -> set[DType]:
    (changed,) = narrow_sums([root], is_leaf)
    assert (changed.dtype, changed.shape) == (root.dtype, root.shape)
    return {n.dtype for n in toposort([changed], is_leaf) if n.kind in ("reduce", "scan")}


@pytest.mark.parametrize(
    ("dtype", "most"),
    [
        (dtypes.bool, (1 << 31) - 1), (dtypes.uint8, ((1 << 31) - 1) // 255),
        (dtypes.int8, (1 << 24) - 1), (dtypes.int16, (1 << 16) - 1), (dtypes.uint16, 32768),
        (dtypes.int32, 0), (dtypes.uint32, 0), (dtypes.int64, 0),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("total", [dtypes.int64, dtypes.uint64])
def test_as_many_as_fit(dtype: DType, most: int, total: DType) -> None:
    for count, wanted in ((most, dtypes.int32), (most + 1, total)):
        if count < 2:
            continue
        x = G.cast(G.buffer("x", (3, count), dtype, "CPU"), total)
        assert summing_dtypes(G.reduce("add", x, (1,))) == {wanted}
        assert summing_dtypes(G.scan("add", x, 1)) == {wanted}
        assert summing_dtypes(G.reduce("add", x, (0,))) == {dtypes.int32 if most >= 3 else total}


def test_other_reductions_stay() -> None:
    x = G.cast(G.buffer("x", (8,), dtypes.int8, "CPU"), dtypes.int64)
    for monoid in ("mul", "max", "or"):
        assert summing_dtypes(G.reduce(monoid, x, (0,))) == {dtypes.int64}
    single = G.cast(G.buffer("x", (8,), dtypes.float32, "CPU"), dtypes.int64)
    assert summing_dtypes(G.reduce("add", single, (0,))) == {dtypes.int64}


def test_what_is_in_memory_stays() -> None:
    x = G.cast(G.buffer("x", (8, 2), dtypes.int8, "CPU"), dtypes.int64)
    root = G.reduce("add", G.reshape(x, (16,)), (0,))
    (changed,) = narrow_sums([root], lambda node: is_leaf(node) or node is x)
    assert changed is root


def test_the_values_stay_through_movements() -> None:
    values = np.random.default_rng(5).integers(-128, 128, (4, 6), np.int8)
    x = G.cast(G.buffer("x", (4, 6), dtypes.int8, "CPU"), dtypes.int64)
    moved = G.pad(G.permute(G.reshape(x, (4, 2, 3)), (2, 0, 1)), [(1, 0, 0), (0, 2, 1), (0, 0, 0)])
    for root in (G.reduce("add", moved, (0, 1)), G.scan("add", moved, 1)):
        assert summing_dtypes(root) == {dtypes.int32}
        found = interpret([root, *narrow_sums([root], is_leaf)], lambda _: values)
        np.testing.assert_array_equal(*found)

"""Which reductions become two, and that they stay the same sums."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpu.backends.python.device import BLOCKS
from gpu.compiler.fusion.split_reduce import CACHED, LONG, LONG_SUM, split_reductions
from gpu.compiler.ir.graph import Node, interpret, toposort
from gpu.compiler.ir.graph import build as G
from gpu.compiler.targets import Target
from gpu.core.dtype import dtypes

Array = np.ndarray[Any, Any]
LANES = Target("lanes", BLOCKS.native, "worker", 2, 32, 16)
GPU = replace(BLOCKS, name="gpu", workers=132)
SCALAR = Target("scalar", BLOCKS.native, "worker", 2)


def split(node: Node, target: Target) -> Node:
    (root,) = split_reductions([node], lambda n: n.kind == "buffer", lambda name: target)
    return root


def parts_of(node: Node, target: Target) -> int:
    """Partial results of each result; 1 where there are none."""
    partial = [n for n in toposort([split(node, target)]) if n.kind == "contiguous"]
    return partial[0].size // node.size if partial else 1


def weight_gradient(images: int, rows: int, outputs: int, inputs: int) -> Node:
    """The sum over images and rows of products of two values for each."""
    full = (images, outputs, inputs, rows)
    grad = G.buffer("g", (images, outputs, 1, rows), dtypes.float32, "CPU")
    x = G.buffer("x", (images, 1, inputs, rows), dtypes.float32, "CPU")
    return G.reduce("add", G.alu("mul", G.expand(grad, full), G.expand(x, full)), (0, 3))


@pytest.mark.parametrize(
    ("size", "parts"),
    [(LONG, 64), (LONG - 64, 1), (3 * LONG, 64), (21 * 6391, 77)],  # 6391 = 7 * 11 * 83
)
def test_a_long_reduction_to_one_result_gives_every_worker_a_part(size: int, parts: int) -> None:
    node = G.reduce("max", G.buffer("x", (size,), dtypes.float32, "CPU"), (0,))
    assert parts_of(node, SCALAR) == parts


@pytest.mark.parametrize(
    ("images", "rows", "parts"),
    [
        (64, LONG_SUM // 64, 8),  # 96 rows of 8192 elements: 3 MiB, six times what is kept
        (64, LONG_SUM // 64 - 1, 1),  # not long
        (4, LONG_SUM // 4 - 1, 1),
        (4, LONG_SUM // 4, 8),  # the longest axis is that of the rows
        (2 * 81, 121, 2),  # 162 can be cut into two parts only
    ],
)
def test_a_sum_of_products_is_cut_into_what_a_cache_holds(
    images: int, rows: int, parts: int
) -> None:
    node = weight_gradient(images, rows, 64, 32)
    assert parts_of(node, LANES) == parts
    if parts == 8:
        assert 96 * images * rows * 4 <= parts * CACHED
    assert parts_of(node, SCALAR) == 1  # no lanes along the sum


def test_a_product_with_many_results_is_left_whole() -> None:
    assert parts_of(weight_gradient(64, 256, 512, 512), LANES) == 1


def test_what_is_read_once_is_left_whole() -> None:
    matrix = G.buffer("g", (256, 1 << 16), dtypes.float32, "CPU")
    vector = G.expand(G.buffer("x", (1, 1 << 16), dtypes.float32, "CPU"), matrix.shape)
    assert parts_of(G.reduce("add", G.alu("mul", matrix, vector), (1,)), LANES) == 1


@pytest.mark.parametrize(
    ("shape", "axes", "parts"),
    [
        ((1 << 16, 64), (0,), 128),  # two blocks: 132 parts, but of so many elements each
        ((1 << 14, 64), (0,), 32),
        ((8192, 1024), (0,), 16),  # 32 blocks: 9 parts
        ((8192, 2048), (0,), 1),  # 64 blocks are not few
        ((32, 56, 56, 64), (0, 1, 2), 32),  # the axis that can be cut
        ((1 << 16, 64), (1,), 1),  # along rows
    ],
)
def test_few_columns_are_cut_where_threads_share_them(
    shape: tuple[int, ...], axes: tuple[int, ...], parts: int
) -> None:
    node = G.reduce("add", G.buffer("x", shape, dtypes.float32, "CPU"), axes)
    assert parts_of(node, GPU) == parts
    assert parts_of(node, replace(GPU, access_bytes=0)) == 1


def test_columns_of_products_are_cut_where_each_element_is_used_once() -> None:
    x = G.buffer("x", (1 << 16, 1), dtypes.float32, "CPU")
    w = G.buffer("w", (1 << 16, 64), dtypes.float32, "CPU")
    rows = G.alu("mul", G.expand(x, w.shape), w)
    assert parts_of(G.reduce("add", rows, (0,)), GPU) > 1
    a = G.buffer("a", (1 << 16, 16, 1), dtypes.float32, "CPU")
    b = G.buffer("b", (1 << 16, 1, 16), dtypes.float32, "CPU")
    full = (1 << 16, 16, 16)
    product = G.alu("mul", G.expand(a, full), G.expand(b, full))
    assert parts_of(G.reduce("add", product, (0,)), GPU) == 1


def test_the_parts_add_up() -> None:
    node = weight_gradient(128, 100, 24, 8)
    assert parts_of(node, LANES) > 1
    rng = np.random.default_rng(0)
    values: dict[object, Array] = {
        "g": rng.normal(size=(128, 24, 1, 100)).astype(np.float32),
        "x": rng.normal(size=(128, 1, 8, 100)).astype(np.float32),
    }
    whole, in_parts = interpret([node, split(node, LANES)], lambda n: values[n.attr[0]])
    exact = np.einsum("noar,nbir->oi", *(v.astype(np.float64) for v in values.values()))
    np.testing.assert_allclose(in_parts.reshape(exact.shape), exact, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(whole.reshape(exact.shape), exact, rtol=1e-4, atol=1e-3)

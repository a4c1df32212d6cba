"""Stores of narrow integers under masks, of which LLVM may know that they have one lane."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import gpu
from gpu import Tensor

CASES = (("int32", "int16"), ("int32", "int8"), ("int64", "int32"), ("int64", "int8"))
TARGETS = ("x86-64-v3", "x86-64-v4", "sapphirerapids", "znver5", "neoverse-v2")


@pytest.mark.parametrize(("wide", "narrow"), CASES)
def test_nothing_behind_a_row_is_written(wide: str, narrow: str) -> None:
    """Rows of whole vectors and one element: those behind begin with what they should."""
    rng = np.random.default_rng(len(wide + narrow))
    for lanes in (8, 16, 32, 64):
        width = lanes * int(rng.integers(1, 8)) + 1
        x = rng.integers(-(1 << 30), 1 << 30, (3, width)).astype(wide)
        assert np.array_equal((Tensor(x) * 3).cast(narrow).numpy(), (x * 3).astype(narrow))


@pytest.mark.parametrize(("rows", "depth", "columns"), [(10, 2, 433), (7, 3, 385), (12, 6, 417)])
def test_products_of_int16(rows: int, depth: int, columns: int) -> None:
    rng = np.random.default_rng(columns)
    a, b = (
        rng.integers(-(1 << 15), 1 << 15, form).astype(np.int16)
        for form in ((rows, depth), (depth, columns))
    )
    assert np.array_equal((Tensor(a) @ Tensor(b)).numpy(), a @ b)


@pytest.mark.parametrize("target", TARGETS)
def test_masks_are_hidden_where_such_stores_are_one_instruction(
    target: str, need: Callable[[str], None]
) -> None:
    need("llvmlite")
    x, y = Tensor(np.zeros((10, 2), np.int16)), Tensor(np.zeros((2, 433), np.int16))
    (kernel,) = gpu.compile_for(f"CPU:LLVM:{target}", x @ y)
    stores = kernel.source.count("call void @llvm.masked.store.v")
    has_them = target not in ("x86-64-v3", "neoverse-v2")
    assert kernel.source.count('asm ""') == (stores if has_them else 0)
    assert stores or not has_them

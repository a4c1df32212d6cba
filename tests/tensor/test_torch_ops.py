"""Torch's own table of operations: a fixed share of what `tools/torch_ops` runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

PARTS = 100


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize("part", range(PARTS))
def test_operations_give_what_torch_gives(
    need: Callable[[str], None], part: int, dtype: str
) -> None:
    need("expecttest")
    import torch

    from tools.torch_ops.__main__ import known, run, surprises, table

    allowed, wrong = known(), []
    for op in table()[part::PARTS]:
        if op.supports_dtype(getattr(torch, dtype), "cpu"):
            found = run(op, dtype, "CPU", samples=3, gradients=False)
            wrong += [f"{found.name}: {one}" for one in surprises(found, allowed)]
    assert not wrong

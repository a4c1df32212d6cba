"""What operations mean in code for AMD GPUs: the same as everywhere, edge values included."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.compiler.ir import evaluate
from gpu.compiler.ir.optable import OPS, apply
from gpu.core.dtype import DType, dtypes
from unit.amdgcn.lanes import run
from unit.linear_kernels import (
    COMPUTED,
    Kernel,
    assert_same,
    edge_pairs,
    edge_values,
    matrix_kernel,
    operations,
)


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("dtype", COMPUTED, ids=lambda d: d.name)
def test_every_operation_means_what_the_op_table_says(dtype: DType, lanes: int) -> None:
    a, b, c, m = edge_pairs(dtype)
    names = operations(dtype)
    kernel = matrix_kernel(dtype, lanes, len(a), names)
    results = [np.empty(len(a), p.dtype.np) for p in kernel.params[4:]]
    run(kernel, a, b, c, m, *results)
    for name, got in zip(names, results, strict=True):
        args = (m, a, b) if name == "where" else (a, b, c)[: OPS[name].arity]
        want = apply(name, dtypes.from_numpy(got.dtype), args)
        assert_same(got, want, f"{name} {dtype.name} x{lanes}")


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("source", COMPUTED, ids=lambda d: d.name)
def test_every_cast(source: DType, lanes: int) -> None:
    values = edge_values(source)
    values = np.resize(values, -(-len(values) // 4) * 4)
    k = Kernel(a=(source, len(values)), **{f"to_{d.name}": (d, len(values)) for d in COMPUTED})
    i = k.loop(len(values), lanes)
    a = k.load(k.a, i, lanes)
    for target in COMPUTED:
        k.store(getattr(k, f"to_{target.name}"), i, k("cast", target, a, lanes=lanes))
    k.end(i)
    results = [np.empty(len(values), d.np) for d in COMPUTED]
    run(k, values, *results)
    for target, got in zip(COMPUTED, results, strict=True):
        with np.errstate(all="ignore"):
            want = evaluate.cast(values, source, target)
        assert_same(got, want, f"{source.name} to {target.name} x{lanes}")

"""What a WGSL compiler is not shown, so that it rewrites no sums of products."""

from __future__ import annotations

import numpy as np

from gpu.compiler.ir.linear import Inst
from gpu.compiler.lower.emit import Emitter
from gpu.compiler.render.wgsl.exact import hidden
from gpu.core.dtype import dtypes


def loaded(emitter: Emitter, position: int) -> Inst:
    pointer = emitter.pure("param", dtypes.float32, attr=(position,))
    return emitter.pure("load", dtypes.float32, args=(pointer, emitter.const(dtypes.int64, 0)))


def test_products_of_one_factor_stay_two() -> None:
    """Parts of a constant that are taken off one by one would be one constant again."""
    emitter = Emitter()
    x, count, other = (loaded(emitter, position) for position in range(3))
    high, low = (emitter.const(dtypes.float32, part) for part in (-1.5, -np.pi / 2 + 1.5))
    first = emitter.op("fma", count, high, x)
    assert hidden(first) == (False, False, False)
    assert hidden(emitter.op("fma", count, low, first)) == (False, False, True)
    assert hidden(emitter.op("fma", low, count, first)) == (False, False, True)
    assert hidden(emitter.op("fma", other, low, first)) == (False, False, False)

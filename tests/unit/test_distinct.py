"""Updates whose places data picks, said to be distinct."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.kernel.interp import interpret_kernel
from gpu.compiler.ir.kernel.text import parse_kernel, print_kernel
from gpu.compiler.ir.kernel.verify import verify_kernel
from gpu.compiler.opt.analysis.dependence import is_independent
from gpu.compiler.opt.opts import Bind, apply
from gpu.core.dtype import dtypes
from gpu.core.errors import IllegalOpt, ParseError, ShapeError, VerifyError

TEXT = """kernel reorder(out: f32[8] global, x: f32[8] global, n: i64[8] global)
  loop i serial 8
    let g 8 = n[i]
    out[g] distinct= x[i]
"""


def test_text_reads_back() -> None:
    assert print_kernel(parse_kernel(TEXT)) == TEXT
    for wrong in ("distinct add=", "add distinct="):
        with pytest.raises(ParseError):
            parse_kernel(TEXT.replace("distinct=", wrong))


def test_iterations_may_run_at_once() -> None:
    kernel = parse_kernel(TEXT)
    (loop,) = kernel.body.body
    assert isinstance(loop, K.Loop) and is_independent(loop)
    done = apply(kernel, [Bind("i", "grid")])
    verify_kernel(done)
    order, x, out = np.arange(8)[::-1].copy(), np.arange(8, dtype=np.float32), np.zeros(8, "f4")
    interpret_kernel(done, {"out": out, "x": x, "n": order})
    np.testing.assert_array_equal(out, x[::-1])


@pytest.mark.parametrize(
    "change",
    [(" distinct=", " ="), ("distinct= x[i]", "distinct= add(x[i], out[i])")],
)
def test_iterations_that_need_an_order(change: tuple[str, str]) -> None:
    with pytest.raises(IllegalOpt, match="write the same elements"):
        apply(parse_kernel(TEXT.replace(*change)), [Bind("i", "grid")])


def test_a_promise_that_data_breaks() -> None:
    done = apply(parse_kernel(TEXT), [Bind("i", "grid")])
    x, out = np.zeros(8, np.float32), np.zeros(8, np.float32)
    with pytest.raises(VerifyError, match="out, said to be distinct"):
        interpret_kernel(done, {"out": out, "x": x, "n": np.array([0, 1, 2, 3, 4, 5, 6, 6])})


def test_what_is_combined_is_not_distinct() -> None:
    kernel = parse_kernel(TEXT.replace(" distinct=", " add="))
    (loop,) = kernel.body.body
    assert isinstance(loop, K.Loop)
    (update,) = loop.body.body
    assert isinstance(update, K.Update)
    wrong = loop._replace(body=K.Block((update._replace(distinct=True),)))
    with pytest.raises(VerifyError, match="is not distinct"):
        verify_kernel(kernel._replace(body=K.Block((wrong,))))


def test_nodes_are_checked() -> None:
    x = G.buffer(0, (3, 5), dtypes.float32, "CPU")
    index = G.buffer(1, (3, 5), dtypes.int32, "CPU")
    with pytest.raises(ShapeError, match="indices are integers"):
        G.cumcount(x, 4, 1)
    with pytest.raises(ShapeError, match="bins at least 1"):
        G.cumcount(index, 0, 1)
    with pytest.raises(ShapeError, match="each element has an index"):
        G.reorder(x, G.buffer(2, (3, 4), dtypes.int32, "CPU"), 1)
    with pytest.raises(ShapeError, match="integer"):
        G.reorder(x, x, 1)
    assert G.cumcount(index, 4, 1).dtype is dtypes.int32

from __future__ import annotations

import re

import pytest

from gpu.compiler.render.cstyle.c import CRenderer
from gpu.compiler.render.cstyle.c_text import C
from gpu.core.dtype import ALL, dtypes
from gpu.core.errors import VerifyError
from unit.linear_kernels import HOST, Kernel, scratch_kernel


def render(kernel: Kernel) -> str:
    return CRenderer(HOST).render(kernel.program())


def test_a_source_stands_alone() -> None:
    text = render(scratch_kernel(20))
    assert "#include" not in text
    assert "void SYMBOL(kernel)(void **args, i64 worker, i64 workers) {" in text
    assert set(re.findall(r"\b\w+(?=\()", text)) <= {
        "SYMBOL", "kernel", "for", "__attribute__", "aligned",
    }  # fmt: skip


def test_variables_are_never_named_as_types() -> None:
    """However many there are: a counter named i64 once hid the type."""
    k = Kernel(out=(dtypes.int64, 1))
    total = k.const(0)
    for _ in range(70):
        loop = k.loop(1, carry=(total,))
        following = k.alu("add", k("carry", dtypes.int64, loop, attr=(0,)), k.const(1))
        total = k("result", dtypes.int64, k.end(loop, following), attr=(0,))
    k.store(k.out, k.const(0), total)
    declared = re.findall(r"^ +(?:for \()?i64 (\w+) =", render(k), re.MULTILINE)
    types = {str(C.type_of(d)) for d in ALL} | {"half"}
    assert len(declared) == len(set(declared)) > 140 and not types & set(declared)


def test_constants_keep_their_value_and_sign() -> None:
    k = Kernel(f=(dtypes.float32, 8), i=(dtypes.int64, 1), u=(dtypes.uint64, 1))
    values = (-0.0, 0.1, float("inf"), float("-inf"))
    for position, value in enumerate(values):
        k.store(k.f, k.const(position), k.const(value, dtypes.float32))
    k.store(k.i, k.const(0), k.const(-(1 << 63)))
    k.store(k.u, k.const(0), k.const((1 << 64) - 1, dtypes.uint64))
    text = render(k)
    for literal in (
        "-0x0.0p+0f", "0x1.99999a0000000p-4f", "((f32)__builtin_inff())", "-__builtin_inff()",
        "(-9223372036854775807LL - 1)", "18446744073709551615ULL",
    ):  # fmt: skip
        assert literal in text


def test_loops_that_do_not_nest_are_refused() -> None:
    k = Kernel(out=(dtypes.int64, 1))
    outer, inner = k.loop(2), k.loop(2)
    k.end(outer)
    with pytest.raises(VerifyError, match="ends"):
        render(k)
    k.body.pop()
    k.end(inner)
    with pytest.raises(VerifyError, match="has no end"):
        render(k)
    k.end(outer)
    k("carry", dtypes.int64, outer, attr=(0,))
    with pytest.raises(VerifyError, match="outside of that loop"):
        render(k)

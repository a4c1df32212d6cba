"""Loops that are left out by a condition, and loops of one iteration, keep their meaning."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.kernel.text import parse_kernel, print_kernel
from gpu.compiler.ir.kernel.tree import walk
from gpu.compiler.ir.linear.verify import verify_linear
from gpu.compiler.lower.linearize import linearize
from gpu.compiler.opt.opts import Bind, Fuse, Guard, apply
from gpu.compiler.opt.policy.choose import canonical, schedule
from gpu.core.errors import IllegalOpt
from unit.lane_kernels import LANES, random, result

BELOW = """kernel below(out: f32[{size}] global, x: f32[{size}] global, c: f32[{n}] global)
  loop s serial {n}
    loop i serial {n}
      loop j serial {n}
        out[{n}*i + j] = sub(x[{n}*i + j], c[s]) if i - s - 1 >= 0 & j - s >= 0
"""


@pytest.mark.parametrize("n", [3, 16, 19])
def test_rows_that_nothing_is_written_to_are_left_out(n: int) -> None:
    kernel = parse_kernel(BELOW.format(n=n, size=n * n))
    x, c = random(n, n), random(n)
    wanted = np.zeros((n, n), np.float32)
    for s in range(n):
        wanted[s + 1 :, s:] = x[s + 1 :, s:] - c[s]
    guarded = apply(kernel, [Guard("j")])
    (asked,) = (stmt for stmt in walk(guarded.body) if isinstance(stmt, K.If))
    assert str(asked.mask) == "i - s - 1 >= 0"
    chosen, opts = schedule(kernel, LANES)
    assert Guard("j") in opts or n < 4
    for each in (guarded, chosen):
        np.testing.assert_array_equal(result(each, LANES, x, c).reshape(n, n), wanted)


@pytest.mark.parametrize("axis", ["i", "s"])
def test_a_condition_that_changes_in_a_loop_does_not_leave_it_out(axis: str) -> None:
    kernel = parse_kernel(BELOW.format(n=5, size=25))
    with pytest.raises(IllegalOpt, match=rf"Guard\(axis='{axis}'\): its writes have no condition"):
        apply(kernel, [Guard(axis)])


@pytest.mark.parametrize(("outer", "inner"), [(1, 6), (6, 1)])
def test_a_loop_of_one_iteration_is_part_of_its_neighbour(outer: int, inner: int) -> None:
    kernel = parse_kernel(f"""kernel one(out: f32[64] global, x: f32[64] global)
  loop i serial {outer}
    loop j serial {inner}
      out[7*i + 3*j] = x[j + 5*i]
""")
    merged, opts = canonical(kernel)
    assert opts == [Fuse("i", "j")]
    x = random(64)
    np.testing.assert_array_equal(result(merged, LANES, x), result(kernel, LANES, x))


def test_what_a_loop_declares_is_gone_when_it_is_written_out_again() -> None:
    kernel = parse_kernel("""kernel again(out: f32[30] global, x: f32[20] global)
  loop u serial 3
    if 1 - u >= 0
      loop i serial 10
        alloc total: f32[] private
        total[] = 0.0:f32
        loop k serial 4
          total[] add= x[i + k]
        out[i + 10*u] = total[]
""")
    x = random(20)
    written = apply(kernel, [Bind("u", "unroll")])
    verify_linear(linearize(written, LANES))
    assert print_kernel(parse_kernel(print_kernel(written))) == print_kernel(written)
    np.testing.assert_array_equal(result(written, LANES, x), result(kernel, LANES, x))

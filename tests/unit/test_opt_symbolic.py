"""Loops whose number of iterations comes with the launch, and is less than its bounds allow."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.backends.python.device import BLOCKS
from gpu.compiler.ir.index import Var, expr, loop_var
from gpu.compiler.ir.kernel.interp import interpret_kernel
from gpu.compiler.ir.kernel.text import parse_kernel, print_kernel
from gpu.compiler.ir.kernel.tree import loops
from gpu.compiler.ir.kernel.verify import verify_kernel
from gpu.compiler.ir.linear.interp import interpret_linear
from gpu.compiler.ir.linear.verify import verify_linear
from gpu.compiler.lower.linearize import linearize
from gpu.compiler.opt.opts import Opt, Reorder, Rfactor, Split, apply
from gpu.compiler.opt.policy.choose import schedule
from gpu.compiler.targets import Target
from gpu.core.errors import IllegalOpt

# a + b - (a + b) // 2 is 300 at most, which nobody finds out: intervals give 600, and so many
# pairs of a and b are not tried.
COPIED = """kernel half(out: f32[600] global, x: f32[600] global; a 0..300, b 0..300)
  loop i serial a + b - (a + b) // 2
    out[i] = x[i]
"""
SUMMED = """kernel half(out: f32[1] global, x: f32[600] global; a 0..300, b 0..300)
  alloc s: f32[] private
  s[] = 0.0:f32
  loop i serial a + b - (a + b) // 2
    s[] add= x[i]
  out[0] = s[]
"""


def test_the_extent_of_a_loop_is_what_its_size_can_be() -> None:
    n = Var("n", 3, 19)
    half = n - expr(n) // 2
    assert half.hi == 18, "by intervals"
    assert loop_var("i", half).extent == 10
    assert loop_var("i", expr(n) // 2).extent == 9
    assert loop_var("i", half // 16).extent == 1, "none at all, and no variable takes no value"
    assert loop_var("i", 7).stop is None
    assert loop_var("i", half // 16).stop is expr(0)


@pytest.mark.parametrize("opt", [Split("i", 400, "peel"), Split("i", 400, "mask"),
                                 Rfactor("i", 400)])  # fmt: skip
def test_a_factor_that_no_value_reaches_leaves_the_rest_alone(opt: Opt) -> None:
    kernel = parse_kernel(SUMMED if isinstance(opt, Rfactor) else COPIED)
    done = apply(kernel, [opt])
    verify_kernel(done)
    verify_kernel(parse_kernel(print_kernel(done)))
    assert ("io" in loops(done.body)) == (opt == Split("i", 400, "mask"))
    for a, b in ((0, 0), (0, 1), (3, 4), (300, 299)):
        count, x = a + b - (a + b) // 2, np.arange(600, dtype=np.float32)
        out = np.zeros(kernel.params[0].shape, np.float32)
        interpret_kernel(done, {"out": out, "x": x}, [a, b])
        wanted = x[:count].sum(keepdims=True) if isinstance(opt, Rfactor) else x * (x < count)
        np.testing.assert_array_equal(out, wanted)


def test_a_loop_that_never_runs_is_kept_while_names_of_it_are_used() -> None:
    done = apply(parse_kernel(COPIED), [Split("i", 400, "peel"), Split("ii", 16, "exact")])
    assert loops(done.body).keys() == {"it"}


HALF_ROWS = """kernel rows(out: f32[400] global; a 1..31, b 0..13)
  loop i serial 16
    loop j serial (a + b) // 2
      out[22*i + j] = 1.0:f32
"""
PRODUCT = """kernel mm(out: f32[{out}] global, a: f32[960] global, b: f32[{b}] global; n 1..{n})
  loop i serial 40
    loop j serial n
      alloc s: f32[] private
      s[] = 0.0:f32
      loop k serial 24
        s[] add= mul(a[24*i + k], b[{n}*k + j])
      out[{n}*i + j] = s[]
"""


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_products_have_tiles_around_any_number_of_lanes(lanes: int) -> None:
    target = Target("lanes", BLOCKS.native, "worker", 1, 4 * lanes, 32)
    rng = np.random.default_rng(lanes)
    for most in (lanes - 1, lanes, lanes + 1, 2 * lanes - 1, 2 * lanes, 2 * lanes + 1, 4 * lanes):
        kernel = parse_kernel(PRODUCT.format(out=40 * most, b=24 * most, n=most))
        done, opts = schedule(kernel, target)
        verify_kernel(done)
        program = linearize(done, target)
        verify_linear(program)
        assert opts or most < lanes
        a, b = (rng.integers(-9, 9, size).astype(np.float32) for size in ((40, 24), (24, most)))
        for n in (1, most):
            out = np.zeros((40, most), np.float32)
            interpret_linear(program, [x.reshape(-1) for x in (out, a, b)], [n])
            np.testing.assert_array_equal(out, (a @ b) * (np.arange(most) < n))


def test_a_masked_round_of_half_a_size_keeps_rows_apart() -> None:
    """The mask says 2 j <= a + b - 2, and rows have (a + b) // 2 elements at most."""
    kernel = parse_kernel(HALF_ROWS)
    split = apply(kernel, [Split("j", 16, "mask"), Reorder(("jo", "i", "ji"))])
    verify_kernel(split)
    with pytest.raises(IllegalOpt, match="depend on each other"):
        wide = parse_kernel(HALF_ROWS.replace("(a + b) // 2", "(a + b) // 2 + 1"))
        apply(wide, [Split("j", 16, "mask"), Reorder(("jo", "i", "ji"))])

"""Sums of which masks ask for multiples of a number: those that are, and no others, are left."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from gpu.compiler.fusion.build import build_kernel
from gpu.compiler.fusion.placement import plan_fusion
from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.graph.rewrite import without_custom_grads
from gpu.compiler.ir.index import Var
from gpu.compiler.ir.kernel.interp import interpret_kernel
from gpu.compiler.ir.kernel.text import parse_kernel
from gpu.compiler.ir.kernel.tree import expressions
from gpu.compiler.ir.kernel.verify import verify_kernel
from gpu.compiler.opt.analysis import loop_nest
from gpu.compiler.opt.analysis.loop_nest import leaves
from gpu.compiler.opt.opts import Residues, Tile, apply
from gpu.compiler.opt.policy.choose import schedule
from gpu.compiler.opt.policy.cpu import tiling
from gpu.compiler.opt.primitives.tiling import Tiling
from gpu.compiler.targets import Target
from gpu.core.errors import IllegalOpt
from gpu.runtime.pipeline import plan_graph
from tools.coalescing import memory
from unit.lane_kernels import lowered, random, result
from unit.test_opt_short import machine

GRADIENT = """kernel dx(out: f32[{size}] global, dy: f32[{places}] global, w: f32[{taps}] global)
  loop c serial 3
    loop i serial {n}
      alloc s: f32[] private
      s[] = 0.0:f32
      loop r serial {taps}
        s[] add= mul(dy[{m}*c + ({at}) // {step} if {at} >= 0 & {last} - ({at}) >= 0 \
& -(({at}) % {step}) >= 0], w[r])
      out[{n}*c + i] = s[]
"""
MOST = """kernel most(out: f32[9] global, x: f32[9] global)
  loop i serial 9
    alloc s: f32[] private
    s[] = 0.0:f32
    loop r serial 3
      s[] max= x[(i - r) // 2 if i - r >= 0 & -((i - r) % 2) >= 0]
    out[i] = s[]
"""


def gradient(n: int, taps: int, step: int, apart: int, pad: int) -> tuple[K.Kernel, int]:
    """The gradient of a row of n, of which `taps`, so many `apart`, are added at each step."""
    m = max((n + 2 * pad - apart * (taps - 1) - 1) // step + 1, 1)
    names = {"at": f"i - {apart}*r + {pad}", "last": step * (m - 1), "m": m, "step": step}
    text = GRADIENT.format(n=n, taps=taps, size=3 * n, places=3 * m, **names)
    return parse_kernel(text), m


def computed(kernel: K.Kernel, n: int, dy: np.ndarray, w: np.ndarray) -> np.ndarray:
    out = np.full(3 * n, np.nan, np.float32)
    interpret_kernel(kernel, {"out": out, "dy": dy.ravel(), "w": w})
    return out


def has_remainders(kernel: K.Kernel) -> bool:
    """Whether divisions are left."""
    return any(not isinstance(atom, Var) for e in expressions(kernel.body) for atom, _ in e.terms)


def steps_of(kernel: K.Kernel) -> int:
    """How often something is added."""
    added = (leaf for leaf in leaves(kernel.body) if leaf.update.monoid == "add")
    return sum(math.prod(loop.var.extent for loop in leaf.loops) for leaf in added)


@pytest.mark.parametrize("seed", range(60))
def test_each_remainder_has_the_steps_that_are_multiples(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lows, highs = (2, 1, 2, 1, 0), (30, 8, 6, 5, 4)
    n, taps, step, apart, pad = map(int, rng.integers(lows, highs))
    kernel, m = gradient(n, taps, step, apart, pad)
    dy, w = random(3, m), random(taps)
    done = apply(kernel, [Residues(("i",))])
    verify_kernel(done)
    assert len(done.body.body) == min(step, n)
    assert not has_remainders(done)
    places = itertools.product(range(n), range(taps))
    assert steps_of(done) == 3 * sum((i - apart * r + pad) % step == 0 for i, r in places)
    wanted = computed(kernel, n, dy, w)
    np.testing.assert_allclose(computed(done, n, dy, w), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("n", [100, 1000])
def test_gradients_of_steps_are_shared_nests_without_divisions(
    n: int, lanes: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_nest, "SHARED", 1 << 11)
    kernel, m = gradient(n, 5, 3, 1, 2)
    target = replace(machine(lanes), workers=workers)
    done, opts = schedule(kernel, target)
    lowered(kernel, target)
    assert Residues(("i",)) in opts
    assert not has_remainders(done)
    shared = {isinstance(s, K.Loop) and s.kind == "worker" for s in done.body.body}
    assert shared == {workers > 1 and n == 1000}
    dy, w = random(3, m), random(5)
    wanted = computed(kernel, n, dy, w)
    np.testing.assert_allclose(result(done, target, dy, w), wanted, rtol=1e-5, atol=1e-5)


def test_what_does_not_add_keeps_all_steps() -> None:
    kernel = parse_kernel(MOST)
    with pytest.raises(IllegalOpt, match="multiples"):
        apply(kernel, [Residues(("i",))])
    assert not any(isinstance(opt, Residues) for opt in schedule(kernel, machine(8))[1])


def test_only_rows_that_masks_ask_of_have_remainders() -> None:
    kernel, _ = gradient(12, 3, 2, 1, 1)
    for rows in ((), ("c",), ("i", "r")):
        with pytest.raises(IllegalOpt, match="multiples"):
            apply(kernel, [Residues(rows)])


@pytest.mark.parametrize(("side", "taps", "nests"), [(15, 3, 4), (16, 4, 4), (14, 3, 4)])
def test_nests_of_remainders_choose_once(
    side: int, taps: int, nests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their tiles are those of the one with most steps, and no larger than their loops."""
    asked = list[K.Kernel]()
    choose = tiling.choose

    def counted(kernel: K.Kernel, target: Target) -> Tiling | None:
        asked.append(kernel)
        return choose(kernel, target)

    monkeypatch.setattr(tiling, "choose", counted)
    x, w = memory(2, 16, side, side), memory(24, 16, taps, taps)
    y = x.conv2d(w, padding=1, stride=2)
    (grad,) = (y * memory(*y.shape)).sum().gradient(x)
    plan = plan_graph([grad._node], lambda node: node.kind == "buffer", lambda _: machine(16)).plan
    last = len(plan.kernels) - 1
    _, opts = schedule(build_kernel("dx", last, plan).kernel, machine(16))
    tiles = [opt.tiling for opt in opts if isinstance(opt, Tile)]
    assert len(tiles) == nests and len(asked) == 1
    assert len({(tiled.lane.split("_")[0], tiled.lanes, tiled.copies) for tiled in tiles}) == 1


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kind", ["max_pool2d", "avg_pool2d"])
def test_gradients_of_pools_keep_no_windows(kind: str, stride: int) -> None:
    x = memory(4, 8, 21, 19)
    pooled = getattr(x, kind)((3, 3), stride=stride)
    (grad,) = (pooled * memory(*pooled.shape)).sum().gradient(x)

    def is_leaf(node: Node) -> bool:
        return node.kind == "buffer"

    plan = plan_fusion(without_custom_grads([grad._node], is_leaf), is_leaf)
    kept = [node.size for kernel in plan.kernels for node in kernel]
    assert max(kept) <= x.numel()

"""Which tiling a reduction gets: it computes the same, fits the machine, and pays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.kernel.text import parse_kernel, print_kernel
from gpu.compiler.ir.kernel.tree import loops, values, walk
from gpu.compiler.ir.optable import COSTLY_OPS
from gpu.compiler.opt.analysis.loop_nest import leaves
from gpu.compiler.opt.analysis.reduction_nest import reduction_nest
from gpu.compiler.opt.policy.choose import schedule
from gpu.compiler.opt.policy.cpu import tiling
from gpu.compiler.opt.policy.cpu.tile_cost import CORES, CORES_BY_FEATURE, Core, Costs, core_of
from gpu.compiler.opt.policy.cpu.tiling import WRITTEN, choose
from gpu.compiler.opt.primitives.tiling import Tiling
from gpu.compiler.targets.cpu import host_target
from unit.lane_kernels import LANES
from unit.reduction_kernels import inputs_of, outputs, product, random_reduction


@pytest.mark.parametrize("seed", range(25))
def test_the_tiling_that_is_chosen_computes_the_same(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kernel = random_reduction(rng)
    arrays = inputs_of(kernel, rng)
    wanted = outputs(kernel, arrays, None)
    for lanes, workers in ((4, 1), (16, 4)):
        target = replace(LANES, vector_bytes=4 * lanes, workers=workers, registers=16)
        done, _ = schedule(kernel, target)
        np.testing.assert_array_equal(outputs(done, arrays, target), wanted)


@pytest.mark.parametrize(
    ("m", "k", "n", "a", "b", "tiled"),
    [
        (64, 64, 64, "", "", True),
        (33, 50, 7, "", "", True),
        (40, 300, 40, "40*k + i", "40*k + j", True),
        (1, 300, 40, "", "", True),
        (300, 40, 1, "", "", True),
        (4, 8, 4, "", "", False),
    ],
)
def test_what_takes_time_is_tiled(m: int, k: int, n: int, a: str, b: str, tiled: bool) -> None:
    chosen = choose(product(m, k, n, a, b), replace(LANES, vector_bytes=64, registers=32))
    assert (chosen is not None) == tiled


def test_large_products_are_shared_by_workers_and_small_ones_are_not() -> None:
    target = replace(LANES, workers=4)
    for side, parallel in ((32, ""), (256, "worker")):
        chosen = choose(product(side, side, side), target)
        assert chosen is not None and chosen.parallel == parallel


@pytest.mark.parametrize("registers", [8, 16, 32])
def test_tiles_fit_registers(registers: int) -> None:
    target = replace(LANES, registers=registers)
    tiled, _ = schedule(product(100, 64, 100), target)
    (sums, *_) = (s.buf for s in walk(tiled.body) if isinstance(s, K.Alloc) and s.buf.shape)
    assert 2 <= np.prod(sums.shape) // 8 < registers
    assert "vector" in {loop.kind for loop in loops(tiled.body).values()}


def test_workers_share_no_lines() -> None:
    kernel, target = product(461, 12, 124), replace(LANES, vector_bytes=64, registers=32)
    nest = reduction_nest(kernel.body)
    assert nest is not None
    costs = Costs(nest, replace(target, workers=2))
    rows, across = Tiling("j", 16, (("i", 14), ("j", 32))), Tiling("j", 16, (("j", 32), ("i", 14)))
    assert costs.work(rows) * 1.1 > costs.work(across)
    (time, shared), (other, alone) = costs.launched(rows), costs.launched(across)
    assert shared.parallel == "worker" and not alone.parallel and other > 1.2 * time


def test_slow_operations_and_rows_across_lines_cost_more() -> None:
    golden_cove = host_target("sapphirerapids")
    zen4 = host_target("znver4")
    assert core_of(golden_cove) is CORES_BY_FEATURE["+amx-tile"]
    assert core_of(zen4) is CORES[64]
    tiling = Tiling("j", 16, (("j", 32), ("i", 14)))

    def work(columns: int, dtype: str = "f32", zero: str = "0.0") -> float:
        text = print_kernel(product(448, 1000, columns)).replace("f32", dtype)
        nest = reduction_nest(parse_kernel(text.replace("0.0", zero)).body)
        assert nest is not None
        return Costs(nest, golden_cove).work(tiling)

    assert work(520) / 520 > 1.1 * work(528) / 528  # rows of 2080 and 2112 bytes
    assert work(528, "i32", "0") > 1.5 * work(528)


SYMBOLIC = """\
kernel symbolic(out: f32[234] global, a: f32[450] global, b: f32[1300] global; m 0..9)
  loop i serial m
    loop j serial 26
      alloc s: f32[] private
      s[] = 0.0:f32
      loop k serial 50
        s[] add= mul(a[50*i + k], b[26*k + j])
      out[26*i + j] = s[]
"""
LARGE = {
    "product": print_kernel(product(9, 50, 26)),
    "then more": print_kernel(product(9, 50, 26)).replace("= s[]", "= max(s[], 3.0:f32)"),
    "apart": print_kernel(product(9, 50, 26)).replace("out[26*i + j]", "out[i + 9*j]"),
    "counted at launch": SYMBOLIC,
}


@pytest.mark.parametrize("name", LARGE)
def test_long_sums_of_what_exceeds_a_cache_are_in_blocks(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CORES, 32, Core(near=1 << 8, far=1 << 12))
    monkeypatch.setattr(tiling, "BLOCKS", (16, 32))
    monkeypatch.setattr(tiling, "GAIN", 2.0)  # whether they gain anything or not
    monkeypatch.setattr(tiling, "BEST_COPIED", 0)  # copies of all that is read would fit a cache
    rng, kernel = np.random.default_rng(0), parse_kernel(LARGE[name])
    arrays = inputs_of(kernel, rng)
    for workers in (1, 3):
        target = replace(LANES, registers=16, workers=workers)
        chosen = choose(kernel, target)
        assert chosen is not None and "k" in dict(chosen.loops)
        done, _ = schedule(kernel, target)
        for vals in ([0], [4], [9]) if kernel.vals else ([],):
            wanted = outputs(kernel, arrays, None, vals)
            np.testing.assert_array_equal(outputs(done, arrays, target, vals), wanted)


@pytest.mark.parametrize(
    ("m", "k", "n", "blocks"),
    [(300, 4096, 300, True), (64, 5000, 400, True), (64, 2000, 30, False), (300, 300, 300, False)],
)
def test_sums_are_whole_where_a_cache_holds_a_panel(m: int, k: int, n: int, blocks: bool) -> None:
    chosen = choose(product(m, k, n), replace(LANES, vector_bytes=64, registers=32))
    assert chosen is not None and ("k" in dict(chosen.loops)) == blocks


STRIDED = """\
kernel strided(out: f32[{size}] global, a: f32[{read}] global, b: f32[{weights}] global)
  loop i serial {n}
    loop j serial {pixels}
      alloc s: f32[] private
      s[] = 0.0:f32
      loop r serial {channels}
        loop t serial {taps}
          s[] add= mul(a[{row}*r + {step}*j + {spacing}*t], b[{taps}*{channels}*i + {taps}*r + t])
      out[{pixels}*i + j] = s[]
"""


@pytest.mark.parametrize("pixels", [100, 3000])
@pytest.mark.parametrize(("taps", "step", "spacing"), [(90, 2, 3), (250, 4, 2), (400, 3, 2)])
@pytest.mark.parametrize("channels", [3, 40, 300])
def test_copies_fit_the_cache(
    pixels: int, taps: int, step: int, spacing: int, channels: int
) -> None:
    row = step * pixels + spacing * taps
    kernel = STRIDED.format(
        size=60 * pixels,
        read=row * channels,
        weights=60 * taps * channels,
        n=60,
        pixels=pixels,
        taps=taps,
        channels=channels,
        row=row,
        step=step,
        spacing=spacing,
    )
    target = replace(LANES, vector_bytes=32, registers=16, workers=4)
    tiled, _ = schedule(parse_kernel(kernel), target)
    near = [s.buf for s in walk(tiled.body) if isinstance(s, K.Alloc) and s.buf.space == "team"]
    assert near
    for buf in near:
        assert np.prod(buf.shape) * buf.dtype.itemsize <= CORES[32].far


SMALL_IMAGES = """\
kernel narrow(out: f32[{size}] global, a: f32[{read}] global, b: f32[{weights}] global)
  loop n serial {outputs}
    loop i serial {side}
      loop j serial {side}
        alloc s: f32[] private
        s[] = 0.0:f32
        loop c serial {channels}
          loop u serial 3
            loop v serial 3
              s[] add= mul(a[{area}*c + {row}*i + {row}*u + j + v], b[{taps}*n + 9*c + 3*u + v])
        out[{side}*{side}*n + {side}*i + j] = s[]
"""


@pytest.mark.parametrize("side", [3, 7])
@pytest.mark.parametrize("channels", [448, 512, 1024])
def test_weights_of_small_images_are_loaded_in_vectors(side: int, channels: int) -> None:
    outputs, row = 256, side + 2
    kernel = SMALL_IMAGES.format(
        size=side * side * outputs,
        read=row * row * channels,
        weights=9 * channels * outputs,
        outputs=outputs,
        channels=channels,
        side=side,
        row=row,
        area=row * row,
        taps=9 * channels,
    )
    target = replace(LANES, vector_bytes=64, registers=32, workers=2)
    chosen = choose(parse_kernel(kernel), target)
    assert chosen is not None
    nest = reduction_nest(parse_kernel(kernel).body)
    assert nest is not None
    (lane,) = (var for var in nest.independent if var.name == chosen.lane)
    copied = {copy.operand for copy in chosen.copies}
    for number, operand in enumerate(nest.operands):
        assert abs(operand.steps.get(lane) or 0) <= 1 or number in copied


@pytest.mark.parametrize("combined", ["sin(mul({a}, {b}))", "fmod({a}, {b})", "exp(sub({a}, {b}))"])
@pytest.mark.parametrize(("m", "n", "k"), [(5, 61, 90), (40, 64, 7), (120, 120, 33)])
def test_tiles_of_costly_operations_are_little_text(combined: str, m: int, n: int, k: int) -> None:
    text = print_kernel(product(m, k, n))
    _, _, value = text.partition("add= mul(")
    a, b = value.splitlines()[0].removesuffix(")").split(", ")
    kernel = parse_kernel(text.replace(f"mul({a}, {b})", combined.format(a=a, b=b)))
    target = replace(LANES, vector_bytes=64, registers=32)
    tiled, _ = schedule(kernel, target)
    costly = combined.partition("(")[0]
    for leaf in leaves(tiled.body):
        if any(v.kind == "alu" and v.attr == (costly,) for v in values(leaf.update.value, set())):
            repeated = [loop.var.extent for loop in leaf.loops if loop.kind == "unroll"]
            assert COSTLY_OPS[costly] * np.prod(repeated) <= WRITTEN

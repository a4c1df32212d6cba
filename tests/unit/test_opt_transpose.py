"""Transpositions on CPUs: squares in registers, tiles in caches, hints for the next tile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pytest

from gpu import Tensor
from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import Var
from gpu.compiler.ir.kernel import nontemporal as streams
from gpu.compiler.ir.kernel.text import parse_kernel
from gpu.compiler.ir.kernel.tree import loads_of, walk
from gpu.compiler.ir.kernel.verify import verify_kernel
from gpu.compiler.lower.linearize import linearize
from gpu.compiler.opt.analysis.dependence import is_independent
from gpu.compiler.opt.analysis.loop_nest import transposition
from gpu.compiler.opt.opts import CacheRow, Prefetch, Reorder, Split, Stage, apply
from gpu.compiler.opt.policy.choose import schedule
from gpu.compiler.opt.policy.cpu import transpose
from gpu.core.errors import IllegalOpt
from unit.lane_kernels import LANES, TRANSPOSE, random, result


@pytest.mark.parametrize(
    ("m", "n"), [(16, 64), (17, 60), (9, 100), (24, 8), (8, 150), (13, 11), (37, 35), (8, 33)]
)
def test_what_squares_leave_is_shifted(m: int, n: int) -> None:
    kernel, opts = schedule(parse_kernel(TRANSPOSE.format(size=m * n, m=m, n=n)), LANES)
    assert n <= 32 or Split("j", 32, "shift") in opts
    x = random(n, m)
    np.testing.assert_array_equal(result(kernel, LANES, x), x.T.reshape(-1))
    # Every element is written by a vector.
    squares = [s for s in walk(kernel.body) if isinstance(s, K.Loop) and s.kind == "vector"]
    assert all(isinstance(s, K.Update) for loop in squares for s in _leaves(loop))
    assert len(list(_leaves(kernel.body))) == len([s for q in squares for s in _leaves(q)])


def _leaves(stmt: K.Stmt) -> Iterator[K.Update]:
    return (s for s in walk(stmt) if isinstance(s, K.Update))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("out[i] = x[2*i]", None),
        ("out[i] = x[i]", "twice"),  # x may have the memory of out
        ("out[i] add= x[2*i]", "twice"),
        ("out[i] = mul(out[2*i], x[2*i])", "twice"),
    ],
)
def test_only_what_changes_nothing_runs_twice(body: str, why: str | None) -> None:
    text = "kernel k(out: f32[40] global, x: f32[40] global)\n  loop i serial 19\n    "
    kernel = parse_kernel(text + body)
    if why:
        with pytest.raises(IllegalOpt, match=why):
            apply(kernel, [Split("i", 8, "shift")])
        return
    done = apply(kernel, [Split("i", 8, "shift")])
    verify_kernel(done)
    inner, last = done.body.body
    assert isinstance(inner, K.Loop) and isinstance(last, K.Loop)
    assert (inner.var.extent, last.var.extent) == (2, 8)
    x = random(40)
    wanted = np.zeros(40, np.float32)
    wanted[:19] = x[:38:2]
    np.testing.assert_array_equal(result(done, LANES, x), wanted)


def test_values_that_share_memory_with_what_is_written_are_read_once() -> None:
    rng = np.random.default_rng(5)
    for rows, columns in rng.integers(530, 600, (3, 2)):
        a = rng.standard_normal((rows, columns)).astype(np.float32)
        b = rng.standard_normal((columns, rows)).astype(np.float32)
        x, y = Tensor(a).contiguous().realize(), Tensor(b).contiguous().realize()
        x = x + y.T  # whose memory may be that of the old x
        np.testing.assert_array_equal(x.numpy(), a + b.T)


@pytest.mark.parametrize(("n", "streams"), [(4096, True), (4104, True), (4097, True), (264, False)])
def test_large_transpositions_go_past_the_caches(n: int, streams: bool) -> None:
    kernel, _ = schedule(parse_kernel(TRANSPOSE.format(size=n * n, m=n, n=n)), LANES)
    stores = [inst for inst in linearize(kernel, LANES).body if inst.op == "store"]
    assert any(inst.attr[0] for inst in stores) == streams


TURNED = """kernel turned(out: f32[{size}] global, x: f32[{size}] global, y: f32[{size}] global)
  loop b serial 2
    loop i serial {m}
      loop j serial {n}
        out[{area}*b + {n}*i + j] = {value}
"""
ACROSS, ALONG = "x[{area}*b + {m}*j + i]", "y[{area}*b + {n}*i + j]"


@pytest.mark.parametrize(
    ("m", "n", "height", "width"), [(53, 50, 32, 32), (16, 35, 16, 32), (48, 32, 32, 32)]
)
@pytest.mark.parametrize("added", [False, True])
def test_large_transpositions_go_by_tiles(
    m: int, n: int, height: int, width: int, added: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "STREAMED_BYTES", 1)
    monkeypatch.setattr(transpose, "PAGE_BYTES", 16 * 4)
    monkeypatch.setattr(transpose, "READ_BYTES", 40 * 4)
    monkeypatch.setattr(transpose, "WRITTEN_BYTES", 32 * 4)
    value = (f"add({ACROSS}, {ALONG})" if added else ACROSS).format(m=m, n=n, area=m * n)
    text = TURNED.format(m=m, n=n, size=2 * m * n, area=m * n, value=value)
    kernel, opts = schedule(parse_kernel(text), LANES)
    verify_kernel(kernel)
    assert {Stage("io", "x", ("ii", "ji"), apart=8), Prefetch("io", "x", "jio")} <= set(opts)
    assert {Split("i", height, "peel"), Split("j", width, "peel")} <= set(opts)
    assert sum(isinstance(s, K.Loop) and is_independent(s) for s in kernel.body.body) == 1
    x, y = random(2, n, m), random(2, m, n)
    wanted = (x.transpose(0, 2, 1) + (y if added else 0)).reshape(-1)
    np.testing.assert_array_equal(result(kernel, LANES, x, y), wanted)


def lines_of_tiles(
    body: K.Block, env: dict[Var, int]
) -> Iterator[tuple[tuple[int, ...], bool, int]]:
    """For each load of x that is staged and each prefetch: its tile, whether it loads, its line."""
    for stmt in body.body:
        if isinstance(stmt, K.Loop):
            for counter in range(stmt.var.extent):
                yield from lines_of_tiles(stmt.body, {**env, stmt.var: counter})
        elif isinstance(stmt, K.Block):
            yield from lines_of_tiles(stmt, env)
        elif isinstance(stmt, (K.Update, K.Prefetch)):
            loads = loads_of(stmt.value) if isinstance(stmt, K.Update) else []
            indices = stmt.indices if isinstance(stmt, K.Prefetch) else loads[0].attr[1]
            if isinstance(stmt, K.Prefetch) or loads[0].attr[0].name == "x":
                tile = tuple(env.values())[:2]
                yield tile, isinstance(stmt, K.Update), indices[0].evaluate(env) // 16


@pytest.mark.parametrize(
    ("m", "n", "step"), [(32, 32, 16), (32, 64, 16), (16, 48, 16), (32, 32, 32)]
)
def test_tiles_ask_for_the_lines_of_the_next_one(m: int, n: int, step: int) -> None:
    """Tiles are `m` long where they are read, `n` where they are written; a line is 16 floats."""
    text = TRANSPOSE.format(size=4 * m * 2 * n, m=4 * m, n=2 * n)
    tiles = [Split("j", n), Reorder(("i", "ji")), Split("i", m), Stage("io", "x", ("ii", "ji"))]
    hints = [Split("ji", step), Prefetch("io", "x", "jio")]
    kernel = apply(parse_kernel(text), [Reorder(("j", "i")), *tiles, *hints])
    verify_kernel(kernel)
    read, asked = defaultdict(set), defaultdict(list)
    for (j, i), loads, line in lines_of_tiles(kernel.body, {}):
        if loads:
            read[j, i].add(line)
        else:
            asked[j, i + 1].append(line)
    assert len(read) == 8
    for tile in read:
        assert tile[1] == 0 or sorted(asked[tile]) == sorted(read[tile])
    x = random(2 * n, 4 * m)
    np.testing.assert_array_equal(result(kernel, LANES, x), x.T.reshape(-1))


@pytest.mark.parametrize(
    ("axis", "buf", "loop", "rule"),
    [
        ("io", "out", "jio", "in io nothing is staged"),
        ("io", "x", "iis", "in io nothing is staged"),
        ("io", "x", "k", "there is no loop 'k'"),
        ("io", "x", "ii", "16 cache lines for each iteration"),
    ],
)
def test_hints_need_a_tile_and_a_loop_that_uses_it(
    axis: str, buf: str, loop: str, rule: str
) -> None:
    text = TRANSPOSE.format(size=1 << 15, m=1 << 6, n=1 << 9)
    opts = [Split("j", 256), Reorder(("i", "ji")), Split("i", 32), Stage("io", "x", ("ii", "ji"))]
    tiled = apply(parse_kernel(text), [Reorder(("j", "i")), *opts, Split("ji", 16)])
    with pytest.raises(IllegalOpt, match=rule):
        apply(tiled, [Prefetch(axis, buf, loop)])


def test_hints_are_of_what_is_copied_from_a_parameter() -> None:
    kernel = parse_kernel("""kernel k(out: f32[64] global, x: f32[64] global)
  loop i serial 4
    loop j serial 16
      out[16*i + j] = x[16*i + j]
""")
    staged = apply(kernel, [Stage("i", "x", ("j",))])
    verify_kernel(apply(staged, [Prefetch("i", "x", "j")]))
    twice = apply(staged, [CacheRow("i", "x")])
    with pytest.raises(IllegalOpt, match="no parameter is copied"):
        apply(twice, [Prefetch("i", "x", "j")])


@pytest.mark.parametrize("columns", [11, 40])
def test_what_is_turned_may_have_axes_of_its_own(columns: int) -> None:
    """Rows of a worker's memory lie apart by their length, though no last index says so."""
    whole = parse_kernel(f"""kernel turned(out: f32[{64 * columns}] global)
  alloc rows: f32[{columns}, 64] team
  loop i serial 64
    loop j serial {columns}
      out[{columns}*i + j] = rows[j, i]
""")
    kernel = whole._replace(body=whole.body._replace(body=whole.body.body[1:]))
    found = transposition(kernel, 4)
    assert found is not None and (found.read.name, found.write.name) == ("i", "j")
    squares = apply(kernel, transpose.turn(kernel, found, 8, LANES))
    kinds = [stmt.kind for stmt in walk(squares.body) if isinstance(stmt, K.Loop)]
    assert "vector" in kinds

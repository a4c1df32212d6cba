"""Transformations for blocks of threads, and the policy that picks them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpu.backends.python.device import BLOCKS
from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.kernel.interp import interpret_kernel
from gpu.compiler.ir.kernel.text import parse_kernel, print_kernel
from gpu.compiler.ir.kernel.tree import walk
from gpu.compiler.ir.kernel.verify import verify_kernel
from gpu.compiler.ir.linear import block_size, team_bytes
from gpu.compiler.ir.linear.interp import interpret_linear
from gpu.compiler.lower.linearize import linearize
from gpu.compiler.opt.opts import (
    Bind,
    Distribute,
    DistributeThreads,
    FuseSiblings,
    Inline,
    Opt,
    Reorder,
    ReuseShared,
    Split,
    Stage,
    apply,
)
from gpu.compiler.opt.policy.choose import schedule
from gpu.compiler.targets import Target
from gpu.core.errors import IllegalOpt

Array = np.ndarray[Any, Any]

GPU = replace(BLOCKS, name="gpu", threads=256, shared_bytes=32768, warp=32)

SOFTMAX = """kernel softmax(out: f32[{size}] global, x: f32[{size}] global)
  loop i serial {rows}
    alloc m: f32[] private
    m[] = -inf:f32
    loop a serial {columns}
      m[] max= x[{columns}*i + a]
    alloc e: f32[{columns}] team
    loop b serial {columns}
      e[b] = exp(sub(x[{columns}*i + b], m[]))
    alloc s: f32[] private
    s[] = 0.0:f32
    loop c serial {columns}
      s[] add= e[c]
    loop d serial {columns}
      out[{columns}*i + d] = div(e[d], s[])
"""
MATMUL = """kernel matmul(out: f32[{mn}] global, a: f32[{mk}] global, b: f32[{kn}] global)
  loop i serial {m}
    loop j serial {n}
      alloc s: f32[] private
      s[] = 0.0:f32
      loop k serial {k}
        s[] add= mul(a[{k}*i + k], b[{n}*k + j])
      out[{n}*i + j] = s[]
"""
TRANSPOSE = """kernel transpose(out: f32[{mn}] global, x: f32[{mn}] global)
  loop i serial {m}
    loop j serial {n}
      out[{n}*i + j] = x[{m}*j + i]
"""
COLUMNS = """kernel columns(out: f32[{n}] global, x: f32[{mn}] global)
  loop j serial {n}
    alloc s: f32[] private
    s[] = 0.0:f32
    loop i serial {m}
      s[] add= x[{n}*i + j]
    out[j] = s[]
"""


def softmax(rows: int, columns: int) -> K.Kernel:
    return parse_kernel(SOFTMAX.format(size=rows * columns, rows=rows, columns=columns))


def matmul(m: int, n: int, k: int) -> K.Kernel:
    return parse_kernel(MATMUL.format(mn=m * n, mk=m * k, kn=k * n, m=m, n=n, k=k))


def sized(text: str, m: int, n: int) -> K.Kernel:
    return parse_kernel(text.format(mn=m * n, m=m, n=n))


def run(kernel: K.Kernel, inputs: Sequence[Array]) -> Array:
    """The first parameter after the kernel ran by both interpreters, which must agree."""
    verify_kernel(kernel)
    (size,) = kernel.params[0].shape
    names = [p.name for p in kernel.params[1:]]
    out = np.zeros(size, np.float32)
    memory = dict(zip(names, (x.reshape(-1) for x in inputs), strict=True))
    interpret_kernel(kernel, memory | {kernel.params[0].name: out})
    program = linearize(kernel, GPU)
    again = np.zeros(size, np.float32)
    interpret_linear(program, [again, *memory.values()])
    np.testing.assert_allclose(again, out, rtol=1e-5, atol=1e-6)
    return out


def random(*shape: int) -> Array:
    return np.random.default_rng(math.prod(shape)).normal(size=shape).astype(np.float32)


def softmax_of(x: Array) -> Array:
    e: Array = np.exp(x - x.max(1, keepdims=True))
    e /= e.sum(1, keepdims=True)
    return e.reshape(-1)


def kinds(kernel: K.Kernel) -> dict[str, str]:
    return {s.var.name: s.kind for s in walk(kernel.body) if isinstance(s, K.Loop)}


def barriers(kernel: K.Kernel) -> int:
    return sum(isinstance(s, K.Barrier) for s in walk(kernel.body))


@pytest.mark.parametrize(("rows", "columns", "threads"), [(3, 64, 8), (2, 37, 16), (5, 700, 32)])
def test_rows_done_together(rows: int, columns: int, threads: int) -> None:
    kernel = apply(softmax(rows, columns), [Bind("i", "grid"), DistributeThreads("i", threads)])
    x = random(rows, columns)
    np.testing.assert_allclose(run(kernel, [x]), softmax_of(x), rtol=1e-5)
    # Elements of `e` are used by the thread that made them: only reductions meet.
    assert barriers(kernel) == (2 if threads <= 16 else 4)


@pytest.mark.parametrize("threads", [4, 32])
def test_several_rows_in_a_block(threads: int) -> None:
    opts: list[Opt] = [Bind("i", "grid"), Split("i", 3, "mask"), Bind("ii", "thread")]
    kernel = apply(softmax(7, 50), [*opts, DistributeThreads("ii", threads)])
    x = random(7, 50)
    np.testing.assert_allclose(run(kernel, [x]), softmax_of(x), rtol=1e-5)
    assert block_size(linearize(kernel, GPU)) == (3, threads)


def test_columns_done_together() -> None:
    opts: list[Opt] = [Bind("j", "grid"), Split("j", 8, "mask"), Bind("ji", "thread")]
    kernel = apply(sized(COLUMNS, 50, 30), [*opts, DistributeThreads("ji", 4, True)])
    x = random(50, 30)
    np.testing.assert_allclose(run(kernel, [x]), x.sum(0), rtol=1e-4, atol=1e-5)
    assert block_size(linearize(kernel, GPU)) == (4, 8)


def test_a_whole_kernel_done_together() -> None:
    text = """kernel k(out: f32[50] global, x: f32[50] global)
  alloc s: f32[] private
  s[] = 0.0:f32
  loop i serial 50
    s[] add= x[i]
  loop j serial 50
    out[j] = div(x[j], s[])
"""
    kernel, x = apply(parse_kernel(text), [DistributeThreads("", 16)]), random(50)
    np.testing.assert_allclose(run(kernel, [x]), x / x.sum(), rtol=1e-4)


def test_a_race_is_found_where_a_barrier_is_left_out() -> None:
    text = print_kernel(apply(softmax(2, 64), [Bind("i", "grid"), DistributeThreads("i", 32)]))
    assert text.count("barrier") == 4
    start = -1
    for _ in range(4):
        start = text.index("barrier", start + 1)
        without = parse_kernel(text[:start] + "block" + text[start + len("barrier") :])
        with pytest.raises(Exception, match="a race"):
            run(without, [random(2, 64)])


def test_threads_do_not_exchange_parameters() -> None:
    text = """kernel k(out: f32[50] global, x: f32[50] global)
  loop i serial 50
    out[i] = x[i]
  loop j serial 49
    out[49 - j] = out[49 - j]
"""
    with pytest.raises(IllegalOpt, match="exchange out, a parameter"):
        apply(parse_kernel(text), [DistributeThreads("", 16)])


@pytest.mark.parametrize(
    "opt", [DistributeThreads("i", 12), DistributeThreads("a", 8), DistributeThreads("none", 8)]
)
def test_what_cannot_be_done_together(opt: Opt) -> None:
    with pytest.raises(IllegalOpt):
        apply(softmax(2, 64), [Bind("i", "grid"), opt])


def test_a_row_buffer_goes_away() -> None:
    kernel, x = apply(softmax(3, 20), [Inline("e")]), random(3, 20)
    assert not any(isinstance(s, K.Alloc) and s.buf.shape for s in walk(kernel.body))
    np.testing.assert_allclose(run(kernel, [x]), softmax_of(x), rtol=1e-5)
    with pytest.raises(IllegalOpt, match="not made element by element"):
        apply(softmax(3, 20), [Inline("s")])
    with pytest.raises(IllegalOpt, match="no such buffer"):
        apply(softmax(3, 20), [Inline("q")])


def test_team_memory_is_used_again() -> None:
    text = """kernel k(out: f32[60] global, x: f32[60] global)
  alloc a: f32[60] team
  loop i serial 60
    a[i] = x[i]
  alloc b: f32[60] team
  loop j serial 60
    b[j] = a[59 - j]
  alloc c: f32[60] team
  loop k serial 60
    c[k] = add(b[59 - k], 1.0:f32)
  loop l serial 60
    out[l] = c[59 - l]
"""
    kernel, x = apply(parse_kernel(text), [DistributeThreads("", 8)]), random(60)
    fewer = apply(kernel, [ReuseShared()])
    sizes = [
        [s.buf.name for s in walk(one.body) if isinstance(s, K.Alloc)] for one in (kernel, fewer)
    ]
    assert sizes == [["a", "b", "c"], ["a", "b"]]
    np.testing.assert_allclose(run(fewer, [x]), x[::-1] + 1)
    assert barriers(kernel) == 3
    with pytest.raises(IllegalOpt, match="no threads"):
        apply(parse_kernel(text), [ReuseShared()])


def tiled(m: int, n: int, k: int) -> list[Opt]:
    """Tiles of 8 x 8 by 4 x 4 threads, by hand."""
    return [
        *(Bind(name, "grid") for name in "ij"),
        *(Split(name, 8, "mask") for name in "ij"),
        *(Split(f"{name}i", 2) for name in "ij"),
        Reorder(("io", "jo", "iio", "jio", "iii", "jii")),
        *(Bind(name, "thread") for name in ("iio", "jio")),
        *(Bind(name, "unroll") for name in ("iii", "jii")),
        Split("k", 4, "zero"),
        Distribute(("iii", "jii")),
        Stage("ko", "a", ("ki", "iio", "iii"), True),
        Stage("ko", "b", ("ki", "jio", "jii"), True),
    ]


@pytest.mark.parametrize("sizes", [(16, 8, 12), (19, 21, 13), (9, 8, 5)])
def test_operands_staged_by_all_threads(sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    kernel = apply(matmul(*sizes), tiled(*sizes))
    a, b = random(m, k), random(k, n)
    np.testing.assert_allclose(run(kernel, [a, b]), (a @ b).reshape(-1), rtol=1e-4, atol=1e-5)
    assert barriers(kernel) == 2
    program = linearize(kernel, GPU)
    assert block_size(program) == (4, 4)
    (sums,) = [s.buf for s in walk(kernel.body) if isinstance(s, K.Alloc) and s.buf.name == "s"]
    assert sums.shape == (2, 2)
    assert not any(inst.op == "local" and inst.attr[1] == "private" for inst in program.body)


@pytest.mark.parametrize("tail", ["mask", "skip"])
def test_a_last_round_that_is_not_full(tail: str) -> None:
    opts: list[Opt] = [Bind("i", "grid"), Split("i", 4, tail), Bind("ii", "thread")]
    kernel, x = apply(sized(TRANSPOSE, 6, 5), opts), random(5, 6)
    np.testing.assert_array_equal(run(kernel, [x]), x.T.reshape(-1))
    assert any(isinstance(s, K.If) for s in walk(kernel.body)) == (tail == "skip")


def test_zeros_are_added_to_sums_of_products_only() -> None:
    with pytest.raises(IllegalOpt, match="sums of products"):
        apply(sized(COLUMNS, 50, 30), [Split("i", 8, "zero")])


SCATTER = """kernel scatter(out: f32[600] global, at: i64[70] global, x: f32[420] global)
  loop i serial 600
    out[i] = 1.0:f32
  loop u serial 70
    loop v serial 6
      let pick 101 = at[u]
      out[v + 6*pick] add= x[6*u + v] if 99 - pick >= 0
"""


def scattered(at: Array, x: Array) -> Array:
    out = np.ones((101, 6), np.float32)
    np.add.at(out, at, x.reshape(70, 6))
    return out[:100].reshape(-1)


def test_a_scatter_becomes_one_nest() -> None:
    kernel = apply(
        parse_kernel(SCATTER), [Split("i", 6), FuseSiblings("ii", "v"), Bind("ii", "grid")]
    )
    at, x = np.random.default_rng(0).integers(0, 101, 70), random(420)
    np.testing.assert_allclose(run(kernel, [at, x]), scattered(at, x), rtol=1e-5)
    done = launches(parse_kernel(SCATTER))
    assert "thread" in kinds(done).values()
    np.testing.assert_allclose(run(done, [at, x]), scattered(at, x), rtol=1e-5)


@pytest.mark.parametrize("pair", [("ii", "u"), ("io", "v"), ("i", "v")])
def test_loops_that_stay_apart(pair: tuple[str, str]) -> None:
    with pytest.raises(IllegalOpt):
        apply(parse_kernel(SCATTER), [Split("i", 6), FuseSiblings(*pair)])


def launches(kernel: K.Kernel, target: Target = GPU) -> K.Kernel:
    """The kernel scheduled, and what a block takes checked against the target."""
    done, opts = schedule(kernel, target)
    program = linearize(done, target)
    assert opts
    assert math.prod(block_size(program)) <= target.threads
    assert team_bytes(program) <= target.shared_bytes
    return done


@pytest.mark.parametrize("sizes", [(64, 64, 16), (96, 40, 50), (33, 130, 7)])
def test_products_get_tiles_in_team_memory(sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    kernel = launches(matmul(*sizes))
    a, b = random(m, k), random(k, n)
    np.testing.assert_allclose(run(kernel, [a, b]), (a @ b).reshape(-1), rtol=1e-4, atol=1e-5)
    assert sum(isinstance(s, K.Alloc) and s.buf.space == "team" for s in walk(kernel.body)) == 2
    assert barriers(kernel) == (2 if k > 16 else 1)


CONV = """kernel conv(out: f32[{out}] global, x: f32[{x}] global, w: f32[{w}] global)
  loop o serial {o}
    loop y serial {h}
      loop q serial {h}
        alloc s: f32[] private
        s[] = 0.0:f32
        loop c serial {c}
          loop a serial 3
            loop b serial 3
              s[] add= mul(x[{hh}*c + {h}*y + q + {h}*a + b - {h} - 1 if \
y + a - 1 >= 0 & {h} - y - a >= 0 & q + b - 1 >= 0 & {h} - q - b >= 0], w[{c9}*o + 9*c + 3*a + b])
        out[{hh}*o + {h}*y + q] = s[]
"""


@pytest.mark.parametrize(("o", "c", "h"), [(32, 3, 7), (40, 2, 33), (64, 2, 14)])
def test_convolutions_get_tiles_in_team_memory(o: int, c: int, h: int) -> None:
    sizes = {"out": o * h * h, "x": c * h * h, "w": o * c * 9, "hh": h * h, "c9": c * 9}
    kernel = launches(parse_kernel(CONV.format(o=o, h=h, c=c, **sizes)))
    assert sum(isinstance(s, K.Alloc) and s.buf.space == "team" for s in walk(kernel.body)) == 2
    x, w = random(c, h, h), random(o, c, 3, 3)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    want = np.einsum("cyqab,ocab->oyq", windows, w)
    np.testing.assert_allclose(run(kernel, [x, w]), want.reshape(-1), rtol=1e-3, atol=1e-4)


def test_products_with_too_little_memory_go_without() -> None:
    kernel = launches(matmul(64, 64, 16), replace(GPU, shared_bytes=0))
    assert barriers(kernel) == 0
    assert "thread" in kinds(kernel).values()


def test_transposes_go_through_team_memory() -> None:
    kernel, x = launches(sized(TRANSPOSE, 70, 45)), random(45, 70)
    assert barriers(kernel) == 1
    np.testing.assert_array_equal(run(kernel, [x]), x.T.reshape(-1))


@pytest.mark.parametrize("target", [GPU, BLOCKS])
@pytest.mark.parametrize(("rows", "columns"), [(4, 1000), (40, 33), (2, 9000), (64, 96)])
def test_rows_stay_one_kernel(rows: int, columns: int, target: Target) -> None:
    kernel, x = launches(softmax(rows, columns), target), random(rows, columns)
    np.testing.assert_allclose(run(kernel, [x]), softmax_of(x), rtol=1e-4)
    assert barriers(kernel) in (2, 4)


def test_neighbours_in_memory_are_neighbours_in_the_block() -> None:
    kernel, x = launches(sized(COLUMNS, 100, 77)), random(100, 77)
    np.testing.assert_allclose(run(kernel, [x]), x.sum(0), rtol=1e-4, atol=1e-5)
    assert block_size(linearize(kernel, GPU))[-1] == GPU.warp


def test_a_condition_inside_iterations_that_are_written_out() -> None:
    text = """kernel k(out: f32[21] global, x: f32[21] global)
  loop i serial 21
    out[i] = add(x[i], 1.0:f32)
"""
    opts: list[Opt] = [Bind("i", "grid"), Split("i", 8, "skip"), Split("ii", 4)]
    opts += [Reorder(("io", "iii", "iio")), Bind("iii", "thread"), Bind("iio", "unroll")]
    kernel, x = apply(parse_kernel(text), opts), random(21)
    np.testing.assert_array_equal(run(kernel, [x]), x + 1)
    # Of the two written-out iterations the first one is always inside.
    assert sum(inst.op == "if" for inst in linearize(kernel, GPU).body) == 1


@pytest.mark.parametrize("shape", [(3, 5), (40, 30), (7, 300), (2, 3, 5, 700), (300, 3, 2), (1, 9)])
@pytest.mark.parametrize("blocks", [3, 1 << 20])
def test_a_thread_for_each_element(shape: tuple[int, ...], blocks: int) -> None:
    """The elements of an array that lies the other way round, so that no loops become one."""
    names, count = "abcd"[: len(shape)], math.prod(shape)
    steps = [math.prod(shape[at + 1 :]) for at in range(len(shape))]
    other = [math.prod(shape[:at]) for at in range(len(shape))]
    here = " + ".join(f"{step}*{name}" for step, name in zip(steps, names, strict=True))
    there = " + ".join(f"{step}*{name}" for step, name in zip(other, names, strict=True))
    lines = [f"{'  ' * (at + 1)}loop {names[at]} serial {shape[at]}" for at in range(len(shape))]
    head = f"kernel k(out: f32[{count}] global, x: f32[{count}] global)"
    body = f"{'  ' * (len(shape) + 1)}out[{here}] = add(x[{there}], x[{here}])"
    target = replace(GPU, max_blocks=blocks, threads=64, shared_bytes=0)
    kernel, x = launches(parse_kernel("\n".join([head, *lines, body])), target), random(count)
    turned = x.reshape(shape[::-1]).transpose().reshape(-1)
    np.testing.assert_array_equal(run(kernel, [x]), turned + x)


def test_large_kernels_stay_within_the_blocks_of_a_launch() -> None:
    text = """kernel k(out: f32[100000] global)
  loop i serial 100000
    out[i] = cast.f32(index(i))
"""
    kernel = launches(parse_kernel(text), replace(GPU, max_blocks=10))
    grid = [s for s in walk(kernel.body) if isinstance(s, K.Loop) and s.kind == "grid"]
    assert math.prod(loop.var.extent for loop in grid) <= 10
    np.testing.assert_array_equal(run(kernel, []), np.arange(100000))


SHORT_LINES = """kernel conv(out: f32[8192] global, x: f32[1024] global, w: f32[512] global)
  loop n serial 4
    loop o serial 32
      loop h serial 8
        loop i serial 8
          alloc s: f32[] private
          s[] = 0.0:f32
          loop c serial 4
            loop t serial 4
              s[] add= mul(x[256*n + 64*c + 8*h + i + t - 3 if i + t - 3 >= 0], w[16*o + 4*c + t])
          out[2048*n + 64*o + 8*h + i] = s[]
"""


def test_short_lines_fill_a_warp() -> None:
    kernel, _ = schedule(parse_kernel(SHORT_LINES), GPU)
    assert math.prod(block_size(linearize(kernel, GPU))) >= GPU.warp
    x, w = random(4, 4, 8, 8), random(32, 4, 4)
    padded = np.pad(x, ((0, 0), (0, 0), (0, 0), (3, 0)))
    windows = np.stack([padded[..., t : t + 8] for t in range(4)], -1)
    wanted = np.einsum("nchit,oct->nohi", windows, w).reshape(-1)
    np.testing.assert_allclose(run(kernel, [x, w]), wanted, rtol=1e-4, atol=1e-5)


def test_the_last_thread_loop_fills_the_block() -> None:
    text = """kernel k(out: f32[16384] global, x: f32[16384] global)
  loop a serial 2048
    loop b serial 2
      loop c serial 2
        loop d serial 2
          out[8*a + b + 2*c + 4*d] = x[8*a + 4*b + 2*c + d]
"""
    kernel, _ = schedule(parse_kernel(text), GPU)
    assert math.prod(block_size(linearize(kernel, GPU))) == 256
    x = random(2048, 2, 2, 2)
    np.testing.assert_array_equal(run(kernel, [x]), x.transpose(0, 3, 2, 1).reshape(-1))


def test_few_columns_have_more_threads_each() -> None:
    kernel, _ = schedule(sized(COLUMNS, 4096, 3), GPU)
    assert math.prod(block_size(linearize(kernel, GPU))) >= GPU.warp * 2
    x = random(4096, 3)
    np.testing.assert_allclose(run(kernel, [x]), x.sum(0), rtol=1e-3, atol=1e-3)

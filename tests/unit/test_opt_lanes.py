"""The policy for lanes: tiles over lines of an image, transpositions, a CPU that poses as a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.kernel.text import parse_kernel
from gpu.compiler.ir.kernel.tree import reads as reads_of
from gpu.compiler.ir.kernel.tree import walk
from gpu.compiler.ir.kernel.verify import verify_kernel
from gpu.compiler.ir.linear import Program, block_size, team_bytes
from gpu.compiler.ir.linear.interp import interpret_linear
from gpu.compiler.lower.linearize import linearize
from gpu.compiler.lower.vectorize_access4 import MANY_LOADS
from gpu.compiler.opt.opts import Bind, Distribute, Opt, Split, Stage, apply
from gpu.compiler.opt.policy.choose import schedule
from gpu.compiler.opt.policy.cpu import dot_products, register_tiling
from gpu.compiler.opt.policy.cpu.column_reduce import FAR_BYTES
from gpu.compiler.render.wgsl.renderer import WGSLLimits, WGSLRenderer, wgsl_target
from gpu.compiler.targets.cpu import host_target
from unit.lane_kernels import LANES, TRANSPOSE, random, result

POSING = wgsl_target(WGSLLimits(is_cpu=True), has_f16=False)
# The same where memory is accessed four words at a time.
FOURS = wgsl_target(WGSLLimits(is_cpu=True, quads=True), has_f16=False)

# Three taps along lines of 24, of which the outer two may lie outside.
CONVOLUTION = """kernel convolution(out: f32[768] global, x: f32[288] global, w: f32[72] global)
  loop o serial 8
    loop h serial 4
      loop i serial 24
        alloc s: f32[] private
        s[] = 0.0:f32
        loop c serial 3
          loop t serial 3
            s[] add= mul(x[96*c + 24*h + i + t - 1 if i + t - 1 >= 0 & 24 - i - t >= 0], w[9*o + 3*c + t])
        out[96*o + 24*h + i] = s[]
"""  # noqa: E501
# The gradient of that, with lines of a length of one's own: two taps, no padding.
WEIGHTS = """kernel weights(out: f32[32] global, g: f32[{many}] global, x: f32[{more}] global)
  loop o serial 8
    loop c serial 2
      loop t serial 2
        alloc s: f32[] private
        s[] = 0.0:f32
        loop h serial 4
          loop i serial {n}
            s[] add= mul(g[{area}*o + {n}*h + i], x[{wide}*c + {n}*h + h + i + t])
        out[4*o + 2*c + t] = s[]
"""
SOFTMAX = """kernel softmax(out: f32[{size}] global, x: f32[{size}] global)
  loop i serial {rows}
    alloc m: f32[] private
    m[] = -inf:f32
    loop a serial {columns}
      m[] max= x[{columns}*i + a]
    alloc s: f32[] private
    s[] = 0.0:f32
    loop c serial {columns}
      s[] add= exp(sub(x[{columns}*i + c], m[]))
    loop d serial {columns}
      out[{columns}*i + d] = div(exp(sub(x[{columns}*i + d], m[])), s[])
"""
MATMUL = """kernel matmul(out: f32[{size}] global, a: f32[{size}] global, b: f32[{size}] global)
  loop i serial {n}
    loop j serial {n}
      alloc s: f32[] private
      s[] = 0.0:f32
      loop k serial {n}
        s[] add= mul(a[{n}*i + k], b[{n}*k + j])
      out[{n}*i + j] = s[]
"""

# Each row makes what its sum reads, and what is written once more.
ROWS = """kernel rows(out: f32[{size}] global, x: f32[{size}] global, y: f32[{size}] global)
  loop i serial {rows}
    alloc t: f32[{n}] team
    loop a serial {n}
      t[a] = mul(x[{n}*i + a], x[{n}*i + a])
    alloc s: f32[] private
    block
      s[] = 0.0:f32
      loop b serial {n}
        s[] add= mul(t[b], y[{n}*i + b])
    loop c serial {n}
      out[{n}*i + c] = add(t[c], s[])
"""
SHIFTED = """kernel shifted(out: f32[{size}] global, x: f32[{size}] global)
  loop i serial {n}
    out[i] = x[i + 3]
"""


def by_opts(text: str, opts_of: Callable[[K.Kernel], Iterable[Opt]]) -> tuple[K.Kernel, list[Opt]]:
    """A kernel after transformations that it gets where how often its loops run is not known."""
    kernel = parse_kernel(text)
    opts = list(opts_of(kernel))
    return apply(kernel, opts), opts


def in_registers(kernel: K.Kernel) -> Iterable[Opt]:
    found = register_tiling.match(kernel)
    assert found is not None
    return register_tiling.tile(found, LANES)


def in_dots(kernel: K.Kernel) -> Iterable[Opt]:
    found = dot_products.match(kernel, LANES)
    assert found is not None
    return dot_products.tile(found)


def test_tiles_have_vectors_of_several_lines() -> None:
    kernel, opts = by_opts(CONVOLUTION, in_registers)
    # 24 is three vectors: a tile of two along the line would compute a fourth.
    assert Split("h", 2) in opts and Split("i", 8) in opts
    assert any(isinstance(opt, Stage) for opt in opts)
    x, w = random(3, 4, 24), random(8, 3, 3)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1)))
    windows = np.stack([padded[:, :, t : t + 24] for t in range(3)], -1)
    wanted = np.einsum("chit,oct->ohi", windows, w).reshape(-1)
    np.testing.assert_allclose(result(kernel, LANES, x, w), wanted, rtol=1e-4, atol=1e-5)


def test_packed_panels_need_no_masks_where_they_are_read() -> None:
    lines = CONVOLUTION.replace("serial 24", "serial 22")
    kernel, opts = by_opts(lines, in_registers)
    assert any(isinstance(opt, Stage) for opt in opts)
    panel = next(s.buf for s in walk(kernel.body) if isinstance(s, K.Alloc) and s.buf.name == "xs")
    reads = [mask for buf, _, mask in reads_of(kernel.body) if buf is panel]
    assert reads and not any(mask.constraints for mask in reads)
    x, w = random(3, 4, 24), random(8, 3, 3)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1)))
    windows = np.stack([padded[:, :, t : t + 22] for t in range(3)], -1)
    wanted = np.zeros((8, 4, 24), np.float32)
    wanted[:, :, :22] = np.einsum("chit,oct->ohi", windows, w)
    np.testing.assert_allclose(
        result(kernel, LANES, x, w), wanted.reshape(-1), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    ("n", "zeros"),
    [(8, False), (9, False), (11, True), (16, False), (26, True), (61, True), (77, False)],
)
def test_the_last_vector_of_a_dot_product_is_filled_with_zeros(n: int, zeros: bool) -> None:
    many, more = 8 * 4 * n, 2 * 4 * (n + 1)
    text = WEIGHTS.format(n=n, area=4 * n, wide=4 * (n + 1), many=many, more=more)
    kernel, opts = by_opts(text, in_dots)
    assert (Split("i", 8, "zero") in opts) == zeros
    g, x = random(8, 4, n), random(2, 4, n + 1)
    windows = np.stack([x[:, :, t : t + n] for t in range(2)], -1)
    wanted = np.einsum("ohi,chit->oct", g, windows).reshape(-1)
    np.testing.assert_allclose(result(kernel, LANES, g, x), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("cpu", ["x86-64", "x86-64-v3", "x86-64-v4", "neoverse-v2"])
@pytest.mark.parametrize(("rows", "n"), [(5, 8), (5, 16), (3, 32), (2, 7), (8, 40), (4, 64)])
def test_rows_that_make_what_they_sum_are_not_written_out(cpu: str, rows: int, n: int) -> None:
    """What a row makes is memory, of which loops that are written out have none."""
    target = host_target(cpu)
    kernel, _ = schedule(parse_kernel(ROWS.format(rows=rows, n=n, size=rows * n)), target)
    x, y = random(rows, n), random(rows, n, 1)[..., 0]
    squares = x * x
    wanted = squares + (squares * y).sum(1, keepdims=True)
    got = result(kernel, target, x, y).reshape(rows, n)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_loops_that_read_the_same_memory_are_inside_the_tiles() -> None:
    text = WEIGHTS.format(n=16, area=64, wide=68, many=512, more=136)
    kernel, _ = by_opts(text, in_dots)
    counted = [
        s.var.name for s in walk(kernel.body) if isinstance(s, K.Loop) and s.kind == "serial"
    ]
    assert counted.index("oo") < counted.index("t")


def test_lanes_of_a_cpu_share_rows_that_are_gone_through_several_times() -> None:
    kernel, _ = schedule(parse_kernel(SOFTMAX.format(size=3 * 512, rows=3, columns=512)), POSING)
    assert block_size(linearize(kernel, POSING)) == (64,)
    x = random(3, 512)
    e = np.exp(x - x.max(1, keepdims=True))
    wanted = (e / e.sum(1, keepdims=True)).reshape(-1)
    np.testing.assert_allclose(result(kernel, POSING, x), wanted, rtol=1e-4)


COLUMNS = """\
kernel columns(p0: f32[{width}] global, p1: f32[{size}] global)
  loop c serial {width}
    alloc s: f32[] private
    s[] = 0.0:f32
    loop r serial {rows}
      s[] add= p1[c + {width}*r]
    alloc m: f32[] private
    m[] = -inf:f32
    loop q serial {rows}
      m[] max= sub(p1[c + {width}*q], s[])
    p0[c] = mul(m[], 2.0:f32)
"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [256, 784, 999])
def test_reductions_of_columns_walk_along_rows(width: int) -> None:
    rows = -(-FAR_BYTES // (4 * width))  # just so many that a core's cache does not hold them
    text = COLUMNS.format(width=width, rows=rows, size=rows * width)
    kernel, opts = schedule(parse_kernel(text), LANES)
    verify_kernel(kernel)
    (sunk,) = (opt for opt in opts if isinstance(opt, Distribute))
    masked = any(isinstance(opt, Split) and opt.tail == "mask" for opt in opts)
    assert len(sunk.axes) == 3 and masked == (width == 999)
    x = np.random.default_rng(0).integers(-9, 9, (rows, width)).astype(np.float32)
    wanted = 2 * (x - x.sum(0)).max(0)
    np.testing.assert_array_equal(result(kernel, LANES, x), wanted)


def test_lanes_of_a_cpu_have_tiles_of_products() -> None:
    kernel, opts = schedule(parse_kernel(MATMUL.format(size=64 * 64, n=64)), POSING)
    program = linearize(kernel, POSING)
    assert not block_size(program)
    assert {opt.axis for opt in opts if isinstance(opt, Bind) and opt.kind == "grid"} == {
        "io",
        "jo",
    }
    loads = sum(inst.op == "load" for inst in program.body)
    products = sum(inst.op == "alu" and inst.attr[0] == "fma" for inst in program.body)
    assert (products, loads) == (16 * 32, 16 + 32)
    a, b = random(64, 64), random(64, 64)
    np.testing.assert_allclose(
        result(kernel, POSING, a, b), (a @ b).reshape(-1), rtol=1e-3, atol=1e-4
    )


def accesses(program: Program, op: str) -> list[int]:
    """The lanes of each load or store of a parameter."""
    insts = [i for i in program.body if i.op == op and i.args[0].op == "param"]
    return [(i if op == "load" else i.args[2]).lanes for i in insts]


@pytest.mark.parametrize("n", [64, 48])
def test_products_take_four_steps_of_operands_read_by_fours(n: int) -> None:
    kernel, _ = schedule(parse_kernel(MATMUL.format(size=n * n, n=n)), FOURS)
    program = linearize(kernel, FOURS)
    assert set(accesses(program, "store")) == set(accesses(program, "load")) == {4}
    products = sum(inst.op == "alu" and inst.attr[0] == "fma" for inst in program.body)
    assert (products, len(accesses(program, "load"))) == (16 * 16 * 4, 16 + 16)
    a, b = random(n, n), random(n, n)
    np.testing.assert_allclose(
        result(kernel, FOURS, a, b), (a @ b).reshape(-1), rtol=1e-3, atol=1e-4
    )


def test_transpositions_by_fours_are_squares_in_registers() -> None:
    kernel, _ = schedule(parse_kernel(TRANSPOSE.format(size=96 * 64, m=96, n=64)), FOURS)
    program = linearize(kernel, FOURS)
    assert set(accesses(program, "store")) == set(accesses(program, "load")) == {4}
    x = random(64, 96)
    np.testing.assert_array_equal(result(kernel, FOURS, x), x.T.reshape(-1))


def test_halves_are_stored_by_fours() -> None:
    text = """kernel double(out: f16[512] global, x: f16[512] global)
  loop i serial 512
    out[i] = add(x[i], x[i])
"""
    for has_f16 in (True, False):
        target = wgsl_target(WGSLLimits(is_cpu=True, quads=True), has_f16)
        kernel, _ = schedule(parse_kernel(text), target)
        stores = accesses(linearize(kernel, target), "store")
        assert set(stores) == {4}, stores
        x, out = random(512).astype(np.float16), np.zeros(512, np.float16)
        interpret_linear(linearize(kernel, target), [out, x])
        np.testing.assert_array_equal(out, x + x)


@pytest.mark.parametrize(("rows", "columns"), [(16, 512), (40, 256), (64, 128)])
def test_rows_that_threads_share_are_read_by_fours(rows: int, columns: int) -> None:
    text = SOFTMAX.format(size=rows * columns, rows=rows, columns=columns)
    kernel, _ = schedule(parse_kernel(text), FOURS)
    program = linearize(kernel, FOURS)
    assert set(accesses(program, "load")) == {4}
    x = random(rows, columns)
    e = np.exp(x - x.max(1, keepdims=True))
    wanted = (e / e.sum(1, keepdims=True)).reshape(-1)
    np.testing.assert_allclose(result(kernel, FOURS, x), wanted, rtol=1e-4)


def test_what_is_loaded_seldom_is_not_copied() -> None:
    text = SHIFTED.format(n=MANY_LOADS - 1, size=MANY_LOADS + 8)
    program = linearize(schedule(parse_kernel(text), FOURS)[0], FOURS)
    assert set(accesses(program, "load")) == {1}


@pytest.mark.parametrize("size", [0, 1, 2, 3])
def test_places_of_which_no_part_is_known_choose_from_a_quad(size: int) -> None:
    n = 3 * MANY_LOADS + size
    program = linearize(schedule(parse_kernel(SHIFTED.format(n=n, size=n + 8)), FOURS)[0], FOURS)
    assert set(accesses(program, "load")) == {4}
    x, out = random(-(-(n + 8) // 4) * 4), np.zeros(n + 8, np.float32)
    interpret_linear(program, [out, x])
    np.testing.assert_array_equal(out[:n], x[3 : n + 3])


@pytest.mark.parametrize(("n", "ends"), [(64, False), (72, True)])
def test_no_invocation_ends_early_where_all_have_something_to_do(n: int, ends: bool) -> None:
    text = f"kernel k(out: f32[{n}] global)\n  loop i grid {n}\n    out[i] = 1.0:f32\n"
    source = WGSLRenderer(WGSLLimits(), has_f16=False).render(
        linearize(parse_kernel(text), wgsl_target(WGSLLimits(), has_f16=False))
    )
    assert ("return;" in source) == ends


def test_tiles_take_the_memory_that_a_gpu_has_by_webgpu() -> None:
    renderer = WGSLRenderer(WGSLLimits(), has_f16=False)
    kernel, _ = schedule(parse_kernel(MATMUL.format(size=1 << 20, n=1024)), renderer.target)
    program = linearize(kernel, renderer.target)
    assert WGSLLimits().shared_bytes // 2 <= team_bytes(program) <= WGSLLimits().shared_bytes
    assert "var<workgroup>" in renderer.render(program)

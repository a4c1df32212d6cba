"""The policy for lanes: tiles over lines of an image, transpositions, a CPU that poses as a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.compiler.ir.kernel.interp import interpret_kernel
from gpu.compiler.ir.kernel.text import parse_kernel
from gpu.compiler.ir.kernel.verify import verify_kernel
from gpu.compiler.ir.linear import Program, block_size, team_bytes
from gpu.compiler.ir.linear.interp import interpret_linear
from gpu.compiler.lower.linearize import linearize
from gpu.compiler.lower.vectorize_access4 import MANY_LOADS
from gpu.compiler.opt.opts import Bind, Distribute, Fuse, Opt, Split, apply
from gpu.compiler.opt.policy.choose import schedule
from gpu.compiler.opt.policy.cpu import column_reduce
from gpu.compiler.render.wgsl.renderer import WGSLLimits, WGSLRenderer, wgsl_target
from gpu.compiler.targets.cpu import host_target
from gpu.core.errors import IllegalOpt
from unit.lane_kernels import LANES, TRANSPOSE, random, result

POSING = wgsl_target(WGSLLimits(is_cpu=True), has_f16=False)
# The same where memory is accessed four words at a time.
FOURS = wgsl_target(WGSLLimits(is_cpu=True, quads=True), has_f16=False)

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
def test_reductions_of_columns_walk_along_rows(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    far = 1 << 18
    monkeypatch.setattr(column_reduce, "FAR_BYTES", far)
    rows = -(-far // (4 * width))
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


SUMS = """kernel sums(out: f32[{size}] global, x: f32[96] global)
  loop i serial 6
    loop j serial 16
      out[{index}] add= x[16*i + j]
"""
LANES_I, LANES_J = Bind("i", "vector"), Bind("j", "vector")


@pytest.mark.parametrize(
    ("index", "opts", "is_legal"),
    [
        *(("j", [LANES_I], True), ("j", [LANES_J], True), ("j", [LANES_I, LANES_J], True)),
        *(("2*j + 1", [LANES_J], True), ("16*i + j", [LANES_J], True), ("i", [LANES_J], True)),
        *(("16*i + j", [Fuse("i", "j"), LANES_I], True), ("0", [Fuse("i", "j"), LANES_I], True)),
        *(("j", [Fuse("i", "j"), LANES_I], False), ("i", [Fuse("i", "j"), LANES_I], False)),
        *(("j % 8", [LANES_J], False), ("j // 4", [LANES_J], False), ("i + j", [LANES_J], True)),
        *(("j", [LANES_I, LANES_J, Fuse("i", "j")], False),),
        *(("i + j", [LANES_I, LANES_J, Fuse("i", "j")], False),),
        *(("16*i + j", [LANES_I, LANES_J, Fuse("i", "j")], True),),
        *(("0", [LANES_I, LANES_J, Fuse("i", "j")], True),),
        *(("j % 8", [Bind("j", "unroll")], True),),
    ],
)
def test_lanes_add_to_one_element_or_each_to_its_own(
    index: str, opts: list[Opt], is_legal: bool
) -> None:
    kernel = parse_kernel(SUMS.format(size=96, index=index))
    if not is_legal:
        with pytest.raises(IllegalOpt, match=r"write the same elements|meet in elements"):
            apply(kernel, opts)
        return
    x, wanted, got = random(96), np.zeros(96, np.float32), np.zeros(96, np.float32)
    interpret_kernel(kernel, {"out": wanted, "x": x})
    done = apply(kernel, opts)
    if len([opt for opt in opts if isinstance(opt, Bind)]) == 1 or isinstance(opts[-1], Fuse):
        interpret_linear(linearize(done, LANES), [got, x])
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)

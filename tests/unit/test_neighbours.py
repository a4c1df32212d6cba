"""Elements side by side that a thread of a GPU moves at once, and rows that it reads once."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.backends.python.device import BLOCKS
from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.kernel.interp import interpret_kernel
from gpu.compiler.ir.kernel.text import parse_kernel
from gpu.compiler.ir.kernel.tree import reads
from gpu.compiler.ir.kernel.verify import verify_kernel
from gpu.compiler.ir.linear import Inst, Program, block_size
from gpu.compiler.ir.linear.interp import interpret_linear
from gpu.compiler.ir.linear.text import parse_linear, print_linear
from gpu.compiler.ir.linear.verify import verify_linear
from gpu.compiler.lower.vectorize_access import join
from gpu.compiler.opt.opts import CacheRow, Split, UniformMask, apply
from gpu.compiler.render.cstyle.cuda import CUDARenderer
from gpu.compiler.render.llvm.amdgcn import AMDRenderer
from gpu.compiler.render.llvm.ptx import PTXRenderer
from gpu.compiler.targets import Target
from gpu.compiler.toolchain.amdgcn import AMDCompiler
from gpu.compiler.toolchain.nvptx import generate_ptx
from gpu.compiler.toolchain.nvrtc import NvBinary, NvrtcCompiler
from gpu.core.errors import IllegalOpt
from unit.amdgcn import lanes as amd_lanes
from unit.cuda.lanes import run_llvm, run_nvrtc
from unit.lane_kernels import GPU, lowered

Array = np.ndarray[Any, Any]

ADD = """kernel add(out: {t}[{n}] global, x: {t}[{m}] global, y: {t}[{n}] global)
  loop i serial {n}
    out[i] = add(x[{at}], y[i])
"""
SOFTMAX = """kernel softmax(out: {t}[{size}] global, x: {t}[{size}] global)
  loop i serial {rows}
    alloc m: f32[] private
    m[] = -inf:f32
    loop a serial {columns}
      m[] max= cast.f32(x[{columns}*i + a])
    alloc e: f32[{columns}] team
    loop b serial {columns}
      e[b] = exp(sub(cast.f32(x[{columns}*i + b]), m[]))
    alloc s: f32[] private
    s[] = 0.0:f32
    loop c serial {columns}
      s[] add= e[c]
    loop d serial {columns}
      out[{columns}*i + d] = {last}
"""


def add(n: int, at: str = "i", t: str = "f32", m: int = 0) -> K.Kernel:
    return parse_kernel(ADD.format(t=t, n=n, m=m or n, at=at))


def softmax(rows: int, columns: int, t: str = "f32") -> K.Kernel:
    last = "div(e[d], s[])" if t == "f32" else f"cast.{t}(div(e[d], s[]))"
    text = SOFTMAX.format(t=t, size=rows * columns, rows=rows, columns=columns, last=last)
    return parse_kernel(_plain(text, t))


def _plain(text: str, t: str) -> str:
    """Without casts of what has the type already."""
    return re.sub(r"cast\.f32\((x\[[^\]]*\])\)", r"\1", text) if t == "f32" else text


def moved(program: Program, op: str) -> list[int]:
    """How many elements each access to a parameter moves."""
    found = (inst for inst in program.body if inst.op == op and inst.args[0].op == "param")
    return [inst.lanes if op == "load" else inst.args[2].lanes for inst in found]


def random(*shape: int) -> Array:
    return np.random.default_rng(math.prod(shape)).normal(size=shape).astype(np.float32)


LARGE = 1 << 19


@pytest.mark.parametrize(
    ("at", "t", "lanes"),
    [
        ("i", "f32", 4), ("i", "f16", 8), ("i", "u8", 16), ("i", "f64", 2),
        ("i + 4", "f32", 4), ("i + 2", "f32", 2), ("i + 1", "f32", 1), ("2*i", "f32", 1),
        ("7 - (i % 8) + i - (i % 8)", "f32", 1), ("0", "f32", 4), ("i // 1024", "f32", 4),
    ],
)  # fmt: skip
def test_a_thread_has_as_many_neighbours_as_fit_an_access(at: str, t: str, lanes: int) -> None:
    program = lowered(add(LARGE, at, t, 2 * LARGE + 8))
    assert set(moved(program, "store")) == {lanes}
    assert max(moved(program, "load")) == lanes


def test_few_elements_get_a_thread_each() -> None:
    assert set(moved(lowered(add(4096)), "store")) == {1}


@pytest.mark.parametrize("at", ["i", "i + 2", "i // 1024"])
def test_sums_of_neighbours(at: str) -> None:
    x, y, out = random(LARGE + 8), random(LARGE), np.zeros(LARGE, np.float32)
    interpret_linear(lowered(add(LARGE, at, m=LARGE + 8)), [out, x, y])
    index = eval(at, {"i": np.arange(LARGE)})
    np.testing.assert_array_equal(out, x[index] + y)


@pytest.mark.parametrize(
    ("rows", "columns", "t"), [(5, 8192, "f32"), (600, 1024, "f16"), (1001, 1024, "f32")]
)
def test_rows_are_read_once_and_written_once(rows: int, columns: int, t: str) -> None:
    kernel = softmax(rows, columns, t)
    program, lanes = lowered(kernel), 16 // kernel.params[0].dtype.itemsize
    threads = block_size(program)[-1]
    for op in ("load", "store"):
        assert moved(program, op) == [lanes] * (columns // threads // lanes)
    if rows > 100:
        return
    x, out = random(rows, columns), np.zeros(rows * columns, np.float32)
    interpret_linear(program, [out, x.reshape(-1)])
    powers = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(out, (powers / powers.sum(1, keepdims=True)).ravel(), rtol=1e-5)


def test_rows_that_are_no_whole_accesses_go_one_by_one() -> None:
    program = lowered(softmax(64, 1026))
    assert set(moved(program, "load")) == set(moved(program, "store")) == {1}


def test_the_row_that_loops_share_is_held() -> None:
    kernel, x = softmax(3, 40), random(3, 40)
    held = apply(kernel, [CacheRow("i", "x")])
    verify_kernel(held)
    out, again = np.zeros(120, np.float32), np.zeros(120, np.float32)
    interpret_kernel(kernel, {"out": out, "x": x.reshape(-1)})
    interpret_kernel(held, {"out": again, "x": x.reshape(-1)})
    np.testing.assert_array_equal(out, again)


@pytest.mark.parametrize(
    "change", [("x[40*i + b]", "x[40*i + 39 - b]"), ("x[40*i + b]", "x[39*i + b]"), ("", "")]
)
def test_rows_that_differ_are_not_held(change: tuple[str, str]) -> None:
    text = _plain(SOFTMAX.format(t="f32", size=120, rows=3, columns=40, last="e[d]"), "f32")
    kernel = parse_kernel(text.replace(*change) if change[0] else text)
    with pytest.raises(IllegalOpt, match="do not read one row of"):
        apply(kernel, [CacheRow("i", "x" if change[0] else "out")])


# Conditions.

JOINED = """kernel joined(out: {t}[{size}] global, x: {t}[{left}] global, y: {t}[{right}] global)
  loop i serial {rows}
    loop j serial {n}
      out[{n}*i + j] = add(x[{a}*i + j if {a} - 1 - j >= 0], y[{b}*i + j - {a} if j - {a} >= 0])
"""


def joined(rows: int, a: int, b: int, t: str = "f32") -> K.Kernel:
    """`x` of a columns with `y` of b columns behind them."""
    sizes = {"size": rows * (a + b), "left": rows * a, "right": rows * b}
    return parse_kernel(JOINED.format(t=t, rows=rows, a=a, b=b, n=a + b, **sizes))


@pytest.mark.parametrize(
    ("a", "b", "t", "lanes"),
    [(512, 1024, "f32", 4), (510, 1026, "f32", 2), (511, 1025, "f32", 1), (512, 1024, "f16", 8),
     (8, 1528, "f16", 8), (4, 1532, "f16", 4)],
)  # fmt: skip
def test_what_is_put_together_moves_whole_accesses(a: int, b: int, t: str, lanes: int) -> None:
    program = lowered(joined(512, a, b, t))
    assert set(moved(program, "load")) == set(moved(program, "store")) == {lanes}


@given(
    st.integers(1, 40), st.integers(1, 80), st.integers(1, 4), st.integers(200, 400),
    st.sampled_from([GPU, BLOCKS]),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_any_two_put_together(a: int, b: int, scale: int, rows: int, target: Target) -> None:
    a, b = a * scale, b * scale
    x, y, out = random(rows, a), random(rows, b), np.zeros(rows * (a + b), np.float32)
    interpret_linear(lowered(joined(rows, a, b), target), [out, x.ravel(), y.ravel()])
    np.testing.assert_array_equal(out.reshape(rows, -1), np.concatenate([x, y], 1))


@pytest.mark.parametrize(("side", "lanes"), [(8, 4), (2, 2), (1, 1)])
def test_margins_are_whole_accesses(side: int, lanes: int) -> None:
    n = 512
    wide = n + 2 * side
    text = f"""kernel padded(out: f32[{wide * n}] global, x: f32[{n * n}] global)
  loop i serial {n}
    loop j serial {wide}
      out[{wide}*i + j] = x[{n}*i + j - {side} if j - {side} >= 0 & {n + side - 1} - j >= 0]
"""
    program = lowered(parse_kernel(text))
    assert set(moved(program, "load")) == set(moved(program, "store")) == {lanes}
    x, out = random(n, n), np.zeros(wide * n, np.float32)
    interpret_linear(program, [out, x.ravel()])
    np.testing.assert_array_equal(out.reshape(n, wide), np.pad(x, ((0, 0), (side, side))))


def test_conditions_on_which_neighbours_do_not_agree_stay() -> None:
    kernel = apply(joined(4, 6, 10), [Split("j", 4)])
    with pytest.raises(IllegalOpt, match=r"UniformMask\(axis='ji'\): not all iterations agree on"):
        apply(kernel, [UniformMask("ji")])
    agreed = apply(joined(4, 4, 12), [Split("j", 4), UniformMask("ji")])
    masks = {str(mask) for _, _, mask in reads(agreed.body)}
    assert masks == {"-jo >= 0", "jo - 1 >= 0"}


# Elements of several places side by side: channels, parts of complex numbers.

CHANNELS = """kernel channels(out: {t}[{size}] global, x: {t}[{most}] global)
  loop c serial {c}
    loop j serial {n}
      out[{to}] = x[{at}]
"""


def channels(c: int, n: int, t: str = "f32", first: int = 0, apart: bool = True) -> K.Kernel:
    """Channels of n pixels taken apart, or put together, from an element of x on."""
    near, far = f"{c}*j + c", f"{n}*c + j"
    to, at = (far, f"{near} + {first}") if apart else (near, f"{far} + {first}")
    return parse_kernel(
        CHANNELS.format(c=c, n=n, t=t, size=c * n, most=c * n + first, to=to, at=at)
    )


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize(
    ("c", "n", "t", "first", "lanes"),
    [(3, LARGE, "f32", 0, 4), (2, LARGE, "f16", 0, 8), (3, LARGE, "u8", 0, 8),
     (4, LARGE, "f64", 0, 2), (3, LARGE, "f32", 2, 2), (3, LARGE + 1, "f32", 0, 1)],
)  # fmt: skip
def test_a_thread_has_all_channels_of_its_pixels(
    apart: bool, c: int, n: int, t: str, first: int, lanes: int
) -> None:
    program = lowered(channels(c, n, t, first, apart))
    assert set(moved(program, "load")) == set(moved(program, "store")) == {lanes}


@given(
    st.integers(2, 5), st.integers(1, 40), st.sampled_from([1, 2, 1024]), st.integers(0, 4),
    st.booleans(), st.sampled_from([GPU, BLOCKS]),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_any_channels(
    c: int, pixels: int, scale: int, first: int, apart: bool, target: Target
) -> None:
    n = pixels * scale
    x, out = random(c * n + first), np.zeros(c * n, np.float32)
    interpret_linear(lowered(channels(c, n, "f32", first, apart), target), [out, x])
    shape = (n, c) if apart else (c, n)
    np.testing.assert_array_equal(out, x[first:].reshape(shape).T.ravel())


# Accesses that become one.


def straight(accesses: list[tuple[str, int, int]], scale: int) -> Program:
    """Loads and stores of one array that is written, each at `scale * i + place`, as they come."""
    lines, number, made = [], 10, [0]
    for kind, place, mask in accesses:
        lines += [
            f"    %{number} = const i64 {place}",
            f"    %{number + 1} = add i64 %4, %{number}",
        ]
        masked = ", %6" if mask else ""
        if kind == "load":
            lines.append(f"    %{number + 2} = load i32 %1, %{number + 1}{masked}")
            lines.append(f"    %{number + 3} = add i32 %{made[-1] or 5}, %{number + 2}")
            made.append(number + 3)
        else:
            lines.append(f"    store %1, %{number + 1}, %{made[-1] or 5}{masked}")
        number += 4
    head = f"""program k(a: i32[64] written, b: i32[4] written)
  %0 = const i64 {scale}
  %1 = param i32 a
  %2 = param i32 b
  %5 = const i32 7
  %3 = loop grid 0..4
    %4 = mul i64 %3, %0
    %7 = const i64 2
    %6 = lt b1 %3, %7
"""
    end = f"    store %2, %3, %{made[-1] or 5}\n  %{number} = end %3\n"
    return parse_linear(head + "".join(f"{line}\n" for line in lines) + end)


ACCESS = st.tuples(st.sampled_from(["load", "store"]), st.integers(0, 7), st.integers(0, 1))


@given(st.lists(ACCESS, min_size=1, max_size=24), st.sampled_from([8, 12]))
@settings(max_examples=60, deadline=None)
def test_joined_accesses_leave_the_same_memory(
    accesses: list[tuple[str, int, int]], scale: int
) -> None:
    program = straight(accesses, scale)
    verify_linear(program)
    joined = join(program, 16)
    verify_linear(joined)
    assert parse_linear(print_linear(joined))
    want = [np.arange(64, dtype=np.int32), np.zeros(4, np.int32)]
    got = [a.copy() for a in want]
    interpret_linear(program, want)
    interpret_linear(joined, got)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_is_updated_in_place_is_joined() -> None:
    each = [(kind, place, 0) for place in range(8) for kind in ("load", "store")]
    joined = join(straight(each, 8), 16)
    wide = [inst.lanes for inst in joined.body if inst.op == "load"]
    stores = [inst.args[2].lanes for inst in joined.body if inst.op == "store"]
    assert wide == [4, 4] and stores == [4, 4, 1]


def test_a_store_between_that_may_be_of_the_same_element_keeps_loads_apart() -> None:
    loads = [("load", place, 0) for place in range(4)]
    joined = join(straight([*loads[:2], ("store", 3, 0), *loads[2:]], 8), 16)
    assert [inst.lanes for inst in joined.body if inst.op == "load"] == [2, 2]
    fine = join(straight([*loads[:2], ("store", 1, 0), *loads[2:]], 8), 16)
    assert [inst.lanes for inst in fine.body if inst.op == "load"] == [4]


def test_a_load_and_a_store_do_not_pass_each_other_in_two_groups() -> None:
    """Each group may stand where it would alone; with both, 5 would be loaded before its store."""
    accesses = [("store", 5, 0), ("load", 4, 0), ("store", 4, 0), ("load", 5, 0)]
    program = straight(accesses, 8)
    joined = join(program, 16)
    want = [np.arange(64, dtype=np.int32), np.zeros(4, np.int32)]
    got = [a.copy() for a in want]
    interpret_linear(program, want)
    interpret_linear(joined, got)
    np.testing.assert_array_equal(got[0], want[0])
    np.testing.assert_array_equal(got[1], want[1])


def test_accesses_that_begin_anywhere_are_not_joined() -> None:
    joined = join(straight([("load", place, 0) for place in range(4)], 9), 16)
    assert [inst.lanes for inst in joined.body if inst.op == "load"] == [1] * 4


# What compilers make of it.


def scheduled(target: Target, t: str = "f32") -> Program:
    return lowered(softmax(8, 1024, t) if t != "f32" else add(LARGE), target)


def test_nvrtc_moves_16_bytes(need: Callable[[str], None]) -> None:
    need("nvrtc")
    renderer = CUDARenderer("sm_90")
    for t in ("f32", "bf16"):
        source = renderer.render(scheduled(renderer.target, t))
        ptx = NvBinary.unpack(NvrtcCompiler("sm_90").compile_cached(source)).ptx
        for how in (r"ld\.global\.nc(\.\w+)*", r"st\.global(\.\w+)*"):
            found = {m[0] for m in re.finditer(how, ptx)}
            assert found and all(".v4." in one for one in found), found


def test_llvm_moves_16_bytes_for_nvidia(need: Callable[[str], None]) -> None:
    need("llvmlite")
    renderer = PTXRenderer("sm_90")
    ptx = generate_ptx(renderer.render(scheduled(renderer.target)))
    found = {m[0] for m in re.finditer(r"(ld|st)\.global(\.\w+)*", ptx)}
    assert found and all(".v4." in one for one in found), found


@pytest.mark.parametrize("t", ["f32", "bf16"])
def test_llvm_moves_16_bytes_for_amd(t: str, need: Callable[[str], None]) -> None:
    need("libllvm")
    renderer, compiler = AMDRenderer("gfx1100"), AMDCompiler("gfx1100")
    text = compiler.disassemble(compiler.compile(renderer.render(scheduled(renderer.target, t))))
    found = set(re.findall(r"global_(?:load|store)_\w+", text))
    assert found == {"global_load_b128", "global_store_b128"}


@pytest.mark.parametrize("where", ["nvrtc", "llvm", "amd"])
def test_simulated_lanes_add_neighbours(where: str, need: Callable[[str], None]) -> None:
    need("nvrtc" if where == "nvrtc" else "llvmlite")
    target = {"nvrtc": CUDARenderer("sm_90"), "llvm": PTXRenderer("sm_90")}.get(
        where, AMDRenderer("gfx1100")
    ).target
    count = 1 << 16  # where neighbours begin
    x, y, out = random(count), random(count + 1)[1:], np.zeros(count, np.float32)
    program = lowered(add(count), target)
    assert moved(program, "store") == [4]
    if where == "amd":
        amd_lanes.run(program, out, x, y)
    else:
        (run_nvrtc if where == "nvrtc" else run_llvm)([program], [[out, x, y]])
    np.testing.assert_array_equal(out, x + y)


def test_instructions_name_what_they_are() -> None:
    """A vector that is taken apart has the lanes that are taken."""
    joined = join(straight([("load", place, 1) for place in range(4)], 8), 16)
    (load,) = [inst for inst in joined.body if inst.op == "load"]
    lanes = [inst.attr[0] for inst in joined.body if inst.op == "extract"]
    assert load.lanes == 4 and lanes == [0, 1, 2, 3]
    assert isinstance(load.args[2], Inst) and load.args[2].op == "splat"


def test_a_condition_on_the_round_keeps_neighbours_together() -> None:
    text = """kernel k(out: f32[{n}] global, x: f32[{n}] global, y: f32[700] global)
  loop i serial 700
    loop j serial 3136
      out[3136*i + j] = add(x[3136*i + j], y[i])
"""
    program = lowered(parse_kernel(text.format(n=700 * 3136)))
    assert any(inst.op == "if" for inst in program.body)
    assert set(moved(program, "store")) == {4} and max(moved(program, "load")) == 4
    x, y, out = random(700, 3136), random(700), np.zeros(700 * 3136, np.float32)
    interpret_linear(program, [out, x.ravel(), y])
    np.testing.assert_array_equal(out.reshape(700, -1), x + y[:, None])


def test_rows_that_threads_share_unevenly() -> None:
    text = """kernel k(out: f32[900] global, x: f32[2822400] global)
  loop i serial 900
    alloc s: f32[] private
    s[] = 0.0:f32
    loop a serial 3136
      s[] add= x[3136*i + a]
    out[i] = s[]
"""
    program = lowered(parse_kernel(text))
    assert set(moved(program, "load")) == {4}
    x, out = random(900, 3136), np.zeros(900, np.float32)
    interpret_linear(program, [out, x.ravel()])
    np.testing.assert_allclose(out, x.sum(1), rtol=1e-3, atol=1e-3)

from __future__ import annotations

import math

import numpy as np
import pytest

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.text import handles_of, parse_graph, print_graph
from gpu.compiler.ir.index import ALWAYS, NEVER, Var, at_least, expr
from gpu.compiler.ir.kernel.text import parse_kernel, print_kernel
from gpu.compiler.ir.linear.text import parse_linear, print_linear
from gpu.core.dtype import ALL, DType, dtypes
from gpu.core.errors import GpuError, ParseError
from prop.programs import mutated

GRAPH = """\
device CPU
%0 = buffer 0 : f32[4,8]
%1 = reduce max (1) %0 : f32[4,1]
%2 = expand %1 : f32[4,8]
%3 = sub %0, %2 : f32[4,8]
%4 = permute (1, 0) %3 : f32[8,4]
%5 = slice (7:-2, 0:1) %4 : f32[4,4]
%6 = pad (1:0:2, 0:0:0) %5 : f32[11,4]
%7 = contiguous (3) %6 : f32[11,4]
return %7, %2
"""

KERNEL = """\
kernel rows(out: f32[64] global, x: f32[64,100] global)
  loop r worker 64
    alloc acc: f32[] private
    acc[] = 0.0:f32
    loop c serial 128
      if 99 - c >= 0
        %0 = exp2(x[r, c])
        acc[] add= mul(%0, %0)
    block
      out[r] = add(acc[], cast.f32(index(r + 2))) if r - 1 >= 0
    prefetch x[r + 1, 0]
    loop lane.0 vector 3..10
      out[r] max= x[r, 16*lane.0 if 6 - lane.0 >= 0]
"""

LINEAR = """\
program scale(out: f32[1024] written, x: f32[1024])
  %0 = param f32 out
  %1 = param f32 x
  %2 = local f32 16 team
  %3 = const f32x8 -inf
  %4 = const f32 0.0
  %5 = loop worker 0..1024 step 8
    %6 = loop serial 0..4 carry %4, %3
      %7 = carry f32 %6 (0)
      %8 = carry f32x8 %6 (1)
      %9 = ramp i64x8 %5 (2)
      %10 = lt b1x8 %8, %3
      %11 = load f32x8 %1, %9, %10
      %12 = fold f32 %11 (add)
      %13 = shuffle f32x8 %8, %11 (0, 2, 4, 6, 8, 10, 12, 14)
    %14 = end %6 carry %12, %13
    %15 = result f32x8 %14 (1)
    %16 = lt b1 %4, %4
    %17 = if %16
      store %0, %5, %15 streaming
      prefetch %1, %5
      barrier
    endif %17
  %18 = end %5
"""


def test_graph_reads_as_written() -> None:
    roots = parse_graph(GRAPH, ["handle"])
    assert print_graph(roots) == GRAPH
    x = G.buffer("handle", (4, 8), dtypes.float32, "CPU")
    assert roots[1] is G.expand(G.reduce("max", x, (1,)), (4, 8))


def test_kernel_reads_as_written() -> None:
    assert print_kernel(parse_kernel(KERNEL)) == KERNEL


def test_linear_reads_as_written() -> None:
    assert print_linear(parse_linear(LINEAR)) == LINEAR


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_constants_come_back_exactly(dtype: DType) -> None:
    wanted: list[bool | int | float] = [dtype.min, dtype.max, 0, 1]
    if dtype.is_float:
        wanted += [math.nan, math.inf, -math.inf, -0.0, 0.1, -1.5e-7, 1e300, 1e30, 5e-324]
    with np.errstate(all="ignore"):
        nodes = [G.const(value, (), dtype, "CPU") for value in wanted]
    assert parse_graph(print_graph(nodes)) == nodes
    for node in nodes:
        out = K.Buf("out", dtype, (), "global")
        update = K.Update(out, (), None, K.const(dtype, node.attr[0]))
        read = parse_kernel(print_kernel(K.Kernel("k", (out,), K.Block((update,)))))
        assert isinstance(read.body.body[0], K.Update)
        assert read.body.body[0].value is update.value


def test_equal_handles_share_a_number_and_order_is_by_use() -> None:
    a = G.buffer("a", (2,), dtypes.int32, "CPU")
    b = G.buffer("b", (2,), dtypes.int32, "CPU")
    roots = [G.alu("add", b, a), G.alu("sub", a, b)]
    assert handles_of(roots) == ["b", "a"]
    assert parse_graph(print_graph(roots), ["b", "a"]) == roots
    assert [n.attr[0] for n in parse_graph(print_graph(roots))[0].src] == [0, 1]


def test_several_devices_are_named_on_each_line() -> None:
    x = G.buffer(0, (2,), dtypes.int32, "CPU:1")
    roots = [G.copy(x, "CPU")]
    text = print_graph(roots)
    assert "buffer 0 : i32[2] on CPU:1" in text
    assert parse_graph(text) == roots


def test_no_roots_at_all() -> None:
    assert parse_graph(print_graph([])) == []


def test_comments_and_blank_lines_are_skipped() -> None:
    text = "\n".join(line + "  # note" for line in GRAPH.split("\n"))
    assert print_graph(parse_graph(text)) == GRAPH


def test_deep_and_shared_values_stay_small() -> None:
    out = K.Buf("out", dtypes.float32, (), "global")
    value = K.load(out, ())
    for _ in range(500):
        value = K.alu("add", value, value)
    for _ in range(500):
        value = K.alu("neg", value)
    kernel = K.Kernel("k", (out,), K.Block((K.Update(out, (), None, value),)))
    text = print_kernel(kernel)
    assert len(text) < 40_000
    read = parse_kernel(text)
    assert print_kernel(read) == text


def test_masks_that_are_constant() -> None:
    out = K.Buf("out", dtypes.int64, (4,), "global")
    r = Var("r", 0, 3)
    body = K.Block(
        (
            K.Update(out, (expr(r),), "max", K.index(r + 1), NEVER),
            K.If(at_least(r, 2), K.Block((K.Update(out, (expr(r),), None, K.index(r * 2)),))),
            K.If(ALWAYS, K.Block(())),
        )
    )
    kernel = K.Kernel("k", (out,), K.Block((K.Loop(r, "serial", body),)))
    text = print_kernel(kernel)
    assert "if never" in text
    assert "if always" in text
    assert print_kernel(parse_kernel(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("%0 = foo : f32[]", r"line 1, column 6: expected a kind of node .*\(foo is neither\)"),
        ("device D\n%0 = const 300 : i8[]\nreturn %0", r"line 2, column 12: .* int8, found '300"),
        ("device D\n%0 = neg %1 : f32[]", r"line 2, column 10: .*%1 is not"),
        ("device D\n%0 = iota : f32[3", r"line 2, column 18: expected ',', found 'the end of"),
        ("%0 = iota : f32[3]", "`on` and a device"),
        ("device D", "no `return`"),
        ("return\nreturn", "line 2, column 1: expected nothing after the roots"),
        ("device D\n%0 = buffer 7 : f32[]\nreturn %0", "one of 1 buffers"),
    ],
)
def test_graph_errors_say_where_and_what(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        parse_graph(text, ["only"])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("mul(%0, %0)", "mul(%1, %0)", r"line 8, column 24: expected a number given above"),
        ("acc[] add=", "acc[] plus=", "line 8, column 15: expected a monoid, one of"),
        ("x[r, c]", "x[r, d]", "line 7: index text ' d', column 2: unknown variable 'd'"),
        ("x[r, c]", "y[r, c]", "expected a buffer, one of out x acc"),
        ("serial 128", "serial 0", "at least one iteration"),
        ("f32[] private", "f32[] nowhere", "expected a memory space"),
        ("      out[r] = add", "     out[r] = add(x\n     out[r] = add", "line 10, column"),
    ],
)
def test_kernel_errors_say_where_and_what(old: str, new: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        parse_kernel(KERNEL.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("f32x8 %8, %11", "f32y8 %8, %11", "line 15, column 21: expected a type such as f32"),
        ("%12 = fold", "%11 = fold", r"line 14, column 7: .*%11 is"),
        ("param f32 x", "param f32 y", "a parameter, one of out x"),
        ("      barrier", "      %9 = barrier", "%9 is"),
        ("(add)", "(plus)", "a monoid, one of"),
        ("-inf", "0.1", "line 5, column 20: expected a value of float32, found '0.1'"),
    ],
)
def test_linear_errors_say_where_and_what(old: str, new: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        parse_linear(LINEAR.replace(old, new))


@pytest.mark.parametrize("text", [KERNEL, LINEAR, GRAPH], ids=["kernel", "linear", "graph"])
def test_broken_text_raises_only_our_errors(text: str) -> None:
    parse = {"k": parse_kernel, "p": parse_linear, "d": parse_graph}[text[0]]
    rng = np.random.default_rng(7)
    read = 0
    for _ in range(1500):
        try:
            parse(mutated(text, rng))  # type: ignore[operator]
            read += 1
        except GpuError:
            continue
    assert 0 < read < 1400


@pytest.mark.parametrize(
    "index", ["(" * 3000 + "r" + ")" * 3000, "-" * 5000 + "r", "9" * 5000, "r//0", "r*r"]
)
def test_absurd_index_arithmetic_is_refused(index: str) -> None:
    with pytest.raises(GpuError):
        parse_kernel(KERNEL.replace("x[r, c]", f"x[r, {index}]"))


def test_absurdly_deep_values_and_blocks_are_refused() -> None:
    with pytest.raises(ParseError, match="number its parts"):
        parse_kernel(KERNEL.replace("exp2(x[r, c])", "neg(" * 5000 + "x[r, c]" + ")" * 5000))
    deep = "".join(" " * (n + 1) + "block\n" for n in range(500))
    with pytest.raises(ParseError, match="nested less than"):
        parse_kernel("kernel k()\n" + deep)


def test_nodes_print_their_kind() -> None:
    roots: list[Node] = parse_graph(GRAPH)
    assert repr(roots[1]) == "<expand: f32[4, 8]>"

from __future__ import annotations

import pytest

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import Var, expr
from gpu.compiler.ir.kernel.text import parse_kernel
from gpu.compiler.ir.kernel.verify import verify_kernel
from gpu.compiler.ir.linear import Inst, Param, Program
from gpu.compiler.ir.linear.text import parse_linear
from gpu.compiler.ir.linear.verify import verify_linear
from gpu.core.dtype import dtypes
from gpu.core.errors import VerifyError

KERNEL = """\
kernel rows(out: f32[64] global, x: f32[64,100] global)
  loop r worker 64
    alloc acc: f32[] private
    acc[] = 0.0:f32
    loop c serial 128
      if 99 - c >= 0
        acc[] add= x[r, c]
    out[r] = acc[]
"""

GUARDED = "if 99 - c >= 0\n        acc[] add= x[r, c]"
MASKED = "block\n        acc[] add= x[r, c if 99 - c >= 0]"

LINEAR = """\
program scale(out: f32[1024] written, x: f32[1024])
  %0 = param f32 out
  %1 = param f32 x
  %2 = local f32 16 private
  %3 = const f32x8 1.0
  %4 = const f32 0.0
  %5 = const b1x8 true
  %6 = const b1 true
  %7 = const i32 7
  %8 = const f64x8 1.0
  %9 = loop worker 0..1024 step 8
    %10 = loop serial 0..4 carry %4, %3
      %11 = carry f32 %10 (0)
      %12 = load f32x8 %1, %9, %5
      %13 = fold f32 %12 (add)
      %14 = ramp i64x8 %9 (2)
      %15 = shuffle f32x8 %3, %12 (0, 2, 4, 6, 8, 10, 12, 15)
      %16 = splat f32x8 %13
      %17 = extract f32 %16 (7)
      %18 = pack f32x2 %17, %13
      %19 = bitcast i32x8 %12
    %20 = end %10 carry %13, %12
    %21 = result f32x8 %20 (1)
    %22 = if %6
      store %0, %9, %21
    endif %22
  %23 = end %9
"""


def test_the_examples_are_valid() -> None:
    verify_kernel(parse_kernel(KERNEL))
    verify_linear(parse_linear(LINEAR))


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("alloc acc: f32[] private", "alloc acc: f32[] global", "a parameter, not allocated"),
        ("x: f32[64,100] global", "x: f32[64,100] team", "parameter x must be global"),
        ("    acc[] = 0", "    alloc acc: f32[] team\n    acc[] = 0", "the name acc is taken"),
        ("x: f32[64,100] global", "loop: i8[] global, x: f32[64,100] global", "a word of the text"),
        ("    out[r]", "    loop r unroll 2\n    out[r]", "a loop around this binds r too"),
        ("loop c serial", "loop c sideways", "the kind of a loop is one of"),
        ("x[r, c]", "x[c]", "x takes 2 indices, got 1"),
        ("x[r, c]", "x[r + 1, c]", "index 0 of x, r \\+ 1, is 1..64; the size is 64"),
        ("if 99 - c >= 0", "block", "index 1 of x, c, is 0..127"),
        ("x[r, c]", "x[c, c]", None),
        ("if 99 - c >= 0", "if 50 - r >= 0", "index 1 of x, c, is 0..127"),
        (GUARDED, MASKED, None),
        ("acc[] = 0.0:f32", "acc[] = 0:i32", "the value is i32, not f32"),
        ("acc[] add=", "acc[] and=", "and is no monoid of f32"),
        ("out[r] = acc[]", "out[0] = acc[]", "the worker loop over r all write this element"),
        ("out[r] = acc[]", "out[0] add= acc[]", None),
        ("out[r] = acc[]", "out[0] = acc[] if 0 - r >= 0", None),
        ("worker 64", "serial 64\n    out[0] = 1.0:f32", None),
        ("acc[]\n", "add(acc[], cast.f32(bitcast.i64(acc[])))\n", "bitcast keeps the width"),
    ],
)  # fmt: skip
def test_kernel_rules(old: str, new: str, rule: str | None) -> None:
    kernel = parse_kernel(KERNEL.replace(old, new))
    if rule is None:
        verify_kernel(kernel)
        return
    with pytest.raises(VerifyError, match=rule):
        verify_kernel(kernel)


def test_a_kernel_error_shows_the_statement_among_its_neighbours() -> None:
    with pytest.raises(VerifyError) as caught:
        verify_kernel(parse_kernel(KERNEL.replace("x[r, c]", "x[r + 1, c]")))
    assert caught.value.message.split("\n") == [
        "kernel rows: index 0 of x, r + 1, is 1..64; the size is 64 and no mask restricts it",
        "       acc[] = 0.0:f32",
        "       loop c serial 128",
        "         if 99 - c >= 0",
        "->         acc[] add= x[r + 1, c]",
        "       out[r] = acc[]",
    ]


OUT = K.Buf("out", dtypes.float32, (4,), "global")
OTHER = K.Buf("other", dtypes.float32, (), "private")
R = Var("r", 0, 3)
ONE = K.const(dtypes.float32, 1.0)


@pytest.mark.parametrize(
    ("stmt", "rule"),
    [
        (K.Update(OUT, (expr(R),), None, ONE), "no loop around this binds the variable r"),
        (K.Update(OTHER, (), None, ONE), "the buffer other does not exist here"),
        (K.Update(OUT, (expr(0),), None, K.load(OTHER, ())), "the buffer other does not exist"),
        (K.Update(OUT, (expr(0),), None, K.const(dtypes.float32, 0.1)), "0.1 is no float32"),
        (K.Update(OUT, (expr(0),), None, K.const(dtypes.float32, 1)), "1 is no float32"),
        (K.Update(OUT, (expr(0),), None, K.cast(K.index(expr(R)), dtypes.float32)), "variable r"),
        (K.Block((K.Block((K.Alloc(OTHER),)), K.Update(OTHER, (), None, ONE))), "does not exist"),
        (K.Loop(R, "serial", K.Block((K.Update(OUT, (R + 1,), None, ONE),))), "is 1..4; the size"),
        (K.Prefetch(OTHER, ()), "the buffer other does not exist here"),
        (K.Prefetch(OUT, (expr(R),)), "no loop around this binds the variable r"),
        (K.Prefetch(OUT, ()), "out takes 1 indices, got 0"),
        (K.Block((K.Alloc(OTHER), K.Prefetch(OTHER, ()))), "a prefetch is of a parameter"),
    ],
)
def test_kernel_rules_that_text_cannot_break(stmt: K.Stmt, rule: str) -> None:
    with pytest.raises(VerifyError, match=rule):
        verify_kernel(K.Kernel("k", (OUT,), K.Block((stmt,))))


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("store %0, %9, %21", "store %0, %9, %12", "operand 2 is not defined before this, or in a"),
        ("store %0, %9, %21", "store %1, %9, %21", "parameter x is only read"),
        ("store %0, %9, %21", "store %3, %9, %21", "operand 0 must be a param or a local"),
        ("store %0, %9, %21", "store %0, %1, %21", "operand 1 must not be a pointer"),
        ("store %0, %9, %21", "store %0, %7, %21", "the index must be i64"),
        ("store %0, %9, %21", "store %0, %9, %8", "points to f32, not f64"),
        ("store %0, %9, %21", "store %0, %9, %21, %6", "mask must be bool with 8 lanes, not b1"),
        ("store %0, %9, %21", "store %0, %20, %21", "is a end, which has no value"),
        ("store %0, %9, %21", "prefetch %2, %9", "a prefetch is of a parameter"),
        ("store %0, %9, %21", "prefetch %1, %6", "the index must be one int64"),
        ("load f32x8 %1, %9, %5", "load f64x8 %1, %9, %5", "points to f32, not f64"),
        ("endif %22", "barrier", "end closes no loop|must close"),
        ("  %23 = end %9\n", "", "loop is never closed"),
        ("  %23 = end %9\n", "  %23 = end %9\n  %24 = end %9\n", "end closes no loop"),
        ("loop worker", "loop vector", "the kind of a loop is one of"),
        ("step 8", "step 0", "the step is positive"),
        ("loop serial", "loop grid", "a grid loop has no carries"),
        ("end %10 carry %13, %12", "end %10 carry %13", "the loop has 2 carries"),
        ("end %10 carry %13, %12", "end %10 carry %12, %13", "the values of carry 0 must have one"),
        ("carry f32 %10 (0)", "carry f32 %10 (2)", "the loop has 2 carries"),
        ("carry f32 %10 (0)", "carry f64 %10 (0)", "must have one type, not f64 and f32"),
        ("carry f32 %10 (0)", "carry f32 %9 (0)", "the loop has 0 carries"),
        ("result f32x8 %20 (1)", "result f32x8 %20 (0)", "a result and its carry"),
        ("result f32x8 %20 (1)", "result f32x8 %3 (0)", "the operand must be an end"),
        ("%22 = if %6", "%22 = if %5", "the condition must be a scalar bool"),
        ("local f32 16 private", "local f32 16 global", "private or team"),
        ("local f32 16 private", "local f32 0 private", "at least one element"),
        ("fold f32 %12 (add)", "fold f32 %12 (and)", "and is no monoid of f32"),
        ("(0, 2, 4, 6, 8, 10, 12, 15)", "(0, 2, 4, 6, 8, 10, 12, 16)", "lanes are 0 to 15"),
        ("(0, 2, 4, 6, 8, 10, 12, 15)", "(0, 2)", "8 lanes must be picked"),
        ("splat f32x8 %13", "splat f32x8 %12", "operand 0 must be a scalar f32, not f32x8"),
        ("extract f32 %16 (7)", "extract f32 %16 (8)", "the operand has 8 lanes"),
        ("pack f32x2 %17, %13", "pack f32x4 %17, %13", "there must be 4 operands"),
        ("ramp i64x8 %9 (2)", "ramp i32x8 %9 (2)", "a ramp is made of i64"),
        ("bitcast i32x8 %12", "bitcast i64x8 %12", "bitcast keeps the width"),
        ("bitcast i32x8 %12", "add f32x8 %12, %13", "operands must have the 8 lanes"),
        ("bitcast i32x8 %12", "add f64x8 %12, %12", "add gives f32 here"),
        ("bitcast i32x8 %12", "add f32x8 %12, %8", "add needs operands of one dtype"),
        ("bitcast i32x8 %12", "cast i32x4 %12", "the 8 lanes of the operand stay"),
        ("x: f32", "out: f32", "parameter names must be distinct|parameter, one of"),
    ],
)
def test_linear_rules(old: str, new: str, rule: str) -> None:
    text = LINEAR.replace(old, new)
    if new.startswith("out:"):
        text = text.replace("param f32 x", "param f32 out")
    with pytest.raises(VerifyError, match=rule):
        verify_linear(parse_linear(text))


@pytest.mark.parametrize(
    ("inst", "rule"),
    [
        (Inst("const", dtypes.int8, 1, (), (128,)), "128 is no int8"),
        (Inst("const", dtypes.float32, 1, (), (0.1,)), "0.1 is no float32"),
        (Inst("const", dtypes.bool, 1, (), (1,)), "1 is no bool"),
        (Inst("param", dtypes.float32, 1, (), (1,)), "there is no such parameter"),
        (Inst("param", dtypes.int32, 1, (), (0,)), "parameter out points to f32"),
        (Inst("load", dtypes.float32, 1, (Inst("param", dtypes.float32, 1, (), (0,)),)), "2 to 3"),
        (Inst("sideways", dtypes.float32), "sideways is no operation"),
    ],
)
def test_linear_rules_that_text_cannot_break(inst: Inst, rule: str) -> None:
    program = Program("p", (Param("out", dtypes.float32, 4, True),), (inst,))
    with pytest.raises(VerifyError, match=rule):
        verify_linear(program)


def test_an_instruction_stands_once() -> None:
    one = Inst("const", dtypes.bool, 1, (), (True,))
    with pytest.raises(VerifyError, match="stands in the body once"):
        verify_linear(Program("p", (), (one, one)))


def test_a_linear_error_shows_the_instruction_among_its_neighbours() -> None:
    with pytest.raises(VerifyError) as caught:
        verify_linear(parse_linear(LINEAR.replace("store %0, %9, %21", "store %1, %9, %21")))
    assert caught.value.message.split("\n") == [
        "linear program scale: parameter x is only read",
        "       %20 = end %10 carry %13, %12",
        "       %21 = result f32x8 %20 (1)",
        "       %22 = if %6",
        "->       store %1, %9, %21",
        "       endif %22",
        "     %23 = end %9",
    ]

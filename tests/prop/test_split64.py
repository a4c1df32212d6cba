"""Integers of 64 bits as pairs of 32, and vectors lane by lane: edges, and random programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpu.compiler.fusion.build import BuiltKernel
from gpu.compiler.ir import optable
from gpu.compiler.ir.graph import toposort
from gpu.compiler.ir.linear import Program
from gpu.compiler.ir.linear.interp import interpret_linear
from gpu.compiler.ir.linear.text import parse_linear
from gpu.compiler.ir.linear.verify import verify_linear
from gpu.compiler.lower.int64.pairs import WIDE, split64
from gpu.compiler.lower.linearize import linearize
from gpu.compiler.opt.policy.choose import schedule
from gpu.compiler.render.wgsl.renderer import WGSLLimits, wgsl_target
from gpu.compiler.targets import Target
from gpu.core.dtype import dtype_named, dtypes
from gpu.core.errors import Unsupported
from prop.graphs import computed
from prop.judge import check, expect
from prop.programs import random_graph
from prop.test_passes import RunKernel, run_plan

Array = np.ndarray[Any, Any]
TARGET = wgsl_target(WGSLLimits(), has_f16=False)
SEEDS = 30


def as_words(array: Array) -> Array:
    """Memory as a split program sees it."""
    return array.view(np.uint32) if array.dtype in (np.int64, np.uint64) else array


def check_split(program: Program) -> None:
    """It is well formed, and no integer of 64 bits is left but counters and places."""
    verify_linear(program)
    places = {"loop", "end", "val", "cast", "const"}
    for inst in program.body:
        assert inst.dtype is not dtypes.uint64
        assert inst.dtype is not dtypes.int64 or inst.op in places, inst
        if inst.op == "alu":
            assert all(arg.dtype not in WIDE for arg in inst.args), inst


def edges(dtype: Any) -> Array:
    limits = np.iinfo(dtype)
    near = [0, 1, 2, 3, 7, 31, 32, 33, 63, 64, 65, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**33 + 5]
    values = [*near, limits.max, limits.max - 1, limits.min, limits.min + 1, 10**12 + 7]
    if limits.min < 0:
        values += [-1, -2, -7, -(2**31), -(2**31) - 1, -(2**40) + 3]
    rng = np.random.default_rng(0)
    return np.array([*values, *rng.integers(limits.min, limits.max, 6, dtype)], dtype)


def run_both(text: str, out: Array, *inputs: Array) -> None:
    """A program and its split form give the same."""
    program = parse_linear(text)
    wanted = out.copy()
    interpret_linear(program, [wanted, *inputs])
    split = split64(program, TARGET.native)
    check_split(split)
    interpret_linear(split, [as_words(array) for array in (out, *inputs)])
    np.testing.assert_array_equal(out, wanted)


INTEGER_OPS = [
    name
    for name, row in optable.OPS.items()
    if "int" in row.domain and name not in ("where", "fma")
]


@pytest.mark.parametrize("code", ["i64", "u64"])
@pytest.mark.parametrize("name", INTEGER_OPS)
def test_operations(name: str, code: str) -> None:
    dtype = np.int64 if code == "i64" else np.uint64
    row = optable.OPS[name]
    a, b = (m.reshape(-1) for m in np.meshgrid(edges(dtype), edges(dtype)))
    result = "b1" if row.result == "bool" else code
    args = "%4" if row.arity == 1 else "%4, %5"
    text = f"""program k(out: {result}[{a.size}] written, x: {code}[{a.size}], y: {code}[{a.size}])
  %0 = param {result} out
  %1 = param {code} x
  %2 = param {code} y
  %3 = loop grid 0..{a.size}
    %4 = load {code} %1, %3
    %5 = load {code} %2, %3
    %6 = {name} {result} {args}
    store %0, %3, %6
  %7 = end %3
"""
    run_both(text, np.zeros(a.size, np.bool_ if result == "b1" else dtype), a, b)


@pytest.mark.parametrize("count", [-1, 0, 1, 31, 32, 33, 63, 64])
@pytest.mark.parametrize("name", ["shl", "shr", "tdiv", "tmod", "mul", "lt"])
def test_operations_with_a_constant(name: str, count: int) -> None:
    x = edges(np.int64)
    result = "b1" if name == "lt" else "i64"
    text = f"""program k(out: {result}[{x.size}] written, x: i64[{x.size}])
  %0 = param {result} out
  %1 = param i64 x
  %2 = const i64 {count}
  %3 = loop grid 0..{x.size}
    %4 = load i64 %1, %3
    %5 = {name} {result} %4, %2
    store %0, %3, %5
  %6 = end %3
"""
    run_both(text, np.zeros(x.size, np.bool_ if name == "lt" else np.int64), x)


NARROWER = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float32"]


@pytest.mark.parametrize("wide", ["int64", "uint64"])
@pytest.mark.parametrize("other", NARROWER)
@pytest.mark.parametrize("outwards", [False, True])
def test_casts(wide: str, other: str, outwards: bool) -> None:
    source, target = (dtype_named(n) for n in ((wide, other) if outwards else (other, wide)))
    if source.is_float:
        x = np.array([np.nan, np.inf, -np.inf, 0.5, -0.5, -1.5, 2**31, 2**32, 2**33 + 2**12,
                      -(2**40),
                      2.0**62, 2.0**63, 2.0**64, -(2.0**63), -(2.0**64), 3e38, 16777217.0],
                     np.float32)  # fmt: skip
    elif source is dtypes.bool:
        x = np.array([True, False])
    else:
        x = edges(source.np) if source.bits == 64 else np.array([source.min, source.max, 0, 1])
    x = x.astype(source.np)
    text = f"""program k(out: {target.code}[{x.size}] written, x: {source.code}[{x.size}])
  %0 = param {target.code} out
  %1 = param {source.code} x
  %2 = loop grid 0..{x.size}
    %3 = load {source.code} %1, %2
    %4 = cast {target.code} %3
    store %0, %2, %4
  %5 = end %2
"""
    run_both(text, np.zeros(x.size, target.np), x)


def test_carries_masks_and_locals() -> None:
    x = edges(np.int64)
    text = f"""program k(out: i64[1] written, x: i64[{x.size}])
  %0 = param i64 out
  %1 = param i64 x
  %2 = const i64 0
  %3 = const i64 1
  %4 = local i64 3 private
  %5 = loop serial 0..{x.size} carry %2
    %6 = carry i64 %5 (0)
    %7 = const i64 9
    %8 = lt b1 %5, %7
    %9 = load i64 %1, %5, %8
    %10 = add i64 %6, %9
    if %8
      store %4, %3, %10
    endif %11
  %12 = end %5 carry %10
  %13 = load i64 %4, %3
  store %0, %2, %13
""".replace("    if %8", "    %11 = if %8")
    run_both(text, np.zeros(1, np.int64), x)


def test_what_does_not_fit_is_refused() -> None:
    loop = "program k()\n  %0 = loop serial 0..3000000000\n  %1 = end %0\n"
    with pytest.raises(Unsupported, match="loop from 0 to 3000000000"):
        split64(parse_linear(loop), TARGET.native)
    val = "program k(; n 0..3000000000)\n  %0 = val i64 n\n"
    with pytest.raises(Unsupported, match="n may be 3000000000"):
        split64(parse_linear(val), TARGET.native)
    vector = "program k()\n  %0 = const i64x4 1\n"
    with pytest.raises(Unsupported, match="vectors have no 64-bit integers"):
        split64(parse_linear(vector), TARGET.native)


def split_for(target: Target) -> RunKernel:
    def run(built: BuiltKernel, arrays: list[Array]) -> None:
        kernel, _ = schedule(built.kernel, target)
        program = linearize(kernel, target)
        check_split(program)
        assert all(inst.lanes == 1 for inst in program.body)
        interpret_linear(program, [as_words(array) for array in arrays])

    return run


@pytest.mark.parametrize("is_cpu", [False, True], ids=["blocks", "lanes written out"])
def test_random_programs_keep_their_meaning(is_cpu: bool) -> None:
    run = split_for(wgsl_target(WGSLLimits(is_cpu=is_cpu), has_f16=False))
    for seed in range(2000, 2000 + SEEDS):
        rng = np.random.default_rng(seed)
        roots, inputs = random_graph(rng, depth=int(rng.integers(3, 31)), max_size=600)
        lacking = any(node.dtype is dtypes.float64 for node in toposort(roots))
        if not lacking and (wanted := computed(roots)):
            check(run_plan(wanted, inputs, run), expect(wanted, inputs, rng), wanted)

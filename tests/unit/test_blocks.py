"""Blocks of threads: the rules of both IRs for them, and the finder of races."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.compiler.ir.kernel.interp import interpret_kernel
from gpu.compiler.ir.kernel.text import parse_kernel, print_kernel
from gpu.compiler.ir.kernel.verify import verify_kernel
from gpu.compiler.ir.linear import block_size, team_bytes
from gpu.compiler.ir.linear.interp import interpret_linear
from gpu.compiler.ir.linear.text import parse_linear, print_linear
from gpu.compiler.ir.linear.verify import verify_linear
from gpu.compiler.lower.linearize import linearize
from gpu.compiler.targets import Native, Target
from gpu.core.errors import InvalidValue, VerifyError

REVERSE = """kernel reverse(out: f32[40] global, in: f32[40] global; n 1..4)
  loop b grid n
    alloc tile: f32[10] team
    loop y thread 2
      loop x thread 5
        alloc mine: f32[] private
        tile[5*y + x] = in[10*b + 5*y + x]
        barrier
        mine[] = tile[9 - 5*y - x]
        out[10*b + 5*y + x] = mine[]
"""
LINEAR = """program reverse(out: f32[40] written, in: f32[40]; n 1..4)
  %0 = param f32 out
  %1 = param f32 in
  %2 = val i64 n
  %3 = const i64 10
  %4 = const i64 9
  %5 = loop grid 0..%2 most 4
    %6 = mul i64 %5, %3
    %7 = local f32 10 team
    %8 = loop thread 0..10
      %9 = add i64 %6, %8
      %10 = load f32 %1, %9
      store %7, %8, %10
      barrier
      %11 = sub i64 %4, %8
      %12 = load f32 %7, %11
      store %0, %9, %12
    %13 = end %8
  %14 = end %5
"""
NATIVE = Native(ops=frozenset({"add", "sub", "mul"}))


def reversed_rows(values: np.ndarray, rows: int) -> np.ndarray:
    out = np.zeros_like(values)
    out[: 10 * rows] = values[: 10 * rows].reshape(rows, 10)[:, ::-1].reshape(-1)
    return out


@pytest.mark.parametrize("rows", [1, 4])
def test_threads_exchange_data_across_a_barrier(rows: int) -> None:
    values = np.random.default_rng(0).normal(size=40).astype(np.float32)
    for text in (REVERSE, print_kernel(parse_kernel(REVERSE))):
        out = np.zeros(40, np.float32)
        interpret_kernel(parse_kernel(text), {"out": out, "in": values}, [rows])
        np.testing.assert_array_equal(out, reversed_rows(values, rows))
    lowered = linearize(parse_kernel(REVERSE), Target("t", NATIVE, "grid", threads=32))
    for text in (LINEAR, print_linear(parse_linear(LINEAR)), print_linear(lowered)):
        out = np.zeros(40, np.float32)
        interpret_linear(parse_linear(text), [out, values], [rows])
        np.testing.assert_array_equal(out, reversed_rows(values, rows))


def test_what_a_renderer_asks_of_a_program() -> None:
    lowered = linearize(parse_kernel(REVERSE), Target("t", NATIVE, "grid", threads=32))
    assert block_size(parse_linear(LINEAR)) == (10,)
    assert block_size(lowered) == (2, 5)
    assert team_bytes(lowered) == 40


WITHOUT_BARRIER = "        barrier\n", ""
STORED_TWICE = "tile[5*y + x] = in", "tile[x] = in"
STORED_AFTER = (
    "        out[10*b",
    "        tile[5*y + x] = mine[]\n        out[10*b",
)


@pytest.mark.parametrize("change", [WITHOUT_BARRIER, STORED_TWICE, STORED_AFTER])
def test_a_race_is_found_in_both_forms(change: tuple[str, str]) -> None:
    kernel = parse_kernel(REVERSE.replace(*change))
    lowered = linearize(kernel, Target("t", NATIVE, "grid", threads=32))
    out, values = np.zeros(40, np.float32), np.zeros(40, np.float32)
    with pytest.raises(VerifyError, match=r"race|write this element"):
        interpret_kernel(kernel, {"out": out, "in": values}, [3])
    with pytest.raises(VerifyError, match="a race: element"):
        interpret_linear(lowered, [out, values], [3])


def test_threads_that_store_one_element_of_a_parameter_are_found() -> None:
    text = LINEAR.replace("store %0, %9, %12", "store %0, %6, %12")
    with pytest.raises(VerifyError, match="stored by several threads at once"):
        interpret_linear(parse_linear(text), [np.zeros(40, np.float32)] * 2, [3])


def test_threads_may_use_their_own_elements_without_barriers() -> None:
    own = REVERSE.replace(*WITHOUT_BARRIER).replace("tile[9 - 5*y - x]", "tile[5*y + x]")
    out, values = np.zeros(40, np.float32), np.arange(40, dtype=np.float32)
    interpret_kernel(parse_kernel(own), {"out": out, "in": values}, [4])
    np.testing.assert_array_equal(out, values)


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("        alloc mine: f32[] private\n", "        alloc mine: f32[] team\n", "be private"),
        ("f32[10] team", "f32[10] private", "outside thread loops must be team"),
        ("    alloc tile", "    out[b] = 0.0:f32\n    alloc tile", "there is team memory only"),
        ("loop b grid n", "loop b serial n", "there is team memory only"),
        ("        barrier", "        if 3 - x >= 0\n          barrier", "differs between threads"),
        ("        barrier", "        if 3 - n >= 0\n          barrier", None),
        ("        barrier", "        loop u unroll 2\n          barrier", "written out"),
        ("        barrier", "        loop u serial n\n          barrier", None),
        ("loop y thread 2", "loop y thread n", "needs a number of threads|to a number of threads"),
        ("tile[5*y + x] = in", "tile[5*y + x] add= in", None),
        ("tile[5*y + x] = in", "tile[x] add= in", "thread loop over y all write"),
        ("    loop y", "    loop z thread 2\n      block\n    loop y", "form one chain"),
    ],
)
def test_rules_of_kernels(old: str, new: str, rule: str | None) -> None:
    assert old in REVERSE
    text = REVERSE.replace(old, new)
    if rule is None:
        verify_kernel(parse_kernel(text))
        return
    with pytest.raises(VerifyError, match=rule):
        verify_kernel(parse_kernel(text))


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("f32 10 team", "f32 10 private", "declared inside of the thread loops"),
        ("    %6 =", "    store %0, %5, %30\n    %6 =", "a store would run once for each thread"),
        ("      barrier", "      %20 = lt b1 %8, %3\n      %21 = if %20\n        barrier\n"
         "      endif %21", "condition differs between threads"),
        ("      barrier", "      %20 = lt b1 %2, %3\n      %21 = if %20\n        barrier\n"
         "      endif %21", None),
        ("      barrier", "      %20 = loop serial 0..%8 most 9\n        barrier\n"
         "      %21 = end %20", "run differently often"),
        ("      barrier", "      %20 = loop serial 0..%2 most 9\n        barrier\n"
         "      %21 = end %20", None),
        ("thread 0..10", "thread 0..%2 most 10", "to a number of threads"),
        ("loop grid 0..%2 most 4", "loop serial 0..4", "inside nothing but loops|outside of the"),
        ("    %8 = loop", "    %20 = loop thread 0..2\n    %21 = end %20\n    %8 = loop",
         "form one chain"),
    ],
)  # fmt: skip
def test_rules_of_linear_programs(old: str, new: str, rule: str | None) -> None:
    assert old in LINEAR
    text = LINEAR.replace(old, new).replace("  %5 =", "  %30 = const f32 1.0\n  %5 =")
    if rule is None:
        verify_linear(parse_linear(text))
        return
    with pytest.raises(VerifyError, match=rule):
        verify_linear(parse_linear(text))


def test_a_barrier_that_some_threads_miss_is_found_when_run() -> None:
    """Data decides here, so the verifier refuses it; the interpreter would find it as well."""
    from gpu.compiler.ir.races import check_arrivals

    check_arrivals(np.array([True, True, False, False]), 2)
    with pytest.raises(VerifyError, match="only some of the 4 threads"):
        check_arrivals(np.array([True, True, False, False]), 4)


def test_a_target_with_blocks_is_checked() -> None:
    with pytest.raises(InvalidValue, match="a multiple of the 32 threads"):
        Target("t", NATIVE, "grid", threads=48)
    with pytest.raises(InvalidValue, match="parallel='grid'"):
        Target("t", NATIVE, "worker", threads=64)
    assert Target("t", NATIVE, "grid").key != Target("t", NATIVE, "grid", shared_bytes=1).key

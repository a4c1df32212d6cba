"""Values exchanged between the threads of a warp: both IRs, lowering, and reductions that do."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.backends.python.device import BLOCKS
from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.kernel import interp
from gpu.compiler.ir.kernel.text import parse_kernel, print_kernel
from gpu.compiler.ir.kernel.tree import allocated, walk
from gpu.compiler.ir.kernel.verify import verify_kernel
from gpu.compiler.ir.linear import Program
from gpu.compiler.ir.linear import interp as linear_interp
from gpu.compiler.ir.linear.text import parse_linear, print_linear
from gpu.compiler.ir.linear.verify import verify_linear
from gpu.compiler.ir.optable import MONOIDS
from gpu.compiler.ir.races import exchanged
from gpu.compiler.ir.text import print_scalar
from gpu.compiler.lower.linearize import linearize
from gpu.compiler.opt.opts import Bind, DistributeThreads, Opt, Split, apply
from gpu.compiler.opt.policy.choose import schedule
from gpu.compiler.render.cstyle.c import CRenderer
from gpu.compiler.targets import NARROW_FLOATS, Target
from gpu.compiler.targets.amd import amd_target
from gpu.compiler.targets.nvidia import nv_target
from gpu.core.dtype import ALL, DType, dtypes
from gpu.core.errors import InvalidValue, ParseError, Unsupported, VerifyError
from unit.linear_kernels import HOST
from unit.test_opt_blocks import random, softmax, softmax_of

PAIRS = """kernel pairs(out: f32[64] global, in: f32[64] global)
  loop b grid 2
    loop y thread 4
      loop x thread 8
        alloc mine: f32[] private
        mine[] = in[32*b + 8*y + x]
        loop u unroll 2
          out[32*b + 8*y + x] = shuffle_xor.{distance}.16(add(mine[], 1.0:f32))
"""
LINEAR = """program pairs(out: f32[16] written, in: f32[16]; n 1..4)
  %0 = param f32 out
  %1 = param f32 in
  %2 = val i64 n
  %3 = const i64 2
  %4 = loop grid 0..1
    %5 = loop thread 0..16
      %6 = load f32 %1, %5
      %7 = shuffle_xor f32 %6 (2, 8)
      store %0, %5, %7
    %8 = end %5
  %9 = end %4
"""


@pytest.mark.parametrize("distance", [1, 2, 4, 8])
def test_each_thread_gets_its_partners_value(distance: int) -> None:
    kernel = parse_kernel(PAIRS.format(distance=distance))
    assert print_kernel(parse_kernel(print_kernel(kernel))) == print_kernel(kernel)
    values, out = random(64), np.zeros(64, np.float32)
    interp.interpret_kernel(kernel, {"out": out, "in": values})
    np.testing.assert_array_equal(out, values[np.arange(64) ^ distance] + 1)
    lowered = linearize(kernel, BLOCKS)
    assert print_linear(parse_linear(print_linear(lowered))) == print_linear(lowered)
    again = np.zeros(64, np.float32)
    linear_interp.interpret_linear(lowered, [again, values])
    np.testing.assert_array_equal(again, out)


@pytest.mark.parametrize("distance", [1, 2])
@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_dtypes_that_a_device_does_not_exchange(dtype: DType, distance: int) -> None:
    """All bits arrive, also where only integers of 32 bits are exchanged, or are all there is."""
    text = PAIRS.format(distance=distance).replace("add(mine[], 1.0:f32)", "mine[]")
    kernel = parse_kernel(text.replace("f32", dtype.code))
    data = np.random.default_rng(3).integers(0, 256, 64 * dtype.itemsize, np.uint8)
    values = data.view(dtype.np) if dtype is not dtypes.bool else data[:64] > 127
    words = replace(BLOCKS.native, shuffled=frozenset({dtypes.uint32, dtypes.int32}))
    poor = replace(
        words,
        storage_only=NARROW_FLOATS,
        compute_as_int32=frozenset({dtypes.int8, dtypes.int16, dtypes.uint8, dtypes.uint16}),
        paired=dtype is not dtypes.float64,
    )
    for native in (BLOCKS.native, words, poor):
        program = linearize(kernel, replace(BLOCKS, native=native))
        for inst in program.body:
            assert inst.op != "shuffle_xor" or inst.dtype in native.shuffled
        out = np.zeros_like(values)
        kind = program.params[0].dtype.np
        linear_interp.interpret_linear(program, [out.view(kind), values.view(kind)])
        assert out.tobytes() == values[np.arange(64) ^ distance].tobytes()


SHUFFLE = "shuffle_xor.2.16(add(mine[], 1.0:f32))"


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        (SHUFFLE, SHUFFLE.replace("2.16", "3.16"), "threads 3 apart"),
        (SHUFFLE, SHUFFLE.replace("2.16", "16.16"), "not in one warp of 16"),
        (SHUFFLE, SHUFFLE.replace("2.16", "2.12"), "not in one warp of 12"),
        (SHUFFLE, SHUFFLE.replace("2.16", "32.64"), "of 32 threads some have no partner 32 apart"),
        ("loop x thread 8", "loop x serial 8", None),
        ("loop y thread 4", "loop y serial 4", "inside other loops|memory only"),
        ("y thread 4\n      loop x thread 8", "y thread 1\n      loop x thread 6", "of 6 threads"),
        ("unroll 2", "vector 2", "in no loop of lanes"),
        (SHUFFLE, f"{SHUFFLE} if 3 - x >= 0", "condition that differs between threads"),
        (SHUFFLE, f"{SHUFFLE} if 0 - b >= 0", None),
        ("loop u unroll 2", "if 3 - x >= 0", "condition that differs between threads"),
        ("loop u unroll 2", "if 0 - b >= 0", None),
    ],
)
def test_rules_of_kernels(old: str, new: str, rule: str | None) -> None:
    text = PAIRS.format(distance=2)
    assert old in text
    text = text.replace(old, new)
    if rule is None:
        verify_kernel(parse_kernel(text))
        return
    with pytest.raises(VerifyError, match=rule):
        verify_kernel(parse_kernel(text))


def test_data_that_is_exchanged_is_no_address() -> None:
    text = PAIRS.format(distance=2).replace("mine[] = in", "let k 4 = shuffle_xor.1.4(1:i64)\n"
        "        mine[] = in")  # fmt: skip
    with pytest.raises(VerifyError, match="a let holds no shuffle_xor"):
        verify_kernel(parse_kernel(text))


def test_what_is_no_text_of_an_exchange() -> None:
    for wrong in ("shuffle_xor(mine[])", "shuffle_xor.2(mine[])", "shuffle_xor.2.f(mine[])"):
        with pytest.raises(ParseError):
            parse_kernel(PAIRS.format(distance=2).replace(SHUFFLE, wrong))


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("(2, 8)", "(8, 8)", "threads 8 apart are not in one warp of 8"),
        ("(2, 8)", "(2)", "a distance and a warp"),
        ("thread 0..16", "thread 0..6", "some have no partner 2 apart"),
        ("shuffle_xor f32", "shuffle_xor i32", "must be a scalar i32"),
        ("loop thread", "loop serial", "stands inside thread loops"),
        ("      %7 =", "      %20 = lt b1 %5, %3\n      %21 = if %20\n      %7 =", "an if whose"),
        ("      %7 =", "      %20 = loop serial 0..%5 most 15\n      %7 =", "differently often"),
        ("      %7 =", "      %20 = lt b1 %2, %3\n      %21 = if %20\n      %7 =", None),
        ("      %7 =", "      %20 = loop serial 0..%2 most 4\n      %7 =", None),
    ],
)
def test_rules_of_linear_programs(old: str, new: str, rule: str | None) -> None:
    assert old in LINEAR
    text = LINEAR.replace(old, new)
    closing = {"if ": "endif %21", "lo": "%22 = end %20"}
    for word, line in closing.items():
        if f"= {word}" in new:
            text = text.replace("    %8 =", f"      {line}\n    %8 =")
    if rule is None:
        verify_linear(parse_linear(text))
        return
    with pytest.raises(VerifyError, match=rule):
        verify_linear(parse_linear(text))


def test_an_exchange_in_which_some_threads_of_a_warp_take_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The verifiers refuse what might diverge; the interpreters find what does."""
    condition = "      %20 = lt b1 %5, %3\n      %21 = if %20\n      %7 ="
    text = LINEAR.replace("      %7 =", condition).replace("    %8 =", "      endif %21\n    %8 =")
    divergent = parse_linear(text)
    kernel = parse_kernel(PAIRS.format(distance=2).replace("loop u unroll 2", "if 3 - x >= 0"))
    monkeypatch.setattr(linear_interp, "verify_linear", lambda program: None)
    monkeypatch.setattr(interp, "verify_kernel", lambda kernel: None)
    with pytest.raises(VerifyError, match="only some of the threads of a warp"):
        linear_interp.interpret_linear(divergent, [np.zeros(16, np.float32)] * 2, [1])
    with pytest.raises(VerifyError, match="threads 0 to 15"):
        memory = {"out": np.zeros(64, np.float32), "in": np.zeros(64, np.float32)}
        interp.interpret_kernel(kernel, memory)


def test_a_warp_that_takes_no_part_is_no_error() -> None:
    values, active = np.arange(24), np.arange(24) % 12 < 8
    found = exchanged(values, active, (12, 1), 2, 8)
    np.testing.assert_array_equal(found, np.arange(24) // 12 * 12 + (np.arange(24) % 12 ^ 2))
    with pytest.raises(VerifyError, match="threads 8 to 11"):
        exchanged(values, np.arange(24) % 12 < 10, (12, 1), 2, 8)


def test_a_target_says_what_it_exchanges() -> None:
    with pytest.raises(InvalidValue, match="a power of two that divides"):
        replace(BLOCKS, shuffle=3)
    with pytest.raises(InvalidValue, match="a power of two that divides"):
        replace(BLOCKS, shuffle=8)
    fewer = replace(BLOCKS, native=replace(BLOCKS.native, shuffled=frozenset({dtypes.uint32})))
    assert len({BLOCKS.key, replace(BLOCKS, shuffle=2).key, fewer.key}) == 3


def test_a_renderer_for_a_machine_without_it_refuses_it() -> None:
    with pytest.raises(Unsupported, match="exchanges no float32 among 8 threads"):
        CRenderer(HOST).render(parse_linear(LINEAR))


# Reductions.


def reduction(monoid: str, dtype: DType, rows: int, columns: int) -> K.Kernel:
    """`out[i]` is what the elements of row i of `x` combine to."""
    identity = print_scalar(MONOIDS[monoid].identity(dtype))
    code, size = dtype.code, rows * columns
    return parse_kernel(f"""kernel reduced(out: {code}[{rows}] global, x: {code}[{size}] global)
  loop i serial {rows}
    alloc s: {code}[] private
    s[] = {identity}:{code}
    loop j serial {columns}
      s[] {monoid}= x[{columns}*i + j]
    out[i] = s[]
""")


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from([(m, d) for m in MONOIDS for d in ALL if d.kind in MONOIDS[m].domain]),
    st.integers(1, 6),
    st.integers(33, 700),
    st.sampled_from([2, 8, 16, 64]),
    st.sampled_from([0, 1, 2, 4, 8, 32]),
    st.booleans(),
)
def test_reductions_against_numpy(
    case: tuple[str, DType], rows: int, columns: int, threads: int, warp: int, first: bool
) -> None:
    monoid, dtype = case
    rng = np.random.default_rng(rows * columns)
    x = (rng.integers(-3, 4, (rows, columns)) * 0.5).astype(dtype.np)
    if monoid == "mul":
        x = np.where(x == 0, np.ones_like(x), np.sign(x) if dtype.is_signed else x | 1)
    opts: list[Opt] = [Bind("i", "grid")]
    if rows > 1:
        opts += [Split("i", 2, "mask"), Bind("ii", "thread")]
    axis = "ii" if rows > 1 else "i"
    kernel = apply(
        reduction(monoid, dtype, rows, columns),
        [*opts, DistributeThreads(axis, threads, first and rows > 1, warp=warp)],
    )
    verify_kernel(kernel)
    found = np.zeros(rows, dtype.np)
    interp.interpret_kernel(kernel, {"out": found, "x": x.reshape(-1)})
    again = np.zeros(rows, dtype.np)
    linear_interp.interpret_linear(linearize(kernel, BLOCKS), [again, x.reshape(-1)])
    with np.errstate(all="ignore"):
        wanted = MONOIDS[monoid].ufunc.reduce(x, axis=1, dtype=dtype.np)
    exact = monoid != "add" or not dtype.is_float or dtype.bits >= 32
    if exact:
        np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(again, wanted)
    np.testing.assert_array_equal(found, again)


@pytest.mark.parametrize("first", [False, True])
def test_nans_come_through(first: bool) -> None:
    for monoid in ("add", "max", "min"):
        opts = [Bind("i", "thread"), DistributeThreads("i", 16, first, warp=8)]
        kernel = apply(reduction(monoid, dtypes.float32, 4, 64), opts)
        x = random(4, 64)
        x[np.arange(4), [0, 17, 40, 63]] = np.nan
        out = np.zeros(4, np.float32)
        interp.interpret_kernel(kernel, {"out": out, "x": x.reshape(-1)})
        assert np.isnan(out).all()


def count(program: Program, op: str) -> int:
    return sum(inst.op == op for inst in program.body)


TARGETS = [
    *(replace(BLOCKS, warp=8, shuffle=8), amd_target("gfx1100"), amd_target("gfx942")),
    nv_target("sm_90"),
]


def threads_of(kernel: K.Kernel) -> list[int]:
    """Threads of a block along each thread loop."""
    found = (s for s in walk(kernel.body) if isinstance(s, K.Loop) and s.kind == "thread")
    return [loop.var.extent for loop in found]


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("shape", [(64, 24), (5, 100), (64, 4096), (1, 5000)])
def test_what_a_softmax_over_rows_takes(target: Target, shape: tuple[int, int]) -> None:
    """A barrier for each reduction over a block and an element of each warp; none within one."""
    kernel, _ = schedule(softmax(*shape), target)
    program = linearize(kernel, target)
    threads = threads_of(kernel)
    sharing, rows = threads[-1], math.prod(threads[:-1])
    parts = [buf for buf in allocated(kernel.body) if buf.space == "team" and buf.name != "e"]
    assert count(program, "shuffle_xor")
    if sharing <= target.shuffle:
        assert not parts and count(program, "barrier") == 0
    else:
        assert count(program, "barrier") == 2
        sizes = [math.prod(buf.shape) for buf in parts]
        assert sizes == [rows * sharing // target.shuffle] * 2 and sharing // target.shuffle <= 32
    if shape[0] * shape[1] < 10000:
        out, x = np.zeros(shape[0] * shape[1], np.float32), random(*shape)
        linear_interp.interpret_linear(program, [out, x.reshape(-1)])
        np.testing.assert_allclose(out, softmax_of(x), rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_where_there_are_many_rows_each_gets_a_warp(target: Target) -> None:
    count = max(2200, 20 * target.workers)
    rows = softmax(count, 16 * target.shuffle)
    kernel, _ = schedule(rows, target)
    assert threads_of(kernel)[-1] == target.shuffle
    without, _ = schedule(rows, replace(target, shuffle=0))
    assert threads_of(without)[-1] > target.shuffle
    if target is TARGETS[0]:
        x = random(count, 16 * target.shuffle)
        out = np.zeros(x.size, np.float32)
        linear_interp.interpret_linear(linearize(kernel, target), [out, x.reshape(-1)])
        np.testing.assert_allclose(out, softmax_of(x), rtol=2e-5, atol=1e-7)

"""Sums of products of narrow integers in words of neighbours: exact, whatever they are made of."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from gpu import dtypes
from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.kernel.text import parse_kernel, print_kernel
from gpu.compiler.ir.kernel.verify import verify_kernel
from gpu.compiler.ir.kernel.words import elements_of, neighbours, word_of
from gpu.compiler.ir.linear.text import parse_linear, print_linear
from gpu.compiler.ir.optable import DOTS, apply
from gpu.compiler.lower.linearize import linearize
from gpu.compiler.opt.analysis.reduction_nest import reduction_nest
from gpu.compiler.opt.opts import Dot, Tile
from gpu.compiler.opt.opts import apply as transformed
from gpu.compiler.opt.policy.choose import schedule
from gpu.compiler.opt.policy.cpu.dots import dots
from gpu.compiler.opt.policy.cpu.tiling import choose
from gpu.compiler.opt.primitives.dots import NEITHER, factors_of
from gpu.compiler.render.llvm.cpu import LLVMRenderer
from gpu.compiler.targets.cpu import host_target, missing_here
from gpu.compiler.toolchain.llvm import LLVMCompiler, emit_assembly
from gpu.core.dtype import DType
from gpu.core.errors import IllegalOpt
from gpu.runtime.tune.record import decode, encode
from tools.coalescing import memory
from tools.hot_loops import DIALECTS, assemblies, innermost_loops, is_scalar, operations
from unit.linear_kernels import Kernel, toolchain
from unit.reduction_kernels import outputs

BF16 = dtypes.bfloat16
NARROW = (dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.bool)
# CPUs with each of the instructions, and their dtypes for which factors have to be flipped.
CPUS = (
    "x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "znver4", "x86_64,avx2,avxvnni",
    "x86_64,avx2,avxvnniint8", "neoverse-n1", "neoverse-v1",
)  # fmt: skip
PRODUCT = """kernel product(out: {total}[{mn}] global, a: {a}[{mk}] global, b: {b}[{kn}] global)
  loop i serial {m}
    loop j serial {n}
      alloc s: {total}[] private
      s[] = {start}:{total}
      loop k serial {k}
        s[] add= mul({left}, {right})
      out[{n}*i + j] = add(s[], 3:{total})
"""


def cast(value: str, dtype: DType, total: DType) -> str:
    return value if dtype is total else f"cast.{total.code}({value})"


def product(
    m: int, k: int, n: int, a: DType, b: DType, total: DType, turned: bool = False, pad: int = 0
) -> K.Kernel:
    """A product of matrices; with `turned` the second lies along k, with `pad` a row has zeros."""
    mask = f" if k - {pad} >= 0" if pad else ""
    left = f"a[{k}*i + k{mask}]"
    right = f"b[{k}*j + k]" if turned else f"b[{n}*k + j]"
    return parse_kernel(
        PRODUCT.format(
            total=total.code, a=a.code, b=b.code, m=m, n=n, k=k, mn=m * n, mk=m * k, kn=k * n,
            left=cast(left, a, total), right=cast(right, b, total), start=7,
        )
    )  # fmt: skip


def extremes(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """Random elements, half of them the least or the largest; of floats few whole numbers."""
    if dtype is dtypes.bool:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.is_float:
        return rng.integers(-8, 9, shape).astype(dtype.np)
    values = rng.integers(int(dtype.min), int(dtype.max) + 1, shape)
    ends = np.where(rng.random(shape) < 0.5, int(dtype.min), int(dtype.max))
    return np.where(rng.random(shape) < 0.5, ends, values).astype(dtype.np)


def arrays_of(kernel: K.Kernel, rng: np.random.Generator) -> dict[str, np.ndarray]:
    out, *others = kernel.params
    arrays = {b.name: extremes(rng, b.dtype, b.shape) for b in others}
    return {out.name: np.zeros(out.shape, out.dtype.np), **arrays}


def draw(rng: np.random.Generator, floats: bool) -> K.Kernel:
    m, n = (int(rng.integers(1, 14)) for _ in range(2))
    k, pad = int(rng.integers(2, 14)), int(rng.integers(0, 2))
    if floats:
        return product(m, k, n, BF16, BF16, dtypes.float32, rng.random() < 0.5, pad)
    a, b = (NARROW[rng.integers(len(NARROW))] for _ in range(2))
    wide = max(a.itemsize, b.itemsize)
    totals = [d for d in (dtypes.int8, dtypes.int16, dtypes.uint32) if d.itemsize >= wide]
    return product(m, k, n, a, b, totals[rng.integers(len(totals))], rng.random() < 0.5, pad)


@pytest.mark.parametrize("name", DOTS)
def test_words_are_multiplied_element_by_element(name: str) -> None:
    rng, (elements, sums) = np.random.default_rng(0), DOTS[name]
    factors = [extremes(rng, d, (50, DOTS[name].together)) for d in elements]
    words, total = [x.view(np.uint32)[:, 0] for x in factors], extremes(rng, sums, (50,))
    wide = np.float64 if sums.is_float else np.int64
    wanted = total.astype(wide) + np.prod([x.astype(wide) for x in factors], 0).sum(1)
    np.testing.assert_array_equal(apply(name, sums, (*words, total)), wanted.astype(sums.np))


def test_a_word_shows_what_it_is_made_of() -> None:
    kernel = parse_kernel(
        "kernel k(out: u32[9] global, a: i8[40] global)\n  loop i serial 9\n    out[i] = 1:u32\n"
    )
    (loop,) = kernel.body.body
    assert isinstance(loop, K.Loop)
    at, a = loop.var * 4, kernel.params[1]
    loads = [K.load(a, (at + n,)) for n in range(4)]
    assert neighbours(K.cast(loads[0], dtypes.uint32)) is None
    for elements in (loads, [K.cast(load, dtypes.int16) for load in loads[:2]]):
        word = word_of(elements)
        assert len(elements_of(word)) == len(elements)
        found = neighbours(word)
        assert found is not None
        assert found.load is loads[0] and found.together == len(elements)
        assert neighbours(word_of(elements[::-1])) is None


@pytest.mark.parametrize("seed", range(len(CPUS) + 1))
def test_sums_in_words_are_those_of_products(seed: int) -> None:
    """Of all dtypes, by whichever instruction, tiled or not, as trees and as code."""
    rng = np.random.default_rng(seed)
    kernel = draw(rng, floats=seed == len(CPUS))
    cpu = [*CPUS, "znver4"][seed]
    target = host_target(cpu)
    arrays = arrays_of(kernel, rng)
    wanted = outputs(kernel, arrays, None)
    found = dots(kernel, target)
    dtype = max((b.dtype for b in kernel.params[1:]), key=lambda dtype: dtype.bits)
    has_none = {dtypes.int16: "neoverse" in cpu, BF16: cpu != "znver4"}
    assert bool(found) != has_none.get(dtype, False)
    assert decode(json.loads(json.dumps(encode(found)))) == tuple(found)
    for dot in found:
        made = transformed(kernel, [dot])
        verify_kernel(made)
        assert print_kernel(parse_kernel(print_kernel(made))) == print_kernel(made)
        lacking = replace(target.native, ops=target.native.ops - DOTS.keys())
        for wide, native in ((16, lacking), (64, target.native)):
            core = replace(target, vector_bytes=wide, native=native)
            tiled = choose(made, core)
            done = transformed(made, [Tile(tiled)]) if tiled else made
            np.testing.assert_array_equal(outputs(done, arrays, None), wanted)
            np.testing.assert_array_equal(outputs(done, arrays, core), wanted)
            program = linearize(done, core)
            assert print_linear(parse_linear(print_linear(program))) == print_linear(program)


@pytest.mark.parametrize("cpu", [cpu for cpu in CPUS if not missing_here(host_target(cpu))])
def test_instructions_of_this_machine_are_exact(cpu: str) -> None:
    """Of as many lanes as vectors have, and of fewer and more."""
    target, rng = host_target(cpu), np.random.default_rng(1)
    names = [name for name in DOTS if name in target.native.ops]
    tools, u32 = toolchain("LLVM", target), dtypes.uint32
    assert names
    made = []
    for name, lanes in itertools.product(names, (1, 2, 4, 8, 16, 32)):
        kernel = Kernel(a=(u32, 64), b=(u32, 64), c=(DOTS[name].sums, 64))
        loop = kernel.loop(64, lanes)
        loads = [kernel.load(p, loop, lanes) for p in (kernel.a, kernel.b, kernel.c)]
        kernel.store(kernel.c, loop, kernel.alu(name, *loads))
        kernel.end(loop)
        made.append((name, lanes, kernel))
    for (name, lanes, _), program in zip(
        made, tools.build_many([kernel for *_, kernel in made]), strict=True
    ):
        elements, sums = DOTS[name]
        shape = (64 * DOTS[name].together,)
        words = [extremes(rng, d, shape).view(np.uint32) for d in elements]
        total = extremes(rng, sums, (64,))
        wanted = apply(name, sums, (*words, total))
        program(*(array.ctypes.data for array in (*words, total)))
        np.testing.assert_array_equal(total, wanted, f"{name} of {lanes} lanes")


@pytest.mark.parametrize("cpu", CPUS)
def test_loops_of_products_multiply_words(cpu: str) -> None:
    """And compute in no lane alone; LLVM knows the instructions of CPUs that are not here too."""
    target = host_target(cpu)
    dialect = DIALECTS[target.name]
    machine = LLVMCompiler(target.name, target.features).machine
    first = (dtypes.int8, dtypes.uint8)[CPUS.index(cpu) % 2]
    done, opts = schedule(product(65, 67, 63, first, dtypes.int8, dtypes.int32), target)
    assert [type(opt) for opt in opts if isinstance(opt, Dot | Tile)] == [Dot, Tile]
    text = emit_assembly(LLVMRenderer(target).render(linearize(done, target)), machine)
    loops = [loop for loop in innermost_loops(text) if operations(loop, dialect)]
    hottest = max(loops, key=lambda loop: operations(loop, dialect))
    assert any(dot in inst.name for inst in hottest for dot in ("pmaddwd", "pdp", "dot"))
    assert not any(is_scalar(inst, dialect) for loop in loops for inst in loop)


def test_what_is_flipped_is_the_factor_that_has_to_be() -> None:
    i8, u8, i32 = dtypes.int8, dtypes.uint8, dtypes.int32

    def flipped(a: DType, b: DType, name: str) -> set[int]:
        nest = reduction_nest(product(4, 8, 4, a, b, i32).body)
        assert nest is not None
        return {*factors_of(nest, name)}

    assert flipped(u8, i8, "dot_u8i8") == flipped(i8, u8, "dot_u8i8") == {NEITHER}
    assert flipped(i8, i8, "dot_u8i8") == flipped(u8, u8, "dot_u8i8") == {0, 1}
    assert flipped(i8, u8, "dot_i8i8") == flipped(u8, i8, "dot_u8u8") == {1}
    assert flipped(u8, i8, "dot_i16i16") == {NEITHER}
    assert flipped(dtypes.int16, i8, "dot_i8i8") == set()


def test_casts_that_lose_a_sign_stay() -> None:
    """A byte as uint16 and then int32 is another number, but in uint32 the same modulo 2**32."""
    i8, target = dtypes.int8, host_target("x86-64-v3")
    text = print_kernel(product(9, 8, 9, i8, i8, dtypes.int32))
    turned = text.replace("cast.i32(a[8*i + k])", "cast.i32(cast.u16(a[8*i + k]))")
    assert turned != text and not dots(parse_kernel(turned), target)
    assert dots(product(9, 8, 9, i8, i8, dtypes.uint32), target)


@pytest.mark.parametrize(
    ("axis", "name", "flipped"),
    [
        ("i", "dot_i8i8", NEITHER),
        ("k", "dot_u8u8", NEITHER),
        ("k", "dot_i8i8", 0),
        ("x", "dot_i8i8", 1),
    ],
)
def test_other_sums_are_refused(axis: str, name: str, flipped: int) -> None:
    kernel = product(4, 8, 4, dtypes.int8, dtypes.int8, dtypes.int32)
    with pytest.raises(IllegalOpt, match="no loop of a sum of products"):
        transformed(kernel, [Dot(axis, name, flipped)])


def test_other_floats_and_maxima_have_no_words() -> None:
    target = host_target("znver4")
    floats = product(9, 8, 9, BF16, dtypes.float32, dtypes.float32)
    maxima = print_kernel(product(9, 8, 9, dtypes.int8, dtypes.int8, dtypes.int32))
    assert not dots(floats, target)
    assert not dots(parse_kernel(maxima.replace("add= ", "max= ")), target)
    plain = host_target("neoverse-n1,-dotprod")
    assert not dots(product(9, 8, 9, dtypes.int8, dtypes.int8, dtypes.int32), plain)


def test_convolutions_multiply_words() -> None:
    """Of channels, whatever their number, and with zeros around them."""
    x = memory(2, 6, 12, 12, dtype=dtypes.int8)
    w = memory(20, 6, 3, 3, dtype=dtypes.int8)
    (text,) = assemblies(x.conv2d(w, padding=1, dtype=dtypes.int32), "znver5")
    assert "vpdpbusd" in text

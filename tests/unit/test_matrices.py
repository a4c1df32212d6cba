"""Matrix instructions: the table, both IRs, the transformations, and the policy that picks them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from gpu.backends.python.device import BLOCKS
from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.kernel.interp import interpret_kernel
from gpu.compiler.ir.kernel.text import parse_kernel, print_kernel
from gpu.compiler.ir.kernel.tree import rewrite, walk
from gpu.compiler.ir.kernel.verify import verify_kernel
from gpu.compiler.ir.linear.interp import interpret_linear
from gpu.compiler.ir.linear.text import parse_linear, print_linear
from gpu.compiler.ir.linear.verify import verify_linear
from gpu.compiler.ir.matrix import (
    CDNA3,
    CDNA4,
    MATRICES,
    PTX,
    RDNA3,
    RDNA4,
    WARP,
    Layout,
    multiply,
    names_for,
    spread,
    whole,
)
from gpu.compiler.lower.linearize import linearize
from gpu.compiler.opt.opts import MatrixTile, apply
from gpu.compiler.opt.policy.choose import schedule
from gpu.compiler.opt.policy.gpu.mma import by_instructions
from gpu.compiler.targets import Target
from gpu.core.dtype import dtypes
from gpu.core.errors import IllegalOpt, VerifyError
from unit.matrix_kernels import PRODUCTS, Array, Product

GPU = replace(BLOCKS, name="gpu", threads=256, shared_bytes=64 << 10, warp=32, workers=2)


def tiled(product: Product, target: Target = BLOCKS) -> K.Kernel:
    """A product by matrix instructions."""
    kernel, _ = schedule(product.kernel(), target)
    assert any(isinstance(s, K.Mma) for s in walk(kernel.body)), "matrix instructions are used"
    verify_kernel(kernel)
    return kernel


def without(kernel: K.Kernel, kind: type) -> K.Kernel:
    """The kernel with no statements of a kind."""
    body = rewrite(kernel.body, lambda s: K.Block(()) if isinstance(s, kind) else None)
    assert isinstance(body, K.Block)
    return kernel._replace(body=body)


def run_kernel(kernel: K.Kernel, arrays: list[Array]) -> None:
    interpret_kernel(kernel, {p.name: x for p, x in zip(kernel.params, arrays, strict=True)})


@pytest.mark.parametrize("name", names_for(PTX))
def test_threads_hold_every_element_once(name: str) -> None:
    how, rng = MATRICES[name], np.random.default_rng(1)
    shapes = {"a": (how.m, how.k), "b": (how.n, how.k), "c": (how.m, how.n)}
    held = {}
    for operand, shape in shapes.items():
        numbers = np.arange(np.prod(shape)).reshape(1, *shape)
        held[operand] = spread(numbers, getattr(how, operand))
        assert held[operand].shape[:2] == (1, WARP)
        assert sorted(held[operand].ravel()) == list(range(numbers.size))
        assert (whole(held[operand], getattr(how, operand), shape) == numbers).all()
    # "PTX ISA", the figures of mma.m16n8k16: what thread 5 has.
    places = [divmod(int(x), 16) for x in held["a"][0, 5].ravel()]
    assert places == [(1, 2), (1, 3), (9, 2), (9, 3), (1, 10), (1, 11), (9, 10), (9, 11)]
    assert [divmod(int(x), 16) for x in held["b"][0, 5].ravel()] == [(1, s) for s in (2, 3, 10, 11)]
    assert [divmod(int(x), 8) for x in held["c"][0, 5].ravel()] == [(1, 2), (1, 3), (9, 2), (9, 3)]
    a, b, c = (rng.standard_normal((3, *shapes[x])).astype(np.float32) for x in "abc")
    total = multiply(how, spread(a, how.a), spread(b, how.b), spread(c, how.c))
    want = c + a @ b.transpose(0, 2, 1)
    np.testing.assert_allclose(whole(total, how.c, shapes["c"]), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_products_in_both_irs(product: Product) -> None:
    kernel = tiled(product)
    arrays = product.arrays(2)
    run_kernel(kernel, arrays)
    product.check(arrays)
    program = linearize(kernel, BLOCKS)
    verify_linear(program)
    again = product.arrays(3)
    interpret_linear(program, again)
    product.check(again)


AMD = (RDNA3, RDNA4, CDNA3, CDNA4)


@pytest.mark.parametrize("name", [name for layout in AMD for name in names_for(layout)])
def test_lanes_of_waves_hold_what_their_maker_says(name: str) -> None:
    """AMD's "Matrix Instruction Calculator": lane and register of A[i][k], B[k][j] and C[i][j].

    Steps of a row may be in another order, of A and B alike, if each is in just one lane.
    """
    how = MATRICES[name]
    assert how.layout is not None
    left, right, sums = how.parts
    lane = np.arange(how.threads)[:, None]
    assert how.threads == (64 if how.layout in (CDNA3, CDNA4) else 32)
    for part in (left, right):
        assert (part.row == lane % 16).all() and part.column.min() == 0
        groups = [set(part.column[first].ravel()) for first in range(0, how.threads, 16)]
        if how.layout is RDNA3:
            assert groups == [set(range(16))] * 2
        else:
            assert sorted(step for group in groups for step in group) == list(range(how.k))
    number = np.arange(sums.held)
    rows = {RDNA3: 2 * number + lane // 16, RDNA4: number + 8 * (lane // 16)}
    assert (sums.row == rows.get(how.layout, number + 4 * (lane // 16))).all()
    assert (sums.column == lane % 16).all()
    assert how.a == how.b == how.c == ((0, 0),)


@pytest.mark.parametrize("layout", [PTX, *AMD], ids=lambda layout: layout.name)
@pytest.mark.parametrize("seed", range(8))
def test_random_products(seed: int, layout: Layout) -> None:
    rng = np.random.default_rng(seed)
    m, n = (int(rng.integers(4, 140)) for _ in "mn")
    k = int(rng.integers(8, 100))
    dtype = (dtypes.float16, dtypes.bfloat16)[seed % 2]
    left, right, fused = (bool(x) for x in rng.integers(0, 2, 3))
    product = Product(m, n, k, dtype, int(rng.integers(1, 4)), left, right, fused)
    check_product(product, seed, layout)


BYTES = [name for layout in AMD for name in names_for(layout) if MATRICES[name].operand.bits == 8]


@pytest.mark.parametrize("name", BYTES)
def test_random_products_of_bytes(name: str) -> None:
    how, seed = MATRICES[name], BYTES.index(name)
    rng = np.random.default_rng(seed)
    m, n, k = (int(rng.integers(12, 100)) for _ in "mnk")
    left, right, fused = (bool(x) for x in rng.integers(0, 2, 3))
    product = Product(m, n, k, how.operand, 1, left, right, fused, how.other)
    assert how.layout is not None
    kernel = check_product(product, seed, how.layout)
    # Which operand has the rows is for the policy to say.
    used = {MATRICES[s.name].operands for s in walk(kernel.body) if isinstance(s, K.Mma)}
    assert used <= {how.operands, how.operands[::-1]}


def check_product(product: Product, seed: int, layout: Layout) -> K.Kernel:
    """A product by instructions of a layout, in both IRs; the kernel."""
    target = replace((BLOCKS, GPU)[seed // 2 % 2], matrices=names_for(layout))
    arrays = product.arrays(seed)
    kernel = tiled(product, target)
    run_kernel(kernel, arrays)
    product.check(arrays)
    again = product.arrays(seed + 1)
    interpret_linear(linearize(kernel, target), again)
    product.check(again)
    return kernel


@pytest.mark.parametrize("product", [Product(256, 256, 160), Product(128, 256, 128, left=True)])
def test_large_tiles(product: Product) -> None:
    kernel = tiled(product, GPU)
    arrays = product.arrays(4)
    interpret_linear(linearize(kernel, GPU), arrays)
    product.check(arrays)


@pytest.mark.parametrize("product", PRODUCTS[:4], ids=str)
def test_texts_read_back(product: Product) -> None:
    kernel = tiled(product)
    assert print_kernel(parse_kernel(print_kernel(kernel))) == print_kernel(kernel)
    program = linearize(kernel, BLOCKS)
    assert print_linear(parse_linear(print_linear(program))) == print_linear(program)


def test_a_missing_wait_shows() -> None:
    product = PRODUCTS[0]
    kernel = without(tiled(product), K.Wait)
    for run in (run_kernel, lambda k, x: interpret_linear(linearize(k, BLOCKS), x)):
        arrays = product.arrays(5)
        run(kernel, arrays)
        assert np.isnan(arrays[0].astype(np.float32)).any()


def test_a_missing_barrier_is_a_race() -> None:
    product = PRODUCTS[0]
    kernel = without(tiled(product), K.Barrier)
    with pytest.raises(VerifyError, match="a race"):
        run_kernel(kernel, product.arrays(6))
    with pytest.raises(VerifyError, match="a race"):
        interpret_linear(linearize(kernel, BLOCKS), product.arrays(6))


def test_copies_run_ahead() -> None:
    kernel = tiled(Product(64, 64, 256), GPU)
    waits = [s.pending for s in walk(kernel.body) if isinstance(s, K.Wait)]
    copies = [s for s in walk(kernel.body) if isinstance(s, K.AsyncCopy)]
    slots = {s.buf.shape[0] for s in walk(kernel.body) if isinstance(s, K.AsyncCopy)}
    assert waits == [1] and slots == {3} and {s.size for s in copies} == {8}


def changed(**replaced: str) -> K.Kernel:
    """The first product with parts of its text replaced, each named by a word of `PARTS`."""
    text = print_kernel(PRODUCTS[0].kernel())
    for part, new in replaced.items():
        assert PARTS[part] in text
        text = text.replace(PARTS[part], new)
    return parse_kernel(text)


PARTS = {
    "declared": "a: f16[4096]", "operand": "cast.f32(a[64*i + r])", "combines": "add= mul",
    "last": "b: f16[4096] global", "columns": "loop j serial 64", "steps": "loop r serial 64",
}  # fmt: skip
AT_LAUNCH = f"{PARTS['last']}; n 0..3"
OTHERS: dict[str, Callable[[], K.Kernel]] = {
    "float32 is never rounded": lambda: changed(declared="a: f32[4096]", operand="a[64*i + r]"),
    "not of 16 bits": lambda: changed(operand="mul(cast.f32(a[64*i + r]), 2.0:f32)"),
    "no product of matrices": lambda: changed(combines="max= mul"),
    "one factor depends on all": lambda: Product(1, 64, 64).kernel(),
    "one would be of use": lambda: Product(2, 3, 64).kernel(),
    "independent loops, of known": lambda: changed(last=AT_LAUNCH, columns="loop j serial 16*n"),
    "reduction .* of known": lambda: changed(last=AT_LAUNCH, steps="loop r serial 16*n"),
}


@pytest.mark.parametrize("reason", OTHERS)
def test_what_is_no_product_for_instructions_says_why(reason: str) -> None:
    kernel = OTHERS[reason]()
    with pytest.raises(IllegalOpt, match=reason):
        list(by_instructions(kernel, BLOCKS))
    scheduled, _ = schedule(kernel, BLOCKS)
    assert not any(isinstance(s, K.Mma) for s in walk(scheduled.body))


def test_other_operands_are_made_narrow_while_they_are_copied() -> None:
    kernel = changed(operand="cast.f32(neg(cast.f16(a[64*i + r])))", declared="a: f32[4096]")
    done, _ = schedule(kernel, BLOCKS)
    assert any(isinstance(s, K.Mma) for s in walk(done.body))
    assert {s.source.name for s in walk(done.body) if isinstance(s, K.AsyncCopy)} == {"b"}
    out, a, b = PRODUCTS[0].arrays(7)
    wide = a.astype(np.float32) * np.float32(1.001)
    run_kernel(done, [out, wide, b])
    PRODUCTS[0].check([out, -wide.astype(np.float16), b])


def test_tilings_that_the_product_does_not_have_are_refused() -> None:
    kernel = PRODUCTS[0].kernel()
    (opt,) = by_instructions(kernel, BLOCKS)
    assert isinstance(opt, MatrixTile)
    good = opt.tiling
    refused = {
        "is no instruction of a warp": good._replace(name="m16n16k32.bf16"),
        "sums are of float32": good._replace(name="m16n16k16.i8"),
        "operands are of": good._replace(name="m16n8k16.bf16"),
        "each of .* once": good._replace(rows=("i", "j")),
        "depends on rows and columns": good._replace(rows=("i", "j"), columns=()),
        "steps are some of": good._replace(steps=("j",)),
        "multiples of 16": good._replace(depth=24),
        "sizes are positive": good._replace(warps=(0, 1, 1)),
        "no 9 of them at once": good._replace(slots=9),
    }
    for reason, tiling in refused.items():
        with pytest.raises(IllegalOpt, match=reason):
            apply(kernel, [MatrixTile(tiling)])


HEAD = """kernel k(x: f16[64] global, y: f16[64] global)
  alloc s: f16[512] team
  loop w thread {threads}
    alloc a: f16[1,4,2] fragment
    alloc b: f16[1,2,2] fragment
    alloc c: f32[1,2,2] private
"""
BROKEN = {
    "does not begin at": "copy s[w] = x[8] size 8",
    "has \\(4, 8, 16\\) bytes": "copy s[0] = x[0] size 3",
    "only read": "copy s[0] = y[0] size 8\n    y[w] = 0.0:f16",
    "begin at multiples of 8": "fragment a[0] = s[0] row 12 steps (96, 8)",
    "783, is 783": "fragment a[0] = s[480] row 40 steps (8, 8)",
    "no whole rows": "fragment a[0] = s[0] row 8 steps (64)",
    "must be fragment": "fragment c[0] = s[0] row 8 steps (64)",
    "must hold 2 parts": "mma c[0] += a[0] a[0] m16n8k16.f16",
    "must hold bf16": "mma c[0] += a[0] b[0] m16n8k16.bf16",
    "differs between threads": "if w - 1 >= 0\n      mma c[0] += a[0] b[0] m16n8k16.f16",
    "only a mma reads": "y[w] = a[0, 0, 0]",
}


@pytest.mark.parametrize("rule", BROKEN)
def test_rules_of_kernels(rule: str) -> None:
    text = HEAD.format(threads=32) + f"    {BROKEN[rule]}\n"
    with pytest.raises(VerifyError, match=rule):
        verify_kernel(parse_kernel(text))


def test_warps_are_whole() -> None:
    text = HEAD.format(threads=48) + "    mma c[0] += a[0] b[0] m16n8k16.f16\n"
    with pytest.raises(VerifyError, match="warps of 32, a block has 48"):
        verify_kernel(parse_kernel(text))


LINEAR = """program k(y: f16[64] written, x: f16[64])
  %0 = param f16 y
  %1 = param f16 x
  %2 = const i64 0
  %3 = local f16 512 team
  %4 = loop thread 0..32
    {line}
  %9 = end %4
"""
BROKEN_LINES = {
    "only read": "copy %3, %2, %0, %2 (8)",
    "to team memory": "copy %0, %2, %1, %2 (8)",
    "bytes": "copy %3, %2, %1, %2 (16)",
    "from team memory": "%5 = fragment f16x8 %1, %2 (0)",
    "1, 2 or 4 parts": "%5 = fragment f16x6 %3, %2 (0)",
    "takes 6 parts and 4 sums": (
        "%5 = fragment f16x2 %3, %2 (0)\n    %6 = mma f32x4 %5 (m16n8k16.f16)"
    ),
    "differs between threads": "%5 = lt b1 %4, %2\n    %6 = if %5\n      wait 0\n    endif %6",
}


@pytest.mark.parametrize("rule", BROKEN_LINES)
def test_rules_of_linear_programs(rule: str) -> None:
    line = BROKEN_LINES[rule].replace("wait 0", "wait (0)")
    with pytest.raises(VerifyError, match=rule):
        verify_linear(parse_linear(LINEAR.format(line=line)))


def test_targets_differ_by_their_instructions() -> None:
    assert BLOCKS.key != replace(BLOCKS, matrices=()).key
    plain, _ = schedule(PRODUCTS[0].kernel(), replace(BLOCKS, matrices=()))
    assert not any(isinstance(s, K.Mma) for s in walk(plain.body))
    assert dtypes.float32 not in {how.operand for how in MATRICES.values()}

"""Matrix instructions of one thread: AMX, from the table to machine code that multiplies.

Where a machine lacks AMX the code is compiled all the same and runs with its tile instructions
emulated (`tests/unit/amx_emulator.py`); with AMX it runs as it is.
"""

from __future__ import annotations

import platform
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from gpu import Context, Device, Tensor, dtypes
from gpu.backends.cpu import device as cpu_device
from gpu.backends.cpu.program import CPUProgram
from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.kernel.interp import interpret_kernel
from gpu.compiler.ir.kernel.text import parse_kernel, print_kernel
from gpu.compiler.ir.kernel.tree import walk
from gpu.compiler.ir.kernel.verify import verify_kernel
from gpu.compiler.ir.linear.interp import interpret_linear
from gpu.compiler.ir.linear.text import parse_linear, print_linear
from gpu.compiler.ir.linear.verify import verify_linear
from gpu.compiler.ir.matrix import MATRICES, multiply, names_for, spread, whole
from gpu.compiler.lower.linearize import linearize
from gpu.compiler.opt.analysis.loop_nest import SHARED
from gpu.compiler.opt.opts import Distribute, Opt, Pack, Tensorize, Widen, apply
from gpu.compiler.opt.policy.choose import schedule
from gpu.compiler.opt.policy.cpu.amx import by_thread
from gpu.compiler.render.cstyle.c import CRenderer
from gpu.compiler.render.launch.cpu_abi import scratch_bytes
from gpu.compiler.render.llvm.cpu import LLVMRenderer
from gpu.compiler.targets import Target, cpu
from gpu.compiler.targets.cpu import host_target, missing_here
from gpu.compiler.toolchain.llvm import LLVMCompiler
from gpu.core.errors import IllegalOpt, VerifyError
from gpu.core.tiledata import tiles_refused
from gpu.runtime.execute import is_computed
from gpu.runtime.explain import explain
from unit.amx_emulator import emulated
from unit.matrix_kernels import Array, Product

BF16 = dtypes.bfloat16
SPR = host_target("sapphirerapids", workers=2)
NAME = "m16n16k32.bf16"
PRODUCTS = (
    Product(32, 32, 64, BF16),
    Product(64, 48, 64, BF16, left=True, fused=True),
    Product(16, 20, 33, BF16, right=True, batch=2),
    Product(33, 35, 33, BF16, fused=True),
    Product(20, 128, 33, BF16, left=True, right=True),
    Product(16, 16, 32, BF16),
    Product(64, 64, 32, BF16, right=True, fused=True),
    Product(176, 32, 32, BF16),
)
"""Sizes that tiles divide and that they do not, and every way that operands can lie."""


def tiled(product: Product, target: Target = SPR) -> K.Kernel:
    """A product by tiles."""
    kernel, _ = schedule(product.kernel(), target)
    assert any(isinstance(s, K.Mma) for s in walk(kernel.body)), "matrix instructions are used"
    verify_kernel(kernel)
    return kernel


def run_kernel(kernel: K.Kernel, arrays: list[Array]) -> None:
    interpret_kernel(kernel, {p.name: x for p, x in zip(kernel.params, arrays, strict=True)})


@pytest.mark.parametrize("name", names_for(None))
def test_a_thread_holds_every_element_once(name: str) -> None:
    how, rng = MATRICES[name], np.random.default_rng(1)
    shapes = ((how.m, how.k), (how.n, how.k), (how.m, how.n))
    held = []
    for shape, places, part in zip(shapes, (how.a, how.b, how.c), how.parts, strict=True):
        numbers = np.arange(np.prod(shape)).reshape(1, *shape)
        held.append(spread(numbers, places, part))
        assert held[-1].shape == (1, 1, 1, numbers.size)
        assert sorted(held[-1].ravel()) == list(range(numbers.size))
        assert (whole(held[-1], places, shape, part) == numbers).all()
    # TDPBF16PS: pair n of row p of B holds steps 2 * p and 2 * p + 1 of column n; of bytes, four.
    steps, row = how.together, 16 * how.together
    places = [divmod(int(x), how.k) for x in held[1].ravel()[[0, 1, steps, row, row + 1]]]
    assert places == [(0, 0), (0, 1), (1, 0), (0, steps), (0, steps + 1)]
    a, b, c = (rng.integers(0, 99, (3, *shape)).astype(how.sums.np) for shape in shapes)
    parts = zip((a, b, c), (how.a, how.b, how.c), how.parts, strict=True)
    total = multiply(how, *(spread(*part) for part in parts))
    want = c + a @ b.transpose(0, 2, 1)
    got = whole(total, how.c, shapes[2], how.parts[2])
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("product", PRODUCTS[:4], ids=str)
def test_products_in_both_irs(product: Product) -> None:
    kernel = tiled(product)
    arrays = product.arrays(2)
    run_kernel(kernel, arrays)
    product.check(arrays)
    program = linearize(kernel, SPR)
    verify_linear(program)
    again = product.arrays(3)
    interpret_linear(program, again)
    product.check(again)
    assert print_kernel(parse_kernel(print_kernel(kernel))) == print_kernel(kernel)
    assert print_linear(parse_linear(print_linear(program))) == print_linear(program)


def random_product(seed: int) -> Product:
    """A product that tiles pay for, with columns enough for any way that its rows lie."""
    rng = np.random.default_rng(seed)
    m, n, k = (int(rng.integers(*r)) for r in ((44, 61), (128, 141), (60, 80)))
    left, right, fused = (bool(x) for x in rng.integers(0, 2, 3))
    return Product(m, n, k, BF16, int(rng.integers(1, 3)), left, right, fused)


def test_a_random_product_in_linear_ir() -> None:
    seed = int(np.random.default_rng().integers(1 << 20))
    product, target = random_product(seed), host_target("sapphirerapids", workers=1 + seed % 4)
    arrays = product.arrays(seed)
    interpret_linear(linearize(tiled(product, target), target), arrays)
    product.check(arrays)


# Machine code.

_BYTES = {
    # Three-byte VEX prefix, opcode and operands, from the pages of each instruction.
    "tdpbf16ps": rb"\xc4\xe2[\x42\x4a\x52\x5a\x62\x6a\x72\x7a]\x5c[\xc0-\xff]",
    "tileloadd": rb"\xc4[\x82\xa2\xc2\xe2]\x7b\x4b[\x04-\xbc]",
    "tilestored": rb"\xc4[\x82\xa2\xc2\xe2]\x7a\x4b[\x04-\xbc]",
    "ldtilecfg": rb"\xc4[\x82\xa2\xc2\xe2]\x78\x49",
    "tilerelease": rb"\xc4\xe2\x78\x49\xc0",
}


@pytest.mark.parametrize(
    ("product", "rows", "columns"),
    [(PRODUCTS[0], 2, 2), (PRODUCTS[1], 2, 2), (PRODUCTS[2], 1, 2)],
)
def test_objects_hold_tile_instructions(product: Product, rows: int, columns: int) -> None:
    program = linearize(tiled(product), SPR)
    lib = LLVMCompiler(SPR.name, SPR.features).compile(LLVMRenderer(SPR).render(program))
    found = {name: len(re.findall(pattern, lib, re.DOTALL)) for name, pattern in _BYTES.items()}
    # Sums are loaded before the loop and stored after it; were tiles spilled, there would be more.
    assert found["tdpbf16ps"] == found["tilestored"] == rows * columns
    assert found["tileloadd"] == rows * columns + rows + columns
    assert found["ldtilecfg"] == 2 and found["tilerelease"] == 1  # the one's bytes begin the other


def test_the_inner_loop_is_loads_and_products() -> None:
    from gpu.compiler.toolchain.llvm import cpu_machine, emit_assembly

    source = LLVMRenderer(SPR).render(linearize(tiled(PRODUCTS[0]), SPR))
    text = emit_assembly(source, cpu_machine(SPR.name, SPR.features))
    (block,) = [b for b in re.split(r"^\.L\w+:", text, flags=re.MULTILINE) if "tdpbf16ps" in b]
    loop = block[: re.search(r"^\tj\w+", block, re.MULTILINE).end()]  # type: ignore[union-attr]
    used = Counter(re.findall(r"^\t(t(?:ile|dp)\w+)", loop, re.MULTILINE))
    assert used == {"tileloadd": 4, "tdpbf16ps": 4}
    assert loop.count("\n") < 20


@contextmanager
def amx() -> Iterator[Counter[str]]:
    """Code inside has AMX: this machine's, or an emulated one whose instructions are counted."""
    if {"+amx-bf16", "+amx-int8"} <= set(host_target().features.split(",")):
        yield Counter(tdpbf16ps=1)
        return
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        pytest.skip("AMX is emulated on Linux and x86-64 alone")
    with emulated() as done:
        yield done


def features_here() -> str:
    return f"x86_64,{host_target().features.replace('+', '')},amx-bf16,amx-int8"


def run_on(arrays: list[Array], kernel: K.Kernel, workers: int = 1) -> Counter[str]:
    """Compiles a kernel with tiles and runs it on arrays."""
    with amx() as done:
        target = host_target(features_here(), workers)
        scheduled, _ = schedule(kernel, target)
        assert any(isinstance(s, K.Mma) for s in walk(scheduled.body)), "tiles are multiplied"
        program = linearize(scheduled, target)
        text = LLVMRenderer(target).render(program)
        lib = LLVMCompiler(target.name, target.features).compile(text)
        code = CPUProgram(program.name, lib, scratch_bytes(program))
        code(*(array.ctypes.data for array in arrays))
    return done


def run(product: Product, seed: int, workers: int = 1) -> Counter[str]:
    """Runs a product and checks what it gives."""
    arrays = product.arrays(seed)
    done = run_on(arrays, product.kernel(), workers)
    product.check(arrays)
    return done


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_machine_code_multiplies(product: Product) -> None:
    run(product, 7, workers=4)


@pytest.mark.parametrize("seed", range(4, 7))
def test_machine_code_of_random_products(seed: int) -> None:
    run(random_product(seed), seed, workers=seed)


TWO_SUMS = """kernel k(out: f32[1024] global, a: bf16[3072] global, b: bf16[3072] global)
  loop i serial 32
    loop j serial 32
      alloc t: f32[] private
      block
        t[] = 0.0:f32
        loop r serial 3
          loop q serial 32
            t[] add= mul(cast.f32(b[j + 96*q + 32*r]), cast.f32(a[96*i + q + 32*r]))
      out[32*i + j] = t[]
"""


def test_sums_over_two_loops() -> None:
    rng = np.random.default_rng(13)
    a, b = (rng.standard_normal(3072).astype(BF16.np) for _ in "ab")
    for workers in (1, 4):
        out = np.zeros(1024, np.float32)
        done = run_on([out, a, b], parse_kernel(TWO_SUMS), workers)
        left = a.astype(np.float64).reshape(32, 3, 32)
        want = np.einsum("irq,qrj->ij", left, b.astype(np.float64).reshape(32, 3, 32))
        np.testing.assert_allclose(out.reshape(32, 32), want, atol=1e-4)
        assert done["tdpbf16ps"] in (1, 12)


INTEGERS = """kernel k(out: i32[{mn}] global, a: {a}[{mk}] global, b: {b}[{kn}] global)
  loop i serial {m}
    loop j serial {n}
      alloc t: i32[] private
      block
        t[] = 0:i32
        loop r serial {k}
          t[] add= mul(cast.i32(a[{k}*i + r]), cast.i32(b[{at}]))
      out[{n}*i + j] = t[]
"""


@pytest.mark.parametrize(
    ("a", "b", "instruction"),
    [
        ("i8", "i8", "tdpbssd"),
        ("u8", "u8", "tdpbuud"),
        ("i8", "u8", "tdpbsud"),
        ("u8", "i8", "tdpbusd"),
    ],
)
def test_products_of_bytes_are_exact(a: str, b: str, instruction: str) -> None:
    rng = np.random.default_rng(14)
    for m, n, k, right in ((32, 32, 64, False), (50, 68, 134, False), (32, 20, 128, True)):
        left, other = (
            rng.integers(-128, 128, size).astype(np.int8).view(f"{'i' if x == 'i8' else 'u'}1")
            for x, size in ((a, m * k), (b, k * n))
        )
        at = f"{k}*j + r" if right else f"{n}*r + j"
        sizes = {"m": m, "n": n, "k": k, "mn": m * n, "mk": m * k, "kn": k * n}
        kernel = parse_kernel(INTEGERS.format(a=a, b=b, at=at, **sizes))
        matrix = other.astype(np.int32)
        matrix = matrix.reshape(n, k).T if right else matrix.reshape(k, n)
        want = (left.astype(np.int32).reshape(m, k) @ matrix).ravel()
        out = np.zeros(m * n, np.int32)
        done = run_on([out, left, other], kernel)
        assert (out == want).all()
        if k == 64:
            out[:] = 0
            interpret_linear(linearize(schedule(kernel, SPR)[0], SPR), [out, left, other])
            assert (out == want).all()
        assert "tileloadd" not in done or done[instruction]


@pytest.mark.parametrize(("dtype", "m", "n", "k"), [("i8", 33, 17, 131), ("u8", 41, 14, 474)])
def test_sums_of_fewer_bits_have_the_lowest_of_wide_ones(
    dtype: str, m: int, n: int, k: int
) -> None:
    rng, held = np.random.default_rng(15), np.int8 if dtype == "i8" else np.uint8
    sizes = {"m": m, "n": n, "k": k, "mn": m * n, "mk": m * k, "kn": k * n}
    text = INTEGERS.format(a=dtype, b=dtype, at=f"{n}*r + j", **sizes).replace("i32", dtype)
    kernel = parse_kernel(re.sub(rf"cast\.{dtype}\((\w\[[^]]*\])\)", r"\1", text))
    a, b = (rng.integers(0, 256, size).astype(np.uint8).view(held) for size in (m * k, k * n))
    out = np.zeros(m * n, held)
    run_on([out, a, b], kernel)
    assert (out == (a.reshape(m, k) @ b.reshape(k, n)).ravel()).all()
    assert Widen() in schedule(kernel, SPR)[1]
    assert Widen() not in schedule(PRODUCTS[0].kernel(), SPR)[1]
    with pytest.raises(IllegalOpt, match="are not wider in int32"):
        apply(apply(kernel, [Widen()]), [Widen()])


def test_tiles_of_operands_are_used_twice() -> None:
    done = run(Product(64, 64, 64, BF16), 8)
    if "tileloadd" in done:  # they were counted
        products = 4 * 4 * 2
        assert done["tdpbf16ps"] == products and done["tileloadd"] == products + 16
        assert done["ldtilecfg"] == done["tilerelease"] == 1


@pytest.fixture
def with_amx(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """The default device is a CPU that has AMX."""
    monkeypatch.setattr(cpu_device, "missing_here", lambda target: [])
    with amx() as done, Context(DEV=f"CPU:8:LLVM:{features_here()}"):
        yield done


def bf16(rng: np.random.Generator, *shape: int) -> Tensor:
    return Tensor(rng.standard_normal(shape).astype(np.float32)).cast(BF16).realize()


def test_tensors_multiply_on_workers(with_amx: Counter[str]) -> None:
    rng = np.random.default_rng(9)
    x, w, b = bf16(rng, 96, 64), bf16(rng, 64, 64), bf16(rng, 64)
    assert SHARED <= 96 * 64 * 64
    got = (x @ w.T + b).relu().float().numpy()
    wide = [t.float().numpy().astype(np.float64) for t in (x, w, b)]
    want = np.maximum(wide[0] @ wide[1].T + wide[2], 0)
    assert with_amx["tdpbf16ps"]
    np.testing.assert_allclose(got, want, rtol=2**-6, atol=0.2)


def test_gradients_of_a_layer_are_products_of_tiles() -> None:
    rng = np.random.default_rng(10)
    x, w = bf16(rng, 64, 128), bf16(rng, 128, 256)
    w.requires_grad = x.requires_grad = True
    (x @ w).float().square().sum().backward()
    for gradient in (x.grad, w.grad):
        assert gradient is not None
        stages = explain([gradient._node], is_computed, LLVMRenderer(SPR))
        assert any("tdpbf16ps" in text for name, text in stages if name == "source")


def test_this_machine_has_amx(need: Callable[[str], None]) -> None:
    need("amx")
    rng = np.random.default_rng(11)
    x, w = bf16(rng, 256, 256), bf16(rng, 256, 256)
    with Context(DEV="CPU:7:LLVM"):
        assert NAME in Device["CPU:7"].renderer.target.matrices
        got = (x.to("CPU:7") @ w.to("CPU:7")).float().numpy()
    want = x.float().numpy().astype(np.float64) @ w.float().numpy().astype(np.float64)
    np.testing.assert_allclose(got, want, rtol=2**-6, atol=0.5)


# What is refused.


def changed(old: str, new: str, product: Product = PRODUCTS[0]) -> K.Kernel:
    text = print_kernel(product.kernel())
    assert old in text
    return parse_kernel(text.replace(old, new))


OTHERS: dict[str, Callable[[], K.Kernel]] = {
    "float32 is never rounded": lambda: parse_kernel(
        print_kernel(PRODUCTS[0].kernel())
        .replace("a: bf16", "a: f32")
        .replace("cast.f32(a[64*i + r])", "a[64*i + r]")
    ),
    "no product of matrices": lambda: changed("add= mul", "max= mul"),
    "no matrix instruction for": lambda: Product(64, 64, 64).kernel(),
    "fills tiles too little": lambda: Product(5, 64, 64, BF16).kernel(),
    "to pick rows for": lambda: Product(40, 64, 64, BF16, left=True).kernel(),
    "how long the sums are": lambda: changed("cast.f32(b[j + 32*r])", "cast.f32(b[j])"),
}


@pytest.mark.parametrize("reason", OTHERS)
def test_what_is_no_product_for_tiles_says_why(reason: str) -> None:
    kernel = OTHERS[reason]()
    with pytest.raises(IllegalOpt, match=reason):
        list(by_thread(kernel, SPR, False))
    scheduled, _ = schedule(kernel, SPR)
    assert not any(isinstance(s, K.Mma) for s in walk(scheduled.body))


def up_to(product: Product, kind: type) -> tuple[K.Kernel, list[Opt]]:
    """The kernel before the first transformation of a kind, and what follows."""
    opts = list(by_thread(product.kernel(), SPR, False))
    at = next(i for i, opt in enumerate(opts) if isinstance(opt, kind))
    return apply(product.kernel(), opts[:at]), opts[at:]


def test_a_packed_kernel_computes_the_same() -> None:
    product = Product(16, 17, 33, BF16)
    before, _ = up_to(product, Tensorize)
    arrays = product.arrays(12)
    run_kernel(before, arrays)
    product.check(arrays)


def test_transformations_refuse_what_would_be_wrong() -> None:
    before, (pack, _, tensorize) = up_to(PRODUCTS[0], Pack)
    assert isinstance(pack, Pack) and isinstance(tensorize, Tensorize)
    with pytest.raises(IllegalOpt, match="not packed in words"):
        apply(before, [tensorize])
    with pytest.raises(IllegalOpt, match=r"no loops \['nowhere'\]"):
        apply(before, [pack._replace(order=(*pack.order, "nowhere"))])
    with pytest.raises(IllegalOpt, match="operands from a depend"):
        apply(before, [pack._replace(buf="a")])
    packed = apply(before, [pack])
    with pytest.raises(IllegalOpt, match="no such instruction"):
        apply(packed, [tensorize._replace(name="m8n8k4.f64")])
    with pytest.raises(IllegalOpt, match="not directly nested"):
        apply(packed, [tensorize._replace(axes=tensorize.axes[1:])])
    word, column = pack.order[-2:]
    turned = apply(before, [pack._replace(order=(*pack.order[:-2], column, word))])
    with pytest.raises(IllegalOpt, match="do not lie as the instruction has them"):
        apply(turned, [tensorize])
    sunk, _ = up_to(PRODUCTS[0], Distribute)
    with pytest.raises(IllegalOpt):
        apply(sunk, [tensorize])


HEAD = """kernel k(x: bf16[1024] global, y: f32[256] global)
  loop w worker 1
    alloc s: f32[300] team
    alloc a: bf16[2,1,512] fragment
    alloc b: bf16[1,1,512] fragment
    alloc c: f32[1,1,256] fragment
    alloc p: f32[1,1,256] private
"""
BROKEN = {
    "ends at 1052 of x": "load_tile a[0] = x[16] row 67",
    "rows of 32 elements are 31 apart": "load_tile a[0] = x[0] row 31",
    "must be fragment": "load_tile p[0] = s[0] row 16",
    "must hold parts of 512": "mma c[0] += c[0] b[0] m16n16k32.bf16",
    "p must be fragment": "mma p[0] += a[0] b[0] m16n16k32.bf16",
    "to team or private": "store_tile y[0] = c[0] row 16",
    "in no loop of lanes": "loop v vector 2\n      load_tile a[v] = x[32*v] row 32",
    "index 0 of a, 2": "load_tile a[2] = x[0] row 32",
}


@pytest.mark.parametrize("rule", BROKEN)
def test_rules_of_kernels(rule: str) -> None:
    with pytest.raises(VerifyError, match=rule):
        verify_kernel(parse_kernel(HEAD + f"    {BROKEN[rule]}\n"))


LINEAR = """program k(y: f32[256] written, x: bf16[1024])
  %0 = param f32 y
  %1 = param bf16 x
  %2 = const i64 0
  %3 = local f32 256 team
  %4 = load_tile f32x256 %3, %2 (16)
  %5 = load_tile bf16x512 %1, %2 (32)
  {line}
"""
BROKEN_LINES = {
    "a tile has 512 bytes": "%6 = load_tile f32x128 %3, %2 (16)",
    "rows of 16 elements are 8 apart": "%6 = load_tile f32x256 %3, %2 (8)",
    "stored to a local": "store_tile %0, %2, %4 (16)",
    "three tiles": "%6 = mma f32x256 %5, %5 (m16n16k32.bf16)",
    "a tile of 512 bf16": "%6 = mma f32x256 %4, %5, %4 (m16n16k32.bf16)",
    "a tile of sums": "%6 = mma f32x128 %5, %5, %4 (m16n16k32.bf16)",
}


@pytest.mark.parametrize("rule", BROKEN_LINES)
def test_rules_of_linear_programs(rule: str) -> None:
    with pytest.raises(VerifyError, match=rule):
        verify_linear(parse_linear(LINEAR.format(line=BROKEN_LINES[rule])))


# Targets, and what the system allows.


def test_targets_have_the_instructions_of_their_features() -> None:
    assert SPR.matrices == names_for(None)
    assert host_target("x86_64,avx512f,amx-bf16").matrices == (NAME,)
    assert host_target("x86_64,avx512f,amx-tile").matrices == ()
    assert host_target("sapphirerapids,-amx-tile").matrices == ()
    assert CRenderer(SPR).target.matrices == ()


def test_tiles_are_there_if_the_system_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    flags = b"flags : avx2 fma amx_tile amx_bf16 amx_int8\n"
    monkeypatch.setattr(cpu, "host_architecture", lambda: "x86_64")
    monkeypatch.setattr(cpu.platform, "system", lambda: "Linux")
    monkeypatch.setattr(cpu, "read_bytes", lambda path: flags)
    features: Any = cpu._host_features.__wrapped__
    monkeypatch.setattr(cpu, "tiles_refused", lambda: "")
    assert {"amx-tile", "amx-bf16", "amx-int8"} <= features()
    monkeypatch.setattr(cpu, "tiles_refused", lambda: "arch_prctl says EPERM")
    with caplog.at_level("WARNING"):
        assert not {name for name in features() if name.startswith("amx")}
    assert "AMX is left out" in caplog.text and "EPERM" in caplog.text


def test_a_machine_without_tiles_refuses_them() -> None:
    lacks = "+amx-bf16" in missing_here(host_target("x86_64,amx-bf16"))
    assert bool(tiles_refused()) == lacks

"""What NAK makes of kernels: code for every operation, of the size and shape asked for."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu.compiler.fusion.build import BuiltKernel
from gpu.compiler.ir.linear import Inst, Program
from gpu.compiler.lower.linearize import linearize
from gpu.compiler.opt.policy.choose import schedule
from gpu.compiler.render.nir.nak import NAKRenderer
from gpu.compiler.targets.nvidia import AMPERE, ARCHITECTURES, number_of
from gpu.compiler.toolchain import mesalib
from gpu.compiler.toolchain.nak import NakCompiler
from gpu.compiler.toolchain.nakbinary import NakBinary
from gpu.core.config import Context
from gpu.core.dtype import dtypes
from gpu.core.errors import FormatError, ParseError, Unsupported
from prop.programs import random_graph
from prop.test_passes import computed, run_plan
from unit.cuda.kernels import nest, reversing, roots_and_products, symbolic
from unit.linear_kernels import COMPUTED, Kernel, exchanging, matrix_kernel, printed, scratch_kernel
from unit.test_grid_kernels import operations

TESTED = ("sm_80", "sm_89", "sm_90", "sm_120")
SMALL = NakBinary(90, 16, 1, 32, 128, 64, 24, "kernel", bytes(range(32)), "text")


@pytest.fixture
def mesa(need: Callable[[str], None]) -> None:
    need("tinymesa")


def compiled(arch: str, program: Program) -> NakBinary:
    return NakBinary.unpack(NakCompiler(arch).compile_cached(printed(NAKRenderer(arch), program)))


def every_cast() -> Program:
    k = Kernel(**{d.name: (d, 1) for d in COMPUTED}, half=(dtypes.float16, 1))
    at = k.const(0)
    for source in COMPUTED:
        value = k.load(getattr(k, source.name), at)
        for target in COMPUTED:
            k.store(getattr(k, target.name), at, k("cast", target, value))
    single = k("cast", dtypes.float32, k.load(k.half, at))
    k.store(k.half, at, k("cast", dtypes.float16, single))
    return k.program()


@pytest.mark.usefixtures("mesa")
@pytest.mark.parametrize("arch", TESTED)
def test_every_operation_of_every_dtype_compiles(arch: str) -> None:
    for dtype in COMPUTED:
        for name in operations(dtype):
            program = matrix_kernel(dtype, 1, 64, [name], "grid").program(f"{name}_{dtype.name}")
            binary = compiled(arch, program)
            assert binary.name == program.name and 0 < binary.registers <= 255
            assert "exit" in binary.assembly.lower()
    assert compiled(arch, every_cast()).code


@pytest.mark.usefixtures("mesa")
@pytest.mark.parametrize("arch", [a for a in ARCHITECTURES if number_of(a) >= AMPERE])
def test_random_kernels_compile(arch: str) -> None:
    renderer, made = NAKRenderer(arch), []

    def compile_only(built: BuiltKernel, arrays: list[np.ndarray]) -> None:
        program = linearize(schedule(built.kernel, renderer.target)[0], renderer.target)
        made.append(compiled(arch, program))

    rng = np.random.default_rng(ARCHITECTURES[arch])
    roots, inputs = random_graph(rng, depth=20, max_size=600)
    run_plan(computed(roots), inputs, compile_only)
    assert made and all(f"sm_{binary.sm}" == arch for binary in made)


@pytest.mark.usefixtures("mesa")
@pytest.mark.parametrize("arch", TESTED)
def test_what_a_launch_needs_is_told(arch: str) -> None:
    threads = compiled(arch, reversing(3, 4, 64).program())
    assert (threads.block, threads.shared, threads.parameters) == (256, 256 * 8, 16)
    assert threads.barriers == 1 and threads.local == 0
    assert re.search(r"bar\.sync", threads.assembly, re.IGNORECASE)
    alone = compiled(arch, scratch_kernel(40).program())
    assert alone.local >= 40 * 8 and alone.shared == alone.barriers == 0
    values = compiled(arch, symbolic("grid"))
    assert values.parameters == 16 and re.search(r"c\[0x0\]\[\+?0x8\]", values.assembly)
    exchange = compiled(arch, exchanging((2, 64), 32, [16]).program())
    assert "shfl.bfly" in exchange.assembly.lower()
    many = nest(7, 300).program()
    assert compiled(arch, many).block == NAKRenderer(arch).launch_data(many)["block"]


@pytest.mark.usefixtures("mesa")
@pytest.mark.parametrize("arch", TESTED)
def test_floats_are_not_contracted_and_subnormals_are_kept(arch: str) -> None:
    k = Kernel(a=(dtypes.float32, 64), b=(dtypes.float32, 64))
    i = k.loop(64, kind="grid")
    a = k.load(k.a, i)
    k.store(k.b, i, k.alu("add", k.alu("mul", a, a), a))
    k.end(i)
    text = compiled(arch, k.program()).assembly.lower()
    assert "fmul" in text and "fadd" in text and "ffma" not in text
    assert "ftz" not in compiled(arch, roots_and_products().program()).assembly.lower()


@pytest.mark.usefixtures("mesa")
@pytest.mark.parametrize("arch", TESTED)
def test_a_product_with_zero_is_computed(arch: str) -> None:
    """It is NaN for infinities, and has a sign."""
    k = Kernel(a=(dtypes.float32, 64), b=(dtypes.float32, 64))
    i = k.loop(64, kind="grid")
    k.store(k.b, i, k.alu("mul", k.load(k.a, i), k.const(0.0, dtypes.float32)))
    k.end(i)
    text = compiled(arch, k.program()).assembly.lower()
    assert "fmul" in text and "ld.global" in text


@pytest.mark.usefixtures("mesa")
@pytest.mark.parametrize("arch", TESTED)
def test_nvidias_disassembler_reads_the_code(arch: str) -> None:
    if shutil.which("nvdisasm") is None:
        pytest.skip("nvdisasm is not in PATH (package nvidia-cuda-nvdisasm)")
    renderer, compiler = NAKRenderer(arch), NakCompiler(arch)
    text = compiler.disassemble(compiler.compile(renderer.render(reversing(3, 4, 64).program())))
    for word in ("S2R", "STS", "BAR.SYNC", "LDS", "STG.E.64", "EXIT"):
        assert word in text, f"{word} in\n{text}"


@pytest.mark.usefixtures("mesa")
def test_what_is_no_nir_never_reaches_mesa() -> None:
    with pytest.raises(ParseError, match="line 2"):
        NakCompiler("sm_90").compile(
            "nir k block 1 shared 0 scratch 0 parameters 0\n  %0 = fadd\nend\n"
        )


def test_what_is_not_printed_is_refused() -> None:
    renderer = NAKRenderer("sm_90")
    with pytest.raises(Unsupported, match="is a vector"):
        renderer.render(matrix_kernel(dtypes.int32, 4, 64, ["add"]).program())
    waits = Program("k", (), (Inst("commit", dtypes.bool),))
    with pytest.raises(Unsupported, match="without matrix instructions"):
        renderer.render(waits)
    with pytest.raises(Unsupported, match="legalize"):
        renderer.render(matrix_kernel(dtypes.float32, 1, 64, ["exp"]).program())
    with pytest.raises(Unsupported, match="sm_75"):
        NAKRenderer("sm_75")
    with pytest.raises(Unsupported, match="sm_75"):
        NakCompiler("sm_75")


def test_a_binary_is_read_back() -> None:
    assert NakBinary.unpack(SMALL.pack()) == SMALL


@given(st.integers(0, len(SMALL.pack()) - 1), st.binary(max_size=3))
def test_a_cut_or_longer_binary_is_refused(at: int, more: bytes) -> None:
    with pytest.raises(FormatError):
        NakBinary.unpack(SMALL.pack()[:at])
    if more:
        with pytest.raises(FormatError):
            NakBinary.unpack(SMALL.pack() + more)


@given(st.binary(max_size=100))
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        NakBinary.unpack(data)
    with pytest.raises(FormatError):
        NakBinary.unpack(SMALL.pack()[:40] + data)


def test_a_missing_library_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesalib.mesa, "PACKAGE", "no-such-mesa")
    monkeypatch.setattr(mesalib, "FILE", "libnosuchmesa.so")
    mesalib._search.cache_clear()
    with pytest.raises(Unsupported) as caught:
        mesalib.find_mesa()
    mesalib._search.cache_clear()
    assert f"pip install tinymesa=={mesalib.mesa.VERSION}" in caught.value.message
    assert "TINYMESA_LIBRARY" in caught.value.message


def test_a_file_that_is_no_mesa_is_refused(tmp_path: Path) -> None:
    with Context(TINYMESA_LIBRARY=str(tmp_path / "none.so")):
        found = mesalib.find_mesa()
        assert found.version == ""
        with pytest.raises(Unsupported, match=r"none\.so cannot be loaded"):
            found.load()
    with Context(TINYMESA_LIBRARY="libc.so.6"), pytest.raises(Unsupported, match="is no library"):
        mesalib.find_mesa().load()


@pytest.mark.usefixtures("mesa")
def test_another_mesa_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(mesalib.mesa.ALU, "fadd", (mesalib.mesa.ALU["fadd"][0] + 1, 2))
    mesalib._load.cache_clear()
    with pytest.raises(Unsupported, match="is another Mesa than tinymesa"):
        mesalib.find_mesa().load()
    mesalib._load.cache_clear()

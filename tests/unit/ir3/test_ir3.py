"""What ir3 makes of kernels: code for every operation, of the size and shape asked for."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable

import numpy as np
import pytest

import gpu
from gpu import Tensor
from gpu.autogen import mesa
from gpu.compiler.fusion.build import BuiltKernel
from gpu.compiler.ir.graph import toposort
from gpu.compiler.ir.linear import Program
from gpu.compiler.lower.linearize import linearize
from gpu.compiler.nir_text import NirInst, NirProgram, print_nir
from gpu.compiler.opt.policy.choose import schedule
from gpu.compiler.render.nir.ir3 import IR3Renderer
from gpu.compiler.targets.adreno import CHIPS, SHARED_BYTES
from gpu.compiler.toolchain import ir3
from gpu.compiler.toolchain.ir3 import Ir3Compiler
from gpu.compiler.toolchain.mesalib import find_mesa, offset
from gpu.core.dtype import DType, dtypes
from gpu.core.errors import CompileError, FormatError, ParseError, Unsupported
from gpu.core.ir3binary import NO_REGISTER, Ir3Binary
from prop.programs import random_graph
from prop.test_passes import computed, run_plan
from unit.cuda.kernels import nest, reversing, symbolic
from unit.linear_kernels import COMPUTED, Kernel, matrix_kernel, printed, scratch_kernel
from unit.test_grid_kernels import operations
from unit.test_neighbours import LARGE, add
from unit.test_turning import lowered

TESTED = ("a630", "a690")
CAST = tuple(dtype for dtype in COMPUTED if dtype is not dtypes.float64)
NARROW = IR3Renderer("a630").target.native.compute_as_int32
WORDS = {dtypes.int32, dtypes.uint32}
NO_SUCH_FLOAT = """nir quarter block 32 shared 0 scratch 0 parameters 8
  %0 = param 64 (0)
  %1 = load_global 8 %0 (1, 0)
  %2 = fneg 8 %1
  store_global %2, %0 (1)
end
"""


@pytest.fixture(autouse=True)
def mesa_is_there(need: Callable[[str], None]) -> None:
    need("tinymesa")


def compiled(chip: str, program: Program | Kernel) -> tuple[Ir3Binary, str]:
    """A kernel and its listing, in which Mesa's decoder knows every bit."""
    compiler = Ir3Compiler(chip)
    lib = compiler.compile_cached(printed(IR3Renderer(chip), program))
    binary, text = Ir3Binary.unpack(lib), compiler.disassemble(lib)
    assert "no match" not in text and ";" not in text, text
    assert len(binary.code) % 128 == 0 and re.search(r"\bend\b", text) and f"a{binary.chip}" == chip
    return binary, text


@pytest.mark.parametrize(
    ("chip", "dtype"),
    [*(("a630", dtype) for dtype in CAST), ("a690", dtypes.float32), ("a690", dtypes.int32)],
    ids=str,
)
def test_every_operation_and_cast_compiles(chip: str, dtype: DType) -> None:
    names = list(operations(dtype))
    binary, _ = compiled(chip, matrix_kernel(dtype, 1, 64, names, "grid"))
    assert 0 < binary.full <= 48 and binary.thread_at < NO_REGISTER
    k = Kernel(**{d.name: (d, 1) for d in CAST}, half=(dtypes.float16, 1))
    at = k.const(0)
    value = k.load(getattr(k, dtype.name), at)
    for target in CAST:
        pair = {dtype, target}
        if len(pair) == 2 and (not pair & NARROW or pair & WORDS):
            k.store(getattr(k, target.name), at, k("cast", target, value))
    if dtype is dtypes.float32:
        k.store(k.half, at, k("cast", dtypes.float16, value))
    compiled(chip, k)


@pytest.mark.parametrize("chip", TESTED)
def test_random_kernels_compile(chip: str) -> None:
    renderer, made = IR3Renderer(chip), []

    def compile_only(built: BuiltKernel, arrays: list[np.ndarray]) -> None:
        program = linearize(schedule(built.kernel, renderer.target)[0], renderer.target)
        made.append(compiled(chip, program))

    for seed in range(2):
        rng = np.random.default_rng([int(chip[1:]), seed])
        roots, inputs = random_graph(rng, depth=12, max_size=600)
        if not any(node.dtype is dtypes.float64 for node in toposort(roots)):
            run_plan(computed(roots), inputs, compile_only)
    assert made


@pytest.mark.parametrize("chip", TESTED)
def test_what_a_launch_needs_is_told(chip: str) -> None:
    threads, text = compiled(chip, reversing(3, 4, 64).program())
    assert (threads.block, threads.shared, threads.parameters) == (256, 256 * 8, 16)
    assert threads.private == 0 and re.search(r"\bbar\b", text)
    alone, text = compiled(chip, scratch_kernel(40).program())
    assert alone.private >= 40 * 8 and alone.private % 512 == 0 and alone.shared == 0
    assert "stp" in text and "ldp" in text
    values, text = compiled(chip, symbolic("grid"))
    assert values.parameters == 16 and re.search(r"\bc0\.z", text), "the second one, as 32 bits"
    many = nest(7, 300).program()
    data = IR3Renderer(chip).launch_data(many)
    assert compiled(chip, many)[0].block == data["block"] and data["groups"] > 1


def test_constants_are_behind_the_parameters() -> None:
    k = Kernel(a=(dtypes.int32, 64), b=(dtypes.int32, 64))
    i = k.loop(64, kind="grid")
    wanted = (0x12345678, 0x0BADCAFE)
    value = k.load(k.a, i)
    for number in wanted:
        value = k.alu("xor", value, k.const(number, dtypes.int32))
        value = k.alu("mul", value, value)
    k.store(k.b, i, value)
    k.end(i)
    binary, text = compiled("a630", k)
    words = np.frombuffer(binary.immediates, np.uint32).tolist()
    for number in wanted:
        place = 4 * binary.immediates_at + words.index(number)
        assert f"c{place // 4}.{'xyzw'[place % 4]}" in text
    assert binary.parameters <= 16 * binary.immediates_at < 16 * binary.constants


def test_threads_that_part_ways_need_a_stack() -> None:
    k = Kernel(a=(dtypes.int32, 64), b=(dtypes.int32, 64))
    i = k.loop(64, kind="grid")
    conditions = []
    for depth in range(3):
        is_less = k.alu("lt", k.load(k.a, i), k.const(depth, dtypes.int32))
        conditions.append(k("if", dtypes.bool, is_less))
        loop = k.loop(20 + depth)
        k.store(k.b, k.alu("tmod", k.alu("add", i, loop), k.const(64)), k.load(k.a, loop))
        k.end(loop)
    for opened in reversed(conditions):
        k("endif", dtypes.bool, attr=(opened,))
    k.end(i)
    deep, _ = compiled("a630", k)
    flat, _ = compiled("a630", matrix_kernel(dtypes.int32, 1, 64, ["add"], "grid"))
    assert flat.branches == 0 < deep.branches <= 32


@pytest.mark.parametrize("chip", TESTED)
def test_products_are_rounded_as_written(chip: str) -> None:
    k = Kernel(a=(dtypes.float32, 64), b=(dtypes.float32, 64))
    i = k.loop(64, kind="grid")
    a = k.load(k.a, i)
    k.store(k.b, i, k.alu("add", k.alu("mul", a, a), a))
    k.end(i)
    _, text = compiled(chip, k)
    assert "mul.f" in text and "add.f" in text and "mad" not in text
    k = Kernel(a=(dtypes.float32, 64), b=(dtypes.float32, 64))
    i = k.loop(64, kind="grid")
    a = k.load(k.a, i)
    k.store(k.b, i, k.alu("fma", a, a, a))
    k.end(i)
    assert "mad.f32" in compiled(chip, k)[1]


def test_neighbours_are_accessed_together() -> None:
    target = IR3Renderer("a630").target
    _, text = compiled("a630", lowered(add(LARGE), target))
    found = re.findall(r"\b(ldg|stg)\S* .*, (\d)$", text, re.MULTILINE)
    assert set(found) == {("ldg", "4"), ("stg", "4")}, text


def test_the_same_kernel_is_the_same_code_in_another_process() -> None:
    source = printed(IR3Renderer("a690"), nest(7, 300))
    compiler = Ir3Compiler("a690")
    first = compiler.compile(source)
    compiler.compile(printed(IR3Renderer("a690"), reversing(3, 4, 64)))
    assert compiler.compile(source) == first
    ir3._helper().close()
    assert compiler.compile(source) == first


def test_a_bool_is_both_stored_and_chosen_by() -> None:
    for dtype in (dtypes.int32, dtypes.int64):
        k = Kernel(a=(dtype, 64), b=(dtype, 64), c=(dtype, 64), m=(dtypes.bool, 64))
        i = k.loop(64, kind="grid")
        a, b = k.load(k.a, i), k.load(k.b, i)
        both = k.alu("and", k.alu("lt", a, b), k.alu("ne", a, k.const(7, dtype)))
        either = k.alu("or", both, k.alu("eq", b, k.const(9, dtype)))
        k.store(k.c, i, k.alu("where", either, a, b))
        k.store(k.m, i, either)
        k.end(i)
        assert "stg.u8" in compiled("a630", k)[1]


def test_float64_is_refused_by_name() -> None:
    x = Tensor(np.ones(8, np.float64)).realize()
    with pytest.raises(Unsupported, match="has no float64"):
        gpu.compile_for("QCOM::a630", x + 1)
    program = matrix_kernel(dtypes.float64, 1, 64, ["add"], "grid").program()
    with pytest.raises(Unsupported, match="a630 has no float64"):
        IR3Renderer("a630").render(program)


def test_what_is_no_nir_never_reaches_mesa() -> None:
    with pytest.raises(ParseError, match="line 2"):
        Ir3Compiler("a630").compile(
            "nir k block 1 shared 0 scratch 0 parameters 0\n  %0 = fadd\nend\n"
        )


def test_a_failed_assertion_is_an_error_and_the_next_kernel_compiles() -> None:
    compiler = Ir3Compiler("a630")
    with pytest.raises(CompileError, match="ir3 ended with SIGABRT at quarter for a630"):
        compiler.compile(NO_SUCH_FLOAT)
    source = printed(IR3Renderer("a630"), reversing(3, 4, 64))
    assert Ir3Binary.unpack(compiler.compile(source)).block == 256


def test_more_parameters_than_there_are_constants_are_refused() -> None:
    size = 8 * 500
    body = (NirInst("param", 64, attr=(size - 8,)),)
    program = NirProgram("wide", 32, 0, 0, size, body)
    with pytest.raises(CompileError, match=r"wide has 4,000 bytes of parameters.*3,072"):
        Ir3Compiler("a630").compile(print_nir(program))


def test_what_is_no_code_is_marked_as_such() -> None:
    compiler = Ir3Compiler("a630")
    binary, _ = compiled("a630", reversing(3, 4, 64))
    text = compiler.disassemble(binary._replace(code=b"\xff" * 128).pack())
    assert text.count("no match") == 16
    with pytest.raises(FormatError, match="begins with"):
        compiler.disassemble(b"\x7fELF" + bytes(200))


def test_other_chips_are_refused() -> None:
    for make in (IR3Renderer, Ir3Compiler):
        with pytest.raises(Unsupported, match=r"'a730' is no Adreno .*a630"):
            make("a730")


def test_chips_are_as_mesa_knows_them() -> None:
    library = find_mesa().load()
    library.fd_dev_info_raw.restype = ctypes.c_void_p
    for name, chip in CHIPS.items():
        device = ctypes.create_string_buffer(mesa.SIZES["fd_dev_id"])
        number = int(name.removeprefix("a"))
        ctypes.c_uint32.from_buffer(device, offset("fd_dev_id.gpu_id")).value = number
        info = library.fd_dev_info_raw(device)

        def known(member: str, info: int = info) -> int:
            return ctypes.c_uint32.from_address(info + offset(f"fd_dev_info.{member}")).value

        assert chip == (known("num_sp_cores"), known("a6xx.reg_size_vec4")), name
        assert known("cs_shared_mem_size") == SHARED_BYTES

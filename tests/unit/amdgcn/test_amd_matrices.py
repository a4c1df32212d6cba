"""Matrix instructions of AMD's chips: which chips have them, their text, and what they save."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from gpu.compiler.ir.matrix import CDNA3, CDNA4, MATRICES, RDNA3, RDNA4, names_for
from gpu.compiler.lower.linearize import linearize
from gpu.compiler.opt.policy.choose import schedule
from gpu.compiler.render.llvm.amdgcn import AMDRenderer
from gpu.compiler.targets import Target
from gpu.compiler.targets.amd import CHIPS, amd_target
from gpu.compiler.toolchain.amdgcn import amd_machine
from gpu.compiler.toolchain.llvm import emit_assembly
from gpu.core.dtype import dtypes
from unit.matrix_kernels import Product

LAYOUTS = {"gfx11": RDNA3, "gfx12": RDNA4, "gfx942": CDNA3, "gfx950": CDNA4}
"""How waves of chips whose names begin so hold matrices."""
NAMES = {
    dtypes.float16: "f16",
    dtypes.bfloat16: "bf16",
    dtypes.fp8e4m3: "fp8",
    dtypes.fp8e5m2: "bf8",
    dtypes.int8: "i8",
    dtypes.uint8: "u8",
}


def test_chips_of_a_generation_have_the_same() -> None:
    for chip in CHIPS:
        layout = next((it for name, it in LAYOUTS.items() if chip.startswith(name)), None)
        assert amd_target(chip).matrices == (names_for(layout) if layout else ())
    assert {chip for chip in CHIPS if not amd_target(chip).matrices} == {
        chip for chip in CHIPS if chip.startswith("gfx103")
    }


def assembly(product: Product, chip: str, target: Target) -> str:
    """LLVM's text of the kernel that a target gets."""
    program = linearize(schedule(product.kernel(), target)[0], target)
    return emit_assembly(AMDRenderer(chip).render(program), amd_machine(chip))


def wanted(name: str) -> str:
    """What the assembler calls a matrix instruction (its ISA's document)."""
    how = MATRICES[name]
    kinds = [NAMES[dtype] for dtype in how.operands]
    if how.operand.bits == 16:
        kinds = kinds[:1]
    elif not how.operand.is_float:
        kinds = ["iu8" if how.layout in (RDNA3, RDNA4) else "i8"]
    family = "wmma" if how.layout in (RDNA3, RDNA4) else "mfma"
    sums = "f32" if how.sums.is_float else "i32"
    return f"v_{family}_{sums}_{how.m}x{how.n}x{how.k}_{'_'.join(kinds)} "


CASES = [
    (chip, name)
    for chip in ("gfx942", "gfx950", "gfx1100", "gfx1103", "gfx1151", "gfx1200", "gfx1201")
    for name in amd_target(chip).matrices
]


@pytest.mark.parametrize(("chip", "name"), CASES)
def test_what_is_printed(chip: str, name: str, need: Callable[[str], None]) -> None:
    need("llvmlite")
    how, target = MATRICES[name], amd_target(chip)
    product = Product(96, 64, 48, how.operand, other=how.other)
    target = replace(target, matrices=(name,))
    text = assembly(product, chip, target)
    found = re.findall(rf"\t{wanted(name)}.*", text)
    assert found, "it is not there"
    if "iu8" in wanted(name):
        signed = [int(dtype is dtypes.int8) for dtype in how.operands]
        # Which operand has the rows is for the policy to say.
        signs = {f"neg_lo:[{a},{b},0]" for a, b in (signed, signed[::-1])}
        assert all(any(sign in line for sign in signs) for line in found) or not any(signed)
    assert not re.search(r"scratch_store|buffer_store", text), "registers are spilled"
    # Operands come from local memory in as few loads as they have 16 bytes.
    nbytes = how.parts[0].held * how.operand.itemsize
    assert re.search(rf"\tds_(load|read2?)_b{8 * min(nbytes, 16)}\b", text)


def test_accumulation_registers_are_counted(need: Callable[[str], None]) -> None:
    """With them a wave has up to 512 registers, in steps of 8: next_free_vgpr has both kinds."""
    need("llvmlite")
    text = assembly(Product(256, 256, 256), "gfx942", amd_target("gfx942"))
    (offset,) = re.findall(r"\.amdhsa_accum_offset (\d+)", text)
    (free,) = re.findall(r"\.amdhsa_next_free_vgpr (\d+)", text)
    assert re.search(r"v_mfma\w+ a\[", text) or int(free) <= int(offset)
    assert 4 <= int(offset) <= 256 and int(free) <= CHIPS["gfx942"].registers(2)


def in_loop(text: str, warp: int) -> float:
    """Instructions of the loop that multiplies most, for 1000 operations of floats."""
    lines: list[str] = []
    places: dict[str, int] = {}
    best = (0, 1)
    for line in (full.partition(";")[0].strip() for full in text.splitlines()):
        if label := re.match(r"(\.LBB\w+):", line):
            places[label[1]] = len(lines)
        elif re.match(r"(s|v|ds|global|buffer|flat)_\w+", line):
            lines.append(line)
            back = re.match(r"s_c?branch\w*\s+(\.LBB\w+)", line)
            if back and back[1] in places:
                body = lines[places[back[1]] :]
                best = max(best, (sum(operations(one, warp) for one in body), len(body)))
    assert best[0], "no loop multiplies"
    return 1000 * best[1] / best[0]


def operations(line: str, warp: int) -> int:
    """Of floats, of a wave."""
    if matrix := re.match(r"v_(?:wmma|mfma)_f32_(\d+)x(\d+)x(\d+)", line):
        return 2 * int(matrix[1]) * int(matrix[2]) * int(matrix[3])
    return 2 * warp * (len(re.findall(r"v_\w*fm\w+_f32", line)) + 2 * ("v_pk_fma_f32" in line))


@pytest.mark.parametrize("side", [512, 1024])
@pytest.mark.parametrize("chip", ["gfx942", "gfx950", "gfx1100", "gfx1151", "gfx1201"])
def test_products_take_a_twentieth_of_the_instructions(
    chip: str, side: int, need: Callable[[str], None]
) -> None:
    """Counted where nearly all are executed: in the loop over the sum."""
    need("llvmlite")
    target, product = amd_target(chip), Product(side, side, side)
    plain = in_loop(assembly(product, chip, replace(target, matrices=())), target.warp)
    found = in_loop(assembly(product, chip, target), target.warp)
    assert found <= plain / 20, (found, plain)

"""Matrix instructions of RDNA3: which chips have them, and their text."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpu.compiler.ir.matrix import RDNA3, names_for
from gpu.compiler.lower.linearize import linearize
from gpu.compiler.opt.policy.choose import schedule
from gpu.compiler.render.llvm.amdgcn import AMDRenderer
from gpu.compiler.targets.amd import CHIPS, amd_target
from gpu.compiler.toolchain.amdgcn import amd_machine
from gpu.compiler.toolchain.llvm import emit_assembly
from gpu.core.dtype import DType, dtypes
from unit.matrix_kernels import Product


def test_chips_of_the_generation_have_them() -> None:
    having = {chip for chip in CHIPS if amd_target(chip).matrices}
    assert having == {chip for chip in CHIPS if chip.startswith("gfx11")}
    assert all(amd_target(chip).matrices == names_for(RDNA3) for chip in having)


@pytest.mark.parametrize("chip", ["gfx1100", "gfx1103", "gfx1151"])
@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=str)
def test_what_is_printed(chip: str, dtype: DType, need: Callable[[str], None]) -> None:
    need("llvmlite")
    target, renderer = amd_target(chip), AMDRenderer(chip)
    program = linearize(schedule(Product(96, 64, 48, dtype).kernel(), target)[0], target)
    source = renderer.render(program)
    text = emit_assembly(source, amd_machine(chip))
    name = f"v_wmma_f32_16x16x16_{'f16' if dtype is dtypes.float16 else 'bf16'}"
    count = source.count("call <8 x float> @llvm.amdgcn.wmma")
    assert count and text.count(name) >= count
    assert "ds_load_b128" in text
    assert "scratch_store" not in text, "registers are spilled"
